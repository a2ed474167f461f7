"""Averages and heat capacities of series whose answers are known."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcagent.errors import AppFailed
from hpcagent.science.analysis.averages import averages, chodera_start, mser5_start, read_table
from hpcagent.science.analysis.heat_capacity import heat_capacity
from tests.unit.science.analysis.trajectories import run_of

LMP = Path(sys.executable).parent / "lmp"
K_B = 8.617333262145e-5
HEADER = "time_ps,temperature_K,epot_eV,ekin_eV,etot_eV,econserved_eV,volume_A3,pressure_GPa\n"


def autoregressive(n: int, phi: float, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=n)
    x = np.empty(n)
    x[0] = noise[0] / math.sqrt(1 - phi**2)
    for i in range(1, n):
        x[i] = phi * x[i - 1] + noise[i]
    return x


def thermo(
    folder: Path,
    potential: np.ndarray,
    kinetic: np.ndarray,
    n_atoms: int,
    ensemble: str = "",
    volume: float = 1000.0,
) -> dict[str, Any]:
    """What molecular dynamics with ASE leaves behind, as an input run."""
    import ase.io
    from ase import Atoms

    temperature = 2 * kinetic / ((3 * n_atoms - 3) * K_B)
    with (folder / "thermo.csv").open("w") as file:
        file.write(HEADER)
        for i in range(len(potential)):
            row = (0.01 * i, temperature[i], potential[i], kinetic[i], potential[i] + kinetic[i])
            file.write(",".join(f"{v:.15g}" for v in row) + f",,{volume:g},0.1\n")
    ase.io.write(folder / "structure.xyz", Atoms(f"Ar{n_atoms}", positions=np.zeros((n_atoms, 3)), cell=[10] * 3))
    if ensemble:
        (folder / "md.json").write_text(f'{{"ensemble": "{ensemble}", "timestep_fs": 1.0}}')
    return {
        "workdir": str(folder),
        "artifacts": {"thermo": "thermo.csv", "structure": "structure.xyz", "protocol": "md.json"},
    }


def test_errors_of_means_are_those_of_an_autoregressive_series(tmp_path: Path) -> None:
    # Inefficiency (1 + phi) / (1 - phi) = 9; error of the mean = 1 / ((1 - phi) sqrt(n)).
    n, phi = 4000, 0.8
    misses = []
    for seed in range(5):
        kinetic = 10 + 0.1 * autoregressive(n, phi, seed)
        before = thermo(tmp_path, np.full(n, -50.0), kinetic, n_atoms=100)
        found = averages.plain_function(run=run_of(tmp_path, before), equilibration="none", discard=0.0)
        expected = 0.1 / (1 - phi) / math.sqrt(n) / 100
        # One error of 40 batches is known to a fifth, and skewed upwards.
        assert 0.65 < found.uncertainty["total_energy"] / expected < 1.7
        assert found.metrics["n_effective"] == pytest.approx(n / 9, rel=0.35)
        misses.append((found.metrics["total_energy"] + 0.4) / found.uncertainty["total_energy"])
    assert np.abs(misses).max() < 3


def test_units_of_the_means(tmp_path: Path) -> None:
    kinetic = 10 + 0.1 * autoregressive(200, 0.0, 1)
    before = thermo(tmp_path, np.full(200, -50.0), kinetic, n_atoms=100)
    run = run_of(tmp_path, before)
    metrics = averages.plain_function(run=run, equilibration="none", discard=0.0).metrics
    assert metrics["pressure"] == pytest.approx(1000.0)  # 0.1 GPa
    # 100 argon atoms in 1000 angstrom^3, by hand: 3994.8 / 6.02214e23 g / 1e-21 cm^3.
    assert metrics["density"] == pytest.approx(6.6335, rel=1e-4)
    # P V = 1e8 Pa * 1e-27 m^3 = 1e-19 J = 0.62415 eV.
    assert metrics["enthalpy"] - metrics["total_energy"] == pytest.approx(0.0062415, rel=1e-4)
    text = (run.workdir / "averages.csv").read_text().splitlines()
    assert text[0] == "quantity,unit,mean,error,standard_deviation,n_effective" and text[1].startswith(
        "temperature,K,"
    )


@pytest.mark.parametrize("find", [mser5_start, chodera_start])
def test_a_start_up_is_found_and_a_settled_series_is_kept(find: Any) -> None:
    settled = autoregressive(2000, 0.5, 3)
    assert find(settled) <= 200
    starting = settled + 20 * np.exp(-np.arange(2000) / 60)
    assert 120 <= find(starting) <= 600
    assert abs(starting[find(starting) :].mean() - settled.mean()) < 0.15


def test_equilibration_is_left_out_of_the_means(tmp_path: Path) -> None:
    kinetic = 10 + 0.1 * autoregressive(2000, 0.5, 3)
    potential = -50 + 0.1 * autoregressive(2000, 0.5, 4) + 8 * np.exp(-np.arange(2000) / 60)
    before = thermo(tmp_path, potential, kinetic, n_atoms=100)
    for how in ("mser5", "chodera"):
        found = averages.plain_function(run=run_of(tmp_path, before), equilibration=how, discard=0.0)
        assert found.metrics["potential_energy"] == pytest.approx(-0.5, abs=2e-3)
        assert 1.0 < found.metrics["equilibration_ps"] < 8.0
    found = averages.plain_function(run=run_of(tmp_path, before), equilibration="share", discard=0.25)
    assert found.metrics["n_samples"] == 1500 and found.metrics["equilibration_ps"] == pytest.approx(5.0)


def test_a_table_of_lammps_and_what_it_cannot_be(tmp_path: Path) -> None:
    log = "units {}\nthermo_style custom step temp pe ke etotal press vol\nthermo_modify norm no\ntimestep 2.0\nrun 20\n"
    log += (
        "   Step          Temp          PotEng         KinEng         TotEng         Press          Volume    \n"
    )
    log += "         0   100           -10            2             -8              1              1000         \n"
    log += "        10   100           -10            2             -8              1              1000         \n"
    log += "Loop time of 1 on 1 procs for 20 steps with 32 atoms\n"
    (tmp_path / "log.lammps").write_text(log.format("real"))
    before = {"workdir": str(tmp_path), "artifacts": {"log": "log.lammps"}}
    table = read_table(before)
    # kcal/mol: 0.0433641 eV; atm: 1.01325 bar; fs.
    assert table["total"][0] == pytest.approx(-8 * 0.0433641, rel=1e-6)
    assert table["pressure"][1] == pytest.approx(1.01325) and table["time"][1] == pytest.approx(0.02)
    assert table.n_atoms == 32
    (tmp_path / "log.lammps").write_text(log.format("lj"))
    cases = {
        "ReducedUnits": before,
        "NoThermo": {"workdir": str(tmp_path), "artifacts": {}},
        "MissingFile": {"workdir": str(tmp_path), "artifacts": {"thermo": "no.csv"}},
    }
    (tmp_path / "empty.csv").write_text(HEADER)
    cases["BadThermo"] = {"workdir": str(tmp_path), "artifacts": {"thermo": "empty.csv"}}
    for name, run in cases.items():
        with pytest.raises(AppFailed) as failed:
            averages.plain_function(run=run_of(tmp_path, run), equilibration="none", discard=0.0)
        assert failed.value.name == name
    (tmp_path / "log.lammps").write_text(log.format("real"))
    with pytest.raises(AppFailed) as failed:
        averages.plain_function(run=run_of(tmp_path, before), equilibration="none", discard=0.0)
    assert failed.value.name == "TooFewSamples"


NVT = {"ensemble": "nvt", "equilibration": "none", "discard": 0.0}


def harmonic(
    n_rows: int, n_atoms: int, temperature: float, seed: int, *, nve: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Energies of 3 N - 3 harmonic oscillators, canonical or with a sharp total energy."""
    rng = np.random.default_rng(seed)
    freedom = 3 * n_atoms - 3
    kinetic, potential = rng.gamma(freedom / 2, K_B * temperature, (2, n_rows))
    if nve:
        total = freedom * K_B * temperature
        kinetic = total * rng.beta(freedom / 2, freedom / 2, n_rows)
        potential = total - kinetic
    return potential - 3.0 * n_atoms, kinetic


