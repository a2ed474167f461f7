"""The `[guard]` table of a campaign: what ends a run early, and of which metrics that can be told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from hpcagent.apps.base import App
from hpcagent.apps.hooks import LAMMPS
from hpcagent.errors import BadInput
from hpcagent.model.base import Record
from hpcagent.model.contract import MEASURED_TIMES
from hpcagent.model.objective import Objective
from hpcagent.model.records import StopReason

__all__ = ["Guard", "kinds_of"]

Kind = Literal["mean", "speed", "rising", "falling"]

# Of LAMMPS's catalogue: what is a mean over the run, or behaves like one. Slopes, drifts, and what grows with the
# length of the run where the energy walks, do not.
_MEANS = (
    "temperature",
    "pressure",
    "density",
    "potential_energy_",
    "kinetic_energy_",
    "total_energy_",
    "energy_fluctuation_1",
    "neighbor_builds_per_step",
)
_COUNTS = ("neighbor_builds", "dangerous_builds", "loop_time_s")


class Guard(Record):
    """What ends a run before its end, while it goes on.

    Attributes:
        stops: `blown_up`: its numbers are beyond sense; `limit`: the finished run would break a limit of the
            objective; `cannot_win`: it would not be better than the best so far. By default all that apply.
        confidence: How sure that has to be for each run, over all looks at it together, 0.5 to 1.
        least_share: Which part of a run is done before anything is stopped, 0 to 1.
        every_s: Seconds between two looks at a run.

    Example:
        >>> Guard(confidence=0.999).stops is None
        True
    """

    stops: tuple[StopReason, ...] | None = None
    confidence: float = Field(default=0.99, ge=0.5, lt=1.0)
    least_share: float = Field(default=0.1, gt=0.0, lt=1.0)
    every_s: float = Field(default=5.0, gt=0.0, le=86400.0)

    @model_validator(mode="after")
    def _some_stop(self) -> Guard:
        if self.stops is not None and (not self.stops or len(set(self.stops)) != len(self.stops)):
            raise BadInput(
                f"guard.stops={list(self.stops)} must name one or more of blown_up, limit and cannot_win, each "
                "once; leave the table out for no guard.",
                value=list(self.stops),
            )
        return self

    def toml(self) -> dict[str, Any]:
        """The table."""
        return self.model_dump(mode="json", exclude_none=True)

    def check(self, app: App, objective: Objective) -> None:
        """Raise `BadInput` where a stop was asked for that this campaign cannot have."""
        if app.chain:
            raise BadInput(
                f"guard: the app {app.name!r} is a chain, whose runs are not watched; drop the table [guard]."
            )
        asked, kinds = self.stops or (), kinds_of(app)
        if "cannot_win" in asked:
            if len(objective.goals) != 1:
                raise BadInput(
                    f"guard.stops has cannot_win, which needs one goal; the objective has {len(objective.goals)}. "
                    "Leave it out: stops = ['blown_up', 'limit'].",
                    value="cannot_win",
                )
            if objective.goal.metric not in kinds:
                raise BadInput(_not_foretold("cannot_win", [objective.goal.metric], kinds), value="cannot_win")
        if "limit" in asked:
            if not objective.constraints:
                raise BadInput("guard.stops has limit, but the objective has none; leave it out.", value="limit")
            limited = [c.metric for c in objective.constraints]
            if not any(metric in kinds for metric in limited):
                raise BadInput(_not_foretold("limit", limited, kinds), value="limit")

    def unwatched(self, app: App, objective: Objective) -> str:
        """Of which limits and goals the guard says nothing, and why, in words; empty: of none."""
        kinds = kinds_of(app)
        units = {m.name: m.unit for m in app.contract.metrics}
        limits = [c.text(units.get(c.metric, "1")) for c in objective.constraints if c.metric not in kinds]
        goals = [g.metric for g in objective.goals if g.metric not in kinds]
        said = []
        if limits and (self.stops is None or "limit" in self.stops):
            said.append(f"{', '.join(limits)}")
        if goals and (self.stops is None or "cannot_win" in self.stops):
            said.append(f"{', '.join(goals)}")
        several = len(objective.goals) > 1 and self.stops is None
        words = f"the guard stops no run for {' or '.join(said)}: not a mean over the run" if said else ""
        if several:
            words += f"{'; ' if words else ''}the guard stops no run that cannot win: there are several goals"
        return words


def _not_foretold(stop: str, metrics: list[str], kinds: Mapping[str, Kind]) -> str:
    return (
        f"guard.stops has {stop}, but of {', '.join(metrics)} the value of the finished run cannot be told while "
        f"it goes on: it is not a mean over the run. Those that can: {', '.join(sorted(kinds)) or 'none'}. "
        "Leave the stop out, or take another metric."
    )


def kinds_of(app: App) -> dict[str, Kind]:
    """Metric -> how its value for the finished run follows from that so far; others never stop a run.

    `mean`: a mean over the run, or what behaves like one; `speed`: a measured speed; `rising`, `falling`: it can
    only rise or fall while the run goes on.

    Example:
        >>> from hpcagent.science.lammps.contract import lammps
        >>> found = kinds_of(lammps("lj_argon"))
        >>> found["temperature"], found["ns_per_day"], "drift_mev_per_atom_ns" in found
        ('mean', 'speed', False)
    """
    metrics = app.contract.metrics
    found: dict[str, Kind] = {}
    for metric in metrics:
        kind = _lammps_kind(app, metric.name) if app.function == LAMMPS else _own_kind(metric.unit)
        if metric.name in app.contract.speeds:
            kind = "speed"
        if kind is not None:
            found[metric.name] = kind
    return found


def _own_kind(unit: str) -> Kind | None:
    """Of a function that yields values: what it yields is what it would return, with an error that shrinks."""
    return None if unit in MEASURED_TIMES else "mean"


def _lammps_kind(app: App, name: str) -> Kind | None:
    column = app.settings.get("columns", {}).get(name)
    if column is None:
        if name in _COUNTS:
            return "rising"
        return "mean" if name.startswith(_MEANS) else None
    reduce = column.get("reduce", "mean")
    if reduce in ("mean", "std"):
        return "mean"
    whole = app.settings.get("discard") == 0  # else what is left out at the beginning grows with the run
    extremes: dict[str, Kind] = {"max": "rising", "min": "falling"}
    return extremes.get(reduce) if whole else None
