"""Equations of state by EMT, against ASE's own on the same calculator, and what goes wrong with them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.eos import EquationOfState
from ase.units import GPa

import hpcagent as ha
from hpcagent.science.chains.eos import element_lattice


@pytest.fixture
def here(tmp_path):
    """The folder of an open site."""
    with ha.open_site("threads", run_dir=tmp_path):
        yield tmp_path


def by_ase(atoms: Atoms, span: float = 0.06, points: int = 7) -> tuple[float, float, float]:
    """Volume, energy (each of an atom) and bulk modulus in GPa, as ASE finds them."""
    volumes, energies = [], []
    for ratio in 1 + span * np.linspace(-1, 1, points):
        strained = atoms.copy()
        strained.set_cell(atoms.cell * ratio ** (1 / 3), scale_atoms=True)
        strained.calc = EMT()
        volumes.append(strained.get_volume() / len(atoms))
        energies.append(strained.get_potential_energy() / len(atoms))
    v, e, b = EquationOfState(volumes, energies, eos="birchmurnaghan").fit()
    return v, e, b / GPa


def inner(folder: Path) -> Counter[str]:
    """App -> how many runs of it there are in the site's folder."""
    return Counter(json.loads(f.read_text())["app"] for f in folder.glob("work/*/manifest.json"))


def test_copper_by_emt_has_its_lattice_constant_and_bulk_modulus(here):
    result = ha.apps.eos(name="Cu", engine="emt").result()
    assert result.ok, result.failure
    # ASE's manual and K. W. Jacobsen et al. (Surf. Sci. 366, 394, 1996): 3.59 angstrom, 134 GPa.
    assert result["a0"] == pytest.approx(3.590, abs=1e-3)
    assert result["bulk_modulus"] == pytest.approx(134, abs=1)
    v, e, b = by_ase(bulk("Cu"))
    assert result["v0"] == pytest.approx(v, rel=1e-6)
    assert result["e0"] == pytest.approx(e, abs=1e-6)
    assert result["bulk_modulus"] == pytest.approx(b, rel=1e-4)
    assert 0 < result.uncertainty["a0"] < 1e-4
    assert result.units["a0"] == "angstrom" and result.units["bulk_modulus"] == "GPa"


@pytest.mark.parametrize(("element", "a"), [("Al", 3.99), ("Ag", 4.06), ("Au", 4.06), ("Ni", 3.49), ("Pt", 3.93)])
def test_other_metals_have_the_lattice_constants_of_the_potential(here, element, a):
    result = ha.apps.eos(name=element, engine="emt").result()
    # The potential was fitted to the experiments (4.05, 4.09, 4.08, 3.52, 3.92); EMT's own are within 1.5 %.
    v, _, b = by_ase(bulk(element))
    assert result["a0"] == pytest.approx((4 * v) ** (1 / 3), rel=1e-6)
    assert result["a0"] == pytest.approx(a, abs=0.011)
    assert result["bulk_modulus"] == pytest.approx(b, rel=1e-4)


def test_the_cubic_cell_gives_what_the_primitive_one_does(here):
    structure = ha.apps.dft_eos(bulk("Cu", cubic=True), engine="emt", lattice="fcc").result()
    primitive = ha.apps.eos(name="Cu", engine="emt").result()
    for name in ("a0", "v0", "e0", "bulk_modulus"):
        assert structure[name] == pytest.approx(primitive[name], rel=1e-7), name
    # Without a lattice there is no lattice constant, and none is made up.
    unknown = ha.apps.dft_eos(bulk("Cu", cubic=True), engine="emt").result()
    assert "a0" not in unknown.metrics and unknown["v0"] == structure["v0"]


def test_every_volume_is_a_run_and_two_questions_share_it(here):
    first = ha.apps.eos(name="Cu", engine="emt", points=5).result()
    assert inner(here) == {
        "eos": 1, "dft_eos": 1, "build_crystal": 1, "deform": 5, "dft_energy": 5, "eos_fit": 1, "plot_eos": 1
    }  # fmt: skip
    # Nine points of the same span: five of them have been computed.
    second = ha.apps.eos(name="Cu", engine="emt", points=9).result()
    again = inner(here)
    assert (again["dft_energy"], again["deform"], again["build_crystal"]) == (9, 9, 1)
    assert second["a0"] == pytest.approx(first["a0"], abs=1e-3)
    table = np.loadtxt(Path(second.workdir) / second.artifacts["eos"], delimiter=",", skiprows=1)
    assert table[:, 0] / 11.565 == pytest.approx(1 + 0.06 * np.linspace(-1, 1, 9), abs=0.03)
    assert (Path(second.workdir) / second.artifacts["plot"]).read_bytes().startswith(b"\x89PNG")


def test_volumes_are_computed_side_by_side(tmp_path, monkeypatch):
    asked, two_are_here = [], threading.Event()

    class Patient(EMT):
        """Does not answer before it has been asked for two volumes."""

        def calculate(self, *args, **kwargs):
            asked.append(self)
            if len(set(map(id, asked))) > 1:
                two_are_here.set()
            assert two_are_here.wait(30), "nobody asked for a second volume"
            super().calculate(*args, **kwargs)

    monkeypatch.setattr("ase.calculators.emt.EMT", Patient)
    with ha.open_site("threads", run_dir=tmp_path, workers=2):
        result = ha.apps.eos(name="Cu", engine="emt", points=5).result()
    assert result.ok, result.failure
    assert len(set(map(id, asked))) == 5


def test_an_engine_that_refuses_its_level_fails_the_chain_with_its_reason(here):
    failure = ha.apps.eos(name="Cu", engine="emt", xc="PBE").result().failure
    assert (failure.kind, failure.name) == ("contract", "BadSettings")
    assert "engine 'emt' does not take xc='PBE'" in failure.message


@pytest.mark.parametrize(("a", "side"), [(3.0, "larger"), (4.2, "smaller")])
def test_a_start_far_from_the_minimum_says_on_which_side_it_is(here, a, side):
    failure = ha.apps.eos(name="Cu", engine="emt", a=a).result().failure
    assert (failure.kind, failure.name) == ("simulation", "MinimumOutside")
    assert failure.repair == f"add {side} volumes"


def test_a_lattice_that_nobody_knows_fails_by_its_name(here):
    failure = ha.apps.eos(name="Qq", engine="emt").result().failure
    assert (failure.kind, failure.name) == ("contract", "BadLattice")
    assert "Qq" in failure.message


@pytest.mark.parametrize(
    ("name", "lattice"), [("Cu", "fcc"), ("Si", "diamond"), ("Fe", "bcc"), ("Mg", "none"), ("NaCl", "none")]
)
def test_the_lattice_of_an_element_is_its_own(name, lattice):
    assert element_lattice(name) == lattice
