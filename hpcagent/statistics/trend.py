"""A small regression: how a metric depends on the parameters, and how sure that is.

Ordinary least squares in the unit cube with terms chosen one at a time by the Bayesian information criterion

    BIC = n ln(RSS / n) + p ln n                    (Schwarz, Ann. Statist. 6 (1978) 461)

so that a parameter which does nothing is left out and is known to do nothing. No hidden state, no random
numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from hpcagent.later import Later
from hpcagent.model.parameter import Parameter
from hpcagent.model.space import Space

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
else:
    np = Later("numpy")

__all__ = ["Scale", "Trend", "chance", "tame"]

Array: TypeAlias = "NDArray[np.float64]"
# kind of term, parameter(s) by position
Term: TypeAlias = tuple[Literal["linear", "log", "square", "choice", "product"], int, int]

LEAST_GAIN = 4.0  # BIC a term must win: "positive" evidence starts at 2 (Kass and Raftery, JASA 90 (1995) 773)
MOST_TERMS = 12
MOST_LOCAL = 200  # runs beyond which neighbours are not compared (the cost grows as n^3)
RIDGE = 1e-6
ROUNDING = 1e-9
PRIOR_RUNS = 2.0  # the residual scatter is mixed with this many runs' worth of a prior guess
PRIOR_SCATTER = 0.03  # that guess, as a share of the values' own spread


@dataclass(frozen=True)
class Scale:
    """A monotone map to the scale on which a metric is compared and averaged.

    `log` for metrics that are always positive (ratios matter), `offset_log` for log(v + unit) where small values
    don't matter, `asinh` for metrics of both signs that may be huge (asinh(v/unit): linear near zero, logarithmic
    far away), `linear` for (v - origin)/unit.
    """

    kind: Literal["log", "offset_log", "asinh", "linear"]
    origin: float = 0.0
    unit: float = 1.0

    @classmethod
    def of_limited(cls, values: ArrayLike, limit: float) -> Scale:
        """For a metric with a limit: `log` where everything is positive, else `asinh` in units of the limit."""
        v = np.asarray(values, dtype=float)
        if limit > 0 and (v > 1e-100).all():
            return cls("log")
        typical = float(np.median(np.abs(v))) if v.size else 0.0
        return cls("asinh", unit=abs(limit) or typical or 1.0)

    @classmethod
    def of_goal(cls, values: ArrayLike) -> Scale:
        """For a goal: `log` where everything is positive and spread by more than 20 %, otherwise `linear`."""
        v = np.asarray(values, dtype=float)
        if v.size and (v > 1e-100).all() and v.max() > 1.2 * v.min():
            return cls("log")
        spread = float(np.std(v)) if v.size else 0.0
        return cls("linear", origin=float(np.median(v)) if v.size else 0.0, unit=spread or 1.0)

    def forward(self, values: ArrayLike) -> Array:
        """The values on this scale."""
        v = np.asarray(values, dtype=float)
        if self.kind == "log":
            return np.asarray(np.log(np.maximum(v, np.finfo(float).tiny)))
        if self.kind == "offset_log":
            return np.asarray(np.log(np.maximum(v + self.unit, np.finfo(float).tiny)))
        if self.kind == "asinh":
            return np.asarray(np.arcsinh(v / self.unit))
        return np.asarray((v - self.origin) / self.unit)

    def backward(self, values: ArrayLike) -> Array:
        """The inverse of `forward`."""
        v = np.asarray(values, dtype=float)
        if self.kind == "log":
            return np.asarray(np.exp(v))
        if self.kind == "offset_log":
            return np.asarray(np.exp(v) - self.unit)
        if self.kind == "asinh":
            return np.asarray(np.sinh(v) * self.unit)
        return np.asarray(v * self.unit + self.origin)

    def slope(self, values: ArrayLike) -> Array:
        """d forward / d value, to carry a standard error over: s' = s * slope."""
        v = np.asarray(values, dtype=float)
        if self.kind == "log":
            return np.asarray(1 / np.maximum(v, np.finfo(float).tiny))
        if self.kind == "offset_log":
            return np.asarray(1 / np.maximum(v + self.unit, np.finfo(float).tiny))
        if self.kind == "asinh":
            return np.asarray(1 / np.hypot(v, self.unit))
        return np.full(v.shape, 1 / self.unit)


