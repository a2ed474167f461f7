"""Molecular dynamics: conservation, equipartition, and runs that go wrong."""

from __future__ import annotations

import csv
import itertools
import json
import math
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.lj import LennardJones
from ase.constraints import FixAtoms
from ase.io import read
from ase.units import kB

import hpcagent as ha
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import given
from hpcagent.errors import AppFailed
from hpcagent.science.mlip.md import COLUMNS, mlip_md
from tests.unit.science.mlip.argon import PARAMETERS, Argon

ARGON = {"keywords": PARAMETERS}
# The same, for engine "ase".
QUICK_ARGON = {"calculator": "tests.unit.science.mlip.argon:Argon"}

# Springs of unlike strength between unlike masses and their common centre: every mode is harmonic, and no force moves
# the centre.
SPRINGS = """
import numpy as np
from ase.calculators.calculator import Calculator

class Springs(Calculator):
    implemented_properties = ["energy", "forces"]
    def calculate(self, atoms=None, properties=None, system_changes=None):
        super().calculate(atoms, properties, system_changes)
        bonds = np.diff(atoms.positions, axis=0) - np.array([2.0, 0, 0])
        k = np.linspace(1.0, 3.0, len(bonds))[:, None]
        forces = np.zeros_like(atoms.positions)
        forces[:-1] += k * bonds
        forces[1:] -= k * bonds
        self.results = {"energy": float(0.5 * (k * bonds**2).sum()), "forces": forces}
"""


def dynamics(
    atoms: Atoms,
    workdir: Path,
    settings: dict[str, Any] | None = None,
    *,
    execution_id: str = "run-1",
    resources: dict[str, Any] | None = None,
    **params: Any,
) -> Outcome:
    app = mlip_md.with_settings(**(settings or {}))
    values = app.contract.space.validated(params)
    workdir.mkdir(exist_ok=True)
    run = Run(
        workdir=workdir,
        execution_id=execution_id,
        settings=app.settings,
        upstream=(given(atoms).fields,),
        resources=app.contract.resources_for(values).model_dump() | (resources or {}),
    )
    assert app.plain_function is not None
    outcome = app.plain_function(run=run, **values)
    assert isinstance(outcome, Outcome)
    return outcome


def argon(n: int = 2) -> Atoms:
    return bulk("Ar", "fcc", a=5.4, cubic=True) * (n, n, n)


def table(workdir: Path) -> dict[str, np.ndarray]:
    with (workdir / "thermo.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}


@pytest.fixture
def springs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Atoms, dict[str, Any]]:
    """A chain of five atoms, and the settings of its calculator."""
    (tmp_path / "springs.py").write_text(SPRINGS)
    monkeypatch.syspath_prepend(str(tmp_path))
    atoms = Atoms("LiNaAlCuAg", positions=[[2.0 * i, 0, 0] for i in range(5)])
    return atoms, {"calculator": "springs:Springs"}


def test_the_quick_argon_of_these_tests_is_that_of_the_engine() -> None:
    for factor, seed in ((1.0, 1), (0.97, 2)):
        one = argon()
        one.rattle(0.2, seed=seed)
        one.set_cell(one.cell.array * [factor, 1.0, 1.01], scale_atoms=True)
        one.positions += [7.0, -20.0, 0.3]
        other = one.copy()
        one.calc, other.calc = Argon(), LennardJones(**PARAMETERS)
        assert one.get_potential_energy() == pytest.approx(other.get_potential_energy(), rel=1e-10)
        assert one.get_forces() == pytest.approx(other.get_forces(), abs=1e-10)
        assert one.get_stress() == pytest.approx(other.get_stress(), abs=1e-10)


@pytest.mark.usefixtures("no_children")
def test_without_a_thermostat_energy_is_conserved_the_better_the_smaller_the_step(tmp_path: Path) -> None:
    ratios = []
    for timestep in (4.0, 8.0, 16.0):
        outcome = dynamics(
            argon(),
            tmp_path / f"{timestep}",
            QUICK_ARGON,
            engine="ase",
            ensemble="nve",
            temperature=60.0,
            timestep=timestep,
            steps=round(2400 / timestep),
            sample_every=round(16 / timestep) * 2,
        )
        ratios.append(outcome.metrics["energy_fluctuation"])
        assert outcome.metrics["simulated_ps"] == pytest.approx(2.4)
    # Velocity Verlet: the error of the energy grows as the square of the timestep.
    assert [ratios[1] / ratios[0], ratios[2] / ratios[1]] == pytest.approx([4, 4], rel=0.25)
    assert ratios[0] < 0.01


