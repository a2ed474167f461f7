"""What a campaign makes of faults, on a private Slurm and on the fake PBS of the tests; Parsl alone beside it.

    python benchmarks/faults.py [FAULT ...] [--on slurm|pbs] [--parsl] [--add FILE ...] [--write]

Needs Debian's packages of tests/apt.txt. With --parsl the same work is done on Slurm with Parsl alone: its
defaults (heartbeats, polling), retries=2, the launcher of its documentation; a fault is given up after five minutes.
With --write the tables of docs/howto/when_the_cluster_misbehaves.md are replaced; cells that were not measured stay.
Half an hour, an hour more with --parsl; it can be had in parts: --add takes what earlier calls printed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "slurm"), str(ROOT / "tests" / "slurm" / "faults")]

import faults  # noqa: E402
import on_pbs  # noqa: E402
from cluster import Cluster  # noqa: E402

PAGE = ROOT / "docs" / "howto" / "when_the_cluster_misbehaves.md"
GIVE_UP_S = 300.0
BEGIN, END = "<!-- faults on {}: written by benchmarks/faults.py -->", "<!-- end of faults on {} -->"


def full_disk(driven: Any) -> None:
    """Fill the small file system that the run directory is on."""
    driven.until(lambda: len(driven.marks("done")) >= 1, name="a run done", within_s=120)
    driven.disturb()
    with contextlib.suppress(OSError), (driven.run_dir / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    driven.ballast = driven.run_dir / "ballast"


@dataclass(frozen=True)
class Fault:
    """One row of a table.

    Attributes:
        title: What happens, in words.
        act: What is done to the campaign.
        change: What of the set-up is other: fields of `faults.Setting`, and `tools`, `two`, `small_disk`, `pbs`.
        where: The schedulers that it is played on.
        parsl: Whether Parsl alone is measured as well.
    """

    title: str
    act: Callable[[Any], None]
    change: Mapping[str, Any] = field(default_factory=dict)
    where: tuple[str, ...] = ("slurm", "pbs")
    parsl: bool = True


def busy(command: str, words: str, *, times: int = 0, seconds: float = 0.0) -> Callable[[Path], dict[str, str]]:
    """A PATH on which a command is refused so many times, or for so long, and then works."""

    def prepare(folder: Path, path: str) -> dict[str, str]:
        tools = folder / "bin"
        tools.mkdir(parents=True)
        script = tools / command
        real = shutil.which(command, path=path)
        script.write_text(
            f"#!/bin/sh\nn=$(cat {tools}/n 2>/dev/null || echo 0); echo $((n + 1)) > {tools}/n\n"
            f"[ -e {tools}/began ] || date +%s > {tools}/began\n"
            f'if [ "$n" -lt {times} ] || [ $(date +%s) -lt $(($(cat {tools}/began) + {seconds:.0f})) ]; then\n'
            f'  echo "{words}" >&2; exit {38 if command == "qsub" else 1}\n'
            f'fi\nexec {real} "$@"\n'
        )
        script.chmod(0o755)
        return {"PATH": f"{tools}:{path}"}

    return prepare


def again(signalled: Callable[[Any], None]) -> Callable[[Any], None]:
    """The fault, and once the script has ended the same script again."""

    def act(driven: Any) -> None:
        signalled(driven)
        if driven.kind == "hpcagent":
            driven.said = driven.answer(within_s=GIVE_UP_S)["error"] or ""
            driven.start()

    return act


_SOCKET = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
_SUBMIT_LIMIT = (
    "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS "
    "policy (job submit limit, user's size and/or time limits)"
)
_QUEUED_LIMIT = "qsub: would exceed queue generic's per-user limit"

FAULTS: dict[str, Fault] = {
    "block_cancelled": Fault("a job is cancelled under its runs", faults.block_cancelled),
    "walltime": Fault(
        "the walltime of a job is over",
        faults.walltime,
        {"slurm": {"runs": 4, "seconds": 32.0}, "pbs": {"runs": 4, "seconds": 32.0}},
    ),
    "worker_killed": Fault("a worker process is killed", faults.worker_killed),
    "manager_killed": Fault("the manager of a node is killed", faults.manager_killed),
    "manager_frozen": Fault("the manager of a node stands still (SIGSTOP)", faults.manager_frozen, parsl=False),
    "interchange_killed": Fault("the interchange is killed", faults.interchange_killed),
    "interchange_frozen": Fault("the interchange stands still (SIGSTOP)", faults.interchange_frozen, parsl=False),
    "controller_restarted": Fault("the scheduler does not answer for 5 s", faults.controller_restarted),
    "other_name": Fault(
        "another job has a name in Latin-1; a job is cancelled under its runs",
        faults.latin_1,
        where=("slurm",),
        parsl=False,
    ),
    "node_drained": Fault("a node is drained", faults.node_drained, where=("slurm",)),
    "node_failed": Fault("a node fails", faults.node_failed, where=("slurm",)),
    "node_dies": Fault("a node dies; qdel is refused until it is forced (222)", on_pbs.node_dies, where=("pbs",)),
    "job_purged": Fault(
        "a job ends while the server is away, and is forgotten by then", on_pbs.job_purged, where=("pbs",)
    ),
    "output_folder_missing": Fault(
        "a job is deleted, the folder of its output is gone", on_pbs.output_folder_missing, where=("pbs",)
    ),
    "submit_flaky": Fault(
        "a job is refused three times, then taken",
        faults.nothing,
        {
            "slurm": {"tools": busy("sbatch", _SOCKET, times=3)},
            "pbs": {"tools": busy("qsub", _QUEUED_LIMIT, times=3)},
        },
    ),
    "submit_limit": Fault(
        "the limit of submitted jobs is full for 60 s",
        faults.nothing,
        {
            "slurm": {"tools": busy("sbatch", _SUBMIT_LIMIT, seconds=60)},
            "pbs": {"tools": busy("qsub", _QUEUED_LIMIT, seconds=60)},
        },
        parsl=False,
    ),
    "bad_partition": Fault("no such partition or queue", faults.nothing, {"partition": "nope"}),
    "bad_worker_init": Fault(
        "worker_init fails", faults.nothing, {"worker_init": "echo no such module >&2; exit 7"}
    ),
    "memory": Fault(
        "a run eats the memory of its job",
        faults.nothing,
        {"memory_gb": 1, "eats_mb": 1400, "seconds": 3.0},
        where=("slurm",),
    ),
    "daemon": Fault("a run leaves a daemon (`env -i setsid`)", faults.nothing, {"daemons": True}, parsl=False),
    "coordinator_killed": Fault("kill -9 of the script, and the script again", faults.coordinator_killed),
    "coordinator_frozen": Fault("the script stands still for 30 s", faults.coordinator_frozen, parsl=False),
    "sigterm": Fault("SIGTERM to the script, and the script again", again(faults.sigterm)),
    "sighup": Fault("SIGHUP (a lost ssh connection), and the script again", again(faults.hangup), parsl=False),
    "manifests_damaged": Fault(
        "a line of the journal is damaged, and the script again", faults.manifests_damaged, parsl=False
    ),
    "function_edited": Fault("the function is edited, and the script again", faults.function_edited, parsl=False),
    "copied": Fault("a copy of the run directory is resumed beside", faults.copied, parsl=False),
    "folder_deleted": Fault("the run directory is deleted", faults.folder_deleted, parsl=False),
    "two_at_once": Fault("two campaigns at once", faults.nothing, {"two": True}),
    "disk_full": Fault(
        "the disk of the run directory is full, then not",
        full_disk,
        {"small_disk": True},
        where=("slurm",),
    ),
}


def played(driven: Any, fault: Fault) -> dict[str, Any]:
    """Do it, and wait for the end; what came of it."""
    fault.act(driven)
    found = driven.answer(within_s=GIVE_UP_S)
    ballast = getattr(driven, "ballast", None)
    if ballast is not None and found.get("error") and driven.kind == "hpcagent":
        driven.said = found["error"]
        ballast.unlink()
        driven.start()
        found = driven.answer(within_s=GIVE_UP_S)
    return found


def kept(driven: Any) -> set[int]:
    """Numbers of the runs whose right result is on record, also where the campaign ended with an error."""
    found = set()
    with contextlib.suppress(OSError):
        manifests: dict[str, int] = {}
        for line in (driven.run_dir / "events.jsonl").read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                for m in event.get("manifests") or []:
                    manifests[m["execution_id"]] = m["params"]["n"]
                for r in event.get("results") or []:
                    if (r.get("metrics") or {}).get("square") == manifests.get(r["execution_id"], -1) ** 2:
                        found.add(manifests[r["execution_id"]])
    return found


def try_out(on: str, name: str, kind: str) -> dict[str, Any]:
    """Run the work once with a fault; what came of it."""
    fault = FAULTS[name]
    change = {k: v for k, v in fault.change.items() if k not in ("slurm", "pbs")} | dict(fault.change.get(on, {}))
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if change.pop("small_disk", False):
            (folder / "run").mkdir()
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=3m,mode=755", "tmpfs", str(folder / "run")], check=True
            )
            stack.callback(subprocess.run, ["umount", str(folder / "run")], check=True)
        if on == "slurm":
            site = stack.enter_context(Cluster(accounting=name == "memory", memory_kill=name == "memory"))
        else:
            site = fake_pbs()(folder / "pbs")
            site.may_leave_jobs = True
            site.take_real_times()
            site.set(hosts=dict.fromkeys(("n1", "n2", "n3", "n4"), 2))
            stack.callback(site.close)
        two, tools = change.pop("two", False), change.pop("tools", None)
        if tools is not None:
            change["environment"] = tools(folder, site.env.get("PATH", os.environ["PATH"]))
        drivens = []
        for part in ("", "b")[: 2 if two else 1]:
            setting = faults.Setting(**change)
            drivens.append(
                faults.Driven(site, folder / part, setting, kind=kind)
                if on == "slurm"
                else on_pbs.DrivenOnPbs(site, folder / part, setting)
            )
        for driven in drivens:
            stack.callback(end, driven)
        found: dict[str, Any] = {}
        try:
            found = played(drivens[0], fault)
            for driven in drivens[1:]:
                found["error"] = found["error"] or driven.answer(within_s=GIVE_UP_S)["error"]
        except subprocess.TimeoutExpired:
            found = {"error": f"nothing after {GIVE_UP_S:.0f} s"}
        except (AssertionError, IndexError, StopIteration) as error:
            found = {"error": str(error) or type(error).__name__}
        ended = time.time()
        time.sleep(2)  # for what is just ending
        return outcome(drivens[0], found, name=name, on=on, ended=ended)


def outcome(driven: Any, found: Mapping[str, Any], *, name: str, on: str, ended: float) -> dict[str, Any]:
    """The figures of a row."""
    cluster, done = driven.cluster, driven.marks("done")
    results = found.get("results") or []
    right = {r["n"] for r in results if r["ok"] and r["square"] == r["n"] ** 2}
    if found.get("error"):
        right |= kept(driven)
    error = found.get("error") or ""
    return {
        "fault": name,
        "on": on,
        "kind": driven.kind,
        "right": len(right),
        "wrong": sum(r["ok"] and r["square"] != r["n"] ** 2 for r in results),
        "failed": sorted({r["failure"] for r in results if not r["ok"]}),
        "runs": driven.setting.runs,
        "lost": None if name == "folder_deleted" else len({int(n) for n in done} - right),
        "twice": len(done) - len(set(done)),
        "begun_again": len(driven.marks("begun")) - len(set(driven.marks("begun"))),
        "next_s": None if found.get("error") else driven.first_done_after() or driven.next_done_after(),
        "told_s": ended - (driven.disturbed if FAULTS[name].act is not faults.nothing else driven.began),
        "took_s": ended - driven.began,
        "said": getattr(driven, "said", "")[:400],
        "error": error[:400],
        "jobs_left": len(driven.jobs()),
        "processes_left": len(cluster.processes()) + daemons(driven),
    }


def daemons(driven: Any) -> int:
    """Processes that a run left where nobody looks for them; they are ended."""
    if not driven.setting.daemons:
        return 0
    found = [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "3033"]]
    for process in found:
        process.kill()
    return len(found)


def fake_pbs() -> Any:
    """The class of the tests."""
    spec = importlib.util.spec_from_file_location("pbs_conftest", ROOT / "tests" / "pbs" / "conftest.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FakePbs


def end(driven: Any) -> None:
    """End what a script has left on this machine, itself included."""
    driven.process.kill()
    mark = f"FAULTS_FOLDER={driven.folder}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
    driven.process.wait()


def short(text: str, most: int = 150) -> str:
    """A message as a part of a cell."""
    text = re.sub(r"/\S*/", "", " ".join(text.split()).replace("|", "/"))
    return f"{text[:most]}{'…' if len(text) > most else ''}"


def parsls(outcome: Mapping[str, Any]) -> str:
    """The cell of Parsl alone."""
    parts = []
    if outcome["error"].startswith("nothing after"):
        parts.append("hangs (given up after 300 s)")
    elif outcome["error"].startswith("nothing printed"):
        parts.append(f"ends after {outcome['told_s']:.0f} s without a word")
    elif outcome["error"]:
        parts.append(f"after {outcome['told_s']:.0f} s: {short(outcome['error'])}")
    else:
        parts.append(f"{outcome['right'] or 'none'} of {outcome['runs']} runs right")
        if outcome["failed"]:
            parts.append(f"the others, after {outcome['took_s']:.0f} s: {', '.join(outcome['failed'])}")
    if outcome["twice"]:
        parts.append(f"{outcome['twice']} done twice")
    if outcome["next_s"] and outcome["begun_again"]:
        parts.append(f"first run again after {outcome['next_s']:.0f} s")
    parts += [f"**{left}**" for left in leaked(outcome) if left]
    return "; ".join(parts)


def leaked(outcome: Mapping[str, Any]) -> list[str]:
    """What was left behind, in words."""
    if outcome["jobs_left"]:
        return [f"{outcome['jobs_left']} job(s) left"]
    return [f"{outcome['processes_left']} process(es) left"] if outcome["processes_left"] else []


def ours(outcome: Mapping[str, Any]) -> list[str]:
    """The cells of a row: right, lost, done twice, begun again, left, seconds to the next result, what is said."""
    said = outcome["said"] or outcome["error"]
    if outcome["failed"]:
        said = f"{', '.join(outcome['failed'])}, after {outcome['took_s']:.0f} s"
    elif said:
        said = short(said) if outcome["said"] else f"after {outcome['told_s']:.0f} s: {short(said)}"
    wrong = f", **{outcome['wrong']} wrong**" if outcome["wrong"] else ""
    return [
        f"{outcome['right']} of {outcome['runs']}{wrong}",
        "what was deleted" if outcome["lost"] is None else _bad(outcome["lost"]),
        _bad(outcome["twice"]),
        str(max(0, outcome["begun_again"] - outcome["twice"])),
        ", ".join(leaked(outcome)) or "0",
        f"{outcome['next_s']:.0f} s" if outcome["next_s"] else "",
        said,
    ]


def _bad(count: int) -> str:
    return f"**{count}**" if count else "0"


def table(on: str, outcomes: list[dict[str, Any]], before: str) -> str:
    """All outcomes on a scheduler as Markdown; cells that were not measured are as they were."""
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in before.splitlines() if line[:1] == "|"]
    old = {row[0]: row[1:] for row in rows}
    columns = ["what happens", "right", "lost", "done twice", "begun again", "left", "next result", "what is said"]
    if on == "slurm":
        columns.append("Parsl alone")
    lines = [columns, ["---"] * len(columns)]
    for name, fault in FAULTS.items():
        if on not in fault.where:
            continue
        last = {o["kind"]: o for o in outcomes if o["fault"] == name and o["on"] == on}
        cells = ours(last["hpcagent"]) if "hpcagent" in last else old.get(fault.title, [])[:7]
        if on == "slurm":
            cells.append(parsls(last["parsl"]) if "parsl" in last else "".join(old.get(fault.title, [])[7:8]))
        if cells and cells[0]:
            lines.append([fault.title, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Run the matrix and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", help=f"of {', '.join(FAULTS)}; all by default")
    parser.add_argument("--on", choices=("slurm", "pbs"))
    parser.add_argument("--parsl", action="store_true", help="Parsl alone as well")
    parser.add_argument("--add", nargs="*", type=Path, default=[], help="files with what earlier calls printed")
    parser.add_argument("--write", action="store_true", help="replace the tables of the documentation")
    args = parser.parse_args()
    outcomes = [json.loads(line) for f in args.add for line in f.read_text().splitlines() if line[:1] == "{"]
    for name in args.faults or ([] if args.add else FAULTS):
        for on in ("slurm", "pbs"):
            if args.on in (None, on) and on in FAULTS[name].where:
                kinds = (
                    ("hpcagent", "parsl") if args.parsl and on == "slurm" and FAULTS[name].parsl else ("hpcagent",)
                )
                for kind in kinds:
                    outcomes.append(try_out(on, name, kind))
                    print(json.dumps(outcomes[-1]), flush=True)
    page = PAGE.read_text()
    for on in ("slurm", "pbs"):
        before, _, rest = page.partition(BEGIN.format(on))
        inner, _, after = rest.partition(END.format(on))
        now = table(on, outcomes, inner)
        print(f"{on}\n{now}")
        page = f"{before}{BEGIN.format(on)}\n{now}\n{END.format(on)}{after}"
    if args.write:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
