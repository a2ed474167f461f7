"""Rules: a result that crosses a limit is an event worth telling at once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import model_validator

from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import Record
from hpcagent.model.contract import Contract
from hpcagent.model.records import Result

__all__ = ["Rule"]


class Rule(Record):
    """Tell of every completed run whose metric is below or above a limit.

    Attributes:
        event: What it is called, e.g. `new_promising_catalyst`.
        metric: The metric that is looked at.
        below: Told when the metric is smaller, in the metric's unit.
        above: Told when it is larger.
        include: Name in the event -> parameter or metric whose value it has.

    Example:
        >>> rule = Rule(event="promising", metric="adsorption_energy", below=-1.2, include={"catalyst": "metal"})
        >>> str(rule)
        'promising: adsorption_energy < -1.2'
    """

    event: str
    metric: str
    below: float | None = None
    above: float | None = None
    include: dict[str, str] = {}

    @model_validator(mode="after")
    def _check(self) -> Rule:
        if not self.event.isidentifier():
            raise BadInput(
                f"rules: event={self.event!r} is not an identifier (letters, digits, _).", value=self.event
            )
        if (self.below is None) == (self.above is None):
            raise BadInput(f"rules, {self.event}: give either below or above.")
        limit = self.below if self.below is not None else self.above
        if limit is None or not math.isfinite(limit):
            raise BadInput(f"rules, {self.event}: the limit {limit} is not finite.", value=limit)
        return self

    def __str__(self) -> str:
        sign, limit = ("<", self.below) if self.below is not None else (">", self.above)
        return f"{self.event}: {self.metric} {sign} {limit:g}"

    def check(self, contract: Contract) -> None:
        """Raise `BadInput` where the app has no such metric or parameter."""
        contract.metric(self.metric)
        known = [*contract.space.names, *(m.name for m in contract.metrics)]
        for name in self.include.values():
            if name not in known:
                raise BadInput(
                    f"rules, {self.event}: app {contract.name!r} has no parameter or metric {name!r}; "
                    f"{nearest(name, known)}",
                    value=name,
                )

    def meets(self, result: Result) -> bool:
        """Whether the rule tells of this result."""
        value = result.metrics.get(self.metric) if result.ok else None
        if value is None:
            return False
        return value < self.below if self.below is not None else self.above is not None and value > self.above

    def data(self, result: Result) -> dict[str, Any]:
        """What the event says: the included values, the metric, and where the result is (`result_uri`)."""
        values: dict[str, Any] = {**result.manifest.params, **result.metrics}
        said = {name: values[source] for name, source in self.include.items() if source in values}
        uri = f"urn:uuid:{result.manifest.execution_id}"  # it wrote no file: the record has it by this id
        if result.workdir:
            uri = (Path(result.workdir).absolute() / "result.json").as_uri()
        if result.remote is not None:  # not a file of this machine
            uri = f"globus-compute://{result.remote.endpoint_id}{quote(result.remote.workdir)}/result.json"
        return {**said, self.metric: result.metrics[self.metric], "result_uri": uri}
