"""Collinear magnetic orderings of a crystal, each once: which moments point up, which down, in which cell.

All supercells of the primitive cell up to a size are listed by their Hermite normal forms, those that the symmetry
of the crystal maps on each other once (G. L. W. Hart, R. W. Forcade, Phys. Rev. B 77, 224115 (2008)), and in each
all signs of the moments that no symmetry, translation or reversal of all moments maps on one before, and that no
smaller cell has.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcagent.errors import AppFailed
from hpcagent.science.structures.oriented import conventional, operations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ase import Atoms

__all__ = ["MOST_SITES", "Ordering", "orderings"]

MOST_SITES = 12
"""Magnetic atoms of a supercell up to which all signs are tried: 2048 ways."""


@dataclass(frozen=True)
class Ordering:
    """One collinear ordering.

    Attributes:
        name: FM, AFM1, AFM2, ... (no net moment), FiM1, ... (some of it is left).
        cells: Primitive cells in its magnetic cell.
        wave: Propagation vector in units of the conventional reciprocal vectors; None where one is not enough.
        atoms: The magnetic cell, with the initial moments in Bohr magnetons.
    """

    name: str
    cells: int
    wave: tuple[Fraction, ...] | None
    atoms: Atoms

    @property
    def label(self) -> str:
        """`AFM2 (1/2 1/2 1/2)`."""
        return (
            self.name if not self.wave or not any(self.wave) else f"{self.name} ({' '.join(map(str, self.wave))})"
        )


def orderings(
    bulk: Atoms, moments: Mapping[str, float], *, max_cells: int = 2, compensated: bool = True
) -> tuple[Ordering, ...]:
    """The distinct collinear orderings of a crystal; the ferromagnetic one first.

    Args:
        bulk: Periodic in three directions.
        moments: Element -> size of its moment, in Bohr magnetons.
        max_cells: Primitive cells of a magnetic cell, at most.
        compensated: Only orderings in which equivalent atoms are all aligned, or half up and half down.

    Raises:
        AppFailed: `TooManyOrderings`, `NoSuchAtom` (no such element), `NoSymmetry`, `NoEngine`.

    Example:
        >>> from ase.build import bulk
        >>> [ordering.label for ordering in orderings(bulk("NiO", "rocksalt", a=4.17), {"Ni": 2.0})]
        ['FM', 'AFM1 (1 0 0)', 'AFM2 (1/2 1/2 1/2)']
        >>> [ordering.label for ordering in orderings(bulk("Fe"), {"Fe": 2.2})]
        ['FM', 'AFM1 (1 0 0)', 'AFM2 (1/2 1/2 0)']
    """
    parent, named = conventional(bulk)
    magnetic = [i for i, symbol in enumerate(parent.get_chemical_symbols()) if symbol in moments]
    if not magnetic:
        raise AppFailed(
            f"{bulk.symbols} has no atoms of {', '.join(moments) or 'a magnetic element'}.",
            kind="contract",
            name="NoSuchAtom",
            repair="moments, e.g. 'Fe:2.5 Cr:3'",
        )
    if len(magnetic) * max_cells > MOST_SITES:
        raise AppFailed(
            f"{max_cells} primitive cells of {bulk.symbols} have {len(magnetic) * max_cells} magnetic atoms; "
            f"at most {MOST_SITES} are tried.",
            kind="contract",
            name="TooManyOrderings",
            repair=f"max_cells = {max(1, MOST_SITES // len(magnetic))}, or fewer elements in moments",
        )
    group = _group(parent, magnetic)
    found: list[tuple[str, int, tuple[Fraction, ...] | None, Any]] = []
    for count in range(1, max_cells + 1):
        for cell in _cells(count, group):
            for signs in _signs(cell, group, len(magnetic)):
                kind = _kind(parent, magnetic, signs, moments)
                if kind == "FiM" and compensated and not _halves(signs, group):
                    continue
                atoms = _built(parent, magnetic, cell, signs, moments)
                found.append((kind, count, _wave(cell, signs, parent, named, group.rotations), atoms))
    order = {"FM": 0, "AFM": 1, "FiM": 2}
    made, numbers = [], dict.fromkeys(order, 0)
    for kind, count, wave, atoms in sorted(found, key=lambda one: (order[one[0]], one[1], _length(one[2], named))):
        numbers[kind] += 1
        made.append(Ordering("FM" if kind == "FM" else f"{kind}{numbers[kind]}", count, wave, atoms))
    return tuple(made)


@dataclass(frozen=True)
class _Group:
    """Space-group operations on magnetic sites: rotation, and for each site (its image, shift by whole cells)."""

    rotations: Any
    images: Any  # (n_operations, n_sites)
    shifts: Any  # (n_operations, n_sites, 3)
    classes: tuple[int, ...]  # which sites are equivalent


def _group(parent: Atoms, magnetic: list[int]) -> _Group:
    rotations, translations = operations(parent)
    scaled = parent.get_scaled_positions()[magnetic]
    images, shifts = [], []
    for rotation, translation in zip(rotations, translations, strict=True):
        apart = (scaled @ rotation.T + translation)[:, None] - scaled[None]
        off = np.linalg.norm((apart - np.round(apart)) @ parent.cell.array, axis=2)
        off[parent.numbers[magnetic][:, None] != parent.numbers[magnetic][None]] = np.inf
        image = off.argmin(axis=1)
        images.append(image)
        shifts.append(np.round(apart[np.arange(len(scaled)), image]).astype(int))
    table = np.array(images)
    return _Group(np.array(rotations), table, np.array(shifts), tuple(int(c) for c in table.min(axis=0)))


def _cells(count: int, group: _Group) -> list[Any]:
    """Hermite normal forms (rows: vectors in units of the primitive ones) of so many cells, distinct ones."""
    every = [
        np.array([[a, b, c], [0, d, e], [0, 0, count // a // d]])
        for a in range(1, count + 1)
        if count % a == 0
        for d in range(1, count // a + 1)
        if count // a % d == 0
        for b, c, e in product(range(d), range(count // a // d), range(count // a // d))
    ]
    seen: set[bytes] = set()
    distinct = []
    for cell in every:
        if cell.tobytes() in seen:
            continue
        distinct.append(cell)
        seen.update(_hermite(cell @ rotation.T).tobytes() for rotation in group.rotations)
    return distinct


def _hermite(matrix: Any) -> Any:
    """The upper triangular matrix whose rows span the same lattice, entries above the diagonal reduced by it."""
    rows = [list(map(int, row)) for row in matrix]
    for column in range(3):
        for other in range(column + 1, 3):
            while rows[other][column]:
                times = rows[column][column] // rows[other][column]
                rows[column] = [a - times * b for a, b in zip(rows[column], rows[other], strict=True)]
                rows[column], rows[other] = rows[other], rows[column]
        if rows[column][column] < 0:
            rows[column] = [-a for a in rows[column]]
        for above in range(column):
            times = rows[above][column] // rows[column][column]
            rows[above] = [a - times * b for a, b in zip(rows[above], rows[column], strict=True)]
    return np.array(rows)


def _corners(cell: Any) -> list[tuple[int, int, int]]:
    """The primitive cells in a supercell."""
    a, d, f = (int(cell[i, i]) for i in range(3))
    return list(product(range(a), range(d), range(f)))


def _back(vector: Any, cell: Any) -> tuple[int, int, int]:
    """The primitive cell in the supercell that a translation leads to."""
    left = [int(x) for x in vector]
    for i in range(3):
        times = left[i] // int(cell[i, i])
        left = [x - times * int(y) for x, y in zip(left, cell[i], strict=True)]
    return left[0], left[1], left[2]


def _permutations(cell: Any, group: _Group, sites: int) -> tuple[Any, Any]:
    """Of the magnetic sites of a supercell (cell by cell): by all its operations, and by translations alone."""
    corners = _corners(cell)
    index = {corner: i for i, corner in enumerate(corners)}
    kept = [i for i, rotation in enumerate(group.rotations) if (_hermite(cell @ rotation.T) == cell).all()]
    moved = np.array(corners)
    translations = np.array([[index[_back(n, cell)] for n in moved + step] for step in moved])
    pure = (translations[:, :, None] * sites + np.arange(sites)).reshape(len(corners), -1)
    whole: set[tuple[int, ...]] = set()
    for i in kept:
        turned = moved @ group.rotations[i].T
        first = np.array(
            [
                [index[_back(n + group.shifts[i, s], cell)] * sites + group.images[i, s] for s in range(sites)]
                for n in turned
            ]
        ).reshape(-1)
        whole.update(tuple(permutation[first].tolist()) for permutation in pure)
    return np.array(sorted(whole)), pure


def _signs(cell: Any, group: _Group, sites: int) -> list[Any]:
    """Signs of the moments of a supercell's magnetic sites, the first up: one of each kind."""
    every, pure = _permutations(cell, group, sites)
    count = len(pure) * sites
    codes = np.arange(2 ** (count - 1))
    down = (codes[:, None] >> np.arange(count)[::-1]) & 1  # the first site's bit is 0: up
    weights = 2 ** np.arange(count)[::-1]
    least = codes.copy()
    for permutation in every:
        image = down[:, permutation]
        image = image ^ image[:, :1]
        least = np.minimum(least, image @ weights)
    whole = np.ones(len(codes), dtype=bool)
    for permutation in pure[1:]:
        whole &= (down[:, permutation] != down).any(axis=1)
    return [1 - 2 * down[i] for i in np.flatnonzero((least == codes) & whole)]


