"""A campaign of short runs on four nodes of a private Slurm, beside the same tasks with Parsl alone.

Both in turn in one process, same cluster, four blocks of one node with two workers each, sleeping tasks. Ours keeps
its full records (manifest, journal, result, metrics). Parsl has its defaults, but a poll of the scheduler
every second, as ours here.

    python benchmarks/overhead_slurm.py [--runs 500] [--seconds 0.1] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SrunLauncher
from parsl.providers import SlurmProvider

import hpcagent as ha

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "slurm"))
sys.path.insert(0, str(Path(__file__).parent))

from cluster import Cluster  # noqa: E402

NODES, WORKERS = 4, 2
PROFILE = f"""\
kind = "slurm"
address = "127.0.0.1"
poll_s = 1
[nodes.node]
cores = {WORKERS}
[block]
queue = "debug"
walltime = "00:30:00"
max_blocks = {NODES}
[executors.workers]
"""


class EverySecond(SlurmProvider):  # type: ignore[misc]  # Parsl has no type information
    """Parsl's provider, which polls once a minute."""

    @property
    def status_polling_interval(self) -> float:
        return 1.0


def nap(seconds: float) -> float:
    """A task."""
    import time

    time.sleep(seconds)
    return seconds


@ha.app(parameters={"n": ha.Int(0, 10**6), "seconds": ha.Float(0, 100, unit="s", default=0.1)}, metrics={"y": "1"})
def napping(n: int, seconds: float) -> dict[str, float]:
    """The same as a run of a campaign."""
    import time

    time.sleep(seconds)
    return {"y": n}


def stock(runs: int, seconds: float) -> tuple[float, float]:
    """Seconds to the first result, and for all runs once every worker is there."""
    folder = tempfile.mkdtemp(prefix="overhead-")
    path = f"export PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={Path(__file__).parent}"
    provider = EverySecond(
        partition="debug",
        init_blocks=NODES,
        min_blocks=NODES,
        max_blocks=NODES,
        walltime="00:30:00",
        worker_init=path,
        launcher=SrunLauncher(),
    )
    executor = HighThroughputExecutor(
        label="htex",
        address="127.0.0.1",
        max_workers_per_node=WORKERS,
        cores_per_worker=0.1,
        interchange_launch_cmd=[str(Path(sys.executable).parent / "interchange.py")],
        provider=provider,
    )
    began = time.perf_counter()
    with parsl.load(Config(executors=[executor], run_dir=folder, initialize_logging=False)):
        task = parsl.python_app(nap)
        task(0.0).result()
        first = time.perf_counter() - began
        while len(executor.connected_managers()) < NODES:
            time.sleep(0.1)
        began = time.perf_counter()
        for future in [task(seconds) for _ in range(runs)]:
            future.result()
        took = time.perf_counter() - began
    parsl.clear()
    shutil.rmtree(folder)
    return first, took


def ours(runs: int, seconds: float) -> tuple[float, float]:
    """As `stock`: a first batch waits for all workers, the second is measured."""
    folder = Path(tempfile.mkdtemp(prefix="overhead-"))
    (folder / "site.toml").write_text(PROFILE)
    warm = 16 * NODES * WORKERS  # enough for every block to come and take part
    campaign = ha.Campaign(
        napping,
        ha.maximize("y"),
        space={"n": {"low": 0, "high": runs + warm - 1}},
        fixed={"seconds": seconds},
        policy={"name": "grid", "levels": runs + warm},
        until={"max_runs": runs + warm},
        batch_size=runs,
    )
    times: list[float] = []

    def note(event: ha.types.Event) -> None:
        times.extend([time.perf_counter()] * len(event.results) * (event.kind == "finished"))

    began = time.perf_counter()
    result = ha.run(campaign, site=folder / "site.toml", run_dir=folder / "run", watch=note)
    assert len(times) == runs + warm, result.reason
    shutil.rmtree(folder)
    return times[0] - began, (times[warm + runs - 1] - times[warm - 1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    ideal = args.runs * args.seconds / (NODES * WORKERS)
    print(f"{args.runs} runs of {args.seconds} s on {NODES} x {WORKERS} workers: {ideal:.2f} s at best")
    ratios = []
    with Cluster() as cluster:
        os.environ.update(cluster.env)
        for _ in range(args.rounds):
            first_theirs, theirs = stock(args.runs, args.seconds)
            first_ours, took = ours(args.runs, args.seconds)
            ratios.append(took / theirs)
            print(
                f"Parsl {theirs:.2f} s (first result after {first_theirs:.1f} s); hpcagent {took:.2f} s "
                f"(first after {first_ours:.1f} s): {ratios[-1]:.3f} of Parsl's time"
            )
    print(f"median: {statistics.median(ratios):.3f} of Parsl's time, with all records")


if __name__ == "__main__":
    main()
