"""Faces of crystals: terminations and sites against what crystallography says of them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc100, fcc110, fcc111, molecule
from ase.calculators.emt import EMT
from ase.spacegroup import crystal

from hpcagent.apps.structures import given, structure_of
from hpcagent.model.records import Result
from hpcagent.science.structures.cut import cut_slab
from hpcagent.science.structures.places import places
from hpcagent.science.structures.sites import adsorption_sites, place_adsorbate

pytest.importorskip("spglib")

Build = Callable[..., Result]
A = 3.75
CU3AU = Atoms(
    "AuCu3", scaled_positions=[(0, 0, 0), (0.5, 0.5, 0), (0.5, 0, 0.5), (0, 0.5, 0.5)], cell=[A] * 3, pbc=True
)
NIAL = bulk("NiAl", "cesiumchloride", a=2.88)
MGO = bulk("MgO", "rocksalt", a=4.21)
GAAS = bulk("GaAs", "zincblende", a=5.65)
TIO2 = crystal(["Ti", "O"], [(0, 0, 0), (0.305, 0.305, 0)], spacegroup=136, cellpar=[4.59, 4.59, 2.96, 90, 90, 90])


def as_input(atoms: Atoms):
    return given(atoms).fields


def atoms_of(result: Result) -> Atoms:
    assert result.ok, result.failure
    return structure_of(result.model_dump())


def cut(build: Build, crystal_: Atoms, miller: str, **params) -> Result:
    h, k, l = (int(digit) for digit in miller)  # noqa: E741
    result = build(cut_slab, as_input(crystal_), h=h, k=k, l=l, **params)
    assert result.ok, result.failure
    return result


def table(result: Result, name: str) -> list[dict[str, str]]:
    with (Path(result.workdir) / name).open() as file:
        return list(csv.DictReader(file))


# Face -> area of its cell, and the upper planes of its terminations.
FACES = [
    (bulk("Cu", a=3.6), "111", 3.6**2 * sqrt(3) / 4, ["Cu"]),
    (bulk("Cu", a=3.6, cubic=True), "110", 3.6**2 / sqrt(2), ["Cu"]),
    (CU3AU, "111", A**2 * sqrt(3), ["AuCu3"]),
    (CU3AU, "100", A**2, ["AuCu", "Cu2"]),
    (NIAL, "110", 2.88**2 * sqrt(2), ["AlNi"]),
    (NIAL, "100", 2.88**2, ["Al", "Ni"]),
    (MGO, "100", 4.21**2 / 2, ["MgO"]),
    (MGO, "111", 4.21**2 * sqrt(3) / 4, ["Mg", "O"]),
    (GAAS, "110", 5.65**2 / sqrt(2), ["AsGa"]),
    (GAAS, "111", 5.65**2 * sqrt(3) / 4, ["As", "Ga"]),
    # Planes that a screw axis maps on each other are one surface: two of hcp, six of rutile (100).
    (bulk("Mg", a=3.21, c=5.21), "001", 3.21**2 * sqrt(3) / 2, ["Mg"]),
    (TIO2, "100", 4.59 * 2.96, ["O", "O", "Ti"]),
    # Rutile (110): bridging oxygen, bare Ti2O2, and two rows of oxygen.
    (TIO2, "110", 4.59 * sqrt(2) * 2.96, ["O", "O", "O2Ti2"]),
]


@pytest.mark.parametrize(("crystal_", "miller", "area", "tops"), FACES)
def test_a_face_has_its_area_and_its_terminations(build: Build, crystal_, miller, area, tops):
    result = cut(build, crystal_, miller)
    assert result["area"] == pytest.approx(area, rel=1e-6)
    assert result["n_terminations"] == len(tops)
    rows = table(result, "terminations.csv")
    assert sorted(row["top"] for row in rows) == tops


@pytest.mark.parametrize(
    ("crystal_", "miller", "polar", "alike"),
    # Tasker's types one, two and three; zincblende (111) has two faces, (110) none that is polar.
    [
        (MGO, "100", [0], [1]),
        (TIO2, "110", [0, 1, 1], [1, 1, 1]),
        (MGO, "111", [1, 1], [1, 1]),
        (GAAS, "111", [1, 1], [0, 0]),
        (GAAS, "110", [0], [1]),
        (bulk("Cu"), "111", [0], [1]),
    ],
)
def test_it_says_what_is_polar_and_what_can_be_on_both_sides(build: Build, crystal_, miller, polar, alike):
    result = cut(build, crystal_, miller)
    rows = table(result, "terminations.csv")
    assert sorted(int(row["polar"]) for row in rows) == polar
    assert [int(row["two_sides_alike"]) for row in rows] == alike
    whole = cut(build, crystal_, miller, symmetric="no", termination=0)
    assert whole["stoichiometric"] == 1
    assert whole["polar"] == int(rows[0]["polar"])


def test_a_slab_with_two_like_sides_may_have_another_composition(build: Build):
    slab = cut(build, MGO, "111", symmetric="yes", layers=5)
    assert (slab["symmetric"], slab["stoichiometric"], slab["polar"], slab["n_layers"]) == (1, 0, 0, 5)
    assert Counter(atoms_of(slab).get_chemical_symbols()) == {"Mg": 3, "O": 2}
    failure = build(cut_slab, as_input(GAAS), symmetric="yes").failure
    assert failure is not None and failure.name == "NotSymmetric" and "both sides" in failure.message


@pytest.mark.parametrize("of", ["conventional", "input"])
@pytest.mark.parametrize(("miller", "made"), [("111", fcc111), ("100", fcc100), ("110", fcc110)])
def test_slabs_of_an_element_are_those_of_ase(build: Build, miller, made, of):
    whole = bulk("Cu", a=3.6, cubic=True)
    whole.rotate(37, (1, 2, 3), rotate_cell=True)
    ours = atoms_of(cut(build, whole, miller, layers=5, nx=2, ny=2, vacuum=7.0, miller_of=of))
    theirs = made("Cu", (2, 2, 5), a=3.6, vacuum=7.0)
    for atoms in (ours, theirs):
        atoms.calc = EMT()
    assert ours.get_potential_energy() == pytest.approx(theirs.get_potential_energy(), abs=1e-6)
    assert Counter(ours.get_tags().tolist()) == dict.fromkeys(range(1, 6), 4)
    assert np.ptp(ours.positions[:, 2]) == pytest.approx(np.ptp(theirs.positions[:, 2]))


def test_an_alloy_keeps_its_bonds_and_its_held_planes(build: Build):
    slab = atoms_of(cut(build, CU3AU, "211", layers=6, nx=2, ny=2, fixed_layers=2))
    distances = slab.get_all_distances(mic=True)
    assert distances[distances > 0].min() == pytest.approx(A / sqrt(2))
    gold = [i for i in range(len(slab)) if slab.symbols[i] == "Au"]
    apart = distances[np.ix_(gold, gold)]
    assert apart[apart > 0].min() == pytest.approx(A)  # L1_2: no two gold atoms are neighbours
    (held,) = slab.constraints
    assert {int(tag) for tag in slab.get_tags()[held.index]} == {5, 6}


@pytest.mark.parametrize(
    ("params", "name"),
    [({"h": 0, "k": 0, "l": 0}, "BadFace"), ({"termination": 1}, "NoTermination")],
)
def test_a_face_that_is_none_is_refused(build: Build, params, name):
    failure = build(cut_slab, as_input(bulk("Cu")), **params).failure
    assert failure is not None and failure.name == name


def test_a_molecule_has_no_face(build: Build):
    failure = build(cut_slab, as_input(molecule("CO"))).failure
    assert failure is not None and failure.name == "NoCell"


# --- sites


def test_a_close_packed_face_has_nine_tops_27_bridges_and_18_hollows():
    found = places(fcc111("Cu", (3, 3, 4), vacuum=6.0))
    assert [(p.kind, p.alike) for p in found] == [("top", 9), ("bridge", 27), ("fcc", 9), ("hcp", 9)]


@pytest.mark.parametrize(
    ("crystal_", "miller", "names"),
    [
        (bulk("Cu"), "100", ["bridge Cu-Cu", "hollow4 Cu-Cu-Cu-Cu over Cu", "top Cu"]),
        (bulk("Cu"), "110", ["bridge Cu-Cu", "bridge Cu-Cu", "hollow4 Cu-Cu-Cu-Cu over Cu", "top Cu"]),
        (
            CU3AU,
            "111",
            [
                "bridge Au-Cu", "bridge Cu-Cu", "bridge Cu-Cu", "fcc Au-Cu-Cu", "fcc Cu-Cu-Cu",
                "hcp Au-Cu-Cu over Cu", "hcp Cu-Cu-Cu over Au", "top Au", "top Cu",
            ],
        ),
        (MGO, "100", ["bridge Mg-O", "hollow4 Mg-Mg-O-O", "top Mg", "top O"]),
        (NIAL, "110", ["bridge Al-Al", "bridge Al-Ni", "bridge Ni-Ni", "hollow3 Al-Al-Ni", "hollow3 Al-Ni-Ni",
                       "top Al", "top Ni"]),
    ],
)  # fmt: skip
def test_all_sites_of_a_face_are_there_once(build: Build, crystal_, miller, names):
    slab = atoms_of(cut(build, crystal_, miller, layers=6))
    found = places(slab)
    assert sorted(p.name for p in found) == names
    # Euler's formula for a torus: no site is missing.
    count = Counter()
    for place in found:
        count[{"top": "top", "bridge": "bridge"}.get(place.kind, "hollow")] += place.alike
    assert count["top"] - count["bridge"] + count["hollow"] == 0
    # A larger cell has as many distinct ones.
    wide = places(slab * (2, 2, 1))
    assert sorted(p.name for p in wide) == names


def test_an_atom_is_put_on_a_site_by_its_number(build: Build):
    slab = cut(build, CU3AU, "111", nx=2, ny=2)
    listed = build(adsorption_sites, slab)
    assert (listed["n_sites"], listed["n_top"], listed["n_bridge"], listed["n_fcc"], listed["n_hcp"]) == (
        9,
        2,
        3,
        2,
        2,
    )
    rows = table(listed, "sites.csv")
    for row in rows[::2]:
        both = atoms_of(build(place_adsorbate, slab, as_input(Atoms("O")), site=int(row["site"])))
        distances = both.get_distances(-1, list(range(len(both) - 1)), mic=True)
        radii = {"Cu": 1.32, "Au": 1.36}  # Cordero et al. 2008; O: 0.66
        touching = [i for i, d in enumerate(distances) if d < radii[both.symbols[i]] + 0.66 + 0.1]
        assert sorted(touching) == sorted(set(map(int, row["atoms"].split()))), row["name"]
    assert not any("count as one" in note for note in listed.notes)
    failure = build(place_adsorbate, slab, as_input(Atoms("O")), site=9).failure
    assert failure is not None and failure.name == "NoSite" and "bridge Au-Cu" in failure.message


def test_an_adsorbate_is_no_part_of_the_surface(build: Build):
    slab = cut(build, bulk("Cu"), "111", nx=2, ny=2)
    covered = atoms_of(build(place_adsorbate, slab, as_input(Atoms("O")), site=0))
    sites = places(covered)
    assert sum(p.alike for p in sites if p.kind == "top") == 4
    assert len([p for p in sites if p.kind == "top"]) > 1  # beneath the oxygen, and not


@pytest.mark.parametrize("shear", [(0, 0.37, 0.21), (3, 0, 0), (-5, 0.2, 0.0)])
def test_sites_do_not_depend_on_the_vectors_of_the_cell(shear):
    plain, sheared = fcc111("Cu", (1, 1, 4), vacuum=6.0), fcc111("Cu", (1, 1, 4), vacuum=6.0)
    cell = sheared.cell.array.copy()
    turns, along, across = shear
    cell[2] += along * cell[0] + across * cell[1]
    cell[1] += turns * cell[0]
    sheared.set_cell(cell)
    wanted = [("top Cu", 1), ("bridge Cu-Cu", 3), ("fcc Cu-Cu-Cu", 1), ("hcp Cu-Cu-Cu over Cu", 1)]
    for slab in (plain, sheared):
        assert [(place.name, place.alike) for place in places(slab)] == wanted
