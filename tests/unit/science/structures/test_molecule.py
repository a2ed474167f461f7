"""Molecules by name and from SMILES: bond lengths and spins from experiment."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hpcagent.apps.structures import structure_of
from hpcagent.model.records import Result
from hpcagent.science.structures.molecule import build_molecule, smiles_to_xyz

Build = Callable[..., Result]


def atoms_of(result: Result):
    assert result.ok, result.failure
    return structure_of(result.model_dump())


def water(atoms) -> tuple[float, float, float]:
    oxygen = next(a.index for a in atoms if a.symbol == "O")
    one, two = (a.index for a in atoms if a.symbol == "H")
    return atoms.get_distance(oxygen, one), atoms.get_distance(oxygen, two), atoms.get_angle(one, oxygen, two)


def test_water_has_the_bonds_of_experiment(build: Build):
    # 0.958 angstrom and 104.5 degrees (NIST CCCBDB); MP2/6-31G(d) is within 0.015 angstrom and 1 degree of it.
    one, two, angle = water(atoms_of(build(build_molecule, name="H2O")))
    assert one == pytest.approx(0.958, abs=0.015)
    assert one == pytest.approx(two)
    assert angle == pytest.approx(104.5, abs=1.0)


# Unpaired electrons of the ground states: triplet oxygen, quintet iron (a 5D4), hydrogen.
@pytest.mark.parametrize(("name", "moment"), [("O2", 2), ("Fe", 4), ("H", 1), ("N2", 0), ("CH3", 1), ("Ar", 0)])
def test_molecules_and_atoms_have_the_spin_of_their_ground_state(build: Build, name, moment):
    result = build(build_molecule, name=name)
    assert result["moment"] == moment
    assert atoms_of(result).get_initial_magnetic_moments().sum() == pytest.approx(moment)


def test_vacuum_makes_a_cell_and_none_makes_none(build: Build):
    bare, boxed = (build(build_molecule, name="N2", vacuum=v) for v in (0.0, 5.0))
    assert "volume" not in bare.metrics
    assert "density" not in boxed.metrics  # an isolated molecule has none
    assert atoms_of(boxed).cell.lengths()[:2] == pytest.approx([10, 10])


def test_an_unknown_molecule_names_the_nearest(build: Build):
    failure = build(build_molecule, name="CH5").failure
    assert failure is not None
    assert failure.name == "BadMolecule"
    assert "did you mean" in failure.message


# --- SMILES


@pytest.fixture(autouse=True)
def _rdkit(request: pytest.FixtureRequest):
    if "smiles" in request.node.name:
        pytest.importorskip("rdkit")


def test_smiles_of_water(build: Build):
    # MMFF94 holds the O-H bond of water at 0.969 angstrom (its reference length), the angle at 103.978 degrees.
    one, two, angle = water(atoms_of(build(smiles_to_xyz, smiles="O")))
    assert (one, two) == pytest.approx((0.969, 0.969), abs=0.002)
    assert angle == pytest.approx(103.98, abs=0.1)


# Molar masses from the standard atomic weights.
@pytest.mark.parametrize(
    ("smiles", "n_atoms", "mass", "charge", "moment"),
    [
        ("CCO", 9, 46.07, 0, 0),
        ("c1ccccc1", 12, 78.11, 0, 0),
        ("[Na+]", 1, 22.99, 1, 0),
        ("[Cl-]", 1, 35.45, -1, 0),
        ("CC(=O)[O-]", 7, 59.04, -1, 0),
        ("[NH4+]", 5, 18.04, 1, 0),
        ("[CH3]", 4, 15.03, 0, 1),
        ("CC(C)Cc1ccc(cc1)[C@@H](C)C(=O)O", 33, 206.28, 0, 0),
    ],
)
def test_smiles_give_atoms_mass_charge_and_spin(build: Build, smiles, n_atoms, mass, charge, moment):
    result = build(smiles_to_xyz, smiles=smiles)
    assert result["n_atoms"] == n_atoms
    assert result["mass"] == pytest.approx(mass, abs=0.01)
    assert (result["charge"], result["moment"]) == (charge, moment)
    atoms = atoms_of(result)
    assert atoms.get_initial_charges().sum() == charge
    assert atoms.info["charge"] == charge
    if n_atoms > 1:
        assert atoms.get_all_distances()[~np.eye(n_atoms, dtype=bool)].min() > 0.9


def test_smiles_of_benzene_are_flat_with_equal_bonds(build: Build):
    atoms = atoms_of(build(smiles_to_xyz, smiles="c1ccccc1"))
    bonds = [atoms.get_distance(i, (i + 1) % 6) for i in range(6)]
    assert bonds == pytest.approx([1.397] * 6, abs=0.01)  # experiment: 1.397 angstrom
    assert atoms.get_moments_of_inertia()[2] == pytest.approx(sum(atoms.get_moments_of_inertia()[:2]), rel=1e-3)


def test_smiles_follow_the_seed_and_more_conformers_are_no_worse(build: Build):
    first, again, other = (build(smiles_to_xyz, smiles="CCCCCO", seed=s) for s in (1, 1, 5))
    assert (atoms_of(first).positions == atoms_of(again).positions).all()
    assert atoms_of(first).positions != pytest.approx(atoms_of(other).positions)
    many = build(smiles_to_xyz, smiles="CCCCCO", seed=1, conformers=10)
    assert many["strain_energy"] <= first["strain_energy"] + 1e-6


@pytest.mark.parametrize("smiles", ["C(C", "CC(C)(C)(C)C", "Xx", "", "NH4+", "water"])
def test_bad_smiles_are_refused(build: Build, smiles):
    failure = build(smiles_to_xyz, smiles=smiles).failure
    assert failure is not None
    assert (failure.name, failure.kind) == ("BadSmiles", "contract")
    assert repr(smiles) in failure.message


def test_smiles_that_no_geometry_fits_are_a_failure_of_their_own(build: Build):
    failure = build(smiles_to_xyz, smiles="C1#CC1").failure  # a triple bond in a ring of three
    assert failure is not None
    assert (failure.name, failure.kind) == ("NoEmbedding", "simulation")


def test_smiles_without_parameters_say_which_force_field_was_used(build: Build):
    result = build(smiles_to_xyz, smiles="[O][O]")
    assert any("UFF" in note for note in result.notes)


def test_threads_that_ask_at_once_all_find_their_molecule(build: Build, monkeypatch: pytest.MonkeyPatch):
    """ASE's table, half read by another thread: `no molecule 'O2'`, and for good."""
    import threading
    import time
    from concurrent.futures import ThreadPoolExecutor

    from ase.collections import collection, g2

    from hpcagent.science.structures import molecule as module

    # Somebody else is in the midst of reading ASE's own.
    monkeypatch.setattr(g2, "_names", ["PH3"])
    module._collection.cache_clear()
    real = collection.AtomsRow
    together = threading.Barrier(4)

    def slowly(row):  # a race needs no luck
        time.sleep(0.001)
        return real(row)

    monkeypatch.setattr(collection, "AtomsRow", slowly)

    def atoms(_):
        together.wait()
        found = module._g2()
        return len(found.names), len(found["O2"])

    with ThreadPoolExecutor(4) as pool:
        # 162 species: 148 molecules of G2/97 and 14 atoms.
        assert list(pool.map(atoms, range(4))) == [(162, 2)] * 4
    assert build(build_molecule, name="O2")["n_atoms"] == 2
