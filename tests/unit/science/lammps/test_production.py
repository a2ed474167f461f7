"""Which run is measured, and what its rows are of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpcagent.errors import BadInput
from hpcagent.science.lammps.log import parse_log, read_log
from hpcagent.science.lammps.metrics import measure
from hpcagent.science.lammps.production import production_run
from tests.unit.science.lammps.printed import ROWS, log_of

Lammps = Callable[..., Path]


# 400 steps of 2 fs; E rises by 0.01 eV per 0.2 ps with a zigzag of 0.002 eV.


def test_only_the_run_alone_in_its_log_is_cut_at_its_beginning() -> None:
    assert measure(log_of(ROWS)).values["n_samples"] == 4
    first = "units metal\ntimestep 0.002\nthermo 100\nrun 400\nStep Temp \n0 1 \n400 1 \n"
    first += "Loop time of 2 on 1 procs for 400 steps with 100 atoms\nrun 400\n"
    assert measure(log_of(ROWS, before=first)).values["n_samples"] == 5
    assert measure(log_of(ROWS, before=first), discard=0.5).values["n_samples"] == 3
    assert measure(log_of(ROWS, before=first), production=0).values["temperature"] == 1
    with pytest.raises(BadInput, match="discard=1"):
        measure(log_of(ROWS), discard=1.0)


def test_minimisation_is_not_production(lammps: Lammps) -> None:
    log = read_log(lammps("run 100\nminimize 0 0 20 99\n"))
    assert production_run(log) is log.runs[0]


def test_kinetic_energy_tells_the_norm_where_the_echo_is_wrong(lammps: Lammps) -> None:
    text = lammps("thermo_modify line yaml norm yes\nrun 100\n").read_text()
    unechoed = measure(parse_log(text.replace("thermo_modify line yaml norm yes\n", "")))
    echoed = measure(parse_log(text))
    assert unechoed.values["total_energy_mev_per_atom"] == pytest.approx(
        echoed.values["total_energy_mev_per_atom"]
    )
    assert any("printed per atom" in note for note in unechoed.notes)


def test_lammps_is_believed_where_the_echoed_timestep_disagrees() -> None:
    after = "Performance: 345.600 ns/day, 0.069 hours/ns, 200.000 timesteps/s"
    measured = measure(log_of(ROWS, after=after))
    assert measured.values["timestep"] == pytest.approx(0.02)
    assert measured.values["ns_per_day"] == pytest.approx(345.6)
    assert any("0.002 was echoed" in note for note in measured.notes)


def test_rounding_of_a_slow_performance_line_is_no_disagreement() -> None:
    slow = "Loop time of 20000 on 1 procs for 400 steps with 100 atoms"
    after = "Performance: 0.003 ns/day, 6944.444 hours/ns, 0.020 timesteps/s"
    measured = measure(log_of(ROWS, loop=slow, after=after))
    assert measured.values["ns_per_day"] == pytest.approx(0.003456)
    assert not any("Performance" in note for note in measured.notes)


def test_a_varying_timestep_is_followed_by_the_time_column() -> None:
    rows = "\n".join(f"{100 * i} {0.1 * i * i} 40 {-60 + 0.01 * i * i} -65 {5 + i % 2}" for i in range(5))
    before = "units metal\nfix d all dt/reset 1 0.001 0.1 0.1\nthermo 100\nrun 400\n"
    measured = measure(log_of(rows, header="Step Time Temp TotEng PotEng KinEng", before=before), discard=0.0)
    assert measured.values["sampled_ps"] == pytest.approx(1.6)
    # E rises by 0.1 eV per ps at any time.
    assert measured.values["drift_mev_per_atom_ns"] == pytest.approx(100_000 / 100)


def test_a_varying_timestep_that_no_column_follows_is_no_timestep() -> None:
    # The Performance line is of the timestep at the end: 0.004 ps, twice the mean.
    after = "Performance: 69.12 ns/day, 0.347 hours/ns, 200.000 timesteps/s"
    before = "units metal\nfix d all dt/reset 1 0.001 0.1 0.1\nthermo 100\nrun 400\n"
    measured = measure(log_of(ROWS, before=before, after=after), discard=0.0)
    assert measured.values["timesteps_per_s"] == 200
    assert not {"timestep", "simulated_ps", "ns_per_day", "drift_mev_per_atom_ns"} & set(measured.values)
    assert any("fix dt/reset" in note and "add `time`" in note for note in measured.notes)
    rows = "\n".join(f"{100 * i} {0.05 * i * i} 40 {-60 + 0.01 * i * i} -65 {5 + i % 2}" for i in range(5))
    timed = log_of(rows, header="Step Time Temp TotEng PotEng KinEng", before=before, after=after)
    measured = measure(timed, discard=0.0)
    # 0.8 ps in 2 s.
    assert measured.values["simulated_ps"] == pytest.approx(0.8)
    assert measured.values["ns_per_day"] == pytest.approx(34.56)
    assert [note for note in measured.notes if "timestep" in note] == [
        "fix dt/reset varies the timestep: `timestep` is its mean"
    ]


def test_every_app_reads_the_same_timestep_atoms_and_energies_from_one_log(tmp_path):
    # 100 atoms, 300 K; energies for each atom although no `thermo_modify norm` is echoed, steps of 2 fs although
    # 1 fs is echoed (a library may set both).
    from hpcagent.science.analysis.averages import read_table
    from hpcagent.science.analysis.viscosity import _stress
    from hpcagent.science.lammps.leg import leg_of
    from hpcagent.science.lammps.log import read_log
    from hpcagent.science.lammps.run_of_trajectory import timestep_of_log

    kinetic = 1.5 * 99 / 100 * 8.617333262e-5 * 300  # eV for each atom
    rows = "\n".join(
        f"{10 * i} 300 {-0.5 - kinetic + 1e-4 * (-1) ** i:.10f} {kinetic + 1e-5 * (-1) ** i:.10f} -0.5 1000 "
        f"{(-1) ** i} 0 {i % 3} "
        for i in range(101)
    )
    (tmp_path / "log").write_text(
        "units metal\ntimestep 0.001\nthermo 10\n"
        "thermo_style custom step temp pe ke etotal vol pxy pxz pyz\nrun 1000\n"
        "Step Temp PotEng KinEng TotEng Volume Pxy Pxz Pyz\n"
        f"{rows}\nLoop time of 1 on 1 procs for 1000 steps with 100 atoms\n\n"
        "Performance: 172.800 ns/day, 0.139 hours/ns, 1000.000 timesteps/s\n"
    )
    before = {"workdir": str(tmp_path), "artifacts": {"log": "log"}}
    log = read_log(tmp_path / "log")
    table, leg, measured = read_table(before), leg_of(before), measure(log, discard=0.0)
    assert measured.values["simulated_ps"] == pytest.approx(2.0)
    assert measured.values["total_energy_mev_per_atom"] == pytest.approx(-500.0)
    assert (table["total"] / table.n_atoms).mean() == pytest.approx(-0.5)
    assert table.freedom == pytest.approx(3 * 100 - 3, abs=0.01)
    assert table["time"][-1] == pytest.approx(2.0) and leg.times[-1] == pytest.approx(2.0)
    assert _stress(before, 0.0).interval == pytest.approx(0.02)
    assert timestep_of_log(log, 0, 1000) == pytest.approx(0.002)
    for part in ("0.001 was echoed", "energies are printed per atom"):
        assert all(part in " ".join(notes) for notes in (table.notes, leg.notes, measured.notes))
