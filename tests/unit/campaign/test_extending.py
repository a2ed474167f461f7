"""Runs of a campaign that go on from their end: by hand and by the policy's word; which result counts."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hpcagent as ha
from hpcagent.apps.base import App
from hpcagent.campaign.answer import read_run
from hpcagent.campaign.compare import observations
from hpcagent.campaign.coordinator import Coordinator
from hpcagent.campaign.decisions import replays
from hpcagent.campaign.extending import before_and_after
from hpcagent.campaign.loading import load_run
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.warm import read_earlier
from hpcagent.cli import cli
from hpcagent.errors import BadInput, BudgetSpent
from hpcagent.model.extended import superseded
from hpcagent.model.parameter import Params
from hpcagent.model.records import Manifest, Observation
from hpcagent.policies.longer import Longer
from hpcagent.reports.plots import _run_of_best


@ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"}, deterministic=False, extendable=True)
def series(x: float, run: ha.Run) -> ha.Outcome:
    """Ten values of a series for an ordinary run; it goes on where the earlier run has ended."""
    if x > 0.9:
        raise ha.AppFailed("too far", kind="simulation", name="LostAtoms")
    values: list[float] = []
    if run.extends is not None:
        values = json.loads((Path(run.extends["workdir"]) / "values.json").read_text())
        assert len(values) == round(10 * run.extends["times"]) and run.extends["metrics"]["y"] >= 0
    while len(values) < round(10 * run.times):
        values.append(x + len(values))
    (run.workdir / "values.json").write_text(json.dumps(values))
    return ha.Outcome({"y": sum(values) / len(values)}, uncertainty={"y": 1 / len(values)})


class Wants:
    """A policy that has its first run go on, as often as it is asked."""

    repeats = True

    def __init__(self, space: object, objective: object, seed: int = 0) -> None:
        pass

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        if not history:
            return [{"x": 0.5}, {"x": 0.25}][:n]
        last = max(history, key=lambda o: (o.params["x"], o.times))
        return [Longer(last.params, run=last.index, factor=2.0)]


def campaign(runs: int = 20, policy: str = "sobol", app: App = series) -> Campaign:
    return Campaign(app, ha.maximize("y"), space={"x": {}}, policy=policy, until={"max_runs": runs}, batch_size=2)


def test_by_hand_a_run_goes_on_and_takes_the_place_of_what_it_extends(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Coordinator(campaign(), site="threads", run_dir=folder) as coordinator:
        (first,) = coordinator.run_points([{"x": 0.5}])
        second = coordinator.extend(0).result()
        third = coordinator.extend(second, factor=1.5).result()
        # The same again is the same run; of a point the ordinary run is meant.
        assert coordinator.extend({"x": 0.5}).execution_id == second.manifest.execution_id
    # Means of 0.5 + 0 .. 9, 19 and 29.
    assert [r["y"] for r in (first, second, third)] == [5.0, 10.0, 15.0]
    assert [r.manifest.times for r in (first, second, third)] == [1.0, 2.0, 3.0]
    assert third.manifest.extends == second.manifest.execution_id and third.manifest.role == "extended"
    assert third.manifest.seed == first.manifest.seed and third.manifest.identity == third.manifest.execution_id
    length, line = before_and_after(campaign(), first, second)
    assert length == "  length: 1 x an ordinary run before, 2 x an ordinary run now"
    assert line.split() == ["y:", "5", "±", "0.1", "before,", "10", "±", "0.05", "now"]
    # On record are three; one counts.
    read = read_run(folder)
    assert len(read.results) == 3 and read.best is not None
    assert read.best.metrics["y"] == 15.0 and read.best.runs == 1
    (seen,) = observations(read.campaign, read.results, None)
    assert (seen.index, seen.times, seen.uncertainty["y"]) == (2, 3.0, pytest.approx(1 / 30))
    assert "2 of them counted as part of a run that went on from them" in str(read)
    table = {c.name: c.values for c in read.columns}
    assert table["superseded_by"] == (third.manifest.execution_id, third.manifest.execution_id, None)
    # Nor is it counted twice beside another campaign, nor drawn.
    with Coordinator(campaign(), site="threads", run_dir=tmp_path / "other") as coordinator:
        coordinator.run_points([{"x": 0.5}])
    beside = ha.runs.compare(folder, tmp_path / "other")
    ((_, (value,)),) = beside.points
    assert (value.first, value.other) == (15.0, 5.0) and value.first_error == pytest.approx(1 / 30)
    assert [p.best for p in beside.progress] == [(5.0, 10.0, 15.0), (5.0,)]
    assert _run_of_best(read).manifest.times == 3.0
    # In a later session too nothing is run twice.
    with Coordinator(load_run(folder), site="threads", run_dir=folder) as coordinator:
        again = coordinator.extend(first.manifest.execution_id)
        assert again.recorded and again.result()["y"] == 10.0
        longest = coordinator.extend(0, factor=4).result()
    assert longest["y"] == 20.0
    # Of two extensions of one run the longer one counts: what they share is not counted twice.
    gone = superseded(read_run(folder).results)
    assert set(gone) == {r.manifest.execution_id for r in (first, second, third)}


def test_what_cannot_go_on_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with Coordinator(campaign(3), site="threads", run_dir=tmp_path / "run") as coordinator:
        done, failed = coordinator.run_points([{"x": 0.5}, {"x": 0.95}])
        refused = [
            ({"run": 7}, "positions 0 to 1"),
            ({"run": failed}, "did not complete"),
            ({"run": 0, "factor": 1.0}, "above 1"),
            ({"run": 0, "factor": 1e9}, "is the most"),
            ({"run": {"x": 0.125}}, "no run at"),
            ({"run": None}, "takes a run"),
        ]
        for given, words in refused:
            with pytest.raises(BadInput, match=words):
                coordinator.extend(**given)
        coordinator.extend(0).result()
        with pytest.raises(BudgetSpent, match="max_runs = 3"):
            coordinator.extend(0, factor=3)
        shutil.rmtree(done.workdir)
        with pytest.raises(BadInput, match="are gone"):
            coordinator.extend(0, factor=3)
    assert len(read_run(tmp_path / "run").results) == 3

    plain = ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"})(lambda x: {"y": x})
    with pytest.raises(BadInput, match="extendable=True"):
        Campaign(plain, ha.maximize("y"), policy={"name": "bayes", "extend": True}, until={"max_runs": 3})
    with pytest.raises(BadInput, match="argument `run`"):
        ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"}, extendable=True)(lambda x: {"y": x})


@ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"}, deterministic=False, extendable=True)
def left_nothing(x: float, run: ha.Run) -> ha.Outcome:
    """Says of its end that there is nothing to go on from."""
    return ha.Outcome({"y": x}, extendable_s=float("nan"))


def test_a_run_that_says_that_it_cannot_go_on_is_not_extended(tmp_path: Path) -> None:
    with Coordinator(campaign(app=left_nothing), site="threads", run_dir=tmp_path / "run") as coordinator:
        (first,) = coordinator.run_points([{"x": 0.5}])
        assert first.ok and first.extendable_s is None
        with pytest.raises(BadInput, match="has nothing to go on from"):
            coordinator.extend(0)


@pytest.mark.parametrize(
    ("confirm", "needed"),
    # 4 runs and one more; where a larger budget keeps 2 runs for its confirmation, those besides.
    [(None, 5), (ha.types.Confirm(top=1, replicates=2), 7)],
)
def test_of_a_campaign_that_has_ended_the_error_is_the_way_on(
    tmp_path: Path, confirm: ha.types.Confirm | None, needed: int
) -> None:
    folder = tmp_path / "a run"
    given = campaign(4).model_copy(update={"confirm": confirm, "site": "threads"})
    ended = ha.run(given, run_dir=folder, progress=False)
    first = next(r for r in ended.results if r.ok)
    index = str(first.manifest.index)
    shell = CliRunner().invoke(cli, ["extend", str(folder), index])
    assert shell.exit_code != 0 and isinstance(shell.exception, BudgetSpent)
    (command,) = re.findall("`(hpcagent extend [^`]*)`", str(shell.exception))
    words = shlex.split(command)[1:]
    assert words == ["extend", str(folder), index, "--set", f"until.max_runs={needed}"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert "before," in done.output
    results = read_run(folder).results
    assert len(results) == len(ended.results) + 1 and results[-1].manifest.role == "extended"


def test_a_campaign_that_varies_the_length_cannot_extend() -> None:
    space = {"steps": {"low": 1000, "high": 2000}}
    with pytest.raises(BadInput, match="'steps' is the length of the run and is varied"):
        Campaign(
            ha.lammps("lj_argon_long"),
            ha.maximize("pressure"),
            space=space,
            policy={"name": "bayes", "extend": True},
            until={"max_runs": 3},
        )


def test_a_policy_extends_and_what_cannot_be_becomes_a_further_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    asked = campaign(6, policy=f"{__name__}:Wants")
    with Coordinator(asked, site="threads", run_dir=folder) as coordinator:
        batches = iter(coordinator)
        next(batches)
        (second,) = next(batches).results
        assert (second.manifest.role, second.manifest.times, second["y"]) == ("extended", 2.0, 10.0)
        assert second.manifest.requested_by == asked.policy.name
        shutil.rmtree(second.workdir)
        (third,) = next(batches).results
        assert (third.manifest.role, third.manifest.replicate, third.manifest.times) == ("suggested", 1, 1.0)
        for _ in batches:
            pass
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    (why,) = [e["instead"] for e in events if e.get("instead") and e["instead"][0]["extends"] == 2][:1]
    assert "are gone" in why[0]["why"]
    assert replays(folder) == []


def test_a_campaign_that_begins_with_another_takes_the_longer_run_only(tmp_path: Path) -> None:
    with Coordinator(campaign(), site="threads", run_dir=tmp_path / "first") as coordinator:
        coordinator.run_points([{"x": 0.5}, {"x": 0.25}])
        coordinator.extend(0).result()
    given = campaign(2).model_copy(update={"earlier": (str(tmp_path / "first"),)})
    read = read_earlier(given)
    assert read is not None
    source = read.earlier[0]
    assert (source.found, source.uninformative) == (2, 0)
    assert sorted((run.params["x"], run.metrics["y"]) for run in source.runs) == [(0.25, 4.75), (0.5, 10.0)]
    second = ha.run(given, site="threads", run_dir=tmp_path / "second", progress=False)
    assert len(second.results) == 2


def test_in_a_sweep_a_longer_run_is_no_replicate(tmp_path: Path) -> None:
    sweep = ha.Sweep(series, {"x": {"low": 0.0, "high": 0.5}}, levels=2, replicates=2)
    with Coordinator(sweep, site="threads", run_dir=tmp_path / "run") as coordinator:
        coordinator.run_points([{"x": 0.5}])
        coordinator.extend(0).result()
        for _ in coordinator:
            pass
    read = read_run(tmp_path / "run")
    assert len(read.results) == 5
    points = {p.params["x"]: p for p in read.points}
    assert {x: (p.runs, p.waiting) for x, p in points.items()} == {0.0: (2, 0), 0.5: (2, 0)}
    assert sorted(points[0.5].values["y"]) == [5.0, 10.0]


def test_ids_and_records_of_runs_that_extend_nothing_are_as_before() -> None:
    manifest = series.manifest({"x": 0.5})
    before = Manifest.identify(
        app=manifest.app,
        app_version=manifest.app_version,
        input_digest=manifest.input_digest,
        params=manifest.params,
        seed=0,
        replicate=0,
    )
    assert manifest.execution_id == before
    for fields in (manifest.model_dump(), json.loads(manifest.model_dump_json())):
        assert not {"extends", "times"} & set(fields)
    longer = series.manifest({"x": 0.5}, extends=before, times=2.0)
    assert longer.execution_id not in (before, series.manifest({"x": 0.5}, extends=before, times=3.0).execution_id)
    assert Manifest.model_validate(longer.model_dump(mode="json")) == longer


@ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"}, extendable=True, estimated_runtime_s=0.02)
def timed(x: float, run: ha.Run) -> ha.Outcome:
    time.sleep(0.02 * (run.times - (run.extends or {}).get("times", 0.0)))
    return ha.Outcome({"y": x})


def test_an_extension_is_admitted_at_its_own_price(tmp_path: Path) -> None:
    cap = 0.5 / 3600
    asked = Campaign(timed, ha.maximize("y"), space={"x": {}}, policy="sobol", batch_size=2,
        until={"max_runs": 30, "node_hours": cap})  # fmt: skip
    with Coordinator(asked, site="threads", workers=1, run_dir=tmp_path) as coordinator:
        for i in range(8):
            coordinator.run_points([{"x": i / 8}])
        with pytest.raises(BudgetSpent, match="leaves no room"):
            coordinator.extend(0, factor=100)
        assert coordinator.extend(0, factor=2).result().ok
    assert read_run(tmp_path).node_hours < cap
