"""Gaussian process regression on the points of a space, small and quick.

    cov(f(a), f(b)) = s^2 k(r),   r^2 = sum_j (a_j - b_j)^2 / l_j^2        (Rasmussen and Williams 2006, ch. 2, 4)

with the squared exponential k = exp(-r^2 / 2) or Matern 5/2, and for a choice [a_j != b_j] in place of the
squared difference; or a mixture of the squared exponential with the mean of its factors of single parameters,
because effects on speeds and errors often multiply (on the logarithmic scale: add), and what one parameter does
is then learned from every run (Duvenaud, Nickisch, Rasmussen, NeurIPS 2011).

Length scales, variance and noise maximise the posterior density (`density.py`). No random numbers: the same data
give the same model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hpcagent.moved import moved
from hpcagent.statistics.covariance import (
    JITTER,
    Array,
    Kernel,
    NoFit,
    bordered,
    correlation,
    inverted,
    linalg,
    squared_distances,
)
from hpcagent.statistics.density import CHOICE_CENTRE, Density
from hpcagent.statistics.features import Features

__all__ = ["GP"]

LEAST_NOISE = 1e-6
# With few values another inverse is cheap; with more it grows by a border, which loses a share of the variance.
FEW_TOLD = 64
UNRESOLVED = 1e-4
LEAST_WEIGHT = 1e-3  # of the largest: models that the values speak for less are left out
# Values beyond this many are spoken for by so many of their points.
MOST_EXACT = 200
MOST_INDUCING = 160


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
        inverse, _ = inverted(k)
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
            return self.variance * correlation(squared_distances(a, b), self.kernel)
        return sum(self._parts(a, b))  # type: ignore[return-value]  # there is at least one part

    def _parts(self, a: Array, b: Array) -> list[Array]:
        """The mixed covariance of scaled rows: of all parameters together, and of each alone."""
        each = [squared_distances(a[:, place], b[:, place]) for place in self._places]
        together = self.variance * (1 - self.share) * np.exp(-0.5 * sum(each))
        part = self.variance * self.share / self._size
        return [together, *(part * np.exp(-0.5 * r2) for r2 in each)]

    def _beside(self, scaled: Array, i: int) -> Array:
        """`(n,)` covariances of scaled row `i` with all of them."""
        squares = (scaled - scaled[i]) ** 2
        if self.kernel != "mixed":
            return self.variance * correlation(squares.sum(1), self.kernel)
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
            solved = bordered(solved, beside, max(left, 0.0) + max(own, least), value)
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
        inverse, _ = inverted(inside)
        root = linalg.solve_triangular(rows[:, at].T, np.eye(len(at)), lower=True)
        rest = np.eye(len(at)) - inverse
        return cls(np.array(at), (root.T @ rest @ root, root.T @ (inverse @ (g @ (weight * gp.y)))))


__getattr__ = moved(__name__, {"one_thread": "hpcagent.statistics.covariance"})
