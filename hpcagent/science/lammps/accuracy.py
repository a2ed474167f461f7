"""How far the forces of a run are from converged ones, from dumps of the same atoms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcagent.errors import AppFailed

__all__ = ["ForceErrors", "force_errors"]

# Of a jackknife over atoms, into so many groups of neighbouring ids.
_GROUPS = 16
# Errors of atoms are not independent: they share the waves of the mesh. Of 216 flexible water molecules the ratio
# of two settings' errors scatters over configurations by 1.2 to 2 times what groups of atoms tell.
_TOGETHER = 2.0


@dataclass(frozen=True, slots=True)
class ForceErrors:
    """What dumps of forces tell.

    Attributes:
        values: The metrics `force_error`, and `force_error_ratio` where there are forces to compare with.
        uncertainty: Standard error of the latter: how much it would differ at other configurations.
    """

    values: dict[str, float]
    uncertainty: dict[str, float] = field(default_factory=dict)


def force_errors(folder: Path, files: Mapping[str, str]) -> ForceErrors:
    """The rms error of the forces over the rms force, and its ratio to that of other settings.

    rms(f - f_converged) / rms(f_converged), over all components of all atoms. The ratio of two settings is taken
    at the same positions: at others the error of one and the same setting differs by several percent.

    Args:
        folder: The run's directory.
        files: Names of dumps with the columns `id fx fy fz`: `computed` and `converged`; of other settings at the
            same positions `beside`, and `beside_converged` where those converge to something else. Of each the
            last frame.

    Raises:
        AppFailed: `MissingArtifact`: a file is not there, or not such a dump. `MissingMetric`: they do not hold
            the same atoms. `NotFinite`: the converged forces are zero or no numbers, or those beside have no
            error.
    """
    squares = _errors(folder, files["computed"], files["converged"])
    found = {"force_error": math.sqrt(float(squares.mean()))}
    if "beside" not in files:
        return ForceErrors(found)
    beside = _errors(folder, files["beside"], files.get("beside_converged", files["converged"]))
    if not beside.mean() > 0:
        raise AppFailed(
            f"the forces in {files['beside']} have no error, so no ratio to it says anything.",
            name="NotFinite",
            repair="compare with settings that are less tight than the converged ones",
        )
    ratio, error = _ratio(squares, beside)
    return ForceErrors(found | {"force_error_ratio": ratio}, {"force_error_ratio": error})


def _ratio(squares: NDArray[np.float64], beside: NDArray[np.float64]) -> tuple[float, float]:
    """sqrt(mean(squares) / mean(beside)) and its standard error, by a jackknife over groups of atoms.

    Args:
        squares: (n,) float64, of each atom.
        beside: The same of the same atoms.
    """
    ratio = math.sqrt(float(squares.mean() / beside.mean()))
    groups = min(_GROUPS, len(squares))
    one, other = (np.array([g.sum() for g in np.array_split(s, groups)]) for s in (squares, beside))
    rest = other.sum() - other
    if groups < 2 or not (rest > 0).all():
        return ratio, ratio  # one atom alone has an error: nothing is known of others
    left = np.sqrt((one.sum() - one) / rest)
    return ratio, _TOGETHER * math.sqrt((groups - 1) / groups * float(((left - left.mean()) ** 2).sum()))


def _errors(folder: Path, computed_file: str, converged_file: str) -> NDArray[np.float64]:
    """Squared error of the forces over the mean square of the converged ones: (n,) float64, of each atom."""
    (ids, computed), (others, converged) = (_read(folder, name) for name in (computed_file, converged_file))
    if not np.array_equal(ids, others):
        raise AppFailed(
            f"{computed_file} and {converged_file} do not hold the same atoms, so their forces cannot be "
            "compared.",
            kind="contract",
            name="MissingMetric",
            repair="dump all atoms, twice at the same step",
        )
    scale = float(np.mean(converged**2)) if converged.size else 0.0
    squares: NDArray[np.float64] = np.mean((computed - converged) ** 2, axis=1)
    if not (scale > 0 and math.isfinite(scale) and np.isfinite(squares).all()):
        raise AppFailed(
            f"the forces in {converged_file} are zero or no numbers, so an error relative to them says nothing.",
            name="NotFinite",
            repair="measure them after the atoms have moved",
        )
    return squares / scale


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
