"""What a campaign that goes on takes on top of what it has run, by its own runs."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from hpcagent.campaign.record import Campaign
from hpcagent.campaign.state import State
from hpcagent.campaign.sweep_runs import PlannedRuns
from hpcagent.model.records import Cost

__all__ = ["OwnRuns", "runs_in_all", "runs_on_top"]


def runs_in_all(campaign: Campaign, state: State | None) -> int | None:
    """Runs that have finished, and those that are to come; arguments as `runs_on_top`."""
    on_top, whole = runs_on_top(campaign, state), PlannedRuns(campaign).count([])
    if on_top is None or whole is None or state is None:
        return on_top
    return max(whole, _finished(state) + on_top)


def runs_on_top(campaign: Campaign, state: State | None) -> int | None:
    """Runs that are to come, those included that were planned and have not finished; None: nothing bounds them.

    Args:
        campaign: With what is changed.
        state: What is on record; None where nothing is.
    """
    planned, until = PlannedRuns(campaign), campaign.until
    if state is None:
        return planned.count([])
    same = (state.confirmed_budget, state.confirmed_cap) == (until.budget(), until.cap())
    confirmed = state.confirmed is not None and same and not planned.grown(state.manifests)
    whole = planned.count(state.manifests, confirmed=confirmed)
    if whole is None:
        return None
    # What was planned is run also beyond a budget.
    return max(whole - _finished(state), len(state.waiting()))


def _finished(state: State) -> int:
    """Runs of the campaign itself that have finished."""
    return sum(not m.origin and state.final(m.execution_id) for m in state.manifests)


@dataclass(frozen=True, slots=True)
class OwnRuns:
    """What the runs of a campaign have taken, as means.

    Attributes:
        runs: How many have finished here, completed or failed, and say what they took.
        wall_s: Wall time of one, in seconds.
        node_hours: Node-hours of one.
    """

    runs: int
    wall_s: float
    node_hours: float

    @staticmethod
    def of(state: State | None) -> OwnRuns | None:
        """Those on record; None without one that says what it took."""
        found = [] if state is None else [r for r in state.results.values() if r.final and not r.manifest.origin]
        costs: list[Cost] = [r.cost for r in found if r.cost.node_hours > 0]
        if not costs:
            return None
        return OwnRuns(len(costs), fmean(c.wall_s for c in costs), fmean(c.node_hours for c in costs))

    @property
    def words(self) -> str:
        """What an estimate by them is from.

        Example:
            >>> OwnRuns(16, 2.0, 0.001).words
            'the mean of 16 runs of this campaign'
        """
        return f"the mean of {self.runs} runs of this campaign" if self.runs > 1 else "1 run of this campaign"
