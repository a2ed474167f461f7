"""Time and memory to take up a campaign with 1 000, 10 000 and 100 000 recorded runs.

The journals and metrics.h5 are written by the library's own records; each size is replayed and resumed in processes
of their own.

    python benchmarks/resume.py [--sizes 1000 10000 100000]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import hpcagent as ha
from hpcagent.apps.landscape import synthetic
from hpcagent.campaign.state import State, manifest_event, result_event
from hpcagent.model.records import Cost, Result
from hpcagent.store.journal import Journal, read_events
from hpcagent.store.metrics_file import MetricsFile
from hpcagent.store.rundir import RunDir

BATCH = 100


def write(folder: Path, runs: int) -> None:
    """A finished campaign of `runs` runs."""
    campaign = ha.Campaign(
        synthetic,
        ha.maximize("value", subject_to={"error": ha.at_most(1.0)}),
        space={"x": {}, "y": {}},
        policy="random",
        until=ha.until.max_runs(runs),
        batch_size=BATCH,
        site="threads",
    )
    run_dir = RunDir(folder)
    run_dir.create()
    run_dir.campaign.write_text(campaign.toml())
    run_dir.app.write_text(campaign.app.model_dump_json())
    journal = Journal.open(run_dir.events)
    digest = campaign.app.digest
    for first in range(0, runs, BATCH):
        manifests = [
            campaign.app.manifest(
                campaign.complete({"x": 0.1, "y": (i % 997) / 997}),
                replicate=i,
                index=i,
                batch=i // BATCH,
                digest=digest,
            )
            for i in range(first, min(first + BATCH, runs))
        ]
        journal.append(
            [
                {
                    "event": "manifests",
                    "at": time.time(),
                    "manifests": [manifest_event(m) for m in manifests],
                }
            ]
        )
        results = [
            Result(
                manifest=m,
                status="COMPLETED",
                metrics={"value": 10.0, "error": 0.5},
                units={"value": "1", "error": "1"},
                started_at=1.0,
                ended_at=2.0,
                host="host",
                cost=Cost(wall_s=1.0, cpu_s=1.0, core_hours=1 / 3600, node_hours=1 / 7200),
                workdir=str(folder / "work" / m.execution_id),
            )
            for m in manifests
        ]
        journal.append([{"event": "results", "at": time.time(), "results": [result_event(r) for r in results]}])
    journal.close()
    metrics = MetricsFile(run_dir.metrics, campaign.app.contract)
    metrics.update(State.replay(read_events(run_dir.events)).in_order, final=True)


def replay(folder: Path) -> None:
    """Only reading the journal; prints seconds."""
    began = time.perf_counter()
    State.replay(read_events(RunDir(folder).events))
    print(f"replay {time.perf_counter() - began:6.2f} s, ", end="", flush=True)


def memory(which: str) -> float:
    """MB of this process, from Linux's own account: `getrusage` begins with what the parent had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


def resume(folder: Path) -> None:
    """What a resumed coordinator does before it goes on; prints seconds and MB."""
    from hpcagent.campaign.coordinator import Coordinator
    from hpcagent.campaign.loading import load_run

    before = memory("VmRSS")
    began = time.perf_counter()
    with Coordinator(load_run(folder), run_dir=folder) as coordinator:
        opened = time.perf_counter() - began
        for _ in coordinator:
            raise AssertionError("a finished campaign has no further batch")
        finished = time.perf_counter() - began
    peak = memory("VmHWM")
    size = RunDir(folder).events.stat().st_size / 1e6
    print(
        f"open {opened:6.2f} s, until it says that it is finished {finished:6.2f} s; {peak - before:5.0f} MB; journal {size:.1f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--resume", type=Path)
    arguments = parser.parse_args()
    if arguments.replay is not None:
        replay(arguments.replay)
        return
    if arguments.resume is not None:
        resume(arguments.resume)
        return
    for runs in arguments.sizes:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), runs)
            print(f"{runs:7} runs: ", end="", flush=True)
            for what in ("--replay", "--resume"):
                subprocess.run([sys.executable, __file__, what, folder], check=True)


if __name__ == "__main__":
    main()
