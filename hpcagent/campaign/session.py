"""A campaign that is open: its folder locked, its journal replayed, its site running, until it is closed."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from hpcagent.aside import Aside
from hpcagent.campaign.answer import answer
from hpcagent.campaign.asked import expected_of
from hpcagent.campaign.asking import Asking
from hpcagent.campaign.compare import Comparison, compare
from hpcagent.campaign.determinism import unequal_words
from hpcagent.campaign.enqueued import Queue
from hpcagent.campaign.events import Batch
from hpcagent.campaign.guarding import Guarding
from hpcagent.campaign.loading import load_run
from hpcagent.campaign.on_sites import by_reference, references
from hpcagent.campaign.planned import Plan
from hpcagent.campaign.planner import Planner
from hpcagent.campaign.recorded import deprecated_words, where_found
from hpcagent.campaign.recording import Recording
from hpcagent.campaign.repairing import altering
from hpcagent.campaign.result import CampaignResult, event_text
from hpcagent.campaign.runner import Runner
from hpcagent.campaign.same_files import refusal
from hpcagent.campaign.signals import Signals
from hpcagent.campaign.slow_runs import LateRuns
from hpcagent.campaign.spending import Spending
from hpcagent.campaign.sweep_runs import PlannedRuns
from hpcagent.campaign.taken_up import taken_up, with_batch_size, write_down
from hpcagent.campaign.telling import Teller
from hpcagent.campaign.where import about_session, busy, crowd, machine_load, note_site, starting
from hpcagent.errors import AllocationEnded, BadInput, HpcAgentError, Interrupted, RunDirGone, SiteFailed
from hpcagent.model.records import Manifest, Result
from hpcagent.sites import ledger
from hpcagent.sites.reap import end_leftovers, told
from hpcagent.sites.site import Site
from hpcagent.store.files import require_room
from hpcagent.store.journal import Journal
from hpcagent.store.metrics_file import MetricsFile
from hpcagent.store.rundir import Lock

__all__ = ["Session", "open_session"]

# How long a wait for results lasts before the watcher hears that time goes by.
TICK_S = 0.2

# A site is opened again at most so many times in one session.
MOST_MENDED = 3


class Session:
    """An open campaign; made by `open_session`, which says what is told and written.

    Args:
        plan: What it does.
        lock: Of its folder.
        site: Where its runs go.
        record: What is on record.
        teller: Tells whoever watches.
        signals: Held back while something is written.
        aside: What the collector need not look at.

    Attributes:
        reason: Why the campaign has ended; None: it has not.
        closed: Whether it has been closed.
    """

    def __init__(
        self,
        plan: Plan,
        lock: Lock,
        site: Site,
        record: Recording,
        teller: Teller,
        signals: Signals,
        aside: Aside,
    ) -> None:
        campaign, state = plan.campaign, record.state
        self.plan, self.campaign, self.folder = plan, campaign, plan.folder
        self.site, self.record, self.state = site, record, state
        self.signals, self.teller = signals, teller
        self.largest = campaign.largest
        self.opened_at = time.time()
        self.spending = Spending(
            campaign,
            state,
            self.folder.work,
            node_cores=site.about["node_cores"],
            expected_s=expected_of(self.folder.root),
            workers=site.workers_for(self.largest),
        )
        self.runner = Runner(
            campaign.app,
            site,
            state,
            record.journal,
            self.folder,
            required=campaign.objective.metrics,
            retries=campaign.retries,
            cache=None if campaign.cache is None else Path(campaign.cache),
            by_reference=by_reference(campaign),
            ensemble=campaign.ensemble,
            rolling=campaign.mode == "rolling",
        )
        self.runner.may_retry = self.spending.may_retry
        self.spending.unbooked = self.runner.unbooked
        if campaign.guard is not None:
            self.runner.orders.guard = Guarding(campaign, state, self.folder)
        self.runner.orders.altering = altering(campaign.app, campaign.repairs, campaign.search.names)
        self.queue = Queue(self.folder, campaign, state, remark=lambda words: teller.tell("site", reason=words))
        self.planner = Planner(
            campaign,
            plan.policy,
            state,
            self.spending,
            record.journal,
            signals,
            began=self.opened_at,
            site=site.about,
            references=references(campaign, site.profile),
            work=self.folder.work,
            queue=self.queue,
        )
        self.metrics = MetricsFile(self.folder.metrics, campaign.app.contract)
        self.turn = threading.RLock()
        self.late = LateRuns(self.folder.work)
        self.reason: str | None = None
        self.closed = False
        self._lock = lock
        self._interrupted = False
        self._mended = 0
        self._other: Result | None = None
        self._results_before = len(state.results)
        self.asking = self._make_asking()
        teller.runner, teller.spending = self.runner, self.spending
        self.aside = aside

    def _make_asking(self) -> Asking:
        return Asking(
            self.planner,
            self.state,
            self.runner,
            turn=self.turn,
            start=self.start_own,
            step=self.step,
            batch_done=self.consolidate,
        )

    def take_up(self) -> list[Result]:
        """Take up what was left when the session before ended; returns results that nobody had recorded."""
        recovered = self.runner.recover()
        self._results_before = len(self.state.results)
        self.asking = self._make_asking()
        return recovered

    def close(self) -> None:
        """Stop what runs, record what has ended, free the folder. Harmless when called twice."""
        if self.closed:
            return
        self.closed = True
        try:
            with self.signals.held():
                self._wind_up()
        finally:
            self.asking.close(tell=False)
            self.teller.runner = None
            try:
                if self.site is not self.plan.wanted:
                    with self.signals.held():  # a second Ctrl-C at once is not to leave workers behind
                        self.site.close()
                        self.teller.news(self.site)
            finally:
                self.aside.give_back()
                self.record.journal.close()
                self._lock.release()

    def _wind_up(self) -> None:
        on_its_way = sys.exc_info()[1]
        try:
            self.record.journal.check()  # nobody is told that finished runs are kept in a folder that is gone
            self.runner.drain()
            self.asking.close(tell=self.reason is None)
            self.runner.stop()
            self.news()  # what went wrong in the end
            if self.reason is None and self.runner.running:
                self.record.note({"event": "interrupted", "running": sorted(self.runner.running)})
            self.metrics.update(self.state.in_order, final=True)
        except HpcAgentError as error:
            self.runner.stop()
            # A full disk must not hide the error that is on its way; metrics.h5 is rebuilt on resume.
            gone = isinstance(error, RunDirGone) and not isinstance(on_its_way, RunDirGone)
            if on_its_way is None or gone:
                raise

    def interrupt(self) -> None:
        """Have whoever waits stop waiting; may be called from any thread."""
        self._interrupted = True
        self.runner.wake()

    # -- runs ---------------------------------------------------------------------------------

    def start(self, manifests: Sequence[Manifest]) -> None:
        """Send runs that are in the journal."""
        try:
            self.runner.start(manifests)
        except SiteFailed as error:
            self._mend(error)

    def start_own(self, manifests: Sequence[Manifest]) -> None:
        """Send runs that somebody has asked for beside the loop, and tell of it."""
        if manifests:
            with self.signals.held():
                self.start(manifests)
            self.teller.tell("submitted")

    def run_all(self, manifests: Sequence[Manifest]) -> None:
        """Send runs, and wait until none is under way.

        Raises:
            InputsChanged: A worker has met code or files with another content.
        """
        with self.signals.held():
            self.start([m for m in manifests if m.execution_id not in self.runner.running])
            # Of the batches before: written now, while the workers have something to do.
            self.metrics.update(self.state.in_order)
        self.teller.tell("submitted")
        while self.runner.running:
            self.wait()
        self.refuse_other()

    def step(self) -> None:
        """Wait a moment and take in what has ended, for whoever drives it without the loop."""
        if self.closed:
            return
        self.wait()
        if not self.runner.running:
            self.refuse_other()

    def wait(self) -> None:
        """Wait a moment for results, and take them in."""
        # The wait itself may be interrupted, taking in what arrived may not.
        self.runner.peek(TICK_S)
        if self._interrupted:
            raise Interrupted("the coordinator was interrupted; what has finished is kept.")
        with self.turn:
            self._take_in()

    def affordable(self) -> list[Manifest]:
        """Runs of an earlier session that have to be run again, as far as the budget allows it."""
        waiting = self.state.waiting(give_up=frozenset(self.runner.given_up))
        if not waiting:
            return []
        found = self.spending.affordable(waiting)
        self.runner.given_up.update({m.execution_id for m in waiting} - {m.execution_id for m in found})
        return found

    @property
    def refused(self) -> bool:
        """Whether a worker has met code or files with another content: every further run would."""
        return self._other is not None

    def refuse_other(self) -> None:
        """End where a worker has met code or files with another content: every further run would.

        What was in flight has ended by now; what could not be computed is computed when the campaign is resumed.

        Raises:
            InputsChanged: With what that run says.
        """
        if self._other is None or self._other.failure is None:
            return
        failure = self._other.failure
        said = f"{failure.message.rstrip('.')} ({self._other.host})"
        repair = "" if not failure.repair else f"What helps: {failure.repair}."
        raise refusal(str(self.folder.root), [said], done=self.state.finished, repair=repair)

    def _take_in(self) -> None:
        self.record.journal.look()
        with self.signals.held():
            try:
                results = self.runner.collect()
            except SiteFailed as error:
                self._mend(error)
                results = []
            results += self._hold_the_cap()
        self._other = self._other or next(filter(_ends_campaign, results), None)
        self.teller.tell("finished" if results else "tick", results=tuple(results))
        self.apply_rules(results)
        self._tell_late()
        self.news()
        self._refuse_to_wait()
        if self.site.out_of_time:
            self._refuse_short_job()
            raise AllocationEnded("the job that the coordinator runs inside of has no time left for another run")

    def _hold_the_cap(self) -> list[Result]:
        """End what is in flight if it has reached the cap of node-hours, against all forecasts."""
        self.spending.look(self.runner.running)
        costs, reached = self.spending.at_the_cap(), self.spending.reached
        if not costs or reached is None:
            return []
        ended = self.runner.cut(costs, reached)
        if self.site is not self.plan.wanted:
            self.site.close()
        return ended

    def _refuse_to_wait(self) -> None:
        """Wait for room in the queue for no longer than the campaign may take."""
        limit_s, refused_s = self.campaign.until.limit_s(), self.site.refused_s
        if limit_s is None or refused_s is None or self.planner.elapsed_s() < limit_s:
            return
        raise SiteFailed(
            f"No job was taken for {refused_s:.0f} s, and the campaign's wall time is over ({limit_s:g} s, "
            f"wall_time_s). Give it more when there is room again: `hpcagent resume {self.folder.root} --set "
            "until.wall_time_s=SECONDS`."
        )

    def _refuse_short_job(self) -> None:
        """Raise `BadInput` where another job like this one could not do better."""
        site, ends_at = self.site, self.site.ends_at
        wanted = site.place(self.largest, estimated_runtime_s=self.campaign.app.contract.estimated_runtime_s)[1]
        needs_s, margin_s = wanted.get("walltime_s", 0.0), site.profile.margin_s
        if ends_at is None or self._results_before < len(self.state.results):
            return
        had_s = ends_at - self.opened_at
        if needs_s + margin_s > had_s:
            raise BadInput(
                f"No run fits into this job, of which {had_s:.0f} s were left at the beginning: a run wants "
                f"{needs_s:g} s (walltime_s) and the site keeps {margin_s:g} s at the end (margin_s). Ask for a "
                "longer job, or give the runs less time.",
                value=needs_s,
            )

    def _mend(self, error: SiteFailed) -> None:
        """Open the site again where that is all it takes: the process between us and the workers has died."""
        if self.folder.root.is_dir():
            require_room(self.folder.root)  # of a full disk the site's processes do not say why they have ended
        mendable = error.details.get("mendable") and self.site is not self.plan.wanted
        if not mendable or self._mended >= MOST_MENDED:
            raise error
        self._mended += 1
        self.teller.tell("site", reason=f"{str(error).partition('. Its log')[0]}; the site is opened again")
        self.site.close()
        self.site = self.plan.open_site()
        self.runner.move(self.site)

    # -- what is told -------------------------------------------------------------------------

    def news(self) -> None:
        """Tell what the runner and the site have to say."""
        self.teller.news(self.site)

    def apply_rules(self, results: Sequence[Result]) -> None:
        """Write down and tell what the campaign's rules say of new results, once for each."""
        if not self.campaign.rules:
            return
        told_of = {(event["rule"], event["execution_id"]) for event in self.state.alerts}
        for result in results:
            if not self.campaign.full(result.manifest.params):
                continue  # a guess is no event
            for rule in self.campaign.rules:
                identity = result.manifest.execution_id
                if (rule.event, identity) in told_of or not rule.meets(result):
                    continue
                event = {"event": "rule", "rule": rule.event, "execution_id": identity, "data": rule.data(result)}
                with self.signals.held():
                    self.record.note(event)
                self.teller.tell("rule", reason=event_text(event))

    def _tell_late(self) -> None:
        """Write down and tell which runs take much longer than those before them, once for each."""
        for found in self.late.look(self.runner.running, self.state.recent):
            event = found.event()
            with self.signals.held():
                self.record.note(event)
            self.teller.tell("late", reason=found.words(event))

    # -- consolidating ------------------------------------------------------------------------

    def consolidate(self, batch: int) -> Batch:
        """Write down that a batch has ended."""
        with self.signals.held():
            results = tuple(self.state.batch(batch))
            event: dict[str, Any] = {"event": "batch", "batch": batch, "runs": len(results)}
            if self.campaign.reference is not None:
                event["scale"] = _scale(compare(self.campaign, self.state.in_order()), batch)
            self.record.note(event, sync=True)
        return self._told(batch, results)

    def consolidate_arrived(self, number: int) -> Batch:
        """Write down that a group of results, in the order in which they came, is complete."""
        size = self.planner.size
        with self.signals.held():
            arrived = self.state.arrived[number * size : (number + 1) * size]
            results = tuple(self.state.results[i] for i in arrived)
            self.record.note({"event": "batch", "batch": number, "runs": len(results)}, sync=True)
            self.metrics.update(self.state.in_order)
        return self._told(number, results)

    def _told(self, number: int, results: tuple[Result, ...]) -> Batch:
        so_far = len(self.state.arrived)

        def answer_then() -> CampaignResult:
            then = sorted(self.state.in_arrival()[:so_far], key=lambda r: r.manifest.index)
            return answer(self.campaign, then, run_dir=self.folder.root, warm=self.state.warm)

        finished = Batch(number, results, self.campaign, answer_then)
        self.teller.tell("batch", results=results)
        return finished

    def finish(self, reason: str) -> None:
        """Write down that the campaign has ended, and why."""
        unrun = self.planner.left_in_queue()
        reason = f"{reason.rstrip('.')}. {unrun}" if unrun else reason
        self.runner.settle()
        with self.signals.held():
            self.reason = reason
            if self.state.stopped != reason or not self.state.over(attended=True):
                known = self.state.results
                left = [m.execution_id for m in self.state.manifests if m.execution_id not in known]
                event = {"event": "stop", "reason": reason} | ({"not_started": left} if left else {})
                self.record.note(event, sync=True)
            self.metrics.update(self.state.in_order, final=True)
        self.teller.tell("stopped", reason=self.state.why_stopped(reason))

    def result(self) -> CampaignResult:
        """The campaign's answer as it stands."""
        return answer(
            self.campaign,
            self.state.in_order(),
            run_dir=self.folder.root,
            reason=self.reason,
            attended=not self.closed,
            wall_s=self.planner.elapsed_s(),
            state=self.state,
        )


