"""When a campaign ends: conditions that say why, in a sentence.

In TOML a table of conditions ends the campaign at the first that holds:

    stop = {max_runs = 48, plateau = {batches = 3}, no_feasible_point = {min_runs = 24}}

and `any_of` / `all_of` take lists of such tables. A condition of one's own is a subclass of `Stop`, named by an
entry point in the group `hpcagent.stops` or by its path, `stop = {"mypackage.mymodule:Steady" = {within = 0.01}}`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, SerializeAsAny, field_validator, model_validator

from hpcagent.errors import BadInput, nearest
from hpcagent.later import Later
from hpcagent.model.base import Record, build
from hpcagent.model.objective import Constraint, Objective
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.offered import load, offered
from hpcagent.statistics.points import located
from hpcagent.statistics.recommend import Estimate, estimates, recommend
from hpcagent.statistics.trend import Scale, tame

if TYPE_CHECKING:
    import numpy as np
else:
    np = Later("numpy")

__all__ = [
    "AllOf",
    "AnyOf",
    "DesignDone",
    "MaxBatches",
    "MaxRuns",
    "NoFeasiblePoint",
    "NodeHours",
    "Plateau",
    "Progress",
    "Stop",
    "StopCondition",
    "TargetReached",
    "WallTime",
    "all_of",
    "any_of",
    "max_batches",
    "max_runs",
    "no_feasible_point",
    "node_hours",
    "plateau",
    "read_stop",
    "target",
    "wall_time",
]


@dataclass(frozen=True)
class Progress:
    """How far a campaign is.

    Attributes:
        history: Finished runs.
        objective: What is looked for.
        space: Where.
        batches_done: Finished batches.
        wall_s: Seconds since the campaign started.
        node_hours: Node-hours used.
        runs: Runs that have ended: completed, failed or given up.
        failed: Of these, the ones that failed.
        noise: Known relative standard deviation of one run, by metric; 0 where runs are exact.
    """

    history: Sequence[Observation]
    objective: Objective
    space: Space
    batches_done: int = 0
    wall_s: float = 0.0
    node_hours: float = 0.0
    runs: int = 0
    failed: int = 0
    noise: Mapping[str, float] = field(default_factory=dict)


class Stop(Record):
    """One condition. `check` gives the reason to stop as a sentence, or None to go on.

    One of your own has fields, `check`, and `kind: Literal["NAME"] = "NAME"`, by which records name it: that of
    its entry point, or its path `package.module:Class`. `hpcagent.testing.StopContract` tests it.
    """

    def check(self, progress: Progress) -> str | None:
        """Return why to stop, or None."""
        raise NotImplementedError

    def budget(self) -> int | None:
        """The largest number of runs, if this condition bounds it."""
        return None

    def cap(self) -> float | None:
        """Node-hours that the campaign must not exceed, if this condition bounds them."""
        return None

    def limit_s(self) -> float | None:
        """Wall time, in seconds, that the campaign takes at most, if this condition bounds it."""
        return None

    def toml(self) -> dict[str, Any]:
        """The form `read_stop` reads."""
        fields = self.model_dump(exclude_none=True)
        return {str(fields.pop("kind")): fields}

    def metrics(self) -> tuple[str, ...]:
        """The metrics that it looks at beside the objective's."""
        return ()


class DesignDone(Stop):
    """Ends when the policy has nothing left to suggest: of a sweep, where nothing else is said."""

    kind: Literal["design_done"] = "design_done"

    def check(self, progress: Progress) -> str | None:
        return None

    def toml(self) -> dict[str, Any]:
        return {}


class MaxRuns(Stop):
    """Ends after `runs` runs, completed or failed."""

    kind: Literal["max_runs"] = "max_runs"
    runs: int = Field(strict=True)

    @field_validator("runs")
    @classmethod
    def _positive(cls, runs: int) -> int:
        return _at_least_one("max_runs", runs)

    def check(self, progress: Progress) -> str | None:
        if progress.runs < self.runs:
            return None
        return f"All {self.runs} runs have ended{_of_these_failed(progress)}."

    def budget(self) -> int | None:
        return self.runs

    def toml(self) -> dict[str, Any]:
        return {"max_runs": self.runs}


