"""What the ranking by a cheap level says of a dear one, learnt from the points that were computed at both.

Two questions. How alike do the levels rank? Kendall's tau of the pairs of points, with the interval of the
Mallows model (C. L. Mallows, Biometrika 44, 114 (1957), doi:10.1093/biomet/44.1-2.114), in which the
distribution of the number of pairs that stand the other way round is known exactly for any number of points: so
three points that stand alike say as little as they should. And which points, known at the cheap level only, may
yet be the best at the dear one? A value at the dear level is the cheap one plus a shift that differs from point
to point; mean and scatter of the shift are estimated from the pairs, and the prediction for another point has
Student's distribution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np

from hpcagent.later import Later
from hpcagent.model.base import Record, Scalar
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.statistics.points import Key, key, located
from hpcagent.statistics.recommend import Estimate, estimates

__all__ = ["DOUBT", "Agreement", "agreements", "chances", "kendall", "level_estimates", "level_scores"]

# Imported when a number is first asked for: it takes longer than the rest of a start.
special = Later("scipy.special")

DOUBT = 0.05
"""A chance of being the best from which on a point is not given up."""

# From here on the normal approximation of atanh(tau), with variance 0.437 / (n - 4), takes the place of the exact
# distribution: E. C. Fieller, H. O. Hartley and E. S. Pearson, Biometrika 44, 470 (1957), doi:10.2307/2332878.
_MANY = 100

Scores = dict[Key, float]


class Agreement(Record):
    """How a cheaper level ranked the points that were computed at the next one, too.

    Attributes:
        cheap: Value of the fidelity that is the cheaper level.
        dear: Value that is the next one.
        points: How many points were computed at both.
        alike: Pairs of them that stand in the same order at both; a tie counts half.
        pairs: Pairs of points in all.
        tau: Kendall's rank correlation, -1 to 1; NaN for fewer than two points.
        low: Lower end of its 95 % interval.
        high: Upper end.
        left: Points known at the cheaper level only.
        doubtful: Those of `left` that may be the best at the dear level with a chance of 5 % or more, most likely
            first.
        chance: Chance of each of `doubtful` to be better than the best that was computed; NaN for all of them
            where fewer than two points were computed at both.
    """

    cheap: Scalar
    dear: Scalar
    points: int
    alike: float
    pairs: int
    tau: float
    low: float
    high: float
    left: int
    doubtful: tuple[Params, ...] = ()
    chance: tuple[float, ...] = ()

    def __str__(self) -> str:
        if self.points < 2:
            said = f"how far {self.cheap} ranks as {self.dear} does is not known: {self.points} point(s) at both"
        else:
            said = (
                f"{self.cheap} ranks {self.alike:g} of {self.pairs} pairs of points as {self.dear} does: "
                f"Kendall's tau {self.tau:.2f}, 95 % between {self.low:.2f} and {self.high:.2f}, from "
                f"{self.points} points"
            )
        return f"{said}; {self._of_others()}"

    def _of_others(self) -> str:
        if not self.left:
            return f"every point was computed by {self.dear}"
        if not self.doubtful:
            return f"none of the {self.left} other(s) has a chance of 5 % to be better than the best"
        if self.points < 2:
            return f"each of the {self.left} other(s) may be better than the best"
        named = [
            f"{', '.join(map(str, point.values()))} ({chance:.0%})"
            for point, chance in zip(self.doubtful[:5], self.chance, strict=False)
        ]
        more = f" and {len(self.doubtful) - 5} more" if len(self.doubtful) > 5 else ""
        return f"of the {self.left} other(s) may be better than the best: {', '.join(named)}{more}"


def level_scores(
    history: Sequence[Observation], objective: Objective, space: Space, parameter: str, level: Scalar
) -> Scores:
    """Mean score of each point at one level, by its other parameters; larger is better.

    As `level_estimates`, but points whose goal was only measured in runs that did not have their core count only
    where there is no other point.
    """
    found = level_estimates(history, objective, space, parameter, level)
    trusted = {point: e for point, e in found.items() if e.trusted}
    return {point: e.score for point, e in (trusted or found).items()}


def level_estimates(
    history: Sequence[Observation], objective: Objective, space: Space, parameter: str, level: Scalar
) -> dict[Key, Estimate]:
    """What is known of each point at one level, by its other parameters.

    Repeats are pooled. Points of which more than half of the runs failed, that lack a metric of the objective, or
    whose means break a limit are left out.
    """
    runs = [replace(o, params=params) for params, o in located(space, history)]
    at_level = [o for o in runs if o.params[parameter] == level]
    return {
        key({k: v for k, v in e.params.items() if k != parameter}): e
        for e in estimates(at_level, objective)
        if e.runs >= e.failed and objective.feasible(e.metrics)
    }


def chances(cheap: Scores, dear: Scores) -> dict[Key, float]:
    """Chance of each point known at the cheap level only to be better than the best of the dear level.

    With n pairs, mean m and standard deviation s of dear - cheap, the score of another point is cheap + m with an
    error of s sqrt(1 + 1/n) that has Student's distribution of n - 1 degrees of freedom. NaN with fewer than two
    pairs: nothing is known of the error then.

    Example:
        >>> cheap = {(("m", m),): float(m) for m in range(4)}
        >>> dear = {(("m", 3),): 13.5, (("m", 2),): 12.0}
        >>> {point[0][1]: round(chance, 2) for point, chance in chances(cheap, dear).items()}
        {0: 0.04, 1: 0.06}
    """
    left = [point for point in cheap if point not in dear]
    shifts = np.array([dear[point] - cheap[point] for point in dear if point in cheap])
    if len(shifts) < 2:
        return dict.fromkeys(left, math.nan)
    best, mean, scatter = max(dear.values()), float(shifts.mean()), float(shifts.std(ddof=1))
    width = scatter * math.sqrt(1 + 1 / len(shifts))
    found = {}
    for point in left:
        short = cheap[point] + mean - best
        # Levels that differ by a constant, to rounding, rank exactly alike.
        exact = width <= 1e-12 * max(abs(best), abs(mean), 1e-300)
        found[point] = float(short > 0) if exact else float(special.stdtr(len(shifts) - 1, short / width))
    return found


def kendall(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float, float]:
    """Kendall's tau of two rankings, and its 95 % interval.

    Args:
        first: (n,) scores.
        second: (n,) scores of the same points.

    Returns:
        Pairs that stand alike (ties count half), tau, and the ends of the interval; NaN for n < 2.

    Example:
        >>> alike, tau, low, high = kendall([1, 2, 3, 4, 5], [1, 2, 3, 5, 4])
        >>> alike, tau, round(low, 2), round(high, 2)
        (9.0, 0.8, -0.1, 0.99)
    """
    n = len(first)
    if n < 2:
        return 0.0, math.nan, math.nan, math.nan
    signs = [np.sign(first[i] - first[j]) * np.sign(second[i] - second[j]) for i, j in combinations(range(n), 2)]
    pairs = len(signs)
    alike = float(sum((1 + sign) / 2 for sign in signs))
    turned, tau = pairs - alike, 2 * alike / pairs - 1
    if n > _MANY:
        middle, width = math.atanh(max(-0.999, min(0.999, tau))), 1.96 * math.sqrt(0.437 / (n - 4))
        low = math.tanh(middle - width) if alike else -1.0
        return alike, tau, low, math.tanh(middle + width) if turned else 1.0
    low = -_solved(n, math.ceil(turned), below=True)
    high = -_solved(n, math.floor(turned), below=False)
    return alike, tau, low, high


def _solved(n: int, turned: int, *, below: bool) -> float:
    """Minus tau of the Mallows model in which so few (so many) turned pairs have a chance of 2.5 %."""
    pairs = n * (n - 1) // 2
    if (not below and turned == 0) or (below and turned == pairs):
        return -1.0 if not below else 1.0
    small, large = -40.0, 40.0  # log of the weight of one turned pair; the chance of few falls with it
    for _ in range(60):
        middle = (small + large) / 2
        chance = _turned(n, middle)
        tail = chance[: turned + 1].sum() if below else chance[turned:].sum()
        if (tail > 0.025) == below:
            small = middle
        else:
            large = middle
    mean = float(_turned(n, small) @ np.arange(pairs + 1))
    return 2 * mean / pairs - 1


def _turned(n: int, weight: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Chances of 0 ... n (n - 1) / 2 turned pairs where each turned pair counts exp(weight) times."""
    found = np.ones(1)
    for size in range(2, n + 1):
        # A new point passes 0 ... size - 1 of the others; the largest weight is 1 so that nothing overflows.
        step = weight * np.arange(size)
        one = np.exp(step - step.max())
        found = np.convolve(found, one / one.sum())
    return found


