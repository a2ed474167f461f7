"""DCD and XTC, by MDAnalysis's low-level readers; both are in single precision themselves.

chemfiles has had no release since 2023; mdtraj wants a topology.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.bounded import require_room
from hpcagent.errors import AppFailed
from hpcagent.science.lammps.frames import Frame, Reading, Trajectory, masses_of
from hpcagent.science.lammps.log_records import Log
from hpcagent.science.lammps.run_of_trajectory import Said, timestep_of_log
from hpcagent.units import STYLES, unit_style

__all__ = ["Dcd", "Xtc"]

_Array = NDArray[np.float64]


def _library(path: Path, module: str, name: str) -> Any:
    """A low-level reader of MDAnalysis, opened."""
    import importlib

    try:
        reader = getattr(importlib.import_module(f"MDAnalysis.lib.formats.{module}"), name)
    except ImportError:
        raise AppFailed(
            f"{path.name} is read by MDAnalysis, which is not installed here.",
            kind="infrastructure",
            name="NoEngine",
            repair="pip install 'hpcagent[trajectories]'",
        ) from None
    try:
        return reader(str(path))
    except OSError as error:
        raise AppFailed(f"{path}: {error}.", kind="contract", name="BadTrajectory") from None


class _Binary(Trajectory):
    """Positions in single precision of atoms that are always there, in one order; no species, no velocities.

    LAMMPS writes the atoms of a DCD and of an XTC in the order of their ids.
    """

    _file: Any
    _length = 1.0

    def close(self) -> None:
        self._file.close()

    def _common(self, n: int, said: Said, reading: Reading, log: Log | None) -> None:
        """What such files do not say: the species, the boundaries, and times where the run's log is there."""
        words = reading.species.split()
        known = [words[0]] * n if len(words) == 1 else words or said.symbols() or ["X"] * n
        if len(known) != n:
            raise AppFailed(
                f"{self.path.name} has {n} atoms and no types; species={reading.species!r} must be one element "
                "for all of them, or one for each."
                if words
                else f"{self.path.name} has {n} atoms, the run's structure {len(known)}.",
                kind="contract",
                name="BadTrajectory",
            )
        self._names = np.array(known)
        self._masses = masses_of(self._names)
        self.notes += ("the file does not say which directions are periodic: all that its cell has",)
        if reading.timestep:
            self._times = self.steps * reading.timestep
        elif log is not None and log.units in STYLES and len(self):
            step = timestep_of_log(log, int(self.steps[0]), int(self.steps[-1]))
            if step is not None and (picoseconds := unit_style(log.units).time_ps) is not None:
                self._times = self.steps * (step * picoseconds)

    def _positions(self, number: int) -> tuple[_Array, _Array]:
        """Positions and cell in the file's unit of length."""
        raise NotImplementedError

    def _drop_unreadable(self) -> None:
        """Leave out a last frame that a killed run has not finished."""
        if len(self):
            try:
                self._positions(len(self) - 1)
            except OSError:
                step = int(self.steps[-1])
                self.steps = self.steps[:-1]
                self.notes += (f"the last frame (step {step}) is not complete and left out",)

    def read(self, number: int) -> Frame:
        try:
            positions, cell = self._positions(number)
        except OSError as error:
            raise self.bad(f"frame {number}: {error}") from None
        if not np.isfinite(positions).all():
            raise self.bad(f"frame {number} has positions that are not finite")
        periodic = bool(abs(np.linalg.det(cell)) > 0.0)
        return Frame(
            step=int(self.steps[number]),
            time_ps=self._time(number),
            positions=positions * self._length,
            cell=cell * self._length,
            pbc=(periodic, periodic, periodic),
            species=self._names,
            masses=self._masses,
            ids=np.arange(1, len(positions) + 1, dtype=np.int64),
        )


# CHARMM and NAMD give the timestep in units of sqrt(amu angstrom^2 mol / kcal).
_AKMA_PS = 0.0488882129