def _kind(parent: Atoms, magnetic: list[int], signs: Any, moments: Mapping[str, float]) -> str:
    if (signs == 1).all():
        return "FM"
    sizes = np.array([moments[parent.symbols[i]] for i in magnetic])
    net = (signs.reshape(-1, len(magnetic)) * sizes).sum()
    return "AFM" if abs(net) < 1e-6 else "FiM"


def _halves(signs: Any, group: _Group) -> bool:
    """Whether equivalent atoms are all aligned, or half up and half down."""
    per_cell = signs.reshape(-1, len(group.classes))
    parts = [per_cell[:, [i for i, c in enumerate(group.classes) if c == one]] for one in set(group.classes)]
    return all(abs(int(part.sum())) in (0, part.size) for part in parts)


def _wave(cell: Any, signs: Any, parent: Atoms, named: Any, rotations: Any) -> tuple[Fraction, ...] | None:
    """The propagation vector, if a translation turns all moments round or none; the shortest of its star."""
    corners = _corners(cell)
    index = {corner: i for i, corner in enumerate(corners)}
    per_cell = signs.reshape(len(corners), -1)
    halves = []
    for step in np.eye(3, dtype=int):
        moved = per_cell[[index[_back(np.array(n) + step, cell)] for n in corners]]
        if not ((moved == per_cell).all() or (moved == -per_cell).all()):
            return None
        halves.append(0.0 if (moved == per_cell).all() else 0.5)
    back = np.linalg.inv(parent.cell.array).T
    arms = {tuple((np.array(halves) @ rotation).tolist()) for rotation in rotations}
    near = [np.array(arm) + np.array(n) for arm in sorted(arms) for n in product((-2, -1, 0, 1, 2), repeat=3)]
    best = min(
        near, key=lambda k: (round(float(np.linalg.norm(k @ back)), 6), *(-np.round(named @ (k @ back), 6)))
    )
    return tuple(Fraction(float(x)).limit_denominator(12) for x in named @ (best @ back))


