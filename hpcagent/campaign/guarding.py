"""What a campaign's guard tells the runs: the limits, and the best so far."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcagent.campaign.compare import ESTIMATE_BIAS, QUIET_NOISE, WEATHER
from hpcagent.campaign.guard_table import kinds_of
from hpcagent.campaign.history import History
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.state import State
from hpcagent.model.records import Manifest, Observation
from hpcagent.statistics.points import key, spread_size
from hpcagent.store.files import write_whole
from hpcagent.store.rundir import RunDir

__all__ = ["Best", "Guarding", "best_so_far"]

NEWS = "guard.json"
"""In the run directory: the best so far, for runs that have begun before it was known."""

# From so many results on the best is looked for at most once a second.
MANY = 200


@dataclass(frozen=True, slots=True)
class Best:
    """The best point so far of which it is sure that it keeps the limits.

    Attributes:
        value: Its goal, in the metric's unit, as values are compared.
        error: Its standard error.
    """

    value: float
    error: float


class Guarding:
    """Makes `order["guard"]` of a run, and keeps `guard.json` up to date.

    Args:
        campaign: With a `guard`.
        state: What is known.
        folder: The run directory.
    """

    def __init__(self, campaign: Campaign, state: State, folder: RunDir) -> None:
        assert campaign.guard is not None
        self._campaign, self._state, self._guard = campaign, state, campaign.guard
        self._news = folder.root / NEWS
        self._kinds = kinds_of(campaign.app)
        self._seen, self._when = -1, 0.0
        self._best: Best | None = None
        self._weather = WEATHER
        self._told: Best | None = None
        self._whole = 0
        self._left: set[str] = set()

    def of(self, manifest: Manifest) -> dict[str, Any]:
        """What may end this run early; plain data (see `hpcagent.apps.guard.decide`)."""
        campaign, guard = self._campaign, self._guard
        self._look()
        stops = guard.stops or ("blown_up", "limit", "cannot_win")
        if manifest.role == "suggested" and self._let_finish(manifest.execution_id):
            stops = tuple(stop for stop in stops if stop == "blown_up")
        own = manifest.role == "suggested" and manifest.replicate == 0 and campaign.full(manifest.params)
        goal = self._goal() if own and "cannot_win" in stops else None
        measured = manifest.role in ("reference", "replicate", "repeat")  # others are compared by what it gives
        return {
            "stops": list(stops),
            "confidence": guard.confidence,
            "least_share": guard.least_share,
            "every_s": guard.every_s,
            "limits": [
                {"metric": c.metric, "op": "<=" if c.sign < 0 else ">=", "value": c.limit}
                for c in campaign.objective.constraints
                if c.metric in self._kinds and "limit" in stops and not measured
            ],
            "goal": goal,
            "kinds": dict(self._kinds),
            "noise": self._noise(),
            "discard": campaign.app.settings.get("discard"),
            "news": str(self._news) if goal is not None else "",
        }

    def _let_finish(self, execution_id: str) -> bool:
        """Whether a run goes to its end: runs that were stopped tell models nothing without some whole ones."""
        if execution_id not in self._left:
            going = sum(name not in self._state.results for name in self._left)
            if self._whole + going >= spread_size(self._campaign.search):
                return False
            self._left.add(execution_id)
        return True

    def recorded(self) -> None:
        """Tell the runs in flight of a better best, if there is one; called when results were recorded."""
        self._look()
        best = self._best
        if best is None or best == self._told or self._goal() is None:
            return
        write_whole(self._news, json.dumps({"best": best.value, "best_error": best.error}))
        self._told = best

    def _goal(self) -> dict[str, Any] | None:
        goals = self._campaign.objective.goals
        if len(goals) != 1 or goals[0].metric not in self._kinds:
            return None
        best = self._best
        return {
            "metric": goals[0].metric,
            "direction": goals[0].direction,
            "best": None if best is None else best.value,
            "best_error": None if best is None else best.error,
        }

    def _noise(self) -> dict[str, float]:
        """Of speeds: how far that so far may be from the finished run's, as values are compared."""
        known = self._campaign.noise
        speeds = [name for name, kind in self._kinds.items() if kind == "speed"]
        # Without its cores a run's speed is one by CPU time, whose error is larger.
        also = math.hypot(self._weather, ESTIMATE_BIAS)
        return {name: math.hypot(known.get(name) or QUIET_NOISE, also) for name in speeds}

    def _look(self) -> None:
        results, now = self._state.results, time.monotonic()
        if len(self._state.rows) == self._seen or (len(results) > MANY and now - self._when < 1.0):
            return
        self._seen, self._when = len(self._state.rows), now
        history = History(self._campaign, self._state.in_order())
        comparison = history.comparison
        self._weather = WEATHER if comparison is None else max(comparison.weather, comparison.noise)
        seen = history.answering()
        whole = (o for o in seen if o.completed and not o.bounds and self._campaign.objective.known(o.metrics))
        self._whole = len({key(o.params) for o in whole})
        self._best = best_so_far(self._campaign, seen)


def best_so_far(campaign: Campaign, seen: Sequence[Observation]) -> Best | None:
    """The point that is best for sure: by its value less two standard errors, among those that keep the limits so.

    Args:
        campaign: With one goal; of several there is no best.
        seen: Runs as values are compared; those that failed or were stopped early tell nothing here.
    """
    objective = campaign.objective
    if len(objective.goals) != 1:
        return None
    goal, noise = objective.goal, campaign.noise
    groups: dict[object, list[Observation]] = {}
    for one in seen:
        if one.completed and not one.distrusted and not one.bounds and objective.known(one.metrics):
            groups.setdefault(key(one.params), []).append(one)

    def mean(runs: Sequence[Observation], metric: str) -> tuple[float, float]:
        values = [o.metrics[metric] for o in runs]
        middle = sum(values) / len(values)
        errors = [max(o.uncertainty.get(metric, 0.0), (noise.get(metric) or 0.0) * abs(middle)) for o in runs]
        stated = math.sqrt(sum(e * e for e in errors)) / len(runs)
        if len(runs) < 3:
            return middle, stated
        scatter = math.sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1) / len(values))
        return middle, max(stated, scatter)

    found: list[tuple[float, Best]] = []
    for runs in groups.values():
        limits = [(c, *mean(runs, c.metric)) for c in objective.constraints]
        if any(c.probability(value, error) < 0.95 for c, value, error in limits):
            continue
        value, error = mean(runs, goal.metric)
        found.append((goal.score(value) - 2 * error, Best(value, error)))
    return max(found, key=lambda one: one[0])[1] if found else None
