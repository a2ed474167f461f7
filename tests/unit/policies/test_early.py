"""Runs that a guard has ended early: no policy takes what they had so far, or their threshold, for a value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcagent.model.objective import at_most, maximize, minimize
from hpcagent.model.parameter import Float
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.base import make_policy
from hpcagent.policies.early import imputed
from hpcagent.statistics.recommend import estimates, recommend
from hpcagent.statistics.surrogate import Surrogate

SPACE = Space.of(x=Float(0.0, 1.0))
SPEED = maximize("speed", subject_to={"error": at_most(1.0)})


def done(x: float, index: int = 0) -> Observation:
    return Observation({"x": x}, metrics={"speed": 10 * x, "error": 2 * x}, index=index)


def early(x: float, index: int, **bounds: Any) -> Observation:
    values = {name: value for name, (_, value) in bounds.items()}
    sides = {name: side for name, (side, _) in bounds.items()}
    return Observation({"x": x}, completed=False, stopped=True, metrics=values, bounds=sides, index=index)


HISTORY = [done(x, i) for i, x in enumerate((0.05, 0.15, 0.25, 0.35, 0.45))]


def test_the_models_take_it_for_a_bound() -> None:
    """The error is 2 x: a bound 'above 1' at 0.9 must not say that it is 1 there, and its speed is unknown."""
    bounded = [*HISTORY, early(0.9, 5, error=("above", 1.0))]
    model = Surrogate.fit(SPACE, SPEED, bounded)
    at = model.features.rows([{"x": 0.9}])
    mean, sd = (float(v[0]) for v in model.limits[0].gp.predict(at))
    assert model.limits[0].scale.backward(np.array([mean]))[0] > 1.05
    assert sd > 0
    assert float(np.exp(model.log_feasible(at, slopes=False)[0][0])) < 0.2
    assert float(model.completes(at)[0]) > 0.9  # it has not failed


def test_a_slow_run_that_could_not_win_is_not_taken_for_as_good_as_the_best() -> None:
    bounded = [*HISTORY, early(0.0, 5, speed=("below", 4.5))]
    model = Surrogate.fit(SPACE, SPEED, bounded)
    at = model.features.rows([{"x": 0.0}])
    mean = model.goals[0].scale.backward(model.goals[0].gp.predict(at)[0])
    assert float(mean[0]) < 1.5


def test_a_run_that_went_to_its_end_counts_alone_beside_one_that_was_stopped() -> None:
    both = [*HISTORY, early(0.45, 5, error=("above", 1.0))]
    alone, beside = (Surrogate.fit(SPACE, SPEED, h) for h in (HISTORY, both))
    at = alone.features.rows([{"x": 0.45}])
    for one, other in ((alone.limits[0], beside.limits[0]), (alone.goals[0], beside.goals[0])):
        assert one.gp.predict(at)[0][0] == pytest.approx(other.gp.predict(at)[0][0])


def test_the_answer_never_rests_on_it() -> None:
    bounded = [*HISTORY, early(0.9, 5, speed=("below", 99.0)), early(0.95, 6, error=("above", 1.0))]
    assert {e.params["x"] for e in estimates(bounded, SPEED, space=SPACE)} == {o.params["x"] for o in HISTORY}
    found = recommend(bounded, SPEED, space=SPACE)
    assert found is not None and found.params["x"] in [o.params["x"] for o in HISTORY]
    assert found.metrics["speed"] <= 4.5


def test_what_is_expected_beyond_a_threshold_stands_for_it() -> None:
    runs = imputed([*HISTORY, early(0.9, 5, error=("above", 0.6)), early(0.0, 6, speed=("below", 2.0))], SPEED)
    assert runs[5].metrics["error"] == pytest.approx((0.7 + 0.9) / 2)
    assert runs[6].metrics["speed"] == pytest.approx((0.5 + 1.5) / 2)
    assert imputed(HISTORY, SPEED) == HISTORY
    alone = [early(0.9, 0, error=("above", 1.0))]
    assert imputed(alone, SPEED) == alone


@pytest.mark.parametrize(
    "name", ["bayes", "quality_first", "ucb", "thompson", "epsilon_greedy", "linucb", "staircase", "sobol"]
)
def test_every_policy_goes_on_with_stopped_runs(name: str) -> None:
    bounded = [*HISTORY, early(0.9, 5, error=("above", 1.0)), early(0.0, 6, speed=("below", 4.5))]
    for history in (bounded, bounded[5:], bounded[3:]):
        cheap = minimize("speed", subject_to={"error": at_most(1.0)})
        policy = make_policy(name, space=SPACE, objective=cheap if name == "staircase" else SPEED, seed=1)
        points = policy.suggest(history, 3)
        assert points == policy.suggest(history, 3)
        assert all(SPACE.allows(p) for p in points)


def test_bayes_does_not_stay_where_runs_are_stopped() -> None:
    """The limit is at x = 0.5. Taken for values, bounds at the limit would say that 0.6 to 1 just keep it."""
    bounds = [early(x, 5 + i, error=("above", 1.0)) for i, x in enumerate((0.6, 0.8, 1.0))]
    points = make_policy("bayes", space=SPACE, objective=SPEED, seed=3).suggest([*HISTORY, *bounds], 2)
    assert all(float(p["x"]) < 0.6 for p in points)