@pytest.mark.usefixtures("no_children")
@pytest.mark.parametrize("thermostat", ["langevin", "bussi", "nose_hoover_chain"])
def test_thermostats_give_every_degree_of_freedom_its_share(
    thermostat: str, springs: tuple[Atoms, dict[str, Any]], tmp_path: Path
) -> None:
    atoms, settings = springs
    outcome = dynamics(
        atoms,
        tmp_path / "run",
        settings,
        engine="ase",
        thermostat=thermostat,
        temperature=300.0,
        timestep=4.0,
        steps=1600,
        equilibration_steps=400,
        sample_every=5,
        thermostat_time=80.0,
    )
    metrics, error = outcome.metrics, outcome.uncertainty
    assert 1 < error["temperature"] < 30
    # Counted over 3 N degrees of freedom it would be 240 or 375 K.
    assert metrics["temperature"] == pytest.approx(300.0, abs=3.5 * error["temperature"])
    # Equipartition: 3 N - 3 = 12 harmonic modes have k_B T / 2 of potential energy each; N = 5.
    share = 12 / 2 * kB * 300.0 / 5
    assert metrics["potential_energy"] == pytest.approx(share, abs=3.5 * error["potential_energy"])
    assert metrics["kinetic_energy"] == pytest.approx(share, abs=3.5 * error["kinetic_energy"])
    protocol = json.loads((tmp_path / "run" / "md.json").read_text())
    assert protocol["degrees_of_freedom"] == 12
    if thermostat == "langevin":
        assert "energy_drift_mev_per_atom_ns" not in metrics
        assert protocol["friction_per_fs"] == 0.01
    else:
        # What is conserved with a thermostat is; the potential energy alone fluctuates by its own mean.
        assert metrics["energy_fluctuation"] < 0.05
        assert protocol["thermostat_time_fs"] == 80.0


@pytest.mark.slow
@pytest.mark.usefixtures("no_children")
def test_a_barostat_gives_the_pressure_asked_for(tmp_path: Path) -> None:
    outcome = dynamics(
        argon(),
        tmp_path / "run",
        QUICK_ARGON,
        engine="ase",
        ensemble="npt",
        thermostat="nose_hoover_chain",
        temperature=60.0,
        pressure_gpa=0.2,
        timestep=10.0,
        steps=1000,
        equilibration_steps=300,
        barostat_time=800.0,
    )
    metrics, error = outcome.metrics, outcome.uncertainty
    assert metrics["pressure"] == pytest.approx(0.2, abs=4 * error["pressure"])
    assert error["pressure"] < 0.04
    assert metrics["temperature"] == pytest.approx(60.0, abs=4 * error["temperature"])
    assert metrics["energy_fluctuation"] < 0.05
    # Denser than argon at no pressure and 60 K (1.7 g/cm^3).
    assert 1.7 < metrics["density"] < 2.0


def test_what_was_done_is_written_down(tmp_path: Path) -> None:
    outcome = dynamics(
        argon(),
        tmp_path / "run",
        ARGON,
        engine="lj",
        ensemble="nve",
        thermostat="bussi",
        equilibration_steps=20,
        temperature=50.0,
        timestep=5.0,
        steps=100,
        every=25,
    )
    assert dict(outcome.artifacts) == {
        "structure": "structure.xyz",
        "trajectory": "md.traj",
        "thermo": "thermo.csv",
        "protocol": "md.json",
    }
    protocol = json.loads((tmp_path / "run" / "md.json").read_text())
    assert (protocol["ensemble"], protocol["thermostat"], protocol["timestep_fs"]) == ("nve", None, 5.0)
    assert protocol["equilibration"]["thermostat"] == "bussi"
    assert protocol["equilibration"]["steps"] == 20
    assert (protocol["engine"], protocol["checkpoint_sha256"]) == ("lj", None)
    columns = table(tmp_path / "run")
    assert tuple(columns) == COLUMNS
    assert columns["time_ps"] == pytest.approx(np.arange(11) * 0.05)
    assert columns["etot_eV"] == pytest.approx(columns["epot_eV"] + columns["ekin_eV"])
    assert columns["volume_A3"] == pytest.approx(10.8**3)
    frames = read(tmp_path / "run" / "md.traj", ":")
    assert len(frames) == 5
    assert frames[0].get_forces().shape == (32, 3)
    assert [f.get_potential_energy() for f in (frames[0], frames[-1])] == pytest.approx(
        columns["epot_eV"][[0, -1]]
    )
    last = read(tmp_path / "run" / "structure.xyz")
    assert last.get_momenta() == pytest.approx(frames[-1].get_momenta(), abs=1e-6)
    assert not last.constraints
    # 32 atoms of 39.948 u in (10.8 angstrom)^3.
    assert outcome.metrics["density"] == pytest.approx(32 * 39.948 / 6.02214076e23 / (10.8e-8) ** 3, rel=1e-4)
    assert outcome.metrics["n_samples"] == 10


