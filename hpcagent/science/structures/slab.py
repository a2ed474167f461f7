"""Surfaces: slabs of a crystal, and molecules put on them."""

from __future__ import annotations

import math
from typing import Any

from hpcagent.apps.decorator import app
from hpcagent.apps.packages import needs
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import read_structure, total_charge, write_structure
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Int, Text
from hpcagent.science.structures.binding import ATOM, binding_atom
from hpcagent.science.structures.crystal import SIZE, in_words, size

__all__ = ["FACETS", "SITES", "add_adsorbate", "add_to", "build_slab", "sites", "upright", "z_of_contact"]

FACETS = (
    "fcc111", "fcc100", "fcc110", "bcc110", "bcc100", "bcc111", "hcp0001", "hcp10m10", "diamond111", "diamond100",
)  # fmt: skip
"""As `ase.build` calls them."""
SITES = ("ontop", "bridge", "hollow", "fcc", "hcp")
TOO_CLOSE = 0.75
"""Two atoms closer than this share of the sum of their covalent radii lie in each other."""


@app(
    name="build_slab",
    version="1.0.0",
    parameters={
        "name": Text(default="Pt", description="element"),
        "facet": Choice(*FACETS, default="fcc111", description="lattice and face, as in ase.build"),
        "layers": Int(1, 200, default=4, description="atomic layers"),
        "nx": Int(1, 200, default=1, description="surface cells along x"),
        "ny": Int(1, 200, default=1, description="surface cells along y"),
        "root": Int(1, 400, default=1, description="turned cells sqrt(root) times as wide: 2 on fcc100 is c(2x2)"),
        "a": Float(0.0, 100.0, unit="angstrom", default=0.0, description="lattice constant; 0: ASE's"),
        "c_over_a": Float(0.0, 10.0, default=0.0, description="c/a of hcp; 0: ASE's"),
        "vacuum": Float(0.0, 500.0, unit="angstrom", default=8.0, description="empty space on each side"),
        "fixed_layers": Int(0, 200, default=0, description="layers at the bottom whose atoms do not move"),
    },
    metrics=SIZE
    | {
        "area": Metric(name="area", unit="angstrom^2", description="area of one surface"),
        "layer_spacing": Metric(
            name="layer_spacing", unit="angstrom", description="mean distance between layers", required=False
        ),
    },
    failure_modes=("BadLattice", "TooManyHeld", "NoEngine"),
    estimated_runtime_s=0.1,
)
def build_slab(
    name: str,
    facet: str,
    layers: int,
    nx: int,
    ny: int,
    root: int,
    a: float,
    c_over_a: float,
    vacuum: float,
    fixed_layers: int,
    run: Run,
) -> Outcome:
    """A slab of an element with empty space above and below; periodic along the surface.

    The atoms of the top layer have the tag 1, those beneath 2, and so on, as in ASE.

    Failures: `BadLattice` (an element that ASE knows no such lattice or lattice constant of).
    """
    needs("ase", "pip install 'hpcagent[ase]'")
    import ase.build
    from ase.constraints import FixAtoms

    given: dict[str, Any] = {"a": a} if a else {}
    if c_over_a and facet.startswith("hcp"):
        given["c"] = c_over_a * _constant(name, facet, a)
    make = getattr(ase.build, facet)
    try:
        atoms = make(name, size=(nx, ny, layers), vacuum=vacuum, **given)
    except (ValueError, KeyError, RuntimeError, TypeError, AssertionError) as error:
        raise _no_slab(name, facet, a, error) from None
    check_held(fixed_layers, layers)
    if root > 1:
        atoms = _turned(atoms, root, facet)
    if fixed_layers:
        held = [atom.index for atom in atoms if atom.tag > layers - fixed_layers]
        atoms.set_constraint(FixAtoms(indices=held))
    area = float(abs(atoms.cell[0, 0] * atoms.cell[1, 1] - atoms.cell[0, 1] * atoms.cell[1, 0]))
    metrics = size(atoms) | {"area": area}
    heights = [atoms.positions[atoms.get_tags() == tag, 2].mean() for tag in (1, layers)]
    if layers > 1:
        metrics["layer_spacing"] = float(heights[0] - heights[1]) / (layers - 1)
    return Outcome(metrics=metrics, artifacts=write_structure(run, atoms))


def check_held(held: int, layers: int) -> None:
    """Refuse to hold more layers than there are.

    Raises:
        AppFailed: `TooManyHeld`.
    """
    if held > layers:
        raise AppFailed(
            f"fixed_layers={held}, but the slab has {layers} layers: none would move.",
            kind="contract",
            name="TooManyHeld",
            repair="more layers, or fewer held ones",
        )


