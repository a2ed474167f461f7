"""Intervals whose coverage is that of held-out data: conformal prediction, and how far a point is from the data.

V. Vovk, A. Gammerman and G. Shafer, Algorithmic Learning in a Random World, 2005; J. Lei et al., J. Am. Stat.
Assoc. 113, 1094 (2018), doi:10.1080/01621459.2017.1307116.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["conformal_quantile", "coverage_range", "fewest", "folds", "nearest"]

_Array = NDArray[np.float64]


def fewest(coverage: float) -> int:
    """How many held-out scores an interval of a coverage needs: the smallest n with (n + 1) coverage <= n.

    Example:
        >>> fewest(0.95), fewest(0.9)
        (19, 9)
    """
    return math.ceil(coverage / (1 - coverage) - 1e-9)


def conformal_quantile(scores: Sequence[float] | _Array, coverage: float) -> float:
    """The ceil((n + 1) coverage)-th smallest of n scores: a further one is at most that, with this probability.

    Args:
        scores: (n,) of held-out points, e.g. |error| / sigma.
        coverage: Between 0 and 1.

    Returns:
        The score; infinite where n is too small (see `fewest`).

    Example:
        >>> conformal_quantile(range(1, 20), 0.95)
        19.0
    """
    values = np.sort(np.asarray(scores, dtype=float))
    place = math.ceil((len(values) + 1) * coverage - 1e-9)
    return float(values[place - 1]) if place <= len(values) else math.inf


def coverage_range(share: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share that was seen in n independent cases.

    Example:
        >>> low, high = coverage_range(0.5, 10)
        >>> round(low, 3), round(high, 3)
        (0.187, 0.813)
    """
    from scipy.stats import beta

    tail = (1 - confidence) / 2
    hits = share * n
    low = 0.0 if hits <= 0 else float(beta.ppf(tail, hits, n - hits + 1))
    high = 1.0 if hits >= n else float(beta.ppf(1 - tail, hits + 1, n - hits))
    return low, high


def folds(groups: Sequence[Hashable], count: int, rng: np.random.Generator) -> NDArray[np.int_]:
    """Which fold each point is in; points of one group are never in two, and folds are of about one size.

    Args:
        groups: (n,) the group of each point.
        count: Folds; not more than there are groups.
        rng: Order of groups of one size.

    Returns:
        (n,) numbers from 0 to count - 1.

    Example:
        >>> folds(["a", "b", "a", "c"], 2, np.random.default_rng(0)).tolist()
        [0, 1, 0, 1]
    """
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    names = list(members)
    order = sorted((names[i] for i in rng.permutation(len(names))), key=lambda name: -len(members[name]))
    sizes = np.zeros(count, int)
    found = np.zeros(len(groups), int)
    for name in order:
        smallest = int(np.argmin(sizes))
        found[members[name]] = smallest
        sizes[smallest] += len(members[name])
    return found


def nearest(x: _Array, to: _Array) -> _Array:
    """Distance of each row of x (m, d) to the nearest row of `to` (n, d), per root of d: (m,).

    Example:
        >>> nearest(np.array([[0.0, 3.0]]), np.array([[0.0, 0.0], [9.0, 9.0]])).round(3).tolist()
        [2.121]
    """
    from scipy.spatial import cKDTree

    found, _ = cKDTree(to).query(x)
    return np.asarray(found) / math.sqrt(x.shape[1])
