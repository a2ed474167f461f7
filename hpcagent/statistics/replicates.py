"""The mean over repeated runs of one point, and its error."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcagent.later import Later

__all__ = ["mean_error"]

# Imported when a number is first asked for: it takes longer than the rest of a start.
special = Later("scipy.special")


def mean_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and its error by Student's t: the true mean is within two of it in 95 % of cases.

    Half of the half-width of the 95 % interval. It is about the standard error of the mean, s / sqrt(n), where the
    values are many; with few it is wider, because s is then not well known: 6.35 times for two values, 2.15 for
    three, 1.39 for five. None for a single value. For normal scatter (Student 1908, doi:10.1093/biomet/6.1.1).

    Example:
        >>> mean, error = mean_error([1.0, 3.0])
        >>> f"{mean:.1f} {error:.3f}"
        '2.0 6.353'
    """
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return mean, None
    s = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    return mean, float(special.stdtrit(n - 1, 0.975)) / 2 * s / math.sqrt(n)
