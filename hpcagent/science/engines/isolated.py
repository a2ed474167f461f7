"""Runs an app's function in a child process where its engine is heavy or not to be trusted with the worker.

A segmentation fault, the kernel's memory killer or a walltime then ends the child, and is a typed failure of this
run; in the worker's process it would end the worker and every run after it. The child is started like any other
program of a run (`planned`, `finish`): pinned to the run's cores, with its threads, in a process group of its own.

    python -P -X faulthandler -m hpcagent.science.engines.isolated WORKDIR

reads `call.json` there and writes `outcome.json`, so that a run can be repeated by hand.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from hpcagent.apps.ending import Limit, finish
from hpcagent.apps.launch import planned
from hpcagent.apps.printed import read_tail, reading
from hpcagent.apps.run import Outcome, Run, note, noted, noting
from hpcagent.beside import as_told, told
from hpcagent.errors import AppFailed, BadInput
from hpcagent.later import HEAVY, defer_when_imported
from hpcagent.moved import new_name
from hpcagent.science.engines.base import Iteration, NotConverged
from hpcagent.science.engines.registry import engine as engine_of

__all__ = ["FAILURE_MODES", "in_child", "run_isolated"]

FAILURE_MODES = (
    "BadSettings",
    "NoEngine",
    "NoStructure",
    "NotConverged",
    "EngineFailed",
    "EngineCrashed",
    "NoProperty",
    "FilesChanged",
    "FileTooLarge",
    "OutOfMemory",
    "Killed",
    "Walltime",
    "BlockEnded",
    # Of engines that start a program.
    "NoExecutable",
    "NoLauncher",
    "NoPlace",
    "WrongRanks",
    "ExecutableFailed",
    "NoPseudopotential",
    "MixedFunctionals",
    "NeedsSmearing",
    "DiagonalizationFailed",
)
"""Failures that every app with an engine can have."""

# Engines whose programs are started with the run's ranks; the others are one process.
_WITH_RANKS = ("espresso", "vasp")
_CALL = "call.json"
_OUTCOME = "outcome.json"
_OUTPUT = "output.txt"
_TAIL = 4000


def run_isolated(function: Callable[..., Outcome], run: Run, **params: Any) -> Outcome:
    """Call `function(run=run, **params)`, in a child process if the engine in `params` wants that.

    Args:
        function: A function at the top of its module.
        run: The run.
        params: Plain data, `engine` among them.

    Raises:
        AppFailed: What the function raised, whole; `EngineCrashed`, `OutOfMemory`, `Killed`, `Walltime` or
            `BlockEnded` for how the child ended; `BadSettings`: MPI ranks for an engine that has no use for them.
    """
    engine = engine_of(params["engine"])
    ranks = int(run.resources.get("nodes") or 1) * int(run.resources.get("ranks_per_node") or 1)
    if ranks > 1 and engine.name not in _WITH_RANKS:
        raise AppFailed(
            f"the run asks for {ranks} MPI ranks, but engine {engine.name!r} runs as one process; "
            f"{' and '.join(_WITH_RANKS)} use ranks. Ask for threads instead.",
            kind="contract",
            name="BadSettings",
            repair=f"ranks=1, threads={ranks}",
        )
    threads = int(run.resources.get("threads_per_rank") or 1)
    # Here threads are the worker's, whatever the run asks for; a program gets its own when it is started.
    if engine.isolated or (threads > 1 and engine.name not in _WITH_RANKS):
        return in_child(function, run, params)
    return function(run=run, **params)


def in_child(function: Callable[..., Outcome], run: Run, params: Mapping[str, Any]) -> Outcome:
    """Call `function(run=run, **params)` in a child process.

    Args:
        function: A function at the top of its module.
        run: The run.
        params: Plain data; `engine` is what the process is called by.

    Raises:
        AppFailed: As `run_isolated`.
    """
    call = {
        "function": f"{function.__module__}:{function.__qualname__}",
        "params": dict(params),
        "run": {f.name: getattr(run, f.name) for f in fields(run)} | {"workdir": str(run.workdir)},
        # Where this process finds modules: a calculator beside the user's script, for one.
        "path": [str(Path(entry).absolute()) for entry in sys.path],
        "modules": told(),
    }
    (run.workdir / _CALL).write_text(json.dumps(call, indent=1, default=dict))
    answer = run.workdir / _OUTCOME
    answer.unlink(missing_ok=True)
    threads = str(int(run.resources.get("threads_per_rank") or 1))
    # OMP_NUM_THREADS is set by `planned`; some builds of BLAS listen to these only.
    env = {"OPENBLAS_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    # -P: a file of the run called `mace.py` must not be imported in place of the package.
    words = [sys.executable, "-P", "-X", "faulthandler", "-m", __name__, str(run.workdir)]
    launch = planned(run, words, app=params["engine"], env=env)
    killed_before = _memory_kills()
    finished = finish(launch, cwd=run.workdir, output=run.workdir / _OUTPUT, limit=Limit.of(run))
    tail = read_tail(run.workdir / _OUTPUT, _TAIL)
    # Written in the end and renamed: where it is, the function had come to its end, however the process ended
    # then.
    if answer.is_file():
        return _answer(json.loads(answer.read_text()), tail)
    if finished.stopped is not None:
        raise finished.stopped.failure(wall_s=finished.wall_s, log_tail=tail)
    raise _crash(params["engine"], finished.returncode, tail, killed_before)


def _answer(said: dict[str, Any], tail: str) -> Outcome:
    for sentence in said.get("noted", ()):
        note(sentence)
    if "outcome" in said:
        outcome = said["outcome"]
        return Outcome(**outcome | {"notes": tuple(outcome["notes"])})
    if "os_error" in said:
        raise OSError(*said["os_error"])
    if "memory" in said:
        raise AppFailed(
            f"not enough memory: {said['memory']}.",
            kind="infrastructure",
            name="OutOfMemory",
            log_tail=tail,
            repair="more memory_gb, or a smaller system",
        )
    failure = dict(said["failure"])
    message, history = failure.pop("message"), failure.pop("history", None)
    failure["log_tail"] = failure.get("log_tail") or tail
    if history is not None:
        raise NotConverged(message, history=tuple(Iteration(*pair) for pair in history), **failure)
    raise AppFailed(message, **failure)


def _crash(engine: str, returncode: int, tail: str, killed_before: int) -> AppFailed:
    """What the end of a child without an answer says.

    The same input crashes again elsewhere: a segmentation fault or an abort is a failure of kind simulation, as it
    is for LAMMPS, and is not tried again. An illegal instruction or a bus error is one of the machine.
    """
    if returncode >= 0:
        return AppFailed(
            f"the process of engine {engine!r} ended with exit code {returncode} in the middle of its work.",
            name="EngineCrashed",
            log_tail=tail,
            repair=f"read {_OUTPUT} in the run's directory",
        )
    name = signal.Signals(-returncode).name
    if -returncode == signal.SIGKILL and _memory_kills() > killed_before:
        return AppFailed(
            f"engine {engine!r} was ended by the kernel: out of memory.",
            kind="infrastructure",
            name="OutOfMemory",
            log_tail=tail,
            repair="more memory_gb, or a smaller system",
        )
    if -returncode in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU):
        return AppFailed(
            f"engine {engine!r} was ended by {name} from outside (out of memory, or the job was stopped).",
            kind="infrastructure",
            name="Killed",
            log_tail=tail,
        )
    machine = -returncode in (signal.SIGILL, signal.SIGBUS)
    why = ": built for another processor, or the file system or its memory failed" if machine else ""
    return AppFailed(
        f"engine {engine!r} crashed with {name}{why}.",
        kind="infrastructure" if machine else "simulation",
        name="EngineCrashed",
        log_tail=tail,
        repair="install the engine's packages anew on this kind of node"
        if machine
        else "another structure or level; if it happens with all of them, install the engine's packages anew",
    )


def _memory_kills() -> int:
    """How often the kernel has ended a process of our control group for its memory; 0 where nobody counts."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        group = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        events = Path(f"/sys/fs/cgroup{group[3:]}/memory.events").read_text().split()
        return int(events[events.index("oom_kill") + 1])
    return 0


