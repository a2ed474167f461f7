"""Runs in pieces against the same run in one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcagent.science.lammps.legs import legs
from hpcagent.science.lammps.log import read_log
from hpcagent.science.lammps.metrics import measure
from hpcagent.science.lammps.production import production_run

Lammps = Callable[..., Path]

WHOLE = "neigh_modify every 1 delay 0 check no\nrun 120\n"
LOOP = "variable i loop 4\nlabel again\n{0}\nnext i\njump SELF again\n"


@pytest.mark.parametrize(
    ("pieces", "number"),
    [
        ("run 120 every 30 NULL\n", 4),
        ('run 120 every 50 "print done" "variable a equal 7"\n', 3),
        # Seams at 25, 50, 75 and 100: 25 and 75 are no steps of `thermo 10`, and print a row all the same.
        ("run 120 every 25 NULL\n", 5),
        ("run 30\nrun 60 pre no post no\nrun 30 pre no\n", 3),
        (LOOP.format("run 30"), 4),
        (LOOP.format("run 30 pre no post yes").replace("label", "run 0\nlabel"), 4),
        (LOOP.format("timestep 0.002\nrun 30\nwrite_data final.data"), 4),
    ],
)
def test_a_run_in_pieces_is_measured_like_the_same_run_in_one(lammps: Lammps, pieces: str, number: int) -> None:
    one = read_log(lammps(WHOLE))
    log = read_log(lammps("neigh_modify every 1 delay 0 check no\n" + pieces))
    whole, leg = production_run(one), production_run(log)
    assert whole is not None and leg is not None
    assert leg.pieces == number
    assert leg["Step"].tolist() == list(range(0, 121, 10)), "each step once, evenly spaced"
    # A new piece may sum the forces in another order.
    np.testing.assert_allclose(leg.data, whole.data, rtol=1e-6, atol=1e-6)
    assert (leg.steps, leg.missing, leg.n_atoms, leg.n_atoms_start) == (120, 0, 32, 32)
    assert leg.loop_time_s == pytest.approx(sum(run.loop_time_s or 0.0 for run in log.runs if run.steps))
    found, expected = measure(log), measure(one)
    for name in ("temperature", "energy_fluctuation", "pressure", "n_samples", "simulated_ps", "neighbor_builds"):
        assert found.values[name] == pytest.approx(expected.values[name], rel=1e-4), name
    assert found.uncertainty == pytest.approx(expected.uncertainty, rel=1e-3)
    assert found.values["timesteps_per_s"] == pytest.approx(120 / (leg.loop_time_s or 1.0))
    (said,) = [note for note in found.notes if "pieces" in note]
    assert f"measured over {number} pieces" in said and "steps 0 to 120" in said
    assert not any("LAMMPS says" in note for note in found.notes), "speeds of pieces are weighted by their time"


@pytest.mark.parametrize(
    ("script", "by"),
    [
        ('run 90 every 30 "velocity all scale 60"\n', "velocity all scale 60"),
        (LOOP.format("run 30\nvelocity all scale 50"), "velocity all scale 50"),
        ("run 60\nfix 2 all langevin 80 80 0.1 7\nrun 30 pre no\n", "fix 2 all langevin 80 80 0.1 7"),
        ('run 90 every 30 "timestep $(0.001+0.00001*step)"\n', "another timestep"),
        ("run 60\nthermo 5\nrun 30 pre no\n", "another `thermo` interval"),
    ],
)
def test_pieces_between_which_something_changed_are_not_one_leg_and_the_result_says_so(
    lammps: Lammps, script: str, by: str
) -> None:
    log = read_log(lammps(script))
    leg = production_run(log)
    assert leg is not None
    assert (leg.pieces, leg.broken_by, leg["Step"][-1] - leg["Step"][0]) == (1, by, 30)
    (said,) = [note for note in measure(log).notes if "pieces" in note]
    assert f"before step {leg['Step'][0]:.0f} are not measured: {by!r} came between" in said


def test_equilibration_and_production_stay_apart(lammps: Lammps) -> None:
    log = read_log(lammps("run 60\nrun 30\nreset_timestep 0\nrun 30\n"))
    assert len(legs(log.runs)) == 3
    leg = production_run(log)
    assert leg is not None and leg["Step"].tolist() == [0, 10, 20, 30]
    assert not any("pieces" in note for note in measure(log).notes)


def test_counts_that_go_on_after_pre_no_are_not_counted_twice(lammps: Lammps) -> None:
    # With `check no` LAMMPS builds a list in each step, and after `pre no` it goes on counting: 20, 50, then 10.
    log = read_log(lammps("neigh_modify every 1 delay 0 check no\nrun 20\nrun 30 pre no\nrun 10\n"))
    assert [run.neighbor_builds for run in log.runs] == [20, 50, 10]
    assert [leg.neighbor_builds for leg in legs(log.runs)] == [50, 10]
