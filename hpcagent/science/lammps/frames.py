"""A frame of a trajectory, how a trajectory is read, and what a file of any format gives: its frames one by one.

Angstrom, picoseconds, atoms in one order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.errors import AppFailed
from hpcagent.model.parameter import Choice, Float, Int, Parameter, Text
from hpcagent.units import STYLES

__all__ = ["READING", "Frame", "Reading", "Trajectory", "masses_of"]

_Array = NDArray[np.float64]


READING: dict[str, Parameter] = {
    "discard": Float(0.0, 0.95, default=0.0, description="share of the frames left out at the start"),
    "every": Int(1, 1_000_000, default=1, description="use every n-th frame"),
    "timestep": Float(
        0.0,
        1000.0,
        unit="ps",
        default=0.0,
        description="time of one step (of one frame where the file has no step numbers); 0: as the run says",
    ),
    "units": Choice(
        "auto",
        *(s for s in STYLES if s != "lj"),
        default="auto",
        description="LAMMPS units of a dump; auto: its log's",
    ),
    "species": Text(default="", description="elements of a LAMMPS dump's types 1, 2, ..., e.g. `Si O`"),
}
"""The parameters by which an app is told how to read a trajectory; the same for every analysis."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a trajectory is read: the values of `READING`."""

    discard: float = 0.0
    every: int = 1
    timestep: float = 0.0
    units: str = "auto"
    species: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One frame. Its atoms are in the order of their ids where the file has ids.

    Attributes:
        step: Number of the MD step; of the frame, where the file has none.
        time_ps: Its time, or None where nothing says it.
        positions: (n, 3) float64, angstrom.
        cell: (3, 3) float64, angstrom; rows are the cell vectors.
        pbc: Which cell vectors are periodic.
        species: (n,) element symbols, or the numbers of the types as text.
        velocities: (n, 3) float64, angstrom/ps, or None.
        masses: (n,) float64, g/mol, or None where the species are no elements.
        ids: (n,) int64, or None where the file has none.
        unwrapped: Whether positions are known not to jump by cell vectors between frames.
    """

    step: int
    time_ps: float | None
    positions: _Array
    cell: _Array
    pbc: tuple[bool, bool, bool]
    species: NDArray[np.str_]
    velocities: _Array | None = None
    masses: _Array | None = None
    ids: NDArray[np.int64] | None = None
    unwrapped: bool = False

    @property
    def volume(self) -> float:
        """Volume of the cell, in angstrom^3."""
        return float(abs(np.linalg.det(self.cell)))

    @property
    def heights(self) -> _Array:
        """(3,) distances between opposite faces of the cell, in angstrom."""
        result: _Array = 1.0 / np.linalg.norm(np.linalg.inv(self.whole_cell), axis=0)
        return result

    @property
    def whole_cell(self) -> _Array:
        """(3, 3) the cell, with unit vectors in place of those that it has not (of a slab, a cluster)."""
        if self.volume > 0.0:
            return self.cell
        from ase.geometry import complete_cell

        return np.asarray(complete_cell(self.cell), np.float64)


class Trajectory(ABC):
    """The frames of a file. Iterate over `frames()`, or `read` one by its number.

    Attributes:
        path: The file.
        notes: What was odd about it, e.g. an unfinished last frame.
        steps: (n_frames,) int64.
        tracked: Whether an atom has the same place in every frame.
        velocities: Whether velocities are read; set it to False where they are not needed, which is quicker.
        dimension: 2 or 3 as the run's log says, or None.
    """

    tracked = True
    velocities = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: tuple[str, ...] = ()
        self.steps: NDArray[np.int64] = np.zeros(0, np.int64)
        self._times: NDArray[Any] | None = None
        self._why_no_times = "the file has no times"
        self.dimension: int | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def __enter__(self) -> Trajectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027  (most keep nothing open)
        """Close the file, where it was kept open."""

    @property
    def times_ps(self) -> _Array:
        """(n_frames,) times, in ps.

        Raises:
            AppFailed: `NoTimes`.
        """
        if self._times is None:
            raise AppFailed(
                f"the times of the frames of {self.path.name} are not known: {self._why_no_times}.",
                kind="contract",
                name="NoTimes",
                repair="give `timestep`, the time of one step in ps",
            )
        return self._times

    def frames(self, numbers: Any = None) -> Iterator[Frame]:
        """The frames with these numbers, or all of them."""
        for number in range(len(self)) if numbers is None else numbers:
            yield self.read(int(number))

    @abstractmethod
    def read(self, number: int) -> Frame:
        """Frame `number`, from 0.

        Raises:
            AppFailed: `BadTrajectory`: what is in the file there is no frame.
        """

    def chosen(self, reading: Reading, *, at_least: int = 1) -> NDArray[np.intp]:
        """Numbers of the frames that are used.

        Raises:
            AppFailed: `TooFewFrames`.
        """
        numbers = np.arange(int(np.ceil(len(self) * reading.discard)), len(self), reading.every)
        if numbers.size < at_least:
            raise AppFailed(
                f"{self.path.name} has {len(self)} frames, of which {numbers.size} remain with "
                f"discard={reading.discard:g} and every={reading.every}; at least {at_least} are needed.",
                kind="contract",
                name="TooFewFrames",
                repair="run longer, or write frames more often",
            )
        return numbers

    def _time(self, number: int) -> float | None:
        return None if self._times is None else float(self._times[number])

    def bad(self, what: str) -> AppFailed:
        """The failure of a file that is not what it should be."""
        return AppFailed(f"{self.path}: {what}.", kind="contract", name="BadTrajectory")


def masses_of(names: NDArray[np.str_]) -> _Array | None:
    """(n,) masses in g/mol, if all names are elements."""
    from ase.data import atomic_masses, atomic_numbers

    known, where = np.unique(names, return_inverse=True)
    if not all(str(name) in atomic_numbers for name in known):
        return None
    masses: _Array = np.array([atomic_masses[atomic_numbers[str(name)]] for name in known])[where]
    return masses
