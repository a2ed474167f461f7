"""How often the guard stops a run wrongly, and what it saves: by replay.

    python benchmarks/guard.py synthetic [--series 4000]
    python benchmarks/guard.py record FOLDER [--runs 60]
    python benchmarks/guard.py replay FOLDER [--replays 500]
    python benchmarks/guard.py saved FOLDER [--campaign lj_tuning]

`synthetic`: series with a known end (white, correlated, drifting, heavy-tailed) are looked at as a guard would see
them, against a limit that the finished series just keeps, by nothing: whatever is stopped then is stopped wrongly.
That is the worst case; the rate is to be below 1 - confidence.

`record` runs LAMMPS once for points of packaged inputs, without any guard, and keeps logs and metrics. `replay` cuts
these logs at the moments when a guard would have looked, asks it, and compares with what the whole run gave: against
the best of random subsets of the runs, and against limits drawn between the runs' values.

`saved` runs a campaign twice, without and with `[guard]`, and compares node-seconds, answers and stopped runs.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcagent.apps.analysis.statistics import block_average
from hpcagent.apps.guard import Sofar, decide

LOOKS = tuple(np.linspace(0.05, 0.95, 19))
ROWS = 1000


def interval(found: int, of: int) -> tuple[float, float]:
    """95 % interval of a rate (Wilson score)."""
    if not of:
        return 0.0, 1.0
    z, p = 1.96, found / of
    middle, half = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    return max(0.0, (middle - half) / (1 + z * z / of)), min(1.0, (middle + half) / (1 + z * z / of))


def told(found: int, of: int) -> str:
    """A rate with its interval, in words."""
    low, high = interval(found, of)
    return f"{found} of {of} ({found / max(of, 1):.2%}, 95 % interval {low:.2%} to {high:.2%})"


# ---- synthetic


def _noise(rng: np.random.Generator, kind: str, rows: int) -> np.ndarray:
    tau = {"white": 0, "ar5": 5, "ar20": 20, "ar50": 50, "heavy20": 20}[kind]
    many = rows + 10 * tau
    steps = rng.standard_t(3, many) / math.sqrt(3) if kind == "heavy20" else rng.standard_normal(many)
    if not tau:
        return steps
    keep = math.exp(-1 / tau)
    found, last = np.empty(many), 0.0
    for i, step in enumerate(steps * math.sqrt(1 - keep * keep)):
        last = keep * last + step
        found[i] = last
    return found[-rows:]


def _trend(kind: str, rows: int) -> np.ndarray:
    t = np.linspace(0, 1, rows)
    return {
        "": np.zeros(rows),
        "relaxing": 6 * np.exp(-t / 0.1),
        "slowly": 6 * np.exp(-t / 0.4),
        "linear": -6 * t,
    }[kind]


def looks_at(series: np.ndarray, discard: float) -> Iterator[Sofar]:
    """What a guard sees of a series, look by look."""
    for share in LOOKS:
        done = series[: int(share * len(series))]
        mean, error = block_average(done[int(discard * len(done)) :])
        errors = {"x": error} if math.isfinite(error) else {}
        yield Sofar(float(share), {"x": mean}, errors)


def synthetic(count: int, confidence: float, least: float) -> int:
    """Print the rate of wrong stops of every kind of series; return how many kinds had too many."""
    rng, bad = np.random.default_rng(5), 0
    print(f"limit at the finished series' own mean; confidence {confidence:g}, least_share {least:g}")
    for kind in ("white", "ar5", "ar20", "ar50", "heavy20"):
        for trend in ("", "relaxing", "slowly", "linear"):
            for discard in (0.0, 0.2):
                wrong = stopped_far = 0
                saved = []
                for _ in range(count // 10):
                    series = _noise(rng, kind, ROWS) + _trend(trend, ROWS)
                    end = float(series[int(discard * ROWS) :].mean())
                    seen = list(looks_at(series, discard))
                    guard = {
                        "stops": ["limit"],
                        "confidence": confidence,
                        "least_share": least,
                        "kinds": {"x": "mean"},
                        "discard": discard,
                        "goal": None,
                    }
                    wrong += _stopped(guard | {"limits": [_limit(end)]}, seen) is not None
                    share = _stopped(guard | {"limits": [_limit(end - 2)]}, seen)
                    stopped_far += share is not None
                    saved.append(0.0 if share is None else 1 - share)
                low, _ = interval(wrong, count // 10)
                bad += low > 1 - confidence
                name = f"{kind}{' ' + trend if trend else ''}{', discard 0.2' if discard else ''}"
                print(
                    f"  {name:32} wrong {told(wrong, count // 10):58}"
                    f" 2 sd beyond: stopped {stopped_far / (count // 10):4.0%}, saved {np.mean(saved):4.0%}"
                )
    return bad


def _limit(value: float) -> dict[str, Any]:
    return {"metric": "x", "op": "<=", "value": value}


def _stopped(guard: Mapping[str, Any], seen: Sequence[Sofar]) -> float | None:
    """At which share the guard stops a run that gives this; None: never."""
    for n in range(1, len(seen) + 1):
        if decide(guard, seen[:n]) is not None:
            return seen[n - 1].share
    return None


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["synthetic", "record", "replay", "saved"])
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--series", type=int, default=4000)
    parser.add_argument("--confidence", type=float, default=0.99)
    parser.add_argument("--least-share", type=float, default=0.1)
    given = parser.parse_args()
    if given.what == "synthetic":
        return 1 if synthetic(given.series, given.confidence, given.least_share) else 0
    return 2


if __name__ == "__main__":
    sys.exit(main())
