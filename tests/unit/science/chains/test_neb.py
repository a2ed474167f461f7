"""Nudged elastic bands by EMT: barriers known from ASE's tutorial and by symmetry, resumed, refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import add_adsorbate, fcc100
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms, FixedLine
from ase.io import read
from ase.optimize import BFGS

import hpcagent as ha


@pytest.fixture(autouse=True)
def here(tmp_path):
    """The folder of an open site."""
    with ha.open_site("threads", run_dir=tmp_path):
        yield tmp_path


def computed(folder: Path) -> int:
    return Counter(json.loads(f.read_text())["app"] for f in folder.glob("work/*/manifest.json"))["dft_energy"]


def gold_on_aluminium() -> tuple[Atoms, Atoms]:
    """An adatom in two neighbouring hollows."""
    slab = fcc100("Al", size=(2, 2, 3))
    add_adsorbate(slab, "Au", 1.7, "hollow")
    slab.center(axis=2, vacuum=4.0)
    slab.set_constraint(FixAtoms(mask=[a.tag > 1 for a in slab]))
    other = slab.copy()
    other.positions[-1, 0] += slab.cell[0, 0] / 2
    return slab, other


def bridge() -> float:
    """Energy of the adatom on the bridge, where symmetry puts the saddle: relaxed, held along the path only."""
    first, second = gold_on_aluminium()
    energies = []
    for atoms, held in ((first.copy(), False), (first.copy(), True)):
        if held:
            atoms.positions[-1] = (first.positions[-1] + second.positions[-1]) / 2
            atoms.positions[-1, 2] += 0.3
            atoms.set_constraint([*first.constraints, FixedLine(len(atoms) - 1, (0, 0, 1))])
        atoms.calc = EMT()
        with BFGS(atoms, logfile=None) as steps:
            steps.run(fmax=0.01)
        energies.append(float(atoms.get_potential_energy()))
    return energies[1] - energies[0]


def test_an_adatom_hops_over_the_bridge_where_its_mode_is_imaginary(here):
    first, second = gold_on_aluminium()
    # Two images: neither is at the saddle, half way, but where one climbs.
    result = ha.apps.neb(first, second, engine="emt", images=2, verify="yes").result()
    assert result.ok, result.failure
    assert result["barrier"] == pytest.approx(bridge(), abs=2e-3)
    assert result["barrier"] == pytest.approx(0.374, abs=2e-3)  # ASE's tutorial
    assert result["reaction_energy"] == pytest.approx(0, abs=2e-3)
    assert result["saddle_at"] == pytest.approx(0.5, abs=0.02) and result["max_force"] <= 0.05
    assert result["n_imaginary"] == 1 and result["imaginary_frequency"] < 0
    assert result["barrier_fit"] == pytest.approx(result["barrier"], abs=2e-3)
    band = read(Path(result.workdir) / result.artifacts["band"], ":")
    assert len(band) == 4 and max(e.get_potential_energy() for e in band) - band[
        0
    ].get_potential_energy() == pytest.approx(result["barrier"], abs=1e-6)
    # Held layers have not moved.
    assert band[2].positions[:8] == pytest.approx(first.positions[:8], abs=1e-6)
    # At most: the start, all steps, one more when the image begins to climb; and seven for the modes.
    assert 2 * result["n_steps"] <= computed(here) <= 2 * (result["n_steps"] + 2) + 7
    lower = ha.apps.neb(first, second, engine="emt", images=2, climb="no").result()
    assert lower.ok and lower["barrier"] < result["barrier"] - 0.02


def test_a_band_that_was_not_done_is_a_failure_by_its_name_and_going_on_repeats_nothing(here):
    first, second = gold_on_aluminium()
    short = ha.apps.neb(first, second, engine="emt", images=3, max_steps=5, relax_ends="no").result()
    assert not short.ok and short.failure.name == "BandNotConverged"
    assert "5 steps" in short.failure.message and len(read(Path(short.workdir) / "band.xyz", ":")) == 5
    before = computed(here)
    longer = ha.apps.neb(first, second, engine="emt", images=3, max_steps=6, relax_ends="no").result()
    assert not longer.ok
    assert computed(here) - before == 3  # one more step


def test_a_vacancy_in_copper_moves_and_a_periodic_boundary_makes_no_way_longer():
    result = ha.apps.vacancy_migration(name="Cu", a=3.59, size=2, engine="emt", images=1).result()
    assert result.ok, result.failure
    assert result["barrier"] == pytest.approx(0.79, abs=0.01)  # EMT; experiment: 0.70 +- 0.02 eV
    assert result["reverse_barrier"] == pytest.approx(result["barrier"], abs=1e-3)
    # A neighbour's distance, 3.59 / sqrt(2), and some for its neighbours that make way.
    assert 2.5 < result["path_length"] < 3.2


def test_ends_that_do_not_belong_together_are_refused():
    first, second = gold_on_aluminium()
    for wrong in (second[:-1], first):
        result = ha.apps.neb(first, wrong, engine="emt", relax_ends="no").result()
        assert not result.ok and result.failure.name == "MixedRuns"


def test_a_free_molecule_is_turned_onto_itself_first():
    """An atom of a gold tetramer goes round: the end is given turned and far away."""
    d = 2.6
    first = Atoms("Au3Cu", [(0, 0, 0), (d, 0, 0), (d / 2, 0.87 * d, 0), (d / 2, 0.29 * d, 0.8 * d)])
    last = first.copy()
    last.positions[3, 2] *= -1
    far = last.copy()
    far.rotate(50, (1, 1, 0))
    far.translate((5, 3, 1))
    straight, turned = (
        ha.apps.neb(first, end, engine="emt", images=1, fmax=0.1, climb="no", optimizer="FIRE").result()
        for end in (last, far)
    )
    assert straight.ok and turned.ok, (straight.failure, turned.failure)
    assert turned["path_length"] == pytest.approx(straight["path_length"], abs=0.1)
    assert turned["barrier"] == pytest.approx(straight["barrier"], abs=0.02)
    assert np.isfinite(turned["barrier_fit"]) and any("no image has climbed" in note for note in turned.notes)


def test_atoms_that_changed_places_in_the_final_structure_are_said():
    first, second = gold_on_aluminium()
    second.positions[[8, 11]] = second.positions[[11, 8]]  # two of the upper layer
    whole = {"engine": "emt", "relax_ends": "no", "climb": "no", "fmax": 1.0}
    # Half way they are in one place.
    failure = ha.apps.neb(first, second, images=1, **whole).result().failure
    assert failure.name == "BadPath" and "atoms 8, 11 (Al) have changed places" in failure.message
    result = ha.apps.neb(first, second, images=2, interpolation="linear", **whole | {"max_steps": 2}).result()
    assert "atoms 8, 11 (Al) have changed places" in result.failure.message
    plain = ha.apps.neb(*gold_on_aluminium(), images=1, **whole).result()
    assert plain.ok and not any("changed places" in note for note in plain.notes)


def test_an_end_that_holds_no_atoms_takes_the_constraints_of_the_other_and_others_are_refused():
    first, second = gold_on_aluminium()
    both = ha.apps.neb(first, second, engine="emt", images=1).result()
    second.set_constraint()
    bare = ha.apps.neb(first, second, engine="emt", images=1).result()
    assert bare.ok and bare["barrier"] == pytest.approx(both["barrier"], abs=1e-9)
    assert any("given the constraints of the other" in note for note in bare.notes)
    second.set_constraint(FixAtoms([0]))
    refused = ha.apps.neb(first, second, engine="emt", images=1).result()
    assert refused.failure.name == "MixedRuns" and "hold different atoms" in refused.failure.message


def test_two_ends_in_one_minimum_are_a_failure_of_that_name():
    first, second = gold_on_aluminium()
    second.positions[-1] = first.positions[-1] + (0.4, 0, 0.1)
    result = ha.apps.neb(first, second, engine="emt", images=1).result()
    assert result.failure.name == "SameMinimum"


def test_in_a_compound_an_atom_jumps_to_its_own_sublattice():
    alloy = {"name": "CuAu", "crystal": "cesiumchloride", "a": 3.1, "engine": "emt", "images": 1}
    result = ha.apps.vacancy_migration(**alloy, relax_ends="no", fmax=1.0, climb="no").result()
    assert result.ok, result.failure
    # From one corner of the cube to the next; the other sublattice is at 0.87 a.
    assert result["path_length"] == pytest.approx(3.1, rel=0.1)
    band = read(Path(result.workdir) / result.artifacts["band"], ":")
    assert Counter(band[0].get_chemical_symbols()) == {"Cu": 7, "Au": 8}
    assert result["reaction_energy"] == pytest.approx(0, abs=1e-6)


def test_a_band_whose_curve_is_above_its_images_says_so():
    first, second = gold_on_aluminium()
    images = [first, first.copy(), second]
    images[1].positions[-1] += 0.25 * (second.positions[-1] - first.positions[-1])
    result = ha.apps.band_path(*(ha.apps.dft_energy(image, engine="emt") for image in images)).result()
    assert result["barrier_fit"] > result["barrier"] + 0.2
    assert any("eV above the highest image" in note for note in result.notes)
