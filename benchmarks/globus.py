"""Campaigns on a Globus Compute endpoint, beside a plain loop over the SDK's own `Executor` on the same endpoint.

Broker, endpoint and SDK are the real ones, on this machine; the web service is the stand-in of the tests, in this
process. Ours keeps its full records. Three things, in turn: runs that sleep, in batches; 200 runs of 10 ms against
one; and the runs of `lj_tuning`, whose inputs the loop then runs again in the same batches. What comes first on
either side, when the endpoint starts, is not measured. The SDK's limit on bursts is at its loosest.

    python benchmarks/globus.py [--batches 5] [--runs 8] [--seconds 1.0] [--short 200] [--lammps 40]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import hpcagent as ha

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "globus"))

from loopback import Rig

AT_ONCE = 2


@ha.app(parameters={"n": ha.Int(0, 10**6), "seconds": ha.Float(0, 100, unit="s", default=0.1)}, metrics={"y": "1"})
def napping(n: int, seconds: float) -> dict[str, float]:
    """A run that takes as long as it is told."""
    import time

    time.sleep(seconds)
    return {"y": n}


def nap(seconds: float) -> float:
    """The same for the SDK."""
    import time

    time.sleep(seconds)
    return seconds


def lammps(command: list[str], files: dict[str, str]) -> str:
    """LAMMPS on the same input for the SDK; its log."""
    import os
    import pathlib
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for file, text in files.items():
            (folder / file).write_text(text)
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, "-in", "in.lammps"], cwd=folder, env=env, capture_output=True, check=True)
        return (folder / "log.lammps").read_text()[-1000:]


class _Environment:
    """What the rig asks of pytest's monkeypatch."""

    @staticmethod
    def setenv(name: str, value: str) -> None:
        os.environ[name] = value


class Traffic:
    """What went through the service since it was made."""

    def __init__(self, rig: Rig) -> None:
        self._counts, self._rig = self._now(rig), rig

    @staticmethod
    def _now(rig: Rig) -> tuple[int, int, int, int]:
        counts = rig.service.counts
        return len(rig.service.requests), counts.submitted, counts.results, counts.bytes_in

    def words(self, runs: int) -> str:
        """Per run; a task is one AMQP message there, its result two (to the service, and on to the client)."""
        requests, tasks, results, size = (b - a for a, b in zip(self._counts, self._now(self._rig), strict=True))
        return (
            f"{requests / runs:.2f} requests, {(tasks + 2 * results) / runs:.2f} AMQP messages, "
            f"{size / runs / 1000:.1f} kB sent, per run"
        )


def events(folder: Path) -> list[dict[str, Any]]:
    """A campaign's record."""
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def batches(folder: Path) -> list[tuple[float, list[str]]]:
    """Seconds from a batch's manifests to its last result, and its runs."""
    began: dict[int, float] = {}
    runs: dict[int, list[str]] = {}
    ended: dict[str, float] = {}
    for event in events(folder):
        for manifest in event.get("manifests", []):
            began.setdefault(manifest["batch"], event["at"])
            runs.setdefault(manifest["batch"], []).append(manifest["execution_id"])
        for result in event.get("results", []):
            assert result["status"] == "COMPLETED", result
            ended[result["execution_id"]] = event["at"]
    return [(max(ended[run] for run in runs[n]) - began[n], runs[n]) for n in sorted(began)]


def span(folder: Path, skip: int = 1) -> float:
    """Seconds from the manifests of the first batch that counts to the campaign's last result."""
    found = events(folder)
    first = min(e["at"] for e in found for m in e.get("manifests", []) if m["batch"] >= skip)
    return float(max(e["at"] for e in found if e["event"] == "results") - first)


def naps(rig: Rig, profile: Path, name: str, *, size: int, count: int, seconds: float) -> Path:
    """A campaign of so many batches; its folder."""
    runs = size * count
    campaign = ha.Campaign(
        napping,
        ha.maximize("y"),
        space={"n": {"low": 0, "high": runs - 1}},
        fixed={"seconds": seconds},
        policy={"name": "grid", "levels": runs},
        until={"max_runs": runs},
        batch_size=size,
    )
    folder = Path(rig.folder) / name
    ha.run(campaign, site=profile, run_dir=folder, watch=lambda _: None)
    return folder


