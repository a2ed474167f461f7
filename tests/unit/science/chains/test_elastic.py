"""Elastic constants by EMT, against finite differences of ASE's stresses and the equation of state."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.units import GPa

import hpcagent as ha
from hpcagent.science.chains.elastic import _errors


@pytest.fixture(autouse=True)
def site(tmp_path):
    with ha.open_site("threads", run_dir=tmp_path):
        yield


def by_hand(atoms: Atoms, voigt: int, strain: float = 1e-4) -> np.ndarray:
    """Column of the elastic tensor in GPa: stress over strain, by central differences."""
    stresses = []
    for sign in (1, -1):
        tensor = np.eye(3)
        i, j = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))[voigt]
        tensor[i, j] += sign * strain / (1 if i == j else 2)
        tensor[j, i] = tensor[i, j]
        strained = atoms.copy()
        strained.set_cell(atoms.cell[:] @ tensor, scale_atoms=True)
        strained.calc = EMT()
        stresses.append(strained.get_stress() / GPa)
    return (stresses[0] - stresses[1]) / (2 * strain)


def test_copper_has_the_constants_of_emt():
    result = ha.apps.elastic(bulk("Cu"), engine="emt", fmax=1e-4).result()
    assert result.ok, result.failure
    rest = bulk("Cu", a=ha.apps.eos(name="Cu", engine="emt").result()["a0"])
    stretched, sheared = by_hand(rest, 0), by_hand(rest, 3)
    assert result["c11"] == pytest.approx(stretched[0], rel=2e-3)
    assert result["c12"] == pytest.approx(stretched[1], rel=2e-3)
    assert result["c44"] == pytest.approx(sheared[3], rel=2e-3)
    # EMT's copper; experiment (Overton and Gaffney, Phys. Rev. 98, 969, 1955): 168, 121, 75 GPa.
    assert [result[n] for n in ("c11", "c12", "c44")] == pytest.approx([173, 116, 90], abs=1)
    assert result["stable"] == 1 and result["residual_stress"] < 0.01


@pytest.mark.parametrize("element", ["Cu", "Al", "Pt"])
def test_a_third_of_c11_and_twice_c12_is_the_bulk_modulus_of_the_equation_of_state(element):
    constants = ha.apps.elastic(bulk(element), engine="emt", fmax=1e-4).result()
    curve = ha.apps.eos(name=element, engine="emt").result()
    assert (constants["c11"] + 2 * constants["c12"]) / 3 == pytest.approx(curve["bulk_modulus"], rel=2e-3)
    assert constants["bulk_modulus"] == pytest.approx(curve["bulk_modulus"], rel=2e-3)


def test_twelve_strains_find_what_four_do_where_the_crystal_is_cubic():
    few = ha.apps.elastic(bulk("Cu", cubic=True), engine="emt", fmax=1e-4).result()
    many = ha.apps.elastic(bulk("Cu", cubic=True), engine="emt", fmax=1e-4, symmetry="none").result()
    assert [p.app for p in few.parts].count("dft_relax") == 5
    assert [p.app for p in many.parts].count("dft_relax") == 13
    for name in ("c11", "c12", "c44", "bulk_modulus"):
        assert many[name] == pytest.approx(few[name], rel=1e-6), name
    # The relaxed cell and the strains along one axis were computed already.
    assert sum(p.shared for p in many.parts if p.app == "dft_relax") >= 5


def test_a_turned_crystal_has_the_constants_of_one_that_lies_straight():
    turned = bulk("Cu")
    turned.rotate(25, (1, 2, 3), rotate_cell=True)
    result = ha.apps.elastic(turned, engine="emt", fmax=1e-4).result()
    assert result.ok, result.failure
    # As above; taken for a cube along x, y, z it would be 219, 92, 69.
    assert [result[n] for n in ("c11", "c12", "c44")] == pytest.approx([173, 116, 90], abs=1)
    assert result["n_constants"] == 3 and any("not those of the structure" in note for note in result.notes)


def test_atoms_are_relaxed_in_the_strained_cells_without_being_asked_for():
    copper = bulk("Cu", "hcp", a=2.55, c=4.16)
    found = ha.apps.elastic(copper, engine="emt").result()
    assert found.ok, found.failure
    # By differences with ASE's own EMT and relaxations to 1e-5: 216.3 and 52.1; with clamped atoms 233.7 and 69.5.
    assert [found["c11"], found["c66"]] == pytest.approx([216.3, 52.1], abs=0.5)
    assert any("atoms relaxed to forces below 0.00025 eV/angstrom" in note for note in found.notes)
    loose = ha.apps.elastic(copper, engine="emt", fmax=0.05).result()
    assert any("towards those with clamped atoms" in note for note in loose.notes)


def test_a_reference_under_stress_is_said_to_be():
    result = ha.apps.elastic(bulk("Cu"), engine="emt", fmax=0.2).result()
    assert result["residual_stress"] > 1
    assert any("the reference is under a stress of 2" in note for note in result.notes)


def test_a_hexagonal_crystal_has_its_five_constants():
    argon = bulk("Ar", "hcp", a=3.75, c=3.75 * np.sqrt(8 / 3))
    app = ha.apps.elastic.with_settings(keywords={"sigma": 3.405, "epsilon": 0.0104, "rc": 9.0, "smooth": True})
    found = app(argon, engine="lj", fmax=1e-4).result()
    assert found.ok, found.failure
    assert found["n_constants"] == 5 and any("hexagonal: 5 constants" in note for note in found.notes)
    # Isotropic about c: C66 is what C11 and C12 make it. Nothing of it was put in where all 21 are fitted.
    assert found["c66"] == pytest.approx((found["c11"] - found["c12"]) / 2, rel=1e-6)
    whole = app(argon, engine="lj", fmax=1e-4, symmetry="none").result()
    for name in ("c11", "c12", "c13", "c33", "c44", "c66"):
        assert found[name] == pytest.approx(whole[name], rel=5e-3), name
    assert found["c33"] > 1.05 * found["c11"] and abs(found["c14"]) < 0.01
    refused = app(argon, engine="lj", fmax=1e-4, symmetry="cubic").result().failure
    assert (refused.kind, refused.name) == ("contract", "NotCubic")
    assert "is hexagonal, not cubic: it has 5 constants" in refused.message


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pw.x") is None, reason="needs pw.x")
def test_the_error_holds_the_change_with_the_k_points_and_the_mesh_stays(tmp_path):
    level = {"engine": "espresso", "ecut": 150.0, "kspacing": 0.995, "smearing": 0.0, "fmax": 0.5, "max_steps": 5}
    app = ha.apps.elastic.with_settings(pseudopotentials={"Si": "Si.pbe-rrkj.UPF"})
    result = app(bulk("Si", a=5.46), **level).result()
    assert result.ok, result.failure
    inputs = [p.read_text() for p in tmp_path.glob("work/*/espresso.pwi")]
    meshes = {re.search(r"K_POINTS automatic\s+(\d+ \d+ \d+)", text)[1] for text in inputs}
    # 2 pi sqrt(3) / 5.46 / 0.995 = 2.003: 3 points, as for the structure that was given, although a cell that has
    # grown by some 0.2 % would have 2.
    assert meshes == {"3 3 3", "5 5 5"}
    # 1e-9 eV in Ry.
    tolerances = [float(re.search(r"conv_thr\s*=\s*(\S+)", text)[1]) for text in inputs]
    assert tolerances == pytest.approx([7.35e-11] * len(inputs), rel=0.01)
    assert any("SCF converged to 1e-09 eV" in note for note in result.notes)
    assert any("from 3x3x3 to 5x5x5 k-points" in note for note in result.notes)
    blind = app(bulk("Si", a=5.46), **level, k_check="no").result()
    assert any("k_check was no" in note for note in blind.notes)
    assert blind["c11"] == pytest.approx(result["c11"])
    assert result.uncertainty["c11"] > max(1.0, 3 * blind.uncertainty["c11"])


def test_the_change_with_the_mesh_alone_is_no_error():
    class Fit(dict):
        uncertainty = {"c11": 0.3}
        metrics = {"c11": 150.0, "shear_modulus": 50.0}

    fit = Fit({"c11": 150.0, "shear_modulus": 50.0})
    # The scatter of the shear modulus is not known, which is not none.
    assert _errors(fit, {"c11": 150.4, "shear_modulus": 50.1}) == pytest.approx({"c11": 0.5})


def test_a_strain_that_is_large_is_said_to_be():
    result = ha.apps.elastic(bulk("Cu"), engine="emt", fmax=1e-4, strain=0.03).result()
    assert any("strains up to 0.03 are large" in note for note in result.notes)


def test_a_cell_that_does_not_come_to_rest_fails_by_its_name():
    failure = ha.apps.elastic(bulk("Cu", a=3.9), engine="emt", fmax=1e-4, max_steps=1).result().failure
    assert failure.name == "NotRelaxed"
    assert "its inner run dft_relax" in failure.message


def test_an_engine_that_refuses_its_level_fails_the_chain_with_its_reason():
    failure = ha.apps.elastic(bulk("Cu"), engine="emt", kpts=3).result().failure
    assert (failure.kind, failure.name) == ("contract", "BadSettings")
    assert "kpts=3" in failure.message
