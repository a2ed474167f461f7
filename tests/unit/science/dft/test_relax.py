"""Relaxations to known geometries, and those that do not get there."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.constraints import FixAtoms
from ase.io import read

from hpcagent.apps.base import App
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import given
from hpcagent.errors import AppFailed
from hpcagent.science.dft.relax import dft_relax
from hpcagent.science.mlip.relax import mlip_relax


def relaxed(
    atoms: Atoms,
    workdir: Path,
    *,
    app: App = dft_relax,
    settings: dict[str, Any] | None = None,
    resources: dict[str, Any] | None = None,
    **params: Any,
) -> tuple[Outcome, Atoms]:
    app = app.with_settings(**(settings or {}))
    values = app.contract.space.validated(params)
    wanted = app.contract.resources_for(values).model_dump() | (resources or {})
    assert app.plain_function is not None
    upstream = (given(atoms).fields,)
    outcome = app.plain_function(
        run=Run(workdir=workdir, settings=app.settings, upstream=upstream, resources=wanted), **values
    )
    return outcome, read(workdir / outcome.artifacts["structure"])


@pytest.mark.parametrize("symbol", ["H2", "H2O"])
@pytest.mark.dft
def test_the_default_engine_relaxes_a_molecule(tmp_path: Path, symbol: str) -> None:
    pytest.importorskip("pyscf")
    outcome, atoms = relaxed(molecule(symbol), tmp_path, xc="HF", basis="sto-3g")
    assert outcome.metrics["max_force"] < 0.02 and outcome.metrics["n_steps"] > 1
    # HF/STO-3G: W. J. Hehre, R. F. Stewart and J. A. Pople, J. Chem. Phys. 51, 2657 (1969): 0.712 and 0.990.
    assert atoms.get_distance(0, 1) == pytest.approx({"H2": 0.712, "H2O": 0.990}[symbol], abs=0.004)


def test_gfn2_water_has_its_known_geometry(tmp_path: Path) -> None:
    outcome, atoms = relaxed(molecule("H2O"), tmp_path, engine="tblite", fmax=0.005)
    # GFN2-xTB: 0.959 angstrom and 107 degrees (measured: 0.958 and 104.5).
    assert atoms.get_distance(0, 1) == pytest.approx(0.959, abs=0.003)
    assert atoms.get_angle(1, 0, 2) == pytest.approx(107.0, abs=1.0)
    assert outcome.metrics["max_force"] < 0.005
    assert outcome.metrics["energy_gain"] > 0
    frames = read(tmp_path / "relax.traj", ":")
    assert len(frames) == outcome.metrics["n_steps"] + 1 == outcome.metrics["n_calculations"]
    assert frames[0].get_potential_energy() - frames[-1].get_potential_energy() == pytest.approx(
        outcome.metrics["energy_gain"], abs=1e-6
    )
    moved = np.linalg.norm(atoms.positions - molecule("H2O").positions, axis=1).max()
    assert outcome.metrics["displacement"] == pytest.approx(moved, abs=1e-6)


@pytest.mark.parametrize("optimizer", ["BFGS", "LBFGS", "FIRE", "GPMin"])
def test_two_lennard_jones_atoms_end_at_the_sixth_root_of_two(optimizer: str, tmp_path: Path) -> None:
    settings = {"keywords": {"epsilon": 0.1, "sigma": 3.0, "rc": 30.0}}
    _, atoms = relaxed(
        Atoms("Ar2", [[0, 0, 0], [0, 0, 3.6]]),
        tmp_path,
        settings=settings,
        engine="lj",
        optimizer=optimizer,
        fmax=1e-4,
        max_steps=500,
    )
    assert atoms.get_distance(0, 1) == pytest.approx(2 ** (1 / 6) * 3.0, abs=2e-3)


@pytest.mark.parametrize("cell", ["volume", "shape_and_volume"])
def test_copper_relaxes_to_its_lattice_constant(cell: str, tmp_path: Path) -> None:
    outcome, atoms = relaxed(bulk("Cu", a=3.65), tmp_path, engine="emt", cell=cell, fmax=1e-3)
    # EMT's: 3.59 angstrom.
    assert math.sqrt(2) * outcome.metrics["a"] == pytest.approx(3.59, abs=0.005)
    assert outcome.metrics["volume_change"] == pytest.approx((3.59 / 3.65) ** 3 - 1, abs=0.005)
    assert abs(outcome.metrics["pressure"]) < 0.1
    assert outcome.metrics["displacement"] == pytest.approx(0, abs=1e-6)
    assert atoms.get_volume() == pytest.approx(outcome.metrics["volume"])


def test_an_outer_pressure_is_the_pressure_in_the_end(tmp_path: Path) -> None:
    outcome, _ = relaxed(bulk("Cu", a=3.6), tmp_path, engine="emt", cell="volume", pressure_gpa=10.0, fmax=1e-4)
    assert outcome.metrics["pressure"] == pytest.approx(10.0, abs=0.05)


def test_a_shape_relaxes_at_its_volume(tmp_path: Path) -> None:
    atoms = bulk("Cu", a=3.65, cubic=True)
    atoms.set_cell(atoms.cell * [1.03, 1.0, 1 / 1.03], scale_atoms=True)
    outcome, after = relaxed(atoms, tmp_path, engine="emt", cell="shape", fmax=5e-3, optimizer="LBFGS")
    assert outcome.metrics["volume_change"] == pytest.approx(0, abs=1e-5)
    assert after.cell.lengths() == pytest.approx([3.65] * 3, abs=0.01)


def test_constraints_of_the_structure_hold(tmp_path: Path) -> None:
    atoms = bulk("Cu", a=3.6, cubic=True)
    atoms.rattle(0.1, seed=3)
    atoms.set_constraint(FixAtoms([0]))
    outcome, after = relaxed(atoms, tmp_path, engine="emt")
    assert after.positions[0] == pytest.approx(atoms.positions[0], abs=1e-7)
    assert outcome.metrics["max_force"] < 0.02


def test_not_relaxed_is_a_failure_that_keeps_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(AppFailed, match="not relaxed in 2 steps of BFGS: the largest force is") as failed:
        relaxed(molecule("H2O"), tmp_path, engine="tblite", max_steps=2, fmax=1e-4)
    assert (failed.value.kind, failed.value.name) == ("simulation", "NotRelaxed")
    assert "FIRE" in str(failed.value.repair)
    assert "BFGS:    2" in failed.value.log_tail
    frames = read(tmp_path / "relax.traj", ":")
    assert len(frames) == 3
    assert read(tmp_path / "structure.xyz").positions == pytest.approx(frames[-1].positions, abs=1e-6)
    assert (tmp_path / "scf.json").is_file()


def test_an_scf_that_fails_on_the_way_is_its_failure(tmp_path: Path) -> None:
    with pytest.raises(AppFailed) as failed:
        relaxed(molecule("H2O"), tmp_path, engine="tblite", max_scf=3, repairs=0)
    assert failed.value.name == "NotConverged"


@pytest.mark.parametrize(
    ("atoms", "params", "name", "said"),
    [
        (molecule("H2O"), {"engine": "tblite", "cell": "volume"}, "BadSettings", "periodic in three directions"),
        (bulk("Cu"), {"engine": "emt", "kpts": 3}, "BadSettings", "does not take kpts=3"),
    ],
)
def test_what_cannot_be_relaxed_is_refused(
    atoms: Atoms, params: dict[str, Any], name: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(AppFailed, match=said) as failed:
        relaxed(atoms, tmp_path, **params)
    assert (failed.value.kind, failed.value.name) == ("contract", name)


def test_its_walltime_ends_it_between_two_steps(tmp_path: Path) -> None:
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.rattle(0.2, seed=1)
    with pytest.raises(AppFailed, match="walltime limit") as failed:
        relaxed(atoms, tmp_path, engine="emt", fmax=1e-5, max_steps=10000, resources={"walltime_s": 0.05})
    assert (failed.value.kind, failed.value.name) == ("infrastructure", "Walltime")
    assert (tmp_path / "structure.xyz").is_file()


def test_the_same_with_the_app_for_machine_learned_potentials(tmp_path: Path) -> None:
    assert mlip_relax.contract.space["engine"].default == "mace"
    outcome, _ = relaxed(bulk("Cu", a=3.65), tmp_path, app=mlip_relax, engine="emt", cell="volume", fmax=1e-3)
    assert math.sqrt(2) * outcome.metrics["a"] == pytest.approx(3.59, abs=0.005)
