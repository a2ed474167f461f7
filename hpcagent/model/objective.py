"""What is to be made large or small, and what must hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import model_validator

from hpcagent.errors import BadInput, nearest
from hpcagent.html import Card, Displayed
from hpcagent.model.base import Record, build
from hpcagent.model.contract import Contract

__all__ = [
    "NO_OBJECTIVE",
    "Constraint",
    "Goal",
    "Objective",
    "at_least",
    "at_most",
    "maximize",
    "minimize",
    "pareto_front",
]


class Goal(Record):
    """A metric and the direction in which it is better."""

    metric: str
    direction: Literal["maximize", "minimize"]

    @property
    def sign(self) -> float:
        """1 where larger is better, -1 where smaller is: `sign * value` is to be large on any increasing scale."""
        return 1.0 if self.direction == "maximize" else -1.0

    def score(self, value: float) -> float:
        """The value with its sign turned so that larger is better."""
        return self.sign * value


class Constraint(Record):
    """A limit on a metric, in the metric's unit.

    It is kept where `sign * (value - limit) >= 0`, on any increasing scale. This class is the one place that knows
    what `at_most` and `at_least` mean.
    """

    metric: str
    at_most: float | None = None
    at_least: float | None = None

    @model_validator(mode="after")
    def _check(self) -> Constraint:
        if (self.at_most is None) == (self.at_least is None):
            raise BadInput(f"the constraint on {self.metric!r} needs either at_most or at_least.")
        if not math.isfinite(self.limit):
            raise BadInput(f"the limit on {self.metric!r} is not finite: {self.limit}.")
        return self

    @property
    def limit(self) -> float:
        """The limit, in the metric's unit."""
        limit = self.at_most if self.at_most is not None else self.at_least
        assert limit is not None
        return limit

    @property
    def sign(self) -> float:
        """1 where larger values keep the limit, -1 where smaller ones do."""
        return 1.0 if self.at_most is None else -1.0

    def excess(self, value: float) -> float:
        """How far `value` is beyond the limit, in the metric's unit; <= 0 when it holds."""
        return self.sign * (self.limit - value)

    def violation(self, value: float) -> float:
        """How far `value` is beyond the limit, as a share of it (in its unit where it is 0); 0 when it holds."""
        return max(self.excess(value), 0.0) / (abs(self.limit) or 1.0)

    def probability(self, value: float, sigma: float) -> float:
        """P(the true value keeps the limit), for a normal error of standard deviation `sigma`."""
        excess = self.excess(value)
        if not sigma > 0:
            return 1.0 if excess <= 0 else 0.0
        return 0.5 * math.erfc(excess / (sigma * math.sqrt(2)))

    def text(self, unit: str = "1") -> str:
        """The limit in words, with the metric's unit.

        Example:
            >>> Constraint(metric="drift", at_most=0.5).text("meV/atom/ns")
            'drift <= 0.5 meV/atom/ns'
        """
        words = f"{self.metric} {'<=' if self.sign < 0 else '>='} {_exact(self.limit)}"
        return words if unit == "1" else f"{words} {unit}"

    def __str__(self) -> str:
        return self.text()


def _exact(value: float) -> str:
    """A number in as few digits as tell it from any other.

    Example:
        >>> _exact(3.0), _exact(0.0304824831), _exact(-76.43829164)
        ('3', '0.0304824831', '-76.43829164')
    """
    return repr(float(value)).removesuffix(".0")