class Trend:
    """A fitted dependence of one number on the parameters.

    Attributes:
        drivers: Names of the parameters it depends on.
        scatter: Standard deviation of one run about the trend, on the scale of the values.
        residuals: `(n,)` value minus trend.
        runs: n.

    Example:
        >>> from hpcagent.model.parameter import Float
        >>> from hpcagent.model.space import Space
        >>> space = Space.of(x=Float(0, 1), y=Float(0, 1))
        >>> units = np.random.default_rng(0).random((12, 2))
        >>> Trend(space, units, 3 * units[:, 0]).drivers
        ('x',)
    """

    def __init__(self, space: Space, units: Array, values: ArrayLike, *, weights: ArrayLike | None = None) -> None:
        """Fit.

        Args:
            space: The parameters.
            units: `(n, len(space))`, points of the unit cube.
            values: `(n,)`, n >= 1.
            weights: `(n,)`, relative inverse variances; None for equal.
        """
        self.space = space
        u = np.asarray(units, dtype=float).reshape(-1, len(space))
        y = np.asarray(values, dtype=float)
        w = np.ones_like(y) if weights is None else np.asarray(weights, dtype=float)
        self.runs = len(y)
        w = w * (self.runs / w.sum())
        root = np.sqrt(w)
        spread = math.sqrt(float(w @ (y - (w @ y) / w.sum()) ** 2) / w.sum())
        self._terms = _chosen(space, u, y, root)
        x = _columns(space, self._terms, u)
        a = x * root[:, None]
        normal = a.T @ a + RIDGE * np.diag([0.0] + [1.0] * (x.shape[1] - 1))
        self._inverse = np.linalg.inv(normal)
        self._coefficients = self._inverse @ (a.T @ (y * root))
        self.residuals: Array = y - x @ self._coefficients
        rss = float(w @ self.residuals**2)
        prior = PRIOR_RUNS * (PRIOR_SCATTER * spread) ** 2
        scatter = math.sqrt((rss + prior) / (max(self.runs - x.shape[1], 0) + PRIOR_RUNS))
        self.scatter = max(scatter, ROUNDING * max(float(np.abs(y).max()), 1.0))
        self.drivers: tuple[str, ...] = tuple(
            p.name for k, p in enumerate(space.parameters) if any(k in (j, i) for _, j, i in self._terms)
        )
        self._units, self._noise = u, 1 / w

    @cached_property
    def local(self) -> _Local | None:
        """What neighbouring runs agree on beyond the trend, or None where that is nothing."""
        return _Local.of(self.space, self._units, self.residuals / self.scatter, self._noise)

    def predict(self, units: Array) -> tuple[Array, Array]:
        """Return the trend at `units` `(m, len(space))` and its standard error, both `(m,)`."""
        x = _columns(self.space, self._terms, np.asarray(units, dtype=float).reshape(-1, len(self.space)))
        mean: Array = x @ self._coefficients
        variance = np.einsum("ij,jk,ik->i", x, self._inverse, x)
        return mean, self.scatter * np.sqrt(np.maximum(variance, 0.0))

    def interpolate(self, units: Array) -> tuple[Array, Array]:
        """The trend plus what neighbouring runs agree on beyond it (kriging of the residuals), with its error."""
        u = np.asarray(units, dtype=float).reshape(-1, len(self.space))
        mean, error = self.predict(u)
        if self.local is None:
            return mean, error
        shift, variance = self.local.at(self.space, u)
        return mean + self.scatter * shift, np.sqrt(error**2 + self.scatter**2 * variance)


@dataclass(frozen=True)
class _Local:
    """Residuals (in units of the scatter) as share x a smooth field + (1 - share) x noise.

    The share and the field's length are chosen by the marginal likelihood (Rasmussen and Williams, Gaussian
    Processes for Machine Learning, 2006, eq. 5.8); no field where it wins by less than two units.
    """

    units: Array
    share: float
    length: float
    inverse: Array  # of the covariance
    solved: Array  # inverse @ residuals

    @classmethod
    def of(cls, space: Space, units: Array, residuals: Array, noise: Array) -> _Local | None:
        n = len(residuals)
        if n < 8 or n > MOST_LOCAL:
            return None
        best = _log_likelihood(np.diag(np.sqrt(noise)), residuals) + 2.0
        found: tuple[float, float, Array] | None = None
        for length in (0.12, 0.3):
            kernel = _kernel(space, units, units, length)
            for share in (0.3, 0.6, 0.9, 0.99):
                covariance = share * kernel + np.diag((1 - share) * noise + 1e-9)
                factor = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
                likelihood = _log_likelihood(factor, residuals)
                if likelihood > best:
                    best = likelihood
                    found = (share, length, covariance)
        if found is None:
            return None
        share, length, covariance = found
        inverse = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
        return cls(units, share, length, inverse, inverse @ residuals)

    def at(self, space: Space, units: Array) -> tuple[Array, Array]:
        k = self.share * _kernel(space, units, self.units, self.length)
        known = np.sum((k @ self.inverse) * k, axis=1)
        return np.asarray(k @ self.solved), np.maximum(self.share - known, 0.0)


