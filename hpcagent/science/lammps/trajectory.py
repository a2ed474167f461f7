"""Trajectories that runs leave behind, frame by frame: angstrom, picoseconds, atoms in one order.

`open_trajectory` tells the format by what is in the file: LAMMPS text dumps, ASE `.traj`, extended XYZ, H5MD, DCD,
XTC. One frame is in memory at a time, and any frame can be read without those before it, so that ranks can share a
file.

The reader of LAMMPS dumps is our own: ASE's goes through every line before the frame it is asked for and keeps
no steps, times and images; MDAnalysis's has single precision and takes four times as long; neither leaves out the
last frame of a killed run. That of H5MD goes to h5py directly: MDAnalysis's needs a topology beside the file, has
single precision, and passes over `image` and `species`. ASE reads `.traj` and extended XYZ, MDAnalysis's low-level
readers DCD and XTC, which are in single precision themselves (chemfiles has had no release since 2023; mdtraj
wants a topology).

Nothing is guessed: where neither the file nor the run says what a step lasts, asking for times fails (`NoTimes`).
"""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import re
import struct
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.bounded import (
    LONGEST_LINE,
    NOT_UNPACKED,
    open_unpacked,
    read_fields,
    require_lines,
    require_room,
)
from hpcagent.apps.missing import elsewhere, missing_file
from hpcagent.apps.printed import allowed
from hpcagent.errors import AppFailed
from hpcagent.lifeline import FORKS
from hpcagent.model.parameter import Choice, Float, Int, Parameter, Text
from hpcagent.units import STYLES, factor, unit_style

__all__ = ["READING", "Frame", "Reading", "Trajectory", "last_frame_of_dump", "open_trajectory"]

_Array = NDArray[np.float64]
_CHUNK = 1 << 22

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


def open_trajectory(upstream: Mapping[str, Any], reading: Reading = Reading()) -> Trajectory:
    """The trajectory among the artifacts of an input run.

    Args:
        upstream: The run, as `Run.upstream` holds it; its artifact `trajectory` names the file.
        reading: What the user says about it.

    Raises:
        AppFailed: `NoTrajectory`, `MissingFile`, `BadTrajectory`, `NoUnits`, `ReducedUnits`, `TooFewFrames`
        (none).
    """
    artifacts = upstream.get("artifacts") or {}
    if "trajectory" not in artifacts:
        raise AppFailed(
            f"the input run {upstream.get('workdir') or '(without a directory)'} has no trajectory among its "
            f"artifacts (it has: {', '.join(artifacts) or 'none'}).",
            kind="contract",
            name="NoTrajectory",
            repair="let the run write frames, e.g. with LAMMPS's dump command",
        )
    path = Path(upstream["workdir"]) / artifacts["trajectory"]
    try:
        trajectory = _opened(path, _Said(upstream), reading)
    except FileNotFoundError:
        raise missing_file(upstream, path, "trajectory") from None
    except NOT_UNPACKED as error:
        raise AppFailed(
            f"{path} cannot be unpacked to its end: {error}.",
            kind="contract",
            name="BadTrajectory",
            repair="the file is cut or damaged: copy it again, or unpack what is there (zcat)",
        ) from None
    if len(trajectory) == 0:
        raise AppFailed(
            f"{path} holds no complete frame.", kind="contract", name="TooFewFrames", repair="run longer"
        )
    return trajectory


class _Empty(Trajectory):
    """A file with nothing in it: a run that was killed before its first frame."""

    def read(self, number: int) -> Frame:
        raise IndexError(f"{self.path} holds no frames; {number} was asked for.")


def _opened(path: Path, said: _Said, reading: Reading) -> Trajectory:
    with open_unpacked(path) as file:
        head = file.read(64)
    if head.lstrip().startswith(b"ITEM:"):
        return _Dump(path, said, reading)
    if head.startswith(b"\x89HDF"):
        return _H5md(path, said, reading)
    if head.startswith(b"- of Ulm"):
        return _Ase(path, said, reading)
    if b"CORD" in head[4:12]:
        return _Dcd(path, said, reading)
    if head[:4] in (b"\x00\x00\x07\xcb", b"\x00\x00\x07\xe7"):  # 1995, and 2023 of large files
        return _Xtc(path, said, reading)
    if head.split(b"\n", 1)[0].strip().isdigit():
        return _Extxyz(path, said, reading)
    if not head:
        return _Empty(path)
    raise AppFailed(
        f"{path} is no trajectory that can be read here: it begins with {head[:20]!r}. Known: LAMMPS text dumps, "
        "ASE .traj, extended XYZ, H5MD, DCD, XTC.",
        kind="contract",
        name="BadTrajectory",
    )


# ---- what the run says of its trajectory


