"""Screening: every point at the cheapest fidelity, the promising ones again at the dearer ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcagent.errors import BadInput
from hpcagent.model.base import Scalar
from hpcagent.model.objective import Objective
from hpcagent.model.records import Observation
from hpcagent.model.space import Params, Space
from hpcagent.policies.base import one_goal
from hpcagent.policies.points import given, inside, key, whole
from hpcagent.policies.sweeps import Grid, Sobol

__all__ = ["Screen"]


class Screen:
    """All points at the first level, then the best `keep` of them at the next, and so on.

    A point that failed, or breaks a limit, goes no further. Values of different levels are never compared
    with each other: within each level the points are ranked by that level's own runs.

    Args:
        space: Where it may suggest; the fidelity is one of its choices.
        objective: What a level is ranked by.
        seed: Seed of the Sobol points.
        fidelity: `parameter`: the choice that is the fidelity; `levels`: its values, cheapest first.
        keep: How many points go on from each level to the next.
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
        rest = Space(parameters=tuple(p for p in space.parameters if p.name != self.parameter))
        if points is None:
            self.design = Grid(rest, levels=whole("grid", grid)).points
        else:
            self.design = Sobol(rest, seed=seed).suggest([], whole("points", points))

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        """Return points of the lowest level that is not done; none while its last runs are pending."""
        asked = {key(p) for p in given(history, pending)}
        wanted = self.design
        for level in self.levels:
            at_level = [{**p, self.parameter: level} for p in wanted]
            left = [p for p in at_level if key(self._ordered(p)) not in asked]
            if left:
                return [self._ordered(p) for p in left[: max(n, 0)]]
            if any(p.get(self.parameter) == level for p in pending):
                return []
            wanted = self._best(history, level)
        return []

    def _ordered(self, params: Params) -> Params:
        return {name: params[name] for name in self.space.names}

    def _best(self, history: Sequence[Observation], level: Scalar) -> list[Params]:
        scores: dict[Any, tuple[float, Params]] = {}
        for seen in history:
            params = inside(self.space, seen.params)
            if params is None or params[self.parameter] != level or not seen.completed:
                continue
            if not (self.objective.known(seen.metrics) and self.objective.feasible(seen.metrics)):
                continue
            rest = {k: v for k, v in params.items() if k != self.parameter}
            scores[key(rest)] = (self.objective.score(seen.metrics), rest)
        ranked = sorted(scores.values(), key=lambda one: -one[0])
        return [rest for _, rest in ranked[: self.keep]]
