"""What a guard decides of a run that is going on: rarely wrong, whatever the run looks like."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

from hpcagent.apps.guard import Sofar, _tail, as_recorded, checked, decide
from hpcagent.errors import AppFailed
from hpcagent.statistics.timeseries import block_average

LIMIT = {"metric": "x", "op": "<=", "value": 1.0}


def guard(**other: Any) -> dict[str, Any]:
    return {
        "stops": ["blown_up", "limit", "cannot_win"],
        "confidence": 0.99,
        "least_share": 0.1,
        "limits": [],
        "goal": None,
        "kinds": {"x": "mean"},
        "noise": {},
        "discard": 0.0,
    } | other


def looks(values: Sequence[float], error: float = 0.01, name: str = "x") -> list[Sofar]:
    shares = np.linspace(0.1, 0.9, len(values))
    return [Sofar(float(s), {name: v}, {name: error}) for s, v in zip(shares, values, strict=True)]


def first_stop(order: Mapping[str, Any], seen: Sequence[Sofar]) -> float | None:
    for n in range(1, len(seen) + 1):
        if decide(order, seen[:n]) is not None:
            return seen[n - 1].share
    return None


@pytest.mark.parametrize("freedom", [1.0, 4.0, 8.0, 31.0])
def test_the_tail_is_that_of_students_t(freedom: float) -> None:
    for value in (0.0, 0.3, 1.0, 4.0, 60.0):
        assert _tail(value, freedom) == pytest.approx(student.sf(value, freedom), rel=1e-9)


@pytest.mark.parametrize("trend", [0.0, -5.0, 5.0])
def test_a_run_that_just_keeps_its_limit_is_not_stopped(trend: float) -> None:
    """The limit is the finished series' own mean, the worst there is: each stop is wrong. 1 in 100 is allowed."""
    rng, wrong = np.random.default_rng(11), 0
    for _ in range(60):
        steps, series = rng.standard_normal(600), np.empty(600)
        for i, step in enumerate(steps):
            series[i] = 0.9 * series[i - 1] + step if i else step
        series += trend * np.linspace(0, 1, 600)
        seen = []
        for share in np.arange(0.1, 0.96, 0.1):
            mean, error = block_average(series[: int(share * 600)])
            seen.append(Sofar(float(share), {"x": mean}, {"x": error} if math.isfinite(error) else {}))
        wrong += first_stop(guard(limits=[LIMIT | {"value": float(series.mean())}]), seen) is not None
    assert wrong <= 2  # of 60; 0.6 is the most that is promised


