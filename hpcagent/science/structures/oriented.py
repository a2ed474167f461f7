"""Lattice planes of a crystal: its cell along a face, the planes of atoms in it, where it can be cut.

A crystal with a face (h k l) repeats along the face's normal after d = 1/|G|, G being the shortest reciprocal
vector along the normal. Between two planes of atoms it can be cut; two cuts leave the same surface where an
operation of the crystal's space group that keeps the normal maps the one on the other, and both sides of a slab
can be alike where one that turns the normal round does. Space groups are found by spglib.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

from hpcagent.apps.packages import needs
from hpcagent.errors import AppFailed

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["SYMPREC", "Cut", "Face", "asked", "conventional", "face", "formula", "operations"]

SYMPREC = 0.01
"""Distance up to which atoms count as the same under an operation, in angstrom."""


@dataclass(frozen=True)
class Cut:
    """One way to end a crystal along a face.

    Attributes:
        number: From 0.
        planes: Index of the plane of atoms on top, in `Face.planes`, for each cut that leaves this surface.
        bottoms: Indices of the cuts that end a slab below in the same surface; empty: no slab has two such sides.
        top: Composition of the uppermost plane, per surface cell.
        beneath: That of the next one.
        polar: Whether whole repeat units so cut have a dipole if their elements bear charges.
    """

    number: int
    planes: tuple[int, ...]
    bottoms: tuple[int, ...]
    top: str
    beneath: str
    polar: bool


@dataclass(frozen=True)
class Face:
    """A crystal seen along a face.

    Attributes:
        unit: The smallest cell whose first two vectors lie in the face; the first along x, the normal along z.
        planes: Indices of the atoms of each plane, the lowest first.
        shifts: (n_atoms,) repeat units by which an atom is moved so that its plane is in one piece.
        cuts: The surfaces that are distinct.
        spacing: Length of the repeat unit along the normal, in angstrom.
    """

    unit: Atoms
    planes: tuple[tuple[int, ...], ...]
    shifts: tuple[int, ...]
    cuts: tuple[Cut, ...]
    spacing: float

    def stack(self, cut: Cut, count: int) -> Atoms:
        """`count` planes under the cut, with tags from 1 at the top; no vacuum, periodic along the face only."""
        import numpy as np

        top, n = cut.planes[0], len(self.planes)
        chosen, moved, tags = [], [], []
        for below in range(count):
            turn, plane = divmod(top - below, n)
            for atom in self.planes[plane]:
                chosen.append(atom)
                moved.append(turn + self.shifts[atom])
                tags.append(below + 1)
        slab: Atoms = self.unit[chosen]
        slab.positions += np.array(moved)[:, None] * self.unit.cell[2]
        slab.set_tags(tags)
        slab.pbc = (True, True, False)
        cell = self.unit.cell.array.copy()
        cell[2] = (0, 0, max(float(np.ptp(slab.positions[:, 2])), self.spacing))
        slab.set_cell(cell)
        slab.positions[:, 2] -= slab.positions[:, 2].min()
        slab.wrap()
        return slab


def face(bulk: Atoms, miller: tuple[int, int, int], *, of: str = "conventional", tolerance: float = 0.1) -> Face:
    """The crystal along a face, and all distinct ways to cut it.

    Args:
        bulk: Periodic in three directions.
        miller: h, k, l.
        of: Of which cell they are: `conventional` (of the space group, as spglib chooses it) or `input`.
        tolerance: Atoms whose heights differ by less, in angstrom, are of one plane.

    Raises:
        AppFailed: `BadFace`; `NoCell`; `NoSymmetry`: spglib finds no space group; `NoEngine`.

    Example:
        >>> from ase.build import bulk
        >>> [cut.top for cut in face(bulk("MgO", "rocksalt", a=4.21), (1, 1, 1)).cuts]
        ['Mg', 'O']
        >>> [cut.top for cut in face(bulk("MgO", "rocksalt", a=4.21), (1, 0, 0)).cuts]
        ['MgO']
    """
    _check_crystal(bulk)
    if not any(miller):
        raise AppFailed(
            "h = k = l = 0 is no face.", kind="contract", name="BadFace", repair="at least one of h, k, l not 0"
        )
    primitive, named = _cells(bulk, of)
    unit = _along(primitive, named, miller)
    scaled = unit.get_scaled_positions(wrap=True)
    unit.set_scaled_positions(scaled)  # ASE's two ways to wrap differ by a cell at its border
    heights = scaled[:, 2]
    spacing = float(unit.cell[2, 2])
    planes, shifts = _planes(heights, tolerance / spacing)
    return Face(unit, planes, shifts, _cuts(unit, planes, heights, shifts), spacing)


def formula(atoms: Atoms | list[str]) -> str:
    """Composition in alphabetical order: `Au1Cu3` is AuCu3.

    Example:
        >>> formula(["Cu", "Au", "Cu"])
        'AuCu2'
    """
    from collections import Counter

    counts = Counter(atoms if isinstance(atoms, list) else atoms.get_chemical_symbols())
    return "".join(f"{symbol}{n if n > 1 else ''}" for symbol, n in sorted(counts.items()))


def operations(atoms: Atoms, *, kinds: Any = None, symprec: float = SYMPREC) -> tuple[Any, Any]:
    """Space-group operations of a cell: rotations (n, 3, 3) and translations (n, 3) in units of its vectors.

    Args:
        atoms: With three cell vectors; all three are taken as periodic.
        kinds: (n_atoms,) whole numbers that tell atoms apart; None: the elements.
        symprec: In angstrom.

    Raises:
        AppFailed: `NoSymmetry`, `NoEngine`.
    """
    spglib = needs("spglib", "pip install 'hpcagent[dft]'")
    cell = (atoms.cell.array, atoms.get_scaled_positions(), atoms.numbers if kinds is None else kinds)
    found = asked(atoms, lambda: spglib.get_symmetry(cell, symprec=symprec))
    return found["rotations"], found["translations"]


def asked(atoms: Atoms, question: Any) -> Any:
    """What spglib answers.

    Raises:
        AppFailed: `NoSymmetry`.
    """
    said = ""
    try:
        found = question()
    except Exception as error:  # its own class is another in every version
        found, said = None, f" ({error})"
    if found is None:
        raise AppFailed(
            f"spglib finds no space group of {atoms.symbols}{said}: are two atoms in one place?",
            kind="contract",
            name="NoSymmetry",
        )
    return found


def conventional(bulk: Atoms) -> tuple[Atoms, Any]:
    """The primitive cell, reduced, and the vectors of the conventional one: (3, 3), rows, in angstrom.

    Raises:
        AppFailed: `NoCell`, `NoSymmetry`, `NoEngine`.
    """
    _check_crystal(bulk)
    return _cells(bulk, "conventional")


def _check_crystal(bulk: Atoms) -> None:
    if not bulk.pbc.all() or bulk.cell.rank < 3:
        raise AppFailed(
            f"{bulk.symbols} is no crystal: it must be periodic in three directions (pbc is {bulk.pbc.tolist()}).",
            kind="contract",
            name="NoCell",
        )


def _cells(bulk: Atoms, of: str) -> tuple[Atoms, Any]:
    """The primitive cell, reduced, and the vectors that Miller indices refer to; both lie alike in space."""
    from ase import Atoms as Structure
    from ase.geometry import minkowski_reduce

    spglib = needs("spglib", "pip install 'hpcagent[dft]'")
    cell = (bulk.cell.array, bulk.get_scaled_positions(), bulk.numbers)
    given = bulk.cell.array
    if of == "conventional":
        given = asked(bulk, lambda: spglib.standardize_cell(cell, no_idealize=True, symprec=SYMPREC))[0]
        vectors, scaled, numbers = asked(
            bulk, lambda: spglib.standardize_cell(cell, to_primitive=True, no_idealize=True, symprec=SYMPREC)
        )
    else:
        # As it lies; the standard cell may be turned against the given one.
        vectors, scaled, numbers = asked(bulk, lambda: spglib.find_primitive(cell, symprec=SYMPREC))
        turned = asked(bulk, lambda: spglib.get_symmetry_dataset(cell, symprec=SYMPREC)).std_rotation_matrix
        vectors = vectors @ turned  # rows: from the idealised orientation back to the given one
    primitive = Structure(numbers=numbers, cell=vectors, scaled_positions=scaled, pbc=True)
    reduced, _ = minkowski_reduce(primitive.cell.array, pbc=True)
    primitive.set_cell(reduced, scale_atoms=False)
    primitive.wrap()
    return primitive, given


def _along(primitive: Atoms, named: Any, miller: tuple[int, int, int]) -> Atoms:
    """The primitive crystal in the smallest cell with two vectors in the face, the face across z."""
    import numpy as np

    normal = np.linalg.inv(named) @ np.array(miller, dtype=float)
    indices = _whole(primitive.cell.array @ normal, miller)
    reach = 2 * int(np.abs(indices).max()) + 1
    whole = np.array(list(product(range(-reach, reach + 1), repeat=3)))
    across = whole[(whole @ indices == 0) & whole.any(axis=1)] @ primitive.cell.array
    across = across[np.argsort(np.linalg.norm(across, axis=1).round(6), kind="stable")]
    first = across[0]
    apart = np.linalg.norm(np.cross(first, across), axis=1) > 1e-6
    second = across[apart][0]
    if np.cross(first, second) @ normal < 0:
        second = -second
    up = whole[whole @ indices == 1] @ primitive.cell.array
    unit_normal = normal / np.linalg.norm(normal)
    sideways = np.linalg.norm(up - np.outer(up @ unit_normal, unit_normal), axis=1)
    third = up[int(np.argmin(sideways.round(6)))]
    x = first / np.linalg.norm(first)
    turn = np.array([x, np.cross(unit_normal, x), unit_normal]).T
    unit: Atoms = primitive.copy()
    unit.set_cell(np.array([first, second, third]) @ turn)
    unit.positions = primitive.positions @ turn
    unit.wrap()
    return unit


def _whole(indices: Any, miller: tuple[int, int, int]) -> Any:
    """The indices of a face in the primitive cell: whole numbers without a common divisor."""
    import numpy as np

    for factor in range(1, 13):
        rounded = np.round(indices * factor)
        if np.abs(rounded).any() and np.abs(indices * factor - rounded).max() < 1e-3:
            whole = rounded.astype(int)
            return whole // math.gcd(*map(int, whole))
    raise AppFailed(
        f"({' '.join(map(str, miller))}) is no lattice plane of the crystal: its primitive cell does not fit the "
        "one that the indices are of.",
        kind="contract",
        name="BadFace",
        repair="miller_of = conventional",
    )


def _planes(heights: Any, tolerance: float) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Atoms of each plane, the lowest first, and by how many units each is moved so that its plane is whole."""
    import numpy as np

    order = np.argsort(heights, kind="stable")
    steps = np.diff([*heights[order], heights[order[0]] + 1])
    # Begin above the widest gap, so that no plane goes through the border of the cell.
    start = (int(np.argmax(steps)) + 1) % len(order)
    turned = [*order[start:], *order[:start]]
    shifts = np.zeros(len(heights), dtype=int)
    shifts[order[:start]] = 1
    planes: list[list[int]] = [[int(turned[0])]]
    for before, atom in pairwise(turned):
        if heights[atom] + shifts[atom] - heights[before] - shifts[before] > tolerance:
            planes.append([])
        planes[-1].append(int(atom))
    return tuple(tuple(sorted(plane)) for plane in planes), tuple(int(s) for s in shifts)


