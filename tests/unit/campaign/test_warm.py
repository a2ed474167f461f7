"""A campaign that begins with the runs of earlier ones."""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path
from statistics import median

import pytest
from typer.testing import CliRunner

import hpcagent as ha
from hpcagent.apps.landscape import synthetic
from hpcagent.apps.run import Outcome
from hpcagent.campaign.answer import answer, read_run
from hpcagent.campaign.choices import Confirm
from hpcagent.campaign.coordinator import Coordinator
from hpcagent.campaign.decisions import decisions, replays
from hpcagent.campaign.dry_run import plan
from hpcagent.campaign.earlier import EarlierRun, Source, WarmStart
from hpcagent.campaign.loading import load_campaign, load_run
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.state import State
from hpcagent.campaign.warm import OTHER_HOST, earlier_evidence, earlier_observations, read_earlier
from hpcagent.cli import cli
from hpcagent.errors import BadInput, RunDirChanged
from hpcagent.model.contract import Metric
from hpcagent.model.objective import at_most, maximize
from hpcagent.model.parameter import Choice, Float
from hpcagent.model.records import Cost, Manifest, Result
from hpcagent.reports.report import report
from hpcagent.store.journal import read_events
from tests.unit.campaign.records_for_tests import never_ended

OBJECTIVE = maximize("value", subject_to={"error": at_most(1.0)})
BEST = 75.0  # at x = 0.6, y = 0.4, style = tuned


def campaign(app=synthetic, objective=OBJECTIVE, **changes):
    settings = {
        "name": "new",
        "space": {"x": {}, "y": {}, "style": {}},
        "policy": "quality_first",
        "batch_size": 4,
        "until": {"max_runs": 24},
        "site": "threads",
    }
    return Campaign(app, objective, **{**settings, **changes})


def best_feasible(results):
    return max((r["value"] for r in results if r.ok and r["error"] <= 1.0), default=0.0)


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """The folder of a finished campaign of 24 runs."""
    folder = tmp_path_factory.mktemp("earlier") / "old"
    ha.run(campaign(name="old"), run_dir=folder)
    return folder


def events(folder, kind):
    return [e for e in read_events(folder / "events.jsonl") if e["event"] == kind]


# -- what it is good for ----------------------------------------------------------------------


def test_with_the_history_of_the_same_campaign_fewer_runs_are_needed(tmp_path):
    """Runs until a point within 3 % of the best one that keeps the limit, with 5 seeds each."""

    def needed(results):
        for n in range(1, len(results) + 1):
            if best_feasible(results[:n]) >= 0.97 * BEST:
                return n
        return len(results) + 1

    cold, warm = [], []
    for seed in range(5):
        first = tmp_path / f"cold{seed}"
        cold.append(needed(ha.run(campaign(seed=seed), run_dir=first).results))
        again = campaign(seed=100 + seed, earlier=(str(first),), until={"max_runs": 12})
        warm.append(needed(ha.run(again, run_dir=tmp_path / f"warm{seed}").results))
    assert median(warm) <= 4  # one batch
    assert median(cold) >= 2 * median(warm)


def test_the_policy_sees_them_before_its_own_runs(old, tmp_path):
    folder = tmp_path / "new"
    ha.run(campaign(earlier=(str(old),), until={"max_runs": 9}), run_dir=folder)
    first, second = list(decisions(folder))[:2]
    assert [o.role for o in first.history] == ["earlier"] * 24
    assert [o.index for o in first.history] == list(range(-24, 0))
    assert {o.batch for o in first.history} == {-1}
    assert {tuple(o.params) for o in first.history} == {("x", "y", "style")}
    recorded = read_run(old).results
    assert [o.metrics for o in first.history] == [r.metrics for r in recorded]
    assert [o.role for o in second.history] == ["earlier"] * 24 + ["suggested"] * 4
    assert replays(folder) == []


@pytest.mark.parametrize("mode", ["batch", "rolling"])
@pytest.mark.parametrize("reference", [None, {"x": 0.1}])
def test_every_decision_can_be_replayed(old, tmp_path, mode, reference):
    """Also where the earlier values are scaled anew after every reference run."""
    folder = tmp_path / "new"
    settings = campaign(earlier=(str(old),), until={"max_runs": 10}, mode=mode, reference=reference)
    result = ha.run(settings, run_dir=folder)
    assert len(result.results) == 10
    found = list(decisions(folder))
    assert all([o.role for o in d.history[:24]] == ["earlier"] * 24 for d in found)
    assert replays(folder) == []
    doubted = ["value" in d.history[0].uncertainty for d in found]
    assert doubted == [reference is not None] * len(found)