class _Said:
    """What the log or the protocol (`md.json`) of a run says: units, the timestep, steps between frames."""

    def __init__(self, upstream: Mapping[str, Any]) -> None:
        self._upstream = upstream

    def log(self) -> Any:
        from hpcagent.science.lammps.log import read_log

        name = (self._upstream.get("artifacts") or {}).get("log")
        path = Path(self._upstream.get("workdir") or ".") / str(name)
        if name and elsewhere(self._upstream, path):
            raise missing_file(self._upstream, path, "log")  # it says the units of the trajectory
        return read_log(path) if name and path.is_file() else None

    def symbols(self) -> list[str] | None:
        """Elements of the run's structure, in the order of its atoms."""
        from hpcagent.apps.structures import structure_of

        name = (self._upstream.get("artifacts") or {}).get("structure")
        path = Path(self._upstream.get("workdir") or ".") / str(name)
        if name and elsewhere(self._upstream, path):
            raise missing_file(self._upstream, path, "structure")
        try:
            return list(structure_of(self._upstream).get_chemical_symbols())
        except (AppFailed, KeyError):
            return None

    def interval(self) -> tuple[float | None, int]:
        """Timestep in ps and steps between frames of a run of ASE's molecular dynamics (`md.json`)."""
        artifacts = self._upstream.get("artifacts") or {}
        path = Path(self._upstream.get("workdir") or ".") / artifacts.get("protocol", "md.json")
        if "protocol" in artifacts and elsewhere(self._upstream, path):
            raise missing_file(self._upstream, path, "protocol")
        if not self._upstream.get("workdir") or not path.is_file():
            return None, 1
        said = read_fields(path)
        step = said.get("timestep_fs")
        return None if step is None else float(step) * 1e-3, max(int(said.get("frames_every") or 1), 1)


def _timestep_of_log(log: Any, first: int, last: int) -> float | None:
    """Timestep in the log's unit of time, if the runs that made these steps had one and the same.

    That of each run is `hpcagent.science.lammps.metrics.step_size`'s, as in its metrics.

    Looked for from the end: steps may have been counted anew (`reset_timestep`), which a dump does not survive.
    """
    from hpcagent.science.lammps.metrics import step_size

    sizes: set[float | None] = set()
    covered = last
    for leg in reversed([r for r in log.runs if len(r) and "Step" in r and r.kind not in ("minimize", "rerun")]):
        start = float(leg["Step"][0])
        end = start + leg.steps if leg.complete and leg.steps else math.inf
        if start >= covered > first or end < covered:
            continue
        # Without an echoed one it may change during the run (`fix dt/reset`).
        sizes.add(None if leg.timestep is None else step_size(leg)[0])
        covered = int(start)
        if start <= first:
            return sizes.pop() if len(sizes) == 1 else None
    return None


def _symbols(names: NDArray[np.str_]) -> _Array | None:
    """(n,) masses in g/mol, if all names are elements."""
    from ase.data import atomic_masses, atomic_numbers

    known, where = np.unique(names, return_inverse=True)
    if not all(str(name) in atomic_numbers for name in known):
        return None
    masses: _Array = np.array([atomic_masses[atomic_numbers[str(name)]] for name in known])[where]
    return masses


# ---- LAMMPS


@dataclass(frozen=True, slots=True)
class _Layout:
    """Columns of a dump, by place."""

    n: int
    position: tuple[int, int, int]
    scaled: bool
    unwrapped: bool
    images: tuple[int, ...] = ()
    velocity: tuple[int, ...] = ()
    id: int | None = None
    type: int | None = None
    element: int | None = None
    mass: int | None = None

    def numeric(self, velocities: bool) -> list[int]:
        single = [c for c in (self.id, self.type, self.mass) if c is not None]
        return sorted({*single, *self.position, *self.images, *(self.velocity if velocities else ())})


_POSITIONS = (  # columns, scaled, unwrapped; the most telling first
    (("xu", "yu", "zu"), False, True),
    (("xsu", "ysu", "zsu"), True, True),
    (("x", "y", "z"), False, False),
    (("xs", "ys", "zs"), True, False),
)


@dataclass(frozen=True, slots=True)
class _Header:
    step: int
    n: int
    cell: _Array
    origin: _Array
    pbc: tuple[bool, bool, bool]
    columns: tuple[str, ...]
    body: int
    time: float | None = None
    units: str | None = None


