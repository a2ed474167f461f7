"""An app's function on all MPI ranks of a run: started as any program of several ranks, one process for each.

    python -P -X faulthandler -m hpcagent.apps.over_ranks WORKDIR SHA256

is one rank. It reads what it is to call from a file in the run's directory that the worker has written; it is
unpickled only where its content is what the worker said on the command line. What rank 0 returns is the outcome.
A rank that fails says why and ends the others, which may wait for it. Standard library only; mpi4py on the ranks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from hpcagent.apps.as_found import AsFound, cannot_be_given_back, flush_streams, leave_behind
from hpcagent.apps.calling import as_failure, crash_of
from hpcagent.apps.carried import Carried, carry
from hpcagent.apps.ending import Finished, Limit, finish
from hpcagent.apps.launch import Launch, planned
from hpcagent.apps.printed import read_tail, reading
from hpcagent.apps.ranks.group import refuse_without_mpi4py
from hpcagent.apps.ranks.inside import Inside, inside
from hpcagent.apps.ranks.surroundings import of_a_run
from hpcagent.apps.run import Outcome, Run, note, noted, noting
from hpcagent.beside import as_told, told
from hpcagent.errors import AppFailed
from hpcagent.lifeline import end_detached, node_name

__all__ = ["failure_of_a_rank", "over_ranks"]

_CALL, _ANSWER, _FAILURE, _OUTPUT = "ranks-call.pickle", "ranks-answer.json", "ranks-failure.json", "output.txt"
_TAIL = 4000
_MOMENT_S = 2.0
"""So long does a rank that has failed wait for the others to come to their end, in seconds."""


def over_ranks(order: Mapping[str, Any], params: Mapping[str, Any], run: Run) -> Outcome:
    """Call an order's function on all ranks that the run's resources ask for, `run.comm` in hand.

    Args:
        order: As the worker has it. The table of the profile that has a say in the launch is `[apps.NAME]`.
        params: Arguments of the function, beside `run`.
        run: The run; it is started where the run was placed.

    Raises:
        AppFailed: What a rank raised; `WrongRanks`, `NoEngine`: there is no mpi4py; `NoLauncher`, `NoPlace`,
            `Walltime`, `BlockEnded`, `Killed`, `FunctionCrashed`, `FunctionExited`.
        OSError, MemoryError: As a rank raised it.
    """
    refuse_without_mpi4py(f"app {order['manifest']['app']!r} runs on MPI ranks (mpi=True) and")
    here = inside()
    if here is not None:
        return _in_a_slot(order, params, run, here)
    answer, failure = run.workdir / _ANSWER, run.workdir / _FAILURE
    for path in (answer, failure):
        path.unlink(missing_ok=True)
    call = run.workdir / _CALL
    try:
        finished = _finished(_launch(call, order, params, run), run)
    finally:
        call.unlink(missing_ok=True)
    if not answer.is_file():
        end_detached()  # ranks that were cut off and are about to end; nothing that the function left on purpose
    tail = read_tail(run.workdir / _OUTPUT, _TAIL)
    if failure.is_file():
        _raise(json.loads(failure.read_text()), tail)
    # Written in the end, when all ranks had come to theirs: however the processes ended then.
    if answer.is_file():
        return _outcome(json.loads(answer.read_text()))
    if finished.stopped is not None:
        raise finished.stopped.failure(wall_s=finished.wall_s, log_tail=tail)
    raise crash_of(finished.returncode, tail, ranks=_ranks(run))


def _ranks(run: Run) -> int:
    return int(run.resources.get("nodes") or 1) * int(run.resources.get("ranks_per_node") or 1)


def _packed(order: Mapping[str, Any], params: Mapping[str, Any], run: Run) -> bytes:
    """What a rank needs to know of the call."""
    function: str | Carried | Callable[..., Any] = order["function"]
    call = {
        "function": function if isinstance(function, (str, Carried)) else carry(function),
        "params": dict(params),
        "run": {f.name: getattr(run, f.name) for f in fields(run)},
        "ranks": _ranks(run),
        # Where this process finds modules: those beside the user's script, for one.
        "path": [str(Path(entry).absolute()) for entry in sys.path],
        "modules": told(),
        "made_of": dict(order.get("modules") or {}),
    }
    return pickle.dumps(call)


def _env(run: Run) -> dict[str, str]:
    # OMP_NUM_THREADS is set by `planned`; some builds of BLAS listen to these only.
    threads = str(int(run.resources.get("threads_per_rank") or 1))
    return {"OPENBLAS_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}


def _launch(path: Path, order: Mapping[str, Any], params: Mapping[str, Any], run: Run) -> Launch:
    packed = _packed(order, params, run)
    path.unlink(missing_ok=True)
    # Nobody else's file, and nobody else's to read: what a function carries may be private.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(packed)
    env = {**_env(run), "PYTHONPATH": _python_path()}
    # -P: a file of the run called `mpi4py.py` must not be imported in place of the package.
    words = [sys.executable, "-P", "-X", "faulthandler", "-m", __name__]
    return planned(
        run, [*words, str(run.workdir), hashlib.sha256(packed).hexdigest()], app=order["manifest"]["app"], env=env
    )


def _python_path() -> str:
    """Where the ranks find hpcagent, also where a worker has it from somewhere else than site-packages."""
    import hpcagent

    here = str(Path(hpcagent.__file__).parents[1])
    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), here]))


def _finished(launch: Launch, run: Run) -> Finished:
    return finish(launch, cwd=run.workdir, output=run.workdir / _OUTPUT, limit=Limit.of(run))


def _outcome(said: Mapping[str, Any]) -> Outcome:
    for sentence in said["noted"]:
        note(sentence)
    outcome = dict(said["outcome"])
    return Outcome(**outcome | {"notes": tuple(outcome["notes"])})


def _raise(said: Mapping[str, Any], tail: str) -> None:
    for sentence in said.get("noted", ()):
        note(sentence)
    whose = f" ({said['who']})"
    if "os_error" in said:
        number, message, path = said["os_error"]
        raise OSError(number, f"{message}{whose}", *([path] if path else []))
    if "memory" in said:
        raise MemoryError(f"{said['memory']}{whose}")
    failure = dict(said["failure"])
    failure["log_tail"] = failure.get("log_tail") or tail
    raise AppFailed(f"{failure.pop('message')}{whose}", **failure)


# ---- a rank


def main(workdir: Path, sha256: str) -> int:
    """One rank: call the function, say what it gave."""
    packed = (workdir / _CALL).read_bytes()
    if hashlib.sha256(packed).hexdigest() != sha256:
        print(f"{workdir / _CALL} is not what the worker has written; nothing of it was read.", flush=True)
        return 1
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    said: dict[str, Any] = {}
    with noting():
        try:
            outcome, notes = _called(packed, comm)
            if comm.rank == 0:
                said = {"outcome": asdict(outcome), "noted": notes}
                _tell(workdir / _ANSWER, said)
            return 0
        except BaseException as error:
            said = _failed(error, comm)
            _print_exc()
        with contextlib.suppress(OSError):  # a full disk: the end of the launch is told then
            _tell(workdir / _FAILURE, said, first=True)
    flush_streams()
    comm.Abort(1)  # the other ranks may wait for this one
    return 1


def _called(packed: bytes, comm: Any) -> tuple[Outcome, list[str]]:
    outcome = _returned(packed, comm)
    # Nobody is done before all are: one that fails after rank 0 has returned fails the run.
    return outcome, _together(comm.gather(noted()))


def _together(notes: list[list[str]] | None) -> list[str]:
    return list(dict.fromkeys(sentence for part in notes or () for sentence in part))


def _returned(packed: bytes, comm: Any) -> Outcome:
    """What the function gives on this rank; of all but rank 0 nothing is asked."""
    from hpcagent.apps.calling import function_of, outcome_of, refuse_others

    call = _unpacked(packed)
    if comm.size != call["ranks"]:
        raise AppFailed(
            f"the run asks for {call['ranks']} ranks, its launcher started {comm.size}: most likely each rank is "
            f"alone, because the launcher belongs to another MPI than mpi4py's ({_library()}).",
            kind="infrastructure",
            name="WrongRanks",
            repair="the launcher of mpi4py's MPI (`launcher` of the profile), or an mpi4py of the launcher's",
        )
    sys.path += [entry for entry in call["path"] if entry not in sys.path]
    as_told(call["modules"])
    run = Run(**call["run"] | {"comm": comm})
    with reading(run.site):
        function = function_of(call["function"])
        refuse_others(
            call["made_of"], {}
        )  # a worker has modules as they were when it imported them; this is later
        # A launch of one run ends with it; what is printed in a slot goes where `of_a_run` has it go.
        found = AsFound(descriptors=False, lasts=inside() is not None)
        returned = found.call(function, **call["params"], run=run)
        return outcome_of(returned) if comm.rank == 0 else Outcome(metrics={})


def _unpacked(packed: bytes) -> dict[str, Any]:
    """The call; its content is the one that the worker, which has started this process, has written."""
    call: dict[str, Any] = pickle.loads(packed)
    return call


def _library() -> str:
    from mpi4py import MPI

    return str(MPI.Get_library_version()).splitlines()[0][:60].strip()


def _failed(error: BaseException, comm: Any) -> dict[str, Any]:
    return {**as_failure(error), "noted": noted(), "who": f"rank {comm.rank} of {comm.size}"}


# ---- in a slot of a launch that is there


def _in_a_slot(order: Mapping[str, Any], params: Mapping[str, Any], run: Run, here: Inside) -> Outcome:
    """Call it on the ranks of the slot that this process is the first of."""
    of_app = (run.site.get("apps") or {}).get(order["manifest"]["app"]) or {}
    threads = str(int(run.resources.get("threads_per_rank") or 1))
    env = {"OMP_NUM_THREADS": threads, **_env(run), **(of_app.get("env") or {})}
    said = here.everywhere(_on_a_rank, _packed(order, params, run), str(run.workdir), env)
    if "outcome" not in said:
        _raise(said, read_tail(run.workdir / _OUTPUT, _TAIL))
    for sentence in said["noted"]:
        note(sentence)
    outcome: Outcome = said["outcome"]
    return outcome


def _on_a_rank(comm: Any, packed: bytes, workdir: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Call it on this rank of a slot; what rank 0 has of it, or what the first rank that failed says.

    Ranks that have all come to their end agree on how that was, and the slot goes on. Where the others do not come
    to it, they may wait for the one that failed, for good: it gives up, and the driver ends the slot.
    """
    from mpi4py import MPI

    slot = MPI.COMM_SELF if comm is None else comm
    here = inside()
    assert here is not None
    try:
        # Copies: what a function has sent to nobody is not to be received by the next one.
        agreeing, theirs = _agreeing(slot), slot.Dup()
    except MPI.Exception as error:  # MPICH has 2048
        lost = AppFailed(f"no further communicator: {error}", kind="infrastructure", name="LaunchLost")
        here.give_up(_failed(lost, slot))
    said: dict[str, Any] = {}
    outcome = Outcome(metrics={})
    folder = Path(workdir)
    # The notes of rank 0 are those of its run; of the others there are none yet.
    with of_a_run(folder, folder / _OUTPUT, {**os.environ, **env}, fresh=False, closing=False), noting():
        try:
            outcome = _returned(packed, theirs)
        except BaseException as error:
            said = _failed(error, slot)
            _print_exc()
        notes = noted()
        flush_streams()
    if not _all_ended(agreeing, failed=bool(said)):
        here.give_up(said)
    gathered: list[tuple[dict[str, Any], list[str], tuple[str, ...]]] = slot.allgather(
        (said, notes, cannot_be_given_back())
    )
    leave_behind(*(what for _, _, left in gathered for what in left))  # the ranks of a slot are replaced together
    wrong = next((said for said, _, _ in gathered if said), None)
    if wrong is not None:
        return wrong
    together = _together([notes for _, notes, _ in gathered])
    # Of one where not all have taken part in the same things nothing is taken away: MPI would give its number to
    # the next one, and with it what is still on the way. Nor is that received: its sender may be past helping.
    if slot.allreduce(bool(theirs.Iprobe()), MPI.LOR):
        together.append("a message that a rank of the function has sent was received by none")
    else:
        theirs.Free()
    return {"outcome": outcome, "noted": together}


