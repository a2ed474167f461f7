"""Campaigns side by side: settings, answers, progress, shared points."""

from __future__ import annotations

import json
import math
import statistics

import pytest
from typer.testing import CliRunner

import hpcagent as ha
from hpcagent.cli import cli
from hpcagent.errors import BadInput
from hpcagent.runs.compared import Difference


def sweep(folder, noise=0.02):
    space = {"x": [0.2, 0.4], "y": [0.3]}
    made = ha.Sweep(ha.apps.synthetic, space, replicates=4, metrics=["value"], fixed={"noise": noise})
    return ha.run(made, site="threads", run_dir=folder)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    root = tmp_path_factory.mktemp("compared")
    for seed, policy in ((1, "sobol"), (2, "random")):
        changes = {"seed": seed, "policy.name": policy, "until.max_runs": 8 * seed, "confirm": None}
        ha.run(ha.load_campaign("synthetic", changes=changes), site="threads", run_dir=root / policy)
    return root / "sobol", root / "random"


def test_what_was_asked_otherwise_the_answers_and_the_way_there_are_side_by_side(two):
    found = ha.runs.compare(*two)
    assert found.settings == {"seed": (1, 2), "policy.name": ("sobol", "random"), "until.max_runs": (8, 16)}
    runs = [ha.open_run(folder) for folder in two]
    (value,) = [d for d in found.differences if d.metric == "value"]
    a, b = (run.best for run in runs)
    error = math.sqrt(a.expected_error["value"] ** 2 + b.expected_error["value"] ** 2)
    assert value.difference == pytest.approx(b.expected["value"] - a.expected["value"])
    assert value.error == pytest.approx(error) and value.significant is (abs(value.difference) > 2 * error)
    for run, progress in zip(runs, found.progress, strict=True):
        kept = [r.metrics["value"] if r.ok and r.metrics["error"] <= 1 else -math.inf for r in run.results]
        best = [max(kept[: i + 1]) for i in range(len(kept))]
        assert [-math.inf if math.isnan(x) else x for x in progress.best] == best
        assert progress.node_hours[-1] == pytest.approx(sum(r.cost.node_hours for r in run.results))
        assert progress.runs_to(best[-1], 1.0) == 1 + best.index(best[-1])
    shell = CliRunner().invoke(cli, ["compare", *map(str, two)])
    assert "policy.name: sobol | random" in shell.output and "no point was run in both" in shell.output
    data = json.loads(CliRunner().invoke(cli, ["compare", *map(str, two), "--json"]).output)
    assert data["differences"][0]["difference"] == pytest.approx(value.difference)


def test_a_plot_of_the_best_so_far(two, tmp_path):
    pytest.importorskip("matplotlib")
    assert ha.runs.compare(*two).plot(tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_points_that_both_have_run_are_compared_by_their_scatter(tmp_path):
    first = sweep(tmp_path / "a")
    again = ha.runs.compare(tmp_path / "a", tmp_path / "a")
    assert len(again.points) == 2
    for _, differences in again.points:
        (value,) = [d for d in differences if d.metric == "value"]
        assert value.difference == 0 and value.significant is False
    values = [r.metrics["value"] for r in first.results if r.manifest.params["x"] == 0.2]
    value = next(d for d in again.points[0][1] if d.metric == "value")
    assert value.first == pytest.approx(statistics.mean(values))
    assert value.first_error == pytest.approx(statistics.stdev(values) / 2 * 3.1824 / 2, rel=1e-4)  # Student's t
    assert again.differences == () and any("one goal" in note for note in again.notes)
    sweep(tmp_path / "b", noise=0.03)  # another fixed parameter: no point is the same
    other = ha.runs.compare(tmp_path / "a", tmp_path / "b")
    assert other.points == () and other.settings == {"fixed.noise": (0.02, 0.03)}


def test_values_of_other_apps_and_units_are_not_compared_and_it_is_said(tmp_path):
    def app(called, unit):
        def work(x):
            return {"value": x, "error": 0.0}

        work.__name__ = called
        return ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"value": unit, "error": "1"}, seeded=False)(work)

    for name, unit in (("one", "K"), ("two", "K"), ("one", "eV")):
        asked = ha.Campaign(app(name, unit), ha.maximize("value"), policy="grid", until=ha.until.max_runs(4))
        ha.run(asked, site="threads", run_dir=tmp_path / f"{name}-{unit}")
    found = ha.runs.compare(tmp_path / "one-K", tmp_path / "two-K")
    assert found.differences == () and found.points == () and found.metric == ""
    assert any("apps are not the same (one, two)" in note for note in found.notes)
    found = ha.runs.compare(tmp_path / "one-K", tmp_path / "one-eV")
    assert found.differences == () and len(found.points) == 3
    assert all([(d.metric, d.error) for d in ds] == [("error", 0.0)] for _, ds in found.points)  # exact
    assert any("value has the units K and eV, and is not compared" in note for note in found.notes)
    with pytest.raises(BadInput, match="do not ask for the same metric"):
        found.plot(tmp_path / "c.png")
    with pytest.raises(BadInput, match="two campaigns"):
        ha.runs.compare(tmp_path / "one-K")


def test_a_difference_is_judged_by_two_combined_standard_errors():
    def judged(second, error):
        return Difference("e", "eV", 1.0, 0.3, second, error, 1).significant

    assert judged(2.0, 0.4) is False and judged(2.01, 0.4) is True and judged(9.0, None) is None