class _Dump(Trajectory):
    """A LAMMPS text dump (https://docs.lammps.org/dump.html), also compressed with gzip."""

    def __init__(self, path: Path, said: _Said, reading: Reading) -> None:
        super().__init__(path)
        self._offsets, steps = _dump_index(path)
        self._layouts: dict[tuple[str, ...], _Layout] = {}
        self._elements: dict[int, str] = {}
        self._types = reading.species.split()
        self._length = self._speed = 1.0
        self.steps = steps
        self._drop_repeated()
        self._drop_cut()
        if len(self) == 0:
            return
        header = self._header(self._block(0), 0)
        self.tracked = "id" in header.columns
        self._scale(header, said, reading)

    def _drop_repeated(self) -> None:
        # A run that was continued writes again the steps after its restart file.
        steps = self.steps
        if (np.diff(steps) > 0).all():
            return
        keep = np.ones(len(steps), np.bool_)
        smallest = np.iinfo(np.int64).max
        for number in range(len(steps) - 1, -1, -1):
            keep[number] = steps[number] < smallest
            smallest = min(smallest, steps[number])
        self._kept = np.flatnonzero(keep)
        self.steps = steps[keep]
        ends = np.append(self._offsets[1:], -1)
        self._offsets, self._ends = self._offsets[keep], ends[keep]
        self.notes += (f"{int((~keep).sum())} frames that were written again after a restart are left out",)

    def _drop_cut(self) -> None:
        if not hasattr(self, "_ends"):
            self._ends = np.append(self._offsets[1:], -1)
        if len(self) == 0:
            return
        try:
            block = self._block(len(self) - 1)
            header = self._header(block, len(self) - 1)
            if block.count(b"\n", header.body) < header.n:
                raise self.bad("cut")
        except AppFailed as cut:
            if cut.name != "BadTrajectory":
                raise
            step = int(self.steps[-1])
            self.steps, self._offsets, self._ends = self.steps[:-1], self._offsets[:-1], self._ends[:-1]
            self.notes += (f"the last frame (step {step}) is not complete and left out",)

    def _scale(self, header: _Header, said: _Said, reading: Reading) -> None:
        log = said.log()
        self.dimension = log.runs[-1].dimension if log is not None and log.runs else None
        units = header.units or (log.units if log is not None else None)
        if reading.units != "auto":
            units = reading.units
        if units is None:
            raise AppFailed(
                f"the units of {self.path.name} are not known: it has no ITEM: UNITS (`dump_modify units yes`) "
                "and the run has no log that echoes its `units`.",
                kind="contract",
                name="NoUnits",
                repair="give `units`, e.g. metal",
            )
        style = unit_style(units)
        if style.reduced or style.distance_angstrom is None or style.time_ps is None:
            raise AppFailed(
                f"{self.path.name} is in reduced units (lj), which have no size in angstrom and ps; the analyses "
                "here are in physical units.",
                kind="contract",
                name="ReducedUnits",
                repair="run with `units metal` or `real`",
            )
        self._length = style.distance_angstrom
        self._speed = factor(style.velocity, "angstrom/ps")
        step = reading.timestep
        if not step and header.time is not None:
            self._times = np.array([self._header_time(i) for i in range(len(self))]) * style.time_ps
            return
        if not step and log is None:
            self._why_no_times = "the run has no log, and the dump no times (`dump_modify time yes`)"
            return
        if not step:
            found = _timestep_of_log(log, int(self.steps[0]), int(self.steps[-1]))
            if found is None:
                self._why_no_times = "the run's log does not say one timestep for all of their steps"
                return
            step = found * style.time_ps
        self._times = self.steps * step

    def _header_time(self, number: int) -> float:
        with open_unpacked(self.path) as file:
            file.seek(int(self._offsets[number]))
            time = self._header(file.read(4096), number).time
        return np.nan if time is None else time

    def _block(self, number: int) -> bytes:
        with open_unpacked(self.path) as file:
            start, end = int(self._offsets[number]), int(self._ends[number])
            file.seek(start)
            most = allowed()
            block = file.read(min(most + 1, most + 1 if end < 0 else end - start))
        if len(block) > most:
            raise self.bad(f"frame {number} has more than the {most / 1e6:g} MB that are read into memory at once")
        require_lines(block, self.path)
        return block

    def _header(self, block: bytes, number: int) -> _Header:
        found: dict[str, list[bytes]] = {}
        title, place = "", 0
        while True:
            end = block.find(b"\n", place)
            if end < 0:
                raise self.bad(f"the header of frame {number} is not complete")
            line = block[place:end].strip()
            place = end + 1
            if line.startswith(b"ITEM: "):
                title = line[6:].decode("utf-8", "replace")
                found[title] = []
                if title.startswith("ATOMS"):
                    break
            else:
                found.setdefault(title, []).append(line)
        try:
            bounds = next(k for k in found if k.startswith("BOX BOUNDS"))
            cell, origin, pbc = _box(bounds.split()[2:], found[bounds])
            return _Header(
                step=int(found["TIMESTEP"][0]),
                n=int(found["NUMBER OF ATOMS"][0]),
                cell=cell,
                origin=origin,
                pbc=pbc,
                columns=tuple(title.split()[1:]),
                body=place,
                time=float(found["TIME"][0]) if "TIME" in found else None,
                units=found["UNITS"][0].decode() if "UNITS" in found else None,
            )
        except (KeyError, IndexError, ValueError, StopIteration):
            raise self.bad(f"the header of frame {number} is not that of a LAMMPS dump") from None

    def _layout(self, columns: tuple[str, ...]) -> _Layout:
        if columns not in self._layouts:
            place = {name: i for i, name in enumerate(columns)}
            fitting = [p for p in _POSITIONS if all(name in place for name in p[0])]
            if not fitting:
                raise self.bad(f"no x y z (or xu, xs, xsu) among its columns {' '.join(columns)}")
            names, scaled, unwrapped = fitting[0]
            three = [tuple(place[n] for n in t if n in place) for t in (("ix", "iy", "iz"), ("vx", "vy", "vz"))]
            images, velocity = (t if len(t) == 3 else () for t in three)
            self._layouts[columns] = _Layout(
                n=len(columns),
                position=(place[names[0]], place[names[1]], place[names[2]]),
                scaled=scaled,
                unwrapped=unwrapped,
                images=() if unwrapped else images,
                velocity=velocity,
                id=place.get("id"),
                type=place.get("type"),
                element=place.get("element"),
                mass=place.get("mass"),
            )
        return self._layouts[columns]

    def read(self, number: int) -> Frame:
        block = self._block(number)
        header = self._header(block, number)
        layout = self._layout(header.columns)
        used = layout.numeric(self.velocities)
        end = block.find(b"ITEM: ", header.body)  # the begin of a frame that was cut
        body = block[header.body :] if end < 0 else block[header.body : end]
        try:
            table = np.loadtxt(io.BytesIO(body), np.float64, comments=None, usecols=used, ndmin=2)
        except ValueError as error:
            raise self.bad(f"frame {number} (step {header.step}): {error}") from None
        if len(table) != header.n:
            raise self.bad(f"frame {number} (step {header.step}) has {len(table)} rows for {header.n} atoms")
        column = {place: table[:, i] for i, place in enumerate(used)}
        ids = None
        order: Any = slice(None)
        if layout.id is not None:
            ids = column[layout.id].astype(np.int64)
            if not (np.diff(ids) > 0).all():
                order = np.argsort(ids, kind="stable")
                ids = ids[order]
        cell = header.cell * self._length
        positions = np.stack([column[c] for c in layout.position], axis=1)[order]
        if layout.scaled:
            positions = positions @ cell + header.origin * self._length
        else:
            positions *= self._length
        if layout.images:
            positions += np.stack([column[c] for c in layout.images], axis=1)[order] @ cell
        velocities = None
        if layout.velocity and self.velocities:
            velocities = np.stack([column[c] for c in layout.velocity], axis=1)[order] * self._speed
        if not np.isfinite(positions).all():
            raise self.bad(f"frame {number} (step {header.step}) has positions that are not finite")
        species = self._species(layout, column, body)[order]
        masses = _symbols(species) if layout.mass is None else column[layout.mass][order]
        return Frame(
            step=header.step,
            time_ps=self._time(number),
            positions=positions,
            cell=cell,
            pbc=header.pbc,
            species=species,
            velocities=velocities,
            masses=masses,
            ids=ids,
            unwrapped=layout.unwrapped or bool(layout.images),
        )

    def _species(self, layout: _Layout, column: Mapping[int, _Array], body: bytes) -> NDArray[np.str_]:
        if layout.type is None:
            if layout.element is None:
                return np.full(len(next(iter(column.values()))), "X")
            return np.array([row.split()[layout.element].decode() for row in _rows(body)])
        types = column[layout.type].astype(np.intp)
        known, where = np.unique(types, return_inverse=True)
        for kind in known:
            if int(kind) not in self._elements:
                self._elements[int(kind)] = self._element(int(kind), layout, types, body)
        return np.array([self._elements[int(k)] for k in known])[where]

    def _element(self, kind: int, layout: _Layout, types: NDArray[np.intp], body: bytes) -> str:
        if 1 <= kind <= len(self._types):
            return self._types[kind - 1]
        if self._types:
            raise AppFailed(
                f"{self.path.name} has atoms of type {kind}, but species={' '.join(self._types)!r} names "
                f"{len(self._types)} types.",
                kind="contract",
                name="BadTrajectory",
            )
        if layout.element is None:
            return str(kind)
        row = next(itertools.islice(_rows(body), int(np.flatnonzero(types == kind)[0]), None))
        return row.split()[layout.element].decode()


