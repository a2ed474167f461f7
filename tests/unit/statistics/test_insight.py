"""Importance, slices and calibration against functions whose answers are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hpcagent as ha
from hpcagent.model.records import Observation
from hpcagent.policies.sweeps import Sobol
from hpcagent.statistics.insight import (
    Prediction,
    calibration,
    chances,
    importance,
    predictions,
    rank,
    slices,
    sobol_indices,
)
from hpcagent.statistics.surrogate import Surrogate

GATED = ha.maximize("speed", subject_to={"error": ha.at_most(1.0)})
SPACE = ha.Space.of(x=ha.Float(0.0, 1.0), idle=ha.Float(0.0, 1.0), style=ha.Choice("a", "b"))


def measured(params, *, noise: float = 0.0, rng=None, **fields) -> Observation:
    """speed = 5 + 2 x + (1 for style b), error = 2 x + 0.1; `idle` does nothing; the noise is relative."""
    off = rng.standard_normal(2) * noise if rng is not None else (0.0, 0.0)
    speed = (5 + 2 * params["x"] + (params["style"] == "b")) * (1 + off[0])
    return Observation(params, metrics={"speed": speed, "error": (2 * params["x"] + 0.1) * (1 + off[1])}, **fields)


def known(n: int, *, noise: float = 0.0, seed: int = 3) -> list[Observation]:
    rng = np.random.default_rng(seed)
    points = Sobol(SPACE, seed=seed).suggest([], n)
    return [measured(p, noise=noise, rng=rng, index=i) for i, p in enumerate(points)]


def test_the_indices_of_the_ishigami_function_are_the_analytic_ones():
    # a = 7, b = 0.1: Saltelli et al., Sensitivity Analysis (2000), table 2.
    def ishigami(u):
        x = (2 * u - 1) * math.pi
        return np.sin(x[:, 0]) + 7 * np.sin(x[:, 1]) ** 2 + 0.1 * x[:, 2] ** 4 * np.sin(x[:, 0])

    first, total = sobol_indices(ishigami, 3)
    assert first == pytest.approx([0.3139, 0.4424, 0.0], abs=0.02)
    assert total == pytest.approx([0.5576, 0.4424, 0.2437], abs=0.02)


def test_a_constant_has_no_important_parameter():
    first, total = sobol_indices(lambda u: np.full(len(u), 7.0), 2)
    assert first.tolist() == total.tolist() == [0.0, 0.0]


def test_a_parameter_that_does_nothing_has_no_importance_and_a_choice_has_its_own():
    found = {w.metric: w for w in importance(Surrogate.fit(SPACE, GATED, known(40, noise=0.005)))}
    # Of speed: the variance of 2 x is 4/12, that of the style 1/4. Of error: all x.
    expected = (4 / 12) / (4 / 12 + 1 / 4)
    assert found["speed"].names == ("x", "idle", "style")
    assert found["speed"].first == pytest.approx((expected, 0.0, 1 - expected), abs=0.06)
    assert found["speed"].total == pytest.approx((expected, 0.0, 1 - expected), abs=0.06)
    assert found["error"].total[0] > 0.95 and max(found["error"].total[1:]) < 0.03
    assert found["speed"].trusted and found["speed"].predicted > 0.95


def test_importance_of_what_is_only_noise_is_not_to_be_trusted():
    rng = np.random.default_rng(8)
    noise = [
        Observation(o.params, metrics={"speed": 100 + rng.standard_normal(), "error": rng.standard_normal()})
        for o in known(24)
    ]
    assert not any(w.trusted for w in importance(Surrogate.fit(SPACE, GATED, noise)))


def test_a_slice_follows_the_function_and_knows_where_the_limit_is_broken():
    history = known(32)
    point = {"x": 0.4, "idle": 0.5, "style": "b"}
    found = {(s.metric, s.name): s for s in slices(Surrogate.fit(SPACE, GATED, history), point, history)}
    along = found["speed", "x"]
    truth = np.array([5 + 2 * v + 1 for v in along.values])
    assert np.abs(along.mean - truth).max() < 0.15
    assert (along.low <= along.mean).all() and (along.mean <= along.high).all()
    # error = 2 x + 0.1 keeps the limit below x = 0.45
    kept = dict(zip(along.values, along.feasible, strict=True))
    assert kept[0.4] > 0.9 and kept[0.5] < 0.1
    assert found["error", "x"].limit == 1.0 and along.limit is None
    assert found["speed", "style"].values == ("a", "b")
    # Nothing but x matters for the error, so every run is near its slice; of speed, those of the same style are.
    assert len(found["error", "x"].runs) > len(along.runs) > 0
    assert all(abs(v - (6 + 2 * x)) < 0.5 for x, v, _ in along.runs)


def test_predictions_of_new_runs_are_off_by_as_much_as_they_say():
    surrogate = Surrogate.fit(SPACE, GATED, known(40, noise=0.03))
    found = predictions(surrogate, known(64, noise=0.03, seed=11))
    for c in calibration(found):
        assert c.runs == 64
        assert 0.7 < c.rms < 1.4
        assert abs(c.within_90 - 0.9) < 4 * c.error_90
        assert c.error_90 == pytest.approx(math.sqrt(0.9 * 0.1 / 64))
    assert all(p.low < p.mean < p.high for p in found)


def test_what_cannot_be_compared_with_a_prediction_is_left_out():
    surrogate = Surrogate.fit(SPACE, GATED, known(16))
    at = {"x": 0.3, "idle": 0.1, "style": "a"}
    runs = [
        Observation(at, completed=False, failure="LostAtoms", index=0),
        measured(at, index=1, bounds={"error": "above"}),
        measured(at, index=2, distrusted=True),
        measured({**at, "x": 2.0}, index=3),
    ]
    assert {(p.metric, p.index) for p in predictions(surrogate, runs)} == {("speed", 1), ("error", 2)}
    # A failed run broke its promise; one whose limited metric is only a bound does not count.
    assert [kept for _, kept in chances(surrogate, runs)] == [False, True]


@pytest.mark.parametrize(
    ("width", "verdict"), [(1.0, "as stated"), (3.0, "errors stated too small"), (0.2, "errors stated too large")]
)
def test_errors_that_are_stated_wrongly_are_noticed(width, verdict):
    z = width * np.random.default_rng(1).standard_normal(60)
    found = calibration([Prediction("y", i, 0.0, 0.0, 0.0, 0.0, float(v)) for i, v in enumerate(z)])
    assert found[0].verdict == verdict


def test_the_rank_of_a_point_is_that_of_its_expected_goal():
    history = [o for o in known(20) if 0.1 < o.params["x"] < 0.9]
    surrogate, n = Surrogate.fit(SPACE, GATED, history), len(history) + 1
    assert rank(surrogate, {"x": 1.0, "idle": 0.5, "style": "b"}) == (1, n)
    assert rank(surrogate, {"x": 0.0, "idle": 0.5, "style": "a"}) == (n, n)
    assert rank(surrogate, history[0].params)[1] == n - 1
    assert rank(surrogate, {"x": 5.0, "idle": 0.5, "style": "a"}) is None


def test_rows_hold_the_given_parameters_and_keep_the_others():
    import numpy as np

    from hpcagent.model.parameter import Choice, Float
    from hpcagent.model.space import Space
    from hpcagent.statistics.features import Features

    f = Features(Space.of(x=Float(0, 10), level=Choice("low", "high"), fixed=Float(3, 3, default=3)))
    rows = f.rows([{"x": 2.0, "level": "low", "fixed": 3.0}, {"x": 8.0, "level": "high", "fixed": 3.0}])
    before = rows.copy()
    held = f.points(f.held(rows, {"level": "high", "fixed": 3.0, "elsewhere": 1}))
    assert [(p["x"], p["level"]) for p in held] == [(2.0, "high"), (8.0, "high")]
    assert np.array_equal(rows, before)
