"""Displacements and velocities with known answers: random walks, oscillators, liquid argon."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcagent.errors import AppFailed
from hpcagent.science.analysis.msd import msd, squared_displacements, yeh_hummer
from hpcagent.science.analysis.vacf import autocorrelations, vacf
from tests.unit.science.analysis.trajectories import dump, run_of, upstream, walk

LMP = Path(sys.executable).parent / "lmp"
READ = {"discard": 0.0, "every": 1, "timestep": 0.1, "units": "metal", "species": ""}
MSD = {"fit_start": 0.0, "fit_end": 0.0, "a": "", "viscosity": 0.0, "temperature": 0.0, "ranks": 1, **READ}
VACF = {"length": 0.0, "ranks": 1, **READ}


def test_displacements_by_fourier_transforms_are_those_of_the_definition() -> None:
    positions = walk(40, 3, 0.5, seed=1, edge=100.0)
    fast = squared_displacements(positions, 20)
    for lag in range(20):
        slow = ((positions[lag:] - positions[: len(positions) - lag]) ** 2).mean(axis=0)
        assert fast[lag] == pytest.approx(slow, rel=1e-9, abs=1e-9)
    values = positions - positions.mean(axis=0)
    fast = autocorrelations(values, 20)
    for lag in range(20):
        assert fast[lag] == pytest.approx(
            (values[lag:] * values[: len(values) - lag]).mean(axis=0), rel=1e-9, abs=1e-9
        )


def test_displacements_are_those_of_freud() -> None:
    import freud

    positions = walk(60, 20, 0.5, seed=2, edge=1.0)
    theirs = freud.msd.MSD(mode="window").compute(positions).msd
    ours = squared_displacements(positions, 30).sum(axis=2).mean(axis=1)
    assert ours == pytest.approx(theirs[:30], rel=1e-4, abs=1e-3)


def test_a_random_walk_has_the_diffusion_coefficient_of_its_steps(tmp_path: Path) -> None:
    # D = sigma^2 / (2 dt) = 0.09 / 0.2; without the drift of N atoms it is (1 - 1/N) of that.
    expected = 0.3**2 / 0.2
    misses = []
    for seed in range(6):
        dump(tmp_path / "a.dump", walk(400, 60, 0.3, seed, edge=12.0), 12.0)
        found = msd.plain_function(run=run_of(tmp_path), **MSD)
        value, error = found.metrics["diffusion_angstrom2_ps"], found.uncertainty["diffusion_angstrom2_ps"]
        assert found.metrics["diffusion"] == pytest.approx(value * 1e-4)
        assert error < 0.12 * expected
        misses.append((value - expected * (1 - 1 / 60)) / error)
        assert found.metrics["exponent"] == pytest.approx(1.0, abs=0.1)
    assert np.abs(misses).max() < 3.5 and 0.3 < np.sqrt(np.mean(np.square(misses))) < 2.0


def flat(positions: np.ndarray) -> np.ndarray:
    """The same in the plane z = 3."""
    return positions * [1.0, 1.0, 0.0] + [0.0, 0.0, 3.0]


def test_a_walk_in_a_plane_has_the_diffusion_coefficient_of_two_dimensions(tmp_path: Path) -> None:
    expected = 0.3**2 / 0.2 * (1 - 1 / 60)
    misses = []
    for seed in range(6):
        dump(tmp_path / "a.dump", flat(walk(400, 60, 0.3, seed, edge=12.0)), 12.0)
        found = msd.plain_function(run=run_of(tmp_path), **MSD)
        value, error = found.metrics["diffusion_angstrom2_ps"], found.uncertainty["diffusion_angstrom2_ps"]
        assert 0.02 * expected < error < 0.15 * expected
        misses.append((value - expected) / error)
    assert np.abs(misses).max() < 3.5
    assert any("no atom moves along z" in note for note in found.notes)
    assert any("by 1/60, 1.7%" in note for note in found.notes)


def test_ballistic_motion_in_a_plane_is_no_diffusion(tmp_path: Path) -> None:
    # Half of the atoms go one way, half the other: <r^2> = v^2 t^2 with v = 2 angstrom/ps.
    t = 0.1 * np.arange(100)
    way = np.where(np.arange(20) % 2, 1.0, -1.0)
    positions = np.zeros((100, 20, 3))
    positions[:, :, 0] = 50.0 + 1.2 * t[:, None] * way
    positions[:, :, 1] = 50.0 + 1.6 * t[:, None] * way
    dump(tmp_path / "a.dump", positions, 100.0)
    found = msd.plain_function(run=run_of(tmp_path), **MSD)
    end = found.metrics["fit_to"]
    assert found.metrics["msd_at_end"] == pytest.approx(4 * end**2, rel=1e-6)
    assert found.metrics["exponent"] == pytest.approx(2.0, abs=1e-6)
    assert any("no diffusion yet" in note for note in found.notes)
    assert not any("moves at random" in note for note in found.notes)


def test_green_and_kubo_in_a_plane_divide_by_two(tmp_path: Path) -> None:
    # Constant velocities of 2 angstrom/ps: C = 4 for ever, D = 4 t / 2 up to the longest lag.
    velocities = np.zeros((100, 20, 3))
    velocities[:, :, :2] = np.array([1.2, 1.6]) * np.where(np.arange(20) % 2, 1.0, -1.0)[None, :, None]
    dump(tmp_path / "a.dump", np.full((100, 20, 3), 5.0), 10.0, velocities=velocities)
    found = vacf.plain_function(run=run_of(tmp_path), **{**VACF, "length": 2.0})
    assert found.metrics["diffusion_angstrom2_ps"] == pytest.approx(4.0)
    # m v^2 = 2 k_B T of N - 1 atoms: 39.948 g/mol (200 m/s)^2 = 1597.92 J/mol.
    assert found.metrics["temperature"] == pytest.approx(1597.92 / 2 / 8.314463 * 20 / 19, rel=1e-3)
    dos = np.loadtxt(found_file(tmp_path, "dos.csv"), delimiter=",", skiprows=1)
    assert np.trapezoid(dos[:, 1], dos[:, 0]) == pytest.approx(2.0, rel=1e-6)


def found_file(folder: Path, name: str) -> Path:
    return next(folder.glob(f"work-*/{name}"))


@pytest.mark.parametrize("app", [msd, vacf])
def test_a_single_atom_is_refused(tmp_path: Path, app: Any) -> None:
    positions = walk(200, 1, 0.3, 1, edge=12.0)
    dump(tmp_path / "a.dump", positions, 12.0, velocities=np.ones_like(positions))
    with pytest.raises(AppFailed, match="single atom") as failed:
        app.plain_function(run=run_of(tmp_path), **(MSD if app is msd else VACF))
    assert failed.value.name == "TooFewAtoms"


BROWNIAN = """
units metal
dimension 2
region box block 0 40 0 40 -0.5 0.5
create_box 1 box
create_atoms 1 random 200 4711 NULL
mass 1 39.948
pair_style zero 3.0
pair_coeff * *
fix 1 all brownian 300 4711 gamma_t 1000
fix 2 all enforce2d
timestep 0.02
dump 1 all custom 20 a.dump id type xu yu zu
run 8000
"""


@pytest.mark.skipif(not LMP.exists(), reason="no LAMMPS in this environment")
def test_brownian_particles_of_lammps_in_two_dimensions_have_the_diffusion_of_einstein(tmp_path: Path) -> None:
    (tmp_path / "in.lmp").write_text(BROWNIAN)
    words = [str(LMP), "-in", "in.lmp", "-log", "log.lammps", "-screen", "none"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    before = upstream(tmp_path, artifacts={"log": "log.lammps"})
    found = msd.plain_function(run=run_of(tmp_path, before), **{**MSD, "timestep": 0.0, "units": "auto"})
    # D = k_B T / gamma; 1 g/mol angstrom^2/ps^2 is 1.0364e-4 eV.
    expected = 8.617333e-5 * 300 / (1000 * 1.0364270e-4) * (1 - 1 / 200)
    value, error = found.metrics["diffusion_angstrom2_ps"], found.uncertainty["diffusion_angstrom2_ps"]
    assert error < 0.06 * expected and abs(value - expected) < 3 * error


def test_atoms_that_move_as_one_have_a_larger_error(tmp_path: Path) -> None:
    values, errors = [], []
    for seed in range(4):
        together = np.repeat(walk(400, 6, 0.3, seed, edge=0.0), 10, axis=1)
        dump(tmp_path / "a.dump", together + np.random.default_rng(0).uniform(0, 12, (60, 3)), 12.0)
        found = msd.plain_function(run=run_of(tmp_path), **MSD)
        values.append(found.metrics["diffusion_angstrom2_ps"])
        errors.append(found.uncertainty["diffusion_angstrom2_ps"])
    # Six walkers: D has a scatter of 0.065 over 25 seeds; the slopes of 60 atoms taken for independent tell 0.018.
    assert 0.04 < np.sqrt(np.mean(np.square(errors))) < 0.15
    assert np.mean(values) == pytest.approx(0.45 * (1 - 1 / 6), abs=0.1)


def test_drift_images_and_wrapping_change_nothing(tmp_path: Path) -> None:
    positions = walk(200, 30, 0.2, seed=3, edge=10.0)
    drift = np.linspace(0, 40, 200)[:, None, None] * np.array([1.0, -0.5, 0.2])
    dump(tmp_path / "wrapped.dump", positions + drift, 10.0)
    dump(tmp_path / "unwrapped.dump", positions, 10.0, wrapped=False)
    tables = []
    for name in ("wrapped.dump", "unwrapped.dump"):
        run = run_of(tmp_path, upstream(tmp_path, name))
        msd.plain_function(run=run, **MSD)
        tables.append(np.loadtxt(run.workdir / "msd.csv", delimiter=",", skiprows=1))
        assert not list(run.workdir.glob("*.scratch"))
    assert tables[0] == pytest.approx(tables[1], rel=1e-6, abs=1e-9)


def test_positions_in_a_cell_that_breathes_are_unwrapped_without_its_breathing(tmp_path: Path) -> None:
    # Wrapped into a cell that swells and shrinks, atoms that rest in it must not seem to diffuse.
    steps = np.arange(300)
    edges = 10.0 + 0.3 * np.sin(steps / 5.0)
    positions = walk(300, 40, 0.25, seed=4, edge=10.0)
    dump(tmp_path / "a.dump", positions, np.repeat(edges[:, None], 3, axis=1))
    found = msd.plain_function(run=run_of(tmp_path), **MSD)
    expected = 0.25**2 / 0.2 * (1 - 1 / 40)
    assert found.metrics["diffusion_angstrom2_ps"] == pytest.approx(expected, rel=0.15)


def test_frames_too_far_apart_to_unwrap_are_refused(tmp_path: Path) -> None:
    dump(tmp_path / "a.dump", walk(50, 40, 3.0, seed=5, edge=10.0), 10.0)
    with pytest.raises(AppFailed) as failed:
        msd.plain_function(run=run_of(tmp_path), **MSD)
    assert failed.value.name == "FramesTooFarApart" and "xu yu zu" in failed.value.repair
    dump(tmp_path / "a.dump", walk(50, 40, 3.0, seed=5, edge=10.0), 10.0, wrapped=False)
    msd.plain_function(run=run_of(tmp_path), **MSD)


def test_a_solid_is_noted_as_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    dump(tmp_path / "a.dump", rng.uniform(0, 20, (40, 3)) + rng.normal(0, 0.1, (100, 40, 3)), 20.0)
    found = msd.plain_function(run=run_of(tmp_path), **MSD)
    assert found.metrics["exponent"] < 0.1
    assert any("solid" in note for note in found.notes)
    # Each atom oscillates with 0.1 angstrom along each direction: msd = 6 sigma^2.
    assert found.metrics["msd_at_end"] == pytest.approx(6 * 0.01, rel=0.1)


def test_the_finite_size_correction_is_that_of_yeh_and_hummer(tmp_path: Path) -> None:
    # k_B T xi / (6 pi eta L) = 1.380649e-23 * 300 * 2.837297 / (6 pi 1e-3 * 1e-9) = 6.235e-10 m^2/s, by hand.
    assert yeh_hummer(300.0, 1.0, 10.0) == pytest.approx(6.235e-6, rel=1e-3)
    positions = walk(200, 30, 0.2, seed=3, edge=10.0)
    dump(tmp_path / "a.dump", positions, 10.0)
    found = msd.plain_function(run=run_of(tmp_path), **{**MSD, "viscosity": 1.0, "temperature": 300.0})
    added = found.metrics["diffusion_corrected"] - found.metrics["diffusion"]
    assert added == pytest.approx(6.235e-6, rel=1e-3)
    run = run_of(
        tmp_path, {**upstream(tmp_path), "metrics": {"temperature": 150.0}, "units": {"temperature": "K"}}
    )
    found = msd.plain_function(run=run, **{**MSD, "viscosity": 1.0})
    assert found.metrics["diffusion_corrected"] - found.metrics["diffusion"] == pytest.approx(3.118e-6, rel=1e-3)
    with pytest.raises(AppFailed) as failed:
        msd.plain_function(run=run_of(tmp_path), **{**MSD, "viscosity": 1.0})
    assert failed.value.name == "NoTemperature"
    found = msd.plain_function(run=run_of(tmp_path), **MSD)
    assert "diffusion_corrected" not in found.metrics
    assert any("L = 10 angstrom" in note for note in found.notes)


def test_windows_times_and_ids_that_do_not_serve_are_refused(tmp_path: Path) -> None:
    path = dump(tmp_path / "a.dump", walk(50, 10, 0.1, seed=5, edge=10.0), 10.0)
    cases = [
        ("BadWindow", {**MSD, "fit_start": 1.0, "fit_end": 1.2}),
        ("BadWindow", {**MSD, "fit_end": 100.0}),
        ("NoTimes", {**MSD, "timestep": 0.0}),
        ("NoSuchSpecies", {**MSD, "a": "Xe"}),
        ("TooFewFrames", {**MSD, "every": 10}),
    ]
    for name, params in cases:
        with pytest.raises(AppFailed) as failed:
            msd.plain_function(run=run_of(tmp_path), **params)
        assert failed.value.name == name and failed.value.kind == "contract"
    text = path.read_text()
    path.write_text(text.replace("ITEM: ATOMS id element", "ITEM: ATOMS tag element"))
    with pytest.raises(AppFailed) as failed:
        msd.plain_function(run=run_of(tmp_path), **MSD)
    assert failed.value.name == "NoIds"
    path.write_text(text[: text.index("ITEM: TIMESTEP\n30\n")] + text[text.index("ITEM: TIMESTEP\n31\n") :])
    with pytest.raises(AppFailed) as failed:
        msd.plain_function(run=run_of(tmp_path), **MSD)
    assert failed.value.name == "UnevenFrames"


def oscillators(n: int, frequency: float, dt: float, frames: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    t = np.arange(frames)[:, None, None] * dt
    phase = rng.uniform(0, 2 * np.pi, (n, 3))
    omega = 2 * np.pi * frequency
    positions = 10 + 0.1 * np.sin(omega * t + phase)
    return positions, 0.1 * omega * np.cos(omega * t + phase)


def test_an_oscillator_has_one_line_at_its_frequency(tmp_path: Path) -> None:
    positions, velocities = oscillators(50, 5.0, 0.01, 1000, seed=1)
    dump(tmp_path / "a.dump", positions, 20.0, velocities=velocities)
    run = run_of(tmp_path)
    found = vacf.plain_function(run=run, **{**VACF, "timestep": 0.01})
    assert found.metrics["dos_peak"] == pytest.approx(5.0, abs=0.05)
    assert found.metrics["dos_mean"] == pytest.approx(5.0, abs=0.2)
    frequency, dos = np.loadtxt(run.workdir / "dos.csv", delimiter=",", skiprows=1).T
    assert np.trapezoid(dos, frequency) == pytest.approx(3.0)
    t, _, normalized = np.loadtxt(run.workdir / "vacf.csv", delimiter=",", skiprows=1).T
    assert normalized == pytest.approx(np.cos(2 * np.pi * 5.0 * t), abs=0.05)
    # <v^2>/2 along each direction is (0.1 omega)^2 / 2.
    kinetic = 39.95 * 3 * (0.1 * 2 * np.pi * 5.0) ** 2 / 2 * 10 * 50 / (147 * 8.314462618)
    assert found.metrics["temperature"] == pytest.approx(kinetic, rel=0.05)


def test_spectra_of_two_species_are_weighed_with_their_masses(tmp_path: Path) -> None:
    slow = oscillators(40, 2.0, 0.02, 800, seed=1)
    fast = oscillators(40, 8.0, 0.02, 800, seed=2)
    # The same temperature: amplitudes as 1 / (omega sqrt(m)).
    scale = 0.25 * np.sqrt(207.2 / 15.999)
    velocities = np.concatenate([slow[1], scale * fast[1]], axis=1)
    dump(
        tmp_path / "a.dump", np.zeros((800, 80, 3)), 20.0, velocities=velocities, element=["Pb"] * 40 + ["O"] * 40
    )
    run = run_of(tmp_path)
    vacf.plain_function(run=run, **{**VACF, "timestep": 0.02})
    header = (run.workdir / "dos.csv").read_text().splitlines()[0]
    assert header == "frequency_THz,dos_per_atom_THz,dos_O_per_atom_THz,dos_Pb_per_atom_THz"
    frequency, _, oxygen, lead = np.loadtxt(run.workdir / "dos.csv", delimiter=",", skiprows=1).T
    assert frequency[np.argmax(oxygen)] == pytest.approx(8.0, abs=0.1)
    assert frequency[np.argmax(lead)] == pytest.approx(2.0, abs=0.1)
    # By equipartition each kind has half of the modes.
    assert np.trapezoid(oxygen, frequency) == pytest.approx(1.5, abs=0.1)


def test_brownian_particles_diffuse_alike_by_green_kubo_and_einstein(tmp_path: Path) -> None:
    # Ornstein-Uhlenbeck: <v(0)v(t)> = s^2 exp(-t/tau), D = s^2 tau along each direction.
    rng = np.random.default_rng(8)
    dt, tau, s, n, frames = 0.05, 0.4, 2.0, 80, 1500
    a = np.exp(-dt / tau)
    v = np.empty((frames, n, 3))
    v[0] = rng.normal(0, s, (n, 3))
    for i in range(1, frames):
        v[i] = a * v[i - 1] + rng.normal(0, s * np.sqrt(1 - a * a), (n, 3))
    x = 10 + np.concatenate([np.zeros((1, n, 3)), np.cumsum(0.5 * (v[1:] + v[:-1]) * dt, axis=0)])
    dump(tmp_path / "a.dump", x, 40.0, velocities=v)
    expected = s * s * tau * (1 - 1 / n)
    kubo = vacf.plain_function(run=run_of(tmp_path), **{**VACF, "timestep": dt, "length": 8.0})
    einstein = msd.plain_function(
        run=run_of(tmp_path), **{**MSD, "timestep": dt, "fit_start": 3.0, "fit_end": 10.0}
    )
    for found in (kubo, einstein):
        value, error = found.metrics["diffusion_angstrom2_ps"], found.uncertainty["diffusion_angstrom2_ps"]
        assert error < 0.1 * expected and abs(value - expected) < 3 * error


def test_atoms_whose_velocities_are_one_have_a_larger_error_by_green_kubo(tmp_path: Path) -> None:
    # Eight walkers of ten atoms each: the scatter of 80 integrals taken for independent is sqrt(10) too small.
    dt, tau, s, frames, expected = 0.05, 0.2, 2.0, 400, 2.0**2 * 0.2 * (1 - 1 / 8)
    a = np.exp(-dt / tau)
    found = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        v = np.empty((frames, 8, 3))
        v[0] = rng.normal(0, s, (8, 3))
        for i in range(1, frames):
            v[i] = a * v[i - 1] + rng.normal(0, s * np.sqrt(1 - a * a), (8, 3))
        together = np.repeat(v, 10, axis=1)
        dump(tmp_path / "a.dump", 20 + np.cumsum(together * dt, axis=0), 40.0, velocities=together)
        outcome = vacf.plain_function(run=run_of(tmp_path), **{**VACF, "timestep": dt, "length": 2.0})
        found.append([outcome.metrics["diffusion_angstrom2_ps"], outcome.uncertainty["diffusion_angstrom2_ps"]])
    values, errors = np.array(found).T
    assert np.abs(values - expected).max() < 3 * errors.max()
    assert 0.8 < np.median(errors) / values.std(ddof=1) < 3.0
    assert (np.abs(values - expected) <= 2 * errors).mean() >= 0.85


def test_velocities_and_masses_are_asked_for(tmp_path: Path) -> None:
    dump(tmp_path / "a.dump", walk(50, 10, 0.1, seed=5, edge=10.0), 10.0)
    with pytest.raises(AppFailed) as failed:
        vacf.plain_function(run=run_of(tmp_path), **VACF)
    assert failed.value.name == "NoVelocities"
    positions, velocities = oscillators(4, 1.0, 0.1, 40, seed=1)
    dump(tmp_path / "a.dump", positions, 20.0, velocities=velocities, element=["A", "A", "B", "B"])
    with pytest.raises(AppFailed) as failed:
        vacf.plain_function(run=run_of(tmp_path), **VACF)
    assert failed.value.name == "NoMasses"


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="no mpi4py")
def test_two_ranks_find_what_one_finds_to_the_last_bit(tmp_path: Path) -> None:
    positions, velocities = oscillators(21, 5.0, 0.01, 101, seed=1)
    dump(tmp_path / "a.dump", positions + walk(101, 21, 0.1, 3, 8.0), 20.0, velocities=velocities)
    for app, params, file in ((msd, MSD, "msd.csv"), (vacf, VACF, "vacf.csv")):
        runs = [run_of(tmp_path), run_of(tmp_path, ranks=2)]
        alone, shared = (
            app.plain_function(run=run, **{**params, "ranks": ranks})
            for run, ranks in zip(runs, (1, 2), strict=True)
        )
        assert alone.metrics == shared.metrics and alone.uncertainty == shared.uncertainty
        assert (runs[0].workdir / file).read_bytes() == (runs[1].workdir / file).read_bytes()
        assert alone.notes == shared.notes


ARGON = """
units metal
atom_style atomic
lattice fcc {a}
region box block 0 6 0 6 0 6
create_box 1 box
create_atoms 1 box
mass 1 39.948
pair_style lj/cut 7.65
pair_coeff 1 1 {epsilon} 3.4
neighbor 0.8 bin
velocity all create 250 4928459 mom yes
timestep 0.01
fix nve all nve
fix heat all langevin 94.4 94.4 0.5 48279
thermo 100
run 2000
unfix heat
velocity all scale 94.4
run 500
velocity all scale 94.4
thermo_style custom step time temp ke pe etotal press vol density
thermo 10
dump frames all custom 10 argon.dump id type x y z vx vy vz
run 6000
"""


@pytest.mark.slow
@pytest.mark.skipif(not LMP.exists(), reason="no LAMMPS in this environment")
def test_liquid_argon_diffuses_as_rahman_found(tmp_path: Path) -> None:
    """A. Rahman, Phys. Rev. 136, A405 (1964): 864 atoms, 94.4 K, 1.374 g/cm^3, D = 2.43e-5 cm^2/s, g(r) at 3.7 A."""
    from hpcagent.science.analysis.averages import averages
    from hpcagent.science.analysis.heat_capacity import heat_capacity
    from hpcagent.science.analysis.rdf import rdf

    edge = (864 * 39.948 / 6.02214076e23 / 1.374) ** (1 / 3) * 1e8
    (tmp_path / "in.lmp").write_text(ARGON.format(a=edge / 6, epsilon=120 * 8.617333e-5))
    words = [str(LMP), "-in", "in.lmp", "-log", "log.lammps", "-screen", "none", "-suffix", "opt"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    before = upstream(tmp_path, "argon.dump", artifacts={"log": "log.lammps"})
    reading = {"discard": 0.0, "every": 1, "timestep": 0.0, "units": "auto", "species": "Ar"}
    means = averages.plain_function(run=run_of(tmp_path, before), equilibration="chodera", discard=0.0).metrics
    assert means["density"] == pytest.approx(1.374, rel=1e-3)
    # Rahman's D at 94.4 K; our mean temperature differs by some kelvin, and D goes about as exp(-350 K / T).
    at_our = 2.43e-5 * np.exp(-350 * (1 / means["temperature"] - 1 / 94.4))
    found = msd.plain_function(
        run=run_of(tmp_path, before), **{**MSD, **reading, "fit_start": 2.0, "fit_end": 8.0}
    )
    assert found.metrics["diffusion"] == pytest.approx(at_our, rel=0.1)
    assert found.uncertainty["diffusion"] < 0.1 * found.metrics["diffusion"]
    kubo = vacf.plain_function(run=run_of(tmp_path, before), **{**VACF, **reading, "length": 4.0})
    assert kubo.metrics["diffusion"] == pytest.approx(at_our, rel=0.2)
    assert kubo.metrics["temperature"] == pytest.approx(means["temperature"], rel=0.01)
    shells = {"r_max": 12.0, "bins": 240, "a": "", "b": "", "ranks": 1, **reading, "every": 5}
    g = rdf.plain_function(run=run_of(tmp_path, before), **shells).metrics
    assert g["first_peak"] == pytest.approx(3.7, abs=0.05) and 2.5 < g["first_peak_height"] < 3.2
    assert 11.5 < g["coordination_number"] < 13.5
    # Between a gas (3/2) and a harmonic crystal (3).
    capacity = heat_capacity.plain_function(
        run=run_of(tmp_path, before), ensemble="nve", equilibration="none", discard=0.0
    ).metrics["heat_capacity"]
    assert 1.9 < capacity < 2.9
