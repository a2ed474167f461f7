"""The stop condition that nothing in the space can keep the limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from hpcagent.errors import BadInput
from hpcagent.later import Later
from hpcagent.model.base import build
from hpcagent.model.objective import Constraint
from hpcagent.model.records import Observation
from hpcagent.policies.stop import Progress, Stop, point_of
from hpcagent.statistics.points import located
from hpcagent.statistics.trend import Scale, tame

if TYPE_CHECKING:
    import numpy as np
else:
    np = Later("numpy")

__all__ = ["NoFeasiblePoint", "no_feasible_point"]


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
        return (
            f"None of {len(runs)} completed runs keeps {c}: {c.metric} depends on the parameters, and the "
            f"closest is {closest.metrics[c.metric]:.4g} at {point_of(closest.params)}; widen the space there or "
            "loosen the limit."
        )

    def toml(self) -> dict[str, Any]:
        return {"no_feasible_point": self.model_dump(exclude={"kind"}, exclude_none=True)}


def no_feasible_point(
    min_runs: int = 18, *, give_up_after: int | None = None, significance: float = 0.1
) -> NoFeasiblePoint:
    """End when these parameters cannot meet the limits (see `NoFeasiblePoint`)."""
    data = {"min_runs": min_runs, "give_up_after": give_up_after, "significance": significance}
    return build(NoFeasiblePoint, data, where="no_feasible_point")