def _kernel(space: Space, a: Array, b: Array, length: float) -> Array:
    """exp(-d^2 / 2 length^2) over the numbers x 1/2 for each choice that differs: `(len(a), len(b))`."""
    choice = np.array([p.kind == "choice" for p in space.parameters], dtype=bool)
    d = (a[:, None, ~choice] - b[None, :, ~choice]) / length
    differ = np.sum(np.abs(a[:, None, choice] - b[None, :, choice]) > 1e-9, axis=2)
    return np.asarray(np.exp(-0.5 * np.sum(d**2, axis=2)) * 0.5**differ)


def _log_likelihood(factor: Array, y: Array) -> float:
    half = np.linalg.solve(factor, y)
    return float(-0.5 * half @ half - np.log(np.diag(factor)).sum())


def tame(values: ArrayLike) -> Array:
    """The values within +-1e100, so that squares and sums of squares stay finite."""
    return np.asarray(np.clip(np.asarray(values, dtype=float), -1e100, 1e100))


def chance(z: ArrayLike) -> Array:
    """The standard normal distribution function."""
    return np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in np.atleast_1d(np.asarray(z, dtype=float))])


def _chosen(space: Space, u: Array, y: Array, root: Array) -> list[Term]:
    candidates = _candidates(space, u)
    chosen: list[Term] = []
    best = _bic(space, chosen, u, y, root)
    while len(chosen) < MOST_TERMS:
        options = [
            (_bic(space, [*chosen, term], u, y, root), i)
            for i, term in enumerate(candidates)
            if term not in chosen and _allowed(term, chosen, len(y))
        ]
        if not options or min(options)[0] > best - LEAST_GAIN:
            return chosen
        best, i = min(options)
        chosen.append(candidates[i])
    return chosen


def _candidates(space: Space, u: Array) -> list[Term]:
    numbers = [k for k, p in enumerate(space.parameters) if p.kind != "choice" and np.ptp(u[:, k]) > 0]
    terms: list[Term] = []
    for k, p in enumerate(space.parameters):
        if p.kind == "choice" and not p.constant and len(set(u[:, k])) > 1:
            terms.append(("choice", k, k))
    for k in numbers:
        terms.append(("linear", k, k))
        if _wide(space.parameters[k]):
            terms.append(("log", k, k))
        terms.append(("square", k, k))
    terms += [("product", j, k) for i, j in enumerate(numbers) for k in numbers[i + 1 :]]
    return terms


def _wide(p: Parameter) -> bool:
    return not p.log and p.low is not None and p.high is not None and p.low > 0 and p.high > 3 * p.low


def _allowed(term: Term, chosen: list[Term], runs: int) -> bool:
    """Curvature and products only on top of the plain effects, and not from a handful of runs."""
    kind, j, k = term
    if kind in ("square", "product"):
        plain = {i for what, i, _ in chosen if what in ("linear", "log")}
        return runs >= 8 and {j, k} <= plain
    return True


def _bic(space: Space, terms: list[Term], u: Array, y: Array, root: Array) -> float:
    x = _columns(space, terms, u)
    n, p = x.shape
    if p > max(n / 2, 1):
        return math.inf
    solution = np.linalg.lstsq(x * root[:, None], y * root, rcond=None)[0]
    rss = float(np.sum(((y - x @ solution) * root) ** 2))
    # An exact fit must not win without bound: below 1e-6 of the values' size there is only rounding.
    floor = n * (1e-6 * max(float(np.abs(y).max()), 1e-100)) ** 2
    return float(n * math.log(max(rss, floor, 1e-300) / n) + p * math.log(n))


def _columns(space: Space, terms: list[Term], u: Array) -> Array:
    columns = [np.ones(len(u))]
    for kind, j, k in terms:
        p = space.parameters[j]
        if kind == "linear":
            columns.append(u[:, j] - 0.5)
        elif kind == "square":
            columns.append((u[:, j] - 0.5) ** 2)
        elif kind == "product":
            columns.append((u[:, j] - 0.5) * (u[:, k] - 0.5))
        elif kind == "log":
            assert p.low is not None and p.high is not None
            columns.append(np.log((p.low + np.clip(u[:, j], 0, 1) * (p.high - p.low)) / p.low))
        else:
            index = np.minimum((u[:, j] * len(p.choices)).astype(int), len(p.choices) - 1)
            columns += [(index == i).astype(float) for i in range(1, len(p.choices))]
    return np.column_stack(columns)