class MaxBatches(Stop):
    """Ends after `batches` batches."""

    kind: Literal["max_batches"] = "max_batches"
    batches: int = Field(strict=True)

    @field_validator("batches")
    @classmethod
    def _positive(cls, batches: int) -> int:
        return _at_least_one("max_batches", batches)

    def check(self, progress: Progress) -> str | None:
        if progress.batches_done < self.batches:
            return None
        return f"All {self.batches} batches have ended."

    def toml(self) -> dict[str, Any]:
        return {"max_batches": self.batches}


class WallTime(Stop):
    """Ends once the campaign has taken `seconds` of wall time."""

    kind: Literal["wall_time_s"] = "wall_time_s"
    seconds: float

    @field_validator("seconds")
    @classmethod
    def _positive(cls, seconds: float) -> float:
        return _positive("wall_time_s", seconds)

    def check(self, progress: Progress) -> str | None:
        if progress.wall_s < self.seconds:
            return None
        return f"The campaign has taken {progress.wall_s:.0f} s; the limit is {self.seconds:g} s."

    def limit_s(self) -> float | None:
        return self.seconds

    def toml(self) -> dict[str, Any]:
        return {"wall_time_s": self.seconds}


class NodeHours(Stop):
    """Ends before `hours` node-hours are exceeded: a hard cap.

    The coordinator plans no runs that could break it by the forecast (see `hpcagent.campaign.budget`); `check`
    is what is left for runs that were dearer than any forecast.
    """

    kind: Literal["node_hours"] = "node_hours"
    hours: float

    @field_validator("hours")
    @classmethod
    def _positive(cls, hours: float) -> float:
        return _positive("node_hours", hours)

    def check(self, progress: Progress) -> str | None:
        if progress.node_hours < self.hours:
            return None
        return f"{progress.node_hours:.4g} node-hours are used; the limit is {self.hours:g}."

    def cap(self) -> float | None:
        return self.hours

    def toml(self) -> dict[str, Any]:
        return {"node_hours": self.hours}


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
                where = ", ".join(f"{k}={_short(v)}" for k, v in e.params.items())
                kept = " and every limit is kept" if self.feasible and objective.constraints else ""
                return f"The target {self.limit} is reached{sure}{kept}: {value:.6g} at {where}."
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
        _at_least_one("batches of a plateau", self.batches)
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


