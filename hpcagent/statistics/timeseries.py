"""Means, slopes and fluctuations of correlated time series, each with a standard error.

One mechanism states the errors of means, slopes and fluctuations. A series is cut into at most `BATCHES` batches,
and the means of the batches are taken as normal with one of a family of correlations: first-order autoregressive
ones, and, for slopes, those of independent noise with a random walk on top. No member is chosen. Each counts by
its evidence, the restricted likelihood of the batch means with the scale integrated out (D. A. Harville, J. Am.
Stat. Assoc. 72, 320 (1977), doi:10.1080/01621459.1977.10480998), so that what a short series cannot tell makes the
error larger; with a known member the estimate follows Student's distribution, whose variance is taken. Batch means
as such: B. Schmeiser, Oper. Res. 30, 556 (1982), doi:10.1287/opre.30.3.556. `benchmarks/errors.py` prints how
often +-2 errors cover.

Statistics that are no mean (a ratio of fluctuations, a heat capacity, a diffusion coefficient) have the error of
the mean of their influence: to first order they are the mean of what each sample adds (F. R. Hampel, J. Am. Stat.
Assoc. 69, 383 (1974), doi:10.1080/01621459.1974.10482962).

A standard error is NaN wherever the series cannot tell it: too short for its correlation, or constant to
the digits it was printed with. NaN is never zero: "no error known" is not "no error".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "block_average",
    "conserved",
    "fitted_slope",
    "fluctuation_ratio",
    "statistical_inefficiency",
    "windowed_fluctuation",
]

_Array = NDArray[np.float64]
BATCHES = 40
"""Most batches into which a series is cut for its mean."""
# For a slope fewer: the walk must show within a batch.
_SLOPE_BATCHES = 24
# With fewer the Student distribution of a mean or slope has no variance.
_FEWEST = 5
# Correlation of neighbouring batches, by its evidence, beyond which the mean of a series is anybody's guess.
_TOO_CORRELATED = 0.88


def block_average(x: ArrayLike) -> tuple[float, float]:
    """Mean of a correlated series and its standard error, by batches judged by evidence (see the module).

    Args:
        x: (n,) series at equal intervals, any unit.

    Returns:
        Mean and standard error, in the unit of `x`. The error is NaN for fewer than five samples, when the batches
        are so correlated that the series says little of its mean (fewer than some three correlation times), or
        when it is constant; both are NaN for an empty series or one with a value that is not finite.

    Example:
        >>> mean, error = block_average([1.0, 2.0] * 64)
        >>> mean
        1.5
        >>> block_average([80.0])
        (80.0, nan)
    """
    series = _series(x)
    if series.size == 0 or not np.isfinite(series).all():
        return math.nan, math.nan
    mean = float(series.mean())
    if series.size < _FEWEST or _constant(series):
        return mean, math.nan
    batches = _batches(series - mean)
    if _negligible(batches - batches.mean(), series):
        # Opposite neighbours that cancel in every batch: at worst they are independent.
        return mean, math.sqrt(float(series.var()) / (series.size - 1))
    judged = _judge(batches, 0.0, "mean")
    return mean, judged.error if judged.correlation <= _TOO_CORRELATED else math.nan


def statistical_inefficiency(x: ArrayLike) -> float:
    """How many samples of a series count as one independent sample.

    g = 1 + 2 sum_{t>=1} (1 - t/n) C(t), with C the normalised autocorrelation, summed until C first drops to
    zero: J. D. Chodera et al., J. Chem. Theory Comput. 3, 26 (2007), doi:10.1021/ct0502864; J. D. Chodera,
    ibid. 12, 1799 (2016), doi:10.1021/acs.jctc.5b00784.

    Args:
        x: (n,) series at equal intervals, any unit.

    Returns:
        g >= 1; NaN for fewer than three samples, a constant series, or a value that is not finite.

    Example:
        >>> statistical_inefficiency([1.0, -1.0, 1.0, -1.0])
        1.0
    """
    series = _series(x)
    n = series.size
    if n < 3 or not np.isfinite(series).all() or _constant(series):
        return math.nan
    deviation = series - series.mean()
    spectrum = np.fft.rfft(deviation, 2 * n)
    # sum_i d_i d_{i+t} for every t at once; dividing by n - t makes it a mean over the pairs there are.
    correlation = np.fft.irfft(spectrum * np.conj(spectrum), 2 * n)[:n] / (n - np.arange(n))
    correlation /= correlation[0]
    below = np.flatnonzero(correlation[1:] <= 0.0)
    end = int(below[0]) + 1 if below.size else n
    lags = np.arange(1, end)
    return max(1.0, float(1.0 + 2.0 * np.sum((1.0 - lags / n) * correlation[1:end])))


def fitted_slope(t: ArrayLike, y: ArrayLike) -> tuple[float, float]:
    """Slope of the least-squares line through a correlated series, with its standard error.

    The error knows that the residuals may walk at random, as energies do where forces jump: then the slope of a
    series of duration T scatters by sqrt(6/5 D / T), D the variance that the walk gains in a unit of time, however
    many samples were taken. Batches judged by evidence (see the module) tell walks from noise that stays; where
    they cannot, the error is large. Why trends need it: P. Perron and T. Yabu, J. Econom. 151, 56 (2009),
    doi:10.1016/j.jeconom.2009.03.011.

    Args:
        t: (n,) times, increasing, at equal intervals.
        y: (n,) values.

    Returns:
        Slope and standard error, unit of `y` per unit of `t`. Both are NaN for fewer than two distinct
        times or a value that is not finite; the error is NaN for fewer than five samples and when the
        points lie on the line to the last digit.

    Raises:
        ValueError: `t` and `y` have different lengths.

    Example:
        >>> slope, error = fitted_slope([0, 1, 2, 3], [0.0, 2.0, 2.0, 4.0])
        >>> round(slope, 6)
        1.2
    """
    times, values = _series(t), _series(y)
    if times.size != values.size:
        raise ValueError(f"{times.size} times for {values.size} values.")
    if times.size < 2 or not (np.isfinite(times).all() and np.isfinite(values).all()) or _constant(times):
        return math.nan, math.nan
    x = times - times.mean()
    deviation = values - values.mean()
    slope = float(x @ deviation) / float(x @ x)
    if _constant(values):
        return 0.0, math.nan
    residual = deviation - slope * x
    if times.size < _FEWEST or _negligible(residual, values):
        return slope, math.nan
    batches = _batches(residual, _SLOPE_BATCHES)
    width = float(times[-1] - times[0]) / (times.size - 1) * times.size / batches.size
    return slope, _judge(batches, 0.0, "slope").error / width


def fluctuation_ratio(e: ArrayLike, k: ArrayLike) -> tuple[float, float]:
    """Fluctuation of a conserved energy against that of the kinetic energy, over the whole series.

    rms(E - <E>) / rms(K - <K>): the textbook check of an integrator, e.g. M. P. Allen and D. J. Tildesley,
    Computer Simulation of Liquids. It grows with the square of the timestep, and with the length of the series
    where the energy walks; `windowed_fluctuation` does not.

    Args:
        e: (n,) total (conserved) energy.
        k: (n,) kinetic energy at the same times, in the same unit.

    Returns:
        Ratio and standard error, pure numbers. Both are NaN when K is constant, for fewer than two samples,
        or with a value that is not finite; the error is NaN where `block_average` has none (an energy that walks
        has no ratio of its own), and when E is constant.

    Raises:
        ValueError: `e` and `k` have different lengths.

    Example:
        >>> fluctuation_ratio([1.0, 2.0, 1.0, 2.0], [0.0, 10.0, 0.0, 10.0])[0]
        0.1
    """
    energy, kinetic = _series(e), _series(k)
    if energy.size != kinetic.size:
        raise ValueError(f"{energy.size} total energies for {kinetic.size} kinetic energies.")
    finite = np.isfinite(energy).all() and np.isfinite(kinetic).all()
    if energy.size < 2 or not finite or _constant(kinetic):
        return math.nan, math.nan
    if _constant(energy):
        return 0.0, math.nan
    ratio = float(energy.std() / kinetic.std())
    # A standard deviation is, to first order, the mean of its samples' (x - <x>)^2 / (2 std).
    of_energy, of_kinetic = ((x - x.mean()) ** 2 / (2.0 * x.var()) for x in (energy, kinetic))
    return ratio, ratio * block_average(of_energy - of_kinetic)[1]


def conserved(total: ArrayLike, kinetic: ArrayLike) -> bool:
    """Whether a total energy fluctuates too little against the kinetic one to be sampled: it was set at the start.

    At constant temperature var(E) = C_V k_B T^2 is at least that of K; at constant energy it is the integrator's.
    The mean of a conserved energy has no error of sampling: what little it moves is fluctuation and drift.

    Example:
        >>> conserved([-5.0, -5.01, -5.0], [1.0, 2.0, 1.5])
        True
    """
    ratio, _ = fluctuation_ratio(total, kinetic)
    return ratio < 0.3


def windowed_fluctuation(e: ArrayLike, k: ArrayLike, rows: float) -> tuple[float, float]:
    """Fluctuation of a conserved energy against that of the kinetic energy, within windows of a fixed length.

    r = sqrt(<var_w(E)> / <var_w(K)>), var_w the variance within a window about its own mean, <> over all windows
    that lie in the series. Unlike `fluctuation_ratio` it does not grow with the length of the series where the
    energy walks at random, as it does when forces jump at a cutoff (S. Toxvaerd, O. J. Heilmann and J. C. Dyre, J.
    Chem. Phys. 136, 224106 (2012), doi:10.1063/1.4726728); R. D. Engle, R. D. Skeel and M. Drees, J. Comput. Phys.
    206, 432 (2005), doi:10.1016/j.jcp.2004.12.009, tell such a walk from the bounded difference to the shadow
    energy that velocity Verlet conserves. Of that difference r is the measure: an oscillator of frequency w
    conserves v^2/2 + (1 - (w dt)^2/4) w^2 x^2/2 exactly, so that r = (w dt)^2/4, which is also by what share its
    mean potential energy exceeds its mean kinetic energy.

    Args:
        e: (n,) total (conserved) energy at equal intervals.
        k: (n,) kinetic energy at the same times, in the same unit.
        rows: Samples of a window; between two whole numbers the variances are interpolated.

    Returns:
        Ratio and standard error, pure numbers. Both are NaN when `rows` is below 3 or above n, when K is constant,
        or with a value that is not finite; the error is NaN where `block_average` has none.

    Raises:
        ValueError: `e` and `k` have different lengths.

    Example:
        >>> round(windowed_fluctuation([1.0, 2.0] * 50, [0.0, 10.0] * 50, 7.5)[0], 9)
        0.1
    """
    energy, kinetic = _series(e), _series(k)
    if energy.size != kinetic.size:
        raise ValueError(f"{energy.size} total energies for {kinetic.size} kinetic energies.")
    finite = np.isfinite(energy).all() and np.isfinite(kinetic).all()
    # A millionth of a row is rounding of the times.
    if not 3 - 1e-6 <= rows <= energy.size + 1e-6 or not finite or _constant(kinetic):
        return math.nan, math.nan
    if _constant(energy):
        return 0.0, math.nan
    of_energy, of_kinetic = (_window_variances(x, min(max(rows, 3.0), energy.size)) for x in (energy, kinetic))
    square = float(of_energy.mean() / of_kinetic.mean())
    # The share of each window in the ratio, to first order: its mean is zero, its error that of the ratio.
    _, error = block_average((of_energy - square * of_kinetic) / of_kinetic.mean())
    ratio = math.sqrt(square)
    return ratio, error / (2.0 * ratio) if ratio > 0 else math.nan


def _window_variances(x: _Array, rows: float) -> _Array:
    """(n_windows,) variance within each window of `rows` neighbours, unbiased for independent samples."""
    whole = math.floor(rows + 1e-6)
    share = max(rows - whole, 0.0)
    shorter = _variances(x, whole)
    if share < 1e-6 or whole + 1 > x.size:
        return shorter
    return (1.0 - share) * shorter[:-1] + share * _variances(x, whole + 1)


def _variances(x: _Array, rows: int) -> _Array:
    n = x.size - rows + 1
    found = np.empty(n)
    at_once = max(8 * rows, 4096)
    for start in range(0, n, at_once):
        stop = min(start + at_once, n)
        # Running sums, of deviations from a mean nearby: a walk may have led far from that of the whole series.
        part = x[start : stop + rows - 1]
        part = part - part.mean()
        first, second = (np.concatenate([[0.0], np.cumsum(p)]) for p in (part, part * part))
        sums = first[rows:] - first[:-rows]
        found[start:stop] = ((second[rows:] - second[:-rows]) - sums * sums / rows) / (rows - 1)
    return np.maximum(found, 0.0)


def _series(x: ArrayLike) -> _Array:
    return np.asarray(x, dtype=np.float64).ravel()


def _constant(series: _Array) -> bool:
    """No variation beyond rounding of the values themselves."""
    return _negligible(series - series.mean(), series)


def _negligible(deviation: _Array, values: _Array) -> bool:
    largest = float(np.abs(values).max())
    return bool(float(np.abs(deviation).max()) <= 8 * np.finfo(np.float64).eps * largest)


# ---- what batches tell of a mean or a slope


@dataclass(frozen=True, slots=True)
class _Judged:
    """Standard error of an estimate, and the correlation of neighbouring batches by its evidence."""

    error: float
    correlation: float


@dataclass(frozen=True, slots=True, eq=False)
class _Family:
    """Correlations that B batch means may have, with what the best linear estimate needs under each.

    Attributes:
        estimate: (f, B) weights of the batches in the estimate of the mean (slope).
        residual: (f, B, B) form whose value is the sum of squared, decorrelated residuals.
        spread: (f,) variance of the estimate for a unit scale.
        evidence: (f,) logarithm of the prior and of the determinants of the restricted likelihood.
        neighbors: (f,) correlation of neighbouring batches; 1 for a walk.
        freedom: B less the number of fitted coefficients.
    """

    estimate: _Array
    residual: _Array
    spread: _Array
    evidence: _Array
    neighbors: _Array
    freedom: int


def _batches(series: _Array, most: int = BATCHES) -> _Array:
    """Means of at most `most` batches of neighbours, of equal lengths but for one sample."""
    edges = np.linspace(0, series.size, min(most, series.size) + 1).astype(np.intp)
    result: _Array = np.add.reduceat(series, edges[:-1]) / np.diff(edges)
    return result


def _judge(batches: _Array, value: float, of: Literal["mean", "slope"]) -> _Judged:
    """The error of `value`: variance within each member of the family and between them, by their evidence.

    Args:
        batches: (B,) batch means.
        value: The estimate as it was made from all samples; a slope is that per batch.
    """
    family = _family(batches.size, of)
    scale = float(np.abs(batches).max())
    means = batches / scale
    squares = np.maximum(np.einsum("fij,i,j->f", family.residual, means, means), np.finfo(np.float64).tiny)
    evidence = family.evidence - 0.5 * family.freedom * np.log(squares)
    weights = np.exp(evidence - evidence.max())
    weights /= weights.sum()
    # A Student distribution of f degrees of freedom has the variance f / (f - 2).
    within = squares / (family.freedom - 2) * family.spread
    between = (family.estimate @ means - value / scale) ** 2
    return _Judged(
        error=scale * math.sqrt(float(weights @ (within + between))),
        correlation=float(weights @ family.neighbors),
    )


@lru_cache(maxsize=64)
def _family(batches: int, of: Literal["mean", "slope"]) -> _Family:
    place = np.arange(batches, dtype=np.float64)
    apart = np.abs(place[:, None] - place[None, :])
    # Slopes have the walks for what is more correlated than this.
    neighbors = np.linspace(-0.4, 0.98 if of == "mean" else 0.6, 33)
    covariances = [np.sign(r) ** apart * np.abs(r) ** apart for r in neighbors]
    # Batches are as long as the series allows: strong correlation between them is the less likely.
    prior = (1.0 - neighbors) / (1.0 - neighbors).sum()
    design = np.ones((batches, 1))
    if of == "slope":
        design = np.column_stack([design[:, 0], place - place.mean()])
        # Means of neighbouring stretches of a walk of unit variance in a stretch.
        walk = np.minimum(place[:, None], place[None, :]) + 0.5
        np.fill_diagonal(walk, place + 1.0 / 3.0)
        # The walk's share: from too little to matter within so many batches to all there is.
        shares = np.geomspace(1e-2, 1e2, 21)
        covariances += [np.eye(batches) + r * walk for r in shares] + [walk]
        # Four to one for a walk, and rather a strong one: a walk taken for noise makes the error several times too
        # small, noise taken for a walk two to four times too large. Chosen on real runs of argon
        # (benchmarks/errors.py).
        walks = np.append(shares, shares[-1]) ** 0.25
        prior = np.concatenate([0.2 * prior, 0.8 * walks / walks.sum()])
        neighbors = np.concatenate([neighbors, np.ones(22)])
    stacked = np.array(covariances)
    inverse = np.linalg.inv(stacked)
    weighted = inverse @ design
    normal = design.T @ weighted
    solved = np.linalg.inv(normal)
    estimate = solved @ np.swapaxes(weighted, 1, 2)
    return _Family(
        estimate=estimate[:, -1],
        residual=inverse - weighted @ estimate,
        spread=np.asarray(solved[:, -1, -1], np.float64),
        evidence=np.log(prior) - 0.5 * (np.linalg.slogdet(stacked)[1] + np.linalg.slogdet(normal)[1]),
        neighbors=neighbors,
        freedom=batches - design.shape[1],
    )
