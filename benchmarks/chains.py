"""What a chain costs beside its inner runs: the same runs as a campaign of their own, side by side.

    python benchmarks/chains.py [CHAINS]

Each chain asks for three runs of its own and one that all chains share; a plain campaign makes as many runs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import hpcagent as ha
from hpcagent.apps.landscape import synthetic

PARTS = 3


@ha.chain(parameters={"x": ha.Float(0.02, 0.5)}, metrics={"value": "1"}, seeded=False)
def four(x: float) -> dict[str, float]:
    """Three runs of its own, one that is shared."""
    shared = synthetic(x=0.3)
    own = [synthetic(x=x, y=y) for y in (0.2, 0.5, 0.9)]
    return {"value": shared.result()["value"] + sum(run.result()["value"] for run in own)}


def timed(campaign: ha.Campaign, folder: Path) -> tuple[float, ha.types.CampaignResult]:
    """Seconds that a campaign takes from its first run to its last."""
    with ha.Coordinator(campaign, site="laptop", run_dir=folder) as coordinator:
        began = time.perf_counter()
        for _ in coordinator:
            pass
        return time.perf_counter() - began, coordinator.result()


def main() -> None:
    """Print both and their ratio, three times in turn."""
    chains = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    runs = PARTS * chains + 1
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(3):
            plan = ha.Campaign(
                four, ha.maximize("value"), policy="sobol", until=ha.until.max_runs(chains), batch_size=chains
            )
            of_chains, result = timed(plan, Path(folder, f"chains-{turn}"))
            assert result.inner == {"synthetic": (runs, 0)}, result.inner
            space = {"x": {"low": 0.02, "high": 0.5}}
            plan = ha.Campaign(
                synthetic,
                ha.maximize("value"),
                space=space,
                policy="sobol",
                until=ha.until.max_runs(runs),
                batch_size=runs,
            )
            plain, _ = timed(plan, Path(folder, f"plain-{turn}"))
            print(
                f"{chains} chains of {runs} runs: {of_chains:.2f} s ({1e3 * of_chains / runs:.1f} ms a run); the runs alone: "
                f"{plain:.2f} s ({1e3 * plain / runs:.1f} ms); ratio {of_chains / plain:.2f}"
            )


if __name__ == "__main__":
    main()
