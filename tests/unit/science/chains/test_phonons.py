"""Phonons by phonopy and EMT, against frozen waves of ASE, Dulong and Petit, and crystals that are not stable."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from ase import units
from ase.build import bulk
from ase.calculators.emt import EMT

import hpcagent as ha


@pytest.fixture(autouse=True)
def here(tmp_path):
    """The folder of an open site."""
    with ha.open_site("threads", run_dir=tmp_path):
        yield tmp_path


def at_point(result, name: str) -> list[float]:
    with (Path(result.workdir) / result.artifacts["bands"]).open() as file:
        row = next(row for row in csv.DictReader(file) if row["point"] == name)
    return [float(value) for key, value in row.items() if key.startswith("f")]


def frozen(a: float) -> list[float]:
    """Frequencies at X in THz from a wave of that length, frozen in: the planes (001) move against each other."""
    atoms = bulk("Al", a=a, cubic=True)
    upper = atoms.get_scaled_positions()[:, 2] > 0.25
    found = []
    for axis in (0, 2):
        d = 1e-3
        forces = []
        for sign in (1, -1):
            moved = atoms.copy()
            moved.positions[upper, axis] += sign * d
            moved.positions[~upper, axis] -= sign * d
            moved.calc = EMT()
            forces.append(moved.get_forces()[upper, axis].mean())
        k = (forces[1] - forces[0]) / (2 * d)
        found.append(math.sqrt(k * units._e * 1e20 / (26.9815385 * units._amu)) / (2 * math.pi * 1e12))
    return found


def test_aluminium_has_the_frequencies_of_frozen_waves_and_the_heat_of_dulong_and_petit(here):
    result = ha.apps.crystal_phonons(
        name="Al", engine="emt", supercell=4, temperature=1000.0, q_length=60.0
    ).result()
    assert result.ok, result.failure
    a = 3.9937  # where EMT's aluminium is at rest
    transverse, longitudinal = frozen(a)
    # X fits into four cells, so there the frequencies are exact.
    assert at_point(result, "X") == pytest.approx([transverse, transverse, longitudinal], rel=2e-3)
    assert at_point(result, "X") == pytest.approx([5.635, 5.635, 8.603], abs=0.02)  # also by ase.phonons
    assert at_point(result, "G") == pytest.approx([0, 0, 0], abs=1e-3)
    assert result["heat_capacity"] == pytest.approx(24.79, abs=0.02)  # 3 R = 24.94
    assert (result["n_imaginary"], result["imaginary_share"], result["n_displacements"]) == (0, 0, 1)
    assert result["acoustic_gamma"] < 0.05 and result["supercell_atoms"] == 64
    before = Counter(json.loads(f.read_text())["app"] for f in here.glob("work/*/manifest.json"))
    hot = ha.apps.crystal_phonons(name="Al", engine="emt", supercell=4, temperature=9000.0, q_length=60.0).result()
    after = Counter(json.loads(f.read_text())["app"] for f in here.glob("work/*/manifest.json"))
    assert before["dft_energy"] == after["dft_energy"] == 1
    assert hot["heat_capacity"] == pytest.approx(3 * units._k * units._Nav, abs=0.005)
    thermal = np.loadtxt(Path(hot.workdir) / hot.artifacts["thermal"], delimiter=",", skiprows=1)
    assert thermal[0, 1] == pytest.approx(hot["zero_point_energy"], rel=1e-6)  # F(0 K)
    assert thermal[0, 2] == thermal[0, 3] == 0
    # S = -dF/dT, of the file's own columns, at 500 K.
    slope = (thermal[51, 1] - thermal[49, 1]) / (thermal[51, 0] - thermal[49, 0])
    assert -slope * units._e * units._Nav == pytest.approx(thermal[50, 2], rel=1e-3)
    # Three modes for each atom.
    dos = np.loadtxt(Path(hot.workdir) / hot.artifacts["dos"], delimiter=",", skiprows=1)
    assert np.trapezoid(dos[:, 1], dos[:, 0]) == pytest.approx(3, rel=0.01)
    assert (Path(hot.workdir) / hot.artifacts["plot"]).stat().st_size > 10_000


def test_the_cubic_cell_gives_the_bands_of_the_primitive_one():
    same = {"engine": "emt", "relax": "none", "points": 20, "q_length": 20.0}
    small = ha.apps.phonons(bulk("Cu"), **same, supercell=4).result()
    large = ha.apps.phonons(bulk("Cu", cubic=True), **same, supercell=2).result()
    assert small.ok and large.ok, (small.failure, large.failure)
    assert large["supercell_atoms"] == 32 and len(at_point(large, "G")) == 3
    # 2x2x2 cubic cells hold X and L as 4x4x4 primitive ones do.
    for point in ("X", "L"):
        assert at_point(large, point) == pytest.approx(at_point(small, point), abs=0.1)


def test_copper_as_bcc_is_not_stable_and_two_kinds_of_atoms_have_optical_modes():
    bcc = ha.apps.crystal_phonons(name="Cu", crystal="bcc", a=2.87, engine="emt", supercell=4).result()
    assert bcc.ok, bcc.failure
    # Between bcc and fcc: the transverse branch along (110) falls below 0.
    assert bcc["n_imaginary"] >= 6 and bcc["min_frequency"] < -0.5 and bcc["imaginary_share"] > 0.005
    assert "free_energy" not in bcc.metrics and "thermal" not in bcc.artifacts
    assert any("not stable" in note and "no thermal properties" in note for note in bcc.notes)
    alloy = ha.apps.crystal_phonons(name="CuAu", crystal="rocksalt", a=5.5, engine="emt", supercell=2).result()
    assert alloy.ok, alloy.failure
    assert any("without Born charges" in note for note in alloy.notes)


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"repeat": "2x2"}, "BadSupercell"),
        ({"repeat": "2x2x2", "supercell": 2}, "BadSupercell"),
        ({"supercell": 2, "path": "GZ"}, "BadPath"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(params, name):
    result = ha.apps.phonons(bulk("Cu"), engine="emt", relax="none", **params).result()
    assert not result.ok and result.failure.name == name


def test_forces_of_other_displacements_are_refused():
    cell = ha.apps.dft_energy(bulk("Cu"), engine="emt")
    other = ha.apps.dft_energy(bulk("Cu") * (2, 2, 2), engine="emt")
    result = ha.apps.phonon_properties(cell, other, supercell="2x2x2").result()
    assert not result.ok and result.failure.name == "MixedRuns"


def test_one_atom_has_no_phonons_and_forces_that_are_left_are_said():
    failure = ha.apps.crystal_phonons(name="Al", engine="emt", supercell=1).result().failure
    assert failure.name == "BadSupercell" and "one atom" in failure.message
    alloy = bulk("CuAu", "cesiumchloride", a=3.1)
    alloy.positions[1, 2] += 0.05
    result = ha.apps.phonons(alloy, engine="emt", relax="none", supercell=1, q_length=5.0).result()
    assert result.ok and any("forces up to" in note for note in result.notes)
