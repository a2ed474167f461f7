"""Adsorption energies by EMT, against the same sums done by hand with ASE."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from ase import Atoms
from ase.build import add_adsorbate, fcc100, fcc111, molecule
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms
from ase.io import read
from ase.optimize import BFGS

import hpcagent as ha

HOLLOW = {"facet": "fcc100", "site": "hollow", "height": 0.9, "layers": 2, "relax": "none"}


@pytest.fixture(autouse=True)
def here(tmp_path):
    """The folder of an open site."""
    with ha.open_site("threads", run_dir=tmp_path):
        yield tmp_path


def energy(atoms: Atoms) -> float:
    atoms.calc = EMT()
    return float(atoms.get_potential_energy())


def adsorption(**params):
    result = ha.apps.adsorption(**({"engine": "emt"} | params)).result()
    assert result.ok, result.failure
    return result


def inner(folder: Path) -> Counter[str]:
    """App -> how many runs of it there are in the site's folder."""
    return Counter(json.loads(f.read_text())["app"] for f in folder.glob("work/*/manifest.json"))


def test_oxygen_on_copper_is_the_difference_that_ase_finds():
    result = adsorption(metal="Cu", facet="fcc111", adsorbate="O", site="fcc", height=1.2, relax="none",
                        reference="O2", share=0.5)  # fmt: skip
    slab = fcc111("Cu", size=(1, 1, 3), vacuum=6.0)
    clean, oxygen = energy(slab.copy()), energy(molecule("O2"))
    add_adsorbate(slab, "O", 1.2, "fcc")
    assert result["energy_slab"] == pytest.approx(clean, abs=1e-6)
    assert result["energy_molecule"] == pytest.approx(oxygen, abs=1e-6)
    assert result["energy_together"] == pytest.approx(energy(slab), abs=1e-6)
    assert result["adsorption_energy"] == pytest.approx(energy(slab) - clean - oxygen / 2, abs=1e-6)
    assert result["height"] == pytest.approx(1.2)


def test_a_relaxed_molecule_keeps_the_lower_layers_and_gains_energy():
    n2 = {"metal": "Cu", "facet": "fcc111", "adsorbate": "N2", "size": 2, "height": 1.85, "fmax": 0.02}
    built, relaxed = adsorption(**n2, relax="none"), adsorption(**n2, relax="adsorbed")
    slab = fcc111("Cu", size=(2, 2, 3), vacuum=6.0)
    clean, alone = energy(slab.copy()), energy(molecule("N2"))
    n_n = molecule("N2").get_distance(0, 1)
    add_adsorbate(slab, Atoms("N2", [[0, 0, 0], [0, 0, n_n]]), 1.85, "ontop")
    assert built["adsorption_energy"] == pytest.approx(energy(slab) - clean - alone, abs=1e-6)
    slab.set_constraint(FixAtoms([a.index for a in slab if a.tag > 1]))
    slab.calc = EMT()
    with BFGS(slab, logfile=None) as steps:
        steps.run(fmax=0.005)
    # Both are within the last forces of the same minimum.
    assert relaxed["adsorption_energy"] == pytest.approx(slab.get_potential_energy() - clean - alone, abs=2e-3)
    assert relaxed["adsorption_energy"] < built["adsorption_energy"]
    atoms = read(Path(relaxed.workdir) / relaxed.artifacts["structure"])
    start = fcc111("Cu", size=(2, 2, 3), vacuum=6.0)
    lower = [a.index for a in start if a.tag > 1]
    assert atoms.positions[lower, :2] == pytest.approx(start.positions[lower, :2], abs=1e-4)


def test_relaxing_all_three_lowers_every_energy():
    oxygen = {"metal": "Cu", "facet": "fcc111", "adsorbate": "O", "site": "fcc", "reference": "O2", "share": 0.5}
    built, relaxed = adsorption(**oxygen, relax="none"), adsorption(**oxygen, relax="all")
    for name in ("energy_slab", "energy_molecule", "energy_together"):
        assert relaxed[name] < built[name], name


