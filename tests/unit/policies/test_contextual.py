"""Bandits that know the circumstances: what was learned at other sizes helps to choose at this one."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from hpcagent.errors import BadInput
from hpcagent.model.objective import at_most, maximize, minimize
from hpcagent.model.parameter import Choice, Float
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies import make_policy
from hpcagent.policies.base import is_contextual, policy_names
from hpcagent.policies.contextual import _Features, _posterior
from hpcagent.testing import PolicyContract

NAMES = ("linucb", "linear_thompson")
STYLES = Space.of(style=Choice("small", "middle", "large"))
SPEED = maximize("speed")
# Speed is 1000 (N / 11314)^s: below sqrt(4000 x 32000) atoms `small` is best, above it `large`.
EXPONENT = {"small": -1.15, "middle": -1.0, "large": -0.85}
SIZES = (4000, 32000)


class TestLinUCB(PolicyContract):
    factory = partial(make_policy, "linucb", buckets=3)
    steers = True


class TestLinearThompson(PolicyContract):
    factory = partial(make_policy, "linear_thompson", buckets=3)
    steers = True


class TestLinUCBWithContext(PolicyContract):
    factory = partial(make_policy, "linucb", jitter=True, context={"atoms": 4000, "node_type": "gpu"})
    steers = True


def speed(style, atoms):
    return 1000.0 * (atoms / math.sqrt(SIZES[0] * SIZES[1])) ** EXPONENT[style]


def earlier(rng, noise, *, each=2):
    """Two runs of every style at both sizes, in any order."""
    runs = [
        Observation(
            {"style": style},
            metrics={"speed": speed(style, atoms) * (1 + noise * rng.standard_normal())},
            role="earlier",
            batch=-1,
            context={"atoms": atoms},
        )
        for atoms in SIZES
        for style in EXPONENT
        for _ in range(each)
    ]
    return [runs[i] for i in rng.permutation(len(runs))]


def regret(name, atoms, seed, *, noise=0.05, runs=4, **options):
    """Mean share of the speed that is lost by not taking the best style, over the first runs at a size."""
    rng = np.random.default_rng([seed, atoms])
    history = earlier(rng, noise)
    policy = make_policy(name, space=STYLES, objective=SPEED, seed=seed, **options)
    best = max(speed(style, atoms) for style in EXPONENT)
    lost = []
    for index in range(runs):
        style = policy.suggest(tuple(history), 1)[0]["style"]
        lost.append(1 - speed(style, atoms) / best)
        value = speed(style, atoms) * (1 + noise * rng.standard_normal())
        history.append(Observation({"style": style}, metrics={"speed": value}, index=index, batch=index))
    return float(np.mean(lost))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("atoms", [4000, 6000, 24000, 32000])
def test_runs_at_two_sizes_say_what_is_best_at_each_and_between(name, atoms):
    """The best style is the opposite one on the other side of 11 314 atoms; ucb cannot know which side this is."""
    with_context = [regret(name, atoms, seed, context={"atoms": atoms}) for seed in range(20)]
    assert np.mean(with_context) < 0.02
    assert np.mean([w == 0.0 for w in with_context]) > 0.6


@pytest.mark.parametrize("name", NAMES)
def test_with_context_less_is_lost_than_without(name):
    sizes = (4000, 6000, 24000, 32000)
    with_context = [regret(name, n, seed, context={"atoms": n}) for n in sizes for seed in range(20)]
    ucb = [regret("ucb", n, seed) for n in sizes for seed in range(20)]
    assert np.mean(with_context) < 0.25 * np.mean(ucb)


@pytest.mark.parametrize("name", NAMES)
def test_a_word_is_a_feature_too(name):
    rng = np.random.default_rng(4)
    best = {"cpu": "small", "gpu": "large"}
    history = [
        Observation(
            {"style": style},
            metrics={"speed": (2.0 if best[node] == style else 1.0) + 0.05 * rng.standard_normal()},
            role="earlier",
            context={"node_type": node},
        )
        for node in best
        for style in EXPONENT
        for _ in range(2)
    ]
    for node, style in best.items():
        policy = make_policy(name, space=STYLES, objective=SPEED, context={"node_type": node})
        assert policy.suggest(history, 1) == [{"style": style}]


@pytest.mark.parametrize("name", NAMES)
def test_a_limit_that_is_broken_in_this_context_is_kept_away_from(name):
    """The fastest style drifts on the GPU only."""
    limited = maximize("speed", subject_to={"drift": at_most(1.0)})
    history = [
        Observation(
            {"style": style},
            metrics={
                "speed": {"small": 1.0, "middle": 2.0, "large": 3.0}[style],
                "drift": 5.0 if style == "large" and node == "gpu" else 0.2 + 0.01 * i,
            },
            role="earlier",
            context={"node_type": node},
        )
        for node in ("cpu", "gpu")
        for style in EXPONENT
        for i in range(3)
    ]
    for node, style in (("cpu", "large"), ("gpu", "middle")):
        policy = make_policy(name, space=STYLES, objective=limited, context={"node_type": node})
        assert policy.suggest(history, 1) == [{"style": style}]


@pytest.mark.parametrize("name", NAMES)
def test_without_contexts_it_finds_the_best_arm_like_a_bandit(name):
    arms = Space.of(c=Choice("a", "b", "c", "d", "e", "f", "g", "h"))
    truth = dict(zip("abcdefgh", (1.0, 1.1, 1.2, 1.3, 2.0, 1.2, 1.1, 1.0), strict=True))
    share = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        policy = make_policy(name, space=arms, objective=minimize("time"), seed=seed)
        history = []
        for batch in range(15):
            for p in policy.suggest(tuple(history), 4):
                time = (1.0 / truth[p["c"]]) * (1 + 0.1 * rng.standard_normal())
                history.append(Observation(p, metrics={"time": time}, batch=batch, index=len(history)))
        share.append(np.mean([o.params["c"] == "e" for o in history[40:]]))
    assert np.mean(share) > 0.7


def test_a_run_with_a_large_stated_error_says_less():
    def predicted(error):
        runs = [
            Observation({"style": "small"}, metrics={"speed": v}, uncertainty={"speed": e}, index=i)
            for i, (v, e) in enumerate([(1.0, 0.01), (1.02, 0.01), (0.98, 0.01), (3.0, error)])
        ]
        others = [Observation({"style": "large"}, metrics={"speed": v}, index=4) for v in (0.5, 0.52)]
        policy = make_policy("linucb", space=STYLES, objective=SPEED)
        found = [r for r in policy.reasons([*runs, *others], 8) if r.params["style"] == "small"]
        return found[0].predicted["speed"][0]

    assert abs(predicted(3.0) - 1.0) < abs(predicted(0.01) - 1.0) / 2


def test_numbers_are_logarithms_where_they_vary_widely_and_words_are_columns():
    features = _Features([{"atoms": 4000}, {"atoms": 32000}, {"atoms": 4000, "node": "gpu"}, {"t": 1}, {"t": 2}])
    assert features.size == 1 + 2 + 1
    middle = math.exp((2 * math.log(4000) + math.log(32000)) / 3)  # of the three contexts that state it
    assert features.row({"atoms": middle, "t": 1.5})[1:3] == pytest.approx([0.0, 0.0])
    assert features.row({"node": "gpu"}).tolist() == [1.0, 0.0, 0.0, 1.0]


def test_the_posterior_is_that_of_bayesian_linear_regression():
    """Against the textbook in the space of the runs: y ~ N(0, X X' + diag(v)), by brute force."""
    rng = np.random.default_rng(0)
    x, y, v = rng.standard_normal((7, 3)), rng.standard_normal(7), rng.uniform(0.1, 0.5, 7)
    likelihood, mean, root = _posterior(x, y, v)
    k = x @ x.T + np.diag(v)
    assert mean == pytest.approx(x.T @ np.linalg.solve(k, y))
    assert root.T @ root == pytest.approx(np.eye(3) - x.T @ np.linalg.solve(k, x))
    other = y + 0.3
    direct = -0.5 * (y @ np.linalg.solve(k, y) - other @ np.linalg.solve(k, other))
    assert likelihood - _posterior(x, other, v)[0] == pytest.approx(direct)


def test_which_policies_are_contextual_is_known_by_name():
    assert {name for name in NAMES if is_contextual(name)} == set(NAMES)
    assert not is_contextual("ucb")
    assert set(NAMES) <= set(policy_names())


def test_too_many_arms_are_refused():
    with pytest.raises(BadInput, match="100 buckets are too many for linucb \\(at most 64\\)"):
        make_policy("linucb", space=Space.of(x=Float(0, 1), y=Float(0, 1)), objective=SPEED, buckets=10)


@pytest.mark.parametrize("name", NAMES)
def test_a_distrusted_run_says_nothing_of_speed_but_of_the_limits(name):
    limited = maximize("speed", subject_to={"drift": at_most(1.0)})

    def runs(distrusted, drift):
        values = {"small": 1.0, "middle": 1.5, "large": 9.0}
        return [
            Observation(
                {"style": style},
                metrics={"speed": value, "drift": drift if style == "large" else 0.5},
                distrusted=distrusted and style == "large",
                index=i,
            )
            for i, (style, value) in enumerate([*values.items()] * 4)
        ]

    def believed(history):
        policy = make_policy(name, space=STYLES, objective=limited)
        return {r.params["style"]: r for r in policy.reasons(history, 12)}

    assert believed(runs(False, 0.5))["large"].predicted["speed"][0] > 8.0
    trusted_less = believed(runs(True, 0.5))
    if "large" in trusted_less:
        assert trusted_less["large"].predicted["speed"][0] < 3.0
    assert "large" not in believed(runs(True, 50.0))
