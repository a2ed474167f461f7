"""The mean over repeated runs of one point, and its error."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import stdtrit

__all__ = ["mean_error"]

ONE_SIGMA = 0.5 * (1 + math.erf(1 / math.sqrt(2)))


def mean_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and half the width of the interval that holds the true mean in 68.3 % of cases, by Student's t.

    It is the standard error of the mean, s / sqrt(n), where the values are many; with few it is wider, because s
    is then not well known: 1.84 times for two values, 1.32 times for three. None for a single value.

    Example:
        >>> mean, error = mean_error([1.0, 3.0])
        >>> f"{mean:.1f} {error:.3f}"
        '2.0 1.837'
    """
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return mean, None
    s = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    return mean, float(stdtrit(n - 1, ONE_SIGMA)) * s / math.sqrt(n)
