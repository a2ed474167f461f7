"""The policy of a sweep: a finite design, each of its points run as often as asked for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import Scalar
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.sweeps import MOST_GRID_POINTS, LatinHypercube, Sobol
from hpcagent.statistics.points import Key, inside, key, whole

__all__ = ["DESIGNS", "LEVELS", "POINTS", "REPLICATES", "Design"]

DESIGNS = ("grid", "latin_hypercube", "sobol", "list")
LEVELS = 5
POINTS = 16
REPLICATES = 3
# A finite space may hold fewer points than asked for; so many sequences without a new one say that it does.
MOST_IN_VAIN = 8


class Design:
    """Every point of a design, `replicates` times; a first round of all points comes before a second of any.

    Points that were run already, by whomever, count: a larger design or more replicates run only what is new.

    Args:
        space: Where the points lie.
        objective: Not used.
        seed: Decides the points of `latin_hypercube` and `sobol`.
        design: `grid`, `latin_hypercube`, `sobol` or `list`.
        replicates: Runs at each point.
        points: How many points of `latin_hypercube` and `sobol` (16); the points themselves of a `list`.
        levels: Of a `grid`: values of each numeric parameter, one number for all, or one for each name (5 where
            not named). A choice always has all its values.
        values: Of a `grid`: parameter -> its values, in place of evenly spread ones.
        block: Of `latin_hypercube`: points of one hypercube; a larger design appends further ones. By default all.

    Raises:
        BadInput: An unknown design, an option that it does not take, a value outside of the space, or no point.
    """

    def __init__(
        self,
        space: Space,
        objective: Objective | None = None,
        *,
        seed: int = 0,
        design: str = "grid",
        replicates: int = REPLICATES,
        points: int | Sequence[Mapping[str, Scalar]] | None = None,
        levels: int | Mapping[str, int] | None = None,
        values: Mapping[str, Sequence[Scalar]] | None = None,
        block: int | None = None,
    ) -> None:
        if design not in DESIGNS:
            raise BadInput(f"unknown design {design!r}; {nearest(str(design), DESIGNS)}", value=design)
        takes = {"grid": ("levels", "values"), "list": ("points",), "latin_hypercube": ("points", "block")}
        given = {"points": points, "levels": levels, "values": values, "block": block}
        for name, value in given.items():
            if value is not None and name not in takes.get(design, ("points",)):
                raise BadInput(
                    f"design={design!r} takes {' and '.join(takes.get(design, ('points',)))}, not {name}.",
                    value=value,
                )
        self.space, self.seed, self.design = space, abs(int(seed)), design
        self.replicates = whole("replicates", replicates)
        found = self._listed(points) if design == "list" else self._made(points, levels, values, block)
        self.points = list({key(p): p for p in found}.values())
        if not self.points:
            raise BadInput("the design has no point that the space allows; widen it, or drop a constraint.")
        if len(self.points) * self.replicates > MOST_GRID_POINTS:
            raise BadInput(
                f"a design of {len(self.points)} points, {self.replicates} times each, is too large; at most "
                f"{MOST_GRID_POINTS} runs.",
                value=len(self.points),
            )

    def _made(
        self,
        points: Any,
        levels: int | Mapping[str, int] | None,
        values: Mapping[str, Sequence[Scalar]] | None,
        block: int | None,
    ) -> Iterator[Params]:
        if self.design == "grid":
            return self._grid(levels, values)
        count = POINTS if points is None else whole(f"points of {self.design}", points)
        if self.design == "sobol":
            return self._sequence(Sobol(self.space, seed=self.seed), count)
        size = whole("block", block) if block is not None else count
        return self._sequence(LatinHypercube(self.space, seed=self.seed, size=size), count)

    def _grid(
        self, levels: int | Mapping[str, int] | None, values: Mapping[str, Sequence[Scalar]] | None
    ) -> Iterator[Params]:
        values = {} if values is None else values
        if not isinstance(values, Mapping):
            raise BadInput(f"values={values!r}: a table of parameters and lists of their values.", value=values)
        for name, n in levels.items() if isinstance(levels, Mapping) else ():
            self.space[name]
            whole(f"levels of {name!r}", n)
            if name in values:
                raise BadInput(f"{name!r} has both values and levels; drop one.", value=name)
        if levels is not None and not isinstance(levels, Mapping):
            whole("levels", levels)
        axes: list[Sequence[Scalar]] = []
        for name, of in values.items():
            self.space[name]
            if isinstance(of, str) or not isinstance(of, Sequence) or not of:
                raise BadInput(f"values of {name!r} are a list of one or more; got {of!r}.", value=of)
        for p in self.space.parameters:
            if p.name in values:
                axes.append(tuple(dict.fromkeys(p.validated(value) for value in values[p.name])))
            else:
                each = levels.get(p.name, LEVELS) if isinstance(levels, Mapping) else levels or LEVELS
                axes.append(p.levels(each))
        size = math.prod(len(axis) for axis in axes)
        if size > MOST_GRID_POINTS:
            raise BadInput(f"a grid of {size:g} points is too large; use fewer levels, or sobol.", value=size)
        if not self.space.simple:
            # What follows from others (the last part of a sum) has no levels of its own, unless values are listed.
            found = self.space.region.combined(axes)
            return (p for p in found if all(p[n] in values[n] for n in values if n in p))
        return self._allowed(dict(zip(self.space.names, point, strict=True)) for point in product(*axes))

    def _listed(self, points: Any) -> Iterator[Params]:
        if isinstance(points, (str, Mapping)) or not isinstance(points, Sequence) or not points:
            raise BadInput(
                f"design='list' takes points=[{{'T': 100}}, ...], a list of points; got {points!r}.", value=points
            )
        for i, point in enumerate(points):
            if not isinstance(point, Mapping):
                raise BadInput(f"points[{i}] is a table such as {{T = 100}}; got {point!r}.", value=point)
            yield self.space.validated(point, where=f"points[{i}]")

    def _sequence(self, sequence: Sobol | LatinHypercube, count: int) -> Iterator[Params]:
        """The first `count` different points of an endless sequence that the space allows."""
        if not self.space.simple:
            yield from self.space.region.sequence(sequence.unit_points, count, seed=self.seed)
            return
        found: set[Key] = set()
        stop, seen, in_vain = max(count, 1), 0, 0
        while len(found) < count and in_vain < MOST_IN_VAIN:
            units = sequence.unit_points(stop)[:stop]
            before = len(found)
            for params in self._allowed(self.space.from_unit(u) for u in units[seen:]):
                if key(params) not in found and len(found) < count:
                    found.add(key(params))
                    yield params
            in_vain = in_vain + 1 if len(found) == before else 0
            seen, stop = stop, 2 * stop

    def _allowed(self, points: Iterable[Params]) -> Iterator[Params]:
        allows = getattr(self.space, "allows", None)
        for params in points:
            if allows is None or allows(params):
                yield self.space.validated(params)

    def lacking(self, ran: Iterable[Mapping[str, Scalar]]) -> list[Params]:
        """The runs that are still to come, in their order, where these points have been run or are under way.

        Example:
            >>> from hpcagent.model.parameter import Float
            >>> design = Design(Space.of(T=Float(1, 2)), levels=2, replicates=2)
            >>> design.lacking([{"T": 1.0}])
            [{'T': 2.0}, {'T': 1.0}, {'T': 2.0}]
        """
        counts = Counter(key(p) for p in ran)
        rounds = range(self.replicates)
        return [dict(p) for number in rounds for p in self.points if counts[key(p)] <= number]

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        """Return the next `n` runs of the design; a repeat for its speed is no replicate."""
        failed = [o for o in history if o.role == "extended" and not o.completed]  # what it extends still counts
        ran = [o.params for o in history if o.role not in ("repeat", "earlier") and o not in failed]
        places = (inside(self.space, p) for p in (*ran, *pending))
        return self.lacking(p for p in places if p is not None)[: max(n, 0)]
