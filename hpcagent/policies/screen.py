"""Screening: every point at the cheapest fidelity, the promising ones again at the dearer ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hpcagent.errors import BadInput
from hpcagent.model.base import Scalar
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.base import one_goal
from hpcagent.policies.sweeps import Grid, Sobol
from hpcagent.statistics.points import Key, fraction, given, inside, key, whole
from hpcagent.statistics.ranking import DOUBT, chances, level_estimates, level_scores

__all__ = ["Screen"]


class Screen:
    """All points at the first level, then the best `keep` of them at the next, and so on.

    A point goes no further where more than half of its runs failed, or their means break a limit. Within each
    level the points are ranked by that level's own runs: repeats by their mean, and a run that did not have its
    core says nothing of its goal (rule 5 of `base`). The points that were computed at both of two levels teach how
    far the cheaper one errs: as long as a point that was left behind has a chance of `doubt` or more to be better
    than the best one, it follows (`hpcagent.statistics.ranking`).

    Args:
        space: Where it may suggest; the fidelity is one of its choices.
        objective: What a level is ranked by.
        seed: Seed of the Sobol points.
        fidelity: `parameter`: the choice that is the fidelity; `levels`: its values, cheapest first.
        keep: How many points go on from each level to the next at least.
        doubt: Chance of being the best at the next level with which a point beyond `keep` goes on, too; 1: none.
        points: How many points at the first level: Sobol points; all combinations (a grid of `grid` levels) if
            not given.
        grid: Values of each numeric parameter in that grid.

    Raises:
        BadInput: Without a fidelity, or with options that make no sense.
    """

    def __init__(
        self,
        space: Space,
        objective: Objective,
        *,
        seed: int = 0,
        fidelity: Mapping[str, Any] | None = None,
        keep: int = 3,
        doubt: float = DOUBT,
        points: int | None = None,
        grid: int = 3,
    ) -> None:
        one_goal("screen", objective)
        if fidelity is None:
            raise BadInput(
                "policy 'screen' needs a fidelity; give the campaign one: [fidelity] with parameter and levels."
            )
        self.space, self.objective = space, objective
        self.parameter: str = fidelity["parameter"]
        self.levels: tuple[Scalar, ...] = tuple(fidelity["levels"])
        self.keep = whole("keep", keep)
        self.doubt = 1.0 if doubt == 1 else fraction("doubt", doubt)
        # At the level that counts; other levels may allow less, or more.
        rest = space.without({self.parameter: self.levels[-1]})
        if points is None:
            self.design = Grid(rest, levels=whole("grid", grid)).points
        else:
            self.design = Sobol(rest, seed=seed).suggest([], whole("points", points))

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        """Return points of the lowest level that is not done; none while its last runs are pending."""
        asked = {key(p) for p in given(history, pending)}
        wanted = self.design
        before: Scalar | None = None
        for level in self.levels:
            left = self._not_asked(wanted, level, asked)
            if left:
                return left[: max(n, 0)]
            if any(p.get(self.parameter) == level for p in pending):
                return []
            # As many at a time as `keep`: each teaches how far the cheaper level errs.
            left = self._not_asked(self._doubtful(history, before, level), level, asked)
            if left:
                return left[: max(min(n, self.keep), 0)]
            wanted, before = self._best(history, level), level
        return []

    def _not_asked(self, points: Sequence[Params], level: Scalar, asked: Collection[Key]) -> list[Params]:
        at_level = [self._ordered({**p, self.parameter: level}) for p in points]
        found = [p for p in at_level if key(p) not in asked]
        return found if self.space.simple else [p for p in found if inside(self.space, p) == p]

    def _doubtful(self, history: Sequence[Observation], before: Scalar | None, level: Scalar) -> list[Params]:
        """Points of the level before that may be the best of this one, most likely first."""
        if before is None or self.doubt >= 1:
            return []
        cheap, dear = (
            level_scores(history, self.objective, self.space, self.parameter, one) for one in (before, level)
        )
        if not dear:
            return []
        chance = chances(cheap, dear)
        # With a single pair nothing is known of the error: the next points of the ranking make it two.
        if any(math.isnan(c) for c in chance.values()):
            return [dict(p) for p in sorted(chance, key=lambda p: -cheap[p])]
        return [dict(p) for p in sorted(chance, key=lambda p: -chance[p]) if chance[p] >= self.doubt]

    def _ordered(self, params: Params) -> Params:
        return {name: params[name] for name in self.space.names if name in params}

    def _best(self, history: Sequence[Observation], level: Scalar) -> list[Params]:
        """The `keep` best points of a level.

        One whose goal was only measured in runs that did not have their core may be anything: it takes a place
        that is left over, but none from a point that was measured.
        """
        known = level_estimates(history, self.objective, self.space, self.parameter, level)
        ranked = sorted(known, key=lambda p: (not known[p].trusted, -known[p].score if known[p].trusted else 0.0))
        return [dict(point) for point in ranked[: self.keep]]
