"""Fidelity: runs that are cheaper and tell less, at other levels of a parameter than the one that counts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcagent.errors import BadInput
from hpcagent.model.base import Scalar
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.statistics.covariance import Array
from hpcagent.statistics.features import Features
from hpcagent.statistics.points import Key, key
from hpcagent.statistics.surrogate import MetricModel

__all__ = ["LevelRows", "Levels"]

DEARER = 4.0  # how much dearer the next level is taken to be, until it is known


@dataclass(frozen=True)
class Levels:
    """The fidelity: which parameter, and its values from the cheapest to the one that counts."""

    parameter: str
    levels: tuple[Scalar, ...]

    @classmethod
    def read(cls, space: Space, fidelity: Mapping[str, Any]) -> Levels:
        """What a policy's `fidelity` says.

        Raises:
            BadInput: The parameter is no choice.
        """
        found = cls(fidelity["parameter"], tuple(fidelity["levels"]))
        if space[found.parameter].kind != "choice":
            raise BadInput(
                f"policy 'bayes': the fidelity {found.parameter!r} is a {space[found.parameter].kind}; it must be "
                f"a choice. Narrow it to its levels: space.{found.parameter} = "
                f"{{choices = {list(found.levels)}}}.",
                value=found.parameter,
            )
        return found

    def cheapest(self, points: Sequence[Params]) -> list[Params]:
        """The points at the cheapest level, but for the first one: that one is also run as it counts."""
        return [{**p, self.parameter: self.levels[0 if i else -1]} for i, p in enumerate(points)]

    def costs(self, history: Sequence[Observation]) -> list[float]:
        """Median cost of a run at each level, in node-hours (or seconds where those are unknown)."""
        costs: list[float] = []
        for level in self.levels:
            runs = [o for o in history if o.params.get(self.parameter) == level and o.completed]
            found = [o.node_hours or o.wall_s for o in runs if (o.node_hours or o.wall_s) > 0]
            costs.append(float(np.median(found)) if found else math.nan)
        for i, cost in enumerate(costs):
            if math.isnan(cost):
                before = costs[i - 1] if i else next((c for c in costs if not math.isnan(c)), 1.0) / DEARER
                costs[i] = before * DEARER if i else before
        return costs


class LevelRows:
    """Rows of a model at the levels of the fidelity."""

    def __init__(self, levels: Levels, features: Features, history: Sequence[Observation]) -> None:
        self.levels = levels.levels
        self._features = features
        self._place = features.names.index(levels.parameter)
        choices = list(features.space[levels.parameter].choices)
        self._columns = [choices.index(level) for level in levels.levels]
        self._costs = levels.costs(history)

    def at_last(self, rows: Array) -> Array:
        """The rows at the level that counts."""
        if not len(rows):
            return rows
        there = self._at(rows, self._columns[-1])
        if not self._features.simple:
            there = self._features.kept(self._features.snapped(there))
        return np.unique(there, axis=0)

    def _at(self, rows: Array, column: int) -> Array:
        return self._features.with_choice(rows, self._place, column)

    def _is_used(self, row: Array, used: Collection[Key]) -> bool:
        return key(self._features.points(row)[0]) in used

    def somewhere(self, row: Array, used: Collection[Key]) -> bool:
        """Whether there is a cheaper level at which this row has not been run."""
        return any(not self._is_used(self._at(row[None], column), used) for column in self._columns[:-1])

    def chosen(self, row: Array, models: Sequence[MetricModel], used: Collection[Key]) -> tuple[Array, str]:
        """The level at which a run tells most of the last one for what it costs, and why; no words: the last."""
        best: tuple[float, int, Array] | None = None
        for i, column in enumerate(self._columns):
            there = self._at(row[None], column)
            if self._is_used(there, used):
                continue
            worth = min(_told(m, there, row[None]) for m in models) / self._costs[i]
            if best is None or worth > best[0]:
                best = worth, i, np.asarray(there[0])
        assert best is not None
        _, level, found = best
        if level == len(self._columns) - 1:
            return found, ""
        times = self._costs[-1] / self._costs[level]
        said = f" At {self.levels[level]!r}, where a run costs {times:.3g} times less, for what it tells."
        return found, said


def _told(model: MetricModel, there: Array, here: Array) -> float:
    """Share of the variance at `here` that a run at `there` would explain."""
    gp = model.gp
    both = float(gp.covariances(there, here)[0, 0])
    noise = float(model.one_run(there)[0]) ** 2
    return both**2 / ((float(gp.predict(there)[1][0]) ** 2 + noise) * float(gp.predict(here)[1][0]) ** 2)