def test_they_count_against_no_budget_and_stop_nothing(old, tmp_path):
    until = {"any_of": [{"max_runs": 8}, {"target": {"metric": "value", "at_least": 30.0}}]}
    space = {"x": {"high": 0.1}, "y": {}, "style": {}}  # where 30 cannot be reached by a run of its own
    result = ha.run(campaign(earlier=(str(old),), until={"max_runs": 8}), run_dir=tmp_path / "a")
    assert len(result.results) == 8
    assert result.node_hours == pytest.approx(sum(r.cost.node_hours for r in result.results))
    assert [r.manifest.index for r in result.results] == list(range(8))
    assert result.results[0].manifest.batch == 0
    fooled = ha.run(campaign(earlier=(str(old),), space=space, until=until), run_dir=tmp_path / "b")
    assert len(fooled.results) == 8
    assert "target" not in fooled.reason


def test_it_is_told_how_many_were_used(old, tmp_path):
    folder = tmp_path / "new"
    opened = []
    space = {"x": {"low": 0.2, "high": 1.0}, "y": {}, "style": {}}
    result = ha.run(
        campaign(earlier=(str(old),), space=space, until={"max_runs": 4}),
        run_dir=folder,
        watch=lambda event: opened.append(event.reason) if event.kind == "opened" else None,
    )
    inside = sum(r.manifest.params["x"] >= 0.2 for r in read_run(old).results)
    words = f"{inside} of 24 run(s) of {old} (left out: {24 - inside} outside of this space)"
    assert 0 < inside < 24
    assert opened == [f"new, on threads; begins with {words}"]
    assert f"begun with {words}" in str(result)
    report(folder, plots=False)
    assert f"- begun with {words}" in (folder / "report" / "report.md").read_text()


# -- the answer -------------------------------------------------------------------------------


def test_the_answer_is_run_at_least_once_in_this_campaign(old, tmp_path):
    """Also where the policy would not go there: a sweep never does."""
    result = ha.run(campaign(policy="sobol", earlier=(str(old),), until={"max_runs": 6}), run_dir=tmp_path / "new")
    assert result.best.feasible
    assert result.best.metrics["value"] == pytest.approx(best_feasible(read_run(old).results), rel=0.05)
    assert 0 < result.best.earlier < result.best.runs
    last = result.results[-1]
    assert (last.manifest.role, len(result.results)) == ("replicate", 6)
    assert {n: last.manifest.params[n] for n in ("x", "y", "style")} == result.best.params
    assert f"{result.best.earlier} of them of earlier campaigns" in str(result)


def test_an_answer_that_no_own_run_has_confirmed_says_so(old, tmp_path):
    settings = campaign(
        policy="sobol", earlier=(str(old),), until={"max_runs": 2}, confirm=Confirm(top=0, replicates=0)
    )
    result = ha.run(settings, run_dir=tmp_path / "new")
    assert result.best.earlier == result.best.runs
    assert "of earlier campaigns, NOT confirmed by one of this campaign" in str(result)


def test_the_user_s_own_confirmation_is_left_as_it_is(old):
    assert campaign(earlier=(str(old),), confirm=Confirm(top=3, replicates=1)).confirming == Confirm(
        top=3, replicates=1
    )
    assert campaign(earlier=(str(old),)).confirming == Confirm(top=1, replicates=1)
    assert campaign().confirming is None


# -- the journal ------------------------------------------------------------------------------


def test_nothing_depends_on_the_old_folder_any_more(old, tmp_path):
    copy, folder = tmp_path / "copy", tmp_path / "new"
    shutil.copytree(old, copy)
    settings = campaign(earlier=(str(copy),), until={"max_runs": 12})
    with Coordinator(settings, run_dir=folder) as coordinator:
        next(iter(coordinator))
    shutil.rmtree(copy)
    result = ha.run(load_run(folder), run_dir=folder)
    assert len(result.results) == 12
    assert replays(folder) == []
    (event,) = events(folder, "warm_start")
    assert event["earlier"][0]["folder"] == str(copy)
    assert event["earlier"][0]["digest"] == synthetic.digest
    assert len(event["earlier"][0]["runs"]) == 24


