"""Gaussian process regression on the points of a space, small and quick.

    cov(f(a), f(b)) = s^2 k(r),   r^2 = sum_j (a_j - b_j)^2 / l_j^2        (Rasmussen and Williams 2006, ch. 2, 4)

with the squared exponential k = exp(-r^2 / 2) or Matern 5/2, and for a choice [a_j != b_j] in place of the
squared difference; or a mixture of the squared exponential with the mean of its factors of single parameters,
because effects on speeds and errors often multiply (on the logarithmic scale: add), and what one parameter does
is then learned from every run (Duvenaud, Nickisch, Rasmussen, NeurIPS 2011).

Length scales, variance and noise maximise the posterior density; the length scales' prior
grows with the square root of the number of parameters (Hvarfner, Hellsten, Nardi, ICML 2024), without which
models of more than a few parameters fit noise. No random numbers: the same data give the same model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from itertools import islice, pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcagent.later import Later
from hpcagent.model.base import Scalar
from hpcagent.model.parameter import Parameter, Params
from hpcagent.model.space import Space

__all__ = ["GP", "Array", "Density", "Features", "Kernel", "NoFit", "one_thread"]

# Imported when a number is first asked for: it takes longer than the rest of a start.
linalg = Later("scipy.linalg")
optimize = Later("scipy.optimize")

Array: TypeAlias = NDArray[np.float64]
Kernel: TypeAlias = Literal["rbf", "matern", "mixed"]

JITTER = 1e-7
LEAST_NOISE = 1e-6
# With few values another inverse is cheap; with more it grows by a border, which loses a share of the variance.
FEW_TOLD = 64
UNRESOLVED = 1e-4
MOST_STEPS = 40
REMEMBERED = 256  # fits of values whose most probable hyperparameters are kept
FEW = 24
# Shares of the values' variance that may be noise, where nothing is known of it, and how much each stands for; and
# by how much (log) length scales then may differ.
NOISE_SHARES = np.array([1e-6, 1e-5, 1e-4, 4e-4, 0.002, 0.006, 0.02, 0.05, *np.linspace(0.1, 0.9, 9), 0.97])
NOISE_EDGES = np.array(
    [0, *np.sqrt(NOISE_SHARES[1:8] * NOISE_SHARES[:7]), 0.075, *np.linspace(0.15, 0.85, 8), 0.95, 1]
)
NOISE_WIDTHS = np.diff(NOISE_EDGES)
LEAST_WEIGHT = 1e-3  # of the largest: models that the values speak for less are left out
LENGTHENED = (-1.4, -0.7, 0.0, 0.7, 1.4)
# Values beyond this many are spoken for by so many of their points.
MOST_EXACT = 200
MOST_INDUCING = 160
SPREAD = 0.6  # of the log length scales' prior
CENTRE = -1.586  # log of its most probable value for one parameter: sqrt(2) - 3
CHOICE_CENTRE = 0.0  # correlation exp(-1/2) between the values of a choice
NOISE_CENTRE, NOISE_SPREAD = math.log(1e-3), 2.5
VARIANCE_SPREAD = 1.0
PROPOSED, FREEDOM = 96, 5.0  # hyperparameters tried, and degrees of freedom of their distribution
SHARE_SPREAD = 1.5  # of the log odds of the single parameters' share


class NoFit(ArithmeticError):
    """No model can be fitted to these values."""


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    import_module("scipy.linalg")  # its BLAS: the controller knows only what is loaded when it is made
    return ThreadpoolController()


def one_thread() -> AbstractContextManager[Any]:
    """Within it matrices are worked on by one thread: these are small, and the cores belong to the runs."""
    limited: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limited


class Features:
    """Points of a space as rows of numbers: a coordinate in [0, 1] for a number, a column per value of a choice.

    Constants have no column; what is not active at a point has a fixed value there (0.5; no value of a choice), so
    points that differ in nothing else are one. A row of a choice has 1/sqrt(2) in the column of its value, so that
    the squared distance of two different values is 1.

    Attributes:
        space: The space.
        of: `(columns,)`, which of the varied parameters each column belongs to.
        numeric: `(columns,)`, whether the column is a coordinate that can move.
        size: How many parameters are varied.
        choices: `(size,)`, whether each of them is a choice.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        of: list[int] = []
        numeric: list[bool] = []
        self._columns: list[slice] = []
        self._varied = [p for p in space.parameters if not p.constant]
        for j, p in enumerate(self._varied):
            width = len(p.choices) if p.kind == "choice" else 1
            self._columns.append(slice(len(of), len(of) + width))
            of += [j] * width
            numeric += [p.kind != "choice"] * width
        self.of = np.array(of, dtype=int)
        self.numeric = np.array(numeric, dtype=bool)
        self.size = len(self._varied)
        self.simple = space.simple
        self.choices = np.array([p.kind == "choice" for p in self._varied], dtype=bool)

    @property
    def names(self) -> tuple[str, ...]:
        """The varied parameters."""
        return tuple(p.name for p in self._varied)

    def rows(self, points: Sequence[Params]) -> Array:
        """`(len(points), columns)`."""
        rows = np.zeros((len(points), len(self.of)))
        for p, columns in zip(self._varied, self._columns, strict=True):
            if p.kind == "choice":
                at = {c: i for i, c in enumerate(p.choices)}
                there = [i for i, point in enumerate(points) if p.name in point]
                which = [at[points[i][p.name]] for i in there]
                rows[there, columns.start + np.array(which, dtype=int)] = math.sqrt(0.5)
                continue
            # nan: not active there
            values = np.array([point.get(p.name, math.nan) for point in points], dtype=float)
            rows[:, columns.start] = _coordinates(p, values)
        if not self.simple:
            rows[np.isnan(rows)] = 0.5
        return rows

    def points(self, rows: Array) -> list[Params]:
        """The points of the space nearest to the rows."""
        units = [0.5] * len(self.space)
        place = {name: i for i, name in enumerate(self.space.names)}
        found = []
        for row in rows:
            for p, columns in zip(self._varied, self._columns, strict=True):
                if p.kind == "choice":
                    units[place[p.name]] = (int(np.argmax(row[columns])) + 0.5) / len(p.choices)
                else:
                    units[place[p.name]] = float(row[columns.start])
            found.append(self.space.from_unit(units))
        return found

    def snapped(self, rows: Array) -> Array:
        """The rows moved onto points of the space: whole numbers, one value of a choice, inside the bounds.

        Equalities are settled and what is not active has its fixed value; see `kept` for other constraints.
        """
        rows = np.array(rows, dtype=float)
        for p, columns in zip(self._varied, self._columns, strict=True):
            if p.kind == "choice":
                best = np.argmax(rows[:, columns], axis=1)
                rows[:, columns] = 0.0
                rows[np.arange(len(rows)), columns.start + best] = math.sqrt(0.5)
                continue
            u = np.clip(rows[:, columns.start], 0.0, 1.0)
            if p.kind == "int":
                u = _whole(u, float(p.low or 0), float(p.high or 0) + 1, log=p.log)
            rows[:, columns.start] = u
        return rows if self.simple or not len(rows) else self._settled(rows)

    def _cube(self, rows: Array) -> Array:
        """The rows as points of the unit cube of the whole space."""
        cube = np.full((len(rows), len(self.space)), 0.5)
        for p, columns in zip(self._varied, self._columns, strict=True):
            k = self.space.names.index(p.name)
            if p.kind == "choice":
                cube[:, k] = (np.argmax(rows[:, columns], axis=1) + 0.5) / len(p.choices)
            else:
                cube[:, k] = rows[:, columns.start]
        return cube

    def _settled(self, rows: Array) -> Array:
        many = self.space.region.columns
        columns = many.at(self._cube(rows))
        active = many.active(columns)
        moved = {name for one in many.equalities for name in (*one.shared, one.follows)}
        rows = rows.copy()
        for p, where in zip(self._varied, self._columns, strict=True):
            if p.name in moved:
                rows[:, where] = _coordinates(p, columns[p.name])[:, None]
            if p.name in active:
                rows[~active[p.name], where] = 0.0 if p.kind == "choice" else 0.5
        return rows

    def kept(self, rows: Array) -> Array:
        """The rows (see `snapped`) that keep the constraints of the space."""
        if self.simple or not len(rows):
            return rows
        many = self.space.region.columns
        return np.asarray(rows[many.kept(many.at(self._cube(rows)))])

    @cached_property
    def cover(self) -> Array:
        """`(up to 1024, columns)` allowed points that cover the space."""
        return self.rows(self.space.region.cover)

    def drawn(self, rng: np.random.Generator, n: int) -> Array:
        """`n` allowed points, choices with equal shares."""
        if self.simple or not len(self.cover):
            return self.from_cube(rng.random((n, self.size)))
        return np.asarray(self.cover[rng.integers(len(self.cover), size=n)])

    def from_cube(self, cube: Array) -> Array:
        """Rows for points of the unit cube of the varied parameters, `(m, size)`; choices get equal shares."""
        rows = np.zeros((len(cube), len(self.of)))
        for j, (p, columns) in enumerate(zip(self._varied, self._columns, strict=True)):
            if p.kind == "choice":
                which = np.minimum((cube[:, j] * len(p.choices)).astype(int), len(p.choices) - 1)
                rows[np.arange(len(rows)), columns.start + which] = math.sqrt(0.5)
            else:
                rows[:, columns.start] = cube[:, j]
        return rows

    def with_choice(self, rows: Array, j: int, value: int) -> Array:
        """The rows with varied parameter `j`, a choice, at its value number `value`."""
        columns = self._columns[j]
        rows = rows.copy()
        rows[:, columns] = 0.0
        rows[:, columns.start + value] = math.sqrt(0.5)
        return rows

    def held(self, rows: Array, values: Mapping[str, Scalar]) -> Array:
        """The rows with these parameters at these values; those that do not vary have no column."""
        if not values or not len(rows):
            return rows
        there = self.rows([{**self.points(rows[:1])[0], **values}])[0]
        rows = rows.copy()
        for p, columns in zip(self._varied, self._columns, strict=True):
            if p.name in values:
                rows[:, columns] = there[columns]
        return rows

    def columns(self, j: int) -> slice:
        """The columns of varied parameter `j`."""
        return self._columns[j]

    def steps(self, rows: Array) -> Array:
        """Every row with one whole number moved by one or one choice changed: the neighbours a gradient misses."""
        found = []
        for j, p in enumerate(self._varied):
            if p.kind == "choice":
                found += [self.with_choice(rows, j, value) for value in range(len(p.choices))]
            elif p.kind == "int":
                width = 1 / (float(p.high or 0) - float(p.low or 0) + 1)
                for step in (-width, width):
                    moved = rows.copy()
                    moved[:, self._columns[j].start] += step
                    found.append(moved)
        return self.snapped(np.vstack(found)) if found else rows[:0]