def _length(wave: tuple[Fraction, ...] | None, named: Any) -> float:
    if wave is None:
        return np.inf
    return -round(float(np.linalg.norm(np.array([float(x) for x in wave]) @ np.linalg.inv(named).T)), 6)


def _built(parent: Atoms, magnetic: list[int], cell: Any, signs: Any, moments: Mapping[str, float]) -> Atoms:
    """The magnetic cell in reduced vectors, with initial moments."""
    from ase import Atoms as Structure
    from ase.geometry import minkowski_reduce

    positions, numbers, sizes = [], [], []
    per_cell = signs.reshape(-1, len(magnetic))
    for corner, up in zip(_corners(cell), per_cell, strict=True):
        values = np.zeros(len(parent))
        values[magnetic] = [s * moments[parent.symbols[i]] for s, i in zip(up, magnetic, strict=True)]
        positions.append(parent.positions + np.array(corner) @ parent.cell.array)
        numbers.append(parent.numbers)
        sizes.append(values)
    made: Structure = Structure(
        numbers=np.concatenate(numbers),
        positions=np.concatenate(positions),
        cell=minkowski_reduce(cell @ parent.cell.array, pbc=True)[0],
        pbc=True,
        magmoms=np.concatenate(sizes),
    )
    made.wrap()
    return made
