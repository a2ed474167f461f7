"""What an answer says: units that stand beside the right number, one best run everywhere, goals that are replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.apps.landscape import synthetic
from hpcagent.campaign.loading import load_run
from hpcagent.model.contract import Metric
from hpcagent.runs.status import status_of


@ha.app(parameters={"value": ha.Float(0, 1, unit="nm")}, metrics={"value": "eV"})
def gap(value: float) -> dict[str, float]:
    return {"value": -((value - 0.3) ** 2)}


@ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "eV"})
def broken(x: float) -> dict[str, float]:
    raise ValueError("no")


def test_a_metric_with_the_name_of_a_parameter_keeps_its_own_unit(tmp_path: Path) -> None:
    question = ha.Campaign(
        gap, ha.maximize("value"), policy={"name": "grid", "levels": 4}, until=ha.until.max_runs(4)
    )
    result = ha.run(question, site="threads", run_dir=tmp_path / "r", progress=False)
    assert result.best is not None
    assert str(result.best).startswith("value = 0.3333 nm\n  value = -0.001111 eV")
    assert (result.best.units, result.best.point_units) == ({"value": "eV"}, {"value": "nm"})
    assert result.table().header[:2] == ["value (nm)", "value (eV)"]
    assert ": value = 0.3333 nm; value = -0.001111 eV" in str(ha.open_run(tmp_path / "r").status)
    report = ha.open_run(tmp_path / "r").report(plots=False).path.read_text()
    assert "value = 0.3333 nm" in report and "| eV |" in report


def test_a_limit_is_said_with_its_unit_wherever_it_is_said(tmp_path: Path) -> None:
    question = ha.Campaign(
        gap,
        ha.maximize("value", subject_to={"value": ha.at_least(-0.2)}),
        policy={"name": "grid", "levels": 4},
        until=ha.until.max_runs(4),
    )
    words = "maximize value subject to value >= -0.2 eV"
    assert question.question == words and words in str(question)
    result = ha.run(question, site="threads", run_dir=tmp_path / "r", progress=False)
    run = ha.open_run(tmp_path / "r")
    assert words in str(result) and words in str(run.status)
    assert words in run.report(plots=False).path.read_text()
    assert "breaks value >= -0.2 eV" in str(run.explain(3))


@pytest.mark.parametrize(
    ("changes", "goals"),
    [
        ({"objective.minimize": "value"}, "minimize value"),
        ({"objective.minimize": "error"}, "minimize error"),
        ({"objective.maximize": "value"}, "maximize value"),
        (
            {"objective.minimize": "error", "objective.maximize": "value"},
            "maximize value and minimize error",
        ),
        ({"until.max_runs": 5}, "maximize error"),
    ],
)
def test_goals_that_are_set_replace_those_before_and_limits_stay(
    tmp_path: Path, changes: dict[str, Any], goals: str
) -> None:
    objective = ha.maximize("error", subject_to={"error": ha.at_most(3.0)})
    asked = ha.Campaign(synthetic, objective, policy="sobol", until=ha.until.max_runs(1))
    ha.run(asked, site="threads", run_dir=tmp_path / "r", progress=False)
    found = str(load_run(tmp_path / "r", changes=changes).objective)
    assert found == f"{goals} subject to error <= 3"


def test_without_a_run_that_counts_the_status_says_what_is_missing(tmp_path: Path) -> None:
    asked = ha.Campaign(broken, ha.maximize("y"), policy="sobol", until=ha.until.max_runs(2))
    ha.run(asked, site="threads", run_dir=tmp_path / "r", progress=False)
    assert "\nno run has completed\n" in str(status_of(tmp_path / "r"))


@ha.app(
    parameters={"x": ha.Float(0, 1), "n": ha.Int(1, 8)}, metrics={"y": Metric(name="y", unit="eV", noise=0.01)}
)
def slope(x: float, n: int) -> dict[str, float]:
    return {"y": 84 * x + n}


def test_a_best_point_at_the_edge_of_a_narrowed_range_is_said(tmp_path: Path) -> None:
    narrow = {"x": {"low": 0.1, "high": 0.5}, "n": {}}
    asked = ha.Campaign(slope, ha.maximize("y"), space=narrow, policy="grid", until=ha.until.max_runs(9))
    asked = asked.model_copy(update={"policy": asked.policy.model_copy(update={"options": {"levels": 3}})})
    result = ha.run(asked, site="threads", run_dir=tmp_path / "r", progress=False)
    edge = "x = 0.5 is at the edge of the range that was searched ([0.1, 0.5]); the app allows [0, 1]: "
    assert result.best is not None and result.best.params == {"x": 0.5, "n": 8}
    assert [line[: len(edge)] for line in result.edges] == [edge]  # n is at its own end: nothing lies beyond
    report = ha.open_run(tmp_path / "r").report(plots=False).path.read_text()
    for text in (str(result), report):
        assert edge in text
        assert "95 % sure that within the searched range it is not better" in text
    assert edge in result._repr_html_() and "--set space.x.high=" in result._repr_html_()
    # The app's whole range: said of nothing.
    whole = ha.Campaign(slope, ha.maximize("y"), policy="grid", until=ha.until.max_runs(4))
    assert ha.run(whole, site="threads", run_dir=tmp_path / "w", progress=False).edges == ()


def test_no_error_stands_beside_what_repeats_give_to_the_last_digit(tmp_path: Path) -> None:
    begun = ha.Sweep(synthetic, {"x": [0.1, 0.3, 0.5]}, fixed={"run_time_s": 0.0}, replicates=2, metrics=["value"])
    ha.run(begun, site="threads", run_dir=tmp_path / "r", progress=False)
    changes = {"objective.maximize": "value", "policy": "bayes", "until.max_runs": 10}
    result = ha.run(
        load_run(tmp_path / "r", changes=changes), site="threads", run_dir=tmp_path / "r", progress=False
    )
    assert "value = 42\n" in str(result)
    column = [row[1] for row in result.table().rows]
    assert len(column) > 3 and not any("±" in cell for cell in column)
