"""Statistics of correlated series against hand sums and series with a known answer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcagent.statistics.timeseries import (
    block_average,
    fitted_slope,
    fluctuation_ratio,
    statistical_inefficiency,
    windowed_fluctuation,
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


def covered(true: float, found: list[tuple[float, float]]) -> float:
    """Share of estimates whose +-2 errors hold the true value; nearly every one of them must state an error."""
    values, errors = np.array(found).T
    stated = np.isfinite(errors)
    assert stated.mean() > 0.95
    return float(np.mean(np.abs(values - true)[stated] <= 2 * errors[stated]))


@pytest.mark.parametrize("samples", [200, 2000])
@pytest.mark.parametrize("independent", [12, 50, 200])
def test_the_error_of_a_mean_covers_the_truth_as_often_as_two_sigma_should(samples: int, independent: int) -> None:
    # Samples that count as one: g = (1 + phi) / (1 - phi), so phi = (g - 1) / (g + 1).
    g = samples / independent
    phi = (g - 1) / (g + 1)
    found = [block_average(autoregressive(samples, phi, seed)) for seed in range(200)]
    assert 0.92 <= covered(0.0, found) <= 0.995
    values, errors = np.array(found).T
    assert 0.9 < np.nanmedian(errors) / values.std() < 1.6


def test_a_mean_of_less_than_one_correlation_time_has_no_error() -> None:
    # phi = 0.999: a correlation time of 1000 samples, ten times the series.
    said = [math.isfinite(block_average(autoregressive(100, 0.999, seed))[1]) for seed in range(50)]
    assert np.mean(said) < 0.4


def test_fitted_slope_by_hand() -> None:
    # y = 0, 2, 2, 4 at t = 0..3: Sxx = 5, Sxy = -1.5*0 - 0.5*2 + 0.5*2 + 1.5*4 = 6, slope 1.2.
    slope, error = fitted_slope([0, 1, 2, 3], [0, 2, 2, 4])
    assert slope == pytest.approx(1.2)
    assert math.isnan(error)  # four points cannot tell noise from a walk


@pytest.mark.parametrize("walk", [0.0, 0.05, 0.2, 1.0, math.inf])
def test_the_error_of_a_slope_covers_no_drift_also_where_the_series_walks(walk: float) -> None:
    # Noise of unit variance with a walk on top, from none to nothing else; the residuals' own error covers a walk's
    # slope in 37 % of series.
    t = 0.5 * np.arange(400)
    found = []
    for seed in range(200):
        steps = np.random.default_rng([seed, 7]).normal(size=t.size)
        noise = autoregressive(t.size, 0.5, seed)
        found.append(fitted_slope(t, np.cumsum(steps) if math.isinf(walk) else noise + walk * np.cumsum(steps)))
    assert covered(0.0, found) >= 0.88


def test_the_error_of_the_slope_of_a_walk_has_its_known_size() -> None:
    # Var of the least-squares slope of a walk that gains D in a unit of time, over T: 6/5 D / T.
    t = np.arange(1000.0)
    walks = [np.cumsum(np.random.default_rng(seed).normal(size=1000)) for seed in range(200)]
    slopes, errors = np.array([fitted_slope(t, walk) for walk in walks]).T
    true = math.sqrt(1.2 / 1000)
    assert slopes.std() == pytest.approx(true, rel=0.15)
    assert np.median(errors) == pytest.approx(true, rel=0.25)


def test_the_error_of_a_slope_grows_with_correlation() -> None:
    t = np.arange(2000.0)
    slopes, errors = np.array([fitted_slope(t, autoregressive(2000, 0.9, seed)) for seed in range(200)]).T
    # A short series cannot exclude a slow walk below its noise: never too small, at most 3.5 times too large.
    assert 1.0 < np.mean(errors) / slopes.std() < 3.5
    # In other units of time and value it is the same error.
    scaled = fitted_slope(1e-3 * t, 1e4 * autoregressive(2000, 0.9, 0))
    assert scaled == pytest.approx((1e7 * slopes[0], 1e7 * errors[0]))


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


def test_the_error_of_a_fluctuation_ratio_is_its_scatter() -> None:
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


def oscillator(frequency: float, step: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Total and kinetic energy of a unit mass on a spring under velocity Verlet."""
    x, v = 1.0, 0.0
    total, kinetic = [], []
    for _ in range(steps):
        v -= 0.5 * step * frequency**2 * x
        x += step * v
        v -= 0.5 * step * frequency**2 * x
        kinetic.append(0.5 * v * v)
        total.append(kinetic[-1] + 0.5 * frequency**2 * x * x)
    return np.array(total), np.array(kinetic)


@pytest.mark.parametrize("step", [0.05, 0.1, 0.2])
def test_fluctuation_within_windows_is_the_difference_to_the_shadow_energy(step: float) -> None:
    # M. E. Tuckerman, Statistical Mechanics, eq. 3.13.3: velocity Verlet keeps p^2/(2m(1 - (w dt)^2/4)) + m w^2 x^2/2,
    # so that E - shadow is -(w dt)^2/4 of (nearly) the kinetic energy.
    total, kinetic = oscillator(2.0, step, 2000)
    for rows in (40, 63.7, 500):
        assert windowed_fluctuation(total, kinetic, rows)[0] == pytest.approx((2.0 * step) ** 2 / 4, rel=0.05)


def test_fluctuation_within_windows_does_not_grow_with_the_length_of_a_walk() -> None:
    rng = np.random.default_rng(0)
    kinetic, noise = rng.normal(size=32_000), 0.01 * rng.normal(size=32_000)
    energy = noise + np.cumsum(1e-3 * rng.normal(size=32_000))
    short, long = (windowed_fluctuation(energy[:n], kinetic[:n], 20) for n in (2000, 32_000))
    # var within m samples of a walk of variance s^2 a step: s^2 (m + 1) / 6.
    true = math.sqrt(1e-4 + 1e-6 * 21 / 6)
    for ratio, error in (short, long):
        assert abs(ratio - true) < 3 * error < 0.1 * true
    assert fluctuation_ratio(energy, kinetic)[0] > 2 * fluctuation_ratio(energy[:2000], kinetic[:2000])[0]


def test_windows_that_do_not_fit_have_no_fluctuation() -> None:
    x = np.random.default_rng(0).normal(size=30)
    assert math.isnan(windowed_fluctuation(x, x, 2.5)[0])
    assert math.isnan(windowed_fluctuation(x, x, 31)[0])
    assert windowed_fluctuation(x, 2 * x, 30)[0] == pytest.approx(0.5)
    assert all(math.isnan(v) for v in windowed_fluctuation(x, np.ones(30), 5))
    assert windowed_fluctuation(np.ones(30), x, 5)[0] == 0
    with pytest.raises(ValueError, match="2 total energies for 30"):
        windowed_fluctuation([1, 2], x, 5)
