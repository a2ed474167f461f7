"""What came of a run, and beside what was expected of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hpcagent.campaign.compare import Comparison, observations
from hpcagent.campaign.counts import stop_words
from hpcagent.campaign.history import History
from hpcagent.campaign.numbers import number, point_text
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.state import State
from hpcagent.model.failures import RunStates
from hpcagent.model.records import Manifest, Observation, Result
from hpcagent.reports.explanation import Expected
from hpcagent.statistics.covariance import Array
from hpcagent.statistics.insight import run_noise
from hpcagent.statistics.surrogate import MetricModel

__all__ = ["Outcome"]


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        campaign: Its campaign.
        result: Its result, if there is one.
        observation: What policies see of that.
        comparison: How results of different batches are compared.
        state: What became of the run.
    """

    campaign: Campaign
    result: Result | None
    observation: Observation | None
    comparison: Comparison | None
    state: RunStates

    @classmethod
    def of(cls, campaign: Campaign, state: State, manifest: Manifest, *, attended: bool) -> Outcome:
        """Of a run in a state of its campaign; `attended`: whether a coordinator is there."""
        comparison = History.now(campaign, state).comparison
        result = state.results.get(manifest.execution_id)
        seen = [] if result is None else observations(campaign, [result], comparison)
        now = state.state_of(manifest.execution_id, attended=attended)
        return cls(campaign, result, seen[0] if seen else None, comparison, now)

    @property
    def feasible(self) -> bool | None:
        """Whether what it measured kept every limit; None where that is not known."""
        objective, o = self.campaign.objective, self.observation
        if o is None or not o.completed or not all(c.metric in o.metrics for c in objective.constraints):
            return None
        return objective.feasible(o.metrics) if objective.constraints else None

    @property
    def text(self) -> str:
        """In words."""
        result, objective = self.result, self.campaign.objective
        if result is None:
            return f"{self.state}: no result yet"
        if result.failure is not None:
            failure = result.failure
            return f"{self.state}: {failure.name} ({failure.kind}): {failure.message}"
        if result.stopped is not None:
            return f"{stop_words(result)}: {result.stopped.sentence}"
        units = {m.name: m.unit for m in self.campaign.app.contract.metrics}
        metrics = self.observation.metrics if self.observation is not None else result.metrics
        text = f"{self.state}: " + point_text({n: metrics[n] for n in objective.metrics if n in metrics}, units)
        if self.feasible is not None:
            broken = [
                c.text(units.get(c.metric, "1")) for c in objective.constraints if c.excess(metrics[c.metric]) > 0
            ]
            text += f"; breaks {' and '.join(broken)}" if broken else "; keeps every limit"
        return text

    @property
    def notes(self) -> list[str]:
        """Remarks worth reading."""
        found: list[str] = []
        result, o = self.result, self.observation
        if result is None:
            return found
        if result.distrusted is not None:
            found.append(f"its measured times should not be believed: {result.distrusted}")
        found += [f"repaired after {r.failure} ({r.repair}): {r.changed}" for r in result.repairs]
        if result.stopped is not None:
            saved = result.stopped.saved_node_seconds
            found.append(f"the rest of it would have taken {saved:.3g} node-seconds")
        if o is not None and o.stopped:
            sides = [f"{m} would have ended {side} {number(o.metrics[m])}" for m, side in o.bounds.items()]
            found.append(f"a policy sees of it only that {' and '.join(sides)}; it is never the answer")
            return found
        if o is None:
            found.append("it says nothing of the point, so no policy learns from it; resuming runs it again")
            return found
        for name in self.campaign.objective.metrics:
            raw, used = result.metrics.get(name), o.metrics.get(name)
            if raw is not None and used is not None and not math.isclose(raw, used, rel_tol=1e-6):
                found.append(f"{name} is as compared with other runs; the run itself measured {number(raw)}")
        return found

    def beside(
        self,
        metric: str,
        mean: float,
        error: float,
        *,
        at: tuple[MetricModel, Array] | None = None,
        noise: float | None = None,
    ) -> Expected:
        """An expectation with what came out beside it; `at`: the model that it is of, and the point's row."""
        o = self.observation
        value = o.metrics.get(metric) if o is not None and o.completed else None
        bound = o.bounds.get(metric) if o is not None else None
        stated = 0.0 if o is None or value is None else o.uncertainty.get(metric, 0.0)
        unit = self.campaign.app.contract.metric(metric).unit
        limits = {c.metric: c.text(unit) for c in self.campaign.objective.constraints if c.metric == metric}
        off = None
        if at is not None:
            model, row = at
            slope = float(model.scale.slope(np.array([mean]))[0])
            one_run = float(run_noise(model, row, np.array([stated]))[0])
            noise = one_run / max(slope, 1e-300)
            if value is not None:
                away = float(model.scale.forward(np.array([value]))[0] - model.scale.forward(np.array([mean]))[0])
                off = away / math.hypot(error * slope, one_run)
        elif value is not None:
            noise = max(noise or 0.0, stated) or None
            width = math.hypot(error, noise or 0.0)
            off = (value - mean) / width if width > 0 else None
        goals = {g.metric for g in self.campaign.objective.goals}
        believed = not (o is not None and o.distrusted and metric in goals)
        return Expected(
            metric=metric,
            unit=unit,
            mean=mean,
            error=error,
            noise=noise,
            limit=limits.get(metric, "").removeprefix(metric).strip(),
            value=value,
            off=off if bound is None and believed else None,
            bound=bound,
        )
