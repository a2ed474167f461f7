"""What the echoed commands say of units, timestep and norm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpcagent.science.lammps.log import read_log

Lammps = Callable[..., Path]


@pytest.mark.parametrize(
    ("script", "timestep"),
    [
        ("run 10\n", 0.002),
        ("timestep $(0.001*3)\nrun 10\n", 0.003),
        ('variable n equal 10\nif "$n > 0" then "timestep 0.004" "run $n"\n', 0.004),
        ("timestep &\n 0.001 # ps, not 0.5\nrun 10\n", 0.001),
        ("print 'timestep 7'\nrun 10\n", 0.002),
    ],
)
def test_the_timestep_is_the_one_in_force_when_the_run_started(
    lammps: Lammps, script: str, timestep: float
) -> None:
    run = read_log(lammps(script + "timestep 0.005\n")).runs[0]
    assert run.timestep == pytest.approx(timestep)


def test_defaults_of_the_style_serve_where_nothing_is_echoed(lammps: Lammps) -> None:
    lj = (
        "lattice fcc 0.8442\nregion box block 0 2 0 2 0 2\ncreate_box 1 box\ncreate_atoms 1 box\nmass 1 1.0\n"
        "velocity all create 1.44 87287\npair_style lj/cut 1.5\npair_coeff 1 1 1.0 1.0\nfix 1 all nve\n"
        "thermo 10\nrun 50\n"
    )
    log = read_log(lammps(lj, head=""))
    assert (log.units, log.runs[0].timestep, log.runs[0].normalized) == ("lj", 0.005, True)
    assert log.runs[0].unit("TotEng") == "epsilon/atom"
    assert "tau/day" in log.runs[0].performance


def test_after_a_restart_units_and_timestep_are_not_guessed(lammps: Lammps) -> None:
    script = (
        "run 10\nwrite_restart a.restart\nclear\nread_restart a.restart\npair_coeff 1 1 0.0103 3.405\n"
        "fix 1 all nve\nrun 10\nrun 10 post no\n"
    )
    first, *later = read_log(lammps(script)).runs
    assert (first.units, first.timestep) == ("metal", 0.002)
    for run in later:
        assert (run.units, run.timestep, run.normalized) == (None, None, None)


def test_screen_output_says_units_and_timestep_in_its_setup_lines(lammps: Lammps) -> None:
    log = read_log(lammps("run 20\ntimestep 0.004\nrun 10\n", screen=True))
    assert [run.timestep for run in log.runs] == [0.002, 0.004]
    assert {run.units for run in log.runs} == {"metal"}
    assert [run.kind for run in log.runs] == ["run", "run"]


def test_a_changing_timestep_is_no_timestep(lammps: Lammps) -> None:
    script = "fix d all dt/reset 5 0.0005 0.002 0.001\nrun 10\nunfix d\ntimestep 0.001\nrun 10\n"
    assert [run.timestep for run in read_log(lammps(script)).runs] == [None, 0.001]


def test_norm_follows_thermo_modify_and_is_lost_with_a_new_style(lammps: Lammps) -> None:
    script = "thermo_modify norm yes\nrun 10\nthermo_style custom step temp pe\nrun 10\n"
    yes, no = read_log(lammps(script)).runs
    assert (yes.normalized, no.normalized) == (True, False)
    assert (yes.unit("pe"), no.unit("pe"), no.unit("temp")) == ("eV/atom", "eV", "K")
    assert yes["TotEng"][0] == pytest.approx(no["pe"][-1] / 32, rel=0.5)
