"""The best point of a campaign: its metrics with their errors, where they are from, how much faster it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcagent.campaign.numbers import point_text, with_error
from hpcagent.html import Card, Displayed
from hpcagent.model.parameter import Params

__all__ = ["Best", "Speedup"]


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times better the best point does than another one.

    Attributes:
        over: What it is compared with, in words.
        params: That point.
        factor: Ratio of the goal's values.
        error: Its standard error.
        same_accuracy: Whether the other point keeps the limits as the best one does.
        estimated: Which of the two speeds are estimates from CPU time and not measured, in words; empty for none.
    """

    over: str
    params: Params
    factor: float
    error: float
    same_accuracy: bool
    estimated: str = ""

    def __str__(self) -> str:
        tie = " (a tie: the difference is within the noise)" if abs(self.factor - 1) < 2 * self.error else ""
        return f"{self.factor:.2f} ± {self.error:.2f} times {self.over}{tie}{self.estimated}"


@dataclass(frozen=True, slots=True, repr=False)
class Best(Displayed):
    """The point to use.

    Attributes:
        params: The varied parameters.
        metrics: Means over the runs there, in `units`.
        uncertainty: Standard error of each mean.
        units: Unit of each metric, and of each parameter that no metric has the name of.
        feasible: Whether it keeps the limits with the asked confidence.
        probability_feasible: P(every limit is kept).
        runs: Completed runs there.
        ties: Other points that are not worse beyond the noise.
        shown: Metrics of the objective, shown first.
        exact: Whether the app's metrics are without noise, so that each point stands for itself.
        earlier: How many of `runs` are of earlier campaigns.
        told: How many of `runs` were told, not run here.
        expected: What the models of all runs say of the objective's metrics there, in `units`.
        expected_error: Standard error of each.
        surer: Where it has less than the asked confidence, being so much better: the best point that has it, in
            words.
        estimated: Metrics that were not measured there but estimated from CPU time: no run had its core.
        point_units: Unit of each parameter.
    """

    params: Params
    metrics: dict[str, float]
    uncertainty: dict[str, float]
    units: dict[str, str]
    feasible: bool
    probability_feasible: float
    runs: int
    ties: tuple[Params, ...]
    shown: tuple[str, ...]
    exact: bool = False
    earlier: int = 0
    told: int = 0
    expected: dict[str, float] = field(default_factory=dict)
    expected_error: dict[str, float] = field(default_factory=dict)
    surer: str = ""
    estimated: tuple[str, ...] = ()
    point_units: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [point_text(self.params, self.point_units)]
        for name in self.shown:
            lines.append(f"  {name} = {self.value_text(name)}")
        trend = ", and the models of all" if self.expected and not self.exact else ""
        lines.append(f"  P(feasible) = {self.probability_feasible:.2f}, from {self.origin}{trend}")
        if self.surer:
            lines.append(f"  {self.surer}")
        if not self.feasible:
            lines.append("  NOT feasible: no point keeps every limit with the asked confidence")
        return "\n".join(lines)

    def _card(self) -> Card:
        point = point_text(self.params, self.point_units)
        values = [(name, self.value_text(name)) for name in self.shown]
        facts = [
            *values,
            ("P(feasible)", f"{self.probability_feasible:.2f}, from {self.origin}"),
            ("note", self.surer),
            ("not feasible", "" if self.feasible else "no point keeps every limit with the asked confidence"),
            ("ties", "\n".join(point_text(t, self.point_units) for t in self.ties[:5])),
        ]
        said = "; ".join(f"{name} = {self.expected_text(name)}" for name in self.shown)
        return Card("Best", point, facts, brief=f"{said}; P(feasible) = {self.probability_feasible:.2f}")

    @property
    def origin(self) -> str:
        """Whose runs the means are of, in words."""
        if self.told:
            own = self.runs - self.earlier - self.told
            words = [f"{own} run(s) here"] * bool(own) + [f"{self.told} told result(s), not run here"]
            return ", ".join(words + [f"{self.earlier} run(s) of earlier campaigns"] * bool(self.earlier))
        if not self.earlier:
            return f"{self.runs} run(s) here"
        if self.earlier < self.runs:
            return f"{self.runs} run(s) here, {self.earlier} of them of earlier campaigns"
        return f"{self.runs} run(s) here of earlier campaigns, NOT confirmed by one of this campaign"

    def value_text(self, name: str) -> str:
        """A metric: what the models expect, where there are any, and what was measured, or estimated."""
        measured = self._with_error(name, self.metrics, self.uncertainty)
        if name not in self.expected:
            return f"{measured}, estimated from CPU time" if name in self.estimated else measured
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        how = "measured"
        if name in self.estimated:
            how, runs = (
                "estimated from CPU time",
                f"{runs} without {'its core' if self.runs == 1 else 'their core'}",
            )
        return f"{self.expected_text(name)} expected; {how} {measured} ({runs})"

    def expected_text(self, name: str) -> str:
        """What the models expect of a metric, or its mean where there are none, with its error and unit."""
        if name not in self.expected:
            return self._with_error(name, self.metrics, self.uncertainty)
        return self._with_error(name, self.expected, self.expected_error)

    def _with_error(self, name: str, values: Mapping[str, float], errors: Mapping[str, float]) -> str:
        unit = self.units.get(name, "1")
        text = with_error(values[name], errors.get(name))
        return text if unit == "1" else f"{text} {unit}"