class Dcd(_Binary):
    """DCD of LAMMPS (`dump dcd`, in the units of the run), CHARMM and NAMD (angstrom, AKMA time)."""

    def __init__(self, path: Path, said: Said, reading: Reading) -> None:
        super().__init__(path)
        self._file = _library(path, "libdcd", "DCDFile")
        header = self._file.header
        require_room(path, 24 * int(header["natoms"]), "a frame of it takes")
        require_room(path, 8 * len(self._file), "the numbers of its frames take")
        log = said.log
        self.dimension = log.runs[-1].dimension if log is not None and log.runs else None
        every = int(header["nsavc"]) or 1
        self.steps = int(header["istart"]) + every * np.arange(len(self._file), dtype=np.int64)
        self._drop_unreadable()
        of_lammps = "LAMMPS" in str(header["remarks"])
        if of_lammps or reading.units != "auto":
            self._length = self._unit_of_length(log, reading)
        self._why_no_times = "the run's log does not say one timestep for all of its steps"
        self._common(int(header["natoms"]), said, reading, log if of_lammps else None)
        if self._times is None and not of_lammps and float(header["delta"]) > 0:
            self._times = self.steps * (float(header["delta"]) * _AKMA_PS)

    def _unit_of_length(self, log: Any, reading: Reading) -> float:
        units = reading.units if reading.units != "auto" else (None if log is None else log.units)
        if units is None or units not in STYLES:
            raise AppFailed(
                f"the units of {self.path.name} are not known: a DCD of LAMMPS is in those of its run, and the "
                "run has no log that echoes them.",
                kind="contract",
                name="NoUnits",
                repair="give `units`, e.g. metal",
            )
        length = unit_style(units).distance_angstrom
        if length is None or unit_style(units).reduced:
            raise AppFailed(
                f"{self.path.name} is in reduced units (lj), which have no size in angstrom and ps.",
                kind="contract",
                name="ReducedUnits",
                repair="run with `units metal` or `real`",
            )
        return float(length)

    def _positions(self, number: int) -> tuple[_Array, _Array]:
        from ase.geometry import cellpar_to_cell

        self._file.seek(number)
        frame = self._file.read()
        a, gamma, b, beta, alpha, c = (float(x) for x in frame.unitcell)
        angles = np.array([alpha, beta, gamma])
        if (np.abs(angles) <= 1.0).all():  # LAMMPS and NAMD write cosines, others degrees
            angles = np.degrees(np.arccos(angles))
        if min(a, b, c) <= 0.0:
            return np.asarray(frame.xyz, np.float64), np.zeros((3, 3))
        return np.asarray(frame.xyz, np.float64), np.asarray(cellpar_to_cell([a, b, c, *angles]), np.float64)


class Xtc(_Binary):
    """XTC of GROMACS and of LAMMPS (`dump xtc`): nm and ps, positions rounded."""

    _length = 10.0

    def __init__(self, path: Path, said: Said, reading: Reading) -> None:
        super().__init__(path)
        self._file = _library(path, "libmdaxdr", "XTCFile")
        require_room(path, 24 * int(self._file.n_atoms), "a frame of it takes")
        log = said.log
        self.dimension = log.runs[-1].dimension if log is not None and log.runs else None
        if log is not None and log.units in STYLES and unit_style(log.units).reduced:
            raise AppFailed(
                f"{path.name} is in reduced units (lj), which have no size in angstrom and ps.",
                kind="contract",
                name="ReducedUnits",
                repair="run with `units metal` or `real`",
            )
        # Each frame begins with a magic number, the number of atoms, the step and the time.
        kind = np.dtype([("magic", ">i4"), ("atoms", ">i4"), ("step", ">i4"), ("time", ">f4")])
        with path.open("rb") as file:
            heads = []
            for offset in self._file.offsets:
                file.seek(int(offset))
                heads.append(np.frombuffer(file.read(kind.itemsize), kind)[0])
        said_times = np.array([head["time"] for head in heads], np.float64)
        self.steps = np.array([head["step"] for head in heads], np.int64)
        self._drop_unreadable()
        self._common(int(self._file.n_atoms), said, reading, log)
        if self._times is None:
            self._times = said_times[: len(self)]
        if len(self):
            self._file.seek(0)
            rounded = 10.0 / float(self._file.read().prec)
            self.notes += (f"an XTC rounds positions, here to {rounded:g} angstrom",)

    def _positions(self, number: int) -> tuple[_Array, _Array]:
        self._file.seek(number)
        frame = self._file.read()
        return np.asarray(frame.x, np.float64), np.asarray(frame.box, np.float64)