def _cuts(unit: Atoms, planes: Any, heights: Any, shifts: Any) -> tuple[Cut, ...]:
    import numpy as np

    n = len(planes)
    places = [[heights[a] + shifts[a] for a in plane] for plane in planes]
    # Cut i is above plane i.
    above = np.array([(max(places[i]) + min(places[(i + 1) % n]) + (i + 1) // n) / 2 for i in range(n)])
    rotations, translations = operations(unit)
    same, turned = np.eye(n, dtype=bool), np.zeros((n, n), dtype=bool)
    for rotation, translation in zip(rotations, translations, strict=True):
        if rotation[2, 0] or rotation[2, 1]:
            continue
        apart = rotation[2, 2] * above[:, None] + translation[2] - above[None]
        maps = np.abs(apart - np.round(apart)) * unit.cell[2, 2] < 10 * SYMPREC
        if rotation[2, 2] > 0:
            same |= maps
        else:
            turned |= maps
    cuts: list[Cut] = []
    symbols = unit.get_chemical_symbols()
    for i in range(n):
        if any(i in cut.planes for cut in cuts):
            continue
        top, beneath = ([symbols[a] for a in planes[j]] for j in (i, (i - 1) % n))
        cuts.append(
            Cut(
                number=len(cuts),
                planes=tuple(int(j) for j in np.flatnonzero(same[i])),
                bottoms=tuple(int(j) for j in np.flatnonzero(turned[i])),
                top=formula(top),
                beneath=formula(beneath),
                polar=_polar(symbols, [heights[a] + shifts[a] - (1 if _over(a, planes, i) else 0)
                                       for a in range(len(symbols))], float(unit.cell[2, 2])),
            )
        )  # fmt: skip
    return tuple(cuts)


def _over(atom: int, planes: Any, cut: int) -> bool:
    """Whether an atom is in a plane above the cut, and so belongs to the unit beneath."""
    return any(atom in plane for plane in planes[cut + 1 :])


def _polar(symbols: list[str], heights: list[float], spacing: float) -> bool:
    """Whether some charges of the elements that add up to zero give a dipole: where their mean heights differ."""
    means = [
        sum(h for h, s in zip(heights, symbols, strict=True) if s == symbol) / symbols.count(symbol)
        for symbol in set(symbols)
    ]
    return bool((max(means) - min(means)) * spacing > 0.01)