def test_the_old_folder_is_not_touched(old, tmp_path):
    before = {p: p.stat().st_mtime_ns for p in old.rglob("*")}
    ha.run(campaign(earlier=(str(old),), until={"max_runs": 2}), run_dir=tmp_path / "new")
    assert {p: p.stat().st_mtime_ns for p in old.rglob("*")} == before


def test_an_interrupted_and_resumed_campaign_asks_the_policy_what_an_uninterrupted_one_asks(old, tmp_path):
    settings = campaign(earlier=(str(old),), until={"max_runs": 12})
    ha.run(settings, run_dir=tmp_path / "whole")
    with Coordinator(settings, run_dir=tmp_path / "cut") as coordinator:
        next(iter(coordinator))
    ha.run(settings, run_dir=tmp_path / "cut")
    whole, cut = (read_run(tmp_path / name).results for name in ("whole", "cut"))
    assert [r.manifest.params for r in cut] == [r.manifest.params for r in whole]


def test_a_prepared_campaign_has_them_already(old, tmp_path):
    """Its coordinator may start where the old folder cannot be seen."""
    copy, folder = tmp_path / "copy", tmp_path / "new"
    shutil.copytree(old, copy)
    settings = campaign(earlier=(str(copy),), until={"max_runs": 4})
    Coordinator(settings, run_dir=folder).prepare()
    shutil.rmtree(copy)
    assert len(ha.run(settings, run_dir=folder).warm.earlier[0].runs) == 24
    assert len(events(folder, "warm_start")) == 1


def test_other_folders_cannot_be_added_later(old, tmp_path):
    folder = tmp_path / "new"
    ha.run(campaign(until={"max_runs": 2}), run_dir=folder)
    with pytest.raises(RunDirChanged, match="earlier differ"):
        ha.run(campaign(until={"max_runs": 2}, earlier=(str(old),)), run_dir=folder)


def test_the_first_batch_of_a_dry_run_is_that_of_the_campaign(old, tmp_path):
    settings = campaign(earlier=(str(old),), until={"max_runs": 8})
    shown = plan(settings).manifests
    result = ha.run(settings, run_dir=tmp_path / "new")
    assert [m.params for m in shown] == [r.manifest.params for r in result.results[:4]]


# -- where they are named ---------------------------------------------------------------------


def test_folders_are_relative_to_the_campaign_s_file(old, tmp_path):
    (tmp_path / "runs").symlink_to(old.parent)
    file = tmp_path / "new.toml"
    file.write_text(
        'app = "synthetic"\nearlier = ["runs/old"]\n[objective]\nmaximize = "value"\n[space]\nx = {}\n'
    )
    loaded = load_campaign(file)
    assert loaded.earlier == (str(tmp_path / "runs" / "old"),)
    copy = tmp_path / "elsewhere.toml"
    copy.write_text(loaded.toml())
    assert load_campaign(copy).earlier == loaded.earlier


def test_folders_of_the_command_line_are_relative_to_where_it_is_given(old, tmp_path, monkeypatch):
    monkeypatch.chdir(old.parent)
    (tmp_path / "new.toml").write_text(campaign(until={"max_runs": 2}).toml())
    told = CliRunner().invoke(
        cli,
        ["run", str(tmp_path / "new.toml"), "--earlier", "old", "--run-dir", str(tmp_path / "new"), "--no-plots"],
    )
    assert f"begun with 24 of 24 run(s) of {old}" in told.output


# -- what is refused --------------------------------------------------------------------------


def rewritten(old, folder, change):
    """A copy of the old folder whose app was another one."""
    shutil.copytree(old, folder)
    data = json.loads((folder / "app.json").read_text())
    change(data)
    (folder / "app.json").write_text(json.dumps(data))
    return str(folder)


def other_name(data):
    data["contract"]["name"] = "lj"


def other_version(data):
    data["contract"]["version"] = "1.1.0"


def other_input(data):
    data["settings"] = {**data.get("settings", {}), "script": "units metal"}


def other_metric_unit(data):
    next(m for m in data["contract"]["metrics"] if m["name"] == "error")["unit"] = "K"


