"""The main job: the packaged argon campaigns on this machine, and their answer against a dense grid."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.reports.report import report
from hpcagent.store.metrics_file import read_table

GRID = Path(__file__).parents[2] / "benchmarks" / "lj_argon_grid.py"


@pytest.fixture(scope="module")
def grid():
    spec = importlib.util.spec_from_file_location("lj_argon_grid", GRID)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_table_puts_the_optimum_near_rahmans_timestep(grid):
    speed, point = grid.optimum()
    # Rahman 1964 took 10 fs for argon; LAMMPS's defaults at 2 fs are several times slower.
    assert 8.5 < point["timestep_fs"] < 11
    assert 0.3 <= point["skin"] <= 2.0 and point["accelerator"] != "off"
    assert 4 < speed < 10


def test_the_table_has_the_fluctuation_that_argons_debye_temperature_gives(grid):
    # (w dt)^2 / 4 averaged over the modes of a Debye solid, as they share in var(E): sqrt(<w^4>) = sqrt(3/7) w_D^2.
    # 92 K: Kittel, Introduction to Solid State Physics, table of Debye temperatures; hbar / k_B = 7.638e-12 K s.
    debye = 92.0 / 7.638  # 1/ps
    for timestep_fs in (5, 8, 10, 12):
        expected = math.sqrt(3 / 7) * (debye * timestep_fs / 1000) ** 2 / 4
        assert grid.true_fluctuation(timestep_fs) == pytest.approx(expected, rel=0.12)


def test_most_campaigns_on_the_table_end_within_the_noise_of_its_optimum(grid, capsys):
    """83 of the 100 of seeds 5000-5099 did when this was written, and 4 of these 5."""
    good = grid.campaigns(5)
    assert good >= 4, capsys.readouterr().out


@pytest.mark.slow
def test_lj_tuning_finds_the_timestep_skin_and_accelerator_on_this_machine(tmp_path):
    result = ha.run("lj_tuning", run_dir=tmp_path)
    best = result.best
    assert len(result.results) == 40 and best.feasible
    # The contenders were run again. A neighbour that was run once may be the answer where it is surer to be allowed,
    # but no contender that is allowed may be clearly faster than the answer.
    repeated = [e for e in result.points if e.runs > 1 and e.params["timestep"] > 0.003]
    kept = [e for e in repeated if e.probability_feasible >= 0.9 and e.metrics["energy_fluctuation_1ps"] <= 0.0025]
    answer = next(e for e in result.points if best.params.items() <= e.params.items())
    assert repeated and (best.runs >= 2 or answer.probability_feasible >= 0.9)
    assert all(e.score - answer.score < 2 * math.hypot(e.score_error, answer.score_error) for e in kept)
    # The gate is met at 10.1 fs (seeds scatter by 5 %, which is 3 % of the timestep).
    assert 0.0075 <= best.params["timestep"] <= 0.0125
    assert best.params["skin"] <= 3.0
    assert best.metrics["energy_fluctuation_1ps"] <= 0.0025
    over_defaults = [s for s in result.speedups if s.same_accuracy]
    assert over_defaults and over_defaults[0].factor > 1.0
    roles = {r.manifest.role for r in result.results}
    assert {"suggested", "reference", "replicate"} <= roles
    columns, units = read_table(tmp_path / "metrics.h5")
    for name in ("ns_per_day", "ns_per_day_cpu", "cpu_use_percent", "neighbor_builds"):
        assert name in {c.removeprefix("metrics/") for c in columns}
    assert units["metrics/ns_per_day"] == "ns/day" and set(columns["host"]) != {""}
    written = report(tmp_path)
    drawn = {p.name for p in written.plots}
    assert {"progress.png", "plane.png", "best_run.png", "slices.png", "calibration.png"} <= drawn
    assert "speed" in written.path.read_text() or "times the reference" in written.path.read_text()


@pytest.mark.slow
def test_what_the_gate_allows_it_allows_in_a_run_four_times_as_long(tmp_path):
    md = ha.lammps("lj_argon")
    with ha.open_site("threads", workers=1, run_dir=tmp_path):
        short, long = (md(timestep=0.0097, skin=1.0, accelerator="opt", steps=n, seed=3) for n in (2000, 8000))
        short, long = short.result(), long.result()
    name = "energy_fluctuation_1ps"
    assert long[name] <= 0.0025
    assert abs(long[name] - short[name]) < 3 * (long.uncertainty[name] + short.uncertainty[name])
    # What the gate was before grows: the energy walks at random.
    assert long["energy_fluctuation_run"] > 1.4 * long[name]


@pytest.mark.slow
def test_without_a_shifted_potential_the_campaign_says_that_no_setting_helps(tmp_path):
    result = ha.run("lj_tuning_unshifted", run_dir=tmp_path)
    assert result.best is None or not result.best.feasible
    assert len(result.results) < 36
    assert "drift_ppm_last_first" in result.reason and "does not depend on" in result.reason


@pytest.mark.slow
def test_the_older_gate_has_its_optimum_between_six_and_seven_and_a_half_femtoseconds(tmp_path):
    result = ha.run("lj_tuning_ppm", run_dir=tmp_path)
    # Its boundary is fuzzy: 36, 59, 41, 54 ppm at 6, 6.5, 7.5, 8 fs for one seed, 39-57 at 7 fs over four.
    assert result.best.feasible and 0.0045 <= result.best.params["timestep"] <= 0.0085
