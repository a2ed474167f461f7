"""A choice of true and false, from the TOML to the journal and back."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hpcagent as ha
from hpcagent.campaign.answer import read_run
from hpcagent.campaign.numbers import point_text
from hpcagent.errors import BadInput
from hpcagent.model.objective import at_most, maximize
from hpcagent.model.parameter import Choice, Float
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.base import make_policy

SPACE = Space.of(x=Float(0.0, 1.0), fast=Choice(True, False))


@ha.app(name="with_flag", parameters={p.name: p for p in SPACE.parameters}, metrics={"speed": "1"})
def with_flag(x: float, fast: bool) -> ha.Outcome:
    assert type(fast) is bool
    return ha.Outcome(metrics={"speed": x + (2.0 if fast else 0.0)})


def test_a_campaign_over_a_boolean_keeps_it_everywhere(tmp_path):
    made = ha.Campaign(with_flag, maximize("speed"), until=ha.until.max_runs(12), batch_size=4)
    result = ha.run(made, site="threads", run_dir=tmp_path)
    assert not result.failures
    assert result.best.params["fast"] is True
    assert "fast = true" in str(result) and point_text({"fast": False}) == "fast = false"
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    params = [m["params"]["fast"] for e in lines if e["event"] == "manifests" for m in e["manifests"]]
    assert len(params) == 12 and {type(p) for p in params} == {bool}
    read = read_run(tmp_path)
    assert read.best.params == result.best.params and type(read.best.params["fast"]) is bool
    columns, _ = ha.store.metrics_file.read_table(tmp_path / "metrics.h5")
    assert columns["params/fast"].dtype == bool


@pytest.mark.parametrize(
    "name", ["bayes", "quality_first", "sobol", "grid", "ucb", "thompson", "epsilon_greedy", "linucb"]
)
def test_every_policy_suggests_booleans(name):
    objective = maximize("speed", subject_to={"error": at_most(0.8)})
    policy = make_policy(name, space=SPACE, objective=objective, seed=2)
    runs = [
        Observation({"x": i / 10, "fast": i % 3 == 0}, metrics={"speed": i + 5.0 * (i % 3 == 0), "error": i / 10})
        for i in range(10)
    ]
    for history in ((), runs):
        points = policy.suggest(history, 3)
        assert points and all(type(p["fast"]) is bool for p in points)


def test_a_lammps_script_has_no_booleans_and_says_what_to_write(tmp_path):
    script = tmp_path / "in.flag"
    script.write_text('units lj\nprint "${flag}"\nrun 0\n')
    with pytest.raises(ha.BadInput, match=r"variables.flag: a LAMMPS variable is a number or a word, not true"):
        ha.lammps(script, variables={"flag": Choice(True, False)})


@pytest.mark.parametrize(
    ("given", "choices"),
    [
        ([True, False], (True, False)),
        ([2, 4], (2, 4)),
        ([0.5, 1.5], (0.5, 1.5)),
        (["a", "b"], ("a", "b")),
    ],
)
def test_scalars_of_numpy_are_the_python_values_they_are(given, choices):
    found = Choice(*np.array(given), default=np.array(given)[1])
    assert found.choices == choices and found.default == choices[1]
    assert {type(c) for c in (*found.choices, found.default)} == {type(choices[0])}


@pytest.mark.parametrize("given", [(b"a", b"b"), tuple(np.array([b"a", b"b"]))])
def test_bytes_are_no_choice(given):
    with pytest.raises(BadInput, match="is bytes"):
        Choice(*given)