def other_parameter_unit(data):
    next(p for p in data["contract"]["space"]["parameters"] if p["name"] == "x")["unit"] = "fs"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_name, "the app differs: lj there, synthetic here"),
        (other_version, "the version of app synthetic differs: 1.1.0 there, 1.0.0 here"),
        (other_input, r"the input of app synthetic .* differs: [0-9a-f]{12} there, [0-9a-f]{12} here"),
        (other_metric_unit, "the unit of error differs: K there, 1 here"),
        (other_parameter_unit, "the unit of x differs: fs there, 1 here"),
    ],
)
def test_runs_of_something_else_are_refused_with_both_values(old, tmp_path, change, words):
    folder = rewritten(old, tmp_path / "other", change)
    with pytest.raises(BadInput, match=words) as error:
        Coordinator(campaign(earlier=(folder,)), run_dir=tmp_path / "new")
    assert folder in str(error.value)
    assert "eave the folder out" in str(error.value)
    assert not (tmp_path / "new").exists()


def test_a_metric_that_was_not_measured_then_is_refused(tmp_path):
    @ha.app(parameters={"x": Float(0, 1)}, metrics={"a": "1"}, name="one_metric")
    def before(x):
        return {"a": x}

    @ha.app(parameters={"x": Float(0, 1)}, metrics={"a": "1", "b": "eV"}, name="one_metric")
    def now(x):
        return {"a": x, "b": x}

    settings = {"batch_size": 2, "site": "threads", "policy": "sobol", "until": {"max_runs": 2}}
    ha.run(Campaign(before, maximize("a"), **settings), run_dir=tmp_path / "old")
    with pytest.raises(BadInput, match="metric b differs: not promised there, in eV here"):
        read_earlier(Campaign(now, maximize("b"), earlier=(str(tmp_path / "old"),), **settings))


def test_another_value_of_what_is_not_varied_is_refused(old, tmp_path):
    settings = campaign(earlier=(str(old),), fixed={"noise": 0.2})
    with pytest.raises(
        BadInput, match=r"noise, which is not varied, differs: 0\.0 there, 0\.2 here.*noise = 0\.0"
    ):
        Coordinator(settings, run_dir=tmp_path / "new")


def test_of_what_was_varied_and_is_fixed_now_the_runs_at_that_value_are_used(old):
    tuned = campaign(earlier=(str(old),), space={"x": {}, "y": {}}, fixed={"style": "tuned"})
    warm = read_earlier(tuned)
    there = [r for r in read_run(old).results if r.manifest.params["style"] == "tuned"]
    assert [r.metrics for r in warm.earlier[0].runs] == [r.metrics for r in there]
    assert warm.earlier[0].outside == 24 - len(there)
    assert {tuple(o.params) for o in earlier_observations(tuned, warm, [])} == {("x", "y")}


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (["nowhere"], "nowhere is not the folder of a campaign"),
        (["old", "."], "is not the folder of a campaign"),
        (["old", "link"], "link is named twice"),
        (["new"], "new is this campaign's own folder"),
    ],
)
def test_a_folder_that_makes_no_sense_is_refused(old, tmp_path, folders, words):
    (tmp_path / "old").symlink_to(old)
    (tmp_path / "link").symlink_to(old)
    settings = campaign(earlier=tuple(str(tmp_path / f) for f in folders))
    with pytest.raises(BadInput, match=words):
        Coordinator(settings, run_dir=tmp_path / "new")


def test_runs_that_infrastructure_or_a_user_stopped_say_nothing(old, tmp_path):
    folder = tmp_path / "old"
    shutil.copytree(old, folder)
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    kinds = iter(["infrastructure", "cancelled", "simulation"])
    for row in [row for event in lines if event["event"] == "results" for row in event["results"]][:3]:
        row.update(status="FAILED", metrics={}, failure={"kind": next(kinds), "name": "Gone", "message": "gone"})
        never_ended(folder, [row["execution_id"]])
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (source,) = read_earlier(campaign(earlier=(str(folder),))).earlier
    assert (source.found, source.uninformative, len(source.runs)) == (24, 2, 22)
    assert [r.failure for r in source.runs if not r.completed] == ["Gone"]
    assert "2 that infrastructure or a user stopped" in str(source)


# -- other circumstances ----------------------------------------------------------------------


def test_another_context_is_refused_by_a_policy_that_does_not_learn_across_them(old, tmp_path):
    with pytest.raises(BadInput, match=r"the context differs: none stated there, atoms = 32000 here.*linucb"):
        Coordinator(campaign(earlier=(str(old),), context={"atoms": 32000}), run_dir=tmp_path / "new")


