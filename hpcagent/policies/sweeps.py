"""Policies that don't steer: a grid, and three ways of spreading points evenly.

Each is a fixed sequence of points given by its seed. How far it has come follows from the number of
suggestions in the history and pending, so batches of any size, one at a time or all at once, give the same
points in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from hpcagent.errors import BadInput
from hpcagent.later import Later
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Parameter, Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.statistics.points import Given, given, key, whole
from hpcagent.statistics.sobol import scrambled_sobol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = Later("numpy")

__all__ = ["Grid", "LatinHypercube", "Random", "Sobol"]

MOST_GRID_POINTS = 1_000_000
# Beyond this many points a space is not listed; meeting a point twice there is luck, not exhaustion.
MOST_LISTED = 100_000


class Grid:
    """All combinations of a few values of each parameter.

    A point that was lost to the machine is suggested again, because the grid is what was asked for.

    Args:
        space: Where to put the grid.
        objective: Not used.
        seed: Decides the order when shuffled.
        levels: Values of each numeric parameter: one number for all, or one for each name (3 where not
            named). A choice always has all its values.
        order: `given` (last parameter fastest) or `shuffled`.

    Raises:
        BadInput: Unknown parameter, fewer than one level, or more than a million points.
    """

    def __init__(
        self,
        space: Space,
        objective: Objective | None = None,
        *,
        seed: int = 0,
        levels: int | Mapping[str, int] = 3,
        order: Literal["given", "shuffled"] = "given",
    ) -> None:
        if order not in ("given", "shuffled"):
            raise BadInput(f"order={order!r} of a grid must be 'given' or 'shuffled'.", value=order)
        size = grid_size(space, levels)
        if size > MOST_GRID_POINTS:
            raise BadInput(f"a grid of {size:g} points is too large; use fewer levels, or sobol.", value=size)
        self.points = space.grid(levels)
        if not self.points:
            raise BadInput(
                f"no point of the grid keeps the constraints ({'; '.join(map(str, space.constraints))}); use more "
                "levels, or sobol.",
                value=size,
            )
        if order == "shuffled":
            turns = np.random.default_rng([abs(int(seed)), 0x67726964]).permutation(len(self.points))
            self.points = [self.points[i] for i in turns]

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        """Return the next `n` points of the grid that were not given yet."""
        used = {key(p) for p in given(history, pending)}
        return [dict(p) for p in self.points if key(p) not in used][: max(n, 0)]


def grid_size(space: Space, levels: int | Mapping[str, int] = 3) -> int:
    """How many points a grid has, those included that constraints forbid.

    Raises:
        BadInput: Unknown parameter, or fewer than one level.

    Example:
        >>> from hpcagent.model.parameter import Float
        >>> grid_size(Space.of(T=Float(1, 2), p=Float(0, 1)), {"T": 5})
        15
    """
    if isinstance(levels, Mapping):
        for name, n in levels.items():
            space[name]
            whole(f"levels of {name!r}", n)
        return math.prod(len(p.levels(levels.get(p.name, 3))) for p in _chosen(space))
    return math.prod(len(p.levels(whole("levels", levels))) for p in _chosen(space))


def _chosen(space: Space) -> list[Parameter]:
    """The parameters that have levels of their own; others follow from them."""
    follow = set() if space.simple else {one.follows for one in space.region.columns.equalities}
    return [p for p in space.parameters if p.name not in follow]


class PointSequence:
    """An endless sequence of points of the unit cube, mapped to the space, without repeats."""

    def __init__(self, space: Space, objective: Objective | None = None, *, seed: int = 0) -> None:
        self.space = space
        self.seed = abs(int(seed))
        self._given = Given()

    even = True
    """Whether points of a thin region are chosen for being far from each other."""

    def unit_points(self, stop: int) -> NDArray[np.float64]:
        """The first `stop` points (or more) of the sequence, `(>= stop, len(space))`."""
        raise NotImplementedError

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        """Return the next `n` points: the i-th suggestion is the i-th point that is no repeat."""
        if n <= 0:
            return []
        ended, past = self._given.keys(history)
        used = {key(p) for p in pending}
        found: list[Params] = []
        for params in self._onwards(ended + len(pending), n):
            name = key(params)
            if name not in used and name not in past:
                used.add(name)
                found.append(params)
            if len(found) == n:
                return found
        return found + self._leftover(used | past, n - len(found))

    def _onwards(self, start: int, n: int) -> Iterator[Params]:
        # In a finite space the sequence meets old points ever more often; then the rest is listed instead.
        stop = start + n + 64
        if not self.space.simple:
            found = self.space.region.sequence(self.unit_points, stop, seed=self.seed, even=self.even)
            if not found:
                raise self.space.region.columns.empty()
            return (dict(p) for p in found[start:])
        units = self.unit_points(stop)
        return (self.space.from_unit(u) for u in units[start:stop])

    def _leftover(self, used: set[tuple[tuple[str, float | int | str], ...]], n: int) -> list[Params]:
        if self.space.size > MOST_LISTED:
            rng = np.random.default_rng([self.seed, len(used)])
            return self.space.sample(rng, n)
        every = every_point(self.space)
        turns = np.random.default_rng([self.seed, 0x72657374]).permutation(len(every))
        unused = (every[i] for i in turns if key(every[i]) not in used)
        return [p for p, _ in zip(unused, range(n), strict=False)]


def every_point(space: Space) -> list[Params]:
    """All points of a finite space; none where constraints leave too many to look through."""
    if not space.simple:
        return [dict(p) for p in space.region.every or ()]
    levels = {
        p.name: 1 if p.kind == "choice" or p.low is None or p.high is None else int(p.high - p.low) + 1
        for p in space.parameters
        if p.kind != "float"
    }
    return space.grid(levels)


class Random(PointSequence):
    """Points drawn uniformly (on the logarithmic scale where a parameter is logarithmic).

    Args:
        space: Where to draw.
        objective: Not used.
        seed: Decides the points.
    """

    even = False

    def unit_points(self, stop: int) -> NDArray[np.float64]:
        """The first `stop` points of the stream."""
        return np.random.default_rng([self.seed, 0x756E6966]).random((stop, len(self.space)))


class Sobol(PointSequence):
    """A scrambled Sobol sequence: any first part of it covers the space evenly.

    Owen, "Scrambling Sobol' and Niederreiter-Xing points", J. Complexity 14 (1998) 466;
    `scipy.stats.qmc.Sobol`.

    Args:
        space: Where to put the points.
        objective: Not used.
        seed: Decides the scrambling.
    """

    def unit_points(self, stop: int) -> NDArray[np.float64]:
        """The first 2^m >= `stop` points (powers of two, because only those are balanced)."""
        if len(self.space) == 0:
            return np.zeros((stop, 0))
        n = 2 ** max(math.ceil(math.log2(stop)), 0)
        return scrambled_sobol(len(self.space), n, np.random.default_rng(self.seed))


class LatinHypercube(PointSequence):
    """Latin hypercube blocks: in each block every parameter's range is covered in equal steps, once each.

    McKay, Beckman and Conover, Technometrics 21 (1979) 239. A block should be the whole campaign; if it
    goes on, a further block of the same size follows.

    Args:
        space: Where to put the points.
        objective: Not used.
        seed: Decides the points.
        size: Points in one block: the number of planned runs. None means 4 for each parameter, at least 8.
    """

    def __init__(
        self, space: Space, objective: Objective | None = None, *, seed: int = 0, size: int | None = None
    ) -> None:
        super().__init__(space, objective, seed=seed)
        self.size = max(8, 4 * len(space)) if size is None else whole("size", size)

    def unit_points(self, stop: int) -> NDArray[np.float64]:
        """Whole blocks up to `stop`."""
        if len(self.space) == 0:
            return np.zeros((stop, 0))
        from scipy.stats import qmc  # a second to import, needed by this policy alone

        blocks = []
        for number in range(math.ceil(stop / self.size)):
            rng = np.random.default_rng([self.seed, 0x6C6873, number])
            blocks.append(qmc.LatinHypercube(len(self.space), seed=rng).random(self.size))
        return np.concatenate(blocks)
