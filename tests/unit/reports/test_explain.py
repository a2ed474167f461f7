"""Why a run was asked for; what the report says of the model, the convergence and the predictions."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.apps.landscape import synthetic
from hpcagent.campaign.answer import read_run
from hpcagent.errors import BadInput
from hpcagent.policies.base import BUILT_IN, Reason
from hpcagent.policies.sweeps import Sobol
from hpcagent.reports.explain import explain
from hpcagent.reports.lessons import learned, progress
from hpcagent.reports.report import report
from tests.unit.campaign.records_for_tests import never_ended

GATED = ha.maximize("value", subject_to={"error": ha.at_most(1.0)})
BAYES = "bayes" if "bayes" in BUILT_IN else "hpcagent.policies.bayes:Bayes"


class Talking(Sobol):
    """Says what it expects."""

    def reasons(self, history: Any, n: int, pending: Any = ()) -> list[Reason]:
        return [
            Reason(
                params,
                "improvement",
                "it may be better.",
                predicted={"value": (10.0, 2.0)},
                probability_feasible=0.25,
                numbers={"expected_improvement": 1.5},
            )
            for params in self.suggest(history, n, pending)
        ]


class Fickle(Sobol):
    """Not a pure function: never suggests the same twice."""

    calls = 0

    def suggest(self, history: Any, n: int, pending: Any = ()) -> list[Any]:
        type(self).calls += 1
        return Sobol(self.space, seed=self.calls).suggest(history, n, pending)


def campaign(policy: str = "sobol", runs: int = 18, **fields: Any) -> ha.Campaign:
    return ha.Campaign(
        synthetic,
        fields.pop("objective", GATED),
        space={"x": {}, "y": {}, "style": {}},
        fixed={"noise": 0.02, "fail_above": fields.pop("fail_above", 0.9)},
        policy={"name": policy},
        until=ha.until.max_runs(runs),
        batch_size=6,
        **fields,
    )


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    """A sweep with references and a confirmation at the end."""
    folder = tmp_path_factory.mktemp("swept")
    asked = campaign(
        runs=29,
        reference=ha.types.Reference(params={"x": 0.1, "y": 0.8, "style": "plain"}),
        confirm=ha.types.Confirm(top=2, replicates=1, baseline={"y": 0.8}),
    )
    ha.run(asked, site="threads", run_dir=folder)
    return folder


def runs_of(folder: Path, role: str) -> list[int]:
    return [r.manifest.index for r in read_run(folder).results if r.manifest.role == role]


@pytest.mark.parametrize("policy", ["sobol", "quality_first", BAYES])
@pytest.mark.parametrize("mode", ["batch", "rolling"])
def test_every_suggestion_is_made_again_and_explained(policy, mode, tmp_path):
    rolling = {"in_flight": 3} if mode == "rolling" else {}
    ha.run(campaign(policy, runs=16, mode=mode, **rolling), site="threads", run_dir=tmp_path)
    result = read_run(tmp_path)
    first, last = explain(tmp_path, 0), explain(tmp_path, 15)
    assert first.again and last.again
    assert first.known == 0 and not first.expected and any("no model" in note for note in first.notes)
    assert last.known >= 10 and last.role == "suggested" and last.why
    assert last.probability_feasible is not None and 0 <= last.probability_feasible <= 1
    value = next(e for e in last.expected if e.metric == "value")
    outcome = next(r for r in result.results if r.manifest.index == 15)
    if outcome.ok:
        assert value.value == outcome.metrics["value"]
        assert abs(value.off) < 6 and (value.off > 0) == (value.value > value.mean)
    assert f"batch {outcome.manifest.batch}" in str(last)


def test_the_error_of_a_prediction_includes_the_noise_of_a_run(swept):
    found = [explain(swept, i) for i in runs_of(swept, "suggested")[-6:]]
    expected = [e for f in found for e in f.expected if e.off is not None]
    assert expected
    for e in expected:
        # The model's scale is logarithmic, so this holds where the difference is small beside the value.
        if abs(e.value - e.mean) < 0.05 * abs(e.mean):
            width = abs(e.value - e.mean) / abs(e.off)
            assert width == pytest.approx((e.error**2 + e.noise**2) ** 0.5, rel=0.1)
            assert e.noise > 0.01 * abs(e.mean)


def test_a_policy_that_says_what_it_expects_is_quoted(tmp_path):
    ha.run(campaign(f"{__name__}:Talking", runs=12), site="threads", run_dir=tmp_path)
    found = explain(tmp_path, 8)
    assert (found.source, found.purpose, found.why) == ("policy", "improvement", "it may be better.")
    assert (found.expected[0].mean, found.expected[0].error) == (10.0, 2.0)
    assert found.probability_feasible == 0.25 and found.numbers == {"expected_improvement": 1.5}
    assert "expected, by the policy" in str(found) and "not what the policy used" not in str(found)


def test_a_policy_that_no_longer_suggests_the_point_is_told_of(tmp_path):
    ha.run(campaign(f"{__name__}:Fickle", runs=12), site="threads", run_dir=tmp_path)
    found = explain(tmp_path, 8)
    assert found.again is False and found.place is None
    assert "does NOT suggest this point" in str(found)
    assert found.source == "model" and "not what the policy used" in str(found)
    assert "planned with" not in str(found)
    journal = tmp_path / "events.jsonl"
    journal.write_text(journal.read_text().replace(f'"numpy":"{version("numpy")}"', '"numpy":"1.0"'))
    assert f"planned with numpy 1.0 (here {version('numpy')})" in str(explain(tmp_path, 8))


def test_a_reference_a_replicate_and_the_baseline_say_what_they_are(swept):
    reference = explain(swept, runs_of(swept, "reference")[0])
    assert reference.role == "reference" and "run in every batch" in reference.why and reference.again is None
    replicates = [explain(swept, i) for i in runs_of(swept, "replicate")]
    contenders = [r for r in replicates if "contender no. " in r.why and "baseline" not in r.why]
    assert [r.why.split("no. ")[1][:1] for r in contenders] == ["1", "2"]
    again, new = contenders
    assert "run again" in again.why and again.source == "runs" and again.probability_feasible is not None
    assert again.expected
    # The second one was not run before: the models have it as the best of those that surely keep the limits.
    assert "not run before" in new.why and "surely keep the limits" in new.why
    baseline = [r for r in replicates if "the baseline" in r.why]
    assert len(baseline) == 1 and "contender no. 1 with y = 0.8" in baseline[0].why


def test_a_run_that_failed_and_one_that_has_not_ended_are_explained(tmp_path):
    result = ha.run(campaign(runs=12, fail_above=0.3), site="threads", run_dir=tmp_path)
    failed = next(r for r in result.results if not r.ok)
    found = explain(tmp_path, failed.manifest.index)
    assert found.status == "FAILED" and "SyntheticCrash" in found.outcome and found.feasible is None
    assert all(e.value is None for e in found.expected)
    # As if it were read before the last batch came back.
    journal = tmp_path / "events.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    planned = max(i for i, line in enumerate(lines) if json.loads(line)["event"] == "manifests")
    journal.write_text("".join(lines[: planned + 1]))
    never_ended(tmp_path, [m["execution_id"] for m in json.loads(lines[planned])["manifests"]])
    waiting = explain(tmp_path, 11)
    assert waiting.status == "no result" and waiting.again and "no result yet" in str(waiting)


def test_a_run_is_found_by_its_execution_id_and_one_that_is_not_there_is_refused(swept):
    identity = explain(swept, 3).execution_id
    assert explain(swept, identity[:13]).index == explain(swept, "3").index == 3
    with pytest.raises(BadInput, match=r"no run 400 .*it has runs 0 to 28"):
        explain(swept, 400)
    with pytest.raises(BadInput, match="no run -1"):
        explain(swept, -1)
    with pytest.raises(BadInput, match="at least 4 characters"):
        explain(swept, "abc")
    with pytest.raises(BadInput):
        explain(swept.parent / "nowhere", 1)


def test_the_command_says_the_same_and_writes_json(swept):
    words = [sys.executable, "-m", "hpcagent.cli", "explain", str(swept), "20"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert said.strip() == str(explain(swept, 20))
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, check=True)
    data = json.loads(done.stdout)
    assert data == json.loads(json.dumps(explain(swept, 20).data()))
    assert data["index"] == 20 and "NaN" not in done.stdout


@pytest.mark.slow
def test_the_report_has_every_section_and_plot(swept):
    pytest.importorskip("matplotlib")
    written = report(swept)
    text = written.path.read_text()
    sections = ("Convergence", "Parameter importance", "Slices of the model", "Calibration of its predictions")
    assert all(f"## {section}\n" in text for section in sections)
    names = {p.name for p in written.plots}
    assert {"convergence.png", "importance.png", "slices.png", "calibration.png"} <= names
    assert all(f"]({name})" in text and (written.path.parent / name).stat().st_size > 5000 for name in names)
    assert text.count("![slices]") == 1


def test_with_too_few_runs_the_report_says_that_there_is_no_model(tmp_path):
    ha.run(campaign(runs=2), site="threads", run_dir=tmp_path)
    text = report(tmp_path, plots=False).path.read_text()
    assert "Nothing: no model of the runs: " in text and "a model needs 3" in text
    assert "Parameter importance" not in text


def test_a_model_that_breaks_down_does_not_take_the_report_with_it(swept, monkeypatch):
    def broken(result: Any) -> Any:
        raise ValueError("array must not contain infs")

    monkeypatch.setattr("hpcagent.reports.report.learned", broken)
    text = report(swept, plots=False).path.read_text()
    assert "## Answer" in text and "Nothing: ValueError: array must not contain infs." in text


def test_what_was_learned_is_right(swept):
    found = learned(read_run(swept))
    weights = {w.metric: dict(zip(w.names, w.total, strict=True)) for w in found.importance}
    # error = (x / 0.6)^2: nothing else matters.
    assert weights["error"]["x"] > 0.95 and max(weights["error"]["y"], weights["error"]["style"]) < 0.03
    assert weights["value"]["x"] > weights["value"]["style"] > 0.005
    suggested = set(runs_of(swept, "suggested"))
    assert {p.index for p in found.predictions} <= suggested and len(found.predictions) >= 20
    # No run is predicted by a model that knew it: none of the first batch is.
    assert min(p.index for p in found.predictions) >= 6


@pytest.mark.slow
def test_a_long_rolling_campaign_takes_few_models_and_predicts_all_but_the_first_runs(tmp_path):
    ha.run(campaign(runs=60, mode="rolling", in_flight=1, fail_above=2.0), site="threads", run_dir=tmp_path)
    found = learned(read_run(tmp_path))
    assert 20 <= found.moments <= 25 and len(found.progress) == 25
    # The first model needs three runs; with 25 models for 60 decisions it is at the second or third group.
    assert {p.index for p in found.predictions} >= set(range(8, 60))


def test_the_progress_ends_with_the_answer(swept):
    result = read_run(swept)
    found = progress(result)
    assert [p.runs for p in found][-1] == len(result.results)
    assert [p.runs for p in found] == sorted({p.runs for p in found})
    assert found[-1].node_hours == pytest.approx(result.node_hours)
    assert found[-1].feasible and found[-1].value == pytest.approx(result.best.metrics["value"], rel=0.1)


@pytest.mark.parametrize("goals", [2, 3])
@pytest.mark.slow
def test_the_front_of_several_goals_is_drawn(goals, tmp_path):
    pytest.importorskip("matplotlib")
    both = {"maximize": "value", "minimize": "error"}
    objective = both if goals == 2 else {"maximize": ["value", "third"], "minimize": "error"}
    asked = campaign(objective=ha.types.Objective.model_validate(objective)) if goals == 2 else three(objective)
    ha.run(asked, site="threads", run_dir=tmp_path)
    written = report(tmp_path)
    assert "front.png" in {p.name for p in written.plots}
    assert written.path.read_text().count("![front]") == 1
    front = read_run(tmp_path).front
    table = written.path.read_text().partition("beats these in every goal:")[2].partition("## ")[0]
    assert len(front) > 1 and table.count("\n| ") == 1 + len(front)
    assert all(f"\n| {r.manifest.index} | " in table for r in front)


def three(objective: dict[str, Any]) -> ha.Campaign:
    @ha.app(
        name="three_goals",
        version="1.0.0",
        parameters={"x": ha.Float(0.1, 1.0), "y": ha.Float(0.1, 1.0)},
        metrics={name: ha.Metric(name=name, unit="1", description=name) for name in ("value", "error", "third")},
    )
    def three_goals(x: float, y: float, run: ha.Run) -> ha.Outcome:
        return ha.Outcome(metrics={"value": x, "error": x * y, "third": 1 - y * x})

    goals = ha.types.Objective.model_validate(objective)
    return ha.Campaign(three_goals, goals, policy={"name": "sobol"}, until=ha.until.max_runs(12), batch_size=6)