def test_a_contextual_policy_learns_from_runs_of_another_size(tmp_path):
    """The size is a parameter here that is not varied; the best style is the opposite one at the other size."""

    @ha.app(
        parameters={"style": Choice("small", "large"), "atoms": Float(1.0, 1e6)},
        metrics={"speed": "1"},
        name="sized",
    )
    def sized(style, atoms):
        return {"speed": (atoms / 1e4) ** (-1.2 if style == "small" else -0.8)}

    def at(atoms, **changes):
        settings = {"batch_size": 2, "site": "threads", "policy": "linucb", "until": {"max_runs": 4}, **changes}
        return Campaign(
            sized,
            maximize("speed"),
            space={"style": {}},
            fixed={"atoms": atoms},
            context={"atoms": atoms},
            name=f"at{atoms}",
            **settings,
        )

    for atoms in (2000, 50000):
        ha.run(at(atoms), run_dir=tmp_path / str(atoms))
    folders = tuple(str(tmp_path / n) for n in ("2000", "50000"))
    for atoms, best in ((3000, "small"), (40000, "large")):
        folder = tmp_path / f"new{atoms}"
        result = ha.run(at(atoms, earlier=folders, until={"max_runs": 2}, batch_size=1), run_dir=folder)
        assert [r.manifest.params["style"] for r in result.results] == [best, best]
        assert [o.context for o in next(iter(decisions(folder))).history][::4] == [
            {"atoms": 2000},
            {"atoms": 50000},
        ]
        # Runs of another size are no evidence of what is best at this one.
        assert (result.best.runs, result.best.earlier) == (2, 0)
        assert replays(folder) == []


# -- speeds -----------------------------------------------------------------------------------


@ha.app(
    parameters={"skin": Float(0.0, 4.0, default=1.0), "mesh": Choice("coarse", "fine", default="fine")},
    metrics={
        "ns_per_day": Metric(name="ns_per_day", unit="ns/day", noise=0.01, direction="maximize"),
        "drift": "K/ns",
    },
    name="timed",
)
def timed(skin, mesh):
    return Outcome(metrics={"ns_per_day": 100.0, "drift": 1.0})


def asked(**changes):
    return Campaign(timed, maximize("ns_per_day"), **{"space": {"skin": {}}, **changes})


def result(role, value, *, host="node1", skin=1.0, batch=0, index=0):
    manifest = Manifest(
        execution_id=f"{role}{index}",
        app="timed",
        app_version="0.1.0",
        params={"skin": skin, "mesh": "fine"},
        role=role,
        batch=batch,
        index=index,
    )
    return Result(
        manifest=manifest,
        status="COMPLETED",
        metrics={"ns_per_day": value, "drift": 1.0},
        host=host,
        cost=Cost(wall_s=1.0),
    )


def warm_with(*, host="node9", reference=None, value=None, skins=(2.0,), mesh="fine", speed=50.0):
    runs = [
        EarlierRun(params={"skin": s, "mesh": mesh}, metrics={"ns_per_day": speed, "drift": 2.0}, host=host)
        for s in skins
    ]
    point = None if reference is None else {"skin": reference, "mesh": "fine"}
    metric = "" if reference is None else "ns_per_day"
    source = Source(
        folder="old",
        campaign="old",
        digest="",
        found=1,
        reference=point,
        metric=metric,
        value=value,
        runs=tuple(runs),
    )
    return WarmStart(host="login", earlier=(source,))


def test_speeds_are_scaled_by_the_two_references_as_soon_as_ours_is_known():
    new = asked(reference={"skin": 1.0})
    warm = warm_with(reference=1.0, value=40.0)
    (before,) = earlier_observations(new, warm, [])
    assert before.metrics["ns_per_day"] == 50.0
    assert before.uncertainty["ns_per_day"] == pytest.approx(OTHER_HOST * 50.0)
    ours = [result("reference", v, batch=b, index=b) for b, v in enumerate((79.0, 80.0, 81.0))]
    (after,) = earlier_observations(new, warm, ours)
    assert after.metrics["ns_per_day"] == pytest.approx(50.0 * 80.0 / 40.0)
    assert after.uncertainty["ns_per_day"] < 0.03 * after.metrics["ns_per_day"]
    assert after.metrics["drift"] == 2.0
    assert "drift" not in after.uncertainty