def _print_exc() -> None:
    with contextlib.suppress(Exception):  # the function may have closed what is printed to
        traceback.print_exc()


_kept_for_agreeing: Any = None


def _agreeing(slot: Any) -> Any:
    """A communicator of the slot on which nothing else goes."""
    global _kept_for_agreeing
    if _kept_for_agreeing is None:
        _kept_for_agreeing = slot.Dup()
    return _kept_for_agreeing


def _all_ended(comm: Any, *, failed: bool) -> bool:
    """Whether all ranks have come to the end; one that has failed waits for the others for a moment only."""
    done = comm.Ibarrier()
    if not failed:
        done.Wait()
        return True
    deadline = time.monotonic() + _MOMENT_S
    while not done.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def failure_of_a_rank(said: Mapping[str, Any], log_tail: str) -> AppFailed:
    """The failure that a rank has given up with."""
    from hpcagent.apps.calling import os_name

    try:
        _raise(said, log_tail)
    except AppFailed as error:
        return error
    except OSError as error:
        return AppFailed(f"OSError: {error}", kind="infrastructure", name=os_name(error), log_tail=log_tail)
    except MemoryError as error:
        return AppFailed(f"MemoryError: {error}", kind="infrastructure", name="OutOfMemory", log_tail=log_tail)
    raise AssertionError


def _tell(path: Path, said: Mapping[str, Any], *, first: bool = False) -> None:
    """Write it, whole; `first`: of several ranks the one that comes first."""
    part = path.with_name(f"{path.name}.{os.getpid()}.{node_name()}.part")
    part.write_text(json.dumps(said, default=float))
    if not first:
        part.rename(path)
        return
    try:
        os.link(part, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        part.rename(path)
        return
    part.unlink()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
