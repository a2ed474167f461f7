"""Metrics against sums done by hand, and on logs that LAMMPS wrote."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcagent.science.lammps.log import parse_log, read_log
from hpcagent.science.lammps.log_records import Log
from hpcagent.science.lammps.metric_table import metric_units
from hpcagent.science.lammps.metrics import measure
from hpcagent.science.lammps.production import production_run
from tests.unit.science.lammps.printed import ROWS, log_of

Lammps = Callable[..., Path]
K_B = 8.617333262e-5  # eV/K


# 400 steps of 2 fs; E rises by 0.01 eV per 0.2 ps with a zigzag of 0.002 eV.


def test_speed_is_steps_times_timestep_over_loop_time() -> None:
    after = "Performance: 34.560 ns/day, 0.694 hours/ns, 200.000 timesteps/s\n"
    after += "80.0% CPU use with 1 MPI tasks x 1 OpenMP threads"
    got = measure(log_of(ROWS, after=after)).values
    # 400 steps * 0.002 ps = 0.8 ps in 2 s; 0.4e-3 ns/s * 86400 s/day = 34.56 ns/day.
    assert got["ns_per_day"] == pytest.approx(34.56)
    assert got["ns_per_day_cpu"] == pytest.approx(34.56 / 0.8)
    assert got["timesteps_per_s"] == 200
    assert got["timesteps_per_s_cpu"] == pytest.approx(250)  # with 80 % of a core to itself
    assert got["simulated_ps"] == pytest.approx(0.8)
    assert (got["timestep"], got["n_atoms"], got["loop_time_s"], got["cpu_use_percent"]) == (0.002, 100, 2, 80)


@pytest.mark.parametrize(
    ("said", "use", "share"),
    [
        ("Last active /omp style is pair_style lj/cut/omp\n", 150.0, 0.75),
        ("  (1) pair lj/cut/kk, perpetual\n", 150.0, 0.75),
        ("", 80.0, 0.8),  # OMP_NUM_THREADS=2, and styles that know of no threads
        ("No /omp style for force computation currently active\n", 110.0, 1.0),  # neighbour lists only
        ("Last active /omp style is pair_style lj/cut/omp\nclear\nunits metal\ntimestep 0.002\n", 80.0, 0.8),
    ],
)
def test_speed_per_cpu_counts_the_threads_that_compute(said: str, use: float, share: float) -> None:
    before = f"units metal\ntimestep 0.002\n{said}thermo 100\nrun 400\n"
    after = f"{use}% CPU use with 1 MPI tasks x 2 OpenMP threads"
    got = measure(log_of(ROWS, before=before, after=after)).values
    assert got["ns_per_day_cpu"] == pytest.approx(34.56 / share)


def test_drift_is_the_fitted_slope_in_each_of_its_units() -> None:
    measured = measure(log_of(ROWS), discard=0.0)
    got = measured.values
    # By hand, in units of 0.2 ps: x = -2..2, Sxx = 10, E - E0 = 0, 12, 20, 32, 40 meV:
    # sum x E = -2*0 - 12 + 0 + 32 + 80 = 100 meV, slope 10 meV per 0.2 ps = 50 meV/ps = 50 000 meV/ns.
    assert got["drift_mev_per_atom_ns"] == pytest.approx(50_000 / 100)
    mean_k = (5 + 5.5 + 5 + 5.5 + 5) / 5
    # By the definition of temperature k_B T f = 2 K, whatever f is.
    assert got["drift_kt_per_dof_ns"] == pytest.approx(50.0 / (2 * mean_k))
    assert got["drift_per_kinetic_energy_per_ns"] == pytest.approx(50.0 / mean_k)
    # Over 0.8 ps the line rises by 0.04 eV; <E> = -(60 + 59.988 + 59.98 + 59.968 + 59.96)/5 = -59.9792 eV.
    assert got["drift_ppm"] == pytest.approx(1e6 * 0.04 / 59.9792)
    assert got["drift_ppm_kinetic"] == pytest.approx(1e6 * 0.04 / mean_k)
    assert got["drift_ppm_last_first"] == pytest.approx(1e6 * 0.04 / 60)
    assert got["sampled_ps"] == pytest.approx(0.8)
    assert got["n_samples"] == 5
    assert measured.units["drift_mev_per_atom_ns"] == "meV/atom/ns"
    # Residuals 0.8, ... : E - (E0 + 0.8 + 10 i) = -0.8, 1.2, -0.8, 1.2, -0.8 meV; SSR = 4.8 meV^2;
    # sqrt(4.8 / 3 / 10) = 0.4 meV per 0.2 ps if they were known to be independent, which five rows cannot tell.
    error = measured.uncertainty["drift_mev_per_atom_ns"]
    assert error > 0.4 / 10 * 500
    # Each unit has the same relative error.
    for name in ("drift_kt_per_dof_ns", "drift_per_kinetic_energy_per_ns", "drift_ppm", "drift_ppm_kinetic"):
        assert measured.uncertainty[name] / got[name] == pytest.approx(error / got["drift_mev_per_atom_ns"])


def test_in_two_dimensions_an_atom_has_two_degrees_of_freedom() -> None:
    # Only Temp says the kinetic energy: K = d/2 (N - 1) k_B T, N = 100.
    rows = "\n".join(" ".join(line.split()[:3]) for line in ROWS.strip().splitlines())
    mean_t = (40 + 44 + 40 + 44 + 40) / 5
    echoed = "units metal\ntimestep 0.002\nthermo 100\nrun 400\n"
    for before, d in ((echoed, 3), ("dimension 2\n" + echoed, 2), ("fix flat all enforce2d\n" + echoed, 2)):
        got = measure(log_of(rows, header="Step Temp TotEng", before=before), discard=0.0).values
        assert got["drift_kt_per_dof_ns"] == pytest.approx(50.0 / (K_B * mean_t * d * 99), rel=1e-6)


def test_energies_per_atom_are_of_the_atoms_of_their_row() -> None:
    # -0.5 eV for each of 100, 90 and 80 atoms.
    rows = "0 40 -50 100\n200 40 -45 90\n400 40 -40 80"
    evaporating = "units metal\ntimestep 0.002\nfix out all evaporate 200 10 box 4711\nthermo 200\nrun 400\n"
    loop = "Loop time of 2 on 1 procs for 400 steps with 80 atoms"
    log = log_of(rows, header="Step Temp PotEng Atoms", before=evaporating, loop=loop)
    assert (log.runs[0].n_atoms_start, log.runs[0].atoms_changed_by) == (100, ("evaporate",))
    measured = measure(log, discard=0.0)
    assert measured.values["potential_energy_mev_per_atom"] == pytest.approx(-500)
    assert any("from 100 to 80" in note for note in measured.notes)
    assert not [name for name in measured.values if name.startswith(("drift", "energy_fluc", "rms"))]
    # Without the column nothing is said per atom, and why.
    silent = "\n".join(row.rsplit(maxsplit=1)[0] for row in rows.splitlines())
    measured = measure(log_of(silent, header="Step Temp PotEng", before=evaporating, loop=loop), discard=0.0)
    assert "potential_energy_mev_per_atom" not in measured.values
    assert any("fix evaporate" in note and "add `atoms`" in note for note in measured.notes)


def test_a_negative_drift_keeps_its_sign_but_not_in_the_ppm_gates() -> None:
    falling = "\n".join(f"{100 * i} {40 + i % 2} {-60 - 0.01 * i} -65 {5 + 0.5 * (i % 2)}" for i in range(5))
    got = measure(log_of(falling), discard=0.0).values
    assert got["drift_mev_per_atom_ns"] == pytest.approx(-500)
    assert got["drift_ppm"] > 0 and got["drift_ppm_last_first"] > 0


def test_a_swing_with_equal_ends_is_seen_by_the_fluctuation() -> None:
    swing = "\n".join(
        f"{100 * i} 40 {-60 + 0.78 * math.sin(i * math.pi / 2)} -65 {5 + 0.5 * (i % 2)}" for i in range(5)
    )
    got = measure(log_of(swing), discard=0.0).values
    assert got["drift_ppm_last_first"] == pytest.approx(0, abs=1e-6)
    # E: 0, +0.78, 0, -0.78, 0: rms sqrt(2 * 0.78^2 / 5); K: 5 with two 5.5: rms 0.5 sqrt(0.4 * 0.6).
    assert got["energy_fluctuation"] == pytest.approx(0.78 * math.sqrt(0.4) / (0.5 * math.sqrt(0.24)))
    assert got["rms_ppm"] == pytest.approx(1e6 * 0.78 * math.sqrt(0.4) / 60)


def walking(rows: int, walk: float, interval: int = 10) -> Log:
    """A run of steps of 2 fs whose energy walks by `walk` eV a row, under noise of 0.01 eV."""
    rng = np.random.default_rng(1)
    energy = -60 + 0.01 * rng.normal(size=rows) + walk * np.cumsum(rng.normal(size=rows))
    return thermo_of(
        [f"40 {e:.10f} {e - k:.10f} {k:.10f}" for e, k in zip(energy, 5 + rng.normal(size=rows), strict=True)],
        interval,
    )


def thermo_of(rows: list[str], interval: int) -> Log:
    steps = interval * (len(rows) - 1)
    return log_of(
        "\n".join(f"{interval * i} {row}" for i, row in enumerate(rows)),
        before=f"units metal\ntimestep 0.002\nthermo {interval}\nrun {steps}\n",
        loop=f"Loop time of 2 on 1 procs for {steps} steps with 100 atoms",
    )


def test_fluctuation_within_a_picosecond_is_that_of_any_run() -> None:
    short, long = (measure(walking(rows, 0.002), discard=0.0) for rows in (500, 8000))
    # 51 rows of 0.02 ps in a window: var = 0.01^2 + 0.002^2 (51 + 1) / 6.
    true = math.sqrt(1e-4 + 4e-6 * 52 / 6)
    for measured in (short, long):
        error = measured.uncertainty["energy_fluctuation_1ps"]
        assert abs(measured.values["energy_fluctuation_1ps"] - true) < 3 * error < 0.3 * true
    assert long.values["energy_fluctuation_run"] > 2 * short.values["energy_fluctuation_run"]
    assert long.values["energy_fluctuation"] == long.values["energy_fluctuation_run"]
    assert any("gate by energy_fluctuation_1ps" in note for note in long.notes)
    assert not any("walks" in note for note in measure(walking(500, 0.0), discard=0.0).notes)


def test_a_conserved_energy_has_no_error_of_sampling_and_a_walk_no_ratio() -> None:
    for walk in (0.0, 0.01):
        measured = measure(walking(2000, walk), discard=0.0)
        assert "total_energy_mev_per_atom" in measured.values
        assert "total_energy_mev_per_atom" not in measured.uncertainty
        assert "energy_fluctuation_run" not in measured.uncertainty
        assert "potential_energy_mev_per_atom" in measured.uncertainty


def test_the_fluctuation_leaves_out_a_row_off_the_grid_of_the_others() -> None:
    rng = np.random.default_rng(2)
    rows = [f"40 {e:.8f} -65 {k:.8f}" for e, k in zip(rng.normal(size=501), rng.normal(5, 1, 501), strict=True)]

    def measured(first: int, last: int, drop: slice) -> float:
        steps = [first, *range(10, 5000, 10), last]
        text = "\n".join(f"{s} {row}" for s, row in list(zip(steps, rows, strict=True))[drop])
        run = f"units metal\ntimestep 0.002\nthermo 10\nrun {last - first}\n"
        loop = f"Loop time of 2 on 1 procs for {last - first} steps with 100 atoms"
        return measure(log_of(text, before=run, loop=loop), discard=0.0).values["energy_fluctuation_1ps"]

    # `run 5005` prints step 5005; a run that begins at step 3 prints that.
    assert measured(0, 4995, slice(None)) == measured(0, 5000, slice(None, -1))
    assert measured(3, 5000, slice(None)) == measured(0, 5000, slice(1, None))
    assert measured(3, 4995, slice(None)) == measured(0, 5000, slice(1, -1))


def test_a_conserved_energy_is_seen_in_the_default_thermo_style(lammps: Lammps) -> None:
    # It prints no KinEng; Temp and the degrees of freedom say it.
    script = "thermo_style one\nrun 1000\nrun 2000\n{}"
    measured = measure(read_log(lammps(script.format(""))))
    assert "total_energy_mev_per_atom" in measured.values
    assert "total_energy_mev_per_atom" not in measured.uncertainty
    heated = measure(read_log(lammps(script.format("fix hot all langevin 80 80 0.1 4711\nrun 2000\n"))))
    assert heated.uncertainty["total_energy_mev_per_atom"] > 0


def test_rows_too_coarse_for_the_vibrations_say_so() -> None:
    fine, coarse = (measure(walking(200, 0.0, interval), discard=0.0) for interval in (50, 100))
    assert "energy_fluctuation_1ps" in coarse.values
    assert any("0.2 ps apart" in note and "leans" in note for note in coarse.notes)
    assert not any("leans" in note for note in fine.notes)


def test_rows_that_cannot_fill_a_window_say_so() -> None:
    for rows, interval, why in ((40, 10, "span 0.78 ps"), (40, 300, "0.6 ps apart")):
        measured = measure(walking(rows, 0.0, interval), discard=0.0)
        assert "energy_fluctuation_1ps" not in measured.values
        assert any(why in note and "no energy_fluctuation_1ps" in note for note in measured.notes)
        assert "energy_fluctuation_run" in measured.values


def test_a_run_too_short_to_know_an_error_says_so() -> None:
    log = thermo_of([f"{40 + i} {-60 + 0.01 * (i % 3)} -65 {5 + i % 2}" for i in range(60)], 100)
    measured = measure(log, discard=0.0)
    assert "temperature" not in measured.uncertainty and measured.values["temperature"] == pytest.approx(69.5)
    assert any("no error is stated of temperature" in note for note in measured.notes)


def test_ppm_of_an_energy_near_zero_is_left_out_with_a_note() -> None:
    near_zero = ROWS.replace("-60.000", "0.100").replace("-59.9", "0.0")
    measured = measure(log_of(near_zero), discard=0.0)
    assert not {"drift_ppm", "drift_ppm_last_first", "rms_ppm"} & set(measured.values)
    assert {"drift_mev_per_atom_ns", "drift_ppm_kinetic"} <= set(measured.values)
    assert any("< N k T" in note for note in measured.notes)


def test_no_complete_run_gives_no_metric_and_says_so(lammps: Lammps) -> None:
    for log in (parse_log(""), read_log(lammps("run 100\n", dt=1)), read_log(lammps("run 0\n"))):
        measured = measure(log)
        assert measured.values == {}
        assert measured.notes == ("the log holds no complete run that made steps",)
        assert production_run(log) is None
    assert measure(log_of(ROWS), production=3).values == {}


def test_values_that_are_not_finite_are_named_and_never_zero() -> None:
    measured = measure(log_of(ROWS.replace("-59.980", "nan")), discard=0.0)
    assert "1 of 5 values of TotEng are not finite" in measured.notes
    assert not any(name.startswith(("drift", "energy", "rms", "total")) for name in measured.values)
    assert measured.values["temperature"] == pytest.approx(41.6)
    assert all(math.isfinite(v) for v in measured.values.values())


def test_a_crystal_of_coincident_atoms_has_no_energy_metrics(lammps: Lammps) -> None:
    script = "unfix 1\ncreate_atoms 1 single 0 0 0\nmass 1 39.948\nrun 100\n"
    measured = measure(read_log(lammps(script)))
    assert not any(name.startswith(("drift", "energy", "rms", "total", "pressure")) for name in measured.values)
    assert any("TotEng are not finite" in note for note in measured.notes)


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("Step Temp TotEng PotEng", (0, 1, 2, 3)),
        ("Step Temp TotEng", (0, 1, 2)),
        ("Step Temp PotEng KinEng", (0, 1, 3, 4)),
    ],
)
def test_kinetic_or_total_energy_is_made_from_what_is_printed(header: str, columns: tuple[int, ...]) -> None:
    lines = [line.split() for line in ROWS.strip().splitlines()]
    # T that fits K: K = 3/2 (N-1) k T.
    for line in lines:
        line[1] = f"{float(line[4]) / (1.5 * 99 * K_B):.12g}"
    rows = "\n".join(" ".join(line[c] for c in columns) for line in lines)
    got = measure(log_of(rows, header=header), discard=0.0).values
    assert got["drift_mev_per_atom_ns"] == pytest.approx(500, rel=1e-6)
    assert got["drift_per_kinetic_energy_per_ns"] == pytest.approx(50 / 5.2, rel=1e-6)
    assert got["energy_fluctuation"] == pytest.approx(
        np.std([0, 12, 20, 32, 40]) * 1e-3 / np.std([5, 5.5, 5, 5.5, 5])
    )


def test_econserve_is_the_energy_that_is_conserved_under_a_thermostat() -> None:
    rows = "\n".join(f"{100 * i} 40 {-60 + i} {-50 - 0.001 * i} {5 + i % 2}" for i in range(5))
    got = measure(log_of(rows, header="Step Temp TotEng Econserve KinEng"), discard=0.0).values
    assert got["drift_mev_per_atom_ns"] == pytest.approx(-1.0 / 0.2e-3 / 100)


def test_energies_per_atom_and_of_the_system_give_the_same_metrics(lammps: Lammps) -> None:
    whole = measure(read_log(lammps("thermo_modify line yaml norm no\nrun 100\n"))).values
    per_atom = measure(read_log(lammps("thermo_modify line yaml norm yes\nrun 100\n"))).values
    for name in ("drift_mev_per_atom_ns", "energy_fluctuation", "drift_ppm", "total_energy_mev_per_atom"):
        assert per_atom[name] == pytest.approx(whole[name], rel=1e-4)


REAL = """\
units real
lattice fcc 5.35
region box block 0 2 0 2 0 2
create_box 1 box
create_atoms 1 box
mass 1 39.948
pair_style lj/cut 4.5
pair_coeff 1 1 0.237524 3.405
pair_modify shift yes
neighbor 0.5 bin
velocity all create 80 4928459 mom yes rot yes dist gaussian
fix 1 all nve
timestep 2.0
thermo_style custom step temp etotal pe ke press vol
thermo_modify line yaml
thermo 10
run 100
"""


def test_metal_and_real_units_give_the_same_physics(lammps: Lammps) -> None:
    metal = measure(read_log(lammps("run 100\n", line="yaml")))
    real = measure(read_log(lammps(REAL, head="")))
    assert (metal.values["timestep"], metal.units["timestep"]) == (0.002, "ps")
    assert (real.values["timestep"], real.units["timestep"]) == (2.0, "fs")
    assert metal.values["simulated_ps"] == real.values["simulated_ps"] == pytest.approx(0.2)
    # LAMMPS's own constants differ in the sixth digit; 0.237524 kcal/mol is 0.0103 eV to as many.
    for name in ("temperature", "pressure", "total_energy_mev_per_atom", "energy_fluctuation"):
        assert real.values[name] == pytest.approx(metal.values[name], rel=2e-3)


@pytest.mark.parametrize("head", ["metal", "real"])
def test_ns_per_day_agrees_with_lammps_itself(lammps: Lammps, head: str) -> None:
    log = read_log(lammps("run 100\n") if head == "metal" else lammps(REAL, head=""))
    measured = measure(log)
    assert measured.values["ns_per_day"] == pytest.approx(log.runs[0].performance["ns/day"], rel=1e-4)
    assert not any("Performance" in note for note in measured.notes)


def test_reduced_units_have_reduced_metrics(lammps: Lammps) -> None:
    lj = (
        "lattice fcc 0.8442\nregion box block 0 2 0 2 0 2\ncreate_box 1 box\ncreate_atoms 1 box\nmass 1 1.0\n"
        "velocity all create 1.44 87287\npair_style lj/cut 1.5\npair_coeff 1 1 1.0 1.0\nfix 1 all nve\n"
        "thermo_style custom step temp etotal pe ke press density\nthermo 10\nrun 200\n"
    )
    log = read_log(lammps(lj, head=""))
    measured = measure(log)
    assert measured.values["tau_per_day"] == pytest.approx(log.runs[0].performance["tau/day"], rel=1e-4)
    assert measured.values["simulated_tau"] == pytest.approx(200 * 0.005)
    used = log.runs[0].cpu_use_percent
    for speed in ("tau_per_day", "timesteps_per_s"):
        # 0 % is said of runs below the clock's resolution: then nothing is estimated.
        estimate = measured.values.get(f"{speed}_cpu")
        assert (estimate is None) == (not used)
        assert not estimate or measured.values[speed] / estimate == pytest.approx((used or 0.0) / 100, rel=1e-6)
    assert measured.values["density_reduced"] == pytest.approx(0.8442, rel=1e-4)
    assert "ns_per_day" not in measured.values
    assert measured.units["drift_epsilon_per_atom_tau"] == "epsilon/atom/tau"
    # Energies are per atom in lj: K/N = 3/2 (N-1)/N T.
    mean_t = measured.values["temperature_reduced"]
    assert measured.values["kinetic_energy_epsilon_per_atom"] == pytest.approx(1.5 * 31 / 32 * mean_t, rel=1e-5)
    assert set(measured.values) <= set(metric_units("lj"))


def test_a_log_without_units_has_only_what_needs_none() -> None:
    measured = measure(log_of(ROWS, before=""))
    assert measured.values["timesteps_per_s"] == 200
    assert not {"ns_per_day", "temperature", "drift_mev_per_atom_ns"} & set(measured.values)
    assert any("units style" in note for note in measured.notes)


def test_unchecked_dangerous_builds_are_absent(lammps: Lammps) -> None:
    measured = measure(read_log(lammps("neigh_modify check no\nrun 20\n")))
    assert "dangerous_builds" not in measured.values
    assert measured.values["neighbor_builds_per_step"] == 1
    assert any("dangerous" in note for note in measured.notes)


def test_a_constant_column_has_a_mean_and_no_error() -> None:
    measured = measure(log_of(ROWS.replace("44  ", "40  ")), discard=0.0)
    assert measured.values["temperature"] == 40
    assert "temperature" not in measured.uncertainty


def test_drift_of_a_real_run_is_small_against_its_error_or_its_size(lammps: Lammps) -> None:
    log = read_log(lammps("run 1000\nrun 2000\n", line="yaml"))
    measured = measure(log)
    assert measured.values["n_samples"] == 201
    assert measured.values["energy_fluctuation"] < 0.01
    assert 0 < measured.uncertainty["energy_fluctuation_1ps"] < measured.values["energy_fluctuation_1ps"]
    coarse = measure(read_log(lammps("run 1000\nrun 2000\n", line="yaml", dt=0.008)))
    # The fluctuation of velocity Verlet grows with the square of the timestep: 16 times, within the scatter.
    ratio = coarse.values["energy_fluctuation"] / measured.values["energy_fluctuation"]
    assert 8 < ratio < 32


IONS = """\
units {units}
atom_style charge
lattice fcc {a}
region box block 0 2 0 2 0 2
create_box 2 box
create_atoms 1 box basis 1 1 basis 2 2 basis 3 1 basis 4 2
mass * 30
set type 1 charge 0.5
set type 2 charge -0.5
pair_style lj/cut/coul/long {cut}
pair_coeff * * {eps} {sigma}
kspace_style pppm 1e-4
fix 1 all nve
timestep {dt}
run 5
"""


def test_the_accuracy_of_kspace_is_a_metric_with_a_unit(lammps: Lammps) -> None:
    real = IONS.format(units="real", a=5.6, cut=5, eps=0.1, sigma=3, dt=1)
    got = measure(read_log(lammps("", head=real)))
    relative = got.values["kspace_force_error_relative"]
    assert 1e-5 < relative < 1.5e-4
    # LAMMPS's `two_charge_force` of real: 332.06371 kcal/mol/angstrom, 1 kcal/mol = 43.36410 meV.
    absolute = got.values["kspace_force_error_mev_per_angstrom"]
    assert absolute == pytest.approx(relative * 332.06371 * 43.36410, rel=1e-4)
    assert got.units["kspace_force_error_mev_per_angstrom"] == "meV/angstrom"
    metal = IONS.format(units="metal", a=5.6, cut=5, eps=0.0043364, sigma=3, dt=0.001)
    same = measure(read_log(lammps("", head=metal))).values
    assert same["kspace_force_error_mev_per_angstrom"] == pytest.approx(absolute, rel=1e-3)
    # A run that needs no kspace says none.
    log = read_log(lammps("kspace_style none\npair_style lj/cut 5\npair_coeff * * 0.1 3\nrun 5\n", head=real))
    assert not [name for name in measure(log).values if "kspace" in name]
    assert log.runs[0].kspace_error_relative == relative