def agreements(
    history: Sequence[Observation], objective: Objective, space: Space, fidelity: Mapping[str, object]
) -> tuple[Agreement, ...]:
    """How each level ranked the points of the next, for those levels of a campaign that have runs.

    Args:
        history: Finished runs at all levels.
        objective: What is ranked by; with several goals the first one.
        space: The varied parameters, the fidelity among them.
        fidelity: `parameter`, and `levels`, cheapest first.
    """
    parameter = str(fidelity["parameter"])
    levels: tuple[Scalar, ...] = tuple(fidelity["levels"])  # type: ignore[arg-type]  # of a validated record
    scores = {level: level_scores(history, objective, space, parameter, level) for level in levels}
    found = []
    for cheap, dear in pairwise(levels):
        if not scores[cheap] or not scores[dear]:
            continue
        tried = {_rest(o.params, parameter) for o in history if o.params.get(parameter) == dear}
        both = [point for point in scores[dear] if point in scores[cheap]]
        alike, tau, low, high = kendall([scores[cheap][p] for p in both], [scores[dear][p] for p in both])
        chance = {p: c for p, c in chances(scores[cheap], scores[dear]).items() if p not in tried}
        doubtful = sorted((p for p in chance if not chance[p] < DOUBT), key=lambda p: -chance[p])
        found.append(
            Agreement(
                cheap=cheap,
                dear=dear,
                points=len(both),
                alike=alike,
                pairs=len(both) * (len(both) - 1) // 2,
                tau=tau,
                low=low,
                high=high,
                left=len(chance),
                doubtful=tuple(dict(p) for p in doubtful),
                chance=tuple(chance[p] for p in doubtful),
            )
        )
    return tuple(found)


def _rest(params: Params, parameter: str) -> Key:
    return key({k: v for k, v in params.items() if k != parameter})
