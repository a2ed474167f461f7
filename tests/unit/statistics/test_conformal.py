"""Conformal quantiles, folds of groups, distances and errors of errors, against hand sums and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcagent.statistics.conformal import conformal_quantile, coverage_range, fewest, folds, nearest


def test_the_quantile_is_the_place_that_the_theorem_names() -> None:
    # n = 9, coverage 0.8: ceil(10 * 0.8) = the 8th smallest.
    assert conformal_quantile([9, 8, 7, 6, 5, 4, 3, 2, 1], 0.8) == 8
    assert conformal_quantile(range(1, 20), 0.95) == 19
    assert conformal_quantile(range(1, 19), 0.95) == math.inf


def test_so_few_scores_are_just_enough() -> None:
    for coverage in (0.5, 0.8, 0.9, 0.95, 0.99):
        n = fewest(coverage)
        assert math.isfinite(conformal_quantile(range(n), coverage))
        assert conformal_quantile(range(n - 1), coverage) == math.inf


def test_a_further_score_is_inside_as_often_as_promised() -> None:
    rng = np.random.default_rng(0)
    inside = [rng.exponential() <= conformal_quantile(rng.exponential(size=39), 0.95) for _ in range(4000)]
    # Exactly ceil(40 * 0.95) / 40 = 0.95; four standard errors of 4000 trials are 0.014.
    assert np.mean(inside) == pytest.approx(0.95, abs=0.014)


def test_a_share_of_nothing_and_of_all_has_the_ends_of_clopper_and_pearson() -> None:
    # All of n: the lower end is (alpha / 2)^(1 / n).
    assert coverage_range(1.0, 20) == (pytest.approx(0.025 ** (1 / 20)), 1.0)
    assert coverage_range(0.0, 20) == (0.0, pytest.approx(1 - 0.025 ** (1 / 20)))


def test_no_group_is_in_two_folds_and_folds_are_alike_in_size() -> None:
    groups = [f"g{i % 12}" for i in range(120)]
    found = folds(groups, 4, np.random.default_rng(3))
    for name in set(groups):
        assert len({int(f) for f, g in zip(found, groups, strict=True) if g == name}) == 1
    assert np.bincount(found).tolist() == [30, 30, 30, 30]


def test_the_distance_is_that_to_the_nearest_row() -> None:
    x, to = np.array([[3.0, 4.0], [10.0, 10.0]]), np.array([[0.0, 0.0], [10.0, 10.0]])
    assert nearest(x, to).tolist() == pytest.approx([5 / math.sqrt(2), 0.0])