class NoFeasiblePoint(Stop):
    """Ends when there is good reason to believe that these parameters cannot meet the limits.

    1. After `min_runs` completed runs none keeps the limits, and a broken limit's metric depends on no
       parameter (by rank tests with a correction for their number) and is far from its limit compared with
       its scatter.
    2. None keeps the limits after `give_up_after` completed runs, whatever the metric depends on.
    3. None of at least `min_runs` runs completed at all.

    Attributes:
        min_runs: Least number of runs before anything is concluded.
        give_up_after: Completed runs after which to stop in any case; None for never.
        significance: Error probability of the tests, over all of them.
    """

    kind: Literal["no_feasible_point"] = "no_feasible_point"
    min_runs: int = Field(18, strict=True)
    give_up_after: int | None = Field(None, strict=True)
    significance: float = 0.1

    @model_validator(mode="after")
    def _check(self) -> NoFeasiblePoint:
        if self.min_runs < 8:
            raise BadInput(f"min_runs={self.min_runs} is too few to conclude anything; give at least 8.")
        if self.give_up_after is not None and self.give_up_after < self.min_runs:
            raise BadInput(f"give_up_after={self.give_up_after} must not be less than min_runs={self.min_runs}.")
        if not 0 < self.significance < 1:
            raise BadInput(f"significance={self.significance} must be between 0 and 1.")
        return self

    def check(self, progress: Progress) -> str | None:
        objective = progress.objective
        if progress.history and not any(o.completed for o in progress.history):
            return self._nothing_completed(progress.history)
        known = [(p, o) for p, o in located(progress.space, progress.history) if objective.known(o.metrics)]
        known = [(p, o) for p, o in known if o.completed]
        if len(known) < self.min_runs or any(objective.feasible(o.metrics) for _, o in known):
            return None
        broken = [c for c in objective.constraints if all(c.excess(o.metrics[c.metric]) > 0 for _, o in known)]
        for c in broken:
            reason = self._independent(c, progress, [o for _, o in known])
            if reason:
                return reason
        if self.give_up_after is not None and len(known) >= self.give_up_after:
            return self._given_up(progress, broken, [o for _, o in known])
        return None

    def _nothing_completed(self, history: Sequence[Observation]) -> str | None:
        if len(history) < self.min_runs:
            return None
        names = Counter(o.failure or ("stopped early" if o.stopped else "unknown failure") for o in history)
        listed = ", ".join(f"{name} {n}" for name, n in names.most_common(3))
        return f"None of the {len(history)} runs completed ({listed}), so nothing can be compared."

    def _independent(self, c: Constraint, progress: Progress, runs: Sequence[Observation]) -> str | None:
        from hpcagent.statistics.sensitivity import sensitivity  # scipy.stats is slow to import

        values = tame([o.metrics[c.metric] for o in runs])
        found = sensitivity(progress.space, [o.params for o in runs], values.tolist())
        if not found.insensitive(self.significance):
            return None
        scale = Scale.of_limited(values, c.limit)
        scaled, limit = scale.forward(values), float(scale.forward(c.limit))
        # A metric that scatters across its limit may be feasible by chance in the next run: no conclusion.
        if float(np.abs(scaled - limit).min()) < 2 * float(np.std(scaled)):
            return None
        names = ", ".join(found.p_values)
        return (
            f"No run keeps {c}: {c.metric} lies between {values.min():.4g} and {values.max():.4g} in "
            f"{len(runs)} runs and does not depend on the parameters it was given ({names}), so something else "
            "causes it; look at the input (cutoff, constraints, preparation) before running on."
        )

    def _given_up(self, progress: Progress, broken: Sequence[Constraint], runs: Sequence[Observation]) -> str:
        if not broken:
            return (
                f"None of {len(runs)} completed runs keeps all limits of '{progress.objective}' at once, though "
                "each limit alone is kept by some; loosen one of them or widen the space."
            )
        c = broken[0]
        closest = min((o for o in runs), key=lambda o: c.excess(o.metrics[c.metric]))
        where = ", ".join(f"{k}={_short(v)}" for k, v in closest.params.items())
        return (
            f"None of {len(runs)} completed runs keeps {c}: {c.metric} depends on the parameters, and the closest "
            f"is {closest.metrics[c.metric]:.4g} at {where}; widen the space there or loosen the limit."
        )

    def toml(self) -> dict[str, Any]:
        return {"no_feasible_point": self.model_dump(exclude={"kind"}, exclude_none=True)}


class AnyOf(Stop):
    """Ends when one of the conditions holds."""

    kind: Literal["any_of"] = "any_of"
    conditions: tuple[StopCondition, ...]

    @field_validator("conditions")
    @classmethod
    def _some(cls, conditions: tuple[Stop, ...]) -> tuple[Stop, ...]:
        return _at_least_one_condition("any_of", conditions)

    def metrics(self) -> tuple[str, ...]:
        """The metrics that its conditions look at."""
        return tuple(m for c in self.conditions for m in c.metrics())

    def check(self, progress: Progress) -> str | None:
        return next((reason for c in self.conditions if (reason := c.check(progress))), None)

    def budget(self) -> int | None:
        return min((b for c in self.conditions if (b := c.budget()) is not None), default=None)

    def cap(self) -> float | None:
        return min((hours for c in self.conditions if (hours := c.cap()) is not None), default=None)

    def limit_s(self) -> float | None:
        return min((limit for c in self.conditions if (limit := c.limit_s()) is not None), default=None)

    def toml(self) -> dict[str, Any]:
        tables = [c.toml() for c in self.conditions]
        keys = [key for table in tables for key in table]
        if len(keys) == len(set(keys)):
            return {key: value for table in tables for key, value in table.items()}
        return {"any_of": tables}


