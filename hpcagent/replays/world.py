"""A recorded campaign as a world in which runs can be made.

At a point that was run it gives one of the recorded results; anywhere else a draw from the surrogate that is
fitted to all recorded runs (mean, noise of a run, chance to fail). What a point is really worth is fixed: the
surrogate's mean. Where every point of a finite space was run no surrogate is needed, and it is the recorded mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hpcagent.campaign.history import History
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.runtimes import RunTimes
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation, Result
from hpcagent.statistics.covariance import Array
from hpcagent.statistics.points import Key, inside, key
from hpcagent.statistics.surrogate import MetricModel, Surrogate

__all__ = ["World", "Worth"]

# Points that the search for the best one begins with, neighbours that it tries of each, and how many it keeps.
CANDIDATES, NEAR, ENDS = 4096, 64, 8


@dataclass(frozen=True)
class Worth:
    """What a point is really worth in the world.

    Attributes:
        score: The goal, larger is better.
        keeps: Whether it completes and keeps every limit.
    """

    score: float
    keeps: bool


class World:
    """A recorded campaign as something that runs can be made in.

    Args:
        campaign: What was recorded.
        results: Its results.
        earlier: What it began with.

    Raises:
        NoFit: Too few runs for a surrogate.
    """

    def __init__(self, campaign: Campaign, results: Sequence[Result], earlier: Sequence[Observation] = ()) -> None:
        self.campaign, self.space, self.objective = campaign, campaign.search, campaign.objective
        history = History(campaign, results)
        self.real, seen = history.own, history.points
        self.at: dict[Key, list[Observation]] = {}
        for o in seen:
            if o.stopped:
                continue  # what the whole run would have given is not on record
            if not o.completed or self.objective.known(o.metrics):
                self.at.setdefault(key(o.params), []).append(o)
        points = [p for os in self.at.values() if (p := inside(self.space, os[0].params)) is not None]
        self.is_table = math.isfinite(self.space.size) and len(points) >= self.space.size
        self.surrogate = None if self.is_table else self._fitted([*earlier, *seen])
        self._times = RunTimes(campaign)
        self._times.learn(results)
        self._spread, self._broken = self._times_spread(results)
        failures = Counter(o.failure for o in seen if o.failure)
        self._failure = failures.most_common(1)[0][0] if failures else "Failed"
        self._noise = {} if self.surrogate is None else self._noises(seen)
        self._known: dict[Key, Worth] = {}
        self.points = points

    def _fitted(self, seen: Sequence[Observation]) -> Surrogate:
        return Surrogate.fit(self.space, self.objective, seen, noise=self.campaign.noise)

    @property
    def models(self) -> tuple[MetricModel, ...]:
        """The surrogate's models, one a metric."""
        if self.surrogate is None:
            return ()
        found = {m.metric: m for m in (*self.surrogate.limits, *self.surrogate.goals)}
        return tuple(found[name] for name in self.objective.metrics)

    def worth(self, points: Sequence[Params]) -> list[Worth]:
        """What points of the space are really worth."""
        new = {key(p): p for p in points if key(p) not in self._known}
        if new and self.surrogate is None:
            self._known |= {k: self._recorded_worth(k) for k in new}
        elif new:
            self._known |= dict(zip(new, self._modelled(self._rows(list(new.values()))), strict=True))
        return [self._known[key(p)] for p in points]

    def run(self, point: Params, rng: np.random.Generator) -> tuple[Observation, bool]:
        """A run at a point of the space, and whether it is one of those recorded there."""
        runs = self.at.get(key(point))
        if runs:
            return replace(runs[int(rng.integers(len(runs)))], params=dict(point)), True
        assert self.surrogate is not None
        row = self._rows([point])
        fails = rng.random() >= float(self.surrogate.completes(row)[0])
        seconds, node_hours, _ = self._times.estimates([self.campaign.complete(point)])[0]
        factor = math.exp(self._spread * rng.standard_normal() - self._spread**2 / 2)
        if fails:
            factor *= self._broken
        wall_s, node_hours = seconds * factor, node_hours * factor
        if fails:
            failed = Observation(dict(point), completed=False, failure=self._failure)
            return replace(failed, wall_s=wall_s, node_hours=node_hours), False
        metrics, errors = {}, {}
        for model in self.models:
            own, stated = self._noise[model.metric]
            mean = model.gp.predict(row)[0]
            sd = model.one_run(row, stated=stated) if own else stated
            value = model.scale.backward(mean + sd * rng.standard_normal())
            metrics[model.metric] = float(value[0])
            if stated:
                errors[model.metric] = float(stated / model.scale.slope(value)[0])
        done = Observation(dict(point), metrics=metrics, uncertainty=errors, wall_s=wall_s, node_hours=node_hours)
        return done, False

    @property
    def best(self) -> tuple[Params, float] | None:
        """The best point that keeps the limits, and its score; None where there is none.

        Of those that were run, that were asked for so far, and that a search of the surrogate finds.
        """
        self.worth([*self.points, *self._searched])
        kept = [(dict(k), w.score) for k, w in self._known.items() if w.keeps and self.campaign.full(dict(k))]
        if not kept:
            return None
        point, score = max(kept, key=lambda pair: pair[1])
        return {name: point[name] for name in self.space.names}, score

    def error_at(self, point: Params) -> float:
        """Standard error of the goal there, in its unit."""
        if self.surrogate is None:
            return 0.0
        return float(self.surrogate.goals[0].values(self._rows([point]))[1][0])

    def scale_of(self, best: float) -> tuple[float, bool]:
        """What gaps are measured in, and whether it is the best value itself.

        A share of the best value says nothing where that is near zero, or far from it like a total energy.
        """
        values = [o.metrics[self.objective.goal.metric] for os in self.at.values() for o in os if o.completed]
        spread = max(values) - min(values) if values else 0.0
        if not spread or 0.01 * spread <= abs(best) <= 20 * spread:
            return abs(best) or 1.0, True
        return spread, False

    def _rows(self, points: Sequence[Params]) -> Array:
        assert self.surrogate is not None
        return self.surrogate.features.rows(points)

    def _modelled(self, rows: Array) -> list[Worth]:
        assert self.surrogate is not None
        goal = self.surrogate.goals[0]
        values = goal.scale.backward(goal.gp.predict(rows)[0])
        keeps = self.surrogate.completes(rows) >= 0.5
        for model in self.surrogate.limits:
            keeps = keeps & (model.room(rows) >= 0)
        return [Worth(goal.sign * v, k) for v, k in zip(values.tolist(), keeps.tolist(), strict=True)]

    def _recorded_worth(self, point: Key) -> Worth:
        runs = self.at[point]
        done = [o for o in runs if o.completed]
        trusted = [o for o in done if not o.distrusted] or done
        if 2 * len(done) < len(runs) or not done:
            return Worth(-math.inf, False)
        goal = self.objective.goal.metric
        means = {m: float(np.mean([o.metrics[m] for o in done])) for m in self.objective.metrics}
        means[goal] = float(np.mean([o.metrics[goal] for o in trusted]))
        return Worth(self.objective.score(means), self.objective.feasible(means))

    @cached_property
    def _searched(self) -> list[Params]:
        """Good points of the surrogate: a fine sample of the space, then ever nearer to the best of it."""
        if self.surrogate is None:
            return []
        features, rng = self.surrogate.features, np.random.default_rng(0)
        sample = features.kept(features.snapped(features.drawn(rng, CANDIDATES)))
        found = self._top(self._full(np.vstack([sample, self._rows(self.points)])))
        for width in (0.1, 0.03, 0.01, 0.003, 0.001):
            near = np.repeat(found, NEAR, axis=0)
            near = near + width * rng.standard_normal(near.shape) * features.numeric
            steps = self._full(features.kept(np.vstack([features.snapped(near), features.steps(found)])))
            found = self._top(np.vstack([found, steps]))
        return features.points(found)

    def _full(self, rows: Array) -> Array:
        """The rows at the last level of the fidelity, where there is one."""
        assert self.surrogate is not None
        fidelity, features = self.campaign.fidelity, self.surrogate.features
        if fidelity is None or fidelity.parameter not in features.names:
            return rows
        choices = self.space[fidelity.parameter].choices
        return features.with_choice(
            rows, features.names.index(fidelity.parameter), choices.index(fidelity.levels[-1])
        )

    def _top(self, rows: Array) -> Array:
        worth = self._modelled(rows)
        score = np.array([w.score if w.keeps else -math.inf for w in worth])
        return rows[np.argsort(-score, kind="stable")[:ENDS]]

    def _noises(self, seen: Sequence[Observation]) -> dict[str, tuple[float, float]]:
        """Standard deviation of a run about the surrogate, on its scale: its own part, and what runs state."""
        found = {}
        for model in self.models:
            done = [o for o in seen if o.completed and model.metric in o.metrics]
            stated = np.array([o.uncertainty.get(model.metric, 0.0) for o in done])
            slopes = model.scale.slope([o.metrics[model.metric] for o in done])
            typical = float(np.median(np.where(np.isfinite(stated), stated, 0.0) * slopes)) if done else 0.0
            own = math.sqrt(model.gp.own_noise) * model.gp.unit
            # What is left over at points of a program without chance is the surrogate's error, not noise.
            found[model.metric] = (0.0 if self.campaign.exact and not typical else own, typical)
        return found

    def _times_spread(self, results: Sequence[Result]) -> tuple[float, float]:
        """Of the run times: standard deviation of log(actual / expected), and what failed runs take of it."""
        used = [r for r in results if r.cost.node_hours > 0]
        expected = self._times.estimates([dict(r.manifest.params) for r in used])
        logs = [
            (r.ok, math.log(r.cost.node_hours / e[1])) for r, e in zip(used, expected, strict=True) if e[1] > 0
        ]
        ended = [v for ok, v in logs if ok]
        broken = [v for ok, v in logs if not ok]
        spread = float(np.std(ended)) if len(ended) > 1 else 0.0
        return spread, math.exp(float(np.median(broken))) if broken else 1.0
