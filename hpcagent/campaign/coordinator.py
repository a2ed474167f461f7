"""The loop: suggest, run, consolidate, steer, stop; interrupt and resume at any point."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hpcagent.apps.base import App
from hpcagent.apps.chosen import keep
from hpcagent.campaign.answer import answer
from hpcagent.campaign.asking import Asking, OwnRun, Results
from hpcagent.campaign.awaited import Awaited
from hpcagent.campaign.batch import Batch, Event
from hpcagent.campaign.budget import refuse_small_cap
from hpcagent.campaign.changes import change_text, changeable, changed_event
from hpcagent.campaign.compare import Comparison, compare
from hpcagent.campaign.enqueued import Enqueued, Queue, add
from hpcagent.campaign.guarding import Guarding
from hpcagent.campaign.late import REMEMBERED, LateRuns
from hpcagent.campaign.on_sites import by_reference, references, refuse_mixed_speeds
from hpcagent.campaign.planner import Asked, Planner
from hpcagent.campaign.played import policy_of
from hpcagent.campaign.record import Campaign, load_run
from hpcagent.campaign.recorded import rebuilt_event, replayed
from hpcagent.campaign.result import CampaignResult, event_text
from hpcagent.campaign.rolling import Suggester, due, in_flight
from hpcagent.campaign.runner import Runner
from hpcagent.campaign.same_files import changed_inputs, changed_since, refusal, repair_of
from hpcagent.campaign.signals import Signals
from hpcagent.campaign.spending import Spending
from hpcagent.campaign.state import State
from hpcagent.campaign.sweep_runs import PlannedRuns
from hpcagent.campaign.sweep_space import SWEEP
from hpcagent.campaign.told import BY_HAND, Measured, told_event, told_result
from hpcagent.campaign.view import opening_view, progress_view, together
from hpcagent.campaign.warm import read_earlier
from hpcagent.campaign.where import (
    about_session,
    busy,
    chosen_site,
    crowd,
    going_on,
    machine_load,
    note_site,
    starting,
    stopped_words,
)
from hpcagent.endings import Stopped, say_at_exit
from hpcagent.errors import (
    AllocationEnded,
    BadInput,
    HpcAgentError,
    Interrupted,
    RunDirChanged,
    RunDirGone,
    SiteFailed,
)
from hpcagent.html import Card, Displayed
from hpcagent.model.records import Manifest, Result
from hpcagent.model.space import Params
from hpcagent.moved import moved
from hpcagent.policies.base import Policy
from hpcagent.policies.design import POINTS
from hpcagent.sites import ledger
from hpcagent.sites.opening import open_site
from hpcagent.sites.profile import Profile
from hpcagent.sites.profiles import find_profile
from hpcagent.sites.reap import end_leftovers, told
from hpcagent.sites.several_profiles import AnySite, Several, one_site
from hpcagent.sites.site import Site, usable_cores, workers_of
from hpcagent.store.files import write_whole
from hpcagent.store.journal import Journal
from hpcagent.store.metrics_file import MetricsFile
from hpcagent.store.rundir import Lock, RunDir

if TYPE_CHECKING:
    pass

__all__ = [
    "Coordinator",
]

# How long a wait for results lasts before the watcher hears that time goes by.
TICK_S = 0.2

# A policy that is quick answers before anything else is looked at: its suggestions then know the last result.
QUICK_S = 0.005

# So often is a site opened again in one session.
MOST_MENDED = 3


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
        self._inside = inside
        if campaign.cache is not None:
            whole = str(Path(campaign.cache).expanduser().absolute())
            campaign = campaign.model_copy(update={"cache": whole})
        self.campaign = campaign
        self.folder = RunDir(run_dir if run_dir is not None else Path("runs") / campaign.name)
        if not campaign.app.runnable:
            raise BadInput(
                f"the app {campaign.app.name!r} is a function of a script or notebook ({campaign.app.source}); "
                "run that script or cell again to go on, or move the function into a module that can be imported."
            )
        wanted = site if site is not None else chosen_site(campaign, self.folder.root)
        # Looked up now, so that a wrong name costs nothing and leaves no folder behind.
        self._wanted_site: Site | Profile = wanted if isinstance(wanted, Site) else find_profile(wanted)
        refuse_mixed_speeds(campaign, self.profile)
        if inside:
            one_site(self.profile, "--inside (inside=True) is")
        if isinstance(self._wanted_site, Profile):
            workers_of(self._wanted_site, campaign.largest)
            if not self.folder.exists and not isinstance(self._wanted_site, Several):
                far = self._wanted_site.batch or self._wanted_site.remote
                here = None if far else len(usable_cores())
                refuse_small_cap(campaign, node_cores=self._wanted_site.node_cores or here)
        self._workers = workers
        self._view = progress_view(campaign) if progress else None
        if progress is None and watch is None:
            self._view = opening_view(campaign)
        self._watch = together(watch, self._view)
        self._policy: Policy = policy_of(campaign)
        # Read now for the same reason; a campaign that was begun has them in its journal.
        self._written: Campaign | None = None
        self._warm = None if self.folder.exists else read_earlier(campaign, run_dir=self.folder.root)
        self._lock: Lock | None = None
        self._journal: Journal | None = None
        self._runner: Runner | None = None
        self._spending: Spending | None = None
        self._planner: Planner | None = None
        self._site: Site | None = None
        self._signals = Signals()
        self._state = State()
        self._metrics = MetricsFile(self.folder.metrics, campaign.app.contract)
        self._largest = campaign.largest
        self._planned = PlannedRuns(campaign)
        self._opened_at = 0.0
        self._reason: str | None = None
        self._suggester = Suggester(self._wake)
        self._asked: Asked | None = None
        self._in_vain = -1
        self._late = LateRuns(self.folder.work)
        self._watched_batches = 0
        self._looked_at = -1
        self._mended = self._results_before = 0
        self._other: Result | None = None
        self._turn = threading.RLock()
        self._asking: Asking | None = None
        self._awaited: Awaited | None = None
        self._interrupted = self._left = False

    def _card(self) -> Card:
        state = "open" if self._runner is not None else "finished" if self._reason is not None else "not open"
        running = 0 if self._runner is None else len(self._runner.running)
        facts = [
            ("question", self.campaign.objective),
            ("state", state),
            ("runs", f"{self._state.ended} ended, {running} running"),
            ("stopped", self._reason or ""),
            ("folder", self.folder.root),
        ]
        brief = f"{state}; {self._state.ended} runs ended, {running} running; {self.folder.root}"
        return Card("Coordinator", self.campaign.name, facts, brief=brief)

    @property
    def profile(self) -> Profile:
        """The profile of its site."""
        wanted = self._wanted_site
        return wanted.profile if isinstance(wanted, Site) else wanted

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
        words = stopped_words(error, self.campaign, self.folder, self._state.finished)
        return Stopped(words, getattr(error, "name", "Ctrl-C"))

    async def __aenter__(self) -> Coordinator:
        """Open it in a thread of its own: the event loop goes on."""
        self._awaited = Awaited(self)
        await self._awaited.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._awaited is not None
        awaited, self._awaited = self._awaited, None
        self._left = True
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
        self._interrupted = True
        self._wake()

    def open(self) -> None:
        """Lock the folder, replay its journal, open the site and take up what was left."""
        if self._runner is not None:
            return
        self._interrupted = self._left = False
        resumed = self.folder.exists
        self.folder.create()
        self._signals.install()
        try:
            self._tell("starting", reason=starting(self._wanted_site, self._workers, inside=self._inside))
            self._lock = Lock(self.folder.root)
            self._lock.acquire()
            self._settle_app(resumed)
            leftovers = end_leftovers(self.folder.jobs) if resumed else []
            self._site = self._open_site()
            # The default batch depends on the site; from here on it is written down.
            self._settle_batch_size(resumed)
            if not resumed:
                self._write_down()
            self._journal = Journal.open(self.folder.events, beside=self.folder.work)
            self._state = replayed(self.folder, self.campaign, look=True, results=False) if resumed else State()
            damage = self._state.remarks  # as it was before anything was put back
            lacking = self._state.lacking()
            self._check_files()
            changed = self._note_changes()
            self._take_earlier()
            self._spending = self._make_spending()
            self._runner = self._make_runner()
            self._runner.may_retry = self._spending.may_retry
            if self.campaign.guard is not None:
                self._runner.guard = Guarding(self.campaign, self._state, self.folder)
            self._opened_at = time.time()
            self._planner = Planner(
                self.campaign,
                self._policy,
                self._state,
                self._spending,
                self._journal,
                self._signals,
                began=self._opened_at,
                site=self._site.about,
                references=references(self.campaign, self._site.profile),
                work=self.folder.work,
                queue=Queue(self.folder, self.campaign, self._state, remark=self._remark),
            )
            note_site(self.folder, self._site.profile)
            load = machine_load()  # before the first run: the load is that of others
            crowded = crowd(self.campaign, self._site, load)
            session = {"event": "session", **about_session(self._site), "machine": load}
            self._note(session | ({"busy": crowded} if crowded else {}))
            self._note_rebuilt()
            recovered = self._runner.recover()
            self._results_before = len(self._state.results)
            self._asking = self._make_asking()
        except BaseException:
            self.close()
            raise
        # A folder that only holds the question, written by `prepare`, has not begun.
        begun = resumed and bool(self._state.manifests)
        again = f"resumed with {self._state.finished} finished run(s)" if begun else "new"
        given_up = len(self._state.results) - self._state.finished
        again += f"; {given_up} that were given up are run again" if given_up else ""
        if recovered:
            again += f", {len(recovered)} of them found in their own folders"
            lost = sum(r.manifest.execution_id in lacking for r in recovered)
            again += f" ({lost} of them events.jsonl has lost: it tells of the campaign's end)" if lost else ""
        again += "".join(f"; {words}" for words in told(leftovers))
        if self._journal.torn:
            again += "; a last line that was cut off is in events.torn"
        jobs = ledger.damage(self.folder.jobs) if resumed else ""
        again += "".join(f"; {remark}" for remark in (*damage, *([jobs] if jobs else [])))
        unknown = self.campaign.app.unknown_before if resumed else ""
        again += f"; {unknown}" if unknown else ""
        again += f", on {self._site.profile.name}"
        again += "" if self._state.warm is None else f"; begins with {self._state.warm}"
        again += f"; {changed}" if changed else ""
        planned = self._planned.text(self._state.manifests)
        again += f"; {planned}" if planned else ""
        again += f"; each point is run once: {self.campaign.single}" if self.campaign.single else ""
        again += f"; {busy(crowded)}" if crowded else ""
        self._tell("opened", results=tuple(self._state.in_order()), reason=again)
        self._tell_news()
        self._apply_rules(self._state.in_arrival())

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
            self._settle_app(resumed)
            if not resumed:
                self._write_down()
            self._journal = Journal.open(self.folder.events)
            self._state = replayed(self.folder, self.campaign, look=True, results=False)
            self._note_changes()
            self._note_rebuilt()
            self._take_earlier()
        finally:
            if self._journal is not None:
                self._journal.close()
                self._journal = None
            lock.release()

    def _note_changes(self) -> str:
        """Write down what differs from what was written, the journal first: it says who decided what, and when."""
        if self._written is None:
            return ""
        event = changed_event(self._written, self.campaign)
        if event is not None:
            self._note(event, sync=True)
        self._write_down()
        return "" if event is None else change_text(self._state.changes[-1])

    def _note_rebuilt(self) -> None:
        """Write what damage has taken from the journal into it again."""
        until = None if self._written is None else self._written.until
        event = rebuilt_event(
            self._state,
            budget=None if until is None else until.budget(),
            cap=None if until is None else until.cap(),
        )
        if event is not None:
            self._note(event, sync=True)
            self._state.unrecorded = []

    def _take_earlier(self) -> None:
        """Write down what earlier campaigns have found, when this one begins: from then on it has them itself.

        Where the line that had it is damaged, they are read anew.
        """
        if not self.campaign.earlier or self._state.warm is not None:
            return
        self._warm = self._warm or read_earlier(self.campaign, run_dir=self.folder.root)
        if self._warm is not None:
            self._note(self._warm.event(), sync=True)

    def close(self) -> None:
        """Stop what runs, record what has ended, free the folder. Harmless when called twice."""
        try:
            if self._runner is not None and self._journal is not None:
                with self._signals.held():
                    self._wind_up()
        finally:
            if self._asking is not None:
                self._asking.close(tell=False)
            self._runner = self._asking = None
            self._asked = None
            self._suggester.forget()
            try:
                if self._site is not None and self._site is not self._wanted_site:
                    with self._signals.held():  # a second Ctrl-C at once is not to leave workers behind
                        self._site.close()
                        self._tell_news()
            finally:
                self._site = None
                if self._journal is not None:
                    self._journal.close()
                    self._journal = None
                if self._lock is not None:
                    self._lock.release()
                    self._lock = None
                try:
                    self._suggester.close()
                finally:
                    self._signals.restore()
                    if self._view is not None:
                        self._view.close()

    def _wind_up(self) -> None:
        assert self._runner is not None and self._journal is not None
        on_its_way = sys.exc_info()[1]
        try:
            self._journal.check()  # nobody is told that finished runs are kept in a folder that is gone
            self._runner.drain()
            if self._asking is not None:
                self._asking.close(tell=self._reason is None)
            self._runner.stop()
            self._tell_news()  # what went wrong in the end
            if self._reason is None and self._runner.running:
                self._note({"event": "interrupted", "running": sorted(self._runner.running)})
            self._metrics.update(self._state.in_order, final=True)
        except HpcAgentError as error:
            self._runner.stop()
            # A full disk must not hide the error that is on its way; metrics.h5 is rebuilt on resume.
            gone = isinstance(error, RunDirGone) and not isinstance(on_its_way, RunDirGone)
            if on_its_way is None or gone:
                raise

    def _open_site(self) -> Site:
        if isinstance(self._wanted_site, Site):
            return self._wanted_site
        return open_site(
            self._wanted_site, run_dir=self.folder.root, workers=self._workers, private=True, inside=self._inside
        )

    def _settle_batch_size(self, resumed: bool) -> None:
        if self.campaign.batch_size is not None:
            return
        assert self._site is not None
        # A batch as large as the site leaves workers idle while the last runs end; four times that
        # keeps them busy more than 90 % of the time.
        size = max(4 * self._site.workers_for(self._largest), 2)
        if resumed:
            size = load_run(self.folder.root).batch_size or size
        self.campaign = self.campaign.model_copy(update={"batch_size": size})

    def _settle_app(self, resumed: bool) -> None:
        """From here on the app is what the campaign began with, or began with once.

        Raises:
            InputsChanged: Its code or files have another content than then.
            RunDirChanged: The folder belongs to another campaign.
        """
        if resumed:
            self._written = load_run(self.folder.root)
            app = self._same_app(self._written)
            self._grow_hypercube(self._written)
        else:
            app = self.campaign.app.frozen()
        points = self.campaign.points
        if self._written is not None:  # what was enqueued then and not run yet is not forgotten
            points = self._written.enqueue(*points).points
        self.campaign = self.campaign.model_copy(update={"app": app, "points": points})

    def _grow_hypercube(self, written: Campaign) -> None:
        """A larger Latin hypercube keeps the points of the one that was run, and appends others of its size."""
        then, now = written.policy, self.campaign.policy
        kinds = {(p.name, p.options.get("design")) for p in (then, now)}
        if kinds != {(SWEEP, "latin_hypercube")} or "block" in now.options:
            return
        block = then.options.get("block", then.options.get("points", POINTS))
        if block == now.options.get("points", POINTS):
            return
        choice = now.model_copy(update={"options": {**now.options, "block": block}})
        self.campaign = self.campaign.model_copy(update={"policy": choice})
        self._policy = policy_of(self.campaign)
        self._planned = PlannedRuns(self.campaign)

    def _same_app(self, written: Campaign) -> App:
        ours, theirs = self.campaign.identity(), written.identity()
        app = self.campaign.app.continuing(written.app)
        free = changeable(written, self.campaign) | ({"app"} if app is not None else set())
        changed = [key for key in ours if ours[key] != theirs[key] and key not in free]
        inputs = changed_inputs(written.app, self.campaign.app)
        if inputs:
            done = replayed(self.folder, written, look=True).finished
            raise refusal(str(self.folder.root), inputs, done=done, repair=repair_of(written.app))
        if app is None or changed:
            said = [*changed, *(_different(written.app, self.campaign.app) if "app" in changed else ())]
            raise RunDirChanged(
                f"{self.folder.root} belongs to another campaign: {', '.join(said)} differ(s). Go on with that "
                f"one by {going_on(written, self.folder.root)}, or choose another folder (run_dir, --run-dir).",
                changed=changed,
            )
        return app

    def _check_files(self) -> None:
        """Refuse to add numbers of other pseudopotentials, setups or models to those that are there."""
        assert self._state is not None and self._site is not None
        ended = (*self._state.results.values(), *self._state.part_results.values())
        changed = changed_since(self._state.files.values(), ended, self._site.about)
        if changed:
            raise refusal(str(self.folder.root), changed, done=self._state.finished, elsewhere=True)

    def _write_down(self) -> None:
        keep(self.folder.root, self.campaign.app.contract.space)
        write_whole(self.folder.campaign, self.campaign.toml())
        write_whole(self.folder.app, self.campaign.app.model_dump_json(indent=1))

    def _make_spending(self) -> Spending:
        assert self._site is not None
        return Spending(
            self.campaign,
            self._state,
            self.folder.work,
            node_cores=self._site.about["node_cores"],
            workers=self._site.workers_for(self._largest),
        )

    def _make_runner(self) -> Runner:
        assert self._site is not None and self._journal is not None
        return Runner(
            self.campaign.app,
            self._site,
            self._state,
            self._journal,
            self.folder,
            required=self.campaign.objective.metrics,
            retries=self.campaign.retries,
            cache=None if self.campaign.cache is None else Path(self.campaign.cache),
            by_reference=by_reference(self.campaign),
            ensemble=self.campaign.ensemble,
            rolling=self.campaign.mode == "rolling",
        )

    # -- beside the loop ----------------------------------------------------------------------

    def _make_asking(self) -> Asking:
        assert self._planner is not None and self._runner is not None
        return Asking(
            self._planner,
            self._state,
            self._runner,
            turn=self._turn,
            start=self._start_own,
            step=self._step,
            batch_done=self._consolidate,
        )

    def _asks(self) -> Asking:
        self._open_unless_left()
        assert self._asking is not None
        return self._asking

    def _open_unless_left(self) -> None:
        """Open it where nobody has yet; not again behind the end of its `with`, where nobody would close it."""
        if self._runner is None and self._left:
            raise BadInput(
                "the coordinator was closed at the end of its `with` block; what is to run goes inside of it, or "
                "into another: with Coordinator(...) as coordinator. What is on record is not run again."
            )
        self.open()

    def _start_own(self, manifests: Sequence[Manifest]) -> None:
        if not manifests:
            return
        with self._signals.held():
            self._start(manifests)
        self._tell("submitted")

    def _step(self) -> None:
        """Wait a moment and take in what has ended, for whoever drives it without the loop."""
        runner = self._runner
        if runner is None:
            return
        self._wait(runner)
        if not runner.running:
            self._refuse_other()

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
            >>> from hpcagent.campaign.record import load_campaign
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
            >>> from hpcagent.campaign.record import load_campaign
            >>> campaign = load_campaign("synthetic")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with Coordinator(campaign, site="threads", run_dir=folder) as coordinator:
            ...         told = coordinator.tell(coordinator.ask()[0], {"value": 3.5, "error": 0.1}, origin="lab")
            >>> told.manifest.origin, told.manifest.role
            ('lab', 'suggested')
        """
        asking = self._asks()
        with self._turn:
            asked = asking.answered(params)
            result, before = told_result(
                self.campaign,
                self.folder,
                self._state,
                params,
                {} if metrics is None else metrics,
                uncertainty={} if uncertainty is None else uncertainty,
                failure=failure,
                origin=origin,
                replicate=replicate,
                suggested=asked is not None,
            )
            asking.told(result)
            if not before:
                with self._signals.held():
                    record = None if asked is None else asked.record()
                    self._note(told_event(self.folder, result, asked=record))
                self._tell("finished", results=(result,))
                self._apply_rules([result])
        return result

    def enqueue(self, points: Sequence[Mapping[str, object]]) -> Enqueued:
        """Have points of one's own run before the policy's, with the loop's next batch; see `ha.enqueue`.

        Raises:
            BadInput: A point is not allowed; none was added.
        """
        self._open_unless_left()
        assert self._planner is not None and self._planner.queue is not None
        with self._turn:
            added, known = add(self.folder, self.campaign, self._state, points)
            self._planner.queue.look(force=True)
            waiting = len(self._planner.queue.waiting())
            return Enqueued(added, known, waiting, True, None, self._planner.room(), self.folder.root)

    def _remark(self, words: str) -> None:
        self._tell("site", reason=words)

    @property
    def over(self) -> str | None:
        """Why the loop would begin no further batch (budget, stop condition), or None: for scripts that ask."""
        self.open()
        assert self._planner is not None
        with self._turn:
            return self._planner.over()

    def finish(self, reason: str) -> CampaignResult:
        """End the campaign, for a script that has decided: wait for what runs, and write down why.

        Args:
            reason: A sentence.

        Returns:
            The answer.
        """
        asking = self._asks()
        assert self._runner is not None
        if not isinstance(reason, str) or not reason.strip():
            raise BadInput("finish: say why the campaign ends, in a sentence.", value=reason)
        runner = self._runner
        asking.wait(lambda: not runner.running, None)
        asking.close(tell=True)
        self._finish(reason.strip())
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
        """
        self.open()
        loop = self._batches() if self.campaign.mode == "batch" else self._rolling()
        yield from loop

    def _batches(self) -> Iterator[Batch]:
        assert self._runner is not None and self._planner is not None
        plans = self._planner
        while True:
            waiting = self._affordable(self._state.waiting(give_up=frozenset(self._runner.given_up)))
            if not waiting:
                planned = plans.next_batch()
                if isinstance(planned, str):
                    self._finish(planned)
                    return
                waiting = planned
            self._run_all(waiting)
            self._refuse_other()
            current = waiting[-1].batch
            for _ in range(self.campaign.repeat_distrusted):
                again = plans.repeats(current)
                if not again:
                    break
                self._run_all(again)
                self._refuse_other()
            yield self._consolidate(current)

    def _rolling(self) -> Iterator[Batch]:
        assert self._runner is not None and self._site is not None and self._planner is not None
        runner, plans = self._runner, self._planner
        waiting = self._state.waiting(give_up=frozenset(runner.given_up))
        self._start(self._affordable([m for m in waiting if m.execution_id not in runner.running]))
        self._watched_batches = len(self._state.results) // plans.size
        reason: str | None = None
        while True:
            if self._other is not None and not runner.running:
                self._refuse_other()
            if reason is None and self._other is None:
                reason = plans.over() or self._fill(runner, plans)
                if reason is not None:  # the last chance of what somebody has enqueued
                    self._start(plans.queued(len(self._state.manifests) + plans.size, look=True))
            if reason is not None or self._other is not None:
                # An answer that is still to come would be of no use.
                self._asked = None
                self._suggester.forget()
            if not runner.running and self._asked is None:
                confirming = [] if plans.hopeless() else plans.confirmation()
                if not confirming:
                    break
                self._start(confirming)
            self._wait(runner)
            while len(self._state.results) >= (self._watched_batches + 1) * plans.size:
                yield self._rolled()
        if len(self._state.results) > self._watched_batches * plans.size:
            yield self._rolled()
        self._finish(reason or "every planned run has ended.")

    def _fill(self, runner: Runner, plans: Planner) -> str | None:
        """Have as many runs suggested as fit beside those in flight; return why none is left, if so.

        The policy thinks in a thread of its own, so that results are taken in and runs are sent meanwhile.
        """
        assert self._site is not None
        while True:
            patience_s = 0.0
            if self._asked is None:
                room = plans.room()
                workers = runner.share(self._site.workers_for(self._largest))
                n = due(self._in_flight(workers), len(runner.running), workers)
                n = n if room is None else min(n, room)
                if n <= 0:
                    # Nothing to add now; with no room at all the budget is planned out.
                    return "the budget of runs is planned out." if room is not None and room <= 0 else None
                own = plans.queued(n, look=len(self._state.results) // plans.size > self._looked_at)
                self._looked_at = len(self._state.results) // plans.size
                if own:
                    self._start(own)
                    continue
                if self._in_vain == len(self._state.rows):
                    return None  # it had nothing to suggest, and nothing has changed
                self._asked, question = plans.asking(n, runner.running.values())
                self._suggester.ask(question)
                # A quick one would be done before the next result is taken in.
                patience_s = QUICK_S if self._suggester.takes_s < QUICK_S else 0.0
            asked = self._asked
            assert asked is not None
            if not self._suggester.wait(patience_s):
                return None
            self._asked = None
            planned = plans.rolling(asked, self._suggester.take())
            self._start(planned)
            if not planned:
                refusal = plans.spending.refusal
                if not runner.running and (refusal or not asked.pending):
                    return refusal or "the policy has nothing left to suggest: its design is exhausted."
                self._in_vain = asked.seen

    def _in_flight(self, workers: int) -> int:
        """How many runs may be in flight on so many workers; see `rolling.in_flight`."""
        if self.campaign.in_flight is not None:
            return self.campaign.in_flight
        policy = self._suggester
        walls = [self._state.results[i].cost.wall_s for i in self._state.arrived[-32:]]
        mean_s = sum(walls) / len(walls) if walls else None
        if policy.sure or not policy.takes_s:
            return in_flight(workers, mean_s, policy.takes_s)
        # Whether it is slow or only had to import things is not known: enough to find out.
        expected_s = mean_s or self.campaign.app.contract.estimated_runtime_s
        return in_flight(workers, expected_s, policy.takes_s, most_ahead=1)

    def _wake(self) -> None:
        """Called in the policy's thread."""
        runner = self._runner
        if runner is not None:
            runner.wake()

    def _run_all(self, manifests: Sequence[Manifest]) -> None:
        assert self._runner is not None
        with self._signals.held():
            self._start([m for m in manifests if m.execution_id not in self._runner.running])
            # Of the batches before: written now, while the workers have something to do.
            self._metrics.update(self._state.in_order)
        self._tell("submitted")
        while self._runner.running:
            self._wait(self._runner)

    def _wait(self, runner: Runner) -> None:
        # The wait itself may be interrupted, taking in what arrived may not.
        runner.peek(TICK_S)
        if self._interrupted:
            raise Interrupted("the coordinator was interrupted; what has finished is kept.")
        with self._turn:
            self._take_in(runner)

    def _take_in(self, runner: Runner) -> None:
        assert self._journal is not None
        self._journal.look()
        with self._signals.held():
            try:
                results = runner.collect()
            except SiteFailed as error:
                self._mend(runner, error)
                results = []
            results += self._hold_the_cap(runner)
        self._other = self._other or next(filter(_ends_campaign, results), None)
        self._tell("finished" if results else "tick", results=tuple(results))
        self._apply_rules(results)
        self._tell_late(runner)
        self._tell_news()
        assert self._site is not None
        self._refuse_to_wait(self._site)
        if self._site.spent:
            self._refuse_short_job()
            raise AllocationEnded("the job that the coordinator runs inside of has no time left for another run")

    def _refuse_to_wait(self, site: Site) -> None:
        """Wait for room in the queue for no longer than the campaign may take."""
        limit_s, refused_s = self.campaign.until.limit_s(), site.refused_s
        if limit_s is None or refused_s is None or self._planner is None or self._planner.elapsed_s() < limit_s:
            return
        raise SiteFailed(
            f"No job was taken for {refused_s:.0f} s, and the campaign's wall time is over ({limit_s:g} s, "
            f"wall_time_s). Give it more when there is room again: `hpcagent resume {self.folder.root} --set "
            "until.wall_time_s=SECONDS`."
        )

    def _tell_late(self, runner: Runner) -> None:
        """Write down and tell which runs take much longer than those before them, once for each."""
        last = self._state.arrived[-REMEMBERED:]
        for found in self._late.look(runner.running, lambda: [self._state.results[i] for i in last]):
            event = found.event()
            with self._signals.held():
                self._note(event)
            self._tell("late", reason=found.words(event))

    def _hold_the_cap(self, runner: Runner) -> list[Result]:
        """End what is in flight if it has reached the cap of node-hours, against all forecasts."""
        assert self._spending is not None and self._site is not None
        self._spending.look(runner.running)
        costs = self._spending.at_the_cap()
        if not costs:
            return []
        assert self._spending.reached is not None
        ended = runner.cut(costs, self._spending.reached)
        if self._site is not self._wanted_site:
            self._site.close()
        return ended

    def _refuse_other(self) -> None:
        """End where a worker has met code or files with another content: every further run would.

        What was in flight has ended by now; what could not be computed is computed when the campaign is resumed.

        Raises:
            InputsChanged: With what that run says.
        """
        if self._other is None or self._other.failure is None:
            return
        failure = self._other.failure
        done = self._state.finished
        said = f"{failure.message.rstrip('.')} ({self._other.host})"
        repair = "" if not failure.repair else f"What helps: {failure.repair}."
        raise refusal(str(self.folder.root), [said], done=done, repair=repair)

    def _affordable(self, waiting: list[Manifest]) -> list[Manifest]:
        """Runs of an earlier session that have to be run again, as far as the budget allows it."""
        assert self._spending is not None and self._runner is not None
        if not waiting:
            return []
        found = self._spending.affordable(waiting)
        self._runner.given_up.update({m.execution_id for m in waiting} - {m.execution_id for m in found})
        return found

    def _apply_rules(self, results: Sequence[Result]) -> None:
        """Write down and tell what the campaign's rules say of new results, once for each."""
        if not self.campaign.rules:
            return
        told = {(event["rule"], event["execution_id"]) for event in self._state.told}
        for result in results:
            if not self.campaign.full(result.manifest.params):
                continue  # a guess is no event
            for rule in self.campaign.rules:
                identity = result.manifest.execution_id
                if (rule.event, identity) in told or not rule.meets(result):
                    continue
                event = {"event": "rule", "rule": rule.event, "execution_id": identity, "data": rule.data(result)}
                with self._signals.held():
                    self._note(event)
                self._tell("rule", reason=event_text(event))

    def _refuse_short_job(self) -> None:
        """Raise `BadInput` where another job like this one could not do better."""
        assert self._site is not None
        site, ends_at = self._site, self._site.ends_at
        wanted = site.place(self._largest, estimated_runtime_s=self.campaign.app.contract.estimated_runtime_s)[1]
        needs_s, margin_s = wanted.get("walltime_s", 0.0), site.profile.margin_s
        if ends_at is None or self._results_before < len(self._state.results):
            return
        had_s = ends_at - self._opened_at
        if needs_s + margin_s > had_s:
            raise BadInput(
                f"No run fits into this job, of which {had_s:.0f} s were left at the beginning: a run wants "
                f"{needs_s:g} s (walltime_s) and the site keeps {margin_s:g} s at the end (margin_s). Ask for a "
                "longer job, or give the runs less time.",
                value=needs_s,
            )

    def _start(self, manifests: Sequence[Manifest]) -> None:
        assert self._runner is not None
        try:
            self._runner.start(manifests)
        except SiteFailed as error:
            self._mend(self._runner, error)

    def _mend(self, runner: Runner, error: SiteFailed) -> None:
        """Open the site again where that is all it takes: the process between us and the workers has died."""
        mendable = error.details.get("mendable") and self._site is not self._wanted_site
        if not mendable or self._mended >= MOST_MENDED:
            raise error
        self._mended += 1
        self._tell("site", reason=f"{str(error).partition('. Its log')[0]}; the site is opened again")
        assert self._site is not None
        self._site.close()
        self._site = self._open_site()
        runner.move(self._site)

    # -- consolidating ------------------------------------------------------------------------

    def _consolidate(self, batch: int) -> Batch:
        with self._signals.held():
            results = tuple(self._state.batch(batch))
            event: dict[str, Any] = {"event": "batch", "batch": batch, "runs": len(results)}
            if self.campaign.reference is not None:
                event["scale"] = _scale(compare(self.campaign, self._state.in_order()), batch)
            self._note(event, sync=True)
        finished = self._batch(batch, results)
        self._tell("batch", results=results)
        return finished

    def _rolled(self) -> Batch:
        """The next group of results, in the order in which they came."""
        assert self._planner is not None
        size = self._planner.size
        number, self._watched_batches = self._watched_batches, self._watched_batches + 1
        with self._signals.held():
            arrived = self._state.arrived[number * size : (number + 1) * size]
            results = tuple(self._state.results[i] for i in arrived)
            self._note({"event": "batch", "batch": number, "runs": len(results)}, sync=True)
            self._metrics.update(self._state.in_order)
        finished = self._batch(number, results)
        self._tell("batch", results=results)
        return finished

    def _finish(self, reason: str) -> None:
        unrun = "" if self._planner is None else self._planner.left_in_queue()
        reason = f"{reason.rstrip('.')}. {unrun}" if unrun else reason
        with self._signals.held():
            self._reason = reason
            if self._state.stopped != reason or not self._state.over(attended=True):
                known = self._state.results
                left = [m.execution_id for m in self._state.manifests if m.execution_id not in known]
                self._note(
                    {"event": "stop", "reason": reason} | ({"not_started": left} if left else {}), sync=True
                )
            self._metrics.update(self._state.in_order, final=True)
        self._tell("stopped", reason=self._state.why_stopped(reason))

    def _batch(self, number: int, results: tuple[Result, ...]) -> Batch:
        so_far = len(self._state.arrived)

        def answer_then() -> CampaignResult:
            then = sorted(self._state.in_arrival()[:so_far], key=lambda r: r.manifest.index)
            return answer(self.campaign, then, run_dir=self.folder.root, warm=self._state.warm)

        return Batch(number, results, self.campaign, answer_then)

    def result(self) -> CampaignResult:
        """The campaign's answer as it stands."""
        return answer(
            self.campaign,
            self._state.in_order(),
            run_dir=self.folder.root,
            reason=self._reason,
            attended=self._runner is not None,
            wall_s=self._planner.elapsed_s() if self._planner else self._state.elapsed_s,
            state=self._state,
        )

    def _note(self, event: Mapping[str, Any], *, sync: bool = False) -> None:
        assert self._journal is not None
        event = {"at": time.time(), **event}
        self._journal.append([event])
        self._state.apply(event)
        if sync:
            self._journal.sync()

    def _tell_news(self) -> None:
        if self._runner is not None:
            for text in self._runner.news():
                self._tell("site", reason=text)
        if self._site is not None:
            for text in self._site.news():
                self._tell("site", reason=text)

    def _tell(self, kind: str, *, results: tuple[Result, ...] = (), reason: str = "") -> None:
        running = len(self._runner.running) if self._runner is not None else 0
        self._watch(
            Event(
                kind,
                results=results,
                reason=reason,
                running=running,
                runs=self._state.ended - self._state.elsewhere,
                budget=self._planned.count(self._state.manifests),
                outlook=None if self._spending is None else self._spending.outlook(),
            )
        )


def _ends_campaign(result: Result) -> bool:
    return result.failure is not None and result.failure.means.ends


def _different(written: App, given: App) -> list[str]:
    """Which settings of an app differ, in words."""
    if written.source != given.source or written.contract.version != given.contract.version:
        return []
    keys = {k: None for k in (*written.settings, *given.settings) if k not in ("paths", "files")}
    return [f"its setting {k!r}" for k in keys if written.settings.get(k) != given.settings.get(k)]


def _scale(comparison: Comparison | None, batch: int) -> float | None:
    return None if comparison is None else comparison.of(batch)


__getattr__ = moved(__name__, {"run": "hpcagent.campaign.run"})
