"""The one gate to the site: checks, submits, retries and records runs."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.chain import ChainRun, inner_manifest
from hpcagent.apps.finished import with_reuse_said
from hpcagent.apps.made_with import changed_files
from hpcagent.apps.parts import Part
from hpcagent.apps.run_records import OnRecord, RunRecords, close_record_file, open_records
from hpcagent.apps.worker import execute, execute_each
from hpcagent.campaign.attempts import Attempts
from hpcagent.campaign.chain_runs import ChainCall, Inner, InnerRuns, interrupted, part_events, refused
from hpcagent.campaign.ensemble_table import Ensemble
from hpcagent.campaign.ensembles import Ensembles
from hpcagent.campaign.orders import Orders
from hpcagent.campaign.recorded import found_result
from hpcagent.campaign.returned import Returned, answers_of
from hpcagent.campaign.spread import Lot, Spread
from hpcagent.campaign.state import State, result_event
from hpcagent.campaign.suspects import Suspects
from hpcagent.errors import AppFailed, BadInput, SiteFailed
from hpcagent.model.records import Cost, Failure, Manifest, Result
from hpcagent.sites.several import Sites
from hpcagent.sites.site import Site
from hpcagent.store.journal import Journal
from hpcagent.store.rundir import RunDir

__all__ = ["Runner"]

# Runs that go to a worker together take this long, in seconds.
PACK_S = 0.01

# So many chains have their functions running at a time; each is a thread that mostly waits.
MOST_CHAINS = 256

Pack = tuple[Sequence[Manifest], Future[Any]]


def _near(inputs: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The endpoint that inputs of a run lie on; what lies here can be sent anywhere."""
    return frozenset(str(one["remote"]["site"]) for one in inputs if one.get("remote"))


@dataclass(slots=True)
class _Taken:
    """Answers that have come: those to be recorded with their events, those to be sent again, parts of chains."""

    results: list[Result] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    again: list[tuple[Result, bool]] = field(default_factory=list)
    parts: list[tuple[Result, bool]] = field(default_factory=list)

    def add(self, result: Result, event: dict[str, Any]) -> None:
        """Record a result."""
        self.results.append(result)
        self.events.append(event)


