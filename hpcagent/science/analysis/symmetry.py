"""The point group of a crystal as it lies in space, and what it leaves of an elastic tensor.

Own code: the group of a crystal of some atoms is found by trying all integer matrices in a reduced cell, and no
package for it comes with the others. A tensor of rank four that a group leaves as it is is found by linear
algebra, in any orientation, so that no table of constants for each class is needed (J. F. Nye, Physical
Properties of Crystals, 1957, has those tables).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["Symmetry", "bond", "crystal_symmetry", "general_basis", "turned_over"]

_Array = NDArray[np.float64]
_VOIGT = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))
_PAIRS = tuple((i, j) for i in range(6) for j in range(i, 6))
# Number of constants -> name; six and seven are tetragonal or trigonal.
_NAMES = {3: "cubic", 5: "hexagonal", 9: "orthorhombic", 13: "monoclinic", 21: "triclinic"}


@dataclass(frozen=True)
class Symmetry:
    """What the point group of a crystal says of its elastic tensor.

    Attributes:
        name: Crystal system: cubic, hexagonal, tetragonal, trigonal, orthorhombic, monoclinic, triclinic.
        basis: (n, 6, 6) tensors in Voigt's notation, in the axes of the structure, that span the allowed ones.
        axes: (3, 3) rows are the standard axes x, y, z of the system, in the axes of the structure.
    """

    name: str
    basis: _Array
    axes: _Array

    @property
    def turned(self) -> bool:
        """Whether the standard axes are not those of the structure."""
        return not np.allclose(self.axes, np.eye(3), atol=1e-3)


def crystal_symmetry(atoms: Atoms, tolerance: float = 0.02) -> Symmetry:
    """The symmetry of a crystal's elastic tensor.

    Standard axes: of cubic and orthorhombic crystals their three axes, each nearest to that of the structure; z
    is the axis of highest order of hexagonal, tetragonal and trigonal ones, x perpendicular to it a twofold axis
    of trigonal ones, if they have one, else along the shortest lattice vector (a). The sign of a trigonal
    crystal's x is open: half a turn about z changes that of C14. Others keep the axes of the structure.

    Args:
        atoms: Periodic in three directions; initial moments tell atoms apart.
        tolerance: Distance up to which atoms and lattice points count as the same, in angstrom.
    """
    group = _point_group(atoms, tolerance)
    basis = _invariant(group)
    name = _NAMES.get(len(basis)) or ("tetragonal" if _axes_of(group, 4) else "trigonal")
    return Symmetry(name, basis, _standard_axes(name, group, atoms.cell[:]))


def turned_over(atoms: Atoms, axis: int, tolerance: float = 0.02) -> bool:
    """Whether both sides of a slab are alike: an operation of it turns the normal of its face round.

    Args:
        atoms: With three cell vectors; initial moments, and whether an atom is held, tell atoms apart.
        axis: Index of the vector across the slab.
        tolerance: In angstrom.

    Example:
        >>> from ase.build import fcc111
        >>> turned_over(fcc111("Cu", (1, 1, 4), vacuum=6.0), 2)
        True
    """
    from ase.constraints import FixAtoms

    marked: Atoms = atoms.copy()
    moments = marked.get_initial_magnetic_moments()
    for constraint in marked.constraints:
        if isinstance(constraint, FixAtoms):
            moments[constraint.index] += 1000.0
    marked.set_initial_magnetic_moments(moments)
    first, second = (marked.cell[i] for i in range(3) if i != axis)
    normal = np.cross(first, second)
    return any(
        float(normal @ r @ normal) < -0.99 * float(normal @ normal) for r in _point_group(marked, tolerance)
    )


def bond(rotation: _Array) -> _Array:
    """Bond's matrix M (6, 6): Voigt's vector of a stress in turned axes is M times the old one; C becomes M C M^T.

    Args:
        rotation: (3, 3), x' = rotation x (W. L. Bond, Bell Syst. Tech. J. 22, 1 (1943)).
    """
    found = np.zeros((6, 6))
    for row, (i, j) in enumerate(_VOIGT):
        for column, (k, m) in enumerate(_VOIGT):
            found[row, column] = rotation[i, k] * rotation[j, m]
            if k != m:
                found[row, column] += rotation[i, m] * rotation[j, k]
    return found


def general_basis() -> _Array:
    """(21, 6, 6): one tensor for each pair i <= j, with C_ij = C_ji = 1."""
    units = np.zeros((21, 6, 6))
    for place, (i, j) in enumerate(_PAIRS):
        units[place, i, j] = units[place, j, i] = 1.0
    return units


def _point_group(atoms: Atoms, tolerance: float) -> list[_Array]:
    """Rotations (3, 3), also improper ones, that belong to an operation of the crystal."""
    cell, positions, kinds = _primitive(atoms, tolerance)
    metric, lengths = cell @ cell.T, np.linalg.norm(cell, axis=1)
    allowed = 2 * tolerance * np.add.outer(lengths, lengths) / 2 + tolerance**2
    rows = np.array(list(product((-1, 0, 1), repeat=3)))
    # A row is the image of a cell vector: it must have its length.
    images = [
        rows[np.abs(np.einsum("ij,jk,ik->i", rows, metric, rows) - metric[i, i]) < allowed[i, i]] for i in range(3)
    ]
    scaled = np.asarray(np.linalg.solve(cell.T, positions.T).T, np.float64)
    found = []
    for a, b, c in product(*images):
        whole = np.array([a, b, c])
        if abs(np.linalg.det(whole)) < 0.5 or (np.abs(whole @ metric @ whole.T - metric) > allowed).any():
            continue
        if _maps(whole, scaled, kinds, cell, tolerance):
            # Of a cell that is a little off its symmetry: the nearest rotation.
            u, stretch, v = np.linalg.svd(np.linalg.solve(cell, whole @ cell).T)
            if np.abs(stretch - 1).max() * lengths.max() < tolerance:
                found.append(u @ v)
    return found


def _primitive(atoms: Atoms, tolerance: float) -> tuple[_Array, _Array, list[object]]:
    """Reduced primitive cell (3, 3), positions (n, 3) in angstrom and kinds of its atoms.

    A cell of several primitive ones need not have the symmetry of the crystal that fills it. Where translations
    within the tolerance do not make a lattice, the given cell is what is left.
    """
    from ase.geometry import minkowski_reduce

    given, _ = minkowski_reduce(atoms.cell[:], pbc=True)
    scaled = np.linalg.solve(given.T, atoms.positions.T).T
    kinds: list[object] = list(
        zip(atoms.numbers.tolist(), np.round(atoms.get_initial_magnetic_moments(), 3).tolist(), strict=True)
    )
    shifts = _translations(scaled, kinds, given, tolerance)
    n = len(shifts)
    if n > 1:
        cell = _reduced(np.round(shifts * n) / n, given)
        inside = np.linalg.solve(cell.T, atoms.positions.T).T
        first: list[int] = []
        for i in range(len(kinds)):
            apart = inside[first] - inside[i]
            near = np.linalg.norm((apart - np.round(apart)) @ cell, axis=1) < 2 * tolerance
            if not any(near[k] and kinds[j] == kinds[i] for k, j in enumerate(first)):
                first.append(i)
        whole = abs(np.linalg.det(given)) / abs(np.linalg.det(cell))
        if len(first) * n == len(kinds) and abs(whole - n) < 1e-3:
            return cell, atoms.positions[first], [kinds[i] for i in first]
    return given, atoms.positions, kinds


def _translations(scaled: _Array, kinds: Sequence[object], cell: _Array, tolerance: float) -> _Array:
    """(n, 3) translations within the cell that map every atom on one of its kind, in units of its vectors."""
    rarest = min(set(kinds), key=kinds.count)
    places = [i for i, kind in enumerate(kinds) if kind == rarest]
    alike = np.array([[one == other for other in kinds] for one in kinds])
    found = []
    for place in places:
        shift = scaled[place] - scaled[places[0]]
        apart = (scaled + shift)[:, None] - scaled[None]
        apart -= np.round(apart)
        if ((np.linalg.norm(apart @ cell, axis=2) < tolerance) & alike).any(axis=1).all():
            found.append(shift)
    return np.array(found)


def _reduced(shifts: _Array, cell: _Array) -> _Array:
    """Reduced cell (3, 3) of the lattice that translations (n, 3) in units of the vectors of a reduced cell make.

    The shortest vectors that are linearly independent: in three dimensions they span the lattice.
    """
    from ase.geometry import minkowski_reduce

    images = np.array(list(product((-1, 0, 1), repeat=3)))
    points = ((shifts - np.round(shifts))[:, None] + images[None]).reshape(-1, 3) @ cell
    points = points[np.argsort(np.linalg.norm(points, axis=1))]
    chosen: list[_Array] = []
    for point in points:
        unit = np.array([p / np.linalg.norm(p) for p in (*chosen, point) if np.linalg.norm(p) > 1e-6])
        if len(unit) == len(chosen) + 1 and np.linalg.svd(unit, compute_uv=False).min() > 1e-3:
            chosen.append(point)
        if len(chosen) == 3:
            break
    reduced: _Array = minkowski_reduce(np.array(chosen), pbc=True)[0]
    return reduced


def _maps(
    whole: NDArray[np.int64], scaled: _Array, kinds: Sequence[object], cell: _Array, tolerance: float
) -> bool:
    """Whether the operation, with some translation, maps every atom on one of its kind."""
    turned = scaled @ whole
    rarest = min(set(kinds), key=kinds.count)
    places = [i for i, kind in enumerate(kinds) if kind == rarest]
    alike = np.array([[one == other for other in kinds] for one in kinds])
    for place in places:
        shift = scaled[place] - turned[places[0]]
        apart = (turned + shift)[:, None] - scaled[None]
        apart -= np.round(apart)
        near = (np.linalg.norm(apart @ cell, axis=2) < tolerance) & alike
        if near.any(axis=1).all():
            return True
    return False


def _invariant(group: Sequence[_Array]) -> _Array:
    """(n, 6, 6) orthonormal tensors that no rotation of the group changes."""
    units = general_basis()
    upper = tuple(np.array(_PAIRS).T)
    equations = []
    for rotation in group:
        matrix = bond(rotation)
        changed = np.einsum("ij,njk,lk->nil", matrix, units, matrix)
        equations.append((changed - units)[:, upper[0], upper[1]].T)
    _, singular, vectors = np.linalg.svd(np.concatenate(equations))
    # Those of a group are 0 or larger than 1; 0.1 is far from both, for cells that are a little off.
    free = vectors[singular < 0.1 * np.sqrt(len(group))]
    basis: _Array = np.einsum("nm,mij->nij", free, units)
    return basis


def _axes_of(group: Sequence[_Array], order: int) -> list[_Array]:
    """Axes of the proper rotations by 360/order degrees, each once."""
    found: list[_Array] = []
    for rotation in group:
        proper = rotation * np.sign(np.linalg.det(rotation))
        if abs(np.trace(proper) - (1 + 2 * np.cos(2 * np.pi / order))) > 0.05:
            continue
        values, vectors = np.linalg.eig(proper)
        axis = np.real(vectors[:, np.argmin(np.abs(values - 1))])
        axis /= np.linalg.norm(axis)
        if all(abs(axis @ other) < 0.99 for other in found):
            found.append(axis)
    return found


def _standard_axes(name: str, group: Sequence[_Array], cell: _Array) -> _Array:
    if name in ("monoclinic", "triclinic"):
        return np.eye(3)
    if name in ("cubic", "orthorhombic"):
        fourfold = _axes_of(group, 4)
        # Without fourfold axes (pyrite) the three twofold ones are those of the cube.
        three = fourfold if len(fourfold) == 3 else _axes_of(group, 2)
        return _right_handed(three)
    order = {"hexagonal": 6, "tetragonal": 4, "trigonal": 3}[name]
    found = _axes_of(group, order) or _axes_of(group, 3)
    z = found[0] * (1 if found[0][np.argmax(np.abs(found[0]))] > 0 else -1)
    # Of a tetragonal crystal both a and the diagonal can be twofold: only a is standard.
    twofold = [axis for axis in _axes_of(group, 2) if abs(axis @ z) < 0.1] if name == "trigonal" else []
    x = max(twofold or _shortest_across(cell, z), key=lambda axis: abs(axis[0]))
    x = x - (x @ z) * z
    x /= np.linalg.norm(x) * (1 if x[np.argmax(np.abs(x))] > 0 else -1)
    return np.array([x, np.cross(z, x), z])


def _shortest_across(cell: _Array, z: _Array) -> list[_Array]:
    """Directions of the shortest lattice vectors perpendicular to z."""
    from ase.geometry import minkowski_reduce

    reduced, _ = minkowski_reduce(cell, pbc=True)
    # Two vectors of a reduced cell, or their differences, span the plane; three times as far is far enough.
    vectors = np.array([n for n in product(range(-3, 4), repeat=3) if any(n)]) @ reduced
    lengths = np.linalg.norm(vectors, axis=1)
    across = abs(vectors @ z) < 0.05 * lengths
    shortest = across & (lengths < 1.01 * lengths[across].min())
    return list(vectors[shortest] / lengths[shortest, None])


def _right_handed(three: Sequence[_Array]) -> _Array:
    """The three axes in the order and with the signs that turn the structure least."""
    from itertools import permutations

    best = np.eye(3)
    most = -4.0
    for order in permutations(three):
        axes = np.array([axis * (1 if axis[i] >= 0 else -1) for i, axis in enumerate(order)])
        if np.linalg.det(axes) < 0:
            weakest = int(np.argmin(np.abs(np.diag(axes))))
            axes[weakest] *= -1
        if np.trace(axes) > most:
            best, most = axes, float(np.trace(axes))
    return best