def _turned(slab: Any, root: int, facet: str) -> Any:
    """The slab in a cell sqrt(root) times as wide, as Wood's notation has it: c(2x2), (sqrt3 x sqrt3)R30."""
    import numpy as np
    from ase.build import make_supercell

    # Not ase.build.root_surface: it turns the layers against each other (it hands radians to Atoms.rotate, which
    # takes degrees), so that neighbours were up to 0.02 angstrom off.
    first, second = slab.cell[0, :2], slab.cell[1, :2]
    length = first @ first
    square, hexagonal = abs(first @ second) < 1e-6 * length, abs(first @ second - length / 2) < 1e-6 * length
    turned = [
        (p, q)
        for p in range(1, root + 1)
        for q in range(p + 1)
        if p * p + q * q + (p * q if hexagonal else 0) == root
    ]
    if abs(second @ second - length) > 1e-6 * length or not (square or hexagonal) or not turned:
        raise AppFailed(
            f"the cell of {facet} has no turned cell sqrt({root}) times as wide.",
            kind="contract",
            name="BadLattice",
            repair="root = p^2 + q^2 on a square cell (2, 4, 5), p^2 + p q + q^2 on a hexagonal one (3, 4, 7)",
        )
    p, q = turned[0]
    wide = make_supercell(slab, np.array([[p, q, 0], [-q, p + q if hexagonal else p, 0], [0, 0, 1]]))
    wide.rotate(wide.cell[0], "x", rotate_cell=True)
    wide.pbc = slab.pbc
    wide.wrap()
    return wide


def _constant(name: str, facet: str, a: float) -> float:
    from ase.data import atomic_numbers, reference_states

    if a:
        return a
    reference: dict[str, Any] = reference_states[atomic_numbers.get(name, 0)] or {}
    if "a" not in reference:
        raise _no_slab(name, facet, a, ValueError("ASE knows no lattice constant"))
    return float(reference["a"])


def _no_slab(name: str, facet: str, a: float, error: Exception) -> AppFailed:
    return AppFailed(
        f"no slab of name={name!r}, facet={facet}, a={a:g} angstrom: {in_words(error)}.",
        kind="contract",
        name="BadLattice",
        repair="give the lattice constant a; the facet of an element whose own lattice is another one needs it",
    )


@app(
    name="add_adsorbate",
    version="2.0.0",
    inputs=("slab", "adsorbate"),
    parameters={
        "site": Choice(*SITES, default="ontop", description="hollow: the widest; fcc, hcp: of three atoms"),
        "height": Float(
            0.0,
            20.0,
            unit="angstrom",
            default=0.0,
            description="of the binding atom above the top layer; 0: as covalent radii say",
        ),
        "atom": ATOM,
        "orient": Choice(
            "up", "as_given", default="up", description="up: the adsorbate's centre is put above the binding atom"
        ),
        "nth": Int(
            0, 10_000, default=0, description="which of the sites of this kind, 0 being next to the origin"
        ),
    },
    metrics=SIZE
    | {
        "height": Metric(name="height", unit="angstrom", description="of the binding atom above the top layer"),
        "closest_contact": Metric(
            name="closest_contact", unit="angstrom", description="shortest distance from adsorbate to slab"
        ),
        "n_sites": Metric(name="n_sites", unit="1", description="sites of this kind on the slab"),
    },
    failure_modes=("NoStructure", "NoSite", "NoSuchAtom", "Overlap", "MissingFile", "NoEngine"),
    estimated_runtime_s=0.2,
)
def add_adsorbate(site: str, height: float, atom: int, orient: str, nth: int, run: Run) -> Outcome:
    """Put an atom or a molecule on a site of a slab's upper surface, which lies across z.

    Sites follow from where the atoms of the top layer are (those of tag 1; without tags the highest ones): above
    an atom, between two nearest ones, and at the points as far as possible from them all (vertices of their
    Voronoi diagram). Of the latter `hcp` has an atom of the second layer beneath, `fcc` has none. Without a
    height the binding atom is as low as it can be without being closer to any atom of the slab than the sum of
    their covalent radii (B. Cordero et al., Dalton Trans. 2832, 2008); where other atoms of the adsorbate would
    then lie in the slab, it is higher, so that none is closer, and a note says so. The adsorbate's atoms have the
    tag 0 and no initial moments, the slab's keep theirs.

    Failures: `NoSite`, `NoSuchAtom`, `Overlap` (atoms closer than 0.75 times the sum of their covalent radii),
    `NoStructure`.
    """
    needs("ase", "pip install 'hpcagent[ase]'")

    slab, molecule = read_structure(run, 0), read_structure(run, 1)
    atom, notes = binding_atom(molecule, atom)
    if not slab.get_tags().any():
        slab.set_tags(_layers(slab))
    found = sites(slab, site)
    if nth >= len(found):
        raise AppFailed(
            f"the surface has {len(found)} sites of the kind {site!r}; nth={nth} is not among them.",
            kind="contract",
            name="NoSite",
            repair="another site or nth; fcc and hcp sites are those of close-packed surfaces",
        )
    upright(molecule, atom, orient)
    top = _top(slab)[:, 2].mean()
    above = height or _height(slab, molecule.numbers[atom], found[nth], top)
    if not height and (clear := _clear(slab, molecule, atom, found[nth], float(top), float(above))) > above:
        notes = (
            *notes,
            f"the binding atom {molecule.symbols[atom]} was put {clear:.2f} angstrom above the top layer, not "
            f"{above:.2f} as its covalent radius says: other atoms of the adsorbate would lie in the slab; "
            "another binding atom (atom) may be nearer to how it binds",
        )
        above = clear
    both, contact = add_to(slab, molecule, atom, (*found[nth], float(top + above)))
    metrics = {"height": float(above), "closest_contact": contact, "n_sites": float(len(found))}
    return Outcome(metrics=size(both) | metrics, artifacts=write_structure(run, both), notes=notes)


