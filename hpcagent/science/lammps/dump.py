"""Text dumps of LAMMPS (https://docs.lammps.org/dump.html), also compressed with gzip.

The reader is our own: ASE's goes through every line before the frame it is asked for and keeps no steps, times and
images; MDAnalysis's has single precision and takes four times as long; neither leaves out the last frame of a
killed run.
"""

from __future__ import annotations

import io
import itertools
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.bounded import open_unpacked, require_lines, require_room
from hpcagent.apps.printed import allowed
from hpcagent.errors import AppFailed
from hpcagent.science.lammps.frames import Frame, Reading, Trajectory, masses_of
from hpcagent.science.lammps.run_of_trajectory import Said, timestep_of_log
from hpcagent.units import factor, unit_style

__all__ = ["Dump", "last_frame_of_dump"]

_Array = NDArray[np.float64]


_CHUNK = 1 << 22


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


class Dump(Trajectory):
    """A LAMMPS text dump (https://docs.lammps.org/dump.html), also compressed with gzip."""

    def __init__(self, path: Path, said: Said, reading: Reading) -> None:
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

    def _scale(self, header: _Header, said: Said, reading: Reading) -> None:
        log = said.log
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
        if not step:
            if log is None:
                self._why_no_times = "the run has no log, and the dump no times (`dump_modify time yes`)"
                return
            found = timestep_of_log(log, int(self.steps[0]), int(self.steps[-1]))
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
        masses = masses_of(species) if layout.mass is None else column[layout.mass][order]
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
