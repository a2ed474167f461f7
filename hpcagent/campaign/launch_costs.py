"""What launches that runs share take beside their runs: their start, ranks that wait, their end."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcagent.model.contract import Resources

__all__ = ["LaunchCost", "overhead_words"]


@dataclass
class LaunchCost:
    """The account of one launch.

    Attributes:
        nodes: That it has, in nodes; of one of a single node the share that its ranks take.
        began: When its worker began with it, as Unix time in seconds; None: it waits.
        ended: When it was over, or None.
        of_runs: Node-hours of its runs that have ended.
        booked: Node-hours beside them that the journal has.
    """

    nodes: float
    began: float | None = None
    ended: float | None = None
    of_runs: float = 0.0
    booked: float = 0.0

    @classmethod
    def of(cls, launch: Resources, node_cores: int | None) -> LaunchCost:
        """The account of a launch with these resources.

        Example:
            >>> LaunchCost.of(Resources(ranks_per_node=2), 8).nodes
            0.25
        """
        cores = launch.ranks_per_node * launch.threads_per_rank
        return cls(launch.nodes * (min(1.0, cores / (node_cores or cores)) if launch.nodes == 1 else 1.0))

    def hear(self, said: Any) -> None:
        """Take in what the worker says of the launch: when it `began`, and `ended`."""
        if isinstance(said, Mapping):
            for name in ("began", "ended"):
                at = said.get(name)
                if isinstance(at, (int, float)) and not isinstance(at, bool) and math.isfinite(at):
                    setattr(self, name, float(at))

    def pay(self, answer: Mapping[str, Any]) -> None:
        """Take in the answer of a run."""
        cost = answer.get("cost")
        hours = cost.get("node_hours") if isinstance(cost, Mapping) else None
        if isinstance(hours, (int, float)) and math.isfinite(hours):
            self.of_runs += max(0.0, hours)

    def unbooked(self, in_flight: float = 0.0) -> float:
        """Node-hours so far that neither a run nor the journal has.

        Args:
            in_flight: Of its runs that go on.
        """
        if self.began is None:
            return 0.0
        until = time.time() if self.ended is None else self.ended
        whole = self.nodes * max(0.0, until - self.began) / 3600
        return max(0.0, whole - self.of_runs - in_flight - self.booked)

    def event(self, name: str) -> dict[str, Any] | None:
        """What is written into the journal of a launch without runs in flight; None where there is nothing new."""
        hours = self.unbooked()
        if hours <= 0:
            return None
        self.booked += hours
        return {"event": "launch", "ensemble": name, "overhead_node_hours": hours}


def overhead_words(overhead: float, node_hours: float) -> str:
    """What launches have taken beside their runs, in words; empty where there is nothing.

    Example:
        >>> overhead_words(0.06, 0.94)
        ', and 0.06 for starting and waiting in shared launches (6 %)'
    """
    if overhead <= 0:
        return ""
    share = overhead / (overhead + node_hours)
    return f", and {overhead:.2g} for starting and waiting in shared launches ({100 * share:.2g} %)"
