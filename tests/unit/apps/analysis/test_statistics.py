"""Statistics of correlated series against hand sums and series with a known answer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcagent.apps.analysis.statistics import (
    block_average,
    fitted_slope,
    fluctuation_ratio,
    statistical_inefficiency,
)


def autoregressive(n: int, phi: float, seed: int) -> np.ndarray:
    """x_i = phi x_{i-1} + noise of unit variance; its statistical inefficiency is (1 + phi) / (1 - phi)."""
    noise = np.random.default_rng(seed).normal(size=n)
    x = np.empty(n)
    x[0] = noise[0] / math.sqrt(1 - phi**2)
    for i in range(1, n):
        x[i] = phi * x[i - 1] + noise[i]
    return x


def test_block_average_of_independent_numbers_has_the_textbook_error() -> None:
    x = np.random.default_rng(0).normal(5.0, 2.0, size=4096)
    mean, error = block_average(x)
    assert mean == pytest.approx(x.mean())
    assert error == pytest.approx(2.0 / math.sqrt(4096), rel=0.15)


@pytest.mark.parametrize("phi", [0.5, 0.9])
def test_block_average_sees_the_correlation(phi: float) -> None:
    # Var of the mean of n: sigma^2 g / n with sigma^2 = 1 / (1 - phi^2), g = (1 + phi) / (1 - phi).
    true = math.sqrt((1 + phi) / (1 - phi) / (1 - phi**2) / 8192)
    errors = [block_average(autoregressive(8192, phi, seed))[1] for seed in range(10)]
    assert np.median(errors) == pytest.approx(true, rel=0.2)


def test_block_average_of_a_series_shorter_than_its_correlation_has_no_error() -> None:
    mean, error = block_average(np.arange(100.0))
    assert mean == 49.5
    assert math.isnan(error)


@pytest.mark.parametrize("x", [[3.0], [3.0, 3.0], [3.0] * 100, [0.1] * 7])
def test_constant_and_single_values_have_a_mean_and_no_error(x: list[float]) -> None:
    mean, error = block_average(x)
    assert mean == pytest.approx(x[0])
    assert math.isnan(error)


@pytest.mark.parametrize("x", [[], [1.0, math.nan], [1.0, math.inf, 2.0]])
def test_nothing_is_known_of_empty_and_broken_series(x: list[float]) -> None:
    assert all(math.isnan(v) for v in block_average(x))
    assert math.isnan(statistical_inefficiency(x))
    assert all(math.isnan(v) for v in fitted_slope(range(len(x)), x))
    assert all(math.isnan(v) for v in fluctuation_ratio(x, x))


@pytest.mark.parametrize(("phi", "g"), [(0.0, 1.0), (0.5, 3.0), (0.9, 19.0)])
def test_statistical_inefficiency_of_an_autoregressive_series(phi: float, g: float) -> None:
    found = [statistical_inefficiency(autoregressive(20_000, phi, seed)) for seed in range(5)]
    assert np.mean(found) == pytest.approx(g, rel=0.12)


def test_statistical_inefficiency_by_hand() -> None:
    # x = 1, 1, -1, -1: mean 0, C(0) = 1, C(1) = (1 - 1 + 1)/3 = 1/3, C(2) = (-1 - 1)/2 < 0: stop.
    # g = 1 + 2 (1 - 1/4)/3 = 1.5
    assert statistical_inefficiency([1, 1, -1, -1]) == pytest.approx(1.5)
    assert math.isnan(statistical_inefficiency([2.0, 2.0, 2.0, 2.0]))
    assert math.isnan(statistical_inefficiency([1.0, 2.0]))


def test_fitted_slope_by_hand() -> None:
    # y = 0, 2, 2, 4 at t = 0..3: Sxx = 5, Sxy = -1.5*0 - 0.5*2 + 0.5*2 + 1.5*4 = 6, slope 1.2;
    # residuals -0.2, 0.6, -0.6, 0.2: SSR 0.8, error sqrt(0.8 / 2 / 5); C(1) < 0, so that g = 1.
    slope, error = fitted_slope([0, 1, 2, 3], [0, 2, 2, 4])
    assert slope == pytest.approx(1.2)
    assert error == pytest.approx(math.sqrt(0.08))


def test_the_error_of_a_slope_grows_with_correlation_to_its_true_size() -> None:
    t = np.arange(2000.0)
    slopes, errors = zip(*(fitted_slope(t, autoregressive(2000, 0.9, seed)) for seed in range(200)), strict=True)
    assert np.std(slopes) == pytest.approx(np.mean(errors), rel=0.2)


def test_slopes_that_cannot_have_an_error_have_none() -> None:
    assert fitted_slope([0, 1], [0, 3])[0] == 3
    assert math.isnan(fitted_slope([0, 1], [0, 3])[1])
    slope, error = fitted_slope(np.arange(10) * 0.1, np.arange(10) * 0.3)
    assert slope == pytest.approx(3.0) and math.isnan(error)
    slope, error = fitted_slope([0, 1, 2], [-57.0, -57.0, -57.0])
    assert slope == 0 and math.isnan(error)
    assert all(math.isnan(v) for v in fitted_slope([1, 1, 1], [0, 1, 2]))
    with pytest.raises(ValueError, match="2 times for 3 values"):
        fitted_slope([1, 2], [1, 2, 3])


def test_fluctuation_ratio_by_hand() -> None:
    # rms of 0, 1, 0, -1, 0 is sqrt(2/5); of 0, 10, 0, 10, 0 it is 10 sqrt(0.4 * 0.6).
    ratio, _ = fluctuation_ratio([0, 1, 0, -1, 0], [0, 10, 0, 10, 0])
    assert ratio == pytest.approx(math.sqrt(0.4) / (10 * math.sqrt(0.24)))


def test_the_jackknife_error_of_a_fluctuation_ratio_is_its_scatter() -> None:
    found = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        found.append(fluctuation_ratio(0.01 * rng.normal(size=500), rng.normal(size=500)))
    ratios, errors = zip(*found, strict=True)
    assert np.mean(ratios) == pytest.approx(0.01, rel=0.02)
    assert np.mean(errors) == pytest.approx(np.std(ratios), rel=0.25)


def test_fluctuation_ratios_that_cannot_be_known() -> None:
    assert all(math.isnan(v) for v in fluctuation_ratio([1, 2, 3], [5, 5, 5]))
    ratio, error = fluctuation_ratio([5, 5, 5, 5], [1, 2, 1, 2])
    assert ratio == 0 and math.isnan(error)
    assert math.isnan(fluctuation_ratio([1, 2, 1], [1, 3, 2])[1])
    with pytest.raises(ValueError, match="1 total energies for 2"):
        fluctuation_ratio([1], [1, 2])