def test_root_two_on_a_square_face_is_the_centred_cell(here):
    result = adsorption(metal="Cu", adsorbate="O", root=2, **HOLLOW)
    atoms = read(Path(result.workdir) / result.artifacts["structure"])
    # c(2x2): two copper atoms a layer and one oxygen, in a square turned by 45 degrees, sqrt(2) d wide.
    assert Counter(atoms.get_chemical_symbols()) == {"Cu": 4, "O": 1}
    nearest = 3.61 / 2**0.5
    assert atoms.cell.lengths()[:2] == pytest.approx([nearest * 2**0.5] * 2, rel=1e-3)
    assert atoms.cell.angles()[2] == pytest.approx(90, abs=1e-3)
    # Every copper of the one layer touches four of the other, all at the same distance.
    between = atoms.get_all_distances(mic=True)[:2, 2:4]
    assert between == pytest.approx(nearest, abs=1e-6)
    # The same half monolayer in the plain (2x2) cell: every other hollow is taken.
    slab = fcc100("Cu", size=(2, 2, 2), vacuum=6.0)
    clean = energy(slab.copy())
    add_adsorbate(slab, "O", 0.9, "hollow", offset=(0, 0))
    add_adsorbate(slab, "O", 0.9, "hollow", offset=(1, 1))
    by_hand = (energy(slab) - clean) / 2 - energy(Atoms("O"))
    assert result["adsorption_energy"] == pytest.approx(by_hand, abs=1e-5)


def test_two_sites_on_one_slab_share_the_slab_and_the_molecule(here):
    for site in ("ontop", "hollow"):
        adsorption(metal="Cu", facet="fcc100", adsorbate="O", site=site, height=1.5, relax="none", reference="O2",
                   share=0.5)  # fmt: skip
    counted = inner(here)
    assert counted["adsorption"] == counted["adsorption_energy"] == counted["add_adsorbate"] == 2
    # O and O2 are built; the clean slab, O2 and two slabs with O are computed.
    assert (counted["build_slab"], counted["build_molecule"], counted["dft_energy"]) == (1, 2, 4)


def test_the_share_counts_the_molecules_of_the_reference():
    whole = adsorption(metal="Cu", adsorbate="O", **HOLLOW, reference="O2", share=0.5)
    own = adsorption(metal="Cu", adsorbate="O", **HOLLOW)
    assert whole["energy_together"] == own["energy_together"]
    difference = own["energy_molecule"] - whole["energy_molecule"] / 2
    assert whole["adsorption_energy"] - own["adsorption_energy"] == pytest.approx(difference, abs=1e-9)


def test_a_share_that_does_not_add_up_to_the_adsorbate_is_refused():
    asked = ha.apps.adsorption(metal="Cu", adsorbate="O", **HOLLOW, reference="O2", engine="emt")
    failure = asked.result().failure
    assert (failure.kind, failure.name) == ("contract", "AtomsDiffer")
    assert "2 atoms of O" in failure.message


def test_what_emt_has_no_use_for_is_left_out_and_noted():
    plain = adsorption(metal="Cu", adsorbate="O", **HOLLOW, reference="O2", share=0.5)
    asked = adsorption(metal="Cu", adsorbate="O", **HOLLOW, reference="O2", share=0.5,
                       xc="PBE", ecut=350, kpts=4, reference_magmom=1.0)  # fmt: skip
    assert plain.notes == ()
    assert asked.notes == ("engine emt has no use for xc, ecut, kpts",)
    assert asked.metrics == plain.metrics


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"metal": "Qq"}, "BadLattice"),
        ({"adsorbate": "Qq"}, "BadMolecule"),
        ({"site": "fcc"}, "NoSite"),
        ({"height": 0.01, "site": "ontop"}, "Overlap"),
    ],
)
def test_what_cannot_be_built_fails_by_its_name(changes, name):
    asked = {"metal": "Cu", "adsorbate": "O", **HOLLOW, "engine": "emt"} | changes
    failure = ha.apps.adsorption(**asked).result().failure
    assert failure.name == name


