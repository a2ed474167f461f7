"""What a function finds out about the rank process that it runs in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["Inside", "inside", "once", "runs_once", "set_inside"]


@dataclass(frozen=True, slots=True)
class Inside:
    """The rank process that this code runs in, and the ranks beside it.

    Attributes:
        comm: The mpi4py communicator of its slot; None for one rank without MPI.
        ranks: How many ranks the slot has.
        lammps: Runs LAMMPS over all ranks of the slot: (directory, words behind `lmp`, environment) -> exit code.
        everywhere: Calls a function of a module on all ranks of the slot, with the communicator and what else is
            given; returns what it does on the first rank, which calls this.
        give_up: Ends the slot, whatever its other ranks do; what is given is told to their driver.
    """

    comm: Any
    ranks: int
    lammps: Callable[[Path, Sequence[str], Mapping[str, str]], int]
    everywhere: Callable[..., Any]
    give_up: Callable[[Mapping[str, Any]], NoReturn]


_here: Inside | None = None


def inside() -> Inside | None:
    """The rank process that this code runs in; None elsewhere."""
    return _here


def set_inside(here: Inside | None) -> None:
    """Say what `inside` returns from now on in this process."""
    global _here
    _here = here


_once = False


def once() -> None:
    """Say that this process computes one run and ends: there is no use in keeping anything for the next."""
    global _once
    _once = True


def runs_once() -> bool:
    """Whether this process ends after its run."""
    return _once