# ---- the child


def _child(workdir: Path) -> None:
    call = json.loads((workdir / _CALL).read_text())
    sys.path += [entry for entry in call["path"] if entry not in sys.path]
    as_told(call.get("modules", ()))
    with noting(), reading(call["run"]["site"]):
        answer = _answered(call) | {"noted": noted()}
    part = workdir / f"{_OUTCOME}.part"
    part.write_text(json.dumps(answer, default=float))
    part.rename(workdir / _OUTCOME)


def _answered(call: Mapping[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any]
    try:
        outcome = _called(call)
        answer = {"outcome": asdict(outcome)}
    except AppFailed as error:
        answer = {"failure": {"message": error.message, **_plain_details(error)}}
    except OSError as error:
        answer = {
            "os_error": [
                error.errno or errno.EIO,
                error.strerror or str(error),
                error.filename and str(error.filename),
            ]
        }
        traceback.print_exc()
    except MemoryError as error:
        answer = {"memory": str(error) or "the program asked for more than there is"}
        traceback.print_exc()
    except Exception as error:
        said = error.message if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
        answer = {
            "failure": {
                "message": said,
                "kind": "contract",
                "name": type(error).__name__,
                "log_tail": traceback.format_exc()[-_TAIL:],
            }
        }
    return answer


def _called(call: Mapping[str, Any]) -> Outcome:
    module, _, name = call["function"].partition(":")
    given = call["run"]
    run = Run(**given | {"workdir": Path(given["workdir"]), "upstream": tuple(given["upstream"])})
    outcome: Outcome = getattr(importlib.import_module(new_name(module)), name)(run=run, **call["params"])
    return outcome


def _plain_details(error: AppFailed) -> dict[str, Any]:
    details = {k: v for k, v in error.details.items() if k in ("kind", "name", "log_tail", "repair")}
    if isinstance(error, NotConverged):
        details["history"] = [[i.energy, i.change] for i in error.details.get("history") or ()]
    return details


if __name__ == "__main__":
    defer_when_imported(*HEAVY)
    _child(Path(sys.argv[1]))