def _coordinates(p: Parameter, values: Array) -> Array:
    """Where in [0, 1] values of a number lie."""
    low, high = float(p.low or 0), float(p.high or 0)
    if p.kind == "int":
        values, high = values + 0.5, high + 1
    if p.log:
        values, low, high = np.log(values), math.log(low), math.log(high)
    return np.asarray((values - low) / (high - low))


def _whole(u: Array, low: float, high: float, *, log: bool) -> Array:
    """Coordinates of the middle of the whole number that each `u` falls on."""
    if log:
        first, last = math.log(low), math.log(high)
        value = np.minimum(np.floor(np.exp(first + u * (last - first))), high - 1)
        return np.asarray((np.log(np.maximum(value, low) + 0.5) - first) / (last - first))
    value = np.minimum(np.floor(low + u * (high - low)), high - 1)
    return np.asarray((value + 0.5 - low) / (high - low))


@dataclass(frozen=True)
class GP:
    """A fitted model. Make one with `GP.fit`.

    Attributes:
        x: `(n, columns)` rows of `Features`.
        y: `(n,)` values, standardised with `centre` and `unit`.
        noise: `(n,)` noise variance of each value, standardised.
        scales: `(columns,)` 1 / length scale.
        variance: s^2, standardised.
        kernel: `rbf`, `matern` or `mixed`.
        of: `(columns,)` the parameter of each column.
        share: The share of single parameters, with `mixed`.
        centre, unit: What the values were standardised with.
        evidence: Log of the posterior density that was maximised, up to a constant.
        own_noise: Fitted noise variance of a single run, standardised.
        uneven: How many times that a run at rows has, where noise differs by region.
        shares: `(n,)` how much of a run's noise each value has: 1 / runs.
        density: The posterior density of length scales, variance and noise that was maximised.
        basis, solved: What predictions are made of, where values were added to a fitted model.
    """

    x: Array
    y: Array
    noise: Array
    scales: Array
    variance: float
    kernel: Kernel
    of: NDArray[np.int_]
    share: float
    centre: float
    unit: float
    evidence: float
    own_noise: float
    shares: Array
    density: Density
    uneven: Callable[[Array], Array] | None = None
    basis: Array | None = None
    solved: tuple[Array, Array] | None = None

    @classmethod
    def fit(
        cls,
        features: Features,
        x: Array,
        y: Array,
        *,
        known: Array | None = None,
        runs: Array | None = None,
        scatter: tuple[Array, Array] | None = None,
        kernel: Kernel = "rbf",
        most: int = 80,
        least_noise: float = 1e-6,
        shortest: float = 0.02,
        shared: float = CHOICE_CENTRE,
    ) -> GP:
        """Fit to values.

        Args:
            features: What the rows mean.
            x: `(n, columns)`.
            y: `(n,)`, finite.
            known: `(n,)` variance of each value that is known beforehand, in the square of y's unit.
            runs: `(n,)` how many runs each value is the mean of.
            scatter: Sums of squares of the runs about their mean, `(n,)` in the square of y's unit, and their
                degrees of freedom, `(n,)`: repeats tell of the noise.
            kernel: Which correlation function.
            most: So many values, evenly taken, decide length scales, variance and noise.
            least_noise: Smallest noise variance of a run, as a share of the values' variance.
            shortest: Smallest length scale.
            shared: Log of the most probable length scale of a choice; the larger, the more alike its values.

        Raises:
            NoFit: A value is not finite, or the numbers do not allow it.
        """
        n = len(y)
        if not n or not np.isfinite(y).all():
            raise NoFit(f"{n} values, of which {int(np.isfinite(y).sum())} are finite")
        unit = float(y.std())
        centre = float(y.mean())
        unit = unit if unit > 1e-12 * max(1.0, abs(centre)) else 1.0
        z = (y - centre) / unit
        stated = np.zeros(n) if known is None else known / unit**2
        shares = np.ones(n) if runs is None else 1.0 / runs
        squares, freedom = (np.zeros(n), np.zeros(n)) if scatter is None else (scatter[0] / unit**2, scatter[1])
        rows = np.arange(n) if n <= most else np.unique(np.linspace(0, n - 1, most).astype(int))
        within = (squares[rows], freedom[rows])
        limits = (math.log(least_noise), math.log(shortest), shared)
        density = Density(features, x[rows], z[rows], stated[rows], shares[rows], within, kernel, limits)
        theta, evidence = density.maximised()
        size = features.size
        own = math.exp(theta[size + 1])
        return cls(
            x=x,
            y=z,
            noise=stated + own * shares,
            scales=np.exp(-theta[:size])[features.of],
            variance=math.exp(theta[size]),
            kernel=kernel,
            of=features.of,
            share=1 / (1 + math.exp(-theta[-1])) if kernel == "mixed" else 0.0,
            centre=centre,
            unit=unit,
            evidence=evidence * n / len(rows) - (n + float(freedom.sum())) * math.log(unit),
            own_noise=own,
            shares=shares,
            density=density,
        )

    def refitted(self, kernel: Kernel) -> GP:
        """The model of the same values with another correlation function."""
        density = self.density.alike(kernel)
        theta, evidence = density.maximised()
        gain = (evidence - self.density.evidence) * len(self.y) / density.n
        return replace(self, kernel=kernel, density=density, evidence=self.evidence + gain)._with(theta)

    def alternatives(self, count: int, rng: np.random.Generator) -> list[GP]:
        """Models with other length scales, variances and noises, as often as the values speak for each.

        The most probable ones are too sure away from few values. Draws of the posterior density by importance
        resampling (Rubin 1988) of a Student distribution about its maximum.
        """
        return [self._with(theta) for theta in self.density.drawn(count, rng)]

    def by_noise(self) -> tuple[list[GP], Array, Array]:
        """Models with every share of noise alike, weights of them `(m,)` and their shares of noise `(m,)`.

        How much of the values is noise is then told by the values alone. Models that hardly weigh are left out.
        """
        thetas, weights, shares = self.density.by_share()
        use = weights >= LEAST_WEIGHT * weights.max()
        return [self._with(theta) for theta in thetas[use]], weights[use] / weights[use].sum(), shares[use]

    def with_noise(self, density: Density, uneven: Callable[[Array], Array], evidence: float) -> GP:
        """The model of the same values with noise that differs by region.

        Args:
            density: That of the values with this noise, maximised.
            uneven: How many times the own noise variance a run at rows has.
            evidence: Log of the posterior density at the maximum.
        """
        runs = 1 / self.shares
        stated = self.noise - self.own_noise * self.shares
        gain = (evidence - self.density.evidence) * len(self.y) / density.n
        return replace(
            self,
            kernel=density.kernel,
            density=density,
            uneven=uneven,
            shares=uneven(self.x) / runs,
            noise=stated,
            own_noise=0.0,
            evidence=self.evidence + gain,
        )._with(density.top)

    def run_noise(self, rows: Array) -> Array:
        """`(m,)` fitted noise variance of a single run at rows, standardised."""
        return np.full(len(rows), self.own_noise) * (1.0 if self.uneven is None else self.uneven(rows))

    def _with(self, theta: Array) -> GP:
        size = self._size
        own = math.exp(theta[size + 1])
        return replace(
            self,
            scales=np.exp(-theta[:size])[self.of],
            variance=math.exp(theta[size]),
            noise=self.noise + (own - self.own_noise) * self.shares,
            own_noise=own,
            share=1 / (1 + math.exp(-theta[-1])) if self.kernel == "mixed" else 0.0,
            basis=None,
            solved=None,
        )

    @cached_property
    def _solved(self) -> tuple[Array, Array]:
        """What predictions are made of: at rows with covariances k with `_basis` the mean is k alpha, and the
        variance is less by k M k. Without inducing points M is the inverse of the covariance of the values.
        """
        if self.solved is not None:
            return self.solved
        if self._inducing is not None:
            return self._inducing.solved
        k = self._covariance(self.x, self.x)
        k.flat[:: len(k) + 1] += self.noise + JITTER
        inverse, _ = _inverted(k)
        return inverse, inverse @ self.y

    @cached_property
    def _inducing(self) -> _Inducing | None:
        return _Inducing.of(self) if self.basis is None and len(self.x) > MOST_EXACT else None

    @cached_property
    def _basis(self) -> Array:
        """`(m, columns)` the rows that predictions are made of."""
        if self.basis is not None:
            return self.basis
        return self.x if self._inducing is None else self.x[self._inducing.at]

    @cached_property
    def _scaled(self) -> tuple[Array, Array]:
        """`_basis` in length scales, and the squares of its rows."""
        scaled = self._basis * self.scales
        return scaled, (scaled * scaled).sum(1)

    @cached_property
    def _places(self) -> list[slice]:
        """The columns of each parameter."""
        ends = np.searchsorted(self.of, np.arange(self._size + 1))
        return [slice(int(a), int(b)) for a, b in pairwise(ends)]

    def _covariance(self, a: Array, b: Array) -> Array:
        a, b = a * self.scales, b * self.scales
        if self.kernel != "mixed":
            return self.variance * _correlation(_squares(a, b), self.kernel)
        return sum(self._parts(a, b))  # type: ignore[return-value]  # there is at least one part

    def _parts(self, a: Array, b: Array) -> list[Array]:
        """The mixed covariance of scaled rows: of all parameters together, and of each alone."""
        each = [_squares(a[:, place], b[:, place]) for place in self._places]
        together = self.variance * (1 - self.share) * np.exp(-0.5 * sum(each))
        part = self.variance * self.share / self._size
        return [together, *(part * np.exp(-0.5 * r2) for r2 in each)]

    def _beside(self, scaled: Array, i: int) -> Array:
        """`(n,)` covariances of scaled row `i` with all of them."""
        squares = (scaled - scaled[i]) ** 2
        if self.kernel != "mixed":
            return self.variance * _correlation(squares.sum(1), self.kernel)
        each = np.add.reduceat(squares, [place.start for place in self._places], axis=1)
        together = (1 - self.share) * np.exp(-0.5 * each.sum(1))
        return np.asarray(self.variance * (together + self.share * np.exp(-0.5 * each).mean(1)))

    @property
    def _size(self) -> int:
        return int(self.of[-1]) + 1

    @property
    def lengths(self) -> Array:
        """`(columns,)` length scales; 1 is the width of the whole range."""
        return np.asarray(1 / self.scales)

    def predict(self, a: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the function, without a run's noise, at rows `(m, columns)`."""
        inverse, alpha = self._solved
        k = self._covariance(a, self._basis)
        left = self.variance - np.einsum("ij,ij->i", k @ inverse, k)
        return self.centre + self.unit * (k @ alpha), self.unit * np.sqrt(np.maximum(left, 1e-12))

    def slopes(self, a: Array, *, needed: bool = True) -> tuple[Array, Array, Array, Array]:
        """As `predict`, and the derivatives of both by the columns, `(m, columns)` each; 0 where not `needed`."""
        if not needed:
            flat = np.zeros(a.shape)
            return *self.predict(a), flat, flat
        inverse, alpha = self._solved
        scaled, (known, sizes) = a * self.scales, self._scaled
        alone: list[Array] = []
        if self.kernel == "mixed":
            pull, *alone = self._parts(scaled, known)
            k = pull + sum(alone)
        else:
            r2 = np.maximum((scaled * scaled).sum(1)[:, None] + sizes - 2 * (scaled @ known.T), 0.0)
            if self.kernel == "rbf":
                pull = k = self.variance * np.exp(-0.5 * r2)
            else:
                r = np.sqrt(5 * r2)
                e = self.variance * np.exp(-r)
                k, pull = (1 + r + r * r / 3) * e, 5 / 3 * (1 + r) * e
        v = k @ inverse
        sd = np.sqrt(np.maximum(self.variance - np.einsum("ij,ij->i", v, k), 1e-12))
        # sum_i w_i dk_i/da = sum_i w_i pull_i (x_i - a) / l^2, for the weights of the mean and of the variance
        m = len(a)
        weights = np.concatenate([np.broadcast_to(alpha, k.shape), v])
        twice = np.concatenate([scaled, scaled])
        w = weights * np.concatenate([pull, pull])
        found = w @ known - w.sum(1)[:, None] * twice
        for one, place in zip(alone, self._places, strict=False):
            w = weights * np.concatenate([one, one])
            found[:, place] += w @ known[:, place] - w.sum(1)[:, None] * twice[:, place]
        found *= self.scales
        u = self.unit
        return self.centre + u * (k @ alpha), u * sd, u * found[:m], -u * found[m:] / sd[:, None]

    def joint(self, a: Array) -> tuple[Array, Array]:
        """Mean `(m,)` and covariance `(m, m)` of the function at rows."""
        inverse, alpha = self._solved
        k = self._covariance(a, self._basis)
        return self.centre + self.unit * (k @ alpha), self.unit**2 * (self._covariance(a, a) - k @ inverse @ k.T)

    def covariances(self, a: Array, b: Array) -> Array:
        """`(len(a), len(b))` posterior covariance of the function between two sets of rows."""
        inverse, _ = self._solved
        left = self._covariance(a, self._basis) @ inverse @ self._covariance(self._basis, b)
        return np.asarray(self.unit**2 * (self._covariance(a, b) - left))

    def told(self, a: Array, values: Array, *, exactly: bool = False, known: Array | None = None) -> GP:
        """The model with these values at rows `a` as well; the hyperparameters stay.

        With the values that it expects there this is what a waiting run counts for (Ginsbourger et al. 2010).

        Args:
            a: `(m, columns)`.
            values: `(m,)`.
            exactly: As if the function itself, without a run's noise, were known there.
            known: `(m,)` variance of a run that is known beforehand, in the square of y's unit.
        """
        times = np.ones(len(a)) if self.uneven is None else self.uneven(a)
        noise = np.full(len(a), LEAST_NOISE) if exactly else self.own_noise * times
        if known is not None:
            noise = noise + known / self.unit**2
        y = (values - self.centre) / self.unit
        whole = replace(
            self,
            x=np.vstack([self.x, a]),
            y=np.concatenate([self.y, y]),
            noise=np.concatenate([self.noise, noise]),
            shares=np.concatenate([self.shares, np.zeros(len(a)) if exactly else times]),
        )
        basis, solved = self._basis, self._solved
        anew = replace(whole, basis=None, solved=None) if len(basis) == len(self.x) else None
        if anew is not None and len(anew.x) <= FEW_TOLD:
            return anew
        least = UNRESOLVED * self.variance
        for row, value, own in zip(a, y, noise, strict=True):
            beside = self._covariance(basis, row[None])[:, 0]
            left = self.variance - float(beside @ solved[0] @ beside)
            if left < least and anew is not None and len(anew.x) <= MOST_EXACT:
                return anew
            solved = _bordered(solved, beside, max(left, 0.0) + max(own, least), value)
            basis = np.vstack([basis, row])
        return replace(whole, basis=basis, solved=solved)

    def left_out(self) -> tuple[Array, Array]:
        """What it would say of each of its values without that one: mean and standard deviation of a run there.

        Rasmussen and Williams 2006, eq. 5.12; the hyperparameters stay. With inducing points: what it says with
        that one, which among so many weighs little.
        """
        if self._inducing is not None:
            mean, sd = self.predict(self.x)
            return mean, np.sqrt(sd**2 + self.unit**2 * self.noise)
        inverse, alpha = self._solved
        precision = np.diag(inverse)
        return self.centre + self.unit * (self.y - alpha / precision), self.unit / np.sqrt(precision)


@dataclass(frozen=True)
class _Inducing:
    """Many values, spoken for by a few of their points (FITC: Snelson and Ghahramani, NeurIPS 2005).

    Every value counts, with what the few points leave open of it as noise. The points are chosen by how much is
    open at each given those before it (pivoted Cholesky decomposition, Fine and Scheinberg, JMLR 2001), never by
    the values: the best of many noisy ones are the luckiest.

    Attributes:
        at: `(m,)` which of the rows.
        solved: M and alpha of `GP._solved`.
    """

    at: NDArray[np.int_]
    solved: tuple[Array, Array]

    @classmethod
    def of(cls, gp: GP) -> _Inducing:
        n = len(gp.x)
        rows = np.zeros((MOST_INDUCING, n))
        left = np.full(n, gp.variance)
        least = max(1e-6 * gp.variance, 0.01 * float(gp.noise.min()))
        at: list[int] = []
        scaled = gp.x * gp.scales
        while len(at) < MOST_INDUCING:
            pivot = int(np.argmax(left))
            if left[pivot] <= least:
                break
            k, m = gp._beside(scaled, pivot), len(at)
            rows[m] = (k - rows[:m, pivot] @ rows[:m]) / math.sqrt(left[pivot])
            left = np.maximum(left - rows[m] ** 2, 0.0)
            left[pivot] = 0.0
            at.append(pivot)
        rows = rows[: len(at)]
        # With L the Cholesky factor of the points' covariance, G = rows / sqrt(noise) and B = 1 + G G':
        # M = L'^-1 (1 - B^-1) L^-1 and alpha = L'^-1 B^-1 G y / sqrt(noise).
        weight = 1 / np.sqrt(left + gp.noise + JITTER)
        g = rows * weight
        inside = g @ g.T
        inside.flat[:: len(at) + 1] += 1.0
        inverse, _ = _inverted(inside)
        root = linalg.solve_triangular(rows[:, at].T, np.eye(len(at)), lower=True)
        rest = np.eye(len(at)) - inverse
        return cls(np.array(at), (root.T @ rest @ root, root.T @ (inverse @ (g @ (weight * gp.y)))))


_MAXIMA: dict[bytes, tuple[Array, float]] = {}


class Density:
    """Posterior density of the hyperparameters: log length scales, log variance, log noise."""

    def __init__(
        self,
        features: Features,
        x: Array,
        y: Array,
        known: Array,
        shares: Array,
        within: tuple[Array, Array],
        kernel: Kernel,
        limits: tuple[float, float, float],
    ) -> None:
        self.n, self.size, self.x = len(y), features.size, x
        self.y, self.known, self.shares = y, known, shares
        # A run of value i has the variance of the mean of r_i runs times r_i; only repeated values have a scatter.
        self.repeated = within[1] > 0
        self.scatter, self.freedom = within[0][self.repeated], within[1][self.repeated]
        per_parameter = np.empty((features.size, self.n * self.n))
        for j in range(features.size):
            columns = x[:, features.columns(j)]
            per_parameter[j] = ((columns[:, None, :] - columns[None, :, :]) ** 2).sum(-1).ravel()
        self.squares = per_parameter
        self.features, self.limits = features, limits
        self._kernel(kernel)

    def _kernel(self, kernel: Kernel) -> None:
        """Prior and range of the hyperparameters."""
        self.kernel, choices = kernel, self.features.choices
        least_noise, shortest, shared = self.limits
        moving = max(1, int((~choices).sum()))
        centre = np.where(choices, shared, CENTRE + 0.5 * math.log(moving))
        spread = np.where(choices, 1.0, SPREAD)
        mixed = kernel == "mixed"
        self.centre = np.concatenate([centre, [0.0, NOISE_CENTRE], [0.0] * mixed])
        self.spread = np.concatenate([spread, [VARIANCE_SPREAD, NOISE_SPREAD], [SHARE_SPREAD] * mixed])
        self.low = np.concatenate([np.full(self.size, shortest), [-4.0, least_noise], [-4.0] * mixed])
        self.high = np.concatenate([np.full(self.size, 4.0), [4.0, 0.5], [4.0] * mixed])

    def maximised(self) -> tuple[Array, float]:
        """The most probable hyperparameters, and the log of their density.

        Known from before where the same values were asked for lately: policy, answer and confirmation each fit the
        history as it is.

        Raises:
            NoFit: The covariance cannot be inverted anywhere.
        """
        data = self._digest()
        if (found := _MAXIMA.get(data)) is None:
            found = self._climbed()
            _MAXIMA[data] = found
            for oldest in list(islice(_MAXIMA, max(0, len(_MAXIMA) - REMEMBERED))):
                _MAXIMA.pop(oldest, None)
        self.top, self.evidence = found[0].copy(), found[1]
        return self.top, self.evidence

    def _digest(self) -> bytes:
        """Of all that the density depends on."""
        told = hashlib.blake2b(f"{self.kernel} {self.x.shape}".encode(), digest_size=16)
        for one in (
            *(
                self.x,
                self.features.of,
                self.y,
                self.known,
                self.shares,
                self.repeated,
                self.scatter,
                self.freedom,
            ),
            *(self.centre, self.spread, self.low, self.high),
        ):
            told.update(np.ascontiguousarray(one).tobytes())
        return told.digest()

    def _climbed(self) -> tuple[Array, float]:
        low, high = self.low, self.high
        best: tuple[Array, float] | None = None
        # With few values there may be two explanations, long and noisy or short and exact.
        for lengths, noise in ((0.0, math.log(1e-2)), (-0.7, math.log(1e-4)))[: 2 if self.n <= FEW else 1]:
            start = self.centre.copy()
            start[: self.size] += lengths
            start[self.size + 1] = noise
            theta, value, _ = optimize.fmin_l_bfgs_b(
                self, np.clip(start, low, high), bounds=list(zip(low, high, strict=True)), maxiter=MOST_STEPS
            )
            if np.isfinite(value) and value < 1e9 and (best is None or value < best[1]):
                best = theta, float(value)
        if best is None:
            raise NoFit("the covariance of the values cannot be inverted")
        return best[0], -best[1]

    def alike(self, kernel: Kernel) -> Density:
        """That of the same values with another correlation function."""
        other = copy(self)
        other._kernel(kernel)
        return other

    def louder(self, times: Array) -> Density:
        """That of the same values with so many times the noise of a run at each, `(n,)`."""
        other = copy(self)
        other.shares = self.shares * times
        return other

    def but(self, i: int) -> Density:
        """That of all values but number `i`."""
        other, rest = copy(self), np.arange(self.n) != i
        other.n, other.x, other.y = self.n - 1, self.x[rest], self.y[rest]
        other.known, other.shares = self.known[rest], self.shares[rest]
        other.squares = self.squares.reshape(-1, self.n, self.n)[:, rest][:, :, rest].reshape(
            len(self.squares), -1
        )
        other.repeated, left = self.repeated[rest], rest[self.repeated]
        other.scatter, other.freedom = self.scatter[left], self.freedom[left]
        return other

    def strangest(self) -> int:
        """The value that the others expect least (Rasmussen and Williams, 5.12), if repeats do not explain it."""
        inverse, _ = _inverted(self._covariance(self.top))
        precision, alpha = np.diag(inverse), inverse @ self.y
        strange = np.abs(alpha) / np.sqrt(precision)
        explained = (alpha / precision)[self.repeated] ** 2 <= 4 * self.scatter / np.maximum(self.freedom, 1)
        strange[np.flatnonzero(self.repeated)[explained]] = 0.0
        return int(np.argmax(strange))

    def by_noise(self, theta: Array) -> tuple[float, Array, Array]:
        """The density, its slope by the log of each value's noise, `(n,)`, and the information on them, `(n, n)`.

        The information is Fisher's: 1/2 tr(C^-1 dC/da C^-1 dC/db) for values with covariance C.
        """
        noise = math.exp(theta[self.size + 1])
        k = self._covariance(theta)
        try:
            inverse, half_log = _inverted(k)
        except NoFit:
            return -math.inf, np.zeros(self.n), np.eye(self.n)
        alpha = inverse @ self.y
        own = noise * self.shares
        value = -0.5 * float(self.y @ alpha) - half_log - self._off(theta)
        slope = 0.5 * own * (alpha**2 - np.diag(inverse))
        told = 0.5 * np.outer(own, own) * inverse**2
        if len(self.freedom):
            runs = self.freedom + 1
            single = own[self.repeated] * runs
            variance = self.known[self.repeated] * runs + single + JITTER
            value -= self._repeats(noise)[0]
            slope[self.repeated] += 0.5 * (self.scatter / variance - self.freedom) * single / variance
            told[self.repeated, self.repeated] += 0.5 * self.freedom * (single / variance) ** 2
        return value, slope, told

    def by_share(self) -> tuple[Array, Array, Array]:
        """Hyperparameters at each share of noise `(m, parameters)`, weights `(m,)` and the shares `(m,)`.

        Uniform in the share of noise, with the density of the length scales alone; the whole variance is the most
        probable one, y' K^-1 y / n (Rasmussen and Williams 2006, eq. 5.8, at its maximum by the factor of K).
        """
        p, found = self.size, []
        for share, width in zip(NOISE_SHARES, NOISE_WIDTHS, strict=True):
            for longer in LENGTHENED:
                theta = self.top.copy()
                theta[:p] = np.clip(theta[:p] + longer, self.low[:p], self.high[:p])
                theta[p : p + 2] = math.log(1 - share), math.log(share)
                inverse, half_log = _inverted(self._covariance(theta))
                whole = max(float(self.y @ inverse @ self.y) / self.n, 1e-12)
                theta[p : p + 2] += math.log(whole)
                off = (theta[:p] - self.centre[:p]) / self.spread[:p]
                value = -0.5 * self.n * math.log(whole) - half_log - 0.5 * float(off @ off)
                if len(self.freedom):
                    value -= self._repeats(share * whole)[0]
                found.append((theta, value + math.log(width), share))
        values = np.array([value for _, value, _ in found])
        weights = np.exp(values - values.max())
        shares = np.array([share for *_, share in found])
        return np.array([theta for theta, *_ in found]), weights / weights.sum(), shares

    def _off(self, theta: Array) -> float:
        off = (theta - self.centre) / self.spread
        return 0.5 * float(off @ off)

    def _covariance(self, theta: Array) -> Array:
        """`(n, n)` of the values, their noise among it."""
        p, n = self.size, self.n
        inverse_squares, variance = np.exp(-2 * theta[:p]), math.exp(theta[p])
        k = variance * _correlation(inverse_squares @ self.squares, self.kernel)
        if self.kernel == "mixed":
            share = 1 / (1 + math.exp(-theta[-1]))
            alone = np.exp(-0.5 * inverse_squares[:, None] * self.squares).sum(0)
            k = (1 - share) * k + share * variance / p * alone
        k = k.reshape(n, n)
        k.flat[:: n + 1] += self.known + math.exp(theta[p + 1]) * self.shares + JITTER
        return k

    def drawn(self, count: int, rng: np.random.Generator) -> Array:
        """`(count, parameters)` draws about the maximum that was found."""
        top = self.top
        # Curvature by differences of the gradient, never flatter than the prior.
        step = 0.05
        moves = step * np.eye(len(top))
        curvature = np.array([(self(top + m)[1] - self(top - m)[1]) / (2 * step) for m in moves])
        scaled = 0.5 * (curvature + curvature.T) * np.outer(self.spread, self.spread)
        values, vectors = np.linalg.eigh(np.where(np.isfinite(scaled), scaled, 0.0))
        root = self.spread[:, None] * vectors / np.sqrt(np.clip(values, 1.0, 1e4))
        normal = rng.standard_normal((PROPOSED, len(top)))
        normal[0] = 0.0  # the maximum itself, if nothing else fits
        tails = np.sqrt(FREEDOM / rng.chisquare(FREEDOM, PROPOSED))
        proposed = np.clip(top + (normal * tails[:, None]) @ root.T, self.low, self.high)
        squares = (normal**2).sum(1) * tails**2
        density = 0.5 * (FREEDOM + len(top)) * np.log1p(squares / FREEDOM)
        weights = density - np.array([self(theta)[0] for theta in proposed])
        weights = np.exp(weights - weights.max())
        # Systematic resampling: each about as often as its weight says.
        at = (rng.random() + np.arange(count)) / count
        return np.asarray(proposed[np.searchsorted(np.cumsum(weights / weights.sum()), at).clip(max=PROPOSED - 1)])

    def __call__(self, theta: Array) -> tuple[float, Array]:
        n, p = self.n, self.size
        inverse_squares = np.exp(-2 * theta[:p])
        variance, noise = math.exp(theta[p]), math.exp(theta[p + 1])
        r2 = inverse_squares @ self.squares
        share = 1 / (1 + math.exp(-theta[-1])) if self.kernel == "mixed" else 0.0
        if self.kernel != "matern":
            together = variance * np.exp(-0.5 * r2)
            k0 = pull = (1 - share) * together
            if self.kernel == "mixed":
                alone = (variance / p) * np.exp(-0.5 * inverse_squares[:, None] * self.squares)
                summed = alone.sum(0)
                k0 = pull + share * summed
        else:
            r = np.sqrt(5 * r2)
            e = variance * np.exp(-r)
            k0, pull = (1 + r + r * r / 3) * e, 5 / 3 * (1 + r) * e
        k = k0.reshape(n, n).copy()
        k.flat[:: n + 1] += self.known + noise * self.shares + JITTER
        try:
            inverse, half_log = _inverted(k)
        except NoFit:
            return 1e10, np.zeros_like(theta)
        alpha = inverse @ self.y
        w = np.outer(alpha, alpha) - inverse
        flat = w.ravel()
        gradient = np.empty(len(theta))
        gradient[:p] = -0.5 * (self.squares @ (flat * pull)) * inverse_squares
        if self.kernel == "mixed":
            gradient[:p] -= 0.5 * share * ((self.squares * alone) @ flat) * inverse_squares
            gradient[p + 2] = -0.5 * share * (1 - share) * float(flat @ (summed - together))
        gradient[p] = -0.5 * float(flat @ k0)
        gradient[p + 1] = -0.5 * float(np.diag(w) @ self.shares) * noise
        repeats = 0.0
        if len(self.freedom):
            repeats, slope = self._repeats(noise)
            gradient[p + 1] += slope
        off = (theta - self.centre) / self.spread
        value = repeats + 0.5 * float(self.y @ alpha) + half_log + 0.5 * float(off @ off)
        return value, gradient + off / self.spread

    def _repeats(self, noise: float) -> tuple[float, float]:
        """Minus the log density of the repeats about their means, and its derivative by the log of the noise."""
        runs = self.freedom + 1
        own = noise * self.shares[self.repeated] * runs
        variance = self.known[self.repeated] * runs + own + JITTER
        value = 0.5 * float((self.freedom * np.log(variance) + self.scatter / variance).sum())
        return value, 0.5 * float(((self.freedom - self.scatter / variance) / variance * own).sum())


def _squares(a: Array, b: Array) -> Array:
    """Squared distances of rows, `(len(a), len(b))`."""
    found = (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2 * (a @ b.T)
    return np.asarray(np.maximum(found, 0.0))


def _bordered(solved: tuple[Array, Array], beside: Array, left: float, value: float) -> tuple[Array, Array]:
    """M and alpha of `GP._solved` with one more value: far cheaper than another inverse (Schur's complement).

    Args:
        solved: M and alpha before.
        beside: `(n,)` covariances of the new point with those before.
        left: Variance of a value there, given those before.
        value: The value.
    """
    inverse, alpha = solved
    border = inverse @ beside / left
    off = (value - float(beside @ alpha)) / left
    n = len(beside)
    grown = np.empty((n + 1, n + 1))
    grown[:n, :n] = inverse + left * np.outer(border, border)
    grown[n, :n] = grown[:n, n] = -border
    grown[n, n] = 1 / left
    return grown, np.concatenate([alpha - off * left * border, [off]])


def _correlation(r2: Array, kernel: Kernel) -> Array:
    if kernel != "matern":
        return np.asarray(np.exp(-0.5 * r2))
    r = np.sqrt(5 * r2)
    return np.asarray((1 + r + r * r / 3) * np.exp(-r))


def _inverted(k: Array) -> tuple[Array, float]:
    """Inverse of a positive definite matrix and half the logarithm of its determinant."""
    lower, failed = linalg.lapack.dpotrf(k, lower=1, clean=1)
    if failed:
        raise NoFit("the covariance of the values is not positive definite")
    half_log = float(np.log(np.diag(lower)).sum())
    half, failed = linalg.lapack.dpotri(lower, lower=1)
    if failed:
        raise NoFit("the covariance of the values cannot be inverted")
    full = half + half.T
    full.flat[:: len(full) + 1] *= 0.5
    return full, half_log