def upright(molecule: Any, atom: int, orient: str) -> None:
    """Turn a molecule so that its centre is above the atom that binds, if `orient` is `up`."""
    import numpy as np

    if orient == "up" and len(molecule) > 1:
        arm = molecule.get_center_of_mass() - molecule.positions[atom]
        if np.linalg.norm(arm) > 1e-6:
            molecule.rotate(arm, "z", center=molecule.positions[atom])


def add_to(slab: Any, molecule: Any, atom: int, place: tuple[float, float, float]) -> tuple[Any, float]:
    """Slab and molecule together, its binding atom at a place (angstrom), and the shortest distance between them.

    Raises:
        AppFailed: `Overlap`.
    """
    import numpy as np

    molecule.positions += np.array(place) - molecule.positions[atom]
    molecule.set_tags(0)
    # The moment it has as a gas is not the one it has on a surface, and would ask for spin.
    if "initial_magmoms" in molecule.arrays:
        del molecule.arrays["initial_magmoms"]
    contact = _contact(slab, molecule)
    both = slab.copy()
    both.extend(molecule)
    both.info = {**slab.info, **{k: v for k, v in molecule.info.items() if k not in slab.info}}
    charge = total_charge(slab) + total_charge(molecule)
    if charge:
        both.info["charge"] = charge
    return both, contact


def z_of_contact(slab: Any, number: int, place: tuple[float, float]) -> float:
    """Height in the cell, in angstrom, at which an atom above a place touches the slab by covalent radii."""
    if not slab.get_tags().any():
        slab.set_tags(_layers(slab))
    bottom = float(slab.positions[:, 2].min())
    return bottom + _height(slab, number, place, bottom)


def _layers(slab: Any) -> Any:
    """Number of each atom's layer, 1 being the highest: atoms within half an angstrom of the one above it."""
    import numpy as np

    order = np.argsort(-slab.positions[:, 2])
    steps = np.diff(slab.positions[order, 2]) < -0.5
    layers = np.empty(len(slab), dtype=int)
    layers[order] = 1 + np.concatenate([[0], np.cumsum(steps)])
    return layers


def _top(slab: Any, layer: int = 1) -> Any:
    return slab.positions[slab.get_tags() == layer]


def sites(slab: Any, kind: str) -> list[tuple[float, float]]:
    """The sites of a kind on a slab with tags: x and y in angstrom, the one next to the origin first.

    Raises:
        AppFailed: `NoSite`: the slab is not periodic along the surface, or has no top layer.
    """
    import numpy as np

    plane = slab.cell[:2, :2]
    top = _top(slab)
    if not len(top) or abs(np.linalg.det(plane)) < 1e-6 or np.abs(slab.cell[:2, 2]).max() > 1e-6:
        raise AppFailed(
            "no sites: the input is not a slab with its surface across z (cell vectors 1 and 2 in the xy plane, "
            "atoms of the top layer with tag 1, or no tags).",
            kind="contract",
            name="NoSite",
            repair="pass the slab first and the adsorbate second",
        )
    images = np.array([(i, j) for i in range(-3, 4) for j in range(-3, 4)]) @ plane
    points = (top[:, None, :2] + images[None]).reshape(-1, 2)
    if kind == "ontop":
        found = top[:, :2]
    elif kind == "bridge":
        found = _bridges(top[:, :2], points)
    else:
        found = _hollows(points, plane)
        if len(found) and kind != "hollow":
            beneath = (_top(slab, 2)[:, None, :2] + images[None]).reshape(-1, 2)
            covered = [len(beneath) > 0 and float(np.linalg.norm(beneath - p, axis=1).min()) < 0.5 for p in found]
            found = found[np.array(covered) == (kind == "hcp")]
    return _distinct(found, plane)


