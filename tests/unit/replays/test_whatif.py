"""Other policies on a recorded campaign."""

from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import hpcagent as ha
from hpcagent.apps.landscape import synthetic
from hpcagent.apps.run import Outcome
from hpcagent.campaign.answer import read_run
from hpcagent.campaign.choices import PolicyChoice
from hpcagent.campaign.loading import load_campaign, load_run
from hpcagent.campaign.record import Campaign
from hpcagent.cli import cli
from hpcagent.errors import BadInput
from hpcagent.model.contract import Metric
from hpcagent.model.objective import at_most, maximize
from hpcagent.model.parameter import Choice, Int
from hpcagent.replays.whatif import policy_choice, replay
from hpcagent.replays.world import World

BEST = 75.0  # of the synthetic landscape where error <= 1: x = 0.6, y = 0.4, style = tuned
OBJECTIVE = maximize("value", subject_to={"error": at_most(1.0)})
SPACE = {"x": {}, "y": {}, "style": {}}


def recorded(folder, **changes):
    settings = {"space": SPACE, "policy": "quality_first", "batch_size": 6, "until": {"max_runs": 24}}
    campaign = Campaign(synthetic, changes.pop("objective", OBJECTIVE), **{**settings, **changes})
    ha.run(campaign, site="threads", run_dir=folder)
    return folder


@pytest.fixture(scope="module")
def steered(tmp_path_factory):
    """The packaged campaign: 36 runs with 2 % noise, the last four repeat the contenders."""
    folder = tmp_path_factory.mktemp("steered") / "run"
    ha.run(
        load_campaign("synthetic", changes={"fixed.run_time_s": 0.001, "policy.name": "quality_first"}),
        site="threads",
        run_dir=folder,
    )
    return folder


