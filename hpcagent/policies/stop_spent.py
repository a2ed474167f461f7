"""Stop conditions on what a campaign has spent: runs, batches, wall time, node-hours."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, field_validator

from hpcagent.errors import BadInput
from hpcagent.model.base import build
from hpcagent.policies.stop import Progress, Stop, at_least_one

__all__ = ["MaxBatches", "MaxRuns", "NodeHours", "WallTime", "max_batches", "max_runs", "node_hours", "wall_time"]


class MaxRuns(Stop):
    """Ends after `runs` runs, completed or failed."""

    kind: Literal["max_runs"] = "max_runs"
    runs: int = Field(strict=True)

    @field_validator("runs")
    @classmethod
    def _positive(cls, runs: int) -> int:
        return at_least_one("max_runs", runs)

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
        return at_least_one("max_batches", batches)

    def check(self, progress: Progress) -> str | None:
        if progress.batches_done < self.batches:
            return None
        return "The only batch has ended." if self.batches == 1 else f"All {self.batches} batches have ended."

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


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise BadInput(f"{name}={value} must be a positive number.", value=value)
    return value


def _of_these_failed(progress: Progress) -> str:
    return f", {progress.failed} of them failed" if progress.failed else ""
