"""Noise that differs from region to region: what errors, answers and repeats make of it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from hpcagent.model.objective import maximize, minimize
from hpcagent.model.parameter import Choice, Float
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.base import make_policy
from hpcagent.statistics.features import Features
from hpcagent.statistics.recommend import estimates, recommend
from hpcagent.statistics.surrogate import Surrogate

SPACE = Space.of(x=Float(0, 1), y=Float(0, 1))
SEEDS = 24


def speed(p):
    """Smooth; the best point (12.5 at x = 0.56, y = 0) has quiet ones beside it that are 1 % less."""
    return 10 + 2 * math.sin(3 * p["x"]) - 2 * (p["x"] - 0.3) ** 2 + math.cos(4 * p["y"])


def halves(p):
    return 0.02 if p["x"] < 0.5 else 0.25


def growing(p):
    return 0.01 * math.exp(3.2 * p["x"])  # from 1 to 25 %


def even(p):
    return 0.08


def spread(noise, *, seed, runs=40):
    """Runs that cover the space, with relative noise `noise(point)`."""
    rng = np.random.default_rng(seed)
    points = make_policy("sobol", space=SPACE, objective=maximize("v"), seed=seed).suggest([], runs)
    return [
        Observation(p, metrics={"v": speed(p) * (1 + noise(p) * rng.standard_normal())}, index=i)
        for i, p in enumerate(points)
    ]


def fitted(noise, seed):
    return Surrogate.fit(SPACE, maximize("v"), spread(noise, seed=seed)).goals[0]


def test_an_answer_is_not_lured_into_a_noisy_region_and_its_error_holds():
    """2 % of noise in one half, 25 % in the other: with one noise for both 12 of 24 errors hold, 14 are lured."""
    best = max(speed({"x": x, "y": 0.0}) for x in np.linspace(0, 1, 201))
    held, lured = 0, 0
    for seed in range(SEEDS):
        answer = recommend(spread(halves, seed=seed), maximize("v"), space=SPACE).best
        truth = speed(answer.params)
        held += abs(answer.expected["v"] - truth) <= 2 * answer.expected_error["v"]
        lured += answer.params["x"] >= 0.5 and truth < 0.95 * best
    assert held >= 0.9 * SEEDS
    assert lured <= 1


def test_the_noise_of_a_run_is_that_of_its_region():
    rows = Features(SPACE).rows([{"x": 0.1, "y": 0.5}, {"x": 0.9, "y": 0.5}])
    found = np.array(
        [m.one_run(rows) / m.scale.slope(m.values(rows)[0]) for m in (fitted(halves, i) for i in range(8))]
    )
    quiet, loud = np.median(found, axis=0) / [speed({"x": x, "y": 0.5}) for x in (0.1, 0.9)]
    assert quiet == pytest.approx(0.02, rel=0.5) and loud == pytest.approx(0.25, rel=0.5)


def test_even_noise_stays_one_number():
    assert all(fitted(even, seed).gp.uneven is None for seed in range(SEEDS))


def test_an_exact_function_that_is_steeper_in_one_corner_has_no_noise():
    """Rosenbrock's function, whose values differ by four orders of magnitude."""

    def value(p):
        x, y = 4 * p["x"] - 2, 4 * p["y"] - 1
        return 100 * (y - x * x) ** 2 + (1 - x) ** 2

    for seed in range(4):
        runs = [replace(o, metrics={"v": value(o.params)}) for o in spread(even, seed=seed)]
        assert Surrogate.fit(SPACE, minimize("v"), runs).goals[0].gp.uneven is None


def test_one_strange_value_makes_no_noisy_region():
    for seed in range(4):
        runs = spread(even, seed=seed)
        odd = replace(runs[20], metrics={"v": 0.4 * runs[20].metrics["v"]})
        model = Surrogate.fit(SPACE, maximize("v"), [*runs[:20], odd, *runs[21:]])
        assert model.goals[0].gp.uneven is None


def test_noise_that_grows_is_found_and_fewer_errors_are_false():
    """Errors at all points run hold in 62 % with one noise for all."""
    held, found = [], 0
    for seed in range(8):
        s = Surrogate.fit(SPACE, maximize("v"), spread(growing, seed=seed))
        value, error = s.goals[0].values(s.rows)
        held += list(np.abs(value - [speed(p) for p in s.points]) <= 2 * error)
        found += s.goals[0].gp.uneven is not None
    assert np.mean(held) >= 0.8 and found >= 6


def test_repeats_tell_where_noise_is_and_exact_runs_have_none():
    """Ten runs each of two words, one a hundred times as noisy as the other: the errors of their means differ so."""
    space = Space.of(word=Choice("quiet", "loud", "b", "c", "d", "e"), x=Float(0, 1))
    rng = np.random.default_rng(1)
    runs = [
        Observation({"word": word, "x": 0.5}, metrics={"v": 10 + size * rng.standard_normal()})
        for word, size in [("quiet", 0.01), ("loud", 1.0)] * 10
    ] + [
        Observation({"word": word, "x": x}, metrics={"v": 10 + 0.01 * rng.standard_normal()})
        for word, x in zip("bcdebcde", np.linspace(0, 1, 8), strict=True)
    ]
    known = {e.params["word"]: e for e in estimates(runs, maximize("v"), space=space)}
    assert known["loud"].uncertainty["v"] == pytest.approx(1 / math.sqrt(10), rel=0.5)
    assert known["quiet"].uncertainty["v"] < 0.02
    exact = Surrogate.fit(space, maximize("v"), runs, noise={"v": 0.0})
    assert exact.goals[0].gp.uneven is None


def test_the_slope_by_the_noise_is_the_derivative_of_the_density():
    density = fitted(even, 0).gp.density
    theta, times = density.top, np.exp(np.linspace(-1, 1, density.n))
    value, slope, _ = density.louder(times).by_noise(theta)
    for i in (0, density.n // 2):
        step = np.where(np.arange(density.n) == i, 1e-5, 0.0)
        up = density.louder(times * np.exp(step)).by_noise(theta)[0]
        assert (up - value) / 1e-5 == pytest.approx(slope[i], rel=1e-3, abs=1e-4)
    assert density.by_noise(theta)[0] == pytest.approx(density.evidence)
