"""How far the forces of a run are from converged ones, from two dumps of the same atoms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcagent.errors import AppFailed

__all__ = ["force_error"]


def force_error(folder: Path, files: Mapping[str, str]) -> float:
    """The rms error of the forces over the rms force.

    rms(f - f_converged) / rms(f_converged), over all components of all atoms.

    Args:
        folder: The run's directory.
        files: Names of two dumps with the columns `id fx fy fz`: `computed` and `converged`. Of each the last
            frame.

    Raises:
        AppFailed: `MissingArtifact`: a file is not there, or not such a dump. `MissingMetric`: they do not hold
            the same atoms. `NotFinite`: the converged forces are zero or no numbers.
    """
    (ids, computed), (others, converged) = (_read(folder, files[name]) for name in ("computed", "converged"))
    if not np.array_equal(ids, others):
        raise AppFailed(
            f"{files['computed']} and {files['converged']} do not hold the same atoms, so their forces cannot be "
            "compared.",
            kind="contract",
            name="MissingMetric",
            repair="dump all atoms, twice at the same step",
        )
    scale = float(np.sqrt(np.mean(converged**2))) if converged.size else 0.0
    error = float(np.sqrt(np.mean((computed - converged) ** 2))) / scale if scale > 0 else math.nan
    if not math.isfinite(error):
        raise AppFailed(
            f"the forces in {files['converged']} are zero or no numbers, so an error relative to them says "
            "nothing.",
            name="NotFinite",
            repair="measure them after the atoms have moved",
        )
    return error


def _read(folder: Path, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids, and forces: (n, 3) float64, of the last frame, in the order of the ids."""
    try:
        frame = (folder / name).read_text().rpartition("ITEM: ATOMS ")[2]
        header, _, rows = frame.partition("\n")
        columns = header.split()
        table = np.array([row.split() for row in rows.splitlines()], dtype=np.float64)
        table = table.reshape(-1, len(columns))[:, [columns.index(c) for c in ("id", "fx", "fy", "fz")]]
    except (OSError, ValueError) as error:
        raise AppFailed(
            f"{name} is not a dump with the columns id, fx, fy and fz: {error}.",
            kind="contract",
            name="MissingArtifact",
            repair="write it with `dump ... custom 1 FILE id fx fy fz`",
        ) from None
    order = np.argsort(table[:, 0])
    return table[order, 0].astype(np.int64), table[order, 1:]