def test_a_metal_that_emt_does_not_know_fails_with_what_the_engine_says():
    failure = ha.apps.adsorption(metal="Rh", adsorbate="O", **HOLLOW, engine="emt").result().failure
    assert "Rh" in failure.message and "its inner run" in failure.message


def test_a_structure_of_ones_own_serves_as_slab_and_adsorbate():
    slab = fcc100("Cu", size=(1, 1, 2), vacuum=6.0)
    result = ha.apps.adsorption_energy(slab, Atoms("O"), engine="emt", site="hollow", height=0.9, relax="none")
    clean = energy(slab.copy())
    add_adsorbate(slab, "O", 0.9, "hollow")
    by_hand = energy(slab) - clean - energy(Atoms("O"))
    assert result.result()["adsorption_energy"] == pytest.approx(by_hand, abs=1e-6)


def test_a_chain_says_what_its_inner_runs_say():
    pytest.importorskip("tblite")
    cheap = {"metal": "Al", "adsorbate": "H2O", "height": 2.0, "layers": 1, "relax": "none", "engine": "tblite"}
    result = ha.apps.adsorption(**cheap, max_scf=4).result()
    assert result.ok, result.failure
    said = [note for note in result.notes if "an SCF did not converge; repaired by" in note]
    assert said and all("dft_energy: " in note for note in said)
    assert len(set(result.notes)) == len(result.notes)
    assert result.versions["tblite"]


def test_a_slab_relaxed_only_with_its_adsorbate_is_said():
    notes = {
        relax: ha.apps.adsorption(metal="Cu", facet="fcc100", adsorbate="O", relax=relax, engine="emt")
        .result()
        .notes
        for relax in ("none", "adsorbed", "all")
    }
    assert [any("relax='all'" in note for note in of) for of in notes.values()] == [False, True, False]


@pytest.mark.parametrize(("name", "binds"), [("CO", "C"), ("NO", "N"), ("OH", "O"), ("CH3OH", "O"), ("CN", "C")])
def test_a_molecule_is_put_on_the_metal_by_the_atom_that_binds(name, binds):
    slab = fcc111("Pt", size=(2, 2, 3), vacuum=6.0)
    for place, site in ((ha.apps.place_adsorbate, 0), (ha.apps.add_adsorbate, "ontop")):
        result = place(slab, molecule(name), site=site).result()
        assert result.ok, result.failure
        both = read(Path(result.workdir) / result.artifacts["structure"])
        adsorbed = both[(both.get_tags() == 0) & (both.numbers > 1)]  # the H of methanol hangs beside its O
        assert adsorbed.symbols[adsorbed.positions[:, 2].argmin()] == binds
        assert any(f"bound by {binds}" in note for note in result.notes)


def test_the_atom_of_carbon_monoxide_that_binds_can_be_chosen_and_an_unknown_one_is_said():
    co = {"metal": "Pt", "adsorbate": "CO", "layers": 2, "relax": "none"}
    by_carbon, by_oxygen = adsorption(**co), adsorption(**co, atom=0)
    assert any("bound by C" in note for note in by_carbon.notes)
    assert any("bound by O" in note for note in by_oxygen.notes)
    assert by_carbon["adsorption_energy"] != pytest.approx(by_oxygen["adsorption_energy"], abs=0.01)
    note = next(n for n in adsorption(**co | {"adsorbate": "C2H4"}).notes if "bound by" in n)
    assert "not known" in note


def test_more_held_layers_than_there_are_are_refused():
    result = ha.apps.adsorption(metal="Cu", engine="emt", layers=2, fixed_layers=3).result()
    assert result.failure.name == "TooManyHeld"
