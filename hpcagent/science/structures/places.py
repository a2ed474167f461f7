"""Where something can sit on a surface: above an atom, between two, in a hollow of three or more.

These are the places where the distance to the nearest atom of the surface, seen from above, is smallest, has a
saddle, and is largest: atoms, midpoints of edges of the Gabriel graph (K. R. Gabriel, R. R. Sokal, Syst. Zool. 18,
259 (1969)), and corners of the Voronoi diagram that lie inside of the atoms around them. So none is missing:
on a periodic surface there are as many bridges as atoms and hollows together (Euler's formula for the torus), but
for those nearer to each other than 0.1 angstrom, which count as one.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from hpcagent.errors import AppFailed
from hpcagent.science.structures.oriented import operations

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["KINDS", "Place", "places"]

KINDS = ("top", "bridge", "fcc", "hcp", "hollow")
"""fcc and hcp: hollows of three atoms equally far apart, without and with an atom right beneath."""

_SAME = 0.05  # angstrom
_BENEATH = 0.5  # angstrom sideways


@dataclass(frozen=True)
class Place:
    """A site, and those that the slab's symmetry maps on it.

    Attributes:
        kind: One of `KINDS`.
        atoms: Indices of the surface atoms that make it.
        elements: Theirs, in alphabetical order.
        over: Element right beneath a hollow; empty: none.
        position: x, y and the mean height of its atoms, in angstrom.
        alike: How many such sites the cell has.
        others: Positions of all of them, this one first, in angstrom.
    """

    kind: str
    atoms: tuple[int, ...]
    elements: tuple[str, ...]
    over: str
    position: tuple[float, float, float]
    alike: int
    others: tuple[tuple[float, float, float], ...]

    @property
    def name(self) -> str:
        """`bridge Au-Cu`, `hollow4 Mg-Mg-O-O over Mg`."""
        kind = f"hollow{len(self.atoms)}" if self.kind == "hollow" else self.kind
        return f"{kind} {'-'.join(self.elements)}{f' over {self.over}' if self.over else ''}"


def places(slab: Atoms, depth: float = 1.0) -> tuple[Place, ...]:
    """The distinct sites of a slab's upper surface: tops, bridges, hollows.

    Args:
        slab: With its surface across z and three cell vectors. Atoms with the tag 0 beside others are adsorbates
            and left out.
        depth: Atoms at most so far below the highest are the surface's, in angstrom.

    Raises:
        AppFailed: `NoSite`: no slab; `NoSymmetry`, `NoEngine`.

    Example:
        >>> from ase.build import fcc111
        >>> [place.name for place in places(fcc111("Cu", (1, 1, 4), vacuum=6.0))]
        ['top Cu', 'bridge Cu-Cu', 'fcc Cu-Cu-Cu', 'hcp Cu-Cu-Cu over Cu']
    """
    import numpy as np

    if slab.cell.rank < 3 or np.abs(slab.cell.array[:2, 2]).max() > 1e-6 or not slab.pbc[:2].all():
        raise AppFailed(
            "no sites: the input is not a slab with its surface across z (periodic along cell vectors 1 and 2 in "
            "the xy plane, and a third vector).",
            kind="contract",
            name="NoSite",
            repair="a slab of cut_slab or build_slab",
        )
    slab = _upright(slab)
    bare = slab[slab.get_tags() > 0] if slab.get_tags().any() else slab
    index = np.flatnonzero(slab.get_tags() > 0) if slab.get_tags().any() else np.arange(len(slab))
    surface = np.flatnonzero(bare.positions[:, 2] > bare.positions[:, 2].max() - depth)
    found = _inside(_critical(bare, surface), bare.cell.array)
    groups = _alike([position for position, _ in found], slab)
    made = [_place([found[i] for i in group], bare, index) for group in groups]
    return tuple(sorted(made, key=lambda p: (KINDS.index(p.kind), len(p.atoms), p.elements, p.over, p.position)))


def _upright(slab: Atoms) -> Atoms:
    """The same slab in the surface's own cell: its two shortest vectors, and a third one across the surface.

    So sites do not depend on the vectors that were chosen; a third one that is tilted breaks no symmetry.
    """
    import numpy as np
    from ase.geometry import minkowski_reduce

    cell = slab.cell.array
    short = minkowski_reduce(np.vstack([cell[:2], [0, 0, 1.0]]), pbc=(True, True, False))[0][:2]
    same = np.linalg.norm(cell[:2], axis=1).max() < np.linalg.norm(short, axis=1).max() + 1e-6
    plane = cell[:2] if same else short
    upright: Atoms = slab.copy()
    upright.set_cell(np.vstack([plane, [0, 0, cell[2, 2]]]))
    if not same or np.abs(cell[2, :2]).max() > 1e-6:
        upright.wrap(pbc=(True, True, False), eps=1e-6)
    return upright


def _critical(slab: Atoms, surface: Any) -> list[tuple[Any, tuple[int, ...]]]:
    """(position, indices of its atoms) of tops, bridges and hollows in and around the cell."""
    import numpy as np
    from ase.geometry import minkowski_reduce
    from scipy.spatial import Delaunay, cKDTree

    short = minkowski_reduce(slab.cell.array, pbc=(True, True, False))[0][:2]
    # Half of the sum of both vectors is as far as a point can be from an atom.
    across = float(np.linalg.norm(short[:, :2], axis=1).sum())
    heights = 1 / np.linalg.norm(np.linalg.inv(short[:, :2]), axis=0)
    most = [int(np.ceil(2.1 * across / height)) + 1 for height in heights]
    steps = product(range(-most[0], most[0] + 1), range(-most[1], most[1] + 1))
    images = np.array([(i, j, 0) for i, j in steps]) @ np.vstack([short, [0, 0, 0]])
    points = (slab.positions[surface][:, None] + images[None]).reshape(-1, 3)
    owner = np.repeat(surface, len(images))
    flat, near = points[:, :2], cKDTree(points[:, :2])
    # Beyond this the triangles are those of a border that is none.
    middle = slab.positions[surface, :2].mean(axis=0)
    simplices = Delaunay(flat).simplices
    corners = flat[simplices]
    simplices = simplices[np.linalg.norm(corners.mean(axis=1) - middle, axis=1) < 1.1 * across]
    found: list[tuple[Any, tuple[int, ...]]] = [(slab.positions[i], (int(i),)) for i in surface]
    edges = {tuple(sorted((int(s[i]), int(s[i - 1])))) for s in simplices for i in range(3)}
    for one, other in sorted(edges):
        centre, half = (flat[one] + flat[other]) / 2, float(np.linalg.norm(flat[one] - flat[other])) / 2
        if len(near.query_ball_point(centre, half + _SAME)) == 2:
            found.append(((points[one] + points[other]) / 2, (int(owner[one]), int(owner[other]))))
    seen: set[tuple[int, ...]] = set()
    for simplex in simplices:
        centre, radius = _circle(flat[simplex])
        if not math.isfinite(radius):
            continue
        around = tuple(sorted(near.query_ball_point(centre, radius + _SAME)))
        if around in seen:
            continue
        seen.add(around)
        angles = np.sort(np.arctan2(*(flat[list(around)] - centre).T[::-1]))
        if np.diff([*angles, angles[0] + 2 * math.pi]).max() < math.pi - 0.02:
            found.append(
                (np.array([*centre, points[list(around), 2].mean()]), tuple(int(owner[i]) for i in around))
            )
    return found


def _circle(corners: Any) -> tuple[Any, float]:
    """Centre and radius of the circle through three points; the radius of a line is infinite."""
    import numpy as np

    one, u, v = corners[0], corners[1] - corners[0], corners[2] - corners[0]
    twice = 2 * (u[0] * v[1] - u[1] * v[0])
    if abs(twice) < 1e-6:
        return one, math.inf
    offset = np.array([v[1] * (u @ u) - u[1] * (v @ v), u[0] * (v @ v) - v[0] * (u @ u)]) / twice
    return one + offset, float(np.linalg.norm(offset))


def _inside(found: list[tuple[Any, tuple[int, ...]]], cell: Any) -> list[tuple[Any, tuple[int, ...]]]:
    """Each once, in the cell."""
    import numpy as np

    plane = cell[:2, :2]
    back = np.linalg.inv(plane)
    kept: list[tuple[Any, tuple[int, ...]]] = []
    for position, atoms in found:
        scaled = position[:2] @ back
        scaled -= np.floor(scaled + 1e-4)
        apart = [scaled - other[:2] @ back for other, _ in kept]
        if all(np.linalg.norm((d - np.round(d)) @ plane) > 2 * _SAME for d in apart):
            kept.append((np.array([*(scaled @ plane), position[2]]), atoms))
    return kept


def _alike(positions: list[Any], slab: Atoms) -> list[list[int]]:
    """Indices of positions that operations of the slab which keep its upper side map on each other."""
    import numpy as np

    marks = np.column_stack([slab.numbers, np.round(100 * slab.get_initial_magnetic_moments()).astype(int)])
    kinds = np.unique(marks, axis=0, return_inverse=True)[1].reshape(-1)
    rotations, translations = operations(slab, kinds=kinds + 1)
    cell = slab.cell.array
    scaled = np.linalg.solve(cell.T, np.array(positions).T).T
    alike = np.eye(len(scaled), dtype=bool)
    for rotation, translation in zip(rotations, translations, strict=True):
        if rotation[2, 2] < 0:
            continue
        apart = (scaled @ rotation.T + translation)[:, None] - scaled[None]
        apart[..., :2] -= np.round(apart[..., :2])
        alike |= np.linalg.norm(apart @ cell, axis=2) < 2 * _SAME
    groups: list[list[int]] = []
    for i, row in enumerate(alike):
        if not any(i in group for group in groups):
            groups.append([int(j) for j in np.flatnonzero(row)])
    return groups


def _place(group: list[tuple[Any, tuple[int, ...]]], slab: Atoms, index: Any) -> Place:
    positions = sorted(
        (tuple(map(float, position)) for position, _ in group), key=lambda p: (round(math.hypot(*p[:2]), 3), p)
    )
    atoms = next(a for p, a in group if tuple(map(float, p)) == positions[0])
    over, depth = _beneath(slab, positions[0], atoms) if len(atoms) > 2 else ("", math.inf)
    kind = {1: "top", 2: "bridge"}.get(len(atoms), "hollow")
    side = _side(slab, positions[0], atoms)
    if len(atoms) == 3 and side:
        # Close-packed layers are 0.82 sides apart, two of them 1.63.
        kind = "hcp" if depth < 1.2 * side else "fcc"
        over = over if kind == "hcp" else ""
    symbols = [slab.symbols[i] for i in atoms]
    placed = tuple((x, y, z) for x, y, z in positions)
    own = tuple(int(index[i]) for i in atoms)
    return Place(kind, own, tuple(sorted(symbols)), over, placed[0], len(group), placed)


def _beneath(slab: Atoms, position: Any, atoms: tuple[int, ...]) -> tuple[str, float]:
    """The highest atom right beneath a position, and how far below it is."""
    import numpy as np
    from ase.geometry import find_mic

    away = slab.positions - np.array(position)
    below = -away[:, 2]
    away[:, 2] = 0
    sideways = find_mic(away, slab.cell, [True, True, False])[1]
    right = np.flatnonzero((sideways < _BENEATH) & (below > _BENEATH))
    if not len(right):
        return "", math.inf
    first = right[np.argmin(below[right])]
    return str(slab.symbols[first]), float(below[first])


def _side(slab: Atoms, position: Any, atoms: tuple[int, ...]) -> float:
    """Side of the triangle of three atoms around a position, if its sides are equal; else 0."""
    import numpy as np

    if len(atoms) != 3:
        return 0.0
    # An atom may be there three times, in neighbouring cells: the nearest three images.
    images = np.array([(i, j, 0) for i in range(-2, 3) for j in range(-2, 3)]) @ slab.cell.array
    around = np.array([slab.positions[i] + image for i in Counter(atoms) for image in images])
    around = around[np.argsort(np.linalg.norm((around - np.array(position))[:, :2], axis=1))[:3]]
    sides = [np.linalg.norm((around[i] - around[i - 1])[:2]) for i in range(3)]
    return float(np.mean(sides)) if max(sides) < 1.05 * min(sides) else 0.0