def _rows(body: bytes) -> Iterator[bytes]:
    """The lines of a frame's body one by one: all words of it at once take many times its size."""
    return (line for line in io.BytesIO(body) if not line.isspace())


def last_frame_of_dump(path: Path) -> bytes:
    """The text of the last frame of a LAMMPS dump; of what is before it no more than a piece is in memory.

    Raises:
        AppFailed: `BadTrajectory`: there is none; `FileTooLarge`.
    """
    offsets, _ = _dump_index(path)
    if not len(offsets):
        raise AppFailed(f"{path} holds no frame.", kind="contract", name="BadTrajectory")
    with open_unpacked(path) as file:
        file.seek(int(offsets[-1]))
        block = file.read(allowed() + 1)
    require_room(path, len(block), "its last frame has at least")
    require_lines(block, path)
    return block


_MARKER = b"ITEM: TIMESTEP"
# What `dump_modify units yes time yes` writes before it.
_BEFORE = re.compile(rb"(?:ITEM: UNITS\n\S+\n)?(?:ITEM: TIME\n\S+\n)?\Z")
# Bytes around a marker within which lie its step and what is before it.
_AROUND = 128


def _dump_index(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each frame begins, in bytes, and its step; an unfinished header at the end is passed over."""
    offsets, steps = array("q"), array("q")
    with open_unpacked(path) as file:
        text, base, searched = b"", 0, 0
        while True:
            chunk = file.read(_CHUNK)
            text += chunk
            place = text.find(_MARKER, searched - base)
            # The step of a marker near the end may not be read yet.
            while place >= 0 and (not chunk or place < len(text) - _AROUND):
                lines = text[place : place + _AROUND].split(b"\n", 2)
                begins = place == 0 or text[place - 1] == 10
                if begins and len(lines) == 3 and lines[1].strip().isdigit() and len(lines[1]) < 19:
                    before = _BEFORE.search(text, max(0, place - _AROUND), place)
                    offsets.append(base + (place if before is None else before.start()))
                    steps.append(int(lines[1]))
                searched = base + place + 1
                place = text.find(_MARKER, place + 1)
            require_room(path, 16 * len(offsets), "the places of its frames take")
            if not chunk:
                break
            searched = max(searched, base + (len(text) - len(_MARKER) if place < 0 else place))
            done = max(searched - _AROUND - base, 0)
            text, base = text[done:], base + done
    return np.array(offsets, np.int64), np.array(steps, np.int64)


def _box(flags: list[str], lines: list[bytes]) -> tuple[_Array, _Array, tuple[bool, bool, bool]]:
    """Cell vectors, origin and periodicity of a header's box (https://docs.lammps.org/Howto_triclinic.html)."""
    rows = np.array([[float(word) for word in line.split()] for line in lines[:3]])
    if flags[:2] == ["abc", "origin"]:
        return rows[:, :3], rows[:, 3], _periodic(flags[2:])
    if flags[:3] != ["xy", "xz", "yz"]:
        return np.diag(rows[:, 1] - rows[:, 0]), rows[:, 0].copy(), _periodic(flags)
    xy, xz, yz = rows[:, 2]
    # The bounds are those of the box around the tilted cell.
    low = rows[:, 0] - [min(0.0, xy, xz, xy + xz), min(0.0, yz), 0.0]
    high = rows[:, 1] - [max(0.0, xy, xz, xy + xz), max(0.0, yz), 0.0]
    a, b, c = high - low
    return np.array([[a, 0.0, 0.0], [xy, b, 0.0], [xz, yz, c]]), low, _periodic(flags[3:])


def _periodic(flags: list[str]) -> tuple[bool, bool, bool]:
    if len(flags) != 3:
        return (True, True, True)  # dumps from before 2012 do not say
    return (flags[0] == "pp", flags[1] == "pp", flags[2] == "pp")


# ---- ASE


def _frame_of(atoms: Any, step: int, time: float | None) -> Frame:
    from ase import units

    moving = atoms.has("momenta")
    return Frame(
        step=step,
        time_ps=time,
        positions=np.asarray(atoms.get_positions(), np.float64),
        cell=np.asarray(atoms.cell[:], np.float64),
        pbc=(bool(atoms.pbc[0]), bool(atoms.pbc[1]), bool(atoms.pbc[2])),
        species=np.array(atoms.get_chemical_symbols()),
        velocities=np.asarray(atoms.get_velocities()) * (1e3 * units.fs) if moving else None,
        masses=np.asarray(atoms.get_masses(), np.float64),
    )


class _OfAtoms(Trajectory):
    """Frames that are ASE `Atoms`."""

    @abstractmethod
    def _atoms(self, number: int) -> Any: ...

    def _timed(self, n: int, said: _Said, reading: Reading) -> None:
        step, every = said.interval()
        first = self._atoms(0).info if n else {}
        self.steps = np.arange(n, dtype=np.int64) * every
        if "step" in first:
            self.steps = np.array([int(self._atoms(i).info.get("step", -1)) for i in range(n)], np.int64)
        elif reading.timestep:
            self.steps = np.arange(n, dtype=np.int64)
        if reading.timestep:
            self._times = self.steps * reading.timestep
        elif "time_ps" in first:
            self._times = np.array([float(self._atoms(i).info["time_ps"]) for i in range(n)])
        elif "time_fs" in first:
            self._times = np.array([float(self._atoms(i).info["time_fs"]) for i in range(n)]) * 1e-3
        elif step is not None:
            self._times = self.steps * step
        else:
            self._why_no_times = (
                "its frames have no `time_ps`, and the run has no md.json with `timestep_fs` and `frames_every`"
            )

    def read(self, number: int) -> Frame:
        return _frame_of(self._atoms(number), int(self.steps[number]), self._time(number))


class _Ase(_OfAtoms):
    """ASE's own `.traj`; it has random access of its own."""

    def __init__(self, path: Path, said: _Said, reading: Reading) -> None:
        super().__init__(path)
        from ase.io.trajectory import TrajectoryReader

        self._plain = path.open("rb")
        try:
            self._require_index()
            self._reader: Any = TrajectoryReader(str(path))
        except AppFailed:
            self._plain.close()
            raise
        except Exception as error:  # its reader fails in many ways on a cut file
            self._plain.close()
            raise self.bad(f"ASE cannot read it: {error}") from None
        self._timed(len(self._reader), said, reading)

    def close(self) -> None:
        self._plain.close()
        self._reader.close()

    def _require_index(self) -> None:
        """That what the file says of its size can be: the number of frames, and of the first its description.

        Layout of ASE's ulm: 8 bytes `- of Ulm`, a tag of 16, then as 64-bit integers version, number of items and
        the place of the list of their places; at each place the length of a JSON text, and the text.
        """
        file = self._plain
        file.seek(24)
        _, frames, place = struct.unpack("<3q", file.read(24))
        size = file.seek(0, os.SEEK_END)
        if frames < 0 or not 0 <= place <= size or 8 * frames > size - place:
            raise self.bad(f"it says that it has {frames} frames, and has {size} bytes")
        require_room(self.path, 8 * frames, "the places of its frames take")
        file.seek(place)
        self._places, self._size = np.fromfile(file, "<i8", frames), size
        if frames:
            self._require_frame(0)

    def _require_frame(self, number: int) -> None:
        file, at, size = self._plain, int(self._places[number]), self._size
        if not 0 <= at <= size - 8:
            raise self.bad(f"a frame of it should begin at byte {at} of {size}")
        file.seek(at)
        length = struct.unpack("<q", file.read(8))[0]
        if not 0 <= length <= min(allowed(), size - at - 8):
            raise self.bad(f"a frame of it should have a description of {length} bytes")
        for name, value in _arrays(json.loads(file.read(length))):
            shape, kind, _ = value
            require_room(self.path, math.prod(map(int, shape)) * np.dtype(str(kind)).itemsize, f"{name} takes")

    def _atoms(self, number: int) -> Any:
        try:
            self._require_frame(number)
            return self._reader[number]
        except AppFailed:
            raise
        except Exception as error:  # as above
            raise self.bad(f"frame {number}: {error}") from None


def _arrays(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Name, and (shape, type, place), of each array that a description of ASE's ulm holds."""
    for name, value in data.items():
        if isinstance(value, dict) and "ndarray" in value:
            yield name.strip("."), value["ndarray"]
        elif isinstance(value, dict):
            yield from _arrays(value)


class _Extxyz(_OfAtoms):
    """Extended XYZ: an index of our own, the frames by ASE."""

    def __init__(self, path: Path, said: _Said, reading: Reading) -> None:
        super().__init__(path)
        self._offsets = array("q", [0])
        with open_unpacked(path) as file:
            place = 0
            while line := self._line(file):
                if not line.strip():
                    break
                if not line.strip().isdigit() or len(line) > 19:
                    raise self.bad(f"line {line[:40]!r} stands where frame {len(self._offsets)} should begin")
                rows = int(line) + 1
                place += len(line)
                for number in range(rows):
                    row = self._line(file)
                    place += len(row)
                    if not row.endswith(b"\n"):
                        break
                    if number and row.isspace():
                        raise self.bad(f"line {number + 2} of frame {len(self._offsets)} is empty")
                    if not number & 0xFFFF:
                        require_room(path, place - self._offsets[-1], "a frame of it has at least")
                else:
                    require_room(path, place - self._offsets[-1], "a frame of it has")
                    self._offsets.append(place)
                    if not len(self._offsets) & 0xFFFF:
                        require_room(path, 8 * len(self._offsets), "the places of its frames take")
                    continue
                self.notes += ("the last frame is not complete and left out",)
                break
        self._timed(len(self._offsets) - 1, said, reading)

    def _line(self, file: IO[bytes]) -> bytes:
        line = file.readline(LONGEST_LINE + 1)
        if len(line) > LONGEST_LINE:
            raise self.bad(f"a line in frame {len(self._offsets)} has more than {LONGEST_LINE:,} bytes")
        return line

    def _atoms(self, number: int) -> Any:
        from ase.io.extxyz import read_xyz

        with open_unpacked(self.path) as file:
            file.seek(self._offsets[number])
            text = file.read(self._offsets[number + 1] - self._offsets[number]).decode()
        try:
            return next(read_xyz(io.StringIO(text), 0))
        except Exception as error:  # ASE's reader has no error of its own
            raise self.bad(f"frame {number}: {error}") from None


# ---- H5MD


@dataclass(slots=True)
class _Element:
    """One time-dependent element of an H5MD file: `value` with its `step` and `time`."""

    group: Any
    value: Any = field(init=False)

    def __post_init__(self) -> None:
        self.value = self.group["value"]

    def along(self, name: str, n: int) -> NDArray[Any] | None:
        if name not in self.group:
            return None
        stored = self.group[name]
        if stored.shape == ():  # at equal intervals: the increment, with the offset as an attribute
            offset = float(stored.attrs.get("offset", 0.0))
            return offset + float(stored[()]) * np.arange(n)
        return np.asarray(stored[:n], np.float64)


class _H5md(Trajectory):
    """H5MD 1.x (P. de Buyl et al., Comput. Phys. Commun. 185, 1546 (2014), https://www.nongnu.org/h5md/)."""

    def __init__(self, path: Path, said: _Said, reading: Reading) -> None:
        super().__init__(path)
        with FORKS:  # it registers what a fork has to do
            import h5py

        try:
            self._file: Any = h5py.File(path, "r")
            particles = self._file["particles"]
            group = next(particles[name] for name in particles if "position" in particles[name])
            self._position = _Element(group["position"])
        except (OSError, KeyError, StopIteration) as error:
            raise self.bad(f"h5py finds no particles with positions in it ({error})") from None
        self._group = group
        self._require_shapes()
        n = int(self._position.value.shape[0])
        self._time_unit = self._time_scale(said, reading)
        self._length = self._unit(self._position.value, "angstrom", said, reading)
        self._velocity = _Element(group["velocity"]) if "velocity" in group else None
        if self._velocity is not None and len(self._velocity.value) < n:
            self._velocity = None
            self.notes += ("it has fewer frames of velocities than of positions; they are not used",)
        if self._velocity is not None:
            self._speed = self._unit(self._velocity.value, "angstrom/ps", said, reading)
        self._image = _Element(group["image"]) if "image" in group and "value" in group["image"] else None
        self._ids = group.get("id")
        steps = self._position.along("step", n)
        self.steps = np.arange(n, dtype=np.int64) if steps is None else steps.astype(np.int64)
        times = self._position.along("time", n)
        if reading.timestep:
            self._times = self.steps * reading.timestep
        elif times is not None and self._time_unit is not None:
            self._times = times * self._time_unit
        self._species_names = self._named(reading)

    def close(self) -> None:
        self._file.close()

    def _require_shapes(self) -> None:
        """That what the file says of its arrays can be read: what was never written takes no room in it."""
        shape = self._position.value.shape
        if len(shape) != 3 or shape[2] not in (2, 3):
            raise self.bad(f"its positions have the shape {shape}, not (frames, atoms, 3)")
        require_room(self.path, 8 * shape[0], "the numbers of its frames take")

        def require(name: str, stored: Any) -> None:
            if not hasattr(stored, "shape") or stored.shape is None:
                return
            rows = stored.shape[1:] if name.endswith("/value") else stored.shape
            # In memory numbers are float64, whatever they are in the file.
            size = math.prod(rows) * max(stored.dtype.itemsize, 8)
            require_room(self.path, size, f"a frame of {name} takes" if rows != stored.shape else f"{name} takes")

        self._group.visititems(require)

    def _time_scale(self, said: _Said, reading: Reading) -> float | None:
        time = self._position.group.get("time")
        unit = None if time is None else time.attrs.get("unit")
        if unit is not None:
            return factor(_text(unit), "ps")
        style = self._style(said, reading)
        if style is None or style.time_ps is None:
            self._why_no_times = "the file gives no unit of time"
            return None
        return float(style.time_ps)

    def _style(self, said: _Said, reading: Reading) -> Any:
        if reading.units != "auto":
            return unit_style(reading.units)
        log = said.log()
        return None if log is None or log.units is None else unit_style(log.units)

    def _unit(self, dataset: Any, wanted: str, said: _Said, reading: Reading) -> float:
        unit = dataset.attrs.get("unit")
        if unit is not None:
            words = _text(unit).split()
            # H5MD writes products with blanks: "Angstrom ps-1".
            return factor(_h5md_unit(words), wanted)
        style = self._style(said, reading)
        if style is None or style.reduced:
            raise AppFailed(
                f"{self.path.name} does not give the unit of {dataset.name}"
                + (", and reduced units (lj) have no size." if style is not None else "."),
                kind="contract",
                name="NoUnits" if style is None else "ReducedUnits",
                repair="give `units`, e.g. metal",
            )
        return factor(style.distance if wanted == "angstrom" else style.velocity, wanted)

    def _named(self, reading: Reading) -> NDArray[np.str_]:
        from ase.data import chemical_symbols

        n = int(self._position.value.shape[1])
        stored = self._group.get("species")
        if stored is None:
            return np.full(n, reading.species.split()[0] if reading.species else "X")
        values = np.asarray(stored["value"][0] if hasattr(stored, "keys") else stored[()])
        if values.dtype.kind in "SO":
            return np.array([_text(v) for v in values])
        names = reading.species.split()
        if names:
            return np.array([names[int(v) - 1] if 1 <= int(v) <= len(names) else str(v) for v in values])
        with FORKS:  # it registers what a fork has to do
            import h5py

        dtype = (stored["value"] if hasattr(stored, "keys") else stored).dtype
        labels = h5py.check_enum_dtype(dtype)
        if labels:
            back = {number: label for label, number in labels.items()}
            return np.array([back[int(v)] if back.get(int(v)) in chemical_symbols else str(v) for v in values])
        return np.array([str(int(v)) for v in values])

    def read(self, number: int) -> Frame:
        positions = np.asarray(self._position.value[number], np.float64) * self._length
        cell, pbc = self._cell(number)
        unwrapped = False
        if self._image is not None:
            positions = positions + np.asarray(self._image.value[number], np.float64) @ cell
            unwrapped = True
        velocities = None
        if self._velocity is not None and self.velocities:
            velocities = np.asarray(self._velocity.value[number], np.float64) * self._speed
        order: Any = slice(None)
        ids = None
        if self._ids is not None:
            stored = self._ids["value"][number] if hasattr(self._ids, "keys") else self._ids[()]
            ids = np.asarray(stored, np.int64)
            order = np.argsort(ids, kind="stable")
            ids = ids[order]
        names = self._species_names
        stored = self._group.get("species")
        if ids is not None and stored is not None and not hasattr(stored, "keys"):
            names = names[order] if len(names) == len(ids) else names
        return Frame(
            step=int(self.steps[number]),
            time_ps=self._time(number),
            positions=positions[order],
            cell=cell,
            pbc=pbc,
            species=names,
            velocities=None if velocities is None else velocities[order],
            masses=_symbols(names),
            ids=ids,
            unwrapped=unwrapped,
        )

    def _cell(self, number: int) -> tuple[_Array, tuple[bool, bool, bool]]:
        box = self._group.get("box")
        if box is None or "edges" not in box:
            return np.zeros((3, 3)), (False, False, False)
        edges = box["edges"]
        stored = edges["value"] if hasattr(edges, "keys") else edges
        value = np.asarray(stored[number] if hasattr(edges, "keys") else stored[()], np.float64) * self._length
        pbc = [_text(b) == "periodic" for b in box.attrs.get("boundary", ["periodic"] * 3)]
        return (np.diag(value) if value.ndim == 1 else value), (pbc[0], pbc[1], pbc[2])


# ---- DCD and XTC


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

    def _common(self, n: int, said: _Said, reading: Reading, log: Any) -> None:
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
        self._masses = _symbols(self._names)
        self.notes += ("the file does not say which directions are periodic: all that its cell has",)
        if reading.timestep:
            self._times = self.steps * reading.timestep
        elif log is not None and log.units in STYLES and len(self):
            step = _timestep_of_log(log, int(self.steps[0]), int(self.steps[-1]))
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


class _Dcd(_Binary):
    """DCD of LAMMPS (`dump dcd`, in the units of the run), CHARMM and NAMD (angstrom, AKMA time)."""

    def __init__(self, path: Path, said: _Said, reading: Reading) -> None:
        super().__init__(path)
        self._file = _library(path, "libdcd", "DCDFile")
        header = self._file.header
        require_room(path, 24 * int(header["natoms"]), "a frame of it takes")
        require_room(path, 8 * len(self._file), "the numbers of its frames take")
        log = said.log()
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


class _Xtc(_Binary):
    """XTC of GROMACS and of LAMMPS (`dump xtc`): nm and ps, positions rounded."""

    _length = 10.0

    def __init__(self, path: Path, said: _Said, reading: Reading) -> None:
        super().__init__(path)
        self._file = _library(path, "libmdaxdr", "XTCFile")
        require_room(path, 24 * int(self._file.n_atoms), "a frame of it takes")
        log = said.log()
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


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _h5md_unit(words: list[str]) -> str:
    """`["Angstrom", "ps-1"]` as `Angstrom/ps`."""
    above, below = [], []
    for word in words:
        if word[-2:-1] == "-" and word[-1].isdigit():
            below.append(word[:-2] + (word[-1] if word[-1] != "1" else ""))
        else:
            above.append(word)
    return "/".join(["*".join(above), *below])
