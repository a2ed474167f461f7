"""Where runs fail, and what is only doubt."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcagent.model.objective import maximize
from hpcagent.model.parameter import Choice, Float
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies import make_policy
from hpcagent.statistics.failures import Failures
from hpcagent.statistics.features import Features

SPACE = Space.of(x=Float(0, 1), y=Float(0, 1), kind=Choice("p", "q", "r", "s"))
OBJECTIVE = maximize("v")
BETTER = {"p": 0.0, "q": 1.5, "r": -1.0, "s": -2.0}


def run(params, index, *, struck=False):
    """Fails where x + y < 1; at most 41.5, at (0.6, 0.5) with q."""
    x, y = float(params["x"]), float(params["y"])
    if struck or x + y < 1:
        return Observation(params, completed=False, failure="AppFailed", index=index, batch=index // 4)
    value = 40 - 20 * (x - 0.6) ** 2 - 20 * (y - 0.5) ** 2 + BETTER[params["kind"]]
    return Observation(params, metrics={"v": value}, index=index, batch=index // 4)


def begun_badly(seed):
    """Four runs of the best category, all of which fail because of their numbers, and eight of the others."""
    rng = np.random.default_rng(seed)
    runs = []
    while len(runs) < 12:
        x, y = (float(v) for v in rng.random(2))
        if len(runs) >= 4:
            runs.append(run({"x": x, "y": y, "kind": "prs"[len(runs) % 3]}, len(runs)))
        elif x + y < 0.95:
            runs.append(run({"x": x, "y": y, "kind": "q"}, len(runs)))
    return runs, rng


@pytest.mark.parametrize("unlucky", [0.0, 0.1])
@pytest.mark.parametrize("seed", [3, 5, 7])
def test_a_category_whose_first_runs_failed_for_another_reason_is_tried_again(seed, unlucky):
    runs, rng = begun_badly(seed)
    policy = make_policy("bayes", space=SPACE, objective=OBJECTIVE, seed=seed)
    while len(runs) < 44:
        for params in policy.suggest(runs, 4):
            runs.append(run(params, len(runs), struck=bool(rng.random() < unlucky)))
    assert max(o.metrics["v"] for o in runs if o.completed) == pytest.approx(41.5, abs=0.1)


def test_the_benefit_of_the_doubt_is_for_what_no_run_has_told_of():
    space = Space.of(x=Float(0, 1))
    features = Features(space)
    at = np.array([0.05, 0.1, 0.15, 0.2, 0.25, 0.3])
    rows = features.rows([{"x": float(x)} for x in at])
    model = Failures.fit(features, rows, (at > 0.17).astype(float), np.ones(len(at)))
    known, unknown = features.rows([{"x": 0.28}]), features.rows([{"x": 1.0}])
    gain = [
        float(model.log_completes(r, doubt=1.5)[0][0] - model.log_completes(r)[0][0]) for r in (known, unknown)
    ]
    assert math.exp(float(model.log_completes(known, doubt=1.5)[0][0])) < 0.15
    assert gain[1] > 2 * gain[0] or math.exp(float(model.log_completes(unknown, doubt=1.5)[0][0])) > 0.8


def test_slopes_of_the_chance_are_those_of_differences():
    features = Features(Space.of(x=Float(0, 1), y=Float(0, 1)))
    rng = np.random.default_rng(0)
    rows = rng.random((20, 2))
    model = Failures.fit(features, rows, (rows.sum(1) < 1).astype(float), np.ones(20))
    at, step = rng.random((5, 2)), 1e-5
    slopes = model.log_completes(at, doubt=1.5)[1]
    for j in range(2):
        move = step * np.eye(2)[j]
        up, down = (model.log_completes(at + s * move, doubt=1.5)[0] for s in (1, -1))
        assert slopes[:, j] == pytest.approx((up - down) / (2 * step), rel=1e-3, abs=1e-5)
