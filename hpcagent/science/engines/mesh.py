"""Meshes of k-points and boxes around molecules: the same for every engine, so that their energies agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["VACUUM", "boxed", "mesh", "spaced", "vacuum_along"]

# A quotient above this need not be a whole number any more, or is infinite.
_WHOLE = 2.0**53

VACUUM = 5.0
"""Empty space on each side of a molecule that is given a box, in angstrom."""


def mesh(cell: Any, pbc: Sequence[bool], n: int) -> tuple[int, int, int]:
    """Numbers of k-points of a Gamma-centred mesh: `n` along the longest reciprocal vector, others in proportion.

    Numbers are rounded up, so that no direction is sampled less densely than the longest; along directions that
    are not periodic there is one. The points are i/N, i = 0 … N-1, of each reciprocal vector (Monkhorst and Pack,
    doi:10.1103/PhysRevB.13.5188, shifted where N is even so that Gamma is one of them).

    Args:
        cell: The cell's vectors, (3, 3), in angstrom.
        pbc: Which directions are periodic.
        n: Points along the longest reciprocal vector of a periodic direction.

    Example:
        >>> mesh([[4, 0, 0], [0, 4, 0], [0, 0, 20]], (True, True, True), 5)
        (5, 5, 1)
        >>> mesh([[4, 0, 0], [0, 6, 0], [0, 0, 20]], (True, True, False), 4)
        (4, 3, 1)
    """
    periodic = [bool(along) for along in pbc]
    if not any(periodic):
        return 1, 1, 1
    lengths = np.linalg.norm(_reciprocal(np.asarray(cell, dtype=float)), axis=1)
    longest = max(lengths[periodic])
    # 1e-6: 4.0000000001 of a cell that was rotated is 4.
    first, second, third = (
        max(1, math.ceil(n * float(length) / longest - 1e-6)) if along else 1
        for length, along in zip(lengths, periodic, strict=True)
    )
    return first, second, third


def spaced(cell: Any, pbc: Sequence[bool], distance: float) -> tuple[int, int, int]:
    """Numbers of k-points of a Gamma-centred mesh whose points are at most `distance` apart along each vector.

    N_i = ceil(|b_i| / distance), b_i the reciprocal vector with the factor 2 pi; 1 along directions that are not
    periodic.

    Args:
        cell: The cell's vectors, (3, 3), in angstrom.
        pbc: Which directions are periodic.
        distance: In 1/angstrom.

    Example:
        >>> spaced([[4, 0, 0], [0, 4, 0], [0, 0, 20]], (True, True, False), 0.15)
        (11, 11, 1)
    """
    lengths = 2 * math.pi * np.linalg.norm(_reciprocal(np.asarray(cell, dtype=float)), axis=1)
    first, second, third = (
        max(1, math.ceil(min(float(length) / distance, _WHOLE) - 1e-6)) if along else 1
        for length, along in zip(lengths, pbc, strict=True)
    )
    return first, second, third


def vacuum_along(atoms: Atoms, least: float = 5.0) -> tuple[bool, bool, bool]:
    """Along which of its vectors a cell has a gap of `least` angstrom without atoms; all where it has no cell.

    Layers of crystals are not so far apart: 3.4 angstrom in graphite, 4.3 in caesium.

    Example:
        >>> from ase.build import fcc111
        >>> vacuum_along(fcc111("Cu", (1, 1, 3), vacuum=6.0, periodic=True))
        (False, False, True)
    """
    if atoms.cell.rank < 3:
        first, second, third = (not vector.any() for vector in atoms.cell)
        return bool(first), bool(second), bool(third)
    heights = 1 / np.linalg.norm(np.linalg.inv(atoms.cell.array), axis=0)
    gaps = []
    for axis in range(3):
        places = np.sort(atoms.get_scaled_positions()[:, axis])
        gaps.append(bool(np.diff([*places, places[0] + 1]).max() * heights[axis] >= least))
    return gaps[0], gaps[1], gaps[2]


def _reciprocal(cell: Any) -> Any:
    # A direction that is not periodic may have no vector: pinv leaves it out of the others'.
    return np.linalg.pinv(cell).T


def boxed(atoms: Atoms, vacuum: float = VACUUM) -> Atoms:
    """The atoms in a cell for a program whose every direction is periodic.

    Directions without a vector get one, perpendicular to the others, with `vacuum` angstrom beyond the outermost
    atoms on both sides, and the atoms are centred along them. Vectors that are there stay as they are.

    Returns:
        A copy with three vectors; its `pbc` are those of the atoms.

    Example:
        >>> from ase import Atoms
        >>> boxed(Atoms("H2", [[0, 0, 0], [0, 0, 0.74]])).cell.lengths().round(2).tolist()
        [10.0, 10.0, 10.74]
    """
    copy: Atoms = atoms.copy()
    missing = [axis for axis in range(3) if not copy.cell[axis].any()]
    if missing:
        copy.center(vacuum=vacuum, axis=tuple(missing))
    return copy
