"""Boxes packed by the real Packmol, and by programs that pretend to be it."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

from hpcagent.apps.structures import given, structure_of
from hpcagent.model.records import Result
from hpcagent.science.structures.box import packmol_box

Build = Callable[..., Result]
WATER = given(molecule("H2O")).fields
needs_packmol = pytest.mark.skipif(shutil.which("packmol") is None, reason="packmol is not installed")


def ion(symbol: str, charge: float):
    return given(Atoms(symbol, charges=[charge])).fields


def pretender(folder: Path, text: str) -> dict[str, object]:
    """A site whose packmol is this shell script."""
    script = folder / "packmol-of-the-site"
    script.write_text("#!/bin/sh\n" + text)
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {"apps": {"packmol": {"command": [str(script)]}}}


@needs_packmol
def test_salt_water_has_its_density_and_keeps_its_distances(build: Build):
    # 262 x 18.015 + 22.990 + 35.45 u in (20 angstrom)^3 are 0.9918 g/cm^3.
    result = build(packmol_box, WATER, ion("Na", 1), ion("Cl", -1), counts="262,1,1", box=20.0, seed=3)
    assert result.ok, result.failure
    assert result["density"] == pytest.approx(0.9918, abs=1e-4)
    assert (result["n_atoms"], result["n_molecules"], result["charge"]) == (788, 264, 0)
    assert result["closest_contact"] > 1.98
    assert result["packmol_error"] < 0.02
    atoms = structure_of(result.model_dump())
    assert atoms.pbc.all()
    assert (np.bincount(atoms.arrays["mol-id"])[1:] == [3] * 262 + [1, 1]).all()
    assert list(atoms.arrays["kind"][-2:]) == [1, 2]
    assert atoms.get_initial_charges()[-2:] == pytest.approx([1, -1])
    # Distances of all atoms of different molecules, without the app's help.
    from scipy.spatial import cKDTree

    tree = cKDTree(atoms.positions % 20.0, boxsize=20.0)
    molecules = atoms.arrays["mol-id"]
    close = [(i, j) for i, j in tree.query_pairs(1.98) if molecules[i] != molecules[j]]
    assert close == []


@needs_packmol
def test_the_same_seed_packs_the_same_box(build: Build):
    how = {"counts": "20", "box": 12.0}
    first, again, other = (structure_of(build(packmol_box, WATER, seed=s, **how).model_dump()) for s in (1, 1, 2))
    assert (first.positions == again.positions).all()
    assert not np.allclose(first.positions, other.positions)


@needs_packmol
def test_what_does_not_fit_is_not_packed(build: Build):
    result = build(packmol_box, WATER, counts="40", box=8.0, loops=5)
    assert result.failure is not None
    assert (result.failure.name, result.failure.kind) == ("NotPacked", "simulation")
    assert "PACKMOL" in result.failure.log_tail or "STOP" in result.failure.log_tail


@pytest.mark.parametrize("counts", ["", "1,2", "0", "-1", "two", "1.5"])
def test_counts_that_do_not_fit_the_inputs(build: Build, counts):
    failure = build(packmol_box, WATER, counts=counts).failure
    assert failure is not None
    assert (failure.name, failure.kind) == ("BadCounts", "contract")


def test_a_box_without_room_is_refused_at_once(build: Build):
    failure = build(packmol_box, WATER, counts="1", box=2.0).failure
    assert failure is not None
    assert failure.name == "BadCounts"


def test_without_packmol_it_says_how_to_get_it(build: Build, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    failure = build(packmol_box, WATER, counts="1").failure
    assert failure is not None
    assert (failure.name, failure.kind) == ("NoExecutable", "infrastructure")
    assert "pip install packmol" in failure.message


TWO_WATERS = "printf '2\\n\\nH 1.0 1.0 1.0\\nH 1.5 1.0 1.0\\n' > packed.xyz; echo 'Version 20.14.0'; echo ' Success! '; exit 0"


def test_a_packing_that_breaks_its_promise_is_refused(build: Build, tmp_path: Path):
    site = pretender(tmp_path, TWO_WATERS)
    failure = build(packmol_box, given(Atoms("H")).fields, counts="2", on=site).failure
    assert failure is not None
    assert failure.name == "NotPacked"
    assert "0.500 angstrom" in failure.message


def test_a_packing_that_has_other_atoms_is_refused(build: Build, tmp_path: Path):
    site = pretender(tmp_path, TWO_WATERS)
    failure = build(packmol_box, given(Atoms("H")).fields, counts="3", on=site).failure
    assert failure is not None
    assert failure.name == "NotPacked"


def test_periodic_packing_is_asked_of_versions_that_have_it(build: Build, tmp_path: Path):
    text = "echo 'Version 21.1.0'; printf '1\\n\\nH 0.0 0.0 0.0\\n' > packed.xyz; echo Success!"
    result = build(packmol_box, given(Atoms("H")).fields, counts="1", on=pretender(tmp_path, text))
    assert result.ok, result.failure
    assert "pbc 20.0" in (Path(result.workdir) / "packmol.inp").read_text()
    assert result.notes == ()
