"""The allowed points of a space with constraints and conditional parameters: which they are, and how to get them.

What forbids points sorts them out, from a sequence that goes over the space. Where it leaves less than one in a
few hundred, chains walk inside of the region.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from hpcagent.later import Later
from hpcagent.model.base import Scalar
from hpcagent.model.columns import Columns, Table
from hpcagent.model.walking import Chains

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hpcagent.model.parameter import Params
    from hpcagent.model.space import Space
else:
    np = Later("numpy")

__all__ = ["Region"]

Array: TypeAlias = "NDArray[np.float64]"

MOST_LISTED = 100_000
"""A finite space up to this size is looked through whole."""
LONGEST_SEQUENCE = 1 << 16
"""So much of a sequence is sorted through before chains walk."""
FIRST_BLOCK = 1 << 10
COVER = 1 << 10


class Region:
    """The allowed part of a space. Made once for a space (`Space.region`).

    Attributes:
        columns: Its points, many at a time.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.parameters = space.parameters
        self.columns = Columns(space.parameters, space.constraints)
        self._pools: dict[tuple[int, int, bool], list[Params]] = {}

    @cached_property
    def every(self) -> list[Params] | None:
        """All allowed points of a finite space; None where there are too many to look through."""
        if self.space.cells > MOST_LISTED:
            return None
        return self.combined(
            [
                list(range(int(p.low or 0), int(p.high or 0) + 1)) if p.kind == "int" else list(p.levels(1))
                for p in self.parameters
            ]
        )

    def combined(self, axes: Sequence[Sequence[Scalar]]) -> list[Params]:
        """All allowed combinations of values; a number that follows from others takes what follows."""
        follow = {one.follows for one in self.columns.equalities}
        short = [axis[:1] if p.name in follow else axis for p, axis in zip(self.parameters, axes, strict=True)]
        everything = list(product(*short))
        table = self.columns.of_points([dict(zip(self.space.names, values, strict=True)) for values in everything])
        table = self.columns.settled(table, move=False)
        found: dict[tuple[tuple[str, Scalar], ...], Params] = {}
        good = np.flatnonzero(self.columns.kept(table))
        for point in self.columns.as_they_are(table, good):
            found.setdefault(tuple(point.items()), point)
        return list(found.values())

    def sequence(
        self, units: Callable[[int], Array], count: int, *, seed: int = 0, even: bool = True
    ) -> list[Params]:
        """The first `count` allowed points of a sequence of the unit cube; fewer only in a small finite space.

        Args:
            units: `units(stop)` gives the first `stop` points or more, `(>= stop, len(space))`.
            count: How many.
            seed: For the chains that walk in a region too thin for the sequence.
            even: Whether points of a thin region are chosen for being far from each other.
        """
        stop = FIRST_BLOCK
        while stop < 2 * count:
            stop *= 2
        while True:
            table = self._slice(units(stop))
            good = np.flatnonzero(self.columns.kept(table))
            if len(good) >= count or stop >= LONGEST_SEQUENCE or (self.every is not None and stop >= 8192):
                break
            if len(good) * LONGEST_SEQUENCE < count * stop:
                break  # the longest would not do either
            stop *= 4
        found = [p for p in self.columns.points(table, good[: 2 * count]) if self.columns.allowed(p)][:count]
        if len(found) >= count or self.every is not None:
            return found
        return self._pool(count, seed, even)

    def _pool(self, count: int, seed: int, even: bool) -> list[Params]:
        size = 1 << max(9, math.ceil(math.log2(4 * count)))
        name = (size, seed, even)
        if name not in self._pools:
            rng = np.random.default_rng([seed, 0x77616C6B])
            points = Chains(self.columns).walked(rng, size)
            self._pools[name] = self._far_apart(points, min(size // 4, 1024)) if even else points
        return self._pools[name][:count]

    def _far_apart(self, points: list[Params], first: int) -> list[Params]:
        """The points reordered: each of the first ones is the farthest from those before it."""
        if len(points) < 3:
            return points
        rows = np.array([self.space.to_unit(p) for p in points])
        order = [int(np.argmin(((rows - rows.mean(0)) ** 2).sum(1)))]
        away = ((rows - rows[order[0]]) ** 2).sum(1)
        for _ in range(min(first, len(points)) - 1):
            order.append(int(np.argmax(away)))
            away = np.minimum(away, ((rows - rows[order[-1]]) ** 2).sum(1))
        taken = set(order)
        return [points[i] for i in (*order, *(i for i in range(len(points)) if i not in taken))]

    @cached_property
    def cover(self) -> list[Params]:
        """Allowed points all over the space, at most 1024, always the same.

        Raises:
            BadInput: There is none.
        """
        units = np.random.default_rng(0).random((LONGEST_SEQUENCE, len(self.parameters)))
        found = self.sequence(lambda stop: units[:stop], COVER)
        if not found:
            raise self.columns.empty()
        return found

    @cached_property
    def middle(self) -> Params:
        """An allowed point near the middle of the space.

        Raises:
            BadInput: There is none.
        """
        centre = self.columns.points(self.columns.of_units(np.full((1, len(self.parameters)), 0.5)), [0])[0]
        if self.columns.allowed(centre):
            return centre
        found = self.cover if self.every is None else self.every
        if not found:
            raise self.columns.empty()
        return min(found, key=lambda p: float(((self.space.to_unit(p) - 0.5) ** 2).sum()))

    def share(self, n: int = 4096) -> float:
        """Which share of the space (equalities settled) is allowed, by `n` points."""
        units = np.random.default_rng(0).random((n, len(self.parameters)))
        return float(np.mean(self.columns.kept(self._slice(units))))

    def _slice(self, units: Array) -> Table:
        """Points of the unit cube, spread evenly over the slice where sums have their values."""
        return self.columns.settled(self.columns.of_units(units, spread=True), move=False)
