"""Formation energies by EMT and tblite, against the same sums done by hand with ASE."""

from __future__ import annotations

import json

import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from ase.filters import FrechetCellFilter
from ase.optimize import BFGS

import hpcagent as ha


@pytest.fixture(autouse=True)
def here(tmp_path):
    """The folder of an open site."""
    with ha.open_site("threads", run_dir=tmp_path):
        yield tmp_path


def at_rest(atoms: Atoms) -> float:
    """Energy of an atom of the relaxed crystal or molecule, in eV."""
    atoms = atoms.copy()
    atoms.calc = EMT()
    with BFGS(FrechetCellFilter(atoms) if atoms.pbc.all() else atoms, logfile=None) as steps:
        assert steps.run(fmax=1e-4, steps=200)
    return float(atoms.get_potential_energy() / len(atoms))


def ordered(a: float = 3.75) -> Atoms:
    """Cu3Au, the L1_2 structure."""
    places = [[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]
    return Atoms("AuCu3", scaled_positions=places, cell=[a] * 3, pbc=True)


@pytest.mark.parametrize(
    ("compound", "gold"),
    [(bulk("CuAu", "cesiumchloride", a=3.0), 0.5), (ordered(), 0.25)],
    ids=["CuAu", "Cu3Au"],
)
def test_an_alloy_of_copper_and_gold_is_what_ase_finds(compound, gold):
    result = ha.apps.formation_energy(compound, engine="emt", fmax=1e-3).result()
    assert result.ok, result.failure
    by_hand = at_rest(compound) - gold * at_rest(bulk("Au")) - (1 - gold) * at_rest(bulk("Cu"))
    assert result["formation_energy"] == pytest.approx(by_hand, abs=1e-5)
    assert result["energy_per_atom"] == pytest.approx(at_rest(compound), abs=1e-5)
    # Copper and gold mix: experiment has -0.07 eV/atom for Cu3Au, and EMT the sign.
    assert result["formation_energy"] < 0
    assert result.units["formation_energy"] == "eV/atom"


def test_an_element_is_its_own_reference(here):
    result = ha.apps.formation_energy(bulk("Cu", cubic=True), engine="emt", fmax=1e-3).result()
    assert result["formation_energy"] == pytest.approx(0, abs=1e-6)


def test_oxygen_is_referred_to_its_molecule_and_not_to_a_crystal(here):
    oxide = bulk("CuO", "rocksalt", a=4.2)
    result = ha.apps.formation_energy(oxide, engine="emt", fmax=1e-3).result()
    assert result.ok, result.failure
    by_hand = at_rest(oxide) - (at_rest(bulk("Cu")) + at_rest(molecule("O2"))) / 2
    assert result["formation_energy"] == pytest.approx(by_hand, abs=1e-4)


def test_the_molecule_of_oxygen_is_computed_with_its_spin(here):
    ha.apps.formation_energy(bulk("MgO", "rocksalt", a=4.21), engine="tblite", max_steps=1).result()
    made = [json.loads(f.read_text()) for f in here.glob("work/*/manifest.json")]
    moments = [m["params"]["magmom"] for m in made if m["app"] == "dft_relax"]
    assert sorted(moments) == [0, 0, 1]
    built = {m["params"]["name"] for m in made if m["app"] in ("build_molecule", "build_crystal")}
    assert built == {"O2", "Mg"}


def test_what_does_not_come_to_rest_fails_by_its_name():
    asked = ha.apps.formation_energy(bulk("CuAu", "cesiumchloride", a=2.7), engine="emt", fmax=1e-3, max_steps=1)
    failure = asked.result().failure
    assert failure.name == "NotRelaxed"
    assert "its inner run dft_relax" in failure.message


def test_an_engine_that_refuses_its_level_fails_the_chain_with_its_reason():
    failure = ha.apps.formation_energy(bulk("Cu"), engine="emt", xc="PBE").result().failure
    assert (failure.kind, failure.name) == ("contract", "BadSettings")
