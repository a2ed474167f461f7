"""What is run next: batches, repeats, references, the confirmation; in the journal before anything is sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from hpcagent.apps.deciding import Looks, keeping
from hpcagent.campaign.enqueued import Queue
from hpcagent.campaign.extending import Extension, estimate_of, manifest_of, wanted
from hpcagent.campaign.history import Growing
from hpcagent.campaign.hopeless import failed_alike, never_given
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.signals import Signals
from hpcagent.campaign.spending import Spending
from hpcagent.campaign.state import State, manifest_event
from hpcagent.campaign.sweep_runs import EXHAUSTED, PlannedRuns
from hpcagent.campaign.sweep_space import SWEEP
from hpcagent.model.parameter import Params
from hpcagent.model.records import Manifest, Result, Role
from hpcagent.policies.base import Policy
from hpcagent.policies.longer import Longer, as_meant
from hpcagent.policies.stop import Progress
from hpcagent.policies.stop_spent import MaxRuns
from hpcagent.statistics.surest import contenders
from hpcagent.store.journal import Journal

__all__ = ["Planner", "PolicyQuestion"]


class PolicyQuestion(NamedTuple):
    """What the policy was asked, while it thinks.

    Attributes:
        n: Points wanted.
        seen: Results recorded when it was asked.
        pending: Positions of the runs that were pending.
        places: Positions that the new runs get.
        references: Those of them at which the reference point is due.
        besides: Points that were given to a script and not run yet; pending as well.
    """

    n: int
    seen: int
    pending: tuple[int, ...] = ()
    places: range = range(0)
    references: frozenset[int] = frozenset()
    besides: tuple[Params, ...] = ()

    def record(self) -> dict[str, Any]:
        """As it stands in the journal."""
        fields = {"n": self.n, "seen": self.seen, "pending": list(self.pending)}
        return fields | ({"besides": list(self.besides)} if self.besides else {})


class Planner:
    """Decides what a campaign runs next, from what is on record; knows nothing of sites.

    Args:
        campaign: The campaign, its batch size settled.
        policy: Its policy.
        state: What is on record; new manifests are added to it.
        spending: The cap of node-hours, and what has been spent of it.
        journal: Where manifests are written before anything of them is sent.
        signals: Held while a plan is written down.
        began: Unix time at which this session began, in seconds.
        site: What the site says of itself, for the files that decide numbers; see `App.manifest`.
        queue: Points that somebody has enqueued.
        references: Reference runs of a batch: one for each site, where speeds are compared.
        work: Where the directories of runs are; without it none is extended.
    """

    def __init__(
        self,
        campaign: Campaign,
        policy: Policy,
        state: State,
        spending: Spending,
        journal: Journal,
        signals: Signals,
        *,
        began: float,
        site: Mapping[str, Any] | None = None,
        queue: Queue | None = None,
        references: int = 1,
        work: Path | None = None,
    ) -> None:
        assert campaign.batch_size is not None
        self.campaign, self.policy, self.state = campaign, policy, state
        self.spending, self.journal, self.signals = spending, journal, signals
        self.began, self.site, self.queue = began, site, queue
        self.references, self.work = references, work
        self.size = campaign.batch_size
        self.search, self.digest = campaign.search, campaign.app.digest
        self._planned = PlannedRuns(campaign)
        self._looks: Looks = {}
        self._history = Growing(campaign, state)
        # Failures of earlier sessions that are run again in this one: they tell nothing of it.
        self._left = {i: r for i, r in state.results.items() if not state.final(i)}

    def next_batch(self) -> list[Manifest] | str:
        """The next batch, or the confirmation, or why it is over."""
        own = self.queued(self.size, look=True)
        if own:
            left = self.size - len(own)
            room = self.runs_left()
            left = left if room is None else min(room, left)
            more = left > 0 and self.over() is None and not self._confirmed()
            return own + (self._plan_batch(self.spending.most(left), beside=own) if more else [])
        reason = self.over()
        if reason is None and not self._confirmed():
            room = self.runs_left()
            n = min(room, self.size) if room is not None else self.size
            planned = self._plan_batch(self.spending.most(n))
            if planned:
                return planned
            done = "every run of the design has ended."
            reason = self.spending.refusal or (done if self.campaign.policy.name == SWEEP else EXHAUSTED)
        if self.hopeless() is None:
            confirming = self.confirmation()
            if confirming:
                return confirming
            none = self.campaign.confirm is not None and not any(r.ok for r in self.state.results.values())
            if none and (self.state.manifests or self.spending.planned_out is None):  # else the cap says why
                reason = "no run has completed, so there is none to repeat with what is left of the budget."
        # Opened again after its end, it ended for the reason that it ended for.
        return reason or self.spending.planned_out or self.state.stopped or "its contenders are confirmed."

    def queued(self, n: int, *, look: bool) -> list[Manifest]:
        """Up to `n` runs at points that somebody has enqueued, as far as there is room for them.

        Args:
            n: Most runs, a reference included.
            look: Look now whether points were added, not only every now and then.
        """
        if self.queue is None or n <= 0:
            return []
        self.queue.look(force=look)
        room = self.runs_left()
        n = n if room is None else min(n, room)
        points = self.queue.waiting()[: max(0, n - self._references(n))]
        if not points or self.hopeless() is not None:
            return []
        rolling = self.campaign.mode == "rolling"
        batch = None if rolling else 1 + self.state.last_batch
        return self.own(points, batch=batch, reference=not rolling and n > len(points))

    def left_in_queue(self) -> str:
        """How many enqueued points are not run, in words; empty where none is left."""
        left = 0 if self.queue is None else len(self.queue.waiting())
        return f"{left} enqueued point(s) were not run: there was no room for them." if left else ""

    def over(self) -> str | None:
        """Why no further batch begins, if so."""
        return self.hopeless() or self._stop_reason()

    def runs_left(self) -> int | None:
        """How many runs may still be planned before the confirmation; None without a bound."""
        budget = self.campaign.until.budget()
        if budget is None:
            return None
        reserve = 0 if self._confirmed() else self._kept(budget)
        return max(0, budget - reserve - (len(self.state.manifests) - self.state.elsewhere))

    def budget_with_room(self) -> int:
        """The smallest larger budget of runs that has room for one more."""
        # It has contenders of its own to repeat, and keeps runs for them.
        budget = self.campaign.until.budget() or 0
        planned = len(self.state.manifests) - self.state.elsewhere
        return next(n for n in count(budget + 1) if n - self._kept(n) > planned)

    def _kept(self, budget: int) -> int:
        """Runs of a budget that are kept for the confirmation."""
        confirm = self.campaign.confirming
        if confirm is None or not confirm.runs:
            return 0
        # Not more than half: with few runs there would be nothing to confirm.
        return min(budget // 2, confirm.runs + (self.campaign.reference is not None))

    def _confirmed(self) -> bool:
        """Whether the contenders were repeated at the end of this budget, or design; a larger one goes on."""
        state = self.state
        until = self.campaign.until
        return (
            state.confirmed is not None
            and state.confirmed_budget == until.budget()
            and state.confirmed_cap == until.cap()
            and not self._planned.grown(state.manifests)
        )

    def _stop_reason(self) -> str | None:
        until = self.campaign.until
        if self.spending.reached is not None:
            return self.spending.reached
        if until.cap() is not None and self._confirmed() and self.campaign.mode == "rolling":
            return self.state.stopped or "its contenders are confirmed."
        # A plain budget needs no history, and a long one takes seconds to look through.
        if isinstance(until, MaxRuns) and len(self.state.results) - self.state.elsewhere < until.runs:
            return None if (self.runs_left() or 0) > 0 else f"all {until.runs} runs of the budget are planned."
        reason = until.check(self._progress(with_history=not isinstance(until, MaxRuns)))
        if reason is not None:
            return reason
        room = self.runs_left()
        if room is not None and room <= 0:
            return f"all {self.campaign.until.budget()} runs of the budget have ended."
        return None

    def _progress(self, *, with_history: bool) -> Progress:
        state = self.state
        return Progress(
            history=self._history.now().points_in_full() if with_history else (),
            objective=self.campaign.objective,
            space=self.search,
            noise=self.campaign.noise,
            batches_done=1 + state.last_batch,
            wall_s=self.elapsed_s(),
            node_hours=state.node_hours + state.overhead,
            runs=len(state.manifests if self.campaign.mode == "rolling" else state.results) - state.elsewhere,
            failed=state.failed,
        )

    def elapsed_s(self) -> float:
        """Wall time of the coordinators, over all sessions, in seconds."""
        return self.state.elapsed_s + time.time() - self.began

    def hopeless(self) -> str | None:
        """A reason to give up: runs fail alike, in a way that no parameter would change."""
        if self.state.finished - self.state.failed == len(self.state.results):  # all have completed
            return None
        if self.campaign.mode == "rolling":
            last = [self.state.results[i] for i in self.state.arrived[-self.size :]]
        else:
            last = self.state.batch(self.state.last_batch)
        last = [r for r in last if r is not self._left.get(r.manifest.execution_id) and not r.manifest.origin]
        if not any(r.failure is not None and r.failure.kind == "contract" for r in last):
            return failed_alike(last, last, self.size)
        ended = [r for r in self._history.now().results if not r.manifest.origin]
        return never_given(self.campaign, ended) or failed_alike(last, ended, self.size)

    def _question(self, n: int, pending: Sequence[Params]) -> Callable[[], list[Params]]:
        """What the policy is asked, as of now; see `decisions.decisions`, which puts the same question again."""
        history = self._history.now().shown()
        policy, search, where = self.policy, self.search, f"policy {self.campaign.policy.name}"

        def answer() -> list[Params]:
            return [as_meant(p, search.validated(p, where=where)) for p in policy.suggest(history, n, pending)[:n]]

        return answer

    def _plan_batch(self, n: int, *, beside: Sequence[Manifest] = ()) -> list[Manifest]:
        """A batch as the policy suggests it, or the rest of one, beside runs that are planned in it."""
        batch = self.state.last_batch + (not beside)
        # A design counts what the machine has lost as given: the same run is made again when it is resumed.
        lost = self._of_design() if self.campaign.policy.name == SWEEP else [*beside]
        references = 0 if beside else self._references(n)
        asked = PolicyQuestion(n - references, len(self.state.rows), tuple(m.index for m in lost))
        suggested = self._question(asked.n, self._as_pending(lost))() if asked.n > 0 else []
        points: list[tuple[Params, Role]] = [(p, "suggested") for p in suggested]
        if points and references:
            # In the middle of the batch: it then stands for the machine's speed before and after.
            middle = len(points) // 2
            points[middle:middle] = [(self._reference_point(), "reference")] * references
        return self._plan(points, batch, asked=asked)

    def asking(self, n: int, running: Collection[Manifest]) -> tuple[PolicyQuestion, Callable[[], list[Params]]]:
        """A question for `n` more runs in rolling mode, and what answers it: in another thread, if need be."""
        n = self.spending.most(n)
        design = self.campaign.policy.name == SWEEP
        going = self._of_design() if design else sorted(running, key=lambda m: m.index)
        first = self.state.next_index
        places = range(first, first + n)
        due_at = {i for i in places if self.campaign.reference is not None and i % self.size < self.references}
        indices = tuple(m.index for m in going)
        asked = PolicyQuestion(n - len(due_at), len(self.state.rows), indices, places, frozenset(due_at))
        return asked, self._question(asked.n, self._as_pending(going)) if asked.n > 0 else list

    def _under_way(self) -> list[Manifest]:
        """The runs that are planned and not finished, in manifest order."""
        return [m for m in self.state.manifests if not self.state.final(m.execution_id)]

    def _of_design(self) -> list[Manifest]:
        """Those of a sweep's design: one that goes on is no further run of its point."""
        return [m for m in self._under_way() if m.role != "extended"]

    def _as_pending(self, manifests: Sequence[Manifest]) -> list[Params]:
        return [{name: m.params[name] for name in self.search.names if name in m.params} for m in manifests]

    def ask(
        self, n: int, pending: Sequence[Manifest], besides: Sequence[Params]
    ) -> tuple[PolicyQuestion, list[Params]]:
        """What the policy would have run next; nothing is planned.

        Args:
            n: Points wanted.
            pending: Runs that have no result.
            besides: Points that were given to whoever asks, and not run yet.
        """
        # In another order than that of the loop, so it is worked out anew.
        self._history.forget()
        given = self._as_pending(pending) + [dict(p) for p in besides]
        indices = tuple(m.index for m in pending)
        asked = PolicyQuestion(n, len(self.state.rows), indices, besides=tuple(besides))
        return asked, self._question(n, given)()

    def known(self, point: Params, replicate: int) -> Manifest | None:
        """The run of a point, as it stands on record, if it does."""
        with keeping(self._looks):
            found = self.campaign.app.manifest(
                self.campaign.complete(point),
                seed=self.campaign.run_seed(replicate),
                replicate=replicate,
                digest=self.digest,
                checked=True,
                site=self.site,
            )
        return self.state.manifest(found.execution_id)

    def affordable(self, points: Sequence[Params]) -> int:
        """How many runs at these points the cap of node-hours allows."""
        return len(self.spending.plan([(self.campaign.complete(p), "enqueued") for p in points]))

    def own(
        self,
        points: Sequence[Params],
        *,
        batch: int | None,
        asked: PolicyQuestion | None = None,
        replicate: int | None = None,
        reference: bool = False,
    ) -> list[Manifest]:
        """Runs at points that a script or a person has chosen; with `asked` those that the policy gave it.

        Args:
            points: Points of the search space.
            batch: Number of their batch; by their positions if None.
            asked: The question that the policy answered with them.
            replicate: Which repetition; the next one if None.
            reference: Run the reference point with them.
        """
        role: Role = "enqueued" if asked is None else "suggested"
        wanted: list[tuple[Params, Role]] = [(p, role) for p in points]
        if reference and self.campaign.reference is not None:
            middle = len(wanted) // 2
            wanted[middle:middle] = [(self._reference_point(), "reference")] * self.references
        return self._plan(wanted, batch, asked=asked, replicate=replicate)

    def rolling(self, asked: PolicyQuestion, answer: Sequence[Params]) -> list[Manifest]:
        """The runs that such an answer means, with the references between them."""
        suggested = iter(answer)
        points: list[tuple[Params, Role]] = []
        for place in asked.places:
            point = self._reference_point() if place in asked.references else next(suggested, None)
            if point is not None:
                points.append((point, "reference" if place in asked.references else "suggested"))
        room = self.runs_left()  # of which there may be less than when it was asked
        return self._plan(points if room is None else points[:room], None, asked=asked)

    def _references(self, n: int) -> int:
        if self.campaign.reference is None:
            return 0
        return min(self.references, n - 1) if n > 1 else 0

    def _reference_point(self) -> Params:
        assert self.campaign.reference is not None
        return dict(self.campaign.reference.params)

    def repeats(self, batch: int) -> list[Manifest]:
        """Runs of this batch whose measured times cannot be believed, once more."""
        if not self.campaign.timed:
            return []  # what it asks for was measured as well as ever
        results = self.state.batch(batch)
        found = [r for r in results if r.ok and r.distrusted is not None and not self._repeated_well(r)]
        if 2 * len(found) > len(results):
            return []  # the whole machine is busy; the same again would be no better
        room = self.runs_left()
        if room is not None:
            found = found[:room]
        return self._plan([(r.manifest.params, "repeat") for r in found], batch)

    def _repeated_well(self, result: Result) -> bool:
        return any(
            r.manifest.params == result.manifest.params and r.manifest.replicate > result.manifest.replicate
            for r in self.state.batch(result.manifest.batch)
        )

    def confirmation(self) -> list[Manifest]:
        """The last batch: the contenders again, and the baseline at the best one's accuracy."""
        confirm = self.campaign.confirming
        if confirm is None or self._confirmed() or not confirm.runs:
            return []
        found = contenders(
            self._history.now().contending(),
            self.campaign.objective,
            confirm.top,
            space=self.campaign.smoothed,
            noise=self.campaign.noise,
            replicates=max(1, confirm.replicates),
            held=self.campaign.last_level,
        )
        if not found:
            return []
        points: list[tuple[Params, Role]] = []
        for _ in range(confirm.replicates):
            # Where there are fewer contenders than asked for, the first ones are repeated more often.
            points += [(found[i % len(found)], "replicate") for i in range(confirm.top)]
            if confirm.baseline and self.campaign.allows({**found[0], **confirm.baseline}):
                points.append(({**found[0], **confirm.baseline}, "replicate"))
        batch = 1 + self.state.last_batch
        if self.campaign.reference is not None:
            points.insert(len(points) // 2, (self._reference_point(), "reference"))
        budget = self.campaign.until.budget()
        if budget is not None:
            points = points[: max(0, budget - len(self.state.manifests) + self.state.elsewhere)]
        return self._plan(points, batch, confirm=True)

    def _plan(
        self,
        points: Sequence[tuple[Params, Role]],
        batch: int | None,
        *,
        confirm: bool = False,
        asked: PolicyQuestion | None = None,
        replicate: int | None = None,
    ) -> list[Manifest]:
        """Write the manifests into the journal, as one line: a batch is planned whole or not at all.

        Of runs that could break the cap of node-hours, as many as fit are planned.
        """
        whole: list[tuple[Params, Role]] = [(self.campaign.complete(params), role) for params, role in points]
        longer, instead = self._longer([params for params, _ in points])
        estimates = self.spending.estimates([values for values, _ in whole])
        for i, longer_run in longer.items():
            estimates[i] = estimate_of(longer_run, estimates[i])
        dear = {i: estimates[i]["estimated_node_hours"] for i in longer}
        fitting = self.spending.plan(whole, confirm=confirm, known=dear)
        if not fitting:
            return []
        whole, estimates = [whole[i] for i in fitting], [estimates[i] for i in fitting]
        going_on: list[Extension | None] = [longer.get(i) for i in fitting]
        with self.signals.held():
            manifests = []
            for (values, role), estimate, extension in zip(whole, estimates, going_on, strict=True):
                index = self.state.next_index
                if extension is not None:
                    manifest = manifest_of(
                        self.campaign,
                        extension,
                        batch=index // self.size if batch is None else batch,
                        index=index,
                        requested_by="user" if asked is None else self.campaign.policy.name,
                        digest=self.digest,
                        site=self.site,
                        estimates=estimate,
                    )
                    self.state.add_manifest(manifest)
                    manifests.append(manifest)
                    continue
                counted = replicate is None or role == "reference"
                again = self.state.next_replicate(values) if counted else replicate or 0
                with keeping(self._looks):
                    manifest = self.campaign.app.manifest(
                        values,
                        seed=self.campaign.run_seed(again),
                        replicate=again,
                        role=role,
                        batch=index // self.size if batch is None else batch,
                        index=index,
                        requested_by=self._asked_by(role),
                        priority=self._priority(role),
                        digest=self.digest,
                        checked=True,
                        site=self.site,
                        estimates=estimate,
                    )
                self.state.add_manifest(manifest)
                manifests.append(manifest)
            event: dict[str, Any] = {"event": "manifests", "at": time.time()}
            if asked is not None:
                event["asked"] = asked.record()  # from which `played.decisions` rebuilds what the policy saw
            if instead:
                event["instead"] = instead
            if confirm:
                budget, cap = self.campaign.until.budget(), self.campaign.until.cap()
                event |= {"confirm": True, "budget": budget} | ({} if cap is None else {"cap": cap})
                self.state.confirmed = len(self.state.manifests)
                self.state.confirmed_budget, self.state.confirmed_cap = budget, cap
            self.journal.append([event | {"manifests": [manifest_event(m) for m in manifests]}])
        return manifests

    def _longer(self, points: Sequence[Params]) -> tuple[dict[int, Extension], list[dict[str, Any]]]:
        """Which of the points mean that a run goes on; and of those that cannot, why: others take their place."""
        found: dict[int, Extension] = {}
        instead: list[dict[str, Any]] = []
        for i, point in enumerate(points):
            if isinstance(point, Longer):
                extension, words = wanted(self.campaign, self.state, point, self.work)
                if extension is None or any(extension == other for other in found.values()):
                    instead.append({"extends": point.run, "factor": point.factor, "why": words})
                else:
                    found[i] = extension
        return found, instead

    def known_extension(self, extension: Extension) -> Manifest | None:
        """The run that goes on so, as it stands on record, if it does."""
        made = manifest_of(self.campaign, extension, digest=self.digest, site=self.site)
        return self.state.manifest(made.execution_id)

    def extend(self, extension: Extension, *, batch: int | None) -> list[Manifest]:
        """A run that somebody has asked to go on."""
        before = extension.before.manifest
        point = Longer(before.params, run=before.index, factor=extension.times / before.times)
        return self._plan([(point, "enqueued")], batch)

    def _asked_by(self, role: Role) -> str:
        return {"suggested": self.campaign.policy.name, "enqueued": "user"}.get(role, "coordinator")

    def _priority(self, role: Role) -> int:
        """Smaller goes first. The others go as they were planned, in a batch with the reference in its middle."""
        ahead = role in ("replicate", "repeat") or (role == "reference" and self.campaign.mode == "rolling")
        return -1 if ahead else 0
