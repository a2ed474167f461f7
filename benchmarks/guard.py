"""How often the guard stops a run wrongly, and what it saves: by replay.

    python benchmarks/guard.py synthetic [--series 4000]
    python benchmarks/guard.py record FOLDER [--runs 60]
    python benchmarks/guard.py replay FOLDER [--replays 500]
    python benchmarks/guard.py saved FOLDER [--campaign lj_tuning]

`synthetic`: series with a known end (white, correlated, drifting faster or slower, heavy-tailed, in two states) are looked at as a guard would see
them, against a limit that the finished series just keeps, by nothing: whatever is stopped then is stopped wrongly.
That is the worst case; the rate is to be below 1 - confidence, but for those that jump between two states: nothing
foresees a change that has not begun, and what they give is printed by itself.

`record` runs LAMMPS once for points of packaged inputs, without any guard, and keeps logs and metrics. `replay` cuts
these logs at the moments when a guard would have looked, asks it, and compares with what the whole run gave: against
the best of random subsets of the runs, and against limits drawn between the runs' values.

`saved` runs a campaign twice, without and with `[guard]`, and compares node-seconds, answers and stopped runs.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcagent.apps.guard import Sofar, decide
from hpcagent.statistics.timeseries import block_average

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


JUMPS = {"two states, 0.03": 0.03, "two states, 0.1": 0.1, "two states, 0.3": 0.3}
"""Kind -> how long a state lasts in the mean, as a part of the run. No rule foresees a change that has not begun."""


def _noise(rng: np.random.Generator, kind: str, rows: int) -> np.ndarray:
    if kind in JUMPS:  # 4 apart, with a little noise in each
        changes = np.cumsum(rng.random(rows) < 1 / (JUMPS[kind] * rows)) + rng.integers(2)
        return 4.0 * (changes % 2) + 0.3 * rng.standard_normal(rows)
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
        "accelerating": -6 * t * t,
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
    trends = ("", "relaxing", "slowly", "linear", "accelerating")
    totals = {False: [0, 0], True: [0, 0]}
    for kind in ("white", "ar5", "ar20", "ar50", "heavy20", *JUMPS):
        for trend in ("",) if kind in JUMPS else trends:
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
                bad += low > 1 - confidence and kind not in JUMPS
                totals[kind in JUMPS][0] += wrong
                totals[kind in JUMPS][1] += count // 10
                name = f"{kind}{' ' + trend if trend else ''}{', discard 0.2' if discard else ''}"
                print(
                    f"  {name:32} wrong {told(wrong, count // 10):58}"
                    f" 2 sd beyond: stopped {stopped_far / (count // 10):4.0%}, saved {np.mean(saved):4.0%}"
                )
    print(f"of all but those with two states: wrong {told(*totals[False])}")
    print(f"of those with two states, which confidence does not hold for: wrong {told(*totals[True])}")
    return bad


def _limit(value: float) -> dict[str, Any]:
    return {"metric": "x", "op": "<=", "value": value}


def _stopped(guard: Mapping[str, Any], seen: Sequence[Sofar]) -> float | None:
    """At which share the guard stops a run that gives this; None: never."""
    for n in range(1, len(seen) + 1):
        if decide(guard, seen[:n]) is not None:
            return seen[n - 1].share
    return None


# ---- recorded runs

INPUTS: Mapping[str, Mapping[str, Any]] = {
    "lj_argon": {"steps": 3000, "equil_steps": 300, "temperature": 80.0},
    "lj_melt": {"steps": 1500, "equil_steps": 500},
    "eam_cu": {"steps": 1000, "equil_steps": 200},
}


def record(folder: Path, runs: int, only: str) -> None:
    """Run LAMMPS for points of the packaged inputs, without a guard; every log and result is kept."""
    import hpcagent as ha

    for name, fixed in INPUTS.items():
        if only and name != only:
            continue
        app = ha.lammps(name)
        speed = "tau_per_day" if "tau_per_day" in [m.name for m in app.contract.metrics] else "ns_per_day"
        varied = {"timestep": {}, "skin": {}, "temperature": {"low": 40.0, "high": 160.0}}
        if name == "lj_melt":
            varied["temperature"] = {"low": 1.0, "high": 3.0}
        if name == "eam_cu":
            varied["temperature"] = {"low": 200.0, "high": 1200.0}
        steps = {k: v for k, v in fixed.items() if k not in varied}
        campaign = ha.Campaign(
            app,
            ha.maximize(speed),
            space=varied,
            fixed=steps,
            policy="sobol",
            until=ha.until.max_runs(runs),
            seed=3,
        )
        ha.run(campaign, site="laptop", run_dir=str(folder / name), progress=False)


def _recorded(folder: Path) -> list[tuple[str, dict[str, Any], Any, Any]]:
    """(input, final metrics, log, settings) of every completed run."""
    from hpcagent.science.lammps.log import read_log

    found = []
    for place in sorted(p for p in folder.iterdir() if (p / "events.jsonl").is_file()):
        app = read_app(place)
        for result in read_results(place):
            if result.ok:
                log = read_log(Path(result.workdir) / "log.lammps")
                found.append((place.name, dict(result.metrics), log, app))
    return found


def read_results(place: Path) -> Sequence[Any]:
    """The results of a campaign's folder."""
    from hpcagent.campaign.recorded import snapshot

    return snapshot(place).results


