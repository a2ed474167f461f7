"""plot_data: what is drawn from numbers that are given, and what is refused."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from hpcagent.apps.worker import execute_as_result
from hpcagent.model.records import Result
from hpcagent.science import plots
from hpcagent.science.plot_numbers import numbers_of, plot_data

COUNTER = itertools.count()


def drawn(tmp_path: Path, **params: Any) -> Result:
    order = plot_data.order(plot_data.manifest(params), work=tmp_path / str(next(COUNTER)), site={})
    result = execute_as_result(order)
    assert isinstance(result, Result)
    if result.failure is not None:
        assert result.failure.name in plot_data.contract.failure_modes
    return result


def test_points_are_drawn_with_labels_and_units_and_written_with_all_digits(tmp_path, monkeypatch):
    seen = {}
    inner = plots.drawing

    def looked_at(run, **given):
        context = inner(run, **given)
        figure, axes = context.__enter__()
        seen["axes"] = axes[0]
        return type(
            "C", (), {"__enter__": lambda s: (figure, axes), "__exit__": lambda s, *a: context.__exit__(*a)}
        )()

    monkeypatch.setattr("hpcagent.science.plot_numbers.drawing", looked_at)
    result = drawn(
        tmp_path,
        x="[1, 2, 4]",
        y="0.1 0.25 1e-3",
        title="costs $5 and $6",
        x_label="temperature",
        x_unit="K",
        y_label="ratio",
        y_unit="1",
    )
    assert result.ok, result.failure
    assert result["n_points"] == 3
    axes = seen["axes"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("temperature (K)", "ratio")
    assert axes.get_lines()[0].get_xydata().tolist() == [[1, 0.1], [2, 0.25], [4, 1e-3]]
    picture = Path(result.workdir, result.artifacts["plot"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    data = np.loadtxt(Path(result.workdir, result.artifacts["data"]), delimiter=",", skiprows=1)
    assert data.tolist() == [[1, 0.1], [2, 0.25], [4, 1e-3]]
    assert not any("was not said" in note for note in result.notes)


def test_the_same_numbers_give_the_same_svg_and_a_unit_that_is_not_said_is_noted(tmp_path):
    one, two = (drawn(tmp_path, x="1,2", y="3,4", format="svg", look="line") for _ in range(2))
    texts = [Path(r.workdir, r.artifacts["plot"]).read_text() for r in (one, two)]
    assert texts[0] == texts[1]
    assert "<svg" in texts[0]
    assert any("unit of x and y was not said" in note for note in one.notes)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"x": "1,2,3", "y": "1,2"}, "x has 3 numbers and y 2"),
        ({"x": "1,nan", "y": "1,2"}, "number 2 of x is nan"),
        ({"x": "[1, Infinity]", "y": "1,2"}, "number 2 of x is inf"),
        ({"x": "1,2", "y": "[1, 1e999]"}, "number 2 of y is inf"),
        ({"x": "1,2", "y": "[1, 1e305]"}, "number 2 of y is 1e+305"),
        ({"x": "1,2", "y": "[1, true]"}, "number 2 of y is 'True'"),
        ({"x": "1,2", "y": "[1, [2]]"}, "number 2 of y"),
        ({"x": "one", "y": "1"}, "number 1 of x is 'one'"),
        ({"x": "[1, 2", "y": "1, 2"}, "no JSON list"),
        ({"x": "", "y": "1"}, "x has no numbers"),
        ({"x": "[]", "y": "[]"}, "x has no numbers"),
        ({"x": "0,1", "y": "1,2", "x_scale": "log"}, "number 1 of x is 0"),
        ({"x": "1,2", "y": "1,-2", "y_scale": "log"}, "number 2 of y is -2"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, params, says):
    failure = drawn(tmp_path, **params).failure
    assert failure is not None
    assert failure.name == "BadData"
    assert says in failure.message


def test_whole_numbers_of_any_size_are_read_or_refused():
    assert numbers_of("[10, 100000000000000000000]", "x").tolist() == [10.0, 1e20]
    with pytest.raises(Exception, match="which is none"):
        numbers_of(f"[1{'0' * 400}]", "x")
