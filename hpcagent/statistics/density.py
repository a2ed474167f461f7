"""How probable the length scales, variance and noise of a model are, given its values; the most probable ones.

The length scales' prior grows with the square root of the number of parameters (Hvarfner, Hellsten, Nardi, ICML
2024), without which models of more than a few parameters fit noise. No random numbers: the same data give the
same model.
"""

from __future__ import annotations

import hashlib
import math
from copy import copy
from itertools import islice

import numpy as np

from hpcagent.later import Later
from hpcagent.statistics.covariance import JITTER, Array, Kernel, NoFit, correlation, inverted
from hpcagent.statistics.features import Features

__all__ = ["CHOICE_CENTRE", "Density"]

optimize = Later("scipy.optimize")
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
LENGTHENED = (-1.4, -0.7, 0.0, 0.7, 1.4)
SPREAD = 0.6  # of the log length scales' prior
CENTRE = -1.586  # log of its most probable value for one parameter: sqrt(2) - 3
CHOICE_CENTRE = 0.0  # correlation exp(-1/2) between the values of a choice
NOISE_CENTRE, NOISE_SPREAD = math.log(1e-3), 2.5
VARIANCE_SPREAD = 1.0
PROPOSED, FREEDOM = 96, 5.0  # hyperparameters tried, and degrees of freedom of their distribution
SHARE_SPREAD = 1.5  # of the log odds of the single parameters' share

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
        inverse, _ = inverted(self._covariance(self.top))
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
            inverse, half_log = inverted(k)
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
                inverse, half_log = inverted(self._covariance(theta))
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
        k = variance * correlation(inverse_squares @ self.squares, self.kernel)
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
            inverse, half_log = inverted(k)
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
