"""Does a metric depend on the parameters at all? Tests for "no", so that a campaign can be ended with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from hpcagent.model.base import Scalar
from hpcagent.model.space import Space
from hpcagent.statistics.trend import Array

__all__ = ["Sensitivity", "sensitivity"]


@dataclass(frozen=True)
class Sensitivity:
    """What the tests say.

    Attributes:
        p_values: Smallest p-value for each parameter that took more than one value.
        p_overall: p-value of the regression on all of them together.
        tests: How many tests were made, for the correction.
    """

    p_values: Mapping[str, float]
    p_overall: float
    tests: int

    def depends(self, alpha: float) -> tuple[str, ...]:
        """Parameters with p < alpha / tests (Bonferroni)."""
        return tuple(name for name, p in self.p_values.items() if p < alpha / self.tests)

    def insensitive(self, alpha: float) -> bool:
        """Whether neither a parameter nor all together show an effect."""
        return bool(self.p_values) and not self.depends(alpha) and self.p_overall >= alpha / self.tests


def sensitivity(space: Space, points: Sequence[Mapping[str, Scalar]], values: Sequence[float]) -> Sensitivity:
    """Test whether `values` depend on the parameters.

    For a number: Spearman's rank correlation, and the same of the distance from the middle of the range (a
    hump). For a choice: Kruskal and Wallis. For all together: the F test of a regression of the ranks on
    them, F = (R^2 / p) / ((1 - R^2) / (n - p - 1)).

    Args:
        space: The parameters.
        points: n points of the space.
        values: n values.

    Example:
        >>> from hpcagent.model.parameter import Float
        >>> x = np.linspace(0, 1, 20)
        >>> found = sensitivity(Space.of(x=Float(0, 1)), [{"x": v} for v in x], x**2)
        >>> found.depends(0.05)
        ('x',)
    """
    y = np.asarray(values, dtype=float)
    units = np.array([space.to_unit(p) for p in points]).reshape(len(y), len(space))
    flat = len(y) < 3 or float(np.ptp(y)) == 0.0
    p_values: dict[str, float] = {}
    columns: list[Array] = []
    tests = 1
    for k, parameter in enumerate(space.parameters):
        u = units[:, k]
        if float(np.ptp(u)) == 0.0:
            continue
        if parameter.kind == "choice":
            levels = sorted(set(u.tolist()))
            columns += [(u == level).astype(float) for level in levels[1:]]
            p_values[parameter.name] = 1.0 if flat else _kruskal([y[u == level] for level in levels])
            tests += 1
        else:
            hump = np.abs(u - 0.5 * (u.min() + u.max()))
            columns += [u, hump]
            p_values[parameter.name] = 1.0 if flat else min(_spearman(u, y), _spearman(hump, y))
            tests += 2
    overall = 1.0 if flat or not columns else _regression(np.column_stack(columns), stats.rankdata(y))
    return Sensitivity(p_values, overall, tests)


def _spearman(u: Array, y: Array) -> float:
    if float(np.ptp(u)) == 0.0:
        return 1.0
    p = float(stats.spearmanr(u, y).pvalue)
    return p if np.isfinite(p) else 1.0


def _kruskal(groups: Sequence[Array]) -> float:
    return float(stats.kruskal(*groups).pvalue)


def _regression(x: Array, y: Array) -> float:
    n, p = x.shape
    if n - p - 1 < 1:
        return 1.0
    design = np.column_stack([np.ones(n), x])
    solution = np.linalg.lstsq(design, y, rcond=None)[0]
    rest = float(np.sum((y - design @ solution) ** 2))
    total = float(np.sum((y - y.mean()) ** 2))
    if total <= 0 or rest <= 1e-12 * total:
        return 1.0 if total <= 0 else 0.0
    return float(stats.f.sf((total - rest) / p / (rest / (n - p - 1)), p, n - p - 1))
