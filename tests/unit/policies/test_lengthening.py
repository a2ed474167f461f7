"""When `bayes` has a run go on, and when it would rather have a further run or a new point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hpcagent.errors import BadInput
from hpcagent.model.objective import maximize
from hpcagent.model.parameter import Choice, Float
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.bayes import Bayes
from hpcagent.policies.lengthening import Costs
from hpcagent.policies.longer import Longer

SPACE = Space.of(x=Choice("a", "b", "c", "d"))


def history(*, within: float, between: float, start_s: float, repeats: int = 1) -> list[Observation]:
    """Runs of four arms, a and b nearly as good: each with an error of its own series and one of its start."""
    rng = np.random.default_rng(5)
    truth = {"a": 1.0, "b": 0.98, "c": 0.2, "d": 0.0}
    return [
        Observation(
            {"x": arm},
            metrics={"y": truth[arm] + rng.normal() * within + rng.normal() * between},
            uncertainty={"y": within},
            index=i,
            wall_s=start_s + 1.0,
            extendable_s=1.0,
        )
        for i, arm in enumerate([*truth] * repeats)
    ]


def test_where_a_start_is_dear_a_run_goes_on_and_says_why() -> None:
    runs = history(within=0.2, between=0.0, start_s=9.0)
    policy = Bayes(SPACE, maximize("y"), initial=4, extend=True)
    (reason,) = policy.reasons(runs, 1)
    assert reason.role == "extend" and isinstance(reason.params, Longer)
    assert reason.params["x"] in ("a", "b") and runs[reason.params.run].params == reason.params
    assert reason.numbers["cost_in_runs"] == pytest.approx(0.1) and "goes on to 2 times" in reason.text
    # Its own error falls by the square root of two, as all of it is of its own series.
    assert reason.numbers["error_by_runs"] / reason.numbers["error_then"] == pytest.approx(np.sqrt(2), rel=0.02)
    # A pure function of the history, and without the option as ever.
    (point,) = policy.suggest(runs, 1)
    assert isinstance(point, Longer) and point == reason.params
    for plain in (Bayes(SPACE, maximize("y"), initial=4), Bayes(SPACE, maximize("y"), initial=4, extend=False)):
        assert not isinstance(plain.suggest(runs, 1)[0], Longer)


def test_where_starts_decide_the_point_is_run_again() -> None:
    runs = history(within=0.01, between=0.3, start_s=1.0, repeats=4)
    (reason,) = Bayes(SPACE, maximize("y"), initial=4, extend=True).reasons(runs, 1)
    assert reason.role == "repeat" and not isinstance(reason.params, Longer)


def test_only_what_can_go_on_is_asked_to() -> None:
    runs = history(within=0.2, between=0.0, start_s=9.0)
    policy = Bayes(SPACE, maximize("y"), initial=4, extend=True)
    barred = (
        [replace(o, extendable_s=None) for o in runs],
        [replace(o, role="told", origin="lab") for o in runs],
        [replace(o, times=1024.0) for o in runs],
    )
    for one in barred:
        assert not any(isinstance(p, Longer) for p in policy.suggest(one, 3))
    # What is under way at a point is waited for.
    first = policy.suggest(runs, 1)[0]
    second = policy.suggest(runs, 1, pending=[dict(first)])[0]
    assert not isinstance(second, Longer) or second != first


def test_costs_count_the_start_of_a_new_run_and_only_what_a_longer_one_adds() -> None:
    runs = history(within=0.2, between=0.0, start_s=3.0)
    went_on = replace(runs[0], role="extended", times=2.0, wall_s=1.0, index=9)
    costs = Costs.of([*runs[1:], went_on])
    assert costs.usual == 4.0
    assert costs.longer(runs[1], 2.0) == pytest.approx(0.25)
    assert costs.longer(runs[1], 8.0) == pytest.approx(1.75)
    assert costs.longer(went_on, 2.0) == pytest.approx(0.5)  # from twice to four times the length
    assert costs.again([went_on]) == 1.0


def test_the_length_is_what_is_worth_most_for_its_cost_and_what_the_contract_allows() -> None:
    def known(
        values: Sequence[float], within: float, start_s: float, most: float | None = None
    ) -> list[Observation]:
        runs = history(within=within, between=0.0, start_s=start_s)
        return [replace(o, metrics={"y": y}, times_at_most=most) for o, y in zip(runs, values, strict=True)]

    def factor(runs: list[Observation]) -> float | None:
        (point,) = Bayes(SPACE, maximize("y"), initial=4, extend=True).suggest(runs, 1)
        return point.factor if isinstance(point, Longer) else None

    # Two alike: each half of an error tells something. Two that are four errors apart: little could change the
    # answer, so only much could.
    assert factor(known((1.0, 0.98, 0.2, 0.0), 0.1, 99.0)) == 2.0
    assert factor(known((1.0, 0.6, 0.2, 0.0), 0.1, 99.0)) == 8.0
    between = (1.0, 0.5, 0.4, 0.3)
    assert factor(known(between, 0.2, 9.0)) == 4.0
    # The contract's range of the length is not passed: what it does not allow is not asked for.
    assert factor(known(between, 0.2, 9.0, most=3.9)) == 2.0
    assert factor(known(between, 0.2, 9.0, most=1.9)) is None


def test_extend_is_refused_where_it_means_nothing() -> None:
    with pytest.raises(BadInput, match="true or false"):
        Bayes(SPACE, maximize("y"), extend="yes")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="2 goals"):
        Bayes(Space.of(x=Float(0, 1)), maximize("y", "z"), extend=True)
