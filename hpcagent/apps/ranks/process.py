"""A rank process: connects to its driver and does what it is told, until it is told to end.

    python -m hpcagent.apps.ranks.process RANKS_OF_A_SLOT

The main thread works; another one listens, so that whatever the work does, also where it hangs in a communication
with a rank that is gone, the process ends when its driver says so or is gone itself.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hpcagent.apps.as_found import cannot_be_given_back, ours
from hpcagent.apps.ranks.inside import Inside, set_inside
from hpcagent.apps.ranks.library import ABORTED, load, run_script
from hpcagent.apps.ranks.surroundings import Memory, unlink_shared_memory
from hpcagent.apps.ranks.wire import ADDRESS, SECRET, Wire, connected
from hpcagent.lifeline import node_name

__all__ = ["main"]

_exit = os._exit


def main(ranks: int) -> None:
    """Serve the driver that the environment names.

    Args:
        ranks: How many ranks a slot has.
    """
    world = _world()
    rank, size = (0, 1) if world is None else (world.rank, world.size)
    # In the same order on all ranks: a split is a communication of all.
    comm = None if world is None else world.Split(rank // ranks, rank)
    if world is not None:
        world.Barrier()
        unlink_shared_memory()
    address, secret = os.environ.pop(ADDRESS), os.environ.pop(SECRET)
    hello = {"rank": rank, "size": size, "slot": rank // ranks, "pid": os.getpid(), "host": node_name()}
    wire = connected(address, secret, hello)
    for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C is for who drives; it says what is to happen
        signal.signal(number, signal.SIG_IGN)
    ours()
    _serve(wire, comm)


def _world() -> Any:
    """COMM_WORLD of a launch; None for a process that was started alone."""
    if os.environ.get("HPCAGENT_RANKS_ALONE"):
        return None
    import mpi4py

    mpi4py.rc.threads = False  # the other thread never communicates
    from mpi4py import MPI

    return MPI.COMM_WORLD


def _serve(wire: Wire, comm: Any) -> None:
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(wire, requests), name="driver", daemon=True).start()
    rank, ranks = (0, 1) if comm is None else (comm.rank, comm.size)
    first = rank == 0

    def lammps(workdir: Path, words: Sequence[str], env: Mapping[str, str]) -> int:
        if ranks > 1:
            comm.bcast(("lammps", str(workdir), list(words), dict(env)))
        return _exit_code(wire, run_script(workdir, words, env, comm))

    def everywhere(function: Callable[..., Any], *given: Any) -> Any:
        if ranks > 1:
            comm.bcast(("call", function, *given))
        return function(comm, *given)

    def give_up(said: Mapping[str, Any]) -> NoReturn:
        _give_up(wire, said)

    set_inside(Inside(comm=comm, ranks=ranks, lammps=lammps, everywhere=everywhere, give_up=give_up))
    _say_exits(wire, f"rank {rank} of {ranks}")
    memory = Memory()
    while True:
        request = requests.get()
        what = request["what"]
        if what == "lammps":
            done = run_script(Path(request["workdir"]), request["words"], request["env"], comm)
            answer: dict[str, Any] = {"returncode": _exit_code(wire, done), "cpu_s": _cpu_s(comm)}
        elif what == "call":
            answer = _called(request) if first else _followed(wire, comm)
            if first and ranks > 1:
                comm.bcast(None)
        elif what == "load":
            answer = _loaded(comm)
        else:
            answer = {"error": f"unknown request {what!r}"}
        if first:
            left = {"left": cannot_be_given_back()} if cannot_be_given_back() else {}
            wire.send({"key": request["key"], "memory_mb": memory.mb(), **answer, **left})


def _listen(wire: Wire, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    try:
        while True:
            for message in wire.read(trusted=True):
                if message["what"] == "quit":
                    _exit(0)  # a launcher adds up the exit codes of its ranks; this rank has done no wrong
                requests.put(message)
    except (OSError, EOFError) as error:
        if error.__cause__ is not None:  # an order that cannot be read here: the launch's output says why
            traceback.print_exc()
            sys.stderr.flush()
        _exit(0)


def _exit_code(wire: Wire, done: int | str) -> int:
    """The exit code of a run; where the others may hang, the driver ends the slot, and this process with it."""
    if done != ABORTED:
        return int(done)
    _give_up(wire, {})


def _give_up(wire: Wire, said: Mapping[str, Any]) -> NoReturn:
    wire.send({"aborted": True, "said": dict(said)})
    threading.Event().wait()
    raise AssertionError


def _say_exits(wire: Wire, who: str) -> None:
    """Have `os._exit` tell the driver first: else it looks like a kill from outside."""
    pid = os.getpid()

    def exiting(status: int) -> NoReturn:
        if os.getpid() == pid:  # a forked process ends by itself
            said = f"the app's function ended its own process with exit code {status} (os._exit); it must return."
            failure = {
                "message": said,
                "kind": "contract",
                "name": "FunctionExited",
            }
            with contextlib.suppress(OSError):
                wire.send({"aborted": True, "said": {"failure": failure, "who": who}})
        _exit(status)

    os._exit = exiting


def _cpu_s(comm: Any) -> float:
    """CPU seconds of the slot's ranks since they began; the ranks are together here, as a run of all has ended."""
    own = time.process_time()
    return own if comm is None or comm.size == 1 else float(comm.allreduce(own))


def _loaded(comm: Any) -> dict[str, Any]:
    try:
        module = load(comm)
        version = str(module.__version__)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"version": version}


def _called(request: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function that the driver has sent; what it returns must be plain data."""
    function: Callable[..., Any] = request["function"]
    try:
        return {"value": function(*request["args"])}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()[-4000:]}


def _followed(wire: Wire, comm: Any) -> dict[str, Any]:
    """Take part in what the slot's first rank wants of all, until it is done."""
    while (wanted := comm.bcast(None)) is not None:
        what, *given = wanted
        if what == "lammps":
            workdir, words, env = given
            _exit_code(wire, run_script(Path(workdir), words, env, comm))
        else:  # a function of all ranks: it gets the communicator
            given[0](comm, *given[1:])
    return {}


if __name__ == "__main__":
    main(int(sys.argv[1]))
