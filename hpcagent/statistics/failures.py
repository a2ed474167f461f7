"""Where runs fail: a chance at every point, and how much of it is only doubt.

A regression of 0 (completed) and 1 (failed) by a Gaussian process, squeezed into a probability. A few failures may
have several explanations (these numbers, or that value of a choice); the model then says that it does not know, by
a large standard deviation. Points that have merely never been seen to complete are another thing than points that
are known to fail: `log_completes` can give the benefit of the doubt, so that no value of a choice and no
half-space is given up on a handful of failures that something else explains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hpcagent.later import Later
from hpcagent.statistics.covariance import Array
from hpcagent.statistics.features import Features
from hpcagent.statistics.gp import GP

__all__ = ["Failures"]

# Imported when a number is first asked for: it takes longer than the rest of a start.
special = Later("scipy.special")

# A run that completes with this chance is taken to complete while it is waiting.
SURE = 0.9
# Length scale of choices: a reason to fail holds for all their values, unless runs tell otherwise.
SHARED = 0.7


@dataclass(frozen=True)
class Failures:
    """Where runs fail.

    Attributes:
        gp: The model of 0 (completed) and 1 (failed).
    """

    gp: GP

    @classmethod
    def fit(cls, features: Features, rows: Array, failed: Array, runs: Array) -> Failures:
        """Fit to the share of `runs` that failed at each row, `(n,)` both."""
        gp = GP.fit(
            features, rows, failed, runs=runs, kernel="matern", least_noise=1e-3, shortest=0.15, shared=SHARED
        )
        return cls(gp)

    def completes(self, rows: Array) -> Array:
        """P(a run completes) at rows."""
        mean, sd = self.gp.predict(rows)
        return np.asarray(special.ndtr((0.5 - mean) / self._width(sd)))

    def believing(self, rows: Array) -> Failures:
        """As if runs at these rows that may well fail had failed: not a whole batch is lost at one edge."""
        expected = np.where(self.completes(rows) < SURE, 1.0, self.gp.predict(rows)[0])
        return Failures(self.gp.told(rows, expected))

    def log_completes(self, rows: Array, *, doubt: float = 0.0, slopes: bool = True) -> tuple[Array, Array]:
        """Log of that, and its derivative by the columns, where it is needed.

        Args:
            rows: `(m, columns)`.
            doubt: So many standard errors of the model are taken in the point's favour where no run has told
                anything; less where runs nearby have. At an edge that was found there is little doubt.
            slopes: Whether the derivative is needed.
        """
        mean, sd, dmean, dsd = self.gp.slopes(rows, needed=slopes)
        width = self._width(sd)
        ignorant = self.gp.unit * math.sqrt(self.gp.variance)
        z = (0.5 - mean + doubt * sd**2 / ignorant) / width
        dlift = (2 * doubt * sd / ignorant)[:, None] * dsd
        dz = (dlift - dmean) / width[:, None] - (z * sd / width**2)[:, None] * dsd
        log_p = special.log_ndtr(z)
        return log_p, np.exp(-0.5 * z * z - log_p)[:, None] / math.sqrt(2 * math.pi) * dz

    def _width(self, sd: Array) -> Array:
        return np.sqrt(sd**2 + self.gp.own_noise * self.gp.unit**2 + 0.01)
