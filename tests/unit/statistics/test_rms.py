"""Two stated errors of a root mean square hold the true one, also where squares are skewed and few."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcagent.statistics.rms import rms_error

# Kind -> (draws n errors, true rms): variance 1; 3 / (3 - 2); E[exp(2 z)] = exp(2).
KINDS = {
    "normal": (lambda rng, n: rng.normal(size=n), 1.0),
    "t3": (lambda rng, n: rng.standard_t(3, n), math.sqrt(3)),
    "lognormal scale": (lambda rng, n: rng.normal(size=n) * np.exp(rng.normal(size=n)), math.e),
}


@pytest.mark.parametrize("n", [8, 30, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_two_errors_hold_the_true_rms_for_each_kind_and_number_of_errors(kind: str, n: int) -> None:
    draw, truth = KINDS[kind]
    rng = np.random.default_rng(7)
    held = []
    for _ in range(100):
        rms, error = rms_error(list(draw(rng, n) ** 2), list(range(n)))
        held.append(abs(rms - truth) <= 2 * error)
    assert np.mean(held) >= 0.9  # of 95 % in the long run; 0.90 is 2.3 standard errors below


def test_the_error_falls_with_the_number_and_has_the_unit_of_the_errors() -> None:
    errors = np.random.default_rng(3).normal(size=2000)
    one, many = rms_error(list(errors[:50] ** 2), list(range(50))), rms_error(list(errors**2), list(range(2000)))
    # Of normal errors the rms has the standard error rms / sqrt(2 n).
    assert many[1] == pytest.approx(1 / math.sqrt(4000), rel=0.3) and one[1] > 3 * many[1]
    thousand = rms_error(list((1000 * errors[:50]) ** 2), list(range(50)))
    assert thousand == pytest.approx((1000 * one[0], 1000 * one[1]))


def test_errors_that_are_all_zero_have_the_error_zero() -> None:
    assert rms_error([0.0, 0.0, 0.0], ["a", "b", "c"]) == (0.0, 0.0)


def test_twice_the_error_of_an_rms_error_holds_the_truth_though_rows_of_a_group_are_alike() -> None:
    rng = np.random.default_rng(1)
    held, plain = [], []
    for _ in range(100):
        # Every group has errors of a size of its own: six groups of thirty rows.
        sizes = rng.uniform(0.5, 1.5, 6)
        squares = [(size * rng.normal()) ** 2 for size in sizes for _ in range(30)]
        truth = math.sqrt(1.0 + 1 / 12)
        rms, error = rms_error(squares, [i for i in range(6) for _ in range(30)])
        held.append(abs(rms - truth) <= 2 * error)
        rms, error = rms_error(squares, list(range(180)))
        plain.append(abs(rms - truth) <= 2 * error)
    assert np.mean(held) >= 0.93
    assert np.mean(plain) < 0.9  # rows for groups: too sure


def test_one_value_has_no_error() -> None:
    rms, error = rms_error([4.0], ["a"])
    assert rms == 2.0 and math.isnan(error)
