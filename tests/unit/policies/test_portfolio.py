"""A ladder of policies: the next one serves where one cannot, and it is said why."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.model.objective import maximize
from hpcagent.model.parameter import Choice, Float
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies import make_policy
from hpcagent.policies.sweeps import Sobol
from hpcagent.testing import PolicyContract
from hpcagent.testing.policy_suite import SPACES

SPACE = Space.of(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
GOAL = maximize("speed")
SINGULAR = np.zeros((2, 2))


class Singular(Sobol):
    """A model that fails to fit as soon as there is anything to fit it to."""

    def suggest(self, history, n, pending=()):
        if history:
            np.linalg.cholesky(SINGULAR)
        return super().suggest(history, n, pending)


class Outside(Sobol):
    def suggest(self, history, n, pending=()):
        return [{"x": 2.0, "y": 0.5}] * n


class NotANumber(Sobol):
    def suggest(self, history, n, pending=()):
        return [{**p, "x": float("nan")} for p in super().suggest(history, n, pending)]


class Stuck(Sobol):
    def suggest(self, history, n, pending=()):
        return super().suggest((), 1) * n


class Few(Sobol):
    def suggest(self, history, n, pending=()):
        return super().suggest(history, max(0, n - 1), pending)


class Silent(Sobol):
    def suggest(self, history, n, pending=()):
        return []


def path(policy):
    return f"{__name__}:{policy.__name__}"


class TestWithARungThatFails(PolicyContract):
    factory = partial(make_policy, "portfolio", ladder=[path(Singular), "quality_first", "sobol"])
    steers = True

    # The rung that serves keeps the contract after every history and in every space by itself (test_contract.py).
    @pytest.fixture(params=["empty", "failed third", "with references"])
    def pair(self, space: Space, request: pytest.FixtureRequest) -> tuple[Space, str]:
        return space, str(request.param)

    @pytest.fixture(params=["mixed", "tiny"])
    def space(self, request: pytest.FixtureRequest) -> Space:
        return SPACES[str(request.param)]


class TestDefault(PolicyContract):
    factory = partial(make_policy, "portfolio")
    steers = True

    # Its first rung does so in test_bayes.py; here are those after which it may not serve, and another one does.
    @pytest.fixture(params=["empty", "failed third", "all failed", "without metrics", "huge and negative"])
    def pair(self, space: Space, request: pytest.FixtureRequest) -> tuple[Space, str]:
        return space, str(request.param)

    @pytest.fixture(params=["mixed", "conditional"])
    def space(self, request: pytest.FixtureRequest) -> Space:
        return SPACES[str(request.param)]


def portfolio(*ladder, space=SPACE, **options):
    return make_policy("portfolio", space=space, objective=GOAL, seed=3, ladder=list(ladder), **options)


def ran(points):
    return [Observation(p, metrics={"speed": 1.0 + p["x"]}, index=i) for i, p in enumerate(points)]


HISTORY = ran(Sobol(SPACE, seed=11).suggest([], 6))


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (Singular, "LinAlgError: Matrix is not positive definite"),
        (Outside, "BadInput: x=2 is outside [0, 1]"),
        (NotANumber, "BadInput: x=nan is not finite"),
        (Stuck, "it gave the same point twice"),
        (Few, "it gave 2 of 3 points"),
        (Silent, "it gave 0 of 3 points"),
    ],
)
def test_the_next_policy_serves_where_one_cannot_and_says_why(broken, why):
    policy = portfolio(path(broken), "quality_first")
    alone = make_policy("quality_first", space=SPACE, objective=GOAL, seed=3)
    assert policy.suggest(HISTORY, 3) == alone.suggest(HISTORY, 3)
    reasons = policy.reasons(HISTORY, 3)
    assert [r.params for r in reasons] == alone.suggest(HISTORY, 3)
    for reason in reasons:
        assert reason.text.startswith(f"quality_first suggested it, because {path(broken)} did not serve: {why}")
        assert reason.role == "quality_first (fallback)"


def test_a_policy_that_serves_is_not_passed_over():
    policy = portfolio(path(Singular), "quality_first")
    assert policy.suggest([], 3) == Sobol(SPACE, seed=3).suggest([], 3)
    assert {(r.role, r.text) for r in policy.reasons([], 3)} == {
        (path(Singular), f"{path(Singular)} suggested it.")
    }


def test_a_failed_policy_is_asked_again_the_next_time():
    """Nothing is remembered: the same question has the same answer, whatever was asked before."""
    policy = portfolio(path(Singular), "quality_first")
    first = policy.suggest([], 3)
    policy.suggest(HISTORY, 3)
    assert policy.suggest([], 3) == first


def test_a_bandit_may_pull_an_arm_twice():
    space = Space.of(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    policy = portfolio({"name": "ucb", "buckets": 1}, "sobol", space=space)
    assert policy.suggest([], 3) == [{"x": 0.5, "y": 0.5}] * 3


def test_what_is_left_of_a_finite_space_is_enough():
    space = Space.of(c=Choice("a", "b", "c"))
    policy = portfolio("grid", "sobol", space=space)
    assert len(policy.suggest([], 5)) == 3


def test_the_reasons_of_the_policy_that_served_are_kept():
    arms = Space.of(c=Choice("a", "b"))
    runs = [
        Observation({"c": c}, metrics={"speed": v}, index=i) for i, (c, v) in enumerate([("a", 1.0), ("b", 9.0)])
    ]
    reason = portfolio(path(Silent), "linucb", space=arms).reasons(runs, 1)[0]
    assert "speed" in reason.predicted
    assert reason.role == "linucb (fallback): improvement"
    assert reason.text.endswith("from 2 run(s).")


def test_where_no_policy_can_suggest_anything_all_reasons_are_told():
    policy = portfolio(path(Outside), path(Singular))
    with pytest.raises(
        HpcAgentError, match=r"(?s)Outside did not serve: BadInput.*Singular did not serve: LinAlg"
    ):
        policy.suggest(HISTORY, 2)


def test_where_no_model_fits_the_rules_serve_in_place_of_more_sobol_points():
    """All but two runs failed: too few for a model, but the rules know where runs failed."""
    failed = [Observation(p, completed=False, index=i) for i, p in enumerate(Sobol(SPACE, seed=5).suggest([], 8))]
    history = [*failed, *ran([{"x": 0.1, "y": 0.1}, {"x": 0.15, "y": 0.2}])]
    reasons = portfolio("bayes", "quality_first", "sobol").reasons(history, 3)
    assert [r.params for r in reasons] == portfolio("quality_first").suggest(history, 3)
    why = "quality_first suggested it, because bayes did not serve: NoFit: 2 points with a completed run"
    assert all(r.text.startswith(why) for r in reasons)


def test_a_ladder_may_say_that_a_policy_goes_on_without_a_model():
    history = ran([{"x": 0.1, "y": 0.1}]) + [
        Observation(p, completed=False) for p in Sobol(SPACE, seed=5).suggest([], 8)
    ]
    policy = portfolio({"name": "bayes", "strict": False}, "quality_first")
    assert {r.role for r in policy.reasons(history, 2)} == {"bayes: space-filling"}


def test_an_interrupt_is_no_reason_to_go_on():
    class Interrupted(Sobol):
        def suggest(self, history, n, pending=()):
            raise KeyboardInterrupt

    policy = portfolio("sobol")
    policy.rungs = (type(policy.rungs[0])("x", Interrupted(SPACE, seed=0), SPACE), *policy.rungs)
    with pytest.raises(KeyboardInterrupt):
        policy.suggest([], 1)


def test_policies_that_know_no_fidelity_suggest_at_its_last_level():
    space = Space.of(x=Float(0.0, 1.0), mesh=Choice("coarse", "fine"))
    fidelity = {"parameter": "mesh", "levels": ["coarse", "fine"]}
    policy = portfolio({"name": "screen", "points": 1}, "sobol", space=space, fidelity=fidelity)
    assert {p["mesh"] for p in policy.suggest([], 1)} == {"coarse"}
    assert {p["mesh"] for p in policy.suggest([], 4)} == {"fine"}


@pytest.mark.parametrize(
    ("ladder", "match"),
    [
        ([], "must be a list of policies"),
        ("bayes", "must be a list of policies"),
        ([3], "neither a policy's name nor a table"),
        ([{"buckets": 3}], "neither a policy's name nor a table"),
        (["quality_frist"], "did you mean"),
        ([{"name": "ucb", "bucket": 3}], "no option 'bucket'"),
        (["portfolio"], "cannot be a part of a portfolio"),
    ],
)
def test_what_is_wrong_with_the_ladder_is_told_at_once(ladder, match):
    with pytest.raises(BadInput, match=match):
        make_policy("portfolio", space=SPACE, objective=GOAL, ladder=ladder)


def test_a_point_that_is_pending_is_given_twice_too():
    policy = portfolio(path(Stuck), "quality_first")
    pending = policy.suggest([], 1)
    assert policy.reasons([], 1, pending)[0].text.startswith("quality_first suggested it")


def test_where_there_are_no_others_a_point_may_come_again():
    space = Space.of(c=Choice("a", "b"))
    assert len(portfolio(path(Stuck), space=space).suggest([], 5)) == 5
