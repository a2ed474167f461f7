"""How a molecule turns: linear or not, and how many turns leave it as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["geometry_of", "rigid_motions", "symmetry_number"]

_Array = NDArray[np.float64]
# Atoms that are less than this beside the axis are on it, in angstrom: relaxed molecules keep some 1e-3.
_ON_AXIS = 0.01


def geometry_of(atoms: Atoms) -> Literal["monatomic", "linear", "nonlinear"]:
    """Whether the molecule is one atom, or all its atoms are on a line (within 0.01 angstrom).

    Example:
        >>> from ase.build import molecule
        >>> geometry_of(molecule("CO2")), geometry_of(molecule("H2O"))
        ('linear', 'nonlinear')
    """
    if len(atoms) == 1:
        return "monatomic"
    from_center = atoms.positions - atoms.positions.mean(axis=0)
    axis = np.linalg.svd(from_center)[2][0]
    beside = from_center - np.outer(from_center @ axis, axis)
    return "linear" if np.linalg.norm(beside, axis=1).max() < _ON_AXIS else "nonlinear"


def rigid_motions(atoms: Atoms) -> _Array:
    """Orthonormal mass-weighted displacements (n, 3 N) of the translations and rotations of a molecule.

    n is 3 for an atom, 5 for a linear molecule, 6 for any other (E. B. Wilson, J. C. Decius and P. C. Cross,
    Molecular Vibrations, 1955).
    """
    weights = np.sqrt(atoms.get_masses())
    from_center = atoms.positions - atoms.get_center_of_mass()
    moved = [np.tile(axis, (len(atoms), 1)) for axis in np.eye(3)]
    turned = [np.cross(axis, from_center) for axis in np.eye(3)]
    vectors = np.array([(weights[:, None] * v).ravel() for v in (*moved, *turned)])
    kept = {"monatomic": 3, "linear": 5, "nonlinear": 6}[geometry_of(atoms)]
    # Of a linear molecule the turn about its own axis moves (nearly) nothing, and is the smallest.
    vectors[3:] -= (vectors[3:] @ vectors[:3].T) @ vectors[:3] / weights.dot(weights)
    of_turns = np.linalg.svd(vectors[3:], full_matrices=False)[2][: kept - 3]
    return np.concatenate([vectors[:3] / np.linalg.norm(weights), of_turns])


def symmetry_number(atoms: Atoms, tolerance: float = 0.05) -> int:
    """The number of proper rotations that map a molecule onto itself: 2 for H2O, 3 for NH3, 12 for CH4.

    All rotations that carry two of its atoms (not on one line with the centre) to two others of the same kind
    are tried.

    Args:
        atoms: The molecule; its isotopes are told apart by their masses.
        tolerance: Distance within which an atom must be where another was, in angstrom.

    Example:
        >>> from ase.build import molecule
        >>> [symmetry_number(molecule(name)) for name in ("CO", "N2", "H2O", "NH3", "CH4", "C6H6")]
        [1, 2, 2, 3, 12, 12]
    """
    geometry = geometry_of(atoms)
    if geometry == "monatomic":
        return 1
    places = atoms.positions - atoms.get_center_of_mass()
    kinds = np.stack([atoms.numbers, np.round(atoms.get_masses(), 3)], axis=1)
    if geometry == "linear":
        return 2 if _same(-places, places, kinds, tolerance) else 1
    first, second = _two_atoms(places, kinds)
    frame = _frame(places[first], places[second])
    found: list[_Array] = []
    for a in _alike(first, places, kinds, tolerance):
        for b in _alike(second, places, kinds, tolerance):
            apart = np.linalg.norm(places[a] - places[b]) - np.linalg.norm(places[first] - places[second])
            if a == b or abs(apart) > 2 * tolerance or np.linalg.norm(np.cross(places[a], places[b])) < 1e-3:
                continue
            rotation = _frame(places[a], places[b]) @ frame.T
            known = any(np.abs(rotation - other).max() < 0.1 for other in found)
            if not known and _same(places @ rotation.T, places, kinds, tolerance):
                found.append(rotation)
    return len(found)


def _two_atoms(places: _Array, kinds: _Array) -> tuple[int, int]:
    """Two atoms that fix a rotation: of few of their kind, far from the centre and from one line with it."""
    few = np.array([(kinds == kind).all(axis=1).sum() for kind in kinds])
    far = np.linalg.norm(places, axis=1)
    candidates = [
        (few[i] * few[j], -float(np.linalg.norm(np.cross(places[i], places[j]))), i, j)
        for i in range(len(places))
        for j in range(len(places))
        if i != j and np.linalg.norm(np.cross(places[i], places[j])) > 0.1 * far[i] * far[j] + 1e-2
    ]
    if not candidates:  # nearly linear: the best there are
        sizes = np.linalg.norm(np.cross(places[:, None], places[None]), axis=2)
        i, j = np.unravel_index(int(sizes.argmax()), sizes.shape)
        return int(i), int(j)
    return min(candidates)[2:]


def _alike(i: int, places: _Array, kinds: _Array, tolerance: float) -> list[int]:
    far = np.linalg.norm(places, axis=1)
    return [int(k) for k in np.flatnonzero((kinds == kinds[i]).all(axis=1) & (abs(far - far[i]) < tolerance))]


def _frame(a: _Array, b: _Array) -> _Array:
    """Columns: a direct orthonormal frame from two vectors."""
    x = a / np.linalg.norm(a)
    z = np.cross(a, b)
    z = z / np.linalg.norm(z)
    return np.stack([x, np.cross(z, x), z], axis=1)


def _same(moved: _Array, places: _Array, kinds: _Array, tolerance: float) -> bool:
    apart = np.linalg.norm(moved[:, None] - places[None], axis=2)
    apart[(kinds[:, None] != kinds[None]).any(axis=2)] = np.inf
    nearest = apart.argmin(axis=1)
    return bool(apart.min(axis=1).max() < tolerance) and len(set(nearest.tolist())) == len(places)
