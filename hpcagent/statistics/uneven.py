"""Noise that differs from region to region.

    variance of a run at x = own noise x exp(g(x)),   g ~ GP(0, s^2 / d sum_j exp(-(x_j - x'_j)^2 / 2 l^2))

With one noise for all, runs count too little where they are exact and too much where they are not, and errors,
chances to keep a limit and repeats are wrong in both places. g is the most probable one, found by Fisher scoring
with the marginal likelihood of the values and of the scatter of repeats (most likely heteroscedastic regression,
Kersting et al., ICML 2007, without their sampling). It varies slowly, is drawn to 0 where nothing tells, and is
used only where the evidence for it (by Laplace's approximation) is strong: even noise stays one number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hpcagent.statistics.covariance import Array, NoFit
from hpcagent.statistics.density import Density
from hpcagent.statistics.gp import GP

__all__ = ["Uneven", "unevenly"]

# Of fewer values no regions can be told apart.
LEAST_VALUES = 10
# Below this noise variance, as a share of the values', runs are as good as exact: what differs is the function.
NOTABLE = 1e-4
# Standard deviation of the log variance (that of the prior of the noise itself), and length scale: 1 is the range.
SPREAD, LENGTH = 2.5, 0.5
# Noise variance to begin with, as a share of the values'.
SOME_NOISE = 0.05
# Log of a Bayes factor of 20 (Kass and Raftery, JASA 90 (1995) 773: strong evidence).
DECISIVE = 3.0
# And of 3, "not worth more than a bare mention".
UNDECIDED = 1.0
STEPS, LONGEST = 12, 2.0
ROUNDS = 2


@dataclass(frozen=True)
class Uneven:
    """How the noise varies.

    Attributes:
        x: `(s, columns)` rows where it was looked at.
        weights: `(s,)` what each counts in g.
        places: The columns of each parameter.
    """

    x: Array
    weights: Array
    places: tuple[slice, ...]

    def __call__(self, rows: Array) -> Array:
        """`(m,)` how many times the own noise variance of the model a run at rows has."""
        g = np.zeros(len(rows))
        for place in self.places:
            a, b = rows[:, place], self.x[:, place]
            squares = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * (a @ b.T)
            g += _alike(np.maximum(squares, 0.0)) @ self.weights
        return np.asarray(np.exp(g / len(self.places)))


def unevenly(gp: GP) -> GP:
    """The model with noise that differs by region, where there is strong evidence for it; else the same model.

    One strange value makes no region: without it the evidence must not speak against regions.
    """
    even = gp.density
    if even.n < LEAST_VALUES or gp.own_noise < NOTABLE:
        return gp
    try:
        prior = _prior(even)
        first = _first(even, prior)
        if first.evidence <= even.evidence:
            return gp
        best, density = _alternated(even, prior, first.g)
        if best.evidence <= even.evidence + DECISIVE:
            return gp
        fewer = even.but(even.strangest())
        fewer.maximised()
        if _first(fewer, _prior(fewer)).evidence <= fewer.evidence - UNDECIDED:
            return gp
    except NoFit:
        return gp
    places = tuple(even.features.columns(j) for j in range(even.size))
    weights = np.asarray(np.linalg.solve(prior, best.g), dtype=float)
    return gp.with_noise(density, Uneven(even.x, weights, places), best.evidence)


def _prior(even: Density) -> Array:
    """`(n, n)` covariance of g at the values."""
    prior: Array = _alike(even.squares).mean(0).reshape(even.n, even.n)
    prior.flat[:: even.n + 1] += 1e-6
    return prior


def _first(even: Density, prior: Array) -> _Scored:
    """g for what was fitted with one noise, which may have taken noise for structure, or for a smooth function."""
    smooth = even.centre.copy()
    smooth[even.size + 1] = math.log(SOME_NOISE)
    starts = [_scored(even, theta, prior, np.zeros(even.n)) for theta in (even.top, smooth)]
    return max(starts, key=lambda s: s.evidence)


@dataclass(frozen=True)
class _Scored:
    """The most probable g at the values, and the evidence for it."""

    g: Array
    evidence: float


def _alternated(even: Density, prior: Array, g: Array) -> tuple[_Scored, Density]:
    """Length scales, variance and noise given g, and g given those, in turn."""
    for _ in range(ROUNDS):
        density = even.louder(np.exp(g))
        theta, _ = density.maximised()
        scored = _scored(even, theta, prior, g)
        g = scored.g
    found = even.louder(np.exp(g))
    found.top, found.evidence = theta, scored.evidence
    return scored, found


def _scored(even: Density, theta: Array, prior: Array, g: Array) -> _Scored:
    """Fisher scoring from g, given the other hyperparameters."""
    inverse = np.linalg.inv(prior)

    def at(g: Array) -> tuple[float, Array, Array]:
        value, slope, told = even.louder(np.exp(g)).by_noise(theta)
        return value - 0.5 * float(g @ inverse @ g), slope - inverse @ g, told

    value, slope, told = at(g)
    for _ in range(STEPS):
        step = np.linalg.solve(told + inverse, slope)
        step *= min(1.0, LONGEST / float(np.abs(step).max()))
        for share in (1.0, 0.3, 0.1):
            tried = g + share * step
            then = at(tried)
            if then[0] > value:
                break
        else:
            break
        gain, (value, slope, told), g = then[0] - value, then, tried
        if gain < 0.02:
            break
    _, half_log = np.linalg.slogdet(np.eye(len(g)) + prior @ told)
    return _Scored(g, value - 0.5 * float(half_log))


def _alike(squares: Array) -> Array:
    """Covariance of g by one parameter, at squared distances."""
    return np.asarray(SPREAD**2 * np.exp(-0.5 / LENGTH**2 * squares))
