"""The tables of a campaign that say how it searches: policy, reference, confirmation, fidelity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import field_validator, model_validator

from hpcagent.errors import BadInput
from hpcagent.model.base import Record, Scalar
from hpcagent.model.parameter import Params

__all__ = ["Confirm", "Fidelity", "PolicyChoice", "Reference"]


class PolicyChoice(Record):
    """Which policy steers, and its options."""

    name: str = "bayes"
    options: dict[str, Any] = {}

    @field_validator("options")
    @classmethod
    def _its_own(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Refuse what the campaign itself gives its policy."""
        for name in ("seed", "space", "objective"):
            if name in options:
                raise BadInput(
                    f"policy.{name} is none of a policy's options: the campaign gives its own {name} to it.",
                    value=options[name],
                )
        return options

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        """Accept `policy = "ucb"` and `[policy] name = "ucb", buckets = 8`."""
        if isinstance(data, str):
            return {"name": data}
        if isinstance(data, Mapping) and "options" not in data:
            data = dict(data)
            return {"name": data.pop("name", "bayes"), "options": data}
        return data

    def toml(self) -> dict[str, Any]:
        """The short form."""
        return {"name": self.name, **self.options}


class Reference(Record):
    """A fixed point that is run once in every batch.

    The machine's speed changes while a campaign runs (clock states, neighbours); the reference shows by
    how much, and measured speeds are compared relative to it.

    Attributes:
        params: The point; parameters not named take their defaults.
        metric: The metric that is compared against it; the objective's first by default.
    """

    params: Params = {}
    metric: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and not set(data) <= {"params", "metric"}:
            data = dict(data)
            return {"metric": data.pop("metric", None), "params": data}
        return data

    def toml(self) -> dict[str, Any]:
        """The short form."""
        return {"params": dict(self.params)} | ({"metric": self.metric} if self.metric else {})


class Confirm(Record):
    """A last batch that repeats the contenders, so that the answer is not the luckiest run.

    Attributes:
        top: How many contenders.
        replicates: How often each is run again.
        baseline: Parameters of a comparison at the same accuracy: the best point with these values instead.
    """

    top: int = 2
    replicates: int = 2
    baseline: Params = {}

    @model_validator(mode="after")
    def _check(self) -> Confirm:
        if self.top < 0 or self.replicates < 0:
            raise BadInput(f"confirm takes whole numbers >= 0; got top={self.top}, replicates={self.replicates}.")
        return self

    @property
    def runs(self) -> int:
        """How many runs the confirmation takes."""
        return (self.top + bool(self.baseline)) * self.replicates


class Fidelity(Record):
    """A parameter whose values are cheaper and dearer ways to the same metric.

    Only runs at the last level are the answer; those before it say where a run at the last is worth its price.

    Attributes:
        parameter: A choice of the app, e.g. `engine`.
        levels: Its values, the cheapest first.
    """

    parameter: str
    levels: tuple[Scalar, ...]

    @model_validator(mode="after")
    def _check(self) -> Fidelity:
        if len(self.levels) < 2 or len(set(self.levels)) != len(self.levels):
            raise BadInput(f"fidelity.levels={list(self.levels)} must be two or more different values.")
        return self
