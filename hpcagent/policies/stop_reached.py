"""Stop conditions on what a campaign has found: a value is reached, or nothing becomes better any more."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, model_validator

from hpcagent.errors import BadInput
from hpcagent.model.base import build
from hpcagent.model.objective import Constraint
from hpcagent.policies.stop import Progress, Stop, at_least_one, point_of
from hpcagent.statistics.recommend import Estimate, estimates, recommend

__all__ = ["Plateau", "TargetReached", "plateau", "target"]


class TargetReached(Stop):
    """Ends when a point reaches a value of a metric.

    Attributes:
        metric: Which metric.
        at_least: Reached at this value or above, in the metric's unit.
        at_most: Reached at this value or below, in the metric's unit.
        feasible: Whether the point must keep the objective's limits as well.
        probability: If given, P(the true values reach the target and keep the limits) must be at least this;
            otherwise the measured values count.
    """

    kind: Literal["target"] = "target"
    metric: str
    at_least: float | None = None
    at_most: float | None = None
    feasible: bool = True
    probability: float | None = None

    @model_validator(mode="after")
    def _check(self) -> TargetReached:
        if self.probability is not None and not 0 < self.probability < 1:
            raise BadInput(f"probability={self.probability} of a target must be between 0 and 1.")
        try:
            _ = self.limit
        except BadInput as error:
            raise BadInput(f"target: {error}") from None
        return self

    def metrics(self) -> tuple[str, ...]:
        """The metric that it looks at."""
        return (self.metric,)

    @property
    def limit(self) -> Constraint:
        """The target as a limit."""
        return Constraint(metric=self.metric, at_least=self.at_least, at_most=self.at_most)

    def check(self, progress: Progress) -> str | None:
        objective = progress.objective
        for e in estimates(progress.history, objective, space=progress.space, noise=progress.noise):
            if self.metric not in e.metrics or not e.trusted:
                continue
            value = e.metrics[self.metric]
            if self.limit.excess(value) > 0 or (self.feasible and not objective.feasible(e.metrics)):
                continue
            p = self.limit.probability(value, e.uncertainty.get(self.metric, 0.0))
            p *= e.probability_feasible if self.feasible else 1.0
            if self.probability is None or p >= self.probability:
                sure = "" if self.probability is None else f" with probability {p:.2f}"
                kept = " and every limit is kept" if self.feasible and objective.constraints else ""
                return f"The target {self.limit} is reached{sure}{kept}: {value:.6g} at {point_of(e.params)}."
        return None

    def toml(self) -> dict[str, Any]:
        return {"target": self.model_dump(exclude={"kind"}, exclude_defaults=True)}


class Plateau(Stop):
    """Ends when the recommended point has not become better for some batches.

    The point recommended `batches` batches ago and the one recommended now are compared with all that is
    known now, so a lucky measurement is not taken for an improvement, nor is a gain below its own standard
    error.

    Attributes:
        batches: Over how many batches.
        relative: Smallest improvement that counts, as a share of the value.
    """

    kind: Literal["plateau"] = "plateau"
    batches: int = Field(3, strict=True)
    relative: float = 0.01

    @model_validator(mode="after")
    def _check(self) -> Plateau:
        at_least_one("batches of a plateau", self.batches)
        if not (math.isfinite(self.relative) and self.relative >= 0):
            raise BadInput(f"relative={self.relative} of a plateau must be at least 0.")
        return self

    def check(self, progress: Progress) -> str | None:
        history = progress.history
        last = max((o.batch for o in history), default=-1)
        earlier = [o for o in history if o.batch <= last - self.batches]
        then = recommend(earlier, progress.objective, space=progress.space, noise=progress.noise)
        now = recommend(history, progress.objective, space=progress.space, noise=progress.noise)
        if then is None or now is None or not (then.feasible and now.feasible):
            return None
        known = {tuple(e.params.items()): e for e in _feasible_estimates(progress)}
        old = known.get(tuple(then.params.items()))
        if old is None:
            # What was recommended then is not believed to keep the limits any more: something was learned.
            return None
        gain = now.best.score - old.score
        noise = math.hypot(now.best.score_error, old.score_error) if now.params != then.params else 0.0
        if gain >= max(self.relative * abs(old.score), noise) and gain > 0:
            return None
        goal = progress.objective.goal
        batches = "batch" if self.batches == 1 else f"{self.batches} batches"
        return (
            f"The best {goal.metric} that keeps the limits, {now.metrics[goal.metric]:.6g}, has improved by less "
            f"than {self.relative:.3g} of itself or its noise in the last {batches}."
        )

    def toml(self) -> dict[str, Any]:
        return {"plateau": self.model_dump(exclude={"kind"})}


def target(
    metric: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    feasible: bool = True,
    probability: float | None = None,
) -> TargetReached:
    """End when a point reaches a value (see `TargetReached`).

    Example:
        >>> target("ns_per_day", at_least=2.0, probability=0.9).toml()
        {'target': {'metric': 'ns_per_day', 'at_least': 2.0, 'probability': 0.9}}
    """
    data = {"at_least": at_least, "at_most": at_most, "feasible": feasible, "probability": probability}
    return build(TargetReached, {"metric": metric, **data}, where="target")


def plateau(batches: int = 3, *, relative: float = 0.01) -> Plateau:
    """End when nothing became better for `batches` batches (see `Plateau`)."""
    return build(Plateau, {"batches": batches, "relative": relative}, where="plateau")


def _feasible_estimates(progress: Progress) -> list[Estimate]:
    found = estimates(progress.history, progress.objective, space=progress.space, noise=progress.noise)
    return [e for e in found if e.probability_feasible >= 0.5 and progress.objective.feasible(e.metrics)]