def read_app(place: Path) -> Any:
    """The app of a campaign's folder."""
    from hpcagent.campaign.loading import load_run

    return load_run(place, to_read=True).app


def _blocks(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Rows of a moving-block bootstrap with blocks of a fifth: another run of the same statistics."""
    size = max(1, rows // 5)
    starts = rng.integers(0, rows - size + 1, 6)
    return np.concatenate([np.arange(s, s + size) for s in starts])[:rows]


def _seen(log: Any, app: Any, order: np.ndarray | None) -> tuple[list[Sofar], dict[str, float]]:
    """What a guard sees of a log, look by look, and what the whole of it gives."""
    from dataclasses import replace

    from hpcagent.science.lammps.metrics import measure
    from hpcagent.science.lammps.production import production_run

    whole = production_run(log)
    if whole is None:
        return [], {}
    data = whole.data
    if order is not None:  # all but the step, which goes on
        step = list(whole.columns).index("Step")
        mixed = data[order[: len(data)]].copy()
        mixed[:, step] = data[: len(mixed), step]
        data = mixed

    def values(share: float) -> Any:
        rows = max(4, int(share * len(data)))
        cut = replace(whole, data=data[:rows], steps=int(share * (whole.steps or 0)))
        runs = tuple(cut if run is whole else run for run in log.runs)
        return measure(replace(log, runs=runs), discard=app.settings["discard"])

    looks = []
    for share in LOOKS:
        seen = values(float(share))
        looks.append(Sofar(float(share), dict(seen.values), dict(seen.uncertainty)))
    return looks, dict(values(1.0).values)


def replay(folder: Path, replays: int, confidence: float, least: float) -> int:
    """Ask the guard of every recorded run, against limits and bests drawn from the other runs."""
    from hpcagent.campaign.guard_table import kinds_of

    rng, recorded = np.random.default_rng(7), _recorded(folder)
    by_input: dict[str, list[Any]] = {}
    for name, _, log, app in recorded:
        by_input.setdefault(name, []).append((log, app))
    ready: dict[str, list[tuple[list[Sofar], dict[str, float], Any]]] = {}
    for name, runs in by_input.items():
        for log, app in runs:
            rows = len(log.runs[-1].data)
            for order in (None, _blocks(rng, rows), _blocks(rng, rows)):
                looks, end = _seen(log, app, order)
                if looks:
                    ready.setdefault(name, []).append((looks, end, app))
    wrong = Counter[str]()
    asked = Counter[str]()
    stopped = Counter[str]()
    saved = 0.0
    for _ in range(replays):
        name = str(rng.choice(sorted(ready)))
        runs = ready[name]
        looks, end, app = runs[int(rng.integers(len(runs)))]
        kinds = {
            m: k
            for m, k in kinds_of(app).items()
            if k in ("mean", "rising") and m in end and m in looks[-1].metrics
        }
        kinds = {m: k for m, k in kinds.items() if m in looks[-1].uncertainty or k == "rising"}
        if not kinds:
            continue
        metric = str(rng.choice(sorted(kinds)))
        others = [e[metric] for one, e, _ in runs if one is not looks and metric in e]
        guard = {
            "stops": [],
            "confidence": confidence,
            "least_share": least,
            "kinds": kinds,
            "discard": app.settings["discard"],
            "limits": [],
            "goal": None,
        }
        up = bool(rng.integers(2))
        for stop in ("limit", "cannot_win"):
            some = rng.choice(others, min(len(others), int(rng.integers(2, 9))), replace=False)
            # A limit near this run's own end is the hard one: every other time.
            near = end[metric] + float(rng.normal()) * looks[-1].uncertainty.get(metric, 0.0)
            value = float(near if rng.integers(2) else np.median(some))
            best = float(some.max() if up else some.min())
            guard |= {
                "stops": [stop],
                "limits": [{"metric": metric, "op": ">=" if up else "<=", "value": value}],
                "goal": {
                    "metric": metric,
                    "direction": "maximize" if up else "minimize",
                    "best": best,
                    "best_error": 0.0,
                },
            }
            asked[stop] += 1
            share = _stopped(guard, looks)
            if share is None:
                continue
            stopped[stop] += 1
            saved += 1 - share
            threshold = value if stop == "limit" else best
            fine = end[metric] >= threshold if up else end[metric] <= threshold
            wrong[stop] += fine
    for stop in ("limit", "cannot_win"):
        print(f"{stop}: wrong {told(wrong[stop], asked[stop])}; stopped {stopped[stop]}")
    print(
        f"{sum(map(len, by_input.values()))} recorded runs of {', '.join(by_input)}, and 2 bootstraps of each in time"
    )
    print(f"of all asked, {saved / max(sum(asked.values()), 1):.0%} of the run was saved in the mean")
    return 1 if sum(wrong.values()) > (1 - confidence) * sum(asked.values()) else 0


def saved(source: str, folder: Path) -> int:
    """Run a campaign that has a [guard] with it and without it, one after the other."""
    import hpcagent as ha

    for name in ("without", "with"):
        campaign = ha.load_campaign(source)
        if name == "without":
            campaign = campaign.model_copy(update={"guard": None})
        result = ha.run(campaign, site="laptop", run_dir=str(folder / name), progress=False)
        print(f"{name} guard: {result.node_hours * 3600:.1f} node-seconds, {result.counts}; best {result.best}")
        if result.guarded_text:
            print(f"  {result.guarded_text}")
    return 0


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["synthetic", "record", "replay", "saved"])
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--series", type=int, default=4000)
    parser.add_argument("--runs", type=int, default=20, help="runs of each input that are recorded")
    parser.add_argument("--only", default="", help="record this input only")
    parser.add_argument("--replays", type=int, default=500)
    parser.add_argument("--campaign", default="lj_tuning", help="a TOML with a [guard]")
    parser.add_argument("--confidence", type=float, default=0.99)
    parser.add_argument("--least-share", type=float, default=0.1)
    given = parser.parse_args()
    if given.what == "synthetic":
        return 1 if synthetic(given.series, given.confidence, given.least_share) else 0
    if given.folder is None:
        parser.error(f"{given.what} needs a folder")
    folder = Path(given.folder)
    if given.what == "record":
        record(folder, given.runs, given.only)
        return 0
    if given.what == "replay":
        return replay(folder, given.replays, given.confidence, given.least_share)
    return saved(given.campaign, folder)


if __name__ == "__main__":
    sys.exit(main())
