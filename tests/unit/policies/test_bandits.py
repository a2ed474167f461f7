from __future__ import annotations

import numpy as np
import pytest

from hpcagent.model.objective import at_most, maximize, minimize
from hpcagent.model.parameter import Choice, Float, Int
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies import make_policy
from hpcagent.policies.bandits import UCB, EpsilonGreedy, Thompson

ARMS = Space.of(style=Choice("slow", "fast", "wrong", "crash"))
LIMITED = maximize("speed", subject_to={"drift": at_most(50.0)})
TRUTH = {"slow": (1.0, 10.0), "fast": (2.0, 40.0), "wrong": (9.0, 100.0)}
NAMES = ("epsilon_greedy", "ucb", "thompson")


def run(params, rng, index=0):
    if params["style"] == "crash":
        return Observation(params, completed=False, failure="LostAtoms", index=index)
    speed, drift = TRUTH[params["style"]]
    return Observation(params, metrics={"speed": speed + 0.2 * rng.standard_normal(), "drift": drift}, index=index)


@pytest.mark.parametrize("reward", ["gated", "penalty"])
@pytest.mark.parametrize("name", NAMES)
def test_the_best_arm_that_keeps_the_limit_is_pulled_most(name, reward):
    options = {"weight": 10.0} if reward == "penalty" else {}
    policy = make_policy(name, space=ARMS, objective=LIMITED, seed=2, reward=reward, **options)
    rng = np.random.default_rng(0)
    history = []
    for _ in range(20):
        history += [run(p, rng) for p in policy.suggest(tuple(history), 4)]
    late = [o.params["style"] for o in history[40:]]
    assert late.count("fast") > 0.6 * len(late)


def rewards(objective, runs, **options):
    return UCB(ARMS, objective, **options)._rewards(runs)


def seen(speed, drift, **more):
    return Observation({"style": "slow"}, metrics={"speed": speed, "drift": drift}, **more)


def test_the_gated_reward_is_the_score_or_zero():
    assert rewards(LIMITED, [seen(3.0, 50.0), seen(7.0, 51.0)]) == [3.0, 0.0]


def test_breaking_a_limit_is_not_attractive_when_scores_are_negative():
    slow = minimize("speed", subject_to={"drift": at_most(50.0)})
    best, worst, broken = rewards(slow, [seen(10.0, 1.0), seen(30.0, 1.0), seen(1.0, 99.0)])
    assert best > worst > broken == 0.0


def test_the_penalty_grows_with_the_excess_relative_to_the_limit():
    found = rewards(LIMITED, [seen(3.0, 50.0), seen(3.0, 75.0)], reward="penalty", weight=4.0)
    assert found == [3.0, 3.0 - 4.0 * 0.5]


def test_a_failed_run_has_the_worst_reward():
    failed = Observation({"style": "crash"}, completed=False)
    assert rewards(LIMITED, [seen(3.0, 1.0), failed])[1] == 0.0
    assert rewards(LIMITED, [seen(3.0, 100.0), failed], reward="penalty", weight=9.0)[1] == 3.0 - 9.0


def test_a_distrusted_run_is_no_measurement_of_speed_but_its_limits_count():
    assert rewards(LIMITED, [seen(3.0, 1.0, distrusted=True), seen(3.0, 99.0, distrusted=True)]) == [None, 0.0]


def test_pending_pulls_spread_a_batch():
    """Without counting pending pulls, UCB would name the same arm six times."""
    space = Space.of(x=Float(0, 1))
    policy = UCB(space, maximize("y"), seed=0, buckets=6)
    assert len({p["x"] for p in policy.suggest((), 6)}) == 6
    rng = np.random.default_rng(1)
    points = policy.suggest((), 6) * 3
    history = [Observation(p, metrics={"y": 1 + 0.3 * rng.standard_normal()}) for p in points]
    assert len({p["x"] for p in policy.suggest(history, 12)}) >= 3
    first = policy.suggest(history, 1)
    assert policy.suggest(history, 1, first * 50) != first


def test_an_uncertain_run_weighs_less():
    space = Space.of(c=Choice("a", "b"))
    sure = {"y": 0.01}
    history = [Observation({"c": "b"}, metrics={"y": y}, uncertainty=sure) for y in (0.9, 1.0, 1.1)]
    history += [Observation({"c": "a"}, metrics={"y": y}, uncertainty=sure) for y in (0.4, 0.5, 0.6)]
    history += [Observation({"c": "a"}, metrics={"y": 3.0}, uncertainty={"y": 5.0})]
    policy = EpsilonGreedy(space, maximize("y"), epsilon=0.0)
    assert policy.suggest(history, 1) == [{"c": "b"}]


def test_buckets_are_cut_as_asked_for():
    space = Space.of(timestep=Float(1, 16, log=True), skin=Float(0, 4), k=Int(1, 2), c=Choice("a", "b"))
    policy = Thompson(space, maximize("y"), buckets={"timestep": 2, "skin": 4})
    assert len(policy.cells) == 2 * 4 * 1 * 2
    points = [policy._point(i, np.random.default_rng(0)) for i in range(len(policy.cells))]
    assert {round(p["timestep"], 9) for p in points} == {2.0, 8.0}
    assert {p["skin"] for p in points} == {0.5, 1.5, 2.5, 3.5}
    assert [policy._bucket(p) for p in points] == list(range(len(points)))


def test_jitter_stays_inside_the_bucket():
    space = Space.of(x=Float(0, 1))
    policy = UCB(space, maximize("y"), buckets=4, jitter=True, seed=1)
    points = policy.suggest((), 4)
    assert sorted(int(4 * p["x"]) for p in points) == [0, 1, 2, 3]
    assert all(p["x"] not in (0.125, 0.375, 0.625, 0.875) for p in points)


def test_the_default_has_few_buckets():
    space = Space.of(x=Float(0, 1), y=Float(0, 1), c=Choice("a", "b", "c"))
    assert len(UCB(space, maximize("y")).cells) <= 16