@pytest.mark.parametrize("ensemble", ["nvt", "nve"])
def test_a_harmonic_crystal_has_three_boltzmann_constants_for_each_atom(tmp_path: Path, ensemble: str) -> None:
    n_atoms = 64
    misses = []
    for seed in range(4):
        energies = harmonic(6000, n_atoms, 80.0, seed, nve=ensemble == "nve")
        before = thermo(tmp_path, *energies, n_atoms, ensemble=ensemble)
        found = heat_capacity.plain_function(run=run_of(tmp_path, before), **{**NVT, "ensemble": ensemble})
        value, error = found.metrics["heat_capacity"], found.uncertainty["heat_capacity"]
        assert error < 0.2 and found.metrics["heat_capacity_molar"] == pytest.approx(value * 8.314462618)
        misses.append((value - 3 * (1 - 1 / n_atoms)) / error)
    assert np.abs(misses).max() < 3 and np.sqrt(np.mean(np.square(misses))) > 0.1


LOG = """units metal
dimension {d}
timestep 0.001
thermo 10
thermo_style custom step temp pe ke etotal{more}
run {steps}
Step Temp PotEng KinEng TotEng{title}
{rows}
Loop time of 1 on 1 procs for {steps} steps with {n} atoms
Total wall time: 0:00:01
"""


