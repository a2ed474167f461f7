"""The loop of a campaign: suggest, run, consolidate, until there is a reason to stop."""

from __future__ import annotations

from collections.abc import Iterator

from hpcagent.campaign.events import Batch
from hpcagent.campaign.planner import PolicyQuestion
from hpcagent.campaign.rolling import Suggester, due, in_flight
from hpcagent.campaign.session import Session
from hpcagent.campaign.sweep_runs import EXHAUSTED

__all__ = ["Loop"]

# A policy that is quick answers before anything else is looked at: its suggestions then know the last result.
QUICK_S = 0.005


class Loop:
    """Runs an open campaign to its end.

    Args:
        session: The open campaign.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._state, self._runner, self._plans = session.state, session.runner, session.planner
        self._suggester = Suggester(session.runner.wake)
        self._asked: PolicyQuestion | None = None
        self._in_vain = -1
        self._looked_at = -1
        self._told_of = 0

    def close(self) -> None:
        """Let go of what the policy is thinking about; its answer would be of no use."""
        self.forget()
        self._suggester.close()

    def forget(self) -> None:
        """Take no answer of the policy that is still to come."""
        self._asked = None
        self._suggester.forget()

    def __iter__(self) -> Iterator[Batch]:
        return self._batches() if self._session.campaign.mode == "batch" else self._rolling()

    def _batches(self) -> Iterator[Batch]:
        session, plans = self._session, self._plans
        while True:
            waiting = session.affordable()
            if not waiting:
                planned = plans.next_batch()
                if isinstance(planned, str):
                    session.finish(planned)
                    return
                waiting = planned
            session.run_all(waiting)
            current = waiting[-1].batch
            for _ in range(session.campaign.repeat_distrusted):
                again = plans.repeats(current)
                if not again:
                    break
                session.run_all(again)
            yield session.consolidate(current)

    def _rolling(self) -> Iterator[Batch]:
        session, state, runner, plans = self._session, self._state, self._runner, self._plans
        session.start([m for m in session.affordable() if m.execution_id not in runner.running])
        self._told_of = len(state.results) // plans.size
        reason: str | None = None
        while True:
            if session.refused and not runner.running:
                session.refuse_other()
            if reason is None and not session.refused:
                reason = plans.over() or self._fill()
                if reason is not None:  # the last chance of what somebody has enqueued
                    session.start(plans.queued(len(state.manifests) + plans.size, look=True))
            if reason is not None or session.refused:
                self.forget()
            if not runner.running and self._asked is None:
                confirming = [] if plans.hopeless() else plans.confirmation()
                if not confirming:
                    break
                session.start(confirming)
            session.wait()
            while len(state.results) >= (self._told_of + 1) * plans.size:
                yield self._group()
        if len(state.results) > self._told_of * plans.size:
            yield self._group()
        session.finish(reason or "every planned run has ended.")

    def _group(self) -> Batch:
        """The next group of results, in the order in which they came."""
        number, self._told_of = self._told_of, self._told_of + 1
        return self._session.consolidate_arrived(number)

    def _fill(self) -> str | None:
        """Have as many runs suggested as fit beside those in flight; return why none is left, if so.

        The policy thinks in a thread of its own, so that results are taken in and runs are sent meanwhile.
        """
        while True:
            asked, patience_s = self._asked, 0.0
            if asked is None:
                found = self._ask()
                if found is None or isinstance(found, str):
                    return found
                asked = self._asked
                if asked is None:
                    continue  # somebody's own points were sent
                # A quick one would be done before the next result is taken in.
                patience_s = QUICK_S if self._suggester.takes_s < QUICK_S else 0.0
            if not self._suggester.wait(patience_s):
                return None
            self._asked = None
            planned = self._plans.rolling(asked, self._suggester.take())
            self._session.start(planned)
            if not planned:
                refusal = self._plans.spending.refusal
                if not self._runner.running and (refusal or not asked.pending):
                    return refusal or EXHAUSTED
                self._in_vain = asked.seen

    def _ask(self) -> bool | str | None:
        """Ask the policy, or send somebody's own points; None: nothing is to be added now; a text: nor later."""
        session, plans, runner = self._session, self._plans, self._runner
        room = plans.runs_left()
        workers = runner.share(session.site.workers_for(session.largest))
        n = due(self._in_flight(workers), len(runner.running), workers)
        n = n if room is None else min(n, room)
        if n <= 0:
            # With no room at all the budget is planned out.
            return "the budget of runs is planned out." if room is not None and room <= 0 else None
        groups = len(self._state.results) // plans.size
        own = plans.queued(n, look=groups > self._looked_at)
        self._looked_at = groups
        if own:
            session.start(own)
            return True
        if self._in_vain == len(self._state.rows):
            return None  # it had nothing to suggest, and nothing has changed
        self._asked, question = plans.asking(n, runner.running.values())
        self._suggester.ask(question)
        return True

    def _in_flight(self, workers: int) -> int:
        """How many runs may be in flight on so many workers; see `rolling.in_flight`."""
        campaign = self._session.campaign
        if campaign.in_flight is not None:
            return campaign.in_flight
        policy, mean_s = self._suggester, self._state.recent.mean_s
        if mean_s is not None and (policy.sure or not policy.takes_s):
            return in_flight(workers, mean_s, policy.takes_s)
        # What the contract says of the time of a run may be wrong, and a first question that took long may only
        # have had to import things: at most as many as in a batch.
        expected_s = mean_s or campaign.app.contract.estimated_runtime_s
        return in_flight(workers, expected_s, policy.takes_s, most_ahead=4 if policy.sure else 1)