def _bridges(top: Any, points: Any) -> Any:
    import numpy as np

    distances = np.linalg.norm(points[None] - top[:, None], axis=2)
    nearest = distances[distances > 1e-3].min()
    one, other = np.nonzero((distances > 1e-3) & (distances < 1.05 * nearest))
    return (top[one] + points[other]) / 2


def _hollows(points: Any, plane: Any) -> Any:
    """Points as far as possible from all others: centres of the circles through three of them, the widest ones."""
    import numpy as np
    from scipy.spatial import Delaunay

    corners = points[Delaunay(points).simplices]
    one, two, three = (corners[:, i] for i in range(3))
    u, v = two - one, three - one
    twice = 2 * (u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0])
    uu, vv = (u**2).sum(axis=1), (v**2).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        x = (v[:, 1] * uu - u[:, 1] * vv) / twice
        y = (u[:, 0] * vv - v[:, 0] * uu) / twice
    centres, radii = one + np.column_stack([x, y]), np.hypot(x, y)
    # Only around the middle of the images: at their rim the triangles are those of a border that is none.
    inside = np.abs(centres @ np.linalg.inv(plane)).max(axis=1) < 1.5
    centres, radii = centres[inside], radii[inside]
    return centres[radii > radii.max() - 0.1]


def _distinct(found: Any, plane: Any) -> list[tuple[float, float]]:
    """Each site once, inside the cell."""
    import numpy as np

    kept: list[Any] = []
    for point in np.asarray(found).reshape(-1, 2) @ np.linalg.inv(plane):
        inside = point - np.floor(point + 1e-6)
        apart = [np.linalg.norm((d - np.round(d)) @ plane) for d in (inside - other for other in kept)]
        if not apart or min(apart) > 0.1:
            kept.append(inside)
    places = [tuple(map(float, point @ plane)) for point in kept]
    return sorted(((x, y) for x, y in places), key=lambda p: (round(math.hypot(*p), 3), round(p[0], 3)))


def _height(slab: Any, number: int, place: tuple[float, float], top: float) -> float:
    """How far above the top layer an atom at this place touches no atom of the slab; other adsorbates aside."""
    import numpy as np
    from ase.data import covalent_radii
    from ase.geometry import find_mic

    own = slab.get_tags() > 0
    positions, numbers = slab.positions[own], slab.numbers[own]
    away = positions[:, :2] - np.array(place)
    flat = np.column_stack([away, np.zeros(len(away))])
    lateral = find_mic(flat, slab.cell, [True, True, False])[1]
    reach = covalent_radii[numbers] + covalent_radii[number]
    over = lateral < reach
    heights = positions[over, 2] + np.sqrt(reach[over] ** 2 - lateral[over] ** 2) - top
    return float(max(heights.max(initial=0.0), 0.0))


def _clear(slab: Any, molecule: Any, atom: int, place: tuple[float, float], top: float, above: float) -> float:
    """The height of the binding atom: `above`, or more where other atoms of the molecule would lie in the slab."""
    import numpy as np
    from ase.data import covalent_radii
    from ase.geometry import get_distances

    away = molecule.positions - molecule.positions[atom]
    put = np.array([*place, top + above]) + away
    distances = get_distances(put, slab.positions, cell=slab.cell, pbc=slab.pbc)[1]
    least = covalent_radii[molecule.numbers][:, None] + covalent_radii[slab.numbers][None]
    if not (distances < TOO_CLOSE * least).any():
        return above
    heights = [
        _height(slab, number, (float(x), float(y)), top) - float(dz)
        for number, (x, y, _), dz in zip(molecule.numbers, put, away[:, 2], strict=True)
    ]
    return max(above, *heights)


def _contact(slab: Any, molecule: Any) -> float:
    import numpy as np
    from ase.data import covalent_radii
    from ase.geometry import get_distances

    distances = get_distances(molecule.positions, slab.positions, cell=slab.cell, pbc=slab.pbc)[1]
    least = covalent_radii[molecule.numbers][:, None] + covalent_radii[slab.numbers][None]
    i, j = np.unravel_index(np.argmin(distances / least), distances.shape)
    if distances[i, j] < TOO_CLOSE * least[i, j]:
        raise AppFailed(
            f"the adsorbate lies in the slab: {molecule.symbols[i]} (atom {i}) is {distances[i, j]:.2f} angstrom "
            f"from {slab.symbols[j]} (atom {j} of the slab), their covalent radii add up to {least[i, j]:.2f}.",
            kind="contract",
            name="Overlap",
            repair="a larger height, or another binding atom (atom); of add_adsorbate also orient = up",
        )
    return float(distances.min())
