"""The fault matrix on a private Slurm: a campaign of ours, and the same work with Parsl alone beside it.

    python benchmarks/faults.py [FAULT ...] [--only hpcagent|parsl] [--add FILE ...] [--write]

Needs Debian's packages of tests/apt.txt. Parsl runs with its defaults (heartbeats, polling), retries=2 and the
launcher of its documentation; a fault is given up after five minutes. With --write the table of
docs/howto/when_the_cluster_misbehaves.md is replaced. An hour, most of it waiting for Parsl; it can be had in
parts: --add takes what earlier calls printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "slurm"), str(ROOT / "tests" / "slurm" / "faults")]

import faults  # noqa: E402
from cluster import Cluster  # noqa: E402

PAGE = ROOT / "docs" / "howto" / "when_the_cluster_misbehaves.md"
GIVE_UP_S = 300.0
BEGIN, END = "<!-- faults: written by benchmarks/faults.py -->", "<!-- end of faults -->"


def flaky_sbatch(folder: Path) -> dict[str, str]:
    """A PATH on which sbatch fails three times as a busy Slurm does, and then works."""
    tools = folder / "bin"
    tools.mkdir(parents=True)
    script = tools / "sbatch"
    script.write_text(
        f"#!/bin/sh\nn=$(cat {tools}/n 2>/dev/null || echo 0); echo $((n + 1)) > {tools}/n\n"
        'if [ "$n" -lt 3 ]; then\n'
        '  echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1\n'
        f'fi\nexec {shutil.which("sbatch")} "$@"\n'
    )
    script.chmod(0o755)
    return {"PATH": f"{tools}:{os.environ['PATH']}"}


def full_limit(folder: Path) -> dict[str, str]:
    """A PATH on which sbatch says for 40 s that the user's limit of submitted jobs is full, as Slurm 22.05 says it."""
    tools = folder / "bin"
    tools.mkdir(parents=True)
    script = tools / "sbatch"
    script.write_text(
        f"#!/bin/sh\n[ -f {tools}/began ] || date +%s > {tools}/began\n"
        f"if [ $(($(date +%s) - $(cat {tools}/began))) -lt 40 ]; then\n"
        '  echo "sbatch: error: AssocMaxSubmitJobLimit" >&2\n'
        '  echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, '
        "user's size and/or time limits)\" >&2; exit 1\n"
        f'fi\nexec {shutil.which("sbatch")} "$@"\n'
    )
    script.chmod(0o755)
    return {"PATH": f"{tools}:{os.environ['PATH']}"}


def full_disk(driven: Any) -> None:
    """Fill the small file system that the run directory is on."""
    driven.until(lambda: len(driven.marks("done")) >= 1, name="a run done", within_s=120)
    driven.disturb()
    with contextlib.suppress(OSError), (driven.run_dir / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


# name -> (in words, what is done, what of the set-up is other)
FAULTS: dict[str, tuple[str, Callable[[Any], None], dict[str, Any]]] = {
    "block_cancelled": ("a job is cancelled under its runs", faults.block_cancelled, {}),
    "walltime": ("the walltime of a job is over", faults.walltime, {"runs": 4, "seconds": 32.0}),
    "worker_killed": ("a worker process is killed", faults.worker_killed, {}),
    "manager_killed": ("the manager of a node is killed", faults.manager_killed, {}),
    "interchange_killed": ("the interchange is killed", faults.interchange_killed, {}),
    "controller_restarted": ("slurmctld is away for 5 s", faults.controller_restarted, {}),
    "node_drained": ("a node is drained", faults.node_drained, {}),
    "node_failed": ("a node fails", faults.node_failed, {}),
    "sbatch_flaky": ("sbatch fails three times, then works", faults.nothing, {"flaky": True}),
    "full_limit": ("the limit of submitted jobs is full for 40 s", faults.nothing, {"full": True}),
    "latin_1": ("another job has a name in Latin-1; a job is cancelled under its runs", faults.latin_1, {}),
    "bad_partition": ("no such partition", faults.nothing, {"partition": "nope"}),
    "bad_worker_init": ("worker_init fails", faults.nothing, {"worker_init": "echo no such module >&2; exit 7"}),
    "memory": (
        "a run eats the memory of its job",
        faults.nothing,
        {"memory_gb": 1, "eats_mb": 1400, "seconds": 3.0},
    ),
    "coordinator_killed": ("kill -9 of the script, and the script again", faults.coordinator_killed, {}),
    "sigterm": ("SIGTERM to the script", faults.sigterm, {}),
    "hangup": ("SIGHUP to the script (a lost connection)", faults.hangup, {}),
    "two_at_once": ("two campaigns at once", faults.nothing, {"two": True}),
    "disk_full": ("the disk of the run directory is full", full_disk, {"small_disk": True}),
}


def end(driven: Any) -> None:
    """End what a script has left on this machine, itself included."""
    driven.process.kill()
    mark = f"FAULTS_FOLDER={driven.folder}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
    driven.process.wait()


def try_out(cluster: Any, name: str, kind: str) -> dict[str, Any]:
    """Run the work once with a fault; what came of it."""
    _, fault, other = FAULTS[name]
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    small = other.get("small_disk")
    if small:
        (folder / "run").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder / "run")], check=True)
    settings = {k: v for k, v in other.items() if k not in ("flaky", "full", "two", "small_disk")}
    if other.get("flaky"):
        settings["environment"] = flaky_sbatch(folder)
    if other.get("full"):
        settings["environment"] = full_limit(folder)
    drivens = [
        faults.Driven(cluster, folder / part, faults.Setting(**settings), kind=kind)
        for part in ("", "b")[: 2 if other.get("two") else 1]
    ]
    found: dict[str, Any] = {}
    try:
        fault(drivens[0])
        found = drivens[0].answer(within_s=GIVE_UP_S)
        for driven in drivens[1:]:
            other_one = driven.answer(within_s=GIVE_UP_S)
            found["error"] = found["error"] or other_one["error"]
    except (subprocess.TimeoutExpired, AssertionError, IndexError, StopIteration) as error:
        found = {
            "error": f"nothing after {GIVE_UP_S:.0f} s" if "Timeout" in type(error).__name__ else str(error),
            "stuck": True,
        }
    driven = drivens[0]
    done = driven.marks("done")
    ended = time.time()
    time.sleep(2)  # for what is just ending
    outcome = {
        "fault": name,
        "kind": kind,
        "right": sum(bool(r["ok"]) for r in found.get("results") or []),
        "failed": sorted({r["failure"] for r in found.get("results") or [] if not r["ok"]}),
        "runs": driven.setting.runs,
        "twice": len(done) - len(set(done)),
        "again_s": driven.first_done_after() if name not in _NO_RERUN else None,
        "told_s": ended - driven.began if found.get("error") else None,
        "took_s": ended - driven.began,
        "error": (found.get("error") or "")[:400],
        "jobs_left": len(cluster.jobs()),
        "processes_left": len(cluster.processes()),
    }
    for one in drivens:
        end(one)
    cluster.cancel_all()
    cluster.kill_leftovers()
    cluster.resume(*cluster.nodes)
    if small:
        subprocess.run(["umount", str(folder / "run")], check=True)
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


