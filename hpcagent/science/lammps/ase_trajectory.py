"""Trajectories of ASE, `.traj` and extended XYZ, with an index of where each frame begins."""

from __future__ import annotations

import io
import json
import math
import os
import struct
from abc import abstractmethod
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from hpcagent.apps.bounded import LONGEST_LINE, open_unpacked, require_room
from hpcagent.apps.printed import allowed
from hpcagent.errors import AppFailed
from hpcagent.science.lammps.frames import Frame, Reading, Trajectory
from hpcagent.science.lammps.run_of_trajectory import Said

__all__ = ["AseTrajectory", "Extxyz"]


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

    def _timed(self, n: int, said: Said, reading: Reading) -> None:
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


class AseTrajectory(_OfAtoms):
    """ASE's own `.traj`; it has random access of its own."""

    def __init__(self, path: Path, said: Said, reading: Reading) -> None:
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


class Extxyz(_OfAtoms):
    """Extended XYZ: an index of our own, the frames by ASE."""

    def __init__(self, path: Path, said: Said, reading: Reading) -> None:
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