def test_frames_and_rows_count_from_the_end_of_the_equilibration(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"engine": "lj", "temperature": 50.0, "timestep": 5.0}
    dynamics(argon(), tmp_path / "run", ARGON, steps=35, equilibration_steps=7, every=15, **settings)
    columns = table(tmp_path / "run")
    assert columns["time_ps"] == pytest.approx([0.0, 0.05, 0.1, 0.15])
    frames = read(tmp_path / "run" / "md.traj", ":")
    assert len(frames) == 3
    assert frames[0].get_potential_energy() == pytest.approx(columns["epot_eV"][0])
    assert frames[2].get_potential_energy() == pytest.approx(columns["epot_eV"][3])


def test_the_thermo_table_agrees_with_the_trajectory(tmp_path: Path) -> None:
    dynamics(argon(), tmp_path / "run", ARGON, engine="lj", temperature=80.0, steps=50, every=10, timestep=5.0)
    columns = table(tmp_path / "run")
    for n, frame in enumerate(read(tmp_path / "run" / "md.traj", ":")):
        kinetic = frame.get_kinetic_energy()
        assert columns["ekin_eV"][n] == pytest.approx(kinetic, rel=1e-6)
        assert columns["temperature_K"][n] == pytest.approx(2 * kinetic / (3 * 32 - 3) / kB, rel=1e-6)
        # The centre of mass rests.
        assert frame.get_momenta().sum(axis=0) == pytest.approx([0, 0, 0], abs=1e-8)


def test_start_velocities_are_of_the_run_and_of_its_temperature(tmp_path: Path) -> None:
    def start(execution_id: str, where: str) -> Atoms:
        settings = {"engine": "lj", "ensemble": "nve", "temperature": 100.0, "steps": 1}
        dynamics(argon(3), tmp_path / where, ARGON, execution_id=execution_id, **settings)
        return read(tmp_path / where / "md.traj", 0)

    one, same, other = start("run-1", "a"), start("run-1", "b"), start("run-2", "c")
    assert np.array_equal(one.get_momenta(), same.get_momenta())
    assert not np.allclose(one.get_momenta(), other.get_momenta())
    # 108 atoms: the temperature of one draw scatters by sqrt(2 / 321) = 8 %.
    assert 2 * one.get_kinetic_energy() / (321 * kB) == pytest.approx(100.0, rel=0.3)


def test_runs_can_follow_one_another(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"engine": "lj", "ensemble": "nve", "temperature": 60.0, "timestep": 5.0}
    dynamics(argon(), tmp_path / "first", ARGON, steps=50, **settings)
    middle = read(tmp_path / "first" / "structure.xyz")
    dynamics(middle, tmp_path / "second", ARGON, steps=50, velocities="keep", **settings)
    dynamics(argon(), tmp_path / "whole", ARGON, steps=100, **settings)
    whole, second = table(tmp_path / "whole"), table(tmp_path / "second")
    # The file in between has eight decimals.
    assert second["epot_eV"][-1] == pytest.approx(whole["epot_eV"][-1], abs=1e-4)
    assert second["ekin_eV"][0] == pytest.approx(whole["ekin_eV"][5], rel=1e-5)


def test_no_velocities_to_keep_are_told_of(tmp_path: Path) -> None:
    outcome = dynamics(argon(), tmp_path / "run", ARGON, engine="lj", velocities="keep", steps=10)
    assert any("has no velocities" in note for note in outcome.notes)


