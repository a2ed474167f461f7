"""What is said of a run: why it was asked for, what was expected of it, and what came out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from hpcagent.campaign.numbers import number, point_text
from hpcagent.html import Card, Displayed
from hpcagent.model.failures import RunStates
from hpcagent.model.parameter import Params
from hpcagent.model.records import Side

__all__ = ["Expected", "Explanation"]

MODEL = "a model of the runs known then, not what the policy used"


@dataclass(frozen=True, slots=True)
class Expected:
    """One metric: what was expected of the run, and what came out.

    Attributes:
        metric: Which.
        unit: Its unit.
        mean: What was expected.
        error: Standard error of that, without a run's own noise.
        noise: Standard deviation of a single run, or None where nothing is known of it.
        limit: The limit on it, in words, or an empty text.
        value: What came out, as it is compared with other runs; None where there is nothing.
        off: How far that lies from the mean, in standard deviations of error and noise together.
        bound: On which side of `value` the true value lies, for a run that was stopped early.
    """

    metric: str
    unit: str
    mean: float
    error: float
    noise: float | None = None
    limit: str = ""
    value: float | None = None
    off: float | None = None
    bound: Side | None = None

    def __str__(self) -> str:
        unit = "" if self.unit == "1" else f" {self.unit}"
        text = f"{self.metric} = {number(self.mean)} ± {self.error:.2g}{unit}"
        if self.noise:
            text += f" (± {math.hypot(self.error, self.noise):.2g} for one run)"
        text += f", limit {self.limit}" if self.limit else ""
        if self.value is None:
            return text
        if self.bound is not None:
            return f"{text}; came out: {self.bound} {number(self.value)}{unit}"
        text += f"; came out: {number(self.value)}{unit}"
        if self.off is not None:
            text += f", {abs(self.off):.1f} standard errors {'above' if self.off > 0 else 'below'}"
        return text


@dataclass(frozen=True, repr=False)
class Explanation(Displayed):
    """Why a run was asked for, and what came of it.

    Attributes:
        index: Position of the run in the campaign, from 0.
        execution_id: Its execution id.
        batch: Its batch.
        role: `suggested`, `reference`, `replicate` or `repeat`.
        params: The varied parameters.
        units: Unit of each parameter.
        policy: The campaign's policy.
        purpose: What the run was for, in one or two words: what the policy says, or the role.
        why: One sentence or more.
        known: How many results were known then; None where no policy was asked.
        pending: How many points had been suggested and had not come back.
        asked: How many points the policy was asked for.
        place: Which of its points this was, from 1; None where it does not suggest it again.
        again: Whether the policy, asked again, suggests the point; None where it was not asked.
        source: Where the expectations come from: `policy`, `model` (fitted to what was known then, not what the
            policy used), `runs` (the means of earlier runs there), or an empty text.
        expected: Of each metric of the objective.
        probability_feasible: P(every limit is kept), or None.
        probability_completes: P(the run does not fail), or None.
        rank: Where the expected goal stood among the points with a run and itself: (place, of how many).
        numbers: What else the policy says that it was chosen by.
        status: How its last attempt ended: COMPLETED, FAILED or STOPPED; `no result` where there is none.
        state: What became of it: `completed`, `failed`, `given up`, `running` or `waiting`.
        outcome: The same in words.
        feasible: Whether what it measured kept every limit; None where that is not known.
        notes: Remarks worth reading.
    """

    index: int
    execution_id: str
    batch: int
    role: str
    params: Params
    units: Mapping[str, str]
    policy: str
    purpose: str
    why: str
    known: int | None = None
    pending: int | None = None
    asked: int | None = None
    place: int | None = None
    again: bool | None = None
    source: str = ""
    expected: tuple[Expected, ...] = ()
    probability_feasible: float | None = None
    probability_completes: float | None = None
    rank: tuple[int, int] | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    status: str = "no result"
    state: RunStates = "waiting"
    outcome: str = ""
    feasible: bool | None = None
    notes: tuple[str, ...] = ()

    def _card(self) -> Card:
        point = point_text(self.params, dict(self.units))
        facts = [
            ("point", point),
            ("asked by", self._asked_by),
            ("why", self.why),
            ("chosen by", ", ".join(f"{n} = {number(v)}" for n, v in self.numbers.items())),
            ("expected", "\n".join(line.strip() for line in self._expectations())),
            ("outcome", self.outcome),
            ("notes", "\n".join(self.notes)),
            ("execution id", self.execution_id),
        ]
        title = f"run {self.index}, batch {self.batch}"
        return Card("Explanation", title, facts, brief=f"{self.purpose}; {point}; {self.outcome or self.state}")

    def data(self) -> dict[str, Any]:
        """All of it as plain data, for JSON; numbers that are not finite are left out as None."""
        found: dict[str, Any] = _plain(asdict(self))
        return found

    def __str__(self) -> str:
        lines = [
            f"run {self.index} ({self.execution_id}), batch {self.batch}: {self._asked_by}",
            f"  {point_text(self.params, dict(self.units))}",
            f"why: {self.why}",
        ]
        if self.known is not None:
            lines.append(
                f"known then: {self.known} result(s), {self.pending} point(s) pending; asked for {self.asked} "
                f"point(s)" + ("" if self.place is None else f", of which this is no. {self.place}")
            )
        if self.numbers:
            lines.append("chosen by: " + ", ".join(f"{n} = {number(v)}" for n, v in self.numbers.items()))
        lines += self._expectations()
        lines.append(f"outcome: {self.outcome}")
        if self.again:
            lines.append("asked again with the same history, the policy suggests this point again")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    @property
    def _asked_by(self) -> str:
        if self.role != "suggested":
            if self.role == "told":
                return "a told result, measured elsewhere"
            by = "somebody" if self.role == "enqueued" else "the campaign"
            return f"a{'n' * (self.role in ('enqueued', 'extended'))} {self.role} run, asked for by {by}"
        return f"suggested by {self.policy}" + (f" as {self.purpose}" if self.purpose else "")

    def _expectations(self) -> list[str]:
        chances = []
        if self.probability_feasible is not None:
            chances.append(f"P(feasible) = {self.probability_feasible:.2f}")
        if self.probability_completes is not None:
            chances.append(f"P(completes) = {self.probability_completes:.2f}")
        if self.rank is not None:
            chances.append(
                f"the expected {self.expected[0].metric} is no. {self.rank[0]} of {self.rank[1]} points"
            )
        if not self.expected and not chances:
            return []
        said = {"policy": f"the policy {self.policy}", "model": MODEL, "runs": "the runs there before"}
        lines = [f"expected, by {said.get(self.source, self.source)}:"]
        return lines + [f"  {e}" for e in self.expected] + ([f"  {', '.join(chances)}"] if chances else [])


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