def loop(rig: Rig, calls: list[list[tuple[Any, ...]]]) -> float:
    """Seconds that the SDK's executor takes for the batches, one after the other."""
    from globus_compute_sdk import Client, Executor

    client = Client(do_version_check=False)
    with Executor(rig.endpoint.id, client=client, api_burst_limit=8, api_burst_window_s=1) as executor:
        executor.submit(nap, 0.0).result()
        began = time.perf_counter()
        for batch in calls:
            for future in [executor.submit(*call) for call in batch]:
                future.result()
        return time.perf_counter() - began


def sleeps(rig: Rig, profile: Path, args: argparse.Namespace) -> None:
    """Runs of a fixed length."""
    runs, ideal = args.batches * args.runs, -(-args.runs // AT_ONCE) * args.seconds
    print(f"{args.batches} batches of {args.runs} runs of {args.seconds:g} s, {AT_ONCE} at once:")
    naps(rig, profile, "warm", size=2, count=1, seconds=0.0)
    traffic = Traffic(rig)
    theirs = loop(rig, [[(nap, args.seconds)] * args.runs] * args.batches)
    print(f"  SDK      {theirs:6.2f} s; {traffic.words(runs)}")
    traffic = Traffic(rig)
    folder = naps(rig, profile, "naps", size=args.runs, count=args.batches + 1, seconds=args.seconds)
    ours, each = span(folder), [took for took, _ in batches(folder)[1:]]
    print(f"  hpcagent {ours:6.2f} s; {traffic.words(runs + args.runs)}")
    print(f"  hpcagent: {statistics.median(each) - ideal:.2f} s a batch beside the runs themselves ({ideal:g} s)")
    print(f"  ratio {ours / theirs:.3f}, with all records", flush=True)


def short(rig: Rig, profile: Path, many: int) -> None:
    """Many runs of 10 ms against one."""
    one = statistics.median(t for t, _ in batches(naps(rig, profile, "one", size=1, count=6, seconds=0.01))[1:])
    traffic = Traffic(rig)
    all_took = batches(naps(rig, profile, "many", size=many, count=2, seconds=0.01))[1][0]
    print(f"runs of 10 ms: one {one:.2f} s, {many} {all_took:.2f} s ({many * 0.01 / AT_ONCE:.2f} s at best)")
    print(f"  {traffic.words(2 * many)}", flush=True)


def argon(rig: Rig, profile: Path, runs: int) -> None:
    """`lj_tuning`, and its inputs once more."""
    folder = Path(rig.folder) / "lj"
    command = [str(rig.endpoint.python.parent / "lmp")]
    traffic, limit = Traffic(rig), f"until.max_runs={runs}"
    hpcagent = str(Path(sys.executable).with_name("hpcagent"))
    rig.run(
        [hpcagent, "run", "lj_tuning", "--site", str(profile), "--run-dir", str(folder), "--set", limit],
        timeout_s=3600,
    )
    words = traffic.words(runs)
    there = {r["execution_id"]: r["remote"]["workdir"] for e in events(folder) for r in e.get("results", [])}
    calls = [
        [
            (lammps, command, {n: Path(there[run], n).read_text() for n in ("in.lammps", "params.vars")})
            for run in batch
        ]
        for _, batch in batches(folder)[1:]
    ]
    measured = sum(map(len, calls))
    ours = span(folder)
    theirs = loop(rig, calls)
    print(f"lj_tuning, {measured} runs after the first batch in {len(calls)} batches:")
    print(f"  SDK {theirs:.2f} s, hpcagent {ours:.2f} s ({words}), steering included")
    print(f"  ratio {ours / theirs:.3f}, with all records", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--short", type=int, default=200)
    parser.add_argument("--lammps", type=int, default=40, help="runs of lj_tuning; 0: none")
    args = parser.parse_args()
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    with Rig() as rig:
        rig.lend(_Environment)
        profile = rig.profile(runs_at_once=AT_ONCE)
        sleeps(rig, profile, args)
        if args.short:
            short(rig, profile, args.short)
        if args.lammps:
            argon(rig, profile, args.lammps)


if __name__ == "__main__":
    main()