class Runner:
    """Runs manifests on a site; every result is in the journal before anyone else sees it.

    Args:
        app: What runs.
        site: Where it runs.
        state: What is known; extended by every result.
        journal: Where it is recorded.
        folder: The run directory.
        required: Metrics that a run must yield beyond what its contract promises.
        retries: How often a run is started again after an infrastructure failure.
        clock: Unix time, in seconds.
        cache: Folder in which the inner runs of chains lie, if campaigns share them.
        by_reference: Whether speeds on several sites are compared by the reference runs of each.
        ensemble: How large the launches are that runs share, where the app's mode is `ensemble`.
        rolling: Whether runs are added one by one.
    """

    def __init__(
        self,
        app: App,
        site: Site,
        state: State,
        journal: Journal,
        folder: RunDir,
        *,
        required: Iterable[str] = (),
        retries: int = 2,
        clock: Callable[[], float] = time.time,
        cache: Path | None = None,
        by_reference: bool = False,
        ensemble: Ensemble | None = None,
        rolling: bool = False,
    ) -> None:
        self._app = app
        self._site = site
        self._state = state
        self._journal = journal
        self._work = folder.work.absolute()
        self._promises = app.promises(required)
        self.orders = Orders(app, state, folder, promises=self._promises, write=self._write)
        open_records(self.orders.records)
        self.attempts = Attempts(state, retries)
        self._clock = clock
        self._finished: queue.SimpleQueue[Pack | ChainCall | None] = queue.SimpleQueue()
        self._about_site = site.about
        self._held: deque[Pack | ChainCall | None] = deque()  # several threads may wait
        self._inner = InnerRuns(state, self._work, cache)
        self._asked: list[ChainCall] = []
        self._chains: dict[str, threading.Thread] = {}
        self._chains_due: deque[Manifest] = deque()
        self._stopping = False
        self._suspects = Suspects()
        self._turn = site.turns.join()
        self._spread: Spread | None = None
        if isinstance(site, Sites):
            known = [*state.results.values(), *state.part_results.values()]
            self._spread = Spread(
                site, self._turn, known, state.recent, by_reference=by_reference, lost=self._note_lost
            )
        self._chain_turns: dict[int, float] = {}
        self.running: dict[str, Manifest] = {}
        self.given_up: set[str] = set()
        self.may_retry: Callable[[Manifest, float], bool] = lambda manifest, node_hours: True
        self._ignored: set[str] = set()
        self._root = folder.root
        self._launches, self._rolling = ensemble, rolling
        self._news: list[str] = []
        self._ensembles = self._made_ensembles()
        self._returned = Returned(
            state,
            place_of=lambda identity: self._inner.place if identity in self._inner else self._work,
            site_of=self._site_of,
            note_of=lambda manifest: self.orders.note_of(self._app_of(manifest.execution_id), manifest),
            clock=clock,
        )

    def _write(self, event: dict[str, Any]) -> None:
        """Put an event into the journal, and what it says into the state."""
        stamped = {"event": event["event"], "at": self._clock(), **event}
        self._journal.append([stamped])
        self._state.apply(stamped)

    def _made_ensembles(self) -> Ensembles | None:
        if not self._app.shares_launches:
            return None
        finished = self._finished
        return Ensembles(
            self._app,
            self._site,
            self._turn,
            self._root,
            table=self._launches,
            order=lambda manifest: self.orders.of(manifest, self._about_site),
            ended=lambda manifest, answer: finished.put(((manifest,), answer)),
            wake=lambda: finished.put(None),
            tell=lambda said: self._news.append(said),
            wants_s=self.attempts.wants_s,
            whole=self._rolling,
        )

    def recover(self) -> list[Result]:
        """Take over results that a worker wrote but no coordinator recorded."""
        left = {manifest.execution_id: manifest for manifest in self._state.open_ended()}
        self.orders.sent_before(left)
        records = RunRecords(self._work).of(left.__contains__) if left else {}
        results = (self._found(self._work, manifest, records.get(name)) for name, manifest in left.items())
        found = [result for result in results if result is not None]
        self._record(found, [result_event(r) for r in found])
        return found

    def _found(self, work: Path, manifest: Manifest, on_record: OnRecord | None = None) -> Result | None:
        """The final result of a run; a file that cannot be used is renamed, and the run is run again."""
        result, wrong = found_result(work, manifest, on_record)
        if wrong:
            self._news.append(wrong)
        if wrong and result is None:
            path = work / manifest.execution_id / "result.json"
            with contextlib.suppress(OSError):
                path.rename(path.with_name("result.json.damaged"))
        return result

    def start(self, manifests: Sequence[Manifest]) -> None:
        """Submit runs; their manifests must be in the journal already."""
        self.running.update((m.execution_id, m) for m in manifests)  # all of them, should the site fail here
        if self._app.chain:
            self._chains_due.extend(manifests)
            self._start_chains()
            return
        if any(m.priority for m in manifests):
            manifests = sorted(manifests, key=lambda m: m.priority)
        if self._ensembles is not None:
            self._ensembles.add(manifests)
            self._ensembles.go()
            return
        size = self._pack_size()
        for first in range(0, len(manifests), size):
            self._submit(manifests[first : first + size])
        if self._spread is not None:
            self._spread.go()

    def unbooked(self, taken: Mapping[str, float]) -> float:
        """Node-hours of launches that neither a run nor the journal has; see `Ensembles.unbooked`."""
        return 0.0 if self._ensembles is None else self._ensembles.unbooked(taken)

    def settle(self) -> None:
        """Let launches that have no run left come to their end, and book what they took beside their runs."""
        self._book_launches(settled=True)

    def _book_launches(self, *, settled: bool = False) -> None:
        for event in () if self._ensembles is None else self._ensembles.book(settled=settled):
            self._write(event)

    def share(self, workers: int) -> int:
        """Return how many of so many workers are for these runs, where campaigns share the site."""
        return self._turn.share(workers)

    def stop(self) -> None:
        """Release the chains that are running: the campaign is interrupted or over."""
        self._stopping = True
        self._turn.leave()
        close_record_file(self.orders.records)  # on a site of threads the runs were in this process
        if self._ensembles is not None:
            self.settle()
            self._ensembles.stop()
        self._inner.let_go()
        for asked in self._drop_asked():
            asked.part.set_exception(interrupted())
        deadline = time.monotonic() + 5.0
        for thread in list(self._chains.values()):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _drop_asked(self) -> list[ChainCall]:
        dropped, self._asked = self._asked, []
        return dropped

    # -- chains -------------------------------------------------------------------------------

    def _start_chains(self) -> None:
        most = max(32, min(MOST_CHAINS, 2 * self._site.workers))
        while self._chains_due and len(self._chains) < most:
            manifest = self._chains_due.popleft()
            self._start_chain(self._app, manifest, (), work=self._work, promises=self._promises)

    def _start_chain(
        self,
        app: App,
        manifest: Manifest,
        inputs: tuple[Any, ...],
        *,
        work: Path,
        promises: Any,
        shared: bool = False,
    ) -> None:
        """Run the chain's function in a thread; it ends like a run on a worker, with an answer in the queue."""
        chain = ChainRun(app, inputs, partial(self._ask, manifest, app))
        if manifest.index not in self._chain_turns:
            self._chain_turns[manifest.index] = self._turn.next(self._state.recent.expected_s(manifest), runs=0)
        order = self.orders.of_part(app, manifest, self._about_site, work=work, promises=promises)
        order |= {"function": chain.function, "account": chain.account, "shared": shared}
        answer: Future[Any] = Future()
        answer.add_done_callback(lambda done: self._finished.put(((manifest,), done)))

        def run() -> None:
            try:
                answer.set_result(execute(order))
            except BaseException as error:  # the runner makes a failed result of it
                answer.set_exception(error)

        thread = threading.Thread(target=run, name=f"chain {manifest.index}", daemon=True)
        self._chains[manifest.execution_id] = thread
        try:
            thread.start()
        except RuntimeError as error:  # a login node's limit of processes and threads is reached
            del self._chains[manifest.execution_id]
            answer.set_exception(SiteFailed(f"The chain's thread on this machine could not be started: {error}."))

    def _ask(
        self,
        chain: Manifest,
        of: App,
        app: App,
        inputs: tuple[Any, ...],
        params: Any,
        seed: int | None,
        replicate: int | None,
    ) -> Part:
        """Called in a chain's thread; the run itself is started by `collect`."""
        if self._stopping:
            raise interrupted()
        with self.orders.keeping():
            manifest = inner_manifest(chain, of, app, inputs, params, seed, replicate, self._about_site)
            if app.made_of and manifest.execution_id not in self._state.parts:
                # Asked for before modules counted: the same run, under the id that it has in the journal.
                bare = app.without_modules()
                before = inner_manifest(chain, of, bare, inputs, params, seed, replicate, self._about_site)
                if before.execution_id in self._state.parts:
                    app, manifest = bare, before
        part = Part(app.name, manifest.execution_id)
        self._finished.put(ChainCall(part, app, manifest, inputs, chain.execution_id))
        return part

    def _admit(self) -> None:
        """Write down what chains have asked for, and send what is ready."""
        records, ready = self._inner.admit(self._drop_asked())
        if records:
            self._write({"event": "parts", "parts": records})
        self._send(ready)

    def _send(self, ready: Sequence[Inner]) -> None:
        """Start inner runs; what is known already, or cannot run, ends at once and may make others ready."""
        waiting = deque(ready)
        while waiting:
            inner = waiting.popleft()
            if inner.sent or inner.result is not None:
                continue
            known = self._known(inner)
            if known is None:
                try:
                    self._send_one(inner)
                    continue
                except (AppFailed, BadInput) as error:
                    known = refused(inner.manifest, error, self._inner.place / inner.manifest.execution_id), False
            waiting.extend(self._parts_ended([known]))

    def _known(self, inner: Inner) -> tuple[Result, bool] | None:
        """A finished result in the run's directory, and whether somebody else has paid for it."""
        self._inner.link(inner)
        result = self._found(self._inner.place, inner.manifest)
        if result is None or changed_files(result.files):
            return None
        self.orders.look_at(inner, self._about_site)
        said = with_reuse_said({"notes": result.notes, "versions": result.versions})
        return result.model_copy(update={"notes": tuple(said["notes"])}), self._inner.cached

    def _send_one(self, inner: Inner, *, again: bool = False) -> None:
        manifest, app = inner.manifest, inner.app
        inputs = self._inner.inputs_of(inner)
        if app.chain:
            inner.sent = True
            self._start_chain(
                app,
                manifest,
                inner.inputs,
                work=self._inner.place,
                promises=app.promises(),
                shared=self._inner.cached,
            )
            return
        app.contract.space.validated(manifest.params, where=f"app {app.name}")

        def inner_order(about: Mapping[str, Any]) -> dict[str, Any]:
            made = self.orders.of_part(app, manifest, about, work=self._inner.place)
            return made | {"shared": self._inner.cached}

        if self._spread is None:
            order = inner_order(self._about_site)
            label, needs = self._place(manifest, self._site)
        # Those of earlier chains first, so that chains end one after the other and not all at the last moment.
        turn, priority = self._turn, self._turn.again()
        if not again:
            priority = self._chain_turns.get(manifest.index, priority)

        def back(done: Future[Any]) -> None:
            turn.back(priority)
            self._finished.put(((manifest,), done))

        if self._spread is None:
            future = self._site.submit(execute, order, *inputs, executor=label, needs=needs, priority=priority)
            inner.sent = True
            future.add_done_callback(back)
            return

        def send(site: Site, about: Mapping[str, Any]) -> Future[Any]:
            made, (where, wants) = inner_order(about), self._place(manifest, site)
            sent = site.submit(execute, made, *inputs, executor=where, needs=wants, priority=priority)
            sent.add_done_callback(back)
            return sent

        inner.sent = True
        self._spread.add(self._lot((manifest,), priority, send, near=_near(inputs), refuse=back))

    def _lot(
        self,
        manifests: Sequence[Manifest],
        priority: float,
        send: Callable[[Site, Mapping[str, Any]], Future[Any]],
        *,
        near: frozenset[str] = frozenset(),
        refuse: Callable[[Future[Any]], None] | None = None,
    ) -> Lot:
        """Runs that wait for one of several sites."""

        def refused_with(error: Exception) -> None:
            if not isinstance(error, AppFailed | BadInput) or refuse is None:
                raise error
            failed: Future[Any] = Future()
            failed.set_exception(error)
            refuse(failed)

        wants_s = max((self.attempts.wants_s.get(m.execution_id, 0.0) for m in manifests), default=0.0)
        return Lot(manifests, priority, send, wants_s, refused_with if refuse else None, near=near)

    def _note_lost(self, site: str, why: str) -> None:
        self._write({"event": "site_lost", "site": site, "reason": why})

    def _parts_ended(self, ended: Sequence[tuple[Result, bool]]) -> list[Inner]:
        """Record results of inner runs, and whether others paid for them; return those that can start now."""
        if not ended:
            return []
        found = frozenset(r.manifest.execution_id for r, shared in ended if shared)
        self._journal.append([part_events([r for r, _ in ended], found) | {"at": self._clock()}])
        ready: list[Inner] = []
        for result, shared in ended:
            self._state.add_part_result(result, shared=shared)
            ready += self._inner.ended(result, shared=shared)
        return ready

    # -- runs ---------------------------------------------------------------------------------

    def _pack_size(self) -> int:
        """How many runs go to a worker at once: several where a run is shorter than the way there.

        A pack takes PACK_S by the mean of the last runs, and what is in flight makes at least four for every
        worker, so that none waits long.
        """
        mean_s = self._state.recent.mean_s
        if mean_s is None or not self._state.recent.enough or self._app.contract.resources_from:
            return 1
        return max(1, min(int(PACK_S / max(mean_s, 1e-4)), len(self.running) // (4 * self._site.workers)))

    def _submit(self, manifests: Sequence[Manifest], *, again: bool = False) -> None:
        first, runs, turn = manifests[0], len(manifests), self._turn
        if self._spread is None:
            orders = [self.orders.of(manifest, self._about_site) for manifest in manifests]
            label, needs = self._place(first, self._site)
        if again:
            priority = turn.again(runs)
        else:
            takes_s = runs * self._state.recent.expected_s(first)
            priority = turn.next(takes_s, runs=runs, ahead=first.priority < 0)

        def back(done: Future[Any]) -> None:
            turn.back(priority, runs=runs)
            self._finished.put((manifests, done))

        if self._spread is None:
            work, what = (execute, orders[0]) if runs == 1 else (execute_each, orders)
            future = self._site.submit(work, what, executor=label, needs=needs, priority=priority)
            future.add_done_callback(back)
            return

        def send(site: Site, about: Mapping[str, Any]) -> Future[Any]:
            made, (where, wants) = [self.orders.of(m, about) for m in manifests], self._place(first, site)
            work, what = (execute, made[0]) if runs == 1 else (execute_each, made)
            sent = site.submit(work, what, executor=where, needs=wants, priority=priority)
            sent.add_done_callback(back)
            return sent

        self._spread.add(self._lot(manifests, priority, send))

    def _place(self, manifest: Manifest, site: Site) -> tuple[str, dict[str, Any]]:
        label, needs = site.place(manifest.resources, estimated_runtime_s=manifest.estimated_runtime_s)
        wants_s = self.attempts.wants_s.get(manifest.execution_id, 0.0)
        return label, {**needs, "walltime_s": max(wants_s, needs.get("walltime_s", 0.0))} if wants_s else needs

    def news(self) -> list[str]:
        """What was noticed of the files of runs since the last call, in sentences."""
        news = [*self._news, *self.orders.news]
        self._news.clear()
        self.orders.news.clear()
        return news

    def peek(self, timeout_s: float) -> bool:
        """Wait until a run has ended, at most `timeout_s`; takes nothing in, so it may be interrupted."""
        if not self._held:
            with contextlib.suppress(queue.Empty):
                found = self._finished.get(timeout=timeout_s)
                self._held.append(found)
        return bool(self._held)

    def wake(self) -> None:
        """End a `peek` that is waiting; may be called from any thread."""
        self._finished.put(None)

    def collect(self) -> list[Result]:
        """Record and return every run that has ended; those worth it are started again instead."""
        return self._take()

    def drain(self) -> list[Result]:
        """Record the runs that have ended, without waiting and without retrying any."""
        return self._take(retry=False)

    def _take(self, *, retry: bool = True) -> list[Result]:
        ended = self._arrived()
        if retry and self._asked:
            self._admit()
        answers = ((m, a) for pack in ended for m, a in answers_of(*pack))
        read = [self._returned.result(m, a) for m, a in answers if m.execution_id not in self._ignored]
        starved = {r.manifest.execution_id for r, _ in read if r.failure and r.failure.means.charged == "culprit"}
        culprit = self._suspects.culprit(starved) if starved else None
        taken = _Taken()
        for result, event in read:
            identity = result.manifest.execution_id
            self.running.pop(identity, None)
            self._chains.pop(identity, None)
            charged = identity == culprit if identity in starved else None
            self._sort(taken, result, event, charged=charged, retry=retry)
        self._record(taken.results, taken.events)
        self._book_launches()
        again = self._allowed(taken.again, taken.results, taken.parts)
        if again:  # what their workers may have written before they were lost, once for all of them
            self.orders.look_for_ended()
        ready = self._parts_ended(taken.parts)
        # Before the first of them is sent, which may fail with the site: see `move`.
        self.running.update((r.manifest.execution_id, r.manifest) for r, _ in again if not self._is_inner(r))
        for result, counts in again:
            self._retry(result, counts, suspect=result.manifest.execution_id in starved)
        if retry:
            self._go_on(ready)
        return taken.results

    def _sort(
        self, taken: _Taken, result: Result, event: dict[str, Any], *, charged: bool | None, retry: bool
    ) -> None:
        """Put the answer of one run where it belongs: to be recorded, to be sent again, or part of a chain.

        Args:
            taken: Where it is put.
            result: What came.
            event: What the journal is told of it.
            charged: Whether the attempt counts against the run, where only a look at several runs has told it.
            retry: Whether runs are sent again.
        """
        identity, inner = result.manifest.execution_id, self._is_inner(result)
        found = event.pop("found", False)
        means = None if result.failure is None else result.failure.means
        elsewhere = self._spread is not None and self._spread.took(result)
        app = self._app_of(identity)
        whole_s = self._site.longest_s(result.manifest.resources) if means is not None and means.cut else None
        if whole_s is not None and not self.attempts.more_time(result, app, whole_s):
            result = self.attempts.had_all(result, whole_s)
            self._suspects.done(identity)
            if inner:
                taken.parts.append((result, False))
                return
            self.given_up.add(identity)
            taken.add(result, result_event(result))
            return
        if charged is None:
            charged = not elsewhere and (means is None or means.charged != "no")
        if self.attempts.another(result, app, charged=charged):
            if retry:
                taken.again.append((result, charged))
            return
        self._suspects.done(identity)
        if inner:
            if retry or result.final:
                taken.parts.append((result, found))
            return
        if not result.final:
            self.given_up.add(identity)
        taken.add(result, event)

    def _go_on(self, ready: Sequence[Inner]) -> None:
        """Send what has waited for the answers: suspects, chains and their runs, what sites and launches take."""
        for execution_id in [*self._suspects.release(), *self.attempts.due()]:
            self._submit_again(execution_id)
        self._send(ready)
        self._start_chains()
        if self._spread is not None:
            self._spread.go()
        if self._ensembles is not None:
            self._ensembles.go()

    def _arrived(self) -> list[Pack]:
        """What is in the queue: the answers of runs; calls of chains are set aside for `_admit`."""
        taken: list[Pack | ChainCall | None] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._held.popleft())
        while True:
            try:
                taken.append(self._finished.get_nowait())
            except queue.Empty:
                break
        self._asked += [one for one in taken if isinstance(one, ChainCall)]
        packs = [one for one in taken if one is not None and not isinstance(one, ChainCall)]
        return packs if self._spread is None else [pack for pack in packs if self._spread.back(pack[1])]

    def _is_inner(self, result: Result) -> bool:
        return result.manifest.execution_id in self._inner

    def _submit_again(self, execution_id: str) -> None:
        """Send a run once more, before those that have not had their turn."""
        if execution_id in self._inner:
            self._send_one(self._inner[execution_id], again=True)
        elif self._ensembles is not None:
            self._ensembles.add([self.running[execution_id]], again=True)
        else:
            self._submit([self.running[execution_id]], again=True)

    def _site_of(self, execution_id: str) -> str:
        if self._spread is not None:
            return self._spread.site_of(execution_id)
        return str(self._about_site.get("name", ""))

    def _app_of(self, execution_id: str) -> App:
        return self._inner[execution_id].app if execution_id in self._inner else self._app

    def move(self, site: Site) -> None:
        """Go on on another site, after the one before has failed and was closed: its runs are sent again."""
        before = dict(self.running)
        self._take(retry=False)
        self._finished = queue.SimpleQueue()
        self._suspects = Suspects()
        self.attempts.paused.clear()  # sent again with all others
        self._site = site
        self._turn.leave()
        self._turn = site.turns.join()
        self._about_site = site.about
        if self._ensembles is not None:
            self.settle()
            self._ensembles.stop()
        self._ensembles = self._made_ensembles()
        left = [m for i, m in before.items() if i not in self._state.results or not self._state.final(i)]
        self.running.clear()
        # Chains go on where they are; their inner runs are sent again.
        due = {m.execution_id for m in self._chains_due}
        going = [m for m in left if m.execution_id in self._chains or m.execution_id in due]
        self.running.update((m.execution_id, m) for m in going)
        self.orders.look_for_ended()
        self.start([m for m in left if m.execution_id not in self.given_up and m not in going])
        for inner in self._inner.unfinished():
            inner.sent = inner.app.chain and inner.manifest.execution_id in self._chains
        self._send(self._inner.ready())

    def _allowed(
        self, again: list[tuple[Result, bool]], results: list[Result], parts: list[tuple[Result, bool]]
    ) -> list[tuple[Result, bool]]:
        """Those that the budget allows a further attempt; the others have ended with the attempt that failed."""
        allowed = []
        for result, charged in again:
            identity = result.manifest.execution_id
            if self.may_retry(result.manifest, result.cost.node_hours):
                if not self._is_inner(result):
                    self.running[identity] = result.manifest  # in flight again, for the next one that asks
                allowed.append((result, charged))
                continue
            assert result.failure is not None
            words = f"{result.failure.message} It is not started again: the cap of node-hours leaves no room."
            failure = result.failure.model_copy(update={"message": words})
            ended = result.model_copy(update={"failure": failure})
            self._suspects.done(identity)
            if self._is_inner(result):
                parts.append((ended, False))
                continue
            self.given_up.add(identity)
            results.append(ended)
            self._record([ended], [result_event(ended)])
        return allowed

    def cut(self, costs: Mapping[str, Cost], why: str) -> list[Result]:
        """Record the runs in flight as ended by the budget; whatever they still answer comes too late.

        Args:
            costs: What each has taken.
            why: A sentence.
        """
        now = self._clock()
        ended = []
        for identity, manifest in self.running.items():
            cost = costs.get(identity, Cost())
            ended.append(
                Result(
                    manifest=manifest,
                    status="STOPPED",
                    failure=Failure(kind="cancelled", name="CapReached", message=why),
                    started_at=now - cost.wall_s,
                    ended_at=now,
                    site=self._site_of(identity),
                    workdir=str(self._work / identity),
                    attempt=self._state.retried.get(identity, 1),
                    cost=cost,
                )
            )
        self._ignored.update(self.running)
        self.given_up.update(self.running)
        if self._ensembles is not None:
            self._ensembles.drop(costs)
        self._site.cancel([*self.running, *(i.manifest.execution_id for i in self._inner.unfinished())])
        self.running.clear()
        self.attempts.paused.clear()
        self._chains_due.clear()
        self._record(ended, [result_event(r) for r in ended])
        return ended

    def _retry(self, result: Result, charged: bool, *, suspect: bool) -> None:
        manifest = result.manifest
        event = {
            "event": "retry",
            "execution_id": manifest.execution_id,
            "attempt": result.attempt + 1,
            "failure": None if result.failure is None else result.failure.model_dump(mode="json"),
            "charged": charged,
            "node_hours": result.cost.node_hours,
        }
        self._write(event)
        if suspect:
            self._suspects.add(manifest.execution_id)
        elif result.failure is not None and result.failure.means.waits:
            self._news += filter(None, [self.attempts.pause(result)])
        else:
            self._submit_again(manifest.execution_id)

    def _record(self, results: list[Result], events: list[dict[str, Any]]) -> None:
        if not results:
            return
        self._journal.append([{"event": "results", "at": self._clock(), "results": events}])
        for result in results:
            self._state.add_result(result)
        if self.orders.guard is not None:
            self.orders.guard.recorded()