def test_what_a_run_leaves_out_at_its_beginning_makes_it_less_sure_where_it_goes() -> None:
    """Series that fall for good, of which the first half does not count, against their own mean: each stop is wrong.

    One of ten is allowed. What two lengths have in common, by which their difference is surer than either, is less
    where both begin later: judged as if nothing were left out, more are stopped.
    """
    rng, ends, runs = np.random.default_rng(11), [], []
    for _ in range(80):
        series = np.zeros(600)
        for i, step in enumerate(rng.standard_normal(600) * 0.31):
            series[i] = 0.951 * series[i - 1] + step if i else 3.2 * step
        series -= 20 * np.linspace(0, 1, 600)
        ends.append(float(series[300:].mean()))
        runs.append([])
        for share in np.linspace(0.05, 0.95, 19):
            rows = series[: int(600 * share)]
            mean, error = block_average(rows[len(rows) // 2 :])
            errors = {"x": error} if math.isfinite(error) else {}
            runs[-1].append(Sofar(float(share), {"x": mean}, errors))

    def stopped(discard: float, beyond: float = 0.0) -> int:
        given = [guard(confidence=0.9, discard=discard, limits=[LIMIT | {"value": end - beyond}]) for end in ends]
        return sum(first_stop(one, seen) is not None for one, seen in zip(given, runs, strict=True))

    assert stopped(0.5) <= 2
    assert 0 < stopped(0.5, beyond=80.0) < 15 < stopped(0.0, beyond=80.0)


def test_a_fall_that_gets_faster_is_let_go_on() -> None:
    """Against the finished series' own mean. By a straight line alone one of six was stopped, each wrongly."""
    rng, wrong, far = np.random.default_rng(11), 0, 0
    for _ in range(60):
        series = rng.standard_normal(1000) - 6 * np.linspace(0, 1, 1000) ** 2
        seen = []
        for share in np.linspace(0.05, 0.95, 19):
            mean, error = block_average(series[: int(share * 1000)])
            seen.append(Sofar(float(share), {"x": mean}, {"x": error} if math.isfinite(error) else {}))
        end = float(series.mean())
        wrong += first_stop(guard(limits=[LIMIT | {"value": end}]), seen) is not None
        far += first_stop(guard(limits=[LIMIT | {"value": end - 20}]), seen) is not None
    assert wrong <= 1 and far == 60


def test_what_is_far_beyond_is_stopped_early_and_says_so() -> None:
    seen = looks([5.0, 5.01, 4.99, 5.0, 5.0])
    assert first_stop(guard(limits=[LIMIT]), seen) == pytest.approx(0.5)  # at the third look
    verdict = decide(guard(limits=[LIMIT]), seen[:3])
    assert verdict is not None and verdict.bounds == {"x": "above"} and verdict.threshold == 1.0
    assert "x is 4.99 +- 0.01 after 50% of the run" in verdict.sentence


def test_one_look_says_nothing_of_a_drift_and_stops_nothing() -> None:
    assert decide(guard(limits=[LIMIT]), looks([5.0, 5.0])[:1]) is None


def test_a_value_that_is_on_its_way_to_the_limit_is_let_go_on() -> None:
    assert first_stop(guard(limits=[LIMIT]), looks([5.0, 4.0, 3.0, 2.0, 1.2], error=0.1)) is None
    assert first_stop(guard(limits=[LIMIT]), looks([3.0, 3.5, 4.0, 4.5, 5.0], error=0.1)) is not None


def test_a_limit_from_below() -> None:
    at_least = {"metric": "x", "op": ">=", "value": 9.0}
    verdict = decide(guard(limits=[at_least]), looks([5.0, 5.0, 5.0]))
    assert verdict is not None and verdict.bounds == {"x": "below"}
    assert decide(guard(limits=[at_least]), looks([12.0, 12.0, 12.0])) is None


@pytest.mark.parametrize(("direction", "value", "side"), [("maximize", 1.0, "below"), ("minimize", 30.0, "above")])
def test_cannot_win_counts_the_error_of_the_best(direction: str, value: float, side: str) -> None:
    goal = {"metric": "x", "direction": direction, "best": 10.0, "best_error": 0.1}
    verdict = decide(guard(goal=goal), looks([value] * 4))
    assert verdict is not None and (verdict.reason, verdict.bounds["x"]) == ("cannot_win", side)
    assert decide(guard(goal=goal | {"best_error": 10.0}), looks([value] * 4)) is None
    assert decide(guard(goal=goal | {"best": None}), looks([value] * 4)) is None
    assert decide(guard(goal=goal, stops=["limit"]), looks([value] * 4)) is None


def test_nothing_is_stopped_before_the_least_share_nor_of_what_cannot_be_foretold() -> None:
    seen = looks([5.0] * 5)
    assert decide(guard(limits=[LIMIT], least_share=0.95), seen) is None
    assert decide(guard(limits=[LIMIT], kinds={}), seen) is None
    without = [Sofar(one.share, one.metrics) for one in seen]
    assert decide(guard(limits=[LIMIT]), without) is None  # no error: nothing is known of its mean


def test_what_has_blown_up_is_not_waited_for() -> None:
    early = [Sofar(0.01, {"x": 5.0}, {"x": 0.1}), Sofar(0.02, blown_up="Temp is nan at step 7")]
    verdict = decide(guard(least_share=0.5), early)
    assert verdict is not None and (verdict.reason, verdict.sentence) == ("blown_up", "Temp is nan at step 7")
    # Of one that nobody wants stopped for that, numbers say nothing.
    assert decide(guard(stops=["limit"], limits=[LIMIT], least_share=0.001), early) is None


def test_what_can_only_grow_breaks_a_limit_for_good() -> None:
    seen = [Sofar(0.5, {"x": 2.0})]
    assert decide(guard(limits=[LIMIT], kinds={"x": "rising"}), seen) is not None
    assert decide(guard(limits=[LIMIT], kinds={"x": "falling"}), seen) is None
    assert decide(guard(limits=[LIMIT], kinds={"x": "rising"}), [Sofar(0.5, {"x": 1.0})]) is None


def test_a_speed_is_judged_by_the_noise_of_speeds() -> None:
    goal = {"metric": "x", "direction": "maximize", "best": 100.0, "best_error": 1.0}
    order = guard(goal=goal, kinds={"x": "speed"}, noise={"x": 0.05})
    assert decide(order, looks([50.0] * 3, error=0.0)) is not None
    assert decide(order, looks([90.0] * 3, error=0.0)) is None


def test_more_looks_do_not_make_more_risk() -> None:
    """The error is such that one look at the end alone would stop the run with 99 %; many looks share the risk."""
    one = [Sofar(s, {"x": 1.2}, {"x": 0.01}) for s in (0.17, 0.33, 0.5)]
    many = [Sofar(s, {"x": 1.2}, {"x": 0.01}) for s in (0.17, 0.33, 0.48, 0.49, 0.499, 0.4999, 0.5)]
    loose = guard(limits=[LIMIT], confidence=0.7)
    assert decide(loose, one) is not None
    assert decide(loose, many) is None


@pytest.mark.parametrize(
    "said",
    [{}, {"reason": "tired", "sentence": "", "share": 0.5}, {"reason": "limit", "sentence": "", "share": 2}],
)
def test_what_an_app_says_of_a_stop_is_looked_at(said: dict[str, Any]) -> None:
    with pytest.raises(AppFailed, match="stopped"):
        checked(said)


def test_the_saved_time_is_that_of_the_rest() -> None:
    said = {"reason": "limit", "sentence": "too hot", "share": 0.2}
    assert as_recorded(said, wall_s=10.0, nodes=0.5)["saved_node_seconds"] == pytest.approx(20.0)
    assert as_recorded(said | {"rest_s": 7.0}, wall_s=10.0, nodes=2.0)["saved_node_seconds"] == 14.0
