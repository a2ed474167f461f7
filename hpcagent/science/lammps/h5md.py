"""H5MD files, read by h5py directly.

MDAnalysis's reader needs a topology beside the file, has single precision, and passes over `image` and `species`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.bounded import require_room
from hpcagent.errors import AppFailed
from hpcagent.lifeline import FORKS
from hpcagent.science.lammps.frames import Frame, Reading, Trajectory, masses_of
from hpcagent.science.lammps.run_of_trajectory import Said
from hpcagent.units import factor, unit_style

__all__ = ["H5md"]

_Array = NDArray[np.float64]


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


class H5md(Trajectory):
    """H5MD 1.x (P. de Buyl et al., Comput. Phys. Commun. 185, 1546 (2014), https://www.nongnu.org/h5md/)."""

    def __init__(self, path: Path, said: Said, reading: Reading) -> None:
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

    def _time_scale(self, said: Said, reading: Reading) -> float | None:
        time = self._position.group.get("time")
        unit = None if time is None else time.attrs.get("unit")
        if unit is not None:
            return factor(_text(unit), "ps")
        style = self._style(said, reading)
        if style is None or style.time_ps is None:
            self._why_no_times = "the file gives no unit of time"
            return None
        return float(style.time_ps)

    def _style(self, said: Said, reading: Reading) -> Any:
        if reading.units != "auto":
            return unit_style(reading.units)
        log = said.log
        return None if log is None or log.units is None else unit_style(log.units)

    def _unit(self, dataset: Any, wanted: str, said: Said, reading: Reading) -> float:
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
            masses=masses_of(names),
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