def test_runs_on_other_ranks_count_as_those_of_another_machine(tmp_path):
    @ha.app(parameters={"x": Float(0, 1)}, metrics={"speed": "1/s"})
    def timed(x):
        return {"speed": 1.0 + x}

    def asked(app, **more):
        return campaign(app, maximize("speed"), space={"x": {}}, policy="random", until={"max_runs": 4}, **more)

    ha.run(asked(timed), run_dir=tmp_path / "one")
    alike = read_earlier(asked(timed, earlier=(str(tmp_path / "one"),)))
    other = read_earlier(asked(timed.with_resources(threads_per_rank=2), earlier=(str(tmp_path / "one"),)))
    assert {run.host for run in alike.earlier[0].runs} == {platform.node()}
    assert {run.host for run in other.earlier[0].runs} == {""}


def test_another_reference_point_says_nothing_of_the_ratio():
    ours = [result("reference", 80.0)]
    (seen,) = earlier_observations(asked(reference={"skin": 1.0}), warm_with(reference=3.0, value=40.0), ours)
    assert seen.metrics["ns_per_day"] == 50.0
    assert seen.uncertainty["ns_per_day"] == pytest.approx(OTHER_HOST * 50.0)


def test_without_references_a_speed_of_another_host_is_doubted_more_than_one_of_this():
    ours = [result("suggested", 80.0, host="node1")]
    (same,) = earlier_observations(asked(), warm_with(host="node1"), ours)
    (other,) = earlier_observations(asked(), warm_with(host="node9"), ours)
    assert same.uncertainty == {"ns_per_day": pytest.approx(0.05 * 50.0)}
    assert other.uncertainty == {"ns_per_day": pytest.approx(0.28 * 50.0)}


def test_before_the_first_result_the_coordinator_s_own_host_is_this_one():
    (same,) = earlier_observations(asked(), warm_with(host="login"), [])
    assert same.uncertainty == {"ns_per_day": pytest.approx(0.05 * 50.0)}


def test_a_cheaper_level_is_data_but_no_answer():
    new = asked(
        space={"skin": {}, "mesh": {}},
        fidelity={"parameter": "mesh", "levels": ["coarse", "fine"]},
        policy={"name": "screen", "points": 2},
    )
    coarse = warm_with(mesh="coarse", speed=500.0, host="node1")
    assert len(earlier_evidence(new, coarse, [result("suggested", 80.0)])) == 1
    best = answered(new, coarse, result("suggested", 80.0))
    assert (best.metrics["ns_per_day"], best.earlier) == (80.0, 0)


def test_the_event_is_read_back_as_it_was():
    warm = warm_with(reference=1.0, value=40.0)
    assert State.replay([json.loads(json.dumps(warm.event()))]).warm == warm


def answered(new, warm, *results):
    return answer(new, results, run_dir=Path("runs"), warm=warm).best


def test_an_answer_does_not_rest_on_speeds_of_another_machine():
    """It was six times as fast there: that is no speed to be promised here."""
    best = answered(
        asked(), warm_with(speed=600.0), result("suggested", 80.0), result("suggested", 81.0, skin=3.0)
    )
    assert (best.params, best.earlier) == ({"skin": 3.0}, 0)


def test_an_own_measurement_is_not_averaged_with_what_no_reference_makes_comparable():
    here = {"host": "node1", "skins": (1.0,), "speed": 90.0}
    # Two measurements are never equal to the last digit; copies of a run would count once.
    own = [result("suggested", 80.0 + 1e-6 * i, index=i) for i in range(2)]
    alone = answered(asked(), warm_with(**here), *own)
    assert (alone.metrics["ns_per_day"], alone.runs, alone.earlier) == (pytest.approx(80.0, abs=1e-5), 2, 0)
    references = [result("reference", 80.0, skin=2.0, batch=b, index=b) for b in range(2)]
    linked = answered(
        asked(reference={"skin": 2.0}), warm_with(reference=2.0, value=80.0, **here), *own, *references
    )
    assert (linked.metrics["ns_per_day"], linked.runs, linked.earlier) == (pytest.approx(83.33, abs=0.01), 3, 1)


def test_of_points_that_cannot_be_told_apart_one_that_was_run_here_is_the_answer():
    new = asked(reference={"skin": 1.0})
    warm = warm_with(reference=1.0, value=80.0, skins=(2.0, 2.0, 2.0), speed=80.5)
    best = answered(new, warm, result("reference", 80.0), result("suggested", 80.4, skin=3.0, index=1))
    assert (best.params, best.earlier) == ({"skin": 3.0}, 0)
    assert {"skin": 2.0} in best.ties