def open_session(plan: Plan, teller: Teller, signals: Signals) -> Session:
    """Lock the folder, replay its journal, open the site and take up what was left.

    Args:
        plan: What the session is to do.
        teller: Is told that it starts, and how it was opened.
        signals: Installed.

    Raises:
        RunDirLocked: Another coordinator has the folder.
        RunDirChanged: The folder belongs to another campaign.
        StoreFull: The folder cannot be written.
    """
    folder, aside = plan.folder, Aside()
    resumed = folder.exists
    folder.create()
    with contextlib.ExitStack() as undo:
        teller.tell("starting", reason=starting(plan.wanted, plan.workers, inside=plan.inside))
        lock = Lock(folder.root)
        lock.acquire()
        undo.callback(lock.release)
        written = load_run(folder.root) if resumed else None
        plan = taken_up(plan, written)
        teller.planned = PlannedRuns(plan.campaign)
        leftovers = end_leftovers(folder.jobs) if resumed else []
        if resumed:
            require_room(folder.root)  # else the site's processes end, and do not say why
        site = _opened(plan)
        if site is not plan.wanted:
            undo.callback(_closed, site, signals)
        plan = with_batch_size(plan, site, resumed=resumed)
        if not resumed:
            write_down(folder, plan.campaign)
        journal = Journal.open(folder.events, beside=folder.work)
        undo.callback(journal.close)
        record = Recording.of(plan, journal, resumed=resumed)
        teller.state = record.state
        damage = record.state.remarks  # as it was before anything was put back
        lacking = record.state.lacking()
        record.check_files(site)
        changed = record.note_changes(plan.campaign, written)
        record.take_earlier(plan)
        session = Session(plan, lock, site, record, teller, signals, aside)
        undo.pop_all()  # from here on it is the session that closes all this
        undo.callback(session.close)
        note_site(folder, site.profile)
        load = machine_load()  # before the first run: the load is that of others
        crowded = crowd(plan.campaign, site, load)
        event = {"event": "session", **about_session(site), "machine": load}
        record.note(event | ({"busy": crowded} if crowded else {}))
        record.note_rebuilt(written)
        recovered = session.take_up()
        said = [
            _begun(session, recovered, lacking, resumed=resumed),
            *told(leftovers),
            "a last line that was cut off is in events.torn" if journal.torn else "",
            *damage,
            ledger.damage(folder.jobs) if resumed else "",
            plan.campaign.app.unknown_before if resumed else "",
            deprecated_words(plan.campaign),
            *unequal_words(plan.campaign, record.state),
        ]
        more = [
            "" if record.state.warm is None else f"begins with {record.state.warm}",
            changed,
            teller.planned.text(record.state.manifests),
            f"each point is run once: {plan.campaign.single}" if plan.campaign.single else "",
            busy(crowded) if crowded else "",
        ]
        words = "; ".join(filter(None, [f"{'; '.join(filter(None, said))}, on {site.profile.name}", *more]))
        teller.tell("opened", results=tuple(record.state.in_order()), reason=words)
        session.news()
        session.apply_rules(record.state.in_arrival())
        undo.pop_all()
    aside.set(growing=True)
    return session


def _begun(session: Session, recovered: Sequence[Result], lacking: Collection[str], *, resumed: bool) -> str:
    """Whether the campaign is new, and what it has already."""
    state = session.state
    # A folder that only holds the question, written by `prepare`, has not begun.
    words = f"resumed with {state.finished} finished run(s)" if resumed and state.manifests else "new"
    given_up = len(state.results) - state.finished
    words += f"; {given_up} that were given up are run again" if given_up else ""
    if recovered:
        words += f", {len(recovered)} of them found in {where_found(recovered)}"
        lost = sum(r.manifest.execution_id in lacking for r in recovered)
        words += f" ({lost} of them events.jsonl has lost: it tells of the campaign's end)" if lost else ""
    return words


def _opened(plan: Plan) -> Site:
    try:
        return plan.open_site()
    except SiteFailed:
        require_room(plan.folder.root)
        raise


def _closed(site: Site, signals: Signals) -> None:
    with signals.held():
        site.close()


def _ends_campaign(result: Result) -> bool:
    return result.failure is not None and result.failure.means.ends


def _scale(comparison: Comparison | None, batch: int) -> float | None:
    return None if comparison is None else comparison.of(batch)
