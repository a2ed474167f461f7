"""What a stop condition is: a record that says why a campaign ends, in a sentence.

A condition of one's own is a subclass of `Stop`, named by an entry point in the group `hpcagent.stops` or by its
path, `stop = {"mypackage.mymodule:Steady" = {within = 0.01}}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hpcagent.errors import BadInput
from hpcagent.model.base import Record
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.moved import moved

__all__ = ["DesignDone", "Progress", "Stop", "at_least_one", "point_of"]


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


def at_least_one(name: str, value: int) -> int:
    """The value, if it is 1 or more.

    Raises:
        BadInput: It is less.
    """
    if value < 1:
        raise BadInput(f"{name}={value} must be at least 1.", value=value)
    return value


def point_of(params: Params) -> str:
    """A point in a sentence that says why to stop."""
    return ", ".join(f"{k}={v if isinstance(v, str) else f'{v:.6g}'}" for k, v in params.items())


_MOVED = {
    "hpcagent.policies.stop_combined": "AllOf AnyOf PLAIN RECORDS StopCondition all_of any_of read_stop",
    "hpcagent.policies.stop_infeasible": "NoFeasiblePoint no_feasible_point",
    "hpcagent.policies.stop_reached": "Plateau TargetReached plateau target",
    "hpcagent.policies.stop_spent": "MaxBatches MaxRuns NodeHours WallTime "
    "max_batches max_runs node_hours wall_time",
}
__getattr__ = moved(__name__, {name: new for new, names in _MOVED.items() for name in names.split()})