class AllOf(Stop):
    """Ends when all conditions hold."""

    kind: Literal["all_of"] = "all_of"
    conditions: tuple[StopCondition, ...]

    @field_validator("conditions")
    @classmethod
    def _some(cls, conditions: tuple[Stop, ...]) -> tuple[Stop, ...]:
        return _at_least_one_condition("all_of", conditions)

    def metrics(self) -> tuple[str, ...]:
        """The metrics that its conditions look at."""
        return tuple(m for c in self.conditions for m in c.metrics())

    def check(self, progress: Progress) -> str | None:
        reasons = [c.check(progress) for c in self.conditions]
        if any(reason is None for reason in reasons):
            return None
        return " ".join(reason for reason in reasons if reason)

    def budget(self) -> int | None:
        # All have to hold, so the campaign may go on until the last one does.
        budgets = [c.budget() for c in self.conditions]
        known = [b for b in budgets if b is not None]
        return max(known) if len(known) == len(budgets) else None

    def cap(self) -> float | None:
        # As with runs: one that is reached does not end the campaign while another condition does not hold.
        caps = [c.cap() for c in self.conditions]
        known = [hours for hours in caps if hours is not None]
        return max(known) if len(known) == len(caps) else None

    def limit_s(self) -> float | None:
        limits = [c.limit_s() for c in self.conditions]
        known = [limit for limit in limits if limit is not None]
        return max(known) if len(known) == len(limits) else None

    def toml(self) -> dict[str, Any]:
        return {"all_of": [c.toml() for c in self.conditions]}


def read_stop(data: Any, *, where: str = "until") -> Stop:
    """Read a stop condition from plain data.

    Args:
        data: A table such as `{max_runs = 36, plateau = {batches = 3}}` (the first that holds ends the
            campaign), a list of such tables, a record's own JSON form (with `kind`), or a `Stop`.
        where: What the data is, for messages.

    Raises:
        BadInput: Unknown key, wrong value, or nothing given.

    Example:
        >>> read_stop({"max_runs": 36, "plateau": {"batches": 3}}).budget()
        36
    """
    if isinstance(data, Stop):
        return data
    if isinstance(data, (list, tuple)):
        return any_of(*(read_stop(d, where=f"{where}[{i}]") for i, d in enumerate(data)))
    if not isinstance(data, Mapping) or not data:
        raise BadInput(f"{where} is a table of conditions such as {{max_runs = 36}}; got {data!r}.", value=data)
    if "kind" in data:
        return _read_record(data, where)
    conditions = [_read_one(key, value, f"{where}.{key}") for key, value in data.items()]
    return conditions[0] if len(conditions) == 1 else AnyOf(conditions=tuple(conditions))


def _read_record(data: Mapping[str, Any], where: str) -> Stop:
    return build(_record(data["kind"], where, "kind"), data, where=where)


def _record(name: Any, where: str, what: str) -> type[Stop]:
    """The class of a condition: hpcagent's own, or one that a package offers or a path names."""
    if name in RECORDS:
        return RECORDS[name]
    if not isinstance(name, str) or (":" not in name and name not in offered("stops")):
        known = (*RECORDS, *offered("stops"))
        raise BadInput(f"{where}: unknown {what} {name!r}; {nearest(str(name), known)}", value=name)
    found = load("stops", name, {})
    if not (isinstance(found, type) and issubclass(found, Stop)):
        raise BadInput(f"{where}: {name!r} is no subclass of hpcagent.policies.stop.Stop.", value=name)
    if "kind" not in found.model_fields or found.model_fields["kind"].default != name:
        needed = f'kind: Literal["{name}"] = "{name}"'
        raise BadInput(f"{where}: {found.__name__} needs the field {needed}.", value=name)
    return found