def test_a_harmonic_crystal_in_two_dimensions_has_two_boltzmann_constants_for_each_atom(tmp_path: Path) -> None:
    n, temperature = 64, 80.0
    rng = np.random.default_rng(5)
    freedom = 2 * n - 2
    total = freedom * K_B * temperature
    kinetic = total * rng.beta(freedom / 2, freedom / 2, 4000)
    rows = "\n".join(
        f"{10 * i} {2 * k / (freedom * K_B):.10g} {total - k - 200:.10g} {k:.10g} {total - 200:.10g} "
        for i, k in enumerate(kinetic)
    )
    text = LOG.format(d=2, more="", title=" ", rows=rows, steps=39990, n=n)
    (tmp_path / "log.lammps").write_text(text)
    before = {"workdir": str(tmp_path), "artifacts": {"log": "log.lammps"}}
    found = heat_capacity.plain_function(run=run_of(tmp_path, before), **{**NVT, "ensemble": "nve"})
    value, error = found.metrics["heat_capacity"], found.uncertainty["heat_capacity"]
    assert error < 0.15 and abs(value - 2 * (1 - 1 / n)) < 3 * error


def test_energies_are_divided_by_the_atoms_of_their_row(tmp_path: Path) -> None:
    rows = "\n".join(f"{10 * i} 80 {-0.5 * (100 - i)} 1 {1 - 0.5 * (100 - i)} {100 - i} " for i in range(20))
    (tmp_path / "log.lammps").write_text(
        LOG.format(d=3, more=" atoms", title=" Atoms ", rows=rows, steps=190, n=81)
    )
    before = {"workdir": str(tmp_path), "artifacts": {"log": "log.lammps"}}
    found = averages.plain_function(run=run_of(tmp_path, before), equilibration="none", discard=0.0)
    assert found.metrics["potential_energy"] == pytest.approx(-0.5)
    assert any("from 100 to 81" in note for note in found.notes)
    with pytest.raises(AppFailed, match="or they change"):
        heat_capacity.plain_function(run=run_of(tmp_path, before), **NVT)


def test_the_wrong_ensemble_is_refused_by_what_the_run_says_and_by_its_energy(tmp_path: Path) -> None:
    for said in ("nve", ""):
        before = thermo(tmp_path, *harmonic(500, 64, 80.0, 1, nve=True), 64, ensemble=said)
        (tmp_path / "md.json").unlink(missing_ok=True) if not said else None
        with pytest.raises(AppFailed) as failed:
            heat_capacity.plain_function(run=run_of(tmp_path, before), **NVT)
        assert failed.value.name == "WrongEnsemble" and failed.value.repair == "ensemble = nve"
    before = thermo(tmp_path, *harmonic(500, 64, 80.0, 1, nve=False), 64)
    with pytest.raises(AppFailed) as failed:
        heat_capacity.plain_function(run=run_of(tmp_path, before), **{**NVT, "ensemble": "nve"})
    assert failed.value.name == "WrongEnsemble" and failed.value.repair == "ensemble = nvt"
    before = thermo(tmp_path, *harmonic(500, 64, 80.0, 1, nve=False), 64, ensemble="npt")
    with pytest.raises(AppFailed, match="NPT"):
        heat_capacity.plain_function(run=run_of(tmp_path, before), **NVT)


CRYSTAL = """
units metal
lattice fcc 5.3
region box block 0 3 0 3 0 3
create_box 1 box
create_atoms 1 box
mass 1 39.948
pair_style lj/cut 7.5
pair_coeff 1 1 0.0104 3.405
pair_modify shift yes
velocity all create {twice} 4928459 mom yes
timestep 0.01
fix 1 all {fix}
thermo_style custom step time temp pe ke etotal press vol
thermo 10
run 2000
reset_timestep 0
run {steps}
"""


@pytest.mark.slow
@pytest.mark.skipif(not LMP.exists(), reason="no LAMMPS in this environment")
@pytest.mark.parametrize("ensemble", ["nve", "nvt"])
def test_a_cold_argon_crystal_has_nearly_the_heat_capacity_of_dulong_and_petit(
    tmp_path: Path, ensemble: str
) -> None:
    fix = {"nve": "nve", "nvt": "nvt temp 5 5 0.3 tchain 3"}[ensemble]
    script = CRYSTAL.format(fix=fix, twice=10 if ensemble == "nve" else 5, steps=60000)
    (tmp_path / "in.lmp").write_text(script)
    words = [str(LMP), "-in", "in.lmp", "-log", "log.lammps", "-screen", "none", "-suffix", "opt"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    before = {"workdir": str(tmp_path), "artifacts": {"log": "log.lammps"}}
    found = heat_capacity.plain_function(run=run_of(tmp_path, before), **{**NVT, "ensemble": ensemble})
    value, error = found.metrics["heat_capacity"], found.uncertainty["heat_capacity"]
    assert found.metrics["temperature"] == pytest.approx(5.0, abs=0.3)
    assert error < 0.35 and abs(value - 3 * (1 - 1 / 108)) < 3 * error + 0.05
