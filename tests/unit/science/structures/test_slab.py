"""Slabs and what is put on them: distances from crystal geometry."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import pytest
from ase import Atoms
from ase.build import bulk, fcc111, fcc211, molecule
from ase.constraints import FixAtoms

from hpcagent.apps.structures import given, structure_of
from hpcagent.model.records import Result
from hpcagent.science.structures.slab import FACETS, add_adsorbate, build_slab

Build = Callable[..., Result]


def as_input(atoms: Atoms):
    return given(atoms).fields


def atoms_of(result: Result):
    assert result.ok, result.failure
    return structure_of(result.model_dump())


# Distance between lattice planes: a / sqrt(h^2 + k^2 + l^2), halved where another plane lies between.
@pytest.mark.parametrize(
    ("facet", "name", "a", "spacing", "area"),
    [
        ("fcc111", "Pt", 4.0, 4.0 / sqrt(3), 4.0**2 * sqrt(3) / 4),
        ("fcc100", "Pt", 4.0, 2.0, 8.0),
        ("fcc110", "Pt", 4.0, 4.0 / sqrt(8), 4.0**2 / sqrt(2)),
        ("bcc110", "Fe", 2.9, 2.9 / sqrt(2), 2.9**2 / sqrt(2)),
        ("bcc100", "Fe", 2.9, 2.9 / 2, 2.9**2),
        ("bcc111", "Fe", 2.9, 2.9 / sqrt(12), 2.9**2 * sqrt(3)),
        ("hcp0001", "Ti", 2.95, None, 2.95**2 * sqrt(3) / 2),
    ],
)
def test_layers_are_as_far_apart_as_lattice_planes(build: Build, facet, name, a, spacing, area):
    result = build(build_slab, name=name, facet=facet, a=a, layers=5, vacuum=6.0, nx=2)
    assert result["n_atoms"] == 10
    assert result["area"] == pytest.approx(2 * area)
    if spacing is not None:
        assert result["layer_spacing"] == pytest.approx(spacing, abs=1e-6)
        assert result["volume"] == pytest.approx(2 * area * (4 * spacing + 12.0), rel=1e-6)


@pytest.mark.parametrize("facet", FACETS)
def test_every_facet_is_built(build: Build, facet):
    name = {"fcc": "Cu", "bcc": "Fe", "hcp": "Mg", "dia": "Si"}[facet[:3]]
    assert build(build_slab, name=name, facet=facet, layers=4, ny=2).ok


def test_c_over_a_of_a_hexagonal_slab(build: Build):
    result = build(build_slab, name="Mg", facet="hcp0001", a=3.2, c_over_a=1.5, layers=3)
    assert result["layer_spacing"] == pytest.approx(3.2 * 1.5 / 2)


def test_the_layers_at_the_bottom_are_held(build: Build):
    slab = atoms_of(build(build_slab, name="Cu", nx=2, ny=2, layers=4, fixed_layers=2))
    (held,) = [c for c in slab.constraints if isinstance(c, FixAtoms)]
    assert len(held.index) == 8
    assert slab.positions[held.index, 2].max() < slab.positions[:, 2].mean()


@pytest.mark.parametrize("params", [{"name": "NaCl"}, {"name": "Xx"}, {"name": "Fe", "facet": "fcc111"}])
def test_a_slab_of_nothing_known_says_so(build: Build, params):
    failure = build(build_slab, **params).failure
    assert failure is not None
    assert (failure.name, failure.kind) == ("BadLattice", "contract")


# --- adsorbates

A = 3.92
NEAREST = A / sqrt(2)
# Distance from a site to the nearest atoms of the top layer, along the surface.
LATERAL = {"ontop": 0.0, "bridge": NEAREST / 2, "fcc": NEAREST / sqrt(3), "hcp": NEAREST / sqrt(3)}
NEIGHBOURS = {"ontop": 1, "bridge": 2, "fcc": 3, "hcp": 3}
SITES = {"ontop": 4, "bridge": 12, "fcc": 4, "hcp": 4}


@pytest.mark.parametrize("site", LATERAL)
@pytest.mark.parametrize("tagged", [True, False])
def test_an_atom_on_platinum_touches_its_neighbours(build: Build, site, tagged):
    slab = fcc111("Pt", size=(2, 2, 3), a=A, vacuum=8.0)
    if not tagged:  # a slab from a file knows nothing of its layers
        slab = Atoms(slab.symbols, positions=slab.positions, cell=slab.cell, pbc=slab.pbc)
    result = build(add_adsorbate, as_input(slab), as_input(Atoms("O")), site=site)
    # Covalent radii of Pt and O (Cordero 2008): 1.36 and 0.66 angstrom.
    assert result["closest_contact"] == pytest.approx(2.02, abs=1e-3)
    assert result["height"] == pytest.approx(sqrt(2.02**2 - LATERAL[site] ** 2), abs=1e-3)
    assert result["n_sites"] == SITES[site]
    both = atoms_of(result)
    distances = both.get_distances(12, list(range(12)), mic=True)
    assert (distances < 2.03).sum() == NEIGHBOURS[site]
    second = [i for i in range(12) if both.get_tags()[i] == 2]
    aside = [abs(both.get_distance(12, i, mic=True, vector=True)[:2]).max() for i in second]
    assert len(second) == 4
    assert (min(aside) < 0.01) == (site == "hcp")


def test_the_hollow_of_a_square_face_has_four_neighbours(build: Build):
    slab = build(build_slab, name="Cu", facet="fcc100", nx=2, ny=2, layers=3)
    result = build(add_adsorbate, slab, as_input(Atoms("O")), site="hollow", height=1.0)
    both = atoms_of(result)
    distances = both.get_distances(len(both) - 1, list(range(len(both) - 1)), mic=True)
    assert sorted(distances)[:4] == pytest.approx([sqrt(1 + 3.61**2 / 4)] * 4, abs=1e-3)


def test_carbon_monoxide_stands_upright_on_its_carbon(build: Build):
    slab = build(build_slab, name="Pt", nx=2, ny=2)
    co = molecule("CO")
    carbon = list(co.symbols).index("C")
    co.rotate(77, "x")
    co.set_tags(7)  # of wherever it comes from
    both = atoms_of(build(add_adsorbate, slab, as_input(co), atom=carbon, site="ontop"))
    c, o = len(both) - 2 + carbon, len(both) - 1 - carbon
    assert both.symbols[c] == "C"
    arm = both.positions[o] - both.positions[c]
    assert arm == pytest.approx([0, 0, 1.15], abs=0.01)
    # The held layers and the layers' tags outlive the way through files.
    assert both.get_tags()[c] == 0
    assert both.get_tags().max() == 4


def test_a_second_adsorbate_takes_another_site(build: Build):
    slab = build(build_slab, name="Pt", nx=3, ny=3)
    one = build(add_adsorbate, slab, as_input(Atoms("H")), site="fcc")
    two = build(add_adsorbate, one, as_input(Atoms("H")), site="fcc", nth=1)
    assert two["n_sites"] == one["n_sites"] == 9
    both = atoms_of(two)
    assert both.get_distance(36, 37, mic=True) == pytest.approx(A / sqrt(2), abs=0.01)
    same = build(add_adsorbate, one, as_input(Atoms("H")), site="fcc", nth=0)
    assert same.failure is not None
    assert same.failure.name == "Overlap"


def test_a_molecule_of_which_other_atoms_would_lie_in_the_slab_is_put_higher(build):
    slab = build(build_slab, name="Cu", layers=3)
    carbon = build(add_adsorbate, slab, as_input(molecule("CO2")))
    assert carbon.failure is None
    assert any("other atoms of the adsorbate would lie in the slab" in note for note in carbon.notes)
    # Its lower oxygen touches the slab: 0.66 + 1.32 angstrom above the copper atom, the carbon 1.18 higher.
    assert carbon["closest_contact"] == pytest.approx(1.98, abs=0.01)
    assert carbon["height"] == pytest.approx(1.98 + 1.18, abs=0.02)
    low = build(add_adsorbate, slab, as_input(molecule("CO2")), height=1.9)
    assert low.failure is not None and low.failure.name == "Overlap" and "height" in (low.failure.repair or "")


@pytest.mark.parametrize(
    ("slab", "params", "name"),
    [
        (fcc111("Pt", size=(2, 2, 3), vacuum=8.0), {"site": "ontop", "height": 0.5}, "Overlap"),
        (fcc111("Pt", size=(2, 2, 3), vacuum=8.0), {"atom": 1}, "NoSuchAtom"),
        (fcc111("Pt", size=(2, 2, 3), vacuum=8.0), {"nth": 4}, "NoSite"),
        (bulk("Pt"), {}, "NoSite"),
        (molecule("H2O"), {}, "NoSite"),
    ],
)
def test_what_cannot_be_put_on_says_so(build: Build, slab, params, name):
    failure = build(add_adsorbate, as_input(slab), as_input(Atoms("O")), **params).failure
    assert failure is not None
    assert (failure.name, failure.kind) == (name, "contract")


def test_a_stepped_surface_has_sites_too(build: Build):
    slab = fcc211("Pt", size=(3, 2, 2), vacuum=8.0)
    assert build(add_adsorbate, as_input(slab), as_input(Atoms("O")), site="ontop").ok
