"""Magnetic orderings: counts against crystallography, energies against bonds counted by hand."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk

import hpcagent as ha
from hpcagent.errors import AppFailed
from hpcagent.science.structures.magnetic import moments_of
from hpcagent.science.structures.orderings import orderings

pytest.importorskip("spglib")

NIO = bulk("NiO", "rocksalt", a=4.17)
FE = bulk("Fe", a=2.87)

# E = -J1 sum(nearest pairs) - J2 sum(next-nearest pairs), of the signs of the moments; what is wanted may collapse.
STAND_IN = """
import numpy as np
from ase.calculators.calculator import Calculator
from ase.neighborlist import neighbor_list


class Heisenberg(Calculator):
    implemented_properties = ["energy", "magmom", "magmoms"]
    default_parameters = {"j1": 0.0, "j2": 0.0, "r1": 3.0, "r2": 4.0, "flips": False}

    def calculate(self, atoms=None, properties=("energy",), system_changes=()):
        super().calculate(atoms, properties, system_changes)
        p = self.parameters
        moments = self.atoms.get_initial_magnetic_moments()
        if p.flips:
            moments = np.abs(moments)
        i, j, d = neighbor_list("ijd", self.atoms, p.r2 + 0.05)
        signs = np.sign(moments)
        energy = 0.0
        for coupling, r in ((p.j1, p.r1), (p.j2, p.r2)):
            bonds = abs(d - r) < 0.05
            energy -= coupling * (signs[i[bonds]] * signs[j[bonds]]).sum() / 2
        self.results = {"energy": energy, "magmoms": moments * 0.9, "magmom": float(moments.sum() * 0.9)}
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, no_children):
    """The folder of an open site, with the stand-in to be imported."""
    (tmp_path / "stand_in_of_spins.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    with ha.open_site("threads", run_dir=tmp_path / "site"):
        yield tmp_path


def ranked(crystal: Atoms, keywords, **params):
    app = ha.apps.magnetic_orderings.with_settings(calculator="stand_in_of_spins:Heisenberg", keywords=keywords)
    result = app(crystal, engine="ase", **params).result()
    assert result.ok, result.failure
    with (Path(result.workdir) / result.artifacts["orderings"]).open() as file:
        return result, {row["ordering"]: row for row in csv.DictReader(file)}


def labels(crystal: Atoms, moments, **params) -> list[str]:
    return [ordering.label for ordering in orderings(crystal, moments, **params)]


@pytest.mark.parametrize(
    ("crystal", "expected"),
    [
        # Half a reciprocal vector: the points X and L of fcc, H and N of bcc.
        (NIO, ["FM", "AFM1 (1 0 0)", "AFM2 (1/2 1/2 1/2)"]),
        (FE, ["FM", "AFM1 (1 0 0)", "AFM2 (1/2 1/2 0)"]),
        (bulk("Fe", a=2.87, cubic=True), ["FM", "AFM1 (1 0 0)", "AFM2 (1/2 1/2 0)"]),
    ],
)
def test_in_two_cells_a_lattice_has_as_many_antiferromagnets_as_half_vectors(crystal, expected):
    assert labels(crystal, {"Fe": 2.2, "Ni": 1.7}) == expected


@pytest.mark.parametrize("crystal", [FE, bulk("Ni", a=3.52)])
def test_all_signs_are_the_known_number_of_binary_superstructures(crystal):
    # Hart and Forcade, Phys. Rev. B 77, 224115 (2008): 2, 3 and 12 of two, three and four atoms, fcc and bcc alike.
    found = orderings(crystal, {"Fe": 2.2, "Ni": 0.6}, max_cells=4, compensated=False)
    assert [sum(one.cells == n for one in found) for n in (1, 2, 3, 4)] == [1, 2, 3, 12]


def test_an_ordering_has_its_neighbours():
    second = orderings(NIO, {"Ni": 2.0})[2].atoms  # AFM-II
    moments = second.get_initial_magnetic_moments()
    i, j, d = _pairs(second)
    nickel = (moments[i] != 0) & (moments[j] != 0)
    products = np.sign(moments[i] * moments[j])[nickel]
    near = d[nickel] < 3.0
    # Of 12 nearest neighbours half are up, all 6 next ones are down.
    assert (products[near].sum(), products[~near].sum()) == (0, -6 * (moments != 0).sum())
    assert sorted(moments.tolist()) == [-2.0, 0.0, 0.0, 2.0]


def _pairs(atoms: Atoms):
    from ase.neighborlist import neighbor_list

    return neighbor_list("ijd", atoms, 4.2)


@pytest.mark.slow
def test_the_lowest_is_what_the_couplings_say():
    r1, r2 = 4.17 / math.sqrt(2), 4.17
    # Superexchange over oxygen, the larger of the two in nickel oxide: AFM-II.
    result, rows = ranked(NIO, {"j1": 0.001, "j2": -0.019, "r1": r1, "r2": r2})
    assert result["best"] == 2 and "AFM2 (1/2 1/2 1/2)" in result.notes[0]
    # Per nickel -1/2 (J1 sum + J2 sum): aligned 12 and 6, AFM-I -4 and 6, AFM-II 0 and -6. Two atoms a cell.
    per_atom = {"FM": (12, 6), "AFM1 (1 0 0)": (-4, 6), "AFM2 (1/2 1/2 1/2)": (0, -6)}
    for name, (first, second) in per_atom.items():
        energy = -(0.001 * first - 0.019 * second) / 4
        assert float(rows[name]["energy_ev_per_atom"]) == pytest.approx(energy, abs=1e-9)
        assert rows[name]["state"] == "kept"
    assert result["fm_energy"] == pytest.approx(1000 * (12 * -0.001 / 4 + 12 * 0.019 / 4), abs=1e-6)
    assert result["nm_energy"] == pytest.approx(1000 * 0.019 * 6 / 4, abs=1e-6)
    assert result["moment"] == pytest.approx(0.9 * 1.5)
    assert (result["net_moment"], result["n_orderings"], result["n_collapsed"]) == (0, 3, 0)


def test_an_ordering_that_became_another_is_named_and_not_ranked():
    result, rows = ranked(
        FE, {"j1": -0.01, "r1": 2.87 * math.sqrt(3) / 2, "r2": 2.87, "flips": True}, nonmagnetic="no"
    )
    assert [row["state"] for row in rows.values()] == ["kept", "became FM", "became FM"]
    assert result["n_collapsed"] == 2
    assert "AFM1 (1 0 0): became FM" in result.notes
    assert result["best"] == 0 and "afm_energy" not in result.metrics and "nm_energy" not in result.metrics


def test_what_has_no_moments_is_refused():
    assert ha.apps.magnetic_orderings(FE, engine="emt").result().failure.name == "BadSettings"
    assert ha.apps.magnetic_ordering(bulk("Cu")).result().failure.name == "NoSuchAtom"
    assert ha.apps.magnetic_ordering(FE, number=3).result().failure.name == "NoSuchAtom"
    assert ha.apps.magnetic_ordering(bulk("Co"), max_cells=9).result().failure.name == "TooManyOrderings"
    for text in ("Fe", "Fe:3; import os", "Fe:-1", "Fe:99"):
        with pytest.raises(AppFailed, match="is not understood"):
            moments_of(text, ["Fe"])
