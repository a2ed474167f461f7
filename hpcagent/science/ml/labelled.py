"""Labelled structures from an extended XYZ file: energies and forces, each frame with the condition it is of."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcagent.apps.bounded import require_size
from hpcagent.errors import AppFailed
from hpcagent.science.ml.pod import Frame

__all__ = ["Labelled", "read_labelled", "write_dropped"]


@dataclass(frozen=True, slots=True)
class Labelled:
    """Frames of a file.

    Attributes:
        frames: Those that can be used, in their order.
        dropped: (number from 0, why) of the others.
        elements: Chemical symbols, sorted.
    """

    frames: tuple[Frame, ...]
    dropped: tuple[tuple[int, str], ...]
    elements: tuple[str, ...]


def read_labelled(path: Path, condition: str) -> Labelled:
    """Read frames with energy (eV) and forces (eV/angstrom).

    Args:
        path: Extended XYZ, or whatever ASE reads several labelled frames from.
        condition: Key of `Atoms.info` with the condition that a frame was made at.

    Raises:
        AppFailed: `BadData`: ASE cannot read it, or no frame is usable (the first reasons are named).
    """
    import ase.io

    try:
        require_size(path)
        found: Any = ase.io.read(path, index=":")
    except AppFailed:
        raise
    except Exception as error:  # each format fails in its own way
        raise AppFailed(
            f"{path.name}: ASE cannot read frames from it: {error}.", kind="contract", name="BadData"
        ) from None
    frames, dropped = [], []
    for number, atoms in enumerate(found):
        frame = _frame(number, atoms, condition)
        if isinstance(frame, str):
            dropped.append((number, frame))
        else:
            frames.append(frame)
    if not frames:
        said = "; ".join(f"frame {number}: {why}" for number, why in dropped[:3]) or "it has none"
        raise AppFailed(
            f"{path.name} has no usable frame ({said}).",
            kind="contract",
            name="BadData",
            repair="frames with three periodic directions, energy, forces and the condition in their comment line",
        )
    elements = sorted({symbol for frame in frames for symbol in frame.atoms.get_chemical_symbols()})
    return Labelled(tuple(frames), tuple(dropped), tuple(elements))


def _frame(number: int, atoms: Any, condition: str) -> Frame | str:
    results = getattr(atoms.calc, "results", {})
    missing = [name for name in ("energy", "forces") if name not in results]
    if missing:
        return f"no {' and no '.join(missing)}"
    if condition not in atoms.info:
        return f"no {condition!r} in its comment line (it has: {', '.join(atoms.info) or 'nothing'})"
    if not atoms.pbc.all() or atoms.cell.rank < 3:
        return "not periodic in three directions, which fitpod needs"
    energy, forces = float(results["energy"]), np.array(results["forces"], dtype=float)
    if not math.isfinite(energy) or not np.isfinite(forces).all() or not np.isfinite(atoms.positions).all():
        return "energy, forces or positions are not finite"
    bare = atoms.copy()
    bare.calc = None
    return Frame(bare, energy, forces, str(atoms.info[condition]), number)


def write_dropped(path: Path, dropped: tuple[tuple[int, str], ...], what: str) -> None:
    """A CSV of what was not used and why."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([what, "why"])
        rows.writerows(dropped)
