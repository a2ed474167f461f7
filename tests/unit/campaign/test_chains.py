"""Chains in campaigns: each inner run once, its failure and its cost where they belong."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.campaign.view import Tally
from hpcagent.reports.report import report
from hpcagent.store.journal import read_events

FILE = Path(__file__).with_name("chains_for_tests.py")


@pytest.fixture(scope="module")
def chains():
    # By its own name, so that workers and resumed campaigns can import it.
    sys.path.insert(0, str(FILE.parent))
    yield importlib.import_module("chains_for_tests")
    sys.path.remove(str(FILE.parent))


def campaign(app, n, **options):
    name = app.contract.space.names[0]
    goal = app.contract.metrics[0].name
    options = {
        "policy": {"name": "grid", "levels": n},
        "until": ha.until.max_runs(n),
        "space": {name: {}},
    } | options
    return ha.Campaign(app, ha.maximize(goal), **options)


def totals(result):
    return {r.manifest.params["n"]: r.metrics["total"] for r in result.results}


def test_a_chain_is_steered_like_an_app_and_runs_shared_work_once(chains, tmp_path):
    result = ha.run(campaign(chains.sum_of_squares, 9), site="threads", run_dir=tmp_path)
    assert totals(result) == {n: n * (n + 1) * (2 * n + 1) / 6 for n in range(1, 10)}
    assert result.best.params == {"n": 9}
    # 45 squares were asked for, 9 are different.
    assert sorted(chains.ran(tmp_path)) == sorted(str(i) for i in range(1, 10))
    assert result.inner == {"square": (9, 0), "total": (9, 0)}
    assert "18 inner runs (9 square, 9 total)" in str(result)


def test_every_inner_run_has_a_directory_and_a_line_in_the_journal(chains, tmp_path):
    result = ha.run(campaign(chains.sum_of_squares, 3), site="threads", run_dir=tmp_path)
    for run in result.results:
        for part in run.parts:
            folder = tmp_path / "work" / part.execution_id
            manifest = json.loads((folder / "manifest.json").read_text())
            assert (manifest["app"], manifest["role"]) == (part.app, "part")
            assert json.loads((folder / "result.json").read_text())["status"] == "COMPLETED"
    asked = {
        p["manifest"]["execution_id"] for e in read_events(tmp_path / "events.jsonl") for p in e.get("parts", ())
    }
    assert asked == {p.execution_id for r in result.results for p in r.parts}


def test_the_cost_of_a_chain_is_that_of_what_ran_for_it(chains, tmp_path, monkeypatch):
    monkeypatch.setenv("SQUARE_S", "0.02")
    result = ha.run(campaign(chains.sum_of_squares, 3, batch_size=1), site="threads", run_dir=tmp_path)
    last = result.results[-1]  # n = 1, 5, 9 one after the other
    assert [p.shared for p in last.parts] == [True] * 5 + [False] * 5
    own = [json.loads((tmp_path / "work" / p.execution_id / "result.json").read_text()) for p in last.parts[5:]]
    assert last.cost.wall_s == pytest.approx(sum(fields["cost"]["wall_s"] for fields in own))
    assert last.cost.wall_s >= 4 * 0.02
    assert sum(p.node_hours for p in last.parts) == pytest.approx(last.cost.node_hours)
    assert result.node_hours == pytest.approx(sum(r.cost.node_hours for r in result.results))


def test_a_failed_inner_run_fails_the_chain_with_its_reason(chains, tmp_path):
    result = ha.run(campaign(chains.half_square, 3), site="threads", run_dir=tmp_path)
    failure = result.results[-1].failure
    assert (failure.name, failure.kind, failure.repair, failure.log_tail) == (
        "TooLarge",
        "simulation",
        "x <= 9",
        "the last line",
    )
    assert "its inner run square" in failure.message
    assert "x=10 is too large" in failure.message
    assert [(p.app, p.status) for p in result.results[-1].parts] == [("square", "FAILED"), ("halved", "FAILED")]
    assert result.best.params == {"x": 5.0}


def test_a_chain_may_go_on_where_an_inner_run_fails(chains, tmp_path):
    result = ha.run(campaign(chains.careful, 3), site="threads", run_dir=tmp_path)
    assert [r.metrics["y"] for r in result.results] == [0.0, 25.0, 1.0]
    assert result.results[-1].notes == ("inner runs failed: square (TooLarge)",)


def losing(chains, **options):
    """A campaign of one run, of which one inner run loses its machine the first time."""
    space = {"n": {"low": 2, "high": 2}, "add": {"low": 8, "high": 9}}
    return campaign(
        chains.sum_of_squares, 1, space=space, policy={"name": "grid", "levels": {"n": 1, "add": 2}}, **options
    )


def test_an_inner_run_that_lost_its_machine_is_started_again(chains, tmp_path):
    result = ha.run(losing(chains), site="threads", run_dir=tmp_path)
    assert result.results[0].metrics["total"] == 1 + 4 + 8.5**2
    assert chains.ran(tmp_path).count("8.5") == 2
    retries = [e for e in read_events(tmp_path / "events.jsonl") if e["event"] == "retry"]
    assert [e["failure"]["name"] for e in retries] == ["FileSystemGone"]


def test_without_retries_the_chain_fails_for_now_and_succeeds_when_resumed(chains, tmp_path):
    plan = losing(chains, retries=0)
    first = ha.run(plan, site="threads", run_dir=tmp_path)
    assert first.results[0].failure.kind == "infrastructure"
    again = ha.run(plan, site="threads", run_dir=tmp_path)
    assert again.results[0].ok
    assert sorted(chains.ran(tmp_path)) == ["1", "2", "8.5", "8.5"]


def test_chains_in_chains_and_runs_that_depend_on_results(chains, tmp_path):
    result = ha.run(
        campaign(chains.nested, 1, space={"n": {"low": 3, "high": 4}}), site="threads", run_dir=tmp_path
    )
    run = result.results[0]
    n = run.manifest.params["n"]
    whole = n * (n + 1) * (2 * n + 1) / 6
    assert run.metrics == {"total": whole, "last": n * n, "half": pytest.approx((whole / 100) ** 2)}
    assert [p.app for p in run.parts] == ["sum_of_squares", "square", "square"]
    # The uncertainty of a metric of an inner run goes with it.
    assert run.uncertainty == {"last": 0.1, "half": 0.1}


def test_artifacts_of_the_last_run_are_those_of_the_chain(chains, tmp_path):
    result = ha.run(campaign(chains.sum_of_squares, 1), site="threads", run_dir=tmp_path)
    run = result.results[0]
    assert (Path(run.workdir) / run.artifacts["table"]).read_text() == "here\n"


def test_replicates_share_what_no_seed_decides(chains, tmp_path):
    plan = campaign(chains.noisy_chain, 1, until=ha.until.max_runs(3), confirm={"top": 1, "replicates": 2})
    result = ha.run(plan, site="threads", run_dir=tmp_path)
    assert [r.manifest.replicate for r in result.results] == [0, 1, 2]
    assert [r.metrics["y"] - 100 * r.manifest.replicate for r in result.results] == [
        result.results[0].metrics["y"]
    ] * 3
    assert len(chains.ran(tmp_path)) == 1


def test_campaigns_share_a_cache_folder(chains, tmp_path):
    cache = tmp_path / "shared" / "work"
    plan = campaign(chains.sum_of_squares, 5, cache=str(cache))
    first = ha.run(plan, site="threads", run_dir=tmp_path / "a")
    second = ha.run(plan, site="threads", run_dir=tmp_path / "b")
    assert totals(first) == totals(second)
    assert len(chains.ran(tmp_path / "shared")) == first.inner["square"][0]
    assert all(p.shared for r in second.results for p in r.parts)
    assert second.node_hours == 0
    assert first.node_hours > 0
    part = second.results[0].parts[0].execution_id
    assert (tmp_path / "b" / "work" / part).resolve() == cache / part


@pytest.mark.slow
def test_two_campaigns_at_once_run_shared_work_once(chains, tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import hpcagent as ha, chains_for_tests as c\n"
        "plan = ha.Campaign(c.sum_of_squares, ha.maximize('total'), space={'n': {}}, until=ha.until.max_runs(6),"
        " policy={'name': 'grid', 'levels': 6}, cache=sys.argv[2])\n"
        "r = ha.run(plan, site='threads', run_dir=sys.argv[3]); print(sum(x.ok for x in r.results))\n"
    )
    cache = tmp_path / "shared" / "work"
    words = [sys.executable, "-c", code, str(FILE.parent), str(cache)]
    env = os.environ | {"SQUARE_S": "0.05"}
    both = [
        subprocess.Popen([*words, str(tmp_path / name)], stdout=subprocess.PIPE, text=True, env=env)
        for name in ("a", "b")
    ]
    assert [p.communicate(timeout=60)[0].strip() for p in both] == ["6", "6"]
    ran = chains.ran(tmp_path / "shared")
    assert sorted(set(ran)) == sorted(ran)


@pytest.mark.slow
def test_a_killed_coordinator_repeats_no_inner_run(chains, tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import hpcagent as ha, chains_for_tests as c\n"
        "plan = ha.Campaign(c.sum_of_squares, ha.maximize('total'), space={'n': {}}, until=ha.until.max_runs(9),"
        " policy={'name': 'grid', 'levels': 9}, batch_size=9)\n"
        "r = ha.run(plan, site='threads', run_dir=sys.argv[2], workers=1); print(sum(x.ok for x in r.results))\n"
    )
    words = [sys.executable, "-c", code, str(FILE.parent), str(tmp_path)]
    env = os.environ | {"SQUARE_S": "0.1"}
    first = subprocess.Popen(words, env=env)
    deadline = time.monotonic() + 60
    while len(chains.ran(tmp_path)) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = len(chains.ran(tmp_path))
    assert 4 <= before < 9
    again = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert again.stdout.strip() == "9"
    # Only the run that was cut off ran twice, if there was one.
    assert len(chains.ran(tmp_path)) <= 10


def test_ctrl_c_in_the_middle_of_chains_loses_nothing(chains, tmp_path, monkeypatch):
    monkeypatch.setenv("SQUARE_S", "0.05")
    plan = campaign(chains.sum_of_squares, 9, batch_size=9)

    def stop(event):
        if len(chains.ran(tmp_path)) > 3:
            raise KeyboardInterrupt

    with pytest.raises(ha.errors.Interrupted):
        ha.run(plan, site="threads", run_dir=tmp_path, watch=stop, workers=1)
    result = ha.run(plan, site="threads", run_dir=tmp_path)
    assert len([r for r in result.results if r.ok]) == 9
    assert len(chains.ran(tmp_path)) <= 10


def test_a_function_that_returns_something_else_breaks_its_contract(tmp_path):
    @ha.chain(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"})
    def wrong(x):
        return x

    result = ha.run(
        ha.Campaign(wrong, ha.maximize("y"), until=ha.until.max_runs(1)), site="threads", run_dir=tmp_path
    )
    assert result.results[0].failure.name == "BadReturn"
    assert "float" in result.results[0].failure.message


def test_a_parameter_out_of_bounds_in_a_chain_is_one_clear_failure(chains, tmp_path):
    @ha.chain(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"})
    def wild(x):
        return chains.square(x=x + 20)

    result = ha.run(
        ha.Campaign(wild, ha.maximize("y"), until=ha.until.max_runs(1)), site="threads", run_dir=tmp_path
    )
    failure = result.results[0].failure
    assert (failure.kind, failure.name) == ("contract", "BadInput")
    assert "is outside [0, 10]" in failure.message


def test_by_hand_a_chain_is_a_future_too(chains, tmp_path):
    with ha.open_site("threads", run_dir=tmp_path):
        future = chains.nested(n=3)
        result = future.result()
        assert chains.nested(n=3) is future
    assert result.metrics["total"] == 14
    assert [p.app for p in result.parts] == ["sum_of_squares", "square", "square"]


def test_by_hand_a_failed_part_fails_the_chain(chains, tmp_path):
    with ha.open_site("threads", run_dir=tmp_path):
        result = chains.half_square(x=9.5).result()
    assert result.failure.name == "TooLarge"


def test_rules_tell_of_results_once(chains, tmp_path):
    rule = {"event": "large_sum", "metric": "total", "above": 100, "include": {"upto": "n"}}
    heard = []
    plan = campaign(chains.sum_of_squares, 9, rules=[rule], batch_size=3)
    result = ha.run(plan, site="threads", run_dir=tmp_path, watch=heard.append)
    said = [e.reason for e in heard if e.kind == "rule"]
    assert sorted(e["data"]["upto"] for e in result.events) == [7, 8, 9]
    assert len(said) == 3
    assert any(s.startswith("large_sum: upto = 7, total = 140, result_uri = file:///") for s in said)
    again = ha.run(plan, site="threads", run_dir=tmp_path)
    assert len(again.events) == 3


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"event": "x", "metric": "totl", "above": 1}, "did you mean 'total'"),
        ({"event": "x", "metric": "total"}, "either below or above"),
        ({"event": "a b", "metric": "total", "above": 1}, "identifier"),
        ({"event": "x", "metric": "total", "above": 1, "include": {"m": "metl"}}, "no parameter or metric 'metl'"),
    ],
)
def test_a_wrong_rule_is_refused(chains, rule, words):
    with pytest.raises(ha.BadInput, match=words):
        campaign(chains.sum_of_squares, 3, rules=[rule])


def test_the_answer_of_a_screening_is_of_the_last_level_only(tmp_path):
    @ha.app(parameters={"x": ha.Int(1, 6), "level": ha.Choice("cheap", "dear")}, metrics={"e": "1"})
    def two_levels(x, level):
        return {"e": -x - (10.0 if level == "cheap" else 0.0)}

    plan = ha.Campaign(
        two_levels,
        ha.minimize("e"),
        space={"x": {}, "level": {}},
        fidelity={"parameter": "level", "levels": ["cheap", "dear"]},
        policy={"name": "screen", "keep": 2, "grid": 6},
        until=ha.until.max_runs(20),
        batch_size=4,
    )
    heard = []
    tally = Tally(plan)

    def hear(event):
        tally.take(event)
        if event.kind == "batch":
            heard.append(tally.best())

    result = ha.run(plan, site="threads", run_dir=tmp_path, watch=hear)
    assert len(result.results) == 8
    # While it runs, too: no run of the cheap level is ever called the best.
    assert heard[0] is None
    assert heard[-1].metrics["e"] == -6
    assert result.best.params == {"x": 6, "level": "dear"}
    assert result.best.metrics["e"] == -6
    assert {p.params["level"] for p in result.points} == {"dear"}
    # How far the cheap level was right is said with the answer: here it is off by a constant.
    (agreement,) = result.agreements
    assert (agreement.points, agreement.tau, agreement.left, agreement.doubtful) == (2, 1, 4, ())
    assert "cheap ranks 1 of 1 pairs of points as dear does" in str(result)
    said = report(tmp_path, plots=False).path.read_text()
    assert "cheap ranks 1 of 1 pairs of points as dear does" in said


def test_another_policy_refuses_a_fidelity(tmp_path):
    @ha.app(parameters={"x": ha.Int(1, 6), "level": ha.Choice("cheap", "dear")}, metrics={"e": "1"})
    def two_levels(x, level):
        return {"e": 1.0}

    plan = ha.Campaign(
        two_levels, ha.minimize("e"), policy="sobol", fidelity={"parameter": "level", "levels": ["cheap", "dear"]}
    )
    with pytest.raises(ha.BadInput, match="does not know fidelities"):
        ha.run(plan, site="threads", run_dir=tmp_path)
