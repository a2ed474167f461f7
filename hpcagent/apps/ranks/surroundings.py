"""What a run may change of its process, put back after it: the next run in the same process is to find nothing."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcagent.apps.as_found import flush_streams, set_while_imported

__all__ = ["Memory", "of_a_run", "set_threads", "unlink_shared_memory"]

_TRIM_MB = 32.0

_FILES = (stat.S_IFREG, stat.S_IFIFO, stat.S_IFDIR)


@contextlib.contextmanager
def of_a_run(
    workdir: Path, output: Path, env: Mapping[str, str], *, fresh: bool, closing: bool = True
) -> Iterator[None]:
    """Be in a run's directory, print into its file, have its environment; and have nothing of it afterwards.

    What the run may change beside that is given back by the `AsFound` that it is in.

    Args:
        workdir: The run's directory.
        output: Takes what is printed, also by libraries.
        env: The whole environment of the run.
        fresh: Whether the file is begun anew; else what is printed goes behind what is there.
        closing: Whether files that the run leaves open are closed; not those of Python, which closes them itself.
    """
    before = _environ()
    kept = [os.dup(number) for number in range(3)]
    open_before = _open_files()
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_TRUNC if fresh else 0)
        printed = os.open(output, flags, 0o664)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        os.close(printed)
        os.chdir(workdir)
        _set_environ(env)
        yield
    finally:
        flush_streams()
        _flush()
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.fchdir(here)
        os.close(here)
        for descriptor in _open_files() - open_before - {here, *kept} if closing else ():
            with contextlib.suppress(OSError):
                # Never a socket: MPI connects ranks when they first have something to say to each other.
                if stat.S_IFMT(os.fstat(descriptor).st_mode) in _FILES:
                    os.close(descriptor)
        _set_environ(before | set_while_imported())


def unlink_shared_memory() -> None:
    """Take the names of MPICH's shared memory away, once all ranks of the node have it: it then ends with them.

    A process that is ended, and does not end MPI itself, would leave it in the node's memory.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.partition("/dev/shm/mpich_shm_")
            if path[1] and path[2].replace("_", "").isalnum():
                with contextlib.suppress(OSError):
                    os.unlink(path[1] + path[2])  # noqa: PTH108


def set_threads(threads: int) -> None:
    """Have OpenMP begin with so many threads: what a run has set with `package omp` outlives its instance."""
    with contextlib.suppress(OSError, AttributeError):
        _function("omp_set_num_threads")(threads)


class Memory:
    """What this process holds, looked at after each run.

    What is free in its heap is given back first where it has grown by `_TRIM_MB` since that was last done. Not
    after every run: glibc then begins each of them on other pages, and holds some kB more after each.
    """

    def __init__(self) -> None:
        self._trimmed_mb = 0.0

    def mb(self) -> float:
        """Resident memory, in MB of 10^6 bytes; 0 where the system does not say."""
        found = _resident_mb()
        if found > self._trimmed_mb + _TRIM_MB:
            with contextlib.suppress(OSError, AttributeError):
                _function("malloc_trim")(0)
            found = self._trimmed_mb = _resident_mb()
        return found


def _resident_mb() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@functools.cache
def _process() -> ctypes.CDLL:
    """What this process has loaded, C's library among it; once: each object of that kind has types of its own."""
    return ctypes.CDLL(None)


def _function(name: str) -> ctypes._NamedFuncPointer:
    return getattr(_process(), name)  # type: ignore[no-any-return]


def _environ() -> dict[bytes, bytes]:
    """The environment as C has it: `shell putenv` of a script changes it behind Python's back."""
    table = ctypes.POINTER(ctypes.c_char_p).in_dll(_process(), "environ")
    found, index = {}, 0
    while table and table[index]:
        name, _, value = table[index].partition(b"=")
        found[name] = value
        index += 1
    return found


def _set_environ(env: Mapping[str, str] | Mapping[bytes, bytes]) -> None:
    _function("clearenv")()
    os.environb.clear()  # by `unsetenv`, of what Python knew
    for name, value in env.items():
        os.environb[os.fsencode(name)] = os.fsencode(value)


def _open_files() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208  (names are enough)
    except OSError:
        return set()


def _flush() -> None:
    with contextlib.suppress(OSError, AttributeError):
        _function("fflush")(None)