_NO_RERUN = {
    "controller_restarted",
    "node_drained",
    "sbatch_flaky",
    "full_limit",
    "bad_partition",
    "bad_worker_init",
    "memory",
    "two_at_once",
    "disk_full",
    "sigterm",
    "hangup",
}


def words(outcome: dict[str, Any]) -> str:
    """A cell of the table."""
    parts = []
    if outcome["error"]:
        text = re.sub(r"/\S*/", "", " ".join(outcome["error"].split()).replace("|", "/"))
        if text.startswith("nothing after"):
            parts.append("hangs (given up after 300 s)")
        elif text.startswith("nothing printed"):
            parts.append(f"ends after {outcome['told_s']:.0f} s without a word")
        else:
            parts.append(f"after {outcome['told_s']:.0f} s: {text[:130]}{'…' if len(text) > 130 else ''}")
    else:
        parts.append(f"{outcome['right'] or 'none'} of {outcome['runs']} runs right")
        if outcome["failed"]:
            which = {0: "all", outcome["runs"] - 1: "the other"}.get(outcome["right"], "the others")
            parts.append(f"{which}, after {outcome['took_s']:.0f} s: {', '.join(outcome['failed'])}")
    if outcome["twice"]:
        parts.append(f"{outcome['twice']} done twice")
    if outcome["again_s"]:
        parts.append(f"first run again after {outcome['again_s']:.0f} s")
    if outcome["jobs_left"]:
        parts.append(f"**{outcome['jobs_left']} job(s) left**")
    if outcome["processes_left"] and not outcome["jobs_left"]:
        parts.append(f"**{outcome['processes_left']} process(es) left**")
    return "; ".join(parts)


def table(outcomes: list[dict[str, Any]]) -> str:
    """All outcomes as Markdown."""
    lines = ["| what happens | with hpcagent | with Parsl alone |", "| --- | --- | --- |"]
    for name, (title, _, _) in FAULTS.items():
        last = {o["kind"]: o for o in outcomes if o["fault"] == name}
        cells = {kind: words(outcome) for kind, outcome in last.items()}
        if cells:
            lines.append(f"| {title} | {cells.get('hpcagent', '')} | {cells.get('parsl', '')} |")
    return "\n".join(lines)


def main() -> None:
    """Run the matrix and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", help=f"of {', '.join(FAULTS)}; all by default")
    parser.add_argument("--only", choices=("hpcagent", "parsl"))
    parser.add_argument("--add", nargs="*", type=Path, default=[], help="files with what earlier calls printed")
    parser.add_argument("--write", action="store_true", help="replace the table of the documentation")
    args = parser.parse_args()
    outcomes = [json.loads(line) for f in args.add for line in f.read_text().splitlines() if line[:1] == "{"]
    for name in args.faults or ([] if args.add else FAULTS):
        for kind in ("hpcagent", "parsl"):
            if args.only in (None, kind):
                with Cluster(accounting=name == "memory", memory_kill=name == "memory") as cluster:
                    outcomes.append(try_out(cluster, name, kind))
                print(json.dumps(outcomes[-1]), flush=True)
    print(table(outcomes))
    last = {(o["fault"], o["kind"]): o["jobs_left"] for o in outcomes}
    left = {kind: sum(n for (_, k), n in last.items() if k == kind) for kind in ("hpcagent", "parsl")}
    print(f"jobs left behind: hpcagent {left['hpcagent']}, Parsl {left['parsl']}")
    if args.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{table(outcomes)}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
