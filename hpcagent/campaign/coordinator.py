"""The loop: suggest, run, consolidate, steer, stop; interrupt and resume at any point."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from hpcagent.campaign.answer import answer
from hpcagent.campaign.asking import Asking, OwnRun, Results
from hpcagent.campaign.awaited import Awaited
from hpcagent.campaign.enqueued import Enqueued, add
from hpcagent.campaign.events import Batch, Event
from hpcagent.campaign.loading import load_run
from hpcagent.campaign.loop import Loop
from hpcagent.campaign.planned import planned
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.recording import Recording
from hpcagent.campaign.result import CampaignResult
from hpcagent.campaign.session import Session, open_session
from hpcagent.campaign.signals import Signals
from hpcagent.campaign.state import State
from hpcagent.campaign.sweep_runs import PlannedRuns
from hpcagent.campaign.taken_up import taken_up, write_down
from hpcagent.campaign.telling import Teller
from hpcagent.campaign.told import BY_HAND, Measured, told_event, told_result
from hpcagent.campaign.view import opening_view, progress_view, together
from hpcagent.campaign.where import stopped_words
from hpcagent.endings import Stopped, say_at_exit
from hpcagent.errors import BadInput
from hpcagent.html import Card, Displayed
from hpcagent.model.parameter import Params
from hpcagent.model.records import Result
from hpcagent.moved import moved
from hpcagent.sites.profile import Profile
from hpcagent.sites.several_profiles import AnySite
from hpcagent.store.journal import Journal
from hpcagent.store.rundir import Lock

__all__ = ["Coordinator"]


class Coordinator(Displayed):
    """Runs a campaign in its folder; iterate over it to get the finished batches.

    The folder is created, or resumed if the same campaign was begun there: finished runs are never run
    again, interrupted ones are. One coordinator holds a folder at a time.

    Args:
        campaign: What to run.
        site: Name or path of a site profile, a list of several, an open `Site`, or None for the campaign's own.
        run_dir: The campaign's folder; `runs/NAME` by default.
        workers: Runs at the same time, in place of what the profile says.
        watch: Called with every `Event`, e.g. to draw progress.
        inside: Use the nodes of the job that this process is in, instead of submitting jobs.
        progress: True draws progress as `run` does. None: on a terminal and in a notebook a line says what is
            being started, unless there is a `watch`, and the rest is left to the loop. False: nothing is printed.

    Raises:
        BadInput: The campaign, policy or site is wrong, or the site has no place for its runs.
        AllocationEnded: (while iterating) The job that it runs inside of has no time left.
        RunDirLocked: Another coordinator has the folder.
        RunDirChanged: The folder belongs to another campaign.
        StoreFull: The folder cannot be written.
        RunDirGone: (while iterating) The folder was deleted, moved, or written by somebody else.

    Example:
        >>> from hpcagent.apps.landscape import synthetic
        >>> from hpcagent.model.objective import maximize
        >>> import tempfile
        >>> campaign = Campaign(synthetic, maximize("value"), space={"x": {}}, policy="sobol",
        ...                     until={"max_runs": 4}, batch_size=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Coordinator(campaign, site="threads", run_dir=folder) as coordinator:
        ...         [len(batch.results) for batch in coordinator]
        [2, 2]
    """

    def __init__(
        self,
        campaign: Campaign,
        *,
        site: AnySite | None = None,
        run_dir: str | Path | None = None,
        workers: int | None = None,
        watch: Callable[[Event], None] | None = None,
        inside: bool = False,
        progress: bool | None = None,
    ) -> None:
        self._plan = planned(campaign, site=site, run_dir=run_dir, workers=workers, inside=inside)
        self.campaign = self._plan.campaign
        self.folder = self._plan.folder
        self._view = progress_view(campaign) if progress else None
        if progress is None and watch is None:
            self._view = opening_view(campaign)
        self._teller = Teller(together(watch, self._view), PlannedRuns(campaign))
        self._signals = Signals()
        self._session: Session | None = None  # the last one, also when it is closed
        self._loop: Loop | None = None
        self._awaited: Awaited | None = None
        self._left = False

    @property
    def _open(self) -> Session | None:
        """The session, while it is open."""
        return None if self._session is None or self._session.closed else self._session

    @property
    def finished(self) -> int:
        """Runs on record that have ended by themselves."""
        return self._teller.state.finished

    def _card(self) -> Card:
        now, state = self._open, self._teller.state
        reason = "" if self._session is None else self._session.reason or ""
        words = "open" if now is not None else "finished" if reason else "not open"
        running = 0 if now is None else len(now.runner.running)
        facts = [
            ("question", self.campaign.objective),
            ("state", words),
            ("runs", f"{state.ended} ended, {running} running"),
            ("stopped", reason),
            ("folder", self.folder.root),
        ]
        brief = f"{words}; {state.ended} runs ended, {running} running; {self.folder.root}"
        return Card("Coordinator", self.campaign.name, facts, brief=brief)

    @property
    def profile(self) -> Profile:
        """The profile of its site."""
        return self._plan.profile

    # -- opening and closing ------------------------------------------------------------------

    def __enter__(self) -> Coordinator:
        try:
            self.open()
        except KeyboardInterrupt as error:
            raise self._stopped(error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        try:
            self.close()
        except KeyboardInterrupt as again:
            raise self._stopped(again) from None
        if isinstance(error, KeyboardInterrupt):
            raise self._stopped(error) from None

    def _stopped(self, error: KeyboardInterrupt) -> Stopped:
        """The interruption, with how to go on."""
        say_at_exit()
        done = None if self._session is None else self.finished  # not known before the journal was read
        words = stopped_words(error, self.campaign, self.folder, done)
        return Stopped(words, getattr(error, "name", "Ctrl-C"))

    async def __aenter__(self) -> Coordinator:
        """Open it in a thread of its own: the event loop goes on."""
        self._awaited = Awaited(self)
        await self._awaited.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        awaited, self._awaited = self._awaited, None
        self._left = True
        if awaited is None:
            return
        await awaited.close()
        ended = awaited.ended_by()
        if ended is not None and kind is not None:
            raise ended from None

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Do as `for`, in an event loop, which goes on meanwhile; inside of `async with`."""
        if self._awaited is None:
            raise BadInput(
                "async for batch in coordinator goes inside of: async with Coordinator(...) as coordinator."
            )
        async for batch in self._awaited.batches():
            yield batch

    def interrupt(self) -> None:
        """Have whoever waits for its runs stop waiting, with `Interrupted`; may be called from any thread."""
        now = self._open
        if now is not None:
            now.interrupt()

    def open(self) -> None:
        """Lock the folder, replay its journal, open the site and take up what was left."""
        self._opened()

    def _opened(self) -> Session:
        """The open session."""
        now = self._open
        if now is not None:
            return now
        self._left = False
        self._signals.install()
        try:
            now = self._session = open_session(self._plan, self._teller, self._signals)
        except BaseException:
            self._let_go()
            raise
        self.campaign = now.campaign
        self._loop = Loop(now)
        return now

    def prepare(self) -> None:
        """Write the campaign into its folder, for a coordinator that starts later; nothing is run.

        Raises:
            RunDirLocked: Another coordinator has the folder.
            RunDirChanged: The folder belongs to another campaign.
            StoreFull: The folder cannot be written.
        """
        resumed = self.folder.exists
        self.folder.create()
        lock = Lock(self.folder.root, passing=True)
        lock.acquire()
        try:
            written = load_run(self.folder.root) if resumed else None
            plan = taken_up(self._plan, written)
            self.campaign = plan.campaign
            if not resumed:
                write_down(self.folder, plan.campaign)
            journal = Journal.open(self.folder.events)
            try:
                record = Recording.of(plan, journal, resumed=True)
                self._teller.state = record.state
                record.note_changes(plan.campaign, written)
                record.note_rebuilt(written)
                record.take_earlier(plan)
            finally:
                journal.close()
        finally:
            lock.release()

    def close(self) -> None:
        """Stop what runs, record what has ended, free the folder. Harmless when called twice."""
        try:
            if self._session is not None:
                self._session.close()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        try:
            if self._loop is not None:
                self._loop.close()
        finally:
            self._loop = None
            self._signals.restore()
            if self._view is not None:
                self._view.close()

    # -- beside the loop ----------------------------------------------------------------------

    def _asks(self) -> Asking:
        return self._unless_left().asking

    def _unless_left(self) -> Session:
        """The open session; none is opened behind the end of its `with`, where nobody would close it."""
        if self._open is None and self._left:
            raise BadInput(
                "the coordinator was closed at the end of its `with` block; what is to run goes inside of it, or "
                "into another: with Coordinator(...) as coordinator. What is on record is not run again."
            )
        return self._opened()

    def ask(self, n: int = 1) -> list[Params]:
        """Points that the campaign's policy would have run next. Nothing is planned, run or spent.

        Run them with `submit` or `run_points`, or measure them elsewhere and `tell`: they are then suggestions of
        the policy on record. Until then they count as pending, so that asking again gives others; in a later
        session they are given again.

        Args:
            n: How many.

        Returns:
            Points of the varied parameters; fewer than `n` where the policy's design is exhausted.

        Raises:
            BadInput: `n` is no whole number of at least 1.

        Example:
            >>> import tempfile
            >>> from hpcagent.campaign.loading import load_campaign
            >>> campaign = Campaign(load_campaign("synthetic").app, load_campaign("synthetic").objective,
            ...                     space={"x": {}}, policy={"name": "grid", "levels": 5})
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with Coordinator(campaign, site="threads", run_dir=folder) as coordinator:
            ...         points = coordinator.ask(2)
            ...         results = coordinator.run_points(points)
            >>> [r.manifest.role for r in results], points[0]["x"] == campaign.search["x"].low
            (['suggested', 'suggested'], True)
        """
        return self._asks().ask(n)

    def submit(self, points: Sequence[Mapping[str, object]], *, replicate: int = 0) -> list[OwnRun]:
        """Start runs at points of one's own choice, and return at once.

        Through the same runner, journal, retries and budget as the policy's. A point that is on record is not run
        again: its result is taken from there, also in a later session. Points that `ask` gave are suggestions of
        the policy; the role of others is `enqueued`.

        Args:
            points: Of the varied parameters.
            replicate: Which repetition of the points: each has a seed of its own, and is run once.

        Returns:
            A run for each point, to wait for (`result()`, `await`); `results()` gives what comes in.

        Raises:
            BadInput: A point is not allowed; none was started.
            BudgetSpent: The budget has no room for them; none was started.
        """
        return self._asks().submit(points, replicate=replicate, claim=True)

    def run_points(self, points: Sequence[Mapping[str, object]], *, replicate: int = 0) -> list[Result]:
        """Run points of one's own choice and wait for them; see `submit`. May be called from several threads.

        Returns:
            Their results, in the order of the points; of a run that failed too.

        Raises:
            BadInput, BudgetSpent: see `submit`.
        """
        return [run.result() for run in self._asks().submit(points, replicate=replicate, claim=False)]

    def extend(self, run: object, factor: float = 2.0) -> OwnRun:
        """Have a finished run go on from its end, to `factor` times its length, and return at once.

        The longer run has the earlier one in it: its metrics are over both, it costs what it adds, and as a
        measurement it takes the earlier one's place, whose result stays on record. The same extension is made
        once, also in a later session; to go on further, extend the run that this one gives.

        Args:
            run: The run: its position in the campaign, its execution id, its `Result`, or a point (then the first
                ordinary run there).
            factor: How many times longer than it is, above 1.

        Returns:
            The run, to wait for with `result()` or `await`.

        Raises:
            BadInput: There is no such run, it did not complete, its app or its campaign cannot extend it, or its
                files are gone; nothing was started.
            BudgetSpent: The budget has no room for it; nothing was started.
        """
        return self._asks().extend(run, factor, self.folder.work)

    def results(self) -> Results:
        """The results of runs that were submitted, as they come in: for `for` and `async for`.

        Ends when none is under way; more may be submitted meanwhile.
        """
        return Results(self._asks())

    def tell(
        self,
        params: Mapping[str, object],
        metrics: Mapping[str, Measured] | None = None,
        *,
        uncertainty: Mapping[str, Measured] | None = None,
        failure: str = "",
        origin: str = BY_HAND,
        replicate: int | None = None,
    ) -> Result:
        """Write down a result that was measured elsewhere: by hand, in the laboratory, on another machine.

        The policy learns from it and the answer holds it, marked as what it is. It counts against no budget. The
        same numbers told again are one measurement; other numbers at the same point are a further one.

        Args:
            params: The point, of the varied parameters.
            metrics: Name -> number in the contract's unit, or `(number, "unit")`; at least those of the objective.
            uncertainty: Standard errors of these, likewise.
            failure: In place of metrics: why there are none, a sentence. The policy sees that it failed there.
            origin: Where it comes from, in a few words.
            replicate: Which measurement of this point and origin it is; the next one by default.

        Raises:
            BadInput: A metric is unknown or lacking, a number is none, a unit does not fit, or the point is not
                allowed; nothing was written.

        Example:
            >>> import tempfile
            >>> from hpcagent.campaign.loading import load_campaign
            >>> campaign = load_campaign("synthetic")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with Coordinator(campaign, site="threads", run_dir=folder) as coordinator:
            ...         told = coordinator.tell(coordinator.ask()[0], {"value": 3.5, "error": 0.1}, origin="lab")
            >>> told.manifest.origin, told.manifest.role
            ('lab', 'suggested')
        """
        now = self._unless_left()
        with now.turn:
            asked = now.asking.answered(params)
            result, before = told_result(
                self.campaign,
                self.folder,
                now.state,
                params,
                {} if metrics is None else metrics,
                uncertainty={} if uncertainty is None else uncertainty,
                failure=failure,
                origin=origin,
                replicate=replicate,
                suggested=asked is not None,
            )
            now.asking.told(result)
            if not before:
                with now.signals.held():
                    record = None if asked is None else asked.record()
                    now.record.note(told_event(self.folder, result, asked=record))
                now.teller.tell("finished", results=(result,))
                now.apply_rules([result])
        return result

    def enqueue(self, points: Sequence[Mapping[str, object]]) -> Enqueued:
        """Have points of one's own run before the policy's, with the loop's next batch; see `CampaignRun.enqueue`.

        Raises:
            BadInput: A point is not allowed; none was added.
        """
        now = self._unless_left()
        with now.turn:
            added, known = add(self.folder, self.campaign, now.state, points)
            now.queue.look(force=True)
            waiting = len(now.queue.waiting())
            return Enqueued(added, known, waiting, True, None, now.planner.runs_left(), self.folder.root)

    @property
    def over(self) -> str | None:
        """Why the loop would begin no further batch (budget, stop condition), or None: for scripts that ask."""
        now = self._unless_left()
        with now.turn:
            return now.planner.over()

    def finish(self, reason: str) -> CampaignResult:
        """End the campaign, for a script that has decided: wait for what runs, and write down why.

        Args:
            reason: A sentence.

        Returns:
            The answer.
        """
        now = self._unless_left()
        if not isinstance(reason, str) or not reason.strip():
            raise BadInput("finish: say why the campaign ends, in a sentence.", value=reason)
        now.asking.wait(lambda: not now.runner.running, None)
        now.asking.close(tell=True)
        now.finish(reason.strip())
        return self.result()

    # -- the loop -----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        """Run the campaign to its end, yielding each batch as it is finished.

        Ctrl-C (or interrupting the kernel) raises `KeyboardInterrupt` here; everything finished is kept,
        and iterating again, also in a new process, goes on.

        Raises:
            StoreFull: A record could not be written.
            RunDirGone: The folder was deleted, moved, or written by somebody else; nothing more is recorded.
            SiteFailed: The site broke down for good.
            BadInput: The `with` block around it has ended.
        """
        now = self._unless_left()
        loop = self._loop = self._loop or Loop(now)
        yield from loop

    def result(self) -> CampaignResult:
        """The campaign's answer as it stands."""
        if self._session is not None:
            return self._session.result()
        return answer(self.campaign, [], run_dir=self.folder.root, state=State(), attended=False)


__getattr__ = moved(__name__, {"run": "hpcagent.runs.run"})
