"""What a campaign that goes on takes on top of what it has run, by its own runs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hpcagent.campaign.decisions import policy_of
from hpcagent.campaign.enqueued import Queue
from hpcagent.campaign.history import History
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.recorded import Snapshot
from hpcagent.campaign.state import State
from hpcagent.campaign.sweep_runs import EXHAUSTED, GRID, SPREAD, PlannedRuns
from hpcagent.errors import HpcAgentError
from hpcagent.model.parameter import Params
from hpcagent.model.records import Result
from hpcagent.workspace.took import numbers_of

__all__ = ["OwnRuns", "is_exhausted", "outside_of_what_ran", "runs_in_all", "runs_on_top"]


def is_exhausted(there: Snapshot, campaign: Campaign, changes: Mapping[str, Any]) -> bool:
    """Whether it is known that a campaign that goes on has no run to come, as its policy has no point left.

    It is known of policies that learn nothing, and where the policy had none when the campaign ended and only its
    end is another now: a policy is a function of what has run.

    Args:
        there: What is on record.
        campaign: With what is changed.
        changes: What that is.
    """
    state, confirm = there.state, campaign.confirming
    if confirm is not None and confirm.runs > 0 and not _is_confirmed(campaign, state):
        return False
    if state.waiting() or _enqueued(there, campaign):
        return False
    if (there.reason or "").startswith(EXHAUSTED) and all(key.partition(".")[0] == "until" for key in changes):
        return True
    if campaign.policy.name in (GRID, *SPREAD):  # which learn nothing: asked for one more, they answer at once
        with contextlib.suppress(HpcAgentError):  # whatever it says, its coordinator will
            return not policy_of(campaign).suggest(History.now(campaign, state).shown(), 1)
    return False


def _enqueued(there: Snapshot, campaign: Campaign) -> int:
    """Points that somebody has enqueued and that are not planned."""
    queue = Queue(there.folder, campaign, there.state, remark=lambda words: None)
    queue.look(force=True)
    return len(queue.waiting())


def runs_in_all(campaign: Campaign, there: Snapshot | None) -> int | None:
    """Runs that have finished, and those that are to come; arguments as `runs_on_top`."""
    on_top, whole = runs_on_top(campaign, there), PlannedRuns(campaign).count([])
    if on_top is None or whole is None or there is None:
        return on_top
    return max(whole, _finished(there.state) + on_top)


def runs_on_top(campaign: Campaign, there: Snapshot | None) -> int | None:
    """Runs that are to come, those included that were planned and have not finished; None: nothing bounds them.

    Args:
        campaign: With what is changed.
        there: What is on record; None where nothing is.
    """
    planned = PlannedRuns(campaign)
    if there is None:
        return planned.count([])
    state = there.state
    confirmed = _is_confirmed(campaign, state) and not planned.grown(state.manifests)
    whole = planned.count(state.manifests, confirmed=confirmed, enqueued=_enqueued(there, campaign))
    if whole is None:
        return None
    # What was planned is run also beyond a budget.
    return max(whole - _finished(state), len(state.waiting()))


def _is_confirmed(campaign: Campaign, state: State) -> bool:
    """Whether the best points were run again, for the budget and cap that hold now."""
    until = campaign.until
    same = (state.confirmed_budget, state.confirmed_cap) == (until.budget(), until.cap())
    return state.confirmed is not None and same


def outside_of_what_ran(campaign: Campaign, state: State, runs: int | None) -> str:
    """Where points on top, as far as they are known, lie outside of what ran; empty where they do not.

    Args:
        campaign: With what is changed.
        state: What is on record.
        runs: That are to come; None: all.
    """
    waiting = [m.params for m in state.waiting()]
    more = [campaign.complete(point) for point in PlannedRuns(campaign).lacking(state.manifests)]
    left = None if runs is None else max(0, runs - len(waiting))
    ran = [r.manifest.params for r in _costed(state)]
    words = [_outside(name, [*waiting, *more[:left]], ran) for name in campaign.search.names]
    said = ", ".join(one for one in words if one)
    return f"points on top are outside of what ran: {said}" if ran and said else ""


def _outside(name: str, to_come: Sequence[Params], ran: Sequence[Params]) -> str:
    """Values of a parameter that no run has had, numbers outside of the range of those, and what there was.

    Example:
        >>> _outside("t", [{"t": 0.1}, {"t": 6.0}, {"t": 9.0}], [{"t": 0.05}, {"t": 0.2}])
        't = 6 to 9 (0.05 to 0.2 so far)'
        >>> _outside("style", [{"style": "rough"}], [{"style": "plain"}])
        'style = rough (plain so far)'
    """
    had, new = ([p[name] for p in params if name in p] for params in (ran, to_come))
    numbers = [numbers_of({name: value}).get(name) for value in (*had, *new)]
    known = [number for number in numbers if number is not None]
    if len(known) == len(numbers) and had:
        before, after = known[: len(had)], known[len(had) :]
        low, high = min(before), max(before)
        far = [value for value in after if not low <= value <= high]
        return f"{name} = {_range(far)} ({_range(before)} so far)" if far else ""
    other = dict.fromkeys(str(value) for value in new if value not in had)
    return f"{name} = {' and '.join(other)} ({' and '.join(dict.fromkeys(map(str, had)))} so far)" if other else ""


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _costed(state: State) -> list[Result]:
    """Those that have finished here and say what they took."""
    found = (r for r in state.results.values() if r.final and not r.manifest.origin)
    return [r for r in found if r.cost.node_hours > 0]


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
        costs = [] if state is None else [r.cost for r in _costed(state)]
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