@pytest.fixture(scope="module")
def compared(steered):
    return replay(steered, policy="random", seeds=6)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Every one of 20 points was run, so what each is worth is known: 10 - |i - 6|, and 1 more for b."""

    @ha.app(
        name="steps",
        version="1.0.0",
        parameters={"i": Int(0, 9), "s": Choice("a", "b")},
        metrics={"value": Metric(name="value", unit="1", direction="maximize", description="to be made large")},
    )
    def steps(i: int, s: str) -> Outcome:
        return Outcome(metrics={"value": 10.0 - abs(i - 6) + (s == "b")})

    folder = tmp_path_factory.mktemp("table") / "run"
    policy = {"name": "grid", "levels": 10}
    campaign = Campaign(steps, maximize("value"), policy=policy, batch_size=5, until={"max_runs": 20})
    ha.run(campaign, site="threads", run_dir=folder)
    return folder


def contents(folder):
    return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


# -- the surrogate and its error --------------------------------------------------------------


@pytest.mark.slow
def test_the_surrogate_of_a_smooth_landscape_knows_it_and_knows_its_own_error(compared):
    assert [e.metric for e in compared.errors] == ["value", "error"]
    for error in compared.errors:
        assert error.r2 > 0.95 and not error.poor
        assert error.within_two >= 0.8
    # The landscape itself says what the best point is worth.
    assert compared.value == pytest.approx(BEST, rel=0.03)
    assert abs(compared.value - BEST) < 3 * compared.value_error
    assert compared.best["style"] == "tuned" and compared.best["x"] == pytest.approx(0.6, rel=0.03)


def test_where_a_metric_is_noise_the_comparison_warns_of_itself(tmp_path):
    folder = recorded(
        tmp_path / "run", objective=maximize("value"), policy="random", fixed={"noise": 1.0}, space={"y": {}}
    )
    found = replay(folder, policy="sobol", seeds=3)
    assert found.errors[0].poor
    assert "not to be trusted" in str(found).lower()
    assert "Not to be trusted" in found.conclusions[0]
    assert any("fewer than 5 seeds" in text for text in found.warnings)


def test_runs_fail_in_the_world_where_they_failed_in_the_record(tmp_path):
    fixed = {"fail_above": 0.2}
    folder = recorded(tmp_path / "run", policy="sobol", fixed=fixed, until={"max_runs": 40})
    world = World(load_run(folder), read_run(folder).results)
    rng = np.random.default_rng(0)

    def failing(x):
        at = {"x": x, "y": 0.31, "style": "plain"}
        return sum(not world.run(at, rng)[0].completed for _ in range(40))

    assert failing(0.05) <= 4
    assert failing(0.6) >= 30
    assert not world.worth([{"x": 0.6, "y": 0.31, "style": "plain"}])[0].keeps


def test_at_a_recorded_point_the_world_gives_a_recorded_result(steered):
    result = read_run(steered)
    world = World(result.campaign, result.results)
    rng = np.random.default_rng(3)
    names = result.campaign.search.names
    for run in result.results:
        params = {n: run.manifest.params[n] for n in names}
        o, was_recorded = world.run(params, rng)
        there = [r for r in result.results if {n: r.manifest.params[n] for n in names} == params]
        assert was_recorded
        assert o.metrics in [r.metrics for r in there]
        assert o.node_hours in [r.cost.node_hours for r in there]


def test_elsewhere_runs_scatter_as_the_recorded_ones_and_say_so(steered):
    result = read_run(steered)
    world = World(result.campaign, result.results)
    rng = np.random.default_rng(0)
    point = {"x": 0.5, "y": 0.45, "style": "tuned"}
    runs = [world.run(point, rng)[0] for _ in range(200)]
    values = np.array([o.metrics["value"] for o in runs])
    assert values.std() / values.mean() == pytest.approx(0.02, rel=0.35)  # the campaign's noise
    assert runs[0].uncertainty["value"] == pytest.approx(0.02 * runs[0].metrics["value"], rel=0.35)
    assert values.mean() == pytest.approx(world.worth([point])[0].score, rel=0.01)
    assert all(o.node_hours > 0 and o.wall_s > 0 for o in runs)


# -- playing ----------------------------------------------------------------------------------


def test_a_policy_that_learns_does_better_than_random_and_the_conclusion_says_how_sure(compared):
    learning, blind = compared.played
    assert (learning.policy, blind.policy) == ("quality_first", "random")
    # Before the confirmation, whose second contender a model of random points finds as well.
    before = {p.policy: [dict(c.recommended)[32] for c in p.courses] for p in compared.played}
    assert np.median(before["quality_first"]) < 0.06
    assert np.median(before["random"]) > 0.1
    better = [a < b for a, b in zip(before["quality_first"], before["random"], strict=True)]
    assert sum(better) >= len(better) - 1
    assert np.median([c.final for c in blind.courses]) < 0.05
    assert "averaged over the campaign is further from the best" in compared.conclusions[0]
    assert "worse with 6" in compared.conclusions[0]


def test_the_real_campaign_is_judged_in_the_same_world(steered, compared):
    result, real = read_run(steered), compared.real
    assert real.runs == len(result.results) == 36
    assert list(real.gaps) == sorted(real.gaps, reverse=True)
    assert real.node_hours[-1] == pytest.approx(sum(r.cost.node_hours for r in result.results))
    assert real.failed == sum(not r.ok for r in result.results)
    # What it recommended is worth this much less than the best, by the landscape itself.
    p = result.best.params
    true = 100 * p["x"] * (1 - (p["y"] - 0.4) ** 2) * {"plain": 1.0, "tuned": 1.25, "heavy": 0.8}[p["style"]]
    assert real.final == pytest.approx(1 - true / BEST, abs=0.03)


def test_played_campaigns_have_as_many_runs_and_repeat_their_contenders(compared):
    for played in compared.played:
        assert played.batch == 6
        assert {c.runs for c in played.courses} == {36}
        for course in played.courses:
            assert course.recommended[-2:][0][0] == 32 and course.recommended[-1][0] == 36
            assert len(course.node_hours) == 36


@pytest.mark.slow
def test_the_same_seeds_give_the_same_answer(steered, compared):
    again = replay(steered, policy="random", seeds=2)
    assert [p.courses for p in again.played] == [p.courses[:2] for p in compared.played]


def test_where_every_point_was_run_no_surrogate_is_needed(table):
    found = replay(table, policy="random", batch=4, runs=12, seeds=6)
    assert found.table_world and not found.errors
    assert "no surrogate was needed" in str(found)
    assert (found.value, found.best, found.value_error) == (11.0, {"i": 6, "s": "b"}, 0.0)
    assert found.best_recorded and found.recorded == 1.0
    assert found.played[0].batch == 5 and found.played[1].batch == 4
    possible = {round(k / 11, 9) for k in range(12)}
    assert {round(g, 9) for p in found.played for c in p.courses for g in c.gaps} <= possible
    # The grid takes the points in order, whatever the seed: of its first twelve, i = 5 with b is the best.
    assert all(c.gaps[-1] == pytest.approx(1 / 11) for c in found.played[0].courses)
    assert found.real.reached(0.01) == 14


def test_differences_that_chance_could_make_are_not_called_differences(table):
    found = replay(table, policy=["random", {"name": "grid", "levels": 10}, {"name": "sobol"}], runs=6, seeds=3)
    assert [p.policy for p in found.played] == ["grid:levels=10", "random", "sobol"]
    same = replay(table, policy={"name": "grid", "levels": 12}, runs=6, seeds=5)
    assert "differs by no more than the noise (gap +0.0% ± 0.0%)" in same.conclusions[0]


@pytest.mark.slow
def test_a_rolling_campaign_is_played_rolling_and_in_less_time_on_more_workers(tmp_path):
    changes = {"mode": "rolling", "in_flight": 4, "fixed": {"run_time_s": 0.01, "spread": 0.5}}
    folder = recorded(tmp_path / "run", until={"max_runs": 12}, **changes)
    few, many = (replay(folder, seeds=2, workers=n, policy="sobol") for n in (1, 4))
    assert few.played[0].batch is None and "rolling" in few.table().rows[1][0]
    assert {c.runs for p in many.played for c in p.courses} == {12}
    for one, four in zip(few.played[1].courses, many.played[1].courses, strict=True):
        assert four.wall_h < 0.6 * one.wall_h


def test_a_campaign_with_a_reference_runs_it_in_every_batch(tmp_path):
    reference = {"x": 0.1, "y": 0.8, "style": "plain"}
    folder = recorded(tmp_path / "run", reference={"params": reference}, fixed={"noise": 0.02})
    found = replay(folder, policy="random", seeds=2)
    for course in found.played[1].courses:
        assert course.runs == 24
        assert course.recorded >= 4  # one for each batch of six


def test_without_a_policy_it_says_how_lucky_the_real_campaign_was(steered):
    found = replay(steered, seeds=2)
    assert [p.policy for p in found.played] == ["quality_first"] and not found.conclusions
    assert "of 2 played campaigns of the same policy ended closer to the best" in str(found)


# -- input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("ucb", "ucb", {}),
        ("ucb:buckets=4", "ucb", {"buckets": 4}),
        ("my.module:Policy", "my.module:Policy", {}),
        ("my.module:Policy:a=1,b=two", "my.module:Policy", {"a": 1, "b": "two"}),
        (
            'portfolio:ladder=["bayes",{name="ucb",buckets=3}]',
            "portfolio",
            {"ladder": ["bayes", {"name": "ucb", "buckets": 3}]},
        ),
    ],
)
def test_a_policy_is_named_with_its_options(text, name, options):
    assert policy_choice(text)[0] == PolicyChoice(name=name, options=options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"policy": "ubc"}, "did you mean 'ucb'"),
        ({"policy": "ucb:bucket=3"}, "did you mean 'buckets'"),
        ({"policy": "ucb:buckets=0"}, "buckets"),
        ({"policy": ""}, "named like"),
        ({"batch": 0}, "batch=0"),
        ({"seeds": 0}, "seeds=0"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_sentence(steered, arguments, words):
    with pytest.raises(BadInput, match=words):
        replay(steered, **arguments)


def test_too_few_runs_several_goals_and_no_answer_are_refused(tmp_path):
    few = recorded(tmp_path / "few", until={"max_runs": 2})
    with pytest.raises(BadInput, match="a model needs 3"):
        replay(few)
    goals = recorded(
        tmp_path / "goals", objective=maximize("value", "error"), policy="sobol", until={"max_runs": 6}
    )
    with pytest.raises(BadInput, match="several goals \\(value, error\\)"):
        replay(goals)
    strict = maximize("value", subject_to={"error": at_most(1e-9)})
    none = recorded(tmp_path / "none", objective=strict, policy="sobol", until={"max_runs": 8})
    with pytest.raises(BadInput, match="keeps every limit"):
        replay(none, seeds=1)
    with pytest.raises(BadInput, match=r"not the folder of a campaign"):
        replay(tmp_path)


# -- the command ------------------------------------------------------------------------------


def test_the_command_prints_draws_and_leaves_the_folder_alone(steered, tmp_path):
    before = contents(steered)
    plot = tmp_path / "plots" / "regret.png"
    arguments = ["replay", str(steered), "--policy", "random", "--seeds", "2", "--runs", "14", "--plot", str(plot)]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    for words in ("the real one", "quality_first, batch 6", "random, batch 6", "R2 =", "paired over 2 seed(s)"):
        assert words in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert contents(steered) == before


def test_the_command_gives_plain_data(steered):
    arguments = [
        "replay",
        str(steered),
        "--seeds",
        "1",
        "--runs",
        "8",
        "--policy",
        "sobol",
        "--batch",
        "4",
        "--json",
    ]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    data = json.loads(done.stdout)
    assert [(p["policy"], p["batch"]) for p in data["policies"]] == [("quality_first", 6), ("sobol", 4)]
    assert len(data["policies"][1]["median"]) == 8
    assert len(data["real"]["gaps"]) == 36
    assert {e["metric"] for e in data["surrogate"]} == {"value", "error"}


def test_check_says_whether_every_decision_replays(steered, tmp_path):
    runner = CliRunner()
    done = runner.invoke(cli, ["replay", str(steered), "--check"], catch_exceptions=False)
    assert (done.exit_code, done.stdout) == (0, "all 6 decisions replay\n")
    rolling = recorded(tmp_path / "rolling", mode="rolling", in_flight=3, fixed={"run_time_s": 0.005})
    done = runner.invoke(cli, ["replay", str(rolling), "--check"], catch_exceptions=False)
    assert done.exit_code == 0 and "decisions replay" in done.stdout

    other = tmp_path / "other"
    shutil.copytree(steered, other)
    toml = other / "campaign.toml"
    toml.write_text(toml.read_text().replace("seed = 1\n", "seed = 2\n"))
    done = runner.invoke(cli, ["replay", str(other), "--check"], catch_exceptions=False)
    assert done.exit_code == 1
    assert "decisions come out differently" in done.stdout and "run 0 was suggested at" in done.stdout


def test_check_goes_without_other_policies(steered):
    with pytest.raises(BadInput, match="without --policy"):
        CliRunner().invoke(cli, ["replay", str(steered), "--check", "--policy", "ucb"], catch_exceptions=False)