def _read_one(key: str, value: Any, where: str) -> Stop:
    if key in ("any_of", "all_of"):
        if not isinstance(value, (list, tuple)):
            raise BadInput(f"{where} is a list of tables; got {value!r}.", value=value)
        parts = tuple(read_stop(v, where=f"{where}[{i}]") for i, v in enumerate(value))
        return build(RECORDS[key], {"conditions": parts}, where=where)
    its = _record(key, where, "key")
    field = PLAIN.get(key)
    if isinstance(value, Mapping):
        return build(its, value, where=where)
    if field is None:
        raise BadInput(f"{where} is a table; got {value!r}.", value=value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadInput(f"{where} is a number; got {value!r}.", value=value)
    return build(its, {field: value}, where=where)


def _as_condition(data: Any) -> Any:
    return read_stop(data)


StopCondition: TypeAlias = Annotated[
    MaxRuns
    | MaxBatches
    | WallTime
    | NodeHours
    | TargetReached
    | Plateau
    | NoFeasiblePoint
    | AnyOf
    | AllOf
    | SerializeAsAny[Stop],
    BeforeValidator(_as_condition),
]
"""The type for a field of a record: takes a `Stop`, the TOML form and the JSON form."""

RECORDS: Mapping[str, type[Stop]] = {
    "max_runs": MaxRuns,
    "max_batches": MaxBatches,
    "wall_time_s": WallTime,
    "node_hours": NodeHours,
    "target": TargetReached,
    "plateau": Plateau,
    "no_feasible_point": NoFeasiblePoint,
    "any_of": AnyOf,
    "all_of": AllOf,
}
# Conditions that may be written as a plain number, and the field it is.
PLAIN: Mapping[str, str] = {
    "max_runs": "runs",
    "max_batches": "batches",
    "wall_time_s": "seconds",
    "node_hours": "hours",
    "no_feasible_point": "min_runs",
}

AnyOf.model_rebuild()
AllOf.model_rebuild()


def max_runs(runs: int) -> MaxRuns:
    """End after `runs` runs.

    Example:
        >>> max_runs(48).budget()
        48
    """
    return build(MaxRuns, {"runs": runs}, where="max_runs")


def max_batches(batches: int) -> MaxBatches:
    """End after `batches` batches."""
    return build(MaxBatches, {"batches": batches}, where="max_batches")


def wall_time(seconds: float) -> WallTime:
    """End after `seconds` seconds of wall time."""
    return build(WallTime, {"seconds": seconds}, where="wall_time")


def node_hours(hours: float) -> NodeHours:
    """End after `hours` node-hours."""
    return build(NodeHours, {"hours": hours}, where="node_hours")


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


def no_feasible_point(
    min_runs: int = 18, *, give_up_after: int | None = None, significance: float = 0.1
) -> NoFeasiblePoint:
    """End when these parameters cannot meet the limits (see `NoFeasiblePoint`)."""
    data = {"min_runs": min_runs, "give_up_after": give_up_after, "significance": significance}
    return build(NoFeasiblePoint, data, where="no_feasible_point")


def any_of(*conditions: Stop) -> Stop:
    """End when one of the conditions holds.

    Example:
        >>> any_of(max_runs(36), plateau(3)).toml()
        {'max_runs': 36, 'plateau': {'batches': 3, 'relative': 0.01}}
    """
    return build(AnyOf, {"conditions": conditions}, where="any_of")


def all_of(*conditions: Stop) -> Stop:
    """End when all conditions hold."""
    return build(AllOf, {"conditions": conditions}, where="all_of")


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise BadInput(f"{name}={value} must be at least 1.", value=value)
    return value


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise BadInput(f"{name}={value} must be a positive number.", value=value)
    return value


def _at_least_one_condition(name: str, conditions: tuple[Stop, ...]) -> tuple[Stop, ...]:
    if not conditions:
        raise BadInput(f"{name} needs at least one condition.")
    return conditions


def _of_these_failed(progress: Progress) -> str:
    return f", {progress.failed} of them failed" if progress.failed else ""


def _short(value: float | int | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def _feasible_estimates(progress: Progress) -> list[Estimate]:
    found = estimates(progress.history, progress.objective, space=progress.space, noise=progress.noise)
    return [e for e in found if e.probability_feasible >= 0.5 and progress.objective.feasible(e.metrics)]
