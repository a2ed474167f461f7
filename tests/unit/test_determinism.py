"""An app that says it is deterministic and gives two results for one manifest is named."""

from __future__ import annotations

import json

import pytest

import hpcagent as ha
from hpcagent.campaign.recorded import snapshot
from hpcagent.model.contract import Contract
from hpcagent.model.determinism import disagreements
from hpcagent.model.records import Manifest, Result
from hpcagent.runs.status import status_of

METRICS = (
    ha.Metric(name="energy", unit="eV"),
    ha.Metric(name="time", unit="s"),
    ha.Metric(name="force", unit="eV/angstrom", required=False),
)


def contract(**more):
    return Contract(name="md", version="1.0.0", metrics=METRICS, **more)


def result(identity, index=0, replicate=0, host="", versions=None, status="COMPLETED", **metrics):
    manifest = Manifest(
        execution_id=identity, app="md", app_version="1.0.0", params={"x": 1.0}, replicate=replicate, index=index
    )
    return Result(
        manifest=manifest,
        status=status,
        metrics=metrics,
        units={"energy": "eV"},
        host=host,
        versions=versions or {},
    )


def test_two_results_of_one_execution_id_are_named_with_their_values_and_places():
    first = result("abc", index=4, energy=1.0, host="n1", versions={"code": "1.0"})
    second = result("abc", index=4, energy=1.25, host="n2", versions={"code": "1.1"})
    (found,) = disagreements(contract(), [first, second])
    assert str(found) == (
        "md 1.0.0 says that it is deterministic, but run 4 (abc) gave two results: energy is 1 and 1.25 eV "
        "(on n1 and n2, by code 1.0 and 1.1)"
    )


def test_seeds_count_where_the_app_has_one_and_not_where_it_has_none():
    runs = [result("a", index=0, energy=1.0), result("b", index=1, replicate=1, energy=2.0)]
    assert disagreements(contract(seeded=True), runs) == ()
    (found,) = disagreements(contract(seeded=False), runs)
    assert "runs 0 and 1 differ only in seed and replicate" in str(found)


def test_measured_times_other_apps_failures_and_rounding_do_not_count():
    same = {"energy": -1000.0, "force": 1e-13}
    runs = [
        result("a", **same, time=1.0),
        result("a", energy=-1000.0 - 5e-7, force=1e-13, time=2.0),
        result("a", status="FAILED"),
    ]
    assert disagreements(contract(), runs) == ()
    other = runs[0].model_copy(update={"manifest": runs[0].manifest.model_copy(update={"app_version": "2.0.0"})})
    other = other.model_copy(update={"metrics": {"energy": 5.0}})
    assert disagreements(contract(), [*runs, other]) == ()
    # 1e-9 of the largest energy is 1e-6.
    assert len(disagreements(contract(), [*runs, result("a", energy=-1000.0 + 2e-6, force=1e-13)])) == 1


def test_a_metric_that_is_there_once_only_is_a_difference():
    (found,) = disagreements(contract(), [result("a", energy=1.0), result("a", energy=1.0, force=0.1)])
    assert found.metrics == ("force",) and "force is missing and 0.1" in str(found)


def test_an_app_that_says_it_is_not_deterministic_promises_nothing():
    runs = [result("a", energy=1.0), result("a", energy=2.0)]
    assert disagreements(contract(deterministic=False), runs) == ()


_count = iter(range(1000))


@ha.app(metrics={"y": "1"}, parameters={"x": ha.Float(0.0, 1.0)}, seeded=False)
def counts_its_calls(x):
    return {"y": x + next(_count)}


@ha.app(metrics={"y": "1"}, parameters={"x": ha.Float(0.0, 1.0)}, seeded=False)
def keeps_its_word(x):
    return {"y": x}


def repeated(app, folder):
    """The reference is run in every batch."""
    campaign = ha.Campaign(
        app,
        ha.maximize("y"),
        policy="random",
        reference=ha.types.Reference(params={"x": 0.5}),
        until=ha.until.max_runs(6),
        batch_size=3,
        seed=3,
    )
    return ha.run(campaign, site="threads", workers=1, run_dir=folder)


def test_repetitions_in_an_app_without_a_seed_that_differ_are_remarks_of_answer_and_status(tmp_path):
    answer = repeated(counts_its_calls, tmp_path / "a")
    (remark,) = [r for r in answer.remarks if "says that it is deterministic" in r]
    assert "counts_its_calls 0.1.0" in remark and "y is " in remark and "deterministic = False" in remark
    assert remark in set(status_of(tmp_path / "a").notes)
    assert not [r for r in repeated(keeps_its_word, tmp_path / "b").remarks if "deterministic" in r]


def test_a_result_that_comes_again_with_other_numbers_is_a_remark_also_on_resume(tmp_path):
    """As a run that was taken for lost and answers late: its line in the journal is the second of its id."""
    campaign = ha.Campaign(
        ha.apps.synthetic, ha.maximize("value"), space={"x": ha.Float(0.1, 0.9)}, until=ha.until.max_runs(2)
    )
    ha.run(campaign, site="threads", workers=1, run_dir=tmp_path / "run")
    assert not [r for r in snapshot(tmp_path / "run").remarks if "deterministic" in r]
    journal = tmp_path / "run" / "events.jsonl"
    lines = journal.read_text().splitlines()
    line = next(json.loads(one) for one in lines if '"event":"results"' in one.replace(" ", ""))
    line["results"] = line["results"][:1]
    line["results"][0]["metrics"]["value"] += 1.0
    journal.write_text("\n".join([*lines, json.dumps(line)]) + "\n")
    (remark,) = [r for r in snapshot(tmp_path / "run").remarks if "deterministic" in r]
    assert "synthetic 1.0.0" in remark and line["results"][0]["execution_id"] in remark and "value is " in remark
    told = []
    ha.run(
        campaign.model_copy(update={"until": ha.until.max_runs(3)}),
        site="threads",
        workers=1,
        run_dir=tmp_path / "run",
        watch=lambda event: told.append(str(event.reason)),
    )
    assert any("gave two results" in said for said in told)


def test_two_campaigns_with_one_run_and_two_results_say_so_when_they_are_compared(tmp_path):
    for name in "ab":
        repeated(counts_its_calls, tmp_path / name)
    found = ha.runs.compare(tmp_path / "a", tmp_path / "b")
    assert any("says that it is deterministic" in note for note in found.notes)
    for name in "cd":
        repeated(keeps_its_word, tmp_path / name)
    assert not [n for n in ha.runs.compare(tmp_path / "c", tmp_path / "d").notes if "deterministic" in n]


@pytest.mark.parametrize("name", ["rdf", "synthetic"])
def test_an_inner_run_of_ours_that_was_run_again_with_other_numbers_is_a_remark(name):
    from hpcagent.campaign.determinism import unequal_words
    from hpcagent.campaign.state import State

    app = getattr(ha.apps, name)
    state, metric = State(), app.contract.metrics[0].name
    manifest = Manifest(execution_id="part", app=name, app_version=app.contract.version, role="part")
    for value in (1.0, 2.0):
        state.add_part_result(Result(manifest=manifest, status="COMPLETED", metrics={metric: value}), shared=False)
    campaign = ha.Campaign(keeps_its_word, ha.maximize("y"))
    (said,) = unequal_words(campaign, state)
    assert f"{name} {app.contract.version}" in said and f"{metric} is 1 and 2" in said
