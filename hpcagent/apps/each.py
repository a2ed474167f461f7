"""Pieces of work shared out among MPI ranks while they are done: whoever is free takes the next one.

The ranks draw numbers from a counter that lies on rank 0, by one-sided communication: rank 0 works like the others
and need not answer. Nobody waits for a slow neighbour before the end. Without MPI it is a plain loop.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

__all__ = ["drawn", "each"]

# How often the rank with the counter looks, in seconds: what a draw may take where that rank is at work.
_LOOKS_S = 0.0005

_Item = TypeVar("_Item")
_Value = TypeVar("_Value")


def drawn(n: int, comm: Any) -> Iterator[int]:
    """The numbers of 0 ... n - 1 that fall to this rank, as they are drawn; all ranks together, to the end.

    Args:
        n: How many there are; alike on all ranks.
        comm: mpi4py communicator, or what has its `size` where that is 1; None: there is nobody else.
    """
    if comm is None or comm.size == 1:
        yield from range(n)
        return
    # Here, for this process has it already: whoever has a communicator.
    import numpy as np
    from mpi4py import MPI

    one, got = np.ones(1, np.int64), np.zeros(1, np.int64)
    window = MPI.Win.Allocate(8 if comm.rank == 0 else 0, disp_unit=8, comm=comm)
    window.Lock(comm.rank)
    if comm.rank == 0:
        memory: Any = window.tomemory()
        np.frombuffer(memory, np.int64)[0] = 0
    window.Unlock(comm.rank)
    comm.Barrier()  # nobody draws before the counter is at 0
    with _answering(comm) if comm.rank == 0 else contextlib.nullcontext():
        while True:
            window.Lock(0, MPI.LOCK_SHARED)
            window.Fetch_and_op(one, got, 0)
            window.Unlock(0)
            if got[0] >= n:
                break
            yield int(got[0])
    # Waits for all ranks; so not where the work has failed: whoever started this then ends them.
    window.Free()


@contextlib.contextmanager
def _answering(comm: Any) -> Iterator[None]:
    """Be in MPI now and then, whatever this process does: MPICH counts for others only then (seen with 5.0)."""
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        yield  # then the others wait until this rank draws
        return
    done = threading.Event()

    def look() -> None:
        while not done.wait(_LOOKS_S):
            comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)

    looking = threading.Thread(target=look, name="drawn", daemon=True)
    looking.start()
    try:
        yield
    finally:
        done.set()
        looking.join()


def each(function: Callable[[_Item], _Value], items: Iterable[_Item], comm: Any) -> list[_Value]:
    """What a function gives for every item, in the order of the items, on all ranks; see `Run.each`."""
    things = list(items)
    if comm is None or comm.size == 1:
        return [function(item) for item in things]
    counts = comm.allgather(len(things))
    if len(set(counts)) > 1:
        raise ValueError(f"the ranks have different numbers of items: {counts}; each must be given the same ones.")
    mine = [(index, function(things[index])) for index in drawn(len(things), comm)]
    values: dict[int, _Value] = {}
    for part in comm.allgather(mine):
        values.update(part)
    return [values[index] for index in range(len(things))]