class Objective(Displayed, Record):
    """One or more goals under constraints.

    Example:
        >>> objective = maximize("ns_per_day", subject_to={"energy_fluctuation_1ps": at_most(0.003)})
        >>> objective.feasible({"ns_per_day": 700, "energy_fluctuation_1ps": 0.002})
        True
        >>> print(objective)
        maximize ns_per_day subject to energy_fluctuation_1ps <= 0.003
    """

    goals: tuple[Goal, ...]
    constraints: tuple[Constraint, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        """Accept the TOML form: maximize = "a", minimize = ["b"], subject_to = {c = {at_most = 1}}."""
        if not isinstance(data, Mapping) or "goals" in data:
            return data
        data = dict(data)
        known = ("maximize", "minimize", "subject_to")
        for key in data:
            if key not in known:
                raise BadInput(f"unknown key {key!r}; {nearest(key, known)}")
        goals: list[dict[str, str]] = []
        for direction in ("maximize", "minimize"):
            names = data.pop(direction, ())
            names = (names,) if isinstance(names, str) else names
            if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
                raise BadInput(f"{direction} takes a metric's name (or a list of names); got {names!r}.")
            for name in names:
                goals.append({"metric": name, "direction": direction})
        limits = data.pop("subject_to", {})
        if not isinstance(limits, Mapping):
            raise BadInput(f"subject_to is a table such as {{drift_ppm = {{at_most = 50}}}}; got {limits!r}.")
        constraints = []
        for metric, limit in limits.items():
            if isinstance(limit, Constraint):
                limit = limit.model_dump(exclude={"metric"})
            if not isinstance(limit, Mapping):
                raise BadInput(
                    f"the limit on {metric!r} is {{at_most = ...}} or {{at_least = ...}}; got {limit!r}."
                )
            constraints.append({"metric": metric, **limit})
        return data | {"goals": goals, "constraints": constraints}

    @model_validator(mode="after")
    def _check(self) -> Objective:
        if not self.goals:
            raise BadInput("an objective needs maximize or minimize with a metric's name.")
        names = [g.metric for g in self.goals]
        for name in names:
            if names.count(name) > 1:
                raise BadInput(f"the goal {name!r} stands there {names.count(name)} times; drop all but one.")
        return self

    def _card(self) -> Card:
        return Card("Objective", str(self))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that must be known to judge a run."""
        return tuple(dict.fromkeys([g.metric for g in self.goals] + [c.metric for c in self.constraints]))

    @property
    def goal(self) -> Goal:
        """The first goal.

        Raises:
            BadInput: There is none, as in a sweep.
        """
        if not self.goals:
            raise BadInput(
                "a sweep has no objective, so nothing can be called best; put one on it with "
                "`hpcagent resume RUN_DIR --set objective.minimize=METRIC` (or maximize)."
            )
        return self.goals[0]

    def check(self, contract: Contract) -> None:
        """Raise `BadInput` unless the app promises every metric the objective names."""
        for name in self.metrics:
            contract.metric(name)

    def known(self, metrics: Mapping[str, float]) -> bool:
        """Whether every metric of the objective is there."""
        return all(name in metrics for name in self.metrics)

    def score(self, metrics: Mapping[str, float]) -> float:
        """The first goal's value, larger is better."""
        return self.goal.score(metrics[self.goal.metric])

    def violation(self, metrics: Mapping[str, float]) -> float:
        """How far the values are beyond the limits: the sum of `Constraint.violation`."""
        return sum(c.violation(metrics[c.metric]) for c in self.constraints)

    def feasible(self, metrics: Mapping[str, float]) -> bool:
        """Whether the values themselves keep every limit."""
        return all(c.excess(metrics[c.metric]) <= 0 for c in self.constraints)

    def probability_feasible(self, metrics: Mapping[str, float], uncertainty: Mapping[str, float]) -> float:
        """P(every limit is kept), for independent normal errors (a product over the constraints)."""
        p = 1.0
        for c in self.constraints:
            p *= c.probability(metrics[c.metric], uncertainty.get(c.metric, 0.0))
        return p

    def toml(self) -> dict[str, Any]:
        """The short form, as it stands in a campaign's TOML."""
        data: dict[str, Any] = {}
        for direction in ("maximize", "minimize"):
            names = [g.metric for g in self.goals if g.direction == direction]
            if names:
                data[direction] = names[0] if len(names) == 1 else names
        if self.constraints:
            data["subject_to"] = {
                c.metric: c.model_dump(exclude={"metric"}, exclude_none=True) for c in self.constraints
            }
        return data

    def text(self, units: Mapping[str, str]) -> str:
        """Goals and limits in words.

        Args:
            units: Metric -> unit; one that is not there is shown without.
        """
        if not self.goals:
            return "no objective"
        goals = " and ".join(f"{g.direction} {g.metric}" for g in self.goals)
        limits = " and ".join(c.text(units.get(c.metric, "1")) for c in self.constraints)
        return f"{goals} subject to {limits}" if limits else goals

    def __str__(self) -> str:
        return self.text({})


NO_OBJECTIVE = Objective.model_construct(goals=(), constraints=())
"""Of a sweep: nothing is to be made large or small, and nothing has to hold."""


def at_most(limit: float) -> Constraint:
    """The metric must not exceed `limit`, in its unit (the metric is named by the key it stands under)."""
    return build(Constraint, {"metric": "_", "at_most": limit}, where="at_most")


def at_least(limit: float) -> Constraint:
    """The metric must not fall below `limit`, in its unit."""
    return build(Constraint, {"metric": "_", "at_least": limit}, where="at_least")


def maximize(*metrics: str, subject_to: Mapping[str, Constraint] | None = None) -> Objective:
    """Make the metric large; several metrics give a Pareto front."""
    return _objective("maximize", metrics, subject_to)


def minimize(*metrics: str, subject_to: Mapping[str, Constraint] | None = None) -> Objective:
    """Make the metric small; several metrics give a Pareto front."""
    return _objective("minimize", metrics, subject_to)


def _objective(
    direction: Literal["maximize", "minimize"],
    metrics: Sequence[str],
    subject_to: Mapping[str, Constraint] | None,
) -> Objective:
    limits = {} if subject_to is None else subject_to
    if not isinstance(limits, Mapping):
        raise BadInput(f"subject_to is a dict such as {{'drift_ppm': at_most(50)}}; got {limits!r}.", value=limits)
    for name, limit in limits.items():
        if not isinstance(limit, Constraint):
            raise BadInput(f"the limit on {name!r} is at_most(...) or at_least(...); got {limit!r}.", value=limit)
    if not metrics or not all(isinstance(m, str) for m in metrics):
        raise BadInput(f"{direction} takes names of metrics, one at least; got {metrics!r}.", value=metrics)
    data = {
        "goals": tuple(Goal(metric=m, direction=direction) for m in metrics),
        "constraints": tuple(c.model_copy(update={"metric": name}) for name, c in limits.items()),
    }
    return build(Objective, data, where=direction)


def pareto_front(objective: Objective, points: Sequence[Mapping[str, float]]) -> list[int]:
    """Indices of the feasible points that no other feasible point beats in every goal.

    Example:
        >>> objective = maximize("a", "b")
        >>> pareto_front(objective, [{"a": 1, "b": 1}, {"a": 2, "b": 0}, {"a": 0, "b": 0}])
        [0, 1]
    """
    scores = {
        i: tuple(g.score(point[g.metric]) for g in objective.goals)
        for i, point in enumerate(points)
        if objective.known(point) and objective.feasible(point)
    }
    return [
        i
        for i, a in scores.items()
        if not any(b != a and all(y >= x for x, y in zip(a, b, strict=True)) for b in scores.values())
    ]
