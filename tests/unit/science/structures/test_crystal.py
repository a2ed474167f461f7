"""Crystals: densities from handbooks, strains by hand, and what cannot be built."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hpcagent.apps.structures import structure_of
from hpcagent.model.records import Result
from hpcagent.science.structures.crystal import build_crystal

Build = Callable[..., Result]


def atoms_of(result: Result):
    assert result.ok, result.failure
    return structure_of(result.model_dump())


# Densities at room temperature (CRC Handbook of Chemistry and Physics); ASE's lattice constants are of 300 K too.
@pytest.mark.parametrize(
    ("params", "n_atoms", "density"),
    [
        ({"name": "Cu"}, 4, 8.96),
        ({"name": "Ta"}, 2, 16.4),
        ({"name": "Ti"}, 2, 4.506),
        ({"name": "Si"}, 8, 2.329),
        ({"name": "NaCl", "lattice": "rocksalt", "a": 5.64}, 8, 2.17),
        ({"name": "CsCl", "lattice": "cesiumchloride", "a": 4.123}, 2, 3.988),
        ({"name": "GaAs", "lattice": "zincblende", "a": 5.6533}, 8, 5.3176),
        ({"name": "CaF2", "lattice": "fluorite", "a": 5.463}, 12, 3.18),
    ],
)
def test_a_crystal_has_the_density_of_the_handbook(build: Build, params, n_atoms, density):
    result = build(build_crystal, **params)
    assert result["n_atoms"] == n_atoms
    assert result["density"] == pytest.approx(density, rel=0.02)
    assert result["volume_ratio"] == 1.0


def test_copper_of_another_lattice_constant_by_hand(build: Build):
    # 4 x 63.546 u in (3.6 angstrom)^3.
    result = build(build_crystal, name="Cu", a=3.6, nx=2, ny=3, nz=1)
    assert result["n_atoms"] == 24
    assert result["density"] == pytest.approx(4 * 63.546 * 1.66053907 / 3.6**3)


def test_the_primitive_cell_has_the_same_density(build: Build):
    one, four = (build(build_crystal, name="Cu", cubic=c) for c in ("no", "yes"))
    assert (one["n_atoms"], four["n_atoms"]) == (1, 4)
    assert one["density"] == pytest.approx(four["density"])


def test_hcp_takes_its_c_over_a(build: Build):
    cell = atoms_of(build(build_crystal, name="Mg", lattice="hcp", a=3.2, c_over_a=1.6)).cell
    assert cell.lengths()[2] / cell.lengths()[0] == pytest.approx(1.6)


def test_isotropic_strain_scales_cell_and_atoms(build: Build):
    plain, strained = (atoms_of(build(build_crystal, name="Cu", strain=s)) for s in (0.0, 0.02))
    assert strained.cell.lengths() == pytest.approx(1.02 * plain.cell.lengths())
    assert strained.get_scaled_positions() == pytest.approx(plain.get_scaled_positions(), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "at", "of_tensor"),
    [
        ("e1", (0, 0), 1),
        ("e2", (1, 1), 1),
        ("e3", (2, 2), 1),
        ("e4", (1, 2), 2),
        ("e5", (0, 2), 2),
        ("e6", (0, 1), 2),
    ],
)
def test_a_voigt_strain_is_that_component_of_the_green_tensor(build: Build, name, at, of_tensor):
    # Lagrangian strain (F^T F - 1) / 2 of the cell, to first order in 1e-4.
    plain, strained = (atoms_of(build(build_crystal, name="Cu", **{name: e})).cell[:] for e in (0.0, 1e-4))
    deformation = np.linalg.solve(plain, strained).T
    green = (deformation.T @ deformation - np.eye(3)) / 2
    expected = np.zeros((3, 3))
    expected[at] = expected[at[::-1]] = 1e-4 / of_tensor
    assert green == pytest.approx(expected, abs=2e-8)


def test_rattling_and_vacancies_follow_the_seed(build: Build):
    how = {"name": "Cu", "nx": 5, "ny": 5, "nz": 5, "rattle": 0.05, "vacancies": 7}
    first, again, other = (atoms_of(build(build_crystal, seed=seed, **how)) for seed in (1, 1, 2))
    assert len(first) == 493
    assert (first.positions == again.positions).all()
    assert not np.allclose(first.positions, other.positions)
    perfect = atoms_of(build(build_crystal, **(how | {"rattle": 0.0}), seed=1))
    assert (first.positions - perfect.positions).std() == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"name": "NaCl"}, "BadLattice"),
        ({"name": "Xx"}, "BadLattice"),
        ({"name": ""}, "BadLattice"),
        ({"name": "O"}, "BadLattice"),
        ({"name": "Cu", "lattice": "bcc"}, "BadLattice"),
        ({"name": "NaCl", "lattice": "fcc", "a": 5.6}, "BadLattice"),
        ({"name": "Cu", "vacancies": 4}, "TooFewAtoms"),
    ],
)
def test_what_cannot_be_built_says_so(build: Build, params, name):
    result = build(build_crystal, **params)
    assert result.failure is not None
    assert (result.failure.name, result.failure.kind) == (name, "contract")
    assert result.failure.repair
