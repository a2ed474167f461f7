"""The cheapest setting that is good enough, where every parameter only makes a run dearer and more accurate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hpcagent.errors import BadInput
from hpcagent.model.base import Scalar
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.base import one_goal
from hpcagent.policies.early import imputed
from hpcagent.statistics.points import inside, whole

__all__ = ["Staircase"]

MOST_POINTS = 200_000
LEAST_FOR_FIT = 3


class Staircase:
    """Bisection of a grid whose points are good enough from a staircase upwards: cutoffs, meshes, basis sets.

    A point that keeps the limits speaks for every point above it, one that breaks them (or fails) for every point
    below; what is left between them, and is cheaper than the best point known, is searched. The next point is the
    one whose answer, whatever it is, settles most. What a point costs is read from the goal as a power law of the
    parameters. Small breaks of the order (an odd mesh that is luckier than the next even one) cost optimality, not
    correctness: the answer is a point that was run.

    Args:
        space: Where to search: numbers, from the cheapest to the dearest.
        objective: Minimise the cost, subject to at least one limit.
        seed: Not used.
        levels: Values of each real parameter: one number for all, or one for each name (8 where not named).
        falling: Parameters whose smaller values are the dearer and more accurate ones (a tolerance).

    Raises:
        BadInput: The objective has no limit or maximises, a parameter is no number, or the grid is too large.
    """

    def __init__(
        self,
        space: Space,
        objective: Objective,
        *,
        seed: int = 0,
        levels: int | Mapping[str, int] = 8,
        falling: Sequence[str] = (),
    ) -> None:
        one_goal("staircase", objective)
        if objective.goal.direction != "minimize" or not objective.constraints:
            raise BadInput(
                "policy 'staircase' looks for the cheapest point that keeps a limit: minimise a cost, subject to "
                f"a limit on an error; got {objective}.",
                value=str(objective),
            )
        for name in (*falling, *(levels if isinstance(levels, Mapping) else ())):
            space[name]
        for p in space.parameters:
            if p.kind == "choice" and any(isinstance(c, (str, bool)) for c in p.choices):
                raise BadInput(
                    f"policy 'staircase' needs parameters in an order, from cheap to dear; {p.name!r} has words "
                    "or booleans.",
                    value=p.name,
                )
        self.space, self.objective = space, objective
        self.axes = [self._axis(p.name, levels, p.name in falling) for p in space.parameters]
        size = int(np.prod([len(axis) for axis in self.axes]))
        if size > MOST_POINTS:
            raise BadInput(f"a staircase over {size} points is too large; use fewer levels.", value=size)
        shape = [range(len(axis)) for axis in self.axes]
        self.grid: NDArray[np.int64] = np.array(list(product(*shape)), dtype=np.int64)
        if not space.simple:
            self._check_simple_enough(space)
            self.grid = np.array([g for g in self.grid if space.allows(self._point(g))], dtype=np.int64)
            if not len(self.grid):
                raise BadInput(
                    f"no point of the staircase keeps the constraints ({'; '.join(map(str, space.constraints))}); "
                    "use more levels.",
                    value=size,
                )

    @staticmethod
    def _check_simple_enough(space: Space) -> None:
        """Its order needs every parameter in every point, each with values of its own."""
        conditional = [p.name for p in space.parameters if p.when is not None]
        equal = [one.follows for one in space.region.columns.equalities]
        for names, why in (
            (conditional, "is not a part of every point (when)"),
            (equal, "follows from others (==)"),
        ):
            if names:
                raise BadInput(
                    f"policy 'staircase' steps along every parameter by itself, but {names[0]!r} {why}; take "
                    "'bayes' or 'quality_first'.",
                    value=names[0],
                )

    def _axis(self, name: str, levels: int | Mapping[str, int], falling: bool) -> list[Scalar]:
        p = self.space[name]
        if p.kind == "int":
            assert p.low is not None and p.high is not None
            values: list[Scalar] = list(range(int(p.low), int(p.high) + 1))
        elif p.kind == "choice":
            values = sorted(p.choices, key=float)
        else:
            n = levels.get(name, 8) if isinstance(levels, Mapping) else levels
            values = list(p.levels(whole(f"levels of {name!r}", n)))
        return values[::-1] if falling else values

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        """Return at most `n` points that settle most; none when the cheapest one is known."""
        good, bad, costs = self._known(history)
        waiting = [i for p in pending if (i := self._index(p)) is not None]
        left = self._open(good, bad, costs)
        for index in waiting:
            left &= ~(self.grid == index).all(axis=1)
        # How probable it is that a point is still open when those that are under way have answered.
        weight = left.astype(float)
        for index in waiting:
            weight *= self._after(np.array(index), costs)
        chosen: list[Params] = []
        while left.any() and len(chosen) < n:
            candidates = np.flatnonzero(left)
            worth = [self._worth(self.grid[c], weight, costs) for c in candidates]
            best = candidates[int(np.argmax(worth))]
            chosen.append(self._point(self.grid[best]))
            left[best] = False
            weight *= self._after(self.grid[best], costs)
            weight[best] = 0.0
        return chosen

    def _known(
        self, history: Sequence[Observation]
    ) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]], NDArray[np.float64]]:
        """Good points, bad points, and the cost of every point of the grid: measured, or by the power law."""
        good: list[NDArray[np.int64]] = []
        bad: list[NDArray[np.int64]] = []
        seen: dict[tuple[int, ...], float] = {}
        for o in imputed(history, self.objective):
            index = self._index(o.params)
            if index is None:
                continue
            fine = o.completed and self.objective.known(o.metrics) and self.objective.feasible(o.metrics)
            (good if fine else bad).append(np.array(index))
            cost = o.metrics.get(self.objective.goal.metric) if o.completed else None
            if cost is not None and cost > 0:
                seen[index] = float(cost)
        return good, bad, self._costs(seen)

    def _costs(self, seen: Mapping[tuple[int, ...], float]) -> NDArray[np.float64]:
        places = np.log1p(self.grid)
        rising = places.sum(axis=1)
        if len(seen) < max(LEAST_FOR_FIT, 1 + len(self.axes)):
            guess: NDArray[np.float64] = np.exp(rising)
            return guess
        at = np.log1p(np.array(list(seen)))
        design = np.column_stack([np.ones(len(at)), at])
        fit, *_ = np.linalg.lstsq(design, np.log(np.array(list(seen.values()))), rcond=None)
        # Dearer upwards is what the search rests on; a noisy clock must not turn it round.
        slopes = np.maximum(fit[1:], 1e-3)
        costs: NDArray[np.float64] = np.exp(fit[0] + places @ slopes)
        for index, cost in seen.items():
            costs[(self.grid == index).all(axis=1)] = cost
        return costs

    def _open(
        self, good: Sequence[NDArray[np.int64]], bad: Sequence[NDArray[np.int64]], costs: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        left = np.ones(len(self.grid), dtype=bool)
        for index in bad:
            left &= ~(self.grid <= index).all(axis=1)
        for index in good:
            left &= ~(self.grid >= index).all(axis=1)
            left &= costs < costs[(self.grid == index).all(axis=1)][0]
        return left

    def _after(self, index: NDArray[np.int64], costs: NDArray[np.float64]) -> NDArray[np.float64]:
        """For every point the probability that it stays open, both answers of `index` being as probable."""
        return 1.0 - 0.5 * self._if_good(index, costs) - 0.5 * (self.grid <= index).all(axis=1)

    def _if_good(self, index: NDArray[np.int64], costs: NDArray[np.float64]) -> NDArray[np.bool_]:
        own = costs[(self.grid == index).all(axis=1)][0]
        settled: NDArray[np.bool_] = (self.grid >= index).all(axis=1) | (costs >= own)
        return settled

    def _worth(self, index: NDArray[np.int64], weight: NDArray[np.float64], costs: NDArray[np.float64]) -> float:
        if_good = float(weight[self._if_good(index, costs)].sum())
        if_bad = float(weight[(self.grid <= index).all(axis=1)].sum())
        return min(if_good, if_bad)

    def _index(self, params: Mapping[str, Scalar]) -> tuple[int, ...] | None:
        """Where on the grid a point lies; None for one beside it."""
        known = inside(self.space, params)
        if known is None:
            return None
        found = []
        for p, axis in zip(self.space.parameters, self.axes, strict=True):
            if known[p.name] not in axis:
                return None
            found.append(axis.index(known[p.name]))
        return tuple(found)

    def _point(self, index: NDArray[np.int64]) -> Params:
        return {p.name: axis[int(i)] for p, axis, i in zip(self.space.parameters, self.axes, index, strict=True)}