def test_fixed_atoms_stay_and_do_not_count(tmp_path: Path) -> None:
    atoms = argon()
    atoms.set_constraint(FixAtoms(range(8)))
    dynamics(atoms, tmp_path / "run", ARGON, engine="lj", temperature=50.0, steps=30, thermostat="bussi")
    last = read(tmp_path / "run" / "structure.xyz")
    assert last.positions[:8] == pytest.approx(atoms.positions[:8], abs=1e-7)
    assert json.loads((tmp_path / "run" / "md.json").read_text())["degrees_of_freedom"] == 3 * 24


@pytest.mark.usefixtures("no_children")
def test_errors_are_those_of_correlated_samples(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"engine": "ase", "temperature": 60.0, "timestep": 5.0, "steps": 600}
    outcome = dynamics(argon(), tmp_path / "run", QUICK_ARGON, sample_every=1, friction=0.05, **settings)
    temperatures = table(tmp_path / "run")["temperature_K"][1:]
    naive = float(temperatures.std()) / math.sqrt(len(temperatures))
    assert outcome.uncertainty["temperature"] > 2 * naive


def test_a_timestep_far_too_long_explodes_by_name(tmp_path: Path) -> None:
    with pytest.raises(AppFailed) as failed:
        dynamics(
            bulk("Cu", cubic=True),
            tmp_path / "run",
            engine="emt",
            ensemble="nve",
            temperature=3000.0,
            timestep=20.0,
        )
    assert failed.value.name in ("Exploded", "NonNumeric")
    assert failed.value.kind == "simulation"
    assert "smaller timestep" in str(failed.value.repair)
    assert (tmp_path / "run" / "thermo.csv").is_file()


def test_its_walltime_ends_it_with_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = (
        itertools.count()
    )  # at a clock that goes on by a hundredth of a second with each, however busy the machine is
    clock = types.SimpleNamespace(monotonic=lambda: 0.01 * next(looks), perf_counter=time.perf_counter)
    monkeypatch.setattr("hpcagent.science.mlip.md.time", clock)
    with pytest.raises(AppFailed, match=r"walltime limit of 0\.3 s") as failed:
        dynamics(
            argon(), tmp_path / "run", ARGON, engine="lj", steps=1_000_000, resources={"walltime_s": 0.3}, every=10
        )
    assert (failed.value.kind, failed.value.name) == ("infrastructure", "Walltime")
    assert "steps were made" in str(failed.value.repair)
    assert len(table(tmp_path / "run")["time_ps"]) > 2
    assert len(read(tmp_path / "run" / "md.traj", ":")) > 2


@pytest.mark.parametrize(
    ("atoms", "params", "said"),
    [
        (Atoms("Ar"), {}, "one atom"),
        (molecule("H2O"), {"ensemble": "npt", "engine": "tblite"}, "three periodic directions"),
        (argon(), {"ensemble": "npt", "thermostat": "bussi"}, "Nose-Hoover chain"),
        (argon(), {"gpus": 1, "ranks": 2}, "2 MPI ranks"),
    ],
)
def test_what_makes_no_sense_is_refused(atoms: Atoms, params: dict[str, Any], said: str, tmp_path: Path) -> None:
    settings = ARGON if params.get("engine", "lj") == "lj" else {}
    with pytest.raises(AppFailed, match=said) as failed:
        dynamics(atoms, tmp_path / "run", settings, **{"engine": "lj", **params})
    assert (failed.value.kind, failed.value.name) == ("contract", "BadSettings")


def test_an_engine_with_an_scf_moves_atoms_too(tmp_path: Path) -> None:
    outcome = dynamics(molecule("H2O"), tmp_path / "run", engine="tblite", ensemble="nve", steps=20, timestep=0.5)
    assert outcome.metrics["scf_steps"] > 20
    assert outcome.artifacts["scf"] == "scf.json"
    assert "density" not in outcome.metrics


def test_called_on_a_site_it_gives_what_its_contract_promises() -> None:
    with ha.open_site("threads", private=False):
        result = mlip_md.with_settings(**ARGON)(argon(), engine="lj", temperature=60.0, steps=200).result()
    assert result.ok, result.failure
    assert set(result.metrics) <= {m.name for m in mlip_md.contract.metrics}
    assert result.units["temperature"] == "K"
    assert result.metrics["steps_per_s"] > 10
