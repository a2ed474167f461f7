"""The benchmark's problems have the best points that their sources give."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "steering.py"


@pytest.fixture(scope="module")
def steering():
    spec = importlib.util.spec_from_file_location("benchmark_steering", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_hartmann_has_its_published_value_at_its_published_place(steering):
    # Surjanovic and Bingham, Virtual Library of Simulation Experiments: f = -3.32237 at this point.
    place = np.array([0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573])
    assert steering.Hartmann.value(place) == pytest.approx(3.32237, abs=1e-5)
    problem = steering.Hartmann(3)
    turned = np.empty(6)
    turned[problem.order] = place
    turned = np.where(problem.flipped, 1 - turned, turned)
    point = dict(zip(problem.space.names, turned.tolist(), strict=True))
    assert problem.gap(point) == pytest.approx(0.0, abs=1e-5)


def test_gardners_best_point_keeps_the_limit_exactly(steering):
    # sin(x) = -1 and sin(y) = 0.95: sin(x) + y = arcsin(0.95) - 1.
    best = {"a": 1.5 * math.pi, "b": math.asin(0.95) + 1e-9}
    problem = next(p for p in map(steering.Gardner, range(50)) if not p.flipped.any() and not p.exchanged)
    assert problem.gap(best) == pytest.approx(0.0, abs=1e-6)
    assert problem.best == pytest.approx(-0.2532, abs=1e-4)


@pytest.mark.parametrize("name", ["levy10", "rosenbrock20"])
def test_a_function_of_few_active_numbers_is_least_where_they_are_1(steering, name):
    problem = steering.PROBLEMS[name](4)
    x = np.full(len(problem.space.names), 0.9)
    x[problem.numbers] = np.where(problem.flipped, -1, 1) / problem.width
    assert problem.gap(dict(zip(problem.space.names, x.tolist(), strict=True))) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", ["md", "gardner", "mixed", "levy10", "rosenbrock20", "argon", "nacl"])
def test_no_allowed_point_is_better_than_the_best(steering, name):
    problem = steering.PROBLEMS[name](1)
    points = problem.space.sample(np.random.default_rng(0), 400)
    gaps = [gap for point in points if (gap := problem.gap(point)) is not None]
    assert gaps and min(gaps) >= -1e-3, "the tables' best point is that of a grid of 281 x 281"


def test_a_campaign_is_judged_by_the_truth(steering):
    class Knows:
        """Suggests the best point of Gardner's problem and points beside it."""

        def suggest(self, history, n, pending=()):
            x, y = 1.5 * math.pi, math.asin(0.95) + 1e-6
            x, y = (y, x) if problem.exchanged else (x, y)
            x, y = (6 - v if f else v for v, f in zip((x, y), problem.flipped, strict=True))
            return [{"a": x, "b": y}] + [{"a": 6.0 * i / n, "b": 3.0} for i in range(1, n)]

    problem = steering.Gardner(7)
    found = steering.campaign(problem, Knows(), budget=8, batch=4)
    assert found["gap"] == pytest.approx(0.0, abs=1e-5)
    assert found["reached"] == 1
    assert found["crashes"] == 0
    assert found["beyond"] == 6
    assert len(found["cpu"]) == 2
