"""The one gate to the site: checks, submits, retries and records runs."""

from __future__ import annotations

import contextlib
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.finished import with_reuse_said
from hpcagent.apps.made_with import changed_files
from hpcagent.apps.run_records import OnRecord, RunRecords, close_record_file, open_records
from hpcagent.campaign.attempts import Attempts
from hpcagent.campaign.chain_runs import ChainCall, Inner, InnerRuns, interrupted, part_events, refused
from hpcagent.campaign.chain_threads import ChainThreads
from hpcagent.campaign.ensemble_table import Ensemble
from hpcagent.campaign.ensembles import Ensembles
from hpcagent.campaign.orders import Orders
from hpcagent.campaign.recorded import found_result
from hpcagent.campaign.returned import Returned, answers_of
from hpcagent.campaign.sending import Pack, Sender
from hpcagent.campaign.state import State, result_event
from hpcagent.campaign.suspects import Suspects
from hpcagent.errors import AppFailed, BadInput
from hpcagent.model.records import Cost, Failure, Manifest, Result
from hpcagent.sites.site import Site
from hpcagent.store.journal import Journal
from hpcagent.store.rundir import RunDir

__all__ = ["Runner"]

# Runs that go to a worker together take this long, in seconds.
PACK_S = 0.01


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
        self._state = state
        self._journal = journal
        self._work = folder.work.absolute()
        self._promises = app.promises(required)
        self.orders = Orders(app, state, folder, promises=self._promises, write=self._write)
        open_records(self.orders.records)
        self.attempts = Attempts(state, retries)
        self._clock = clock
        self._finished: queue.SimpleQueue[Pack | ChainCall | None] = queue.SimpleQueue()
        self._held: deque[Pack | ChainCall | None] = deque()  # several threads may wait
        self._inner = InnerRuns(state, self._work, cache)
        self._asked: list[ChainCall] = []
        self._suspects = Suspects()
        self._sender = Sender(
            site, state, self.attempts, answered=self._answered, lost=self._note_lost, by_reference=by_reference
        )
        self._chains = ChainThreads(
            state, self.orders, self._sender, answered=self._answered, asked=self._answered
        )
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
            site_of=self._sender.site_of,
            note_of=lambda manifest: self.orders.note_of(self._app_of(manifest.execution_id), manifest),
            clock=clock,
        )

    def _answered(self, came: Pack | ChainCall) -> None:
        """Called in any thread: runs have ended, or a chain asks for one."""
        self._finished.put(came)

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
            self._sender.site,
            self._sender.turn,
            self._root,
            table=self._launches,
            order=lambda manifest: self.orders.of(manifest, self._sender.about),
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
            self._chains.add(manifests)
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
        self._sender.go()

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
        return self._sender.turn.share(workers)

    def stop(self) -> None:
        """Release the chains that are running: the campaign is interrupted or over."""
        self._chains.stop()
        self._sender.turn.leave()
        close_record_file(self.orders.records)  # on a site of threads the runs were in this process
        if self._ensembles is not None:
            self.settle()
            self._ensembles.stop()
        self._inner.let_go()
        for asked in self._drop_asked():
            asked.part.set_exception(interrupted())
        self._chains.join(5.0)

    # -- chains -------------------------------------------------------------------------------

    def _start_chains(self) -> None:
        self._chains.go(self._app, work=self._work, promises=self._promises)

    def _drop_asked(self) -> list[ChainCall]:
        dropped, self._asked = self._asked, []
        return dropped

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
        self.orders.look_at(inner, self._sender.about)
        said = with_reuse_said({"notes": result.notes, "versions": result.versions})
        return result.model_copy(update={"notes": tuple(said["notes"])}), self._inner.cached

    def _send_one(self, inner: Inner, *, again: bool = False) -> None:
        manifest, app = inner.manifest, inner.app
        inputs = self._inner.inputs_of(inner)
        if app.chain:
            inner.sent = True
            self._chains.start(
                app,
                manifest,
                inner.inputs,
                work=self._inner.place,
                promises=app.promises(),
                shared=self._inner.cached,
            )
            return
        app.contract.space.validated(manifest.params, where=f"app {app.name}")

        def orders(about: Mapping[str, Any]) -> list[dict[str, Any]]:
            made = self.orders.of_part(app, manifest, about, work=self._inner.place)
            return [made | {"shared": self._inner.cached}]

        def turn() -> float:
            """That of its chain, so that chains end one after the other and not all at the last moment."""
            behind, of_chain = self._sender.turn.again(), self._chains.turn_of(manifest)
            return behind if again or of_chain is None else of_chain

        self._sender.send((manifest,), orders, turn, inputs=inputs, refusable=True)
        inner.sent = True

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
        return max(1, min(int(PACK_S / max(mean_s, 1e-4)), len(self.running) // (4 * self._sender.site.workers)))

    def _submit(self, manifests: Sequence[Manifest], *, again: bool = False) -> None:
        first, runs = manifests[0], len(manifests)

        def turn() -> float:
            if again:
                return self._sender.turn.again(runs)
            takes_s = runs * self._state.recent.expected_s(first)
            return self._sender.turn.next(takes_s, runs=runs, ahead=first.priority < 0)

        self._sender.send(manifests, lambda about: [self.orders.of(m, about) for m in manifests], turn)

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
            self._chains.ended(identity)
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
        elsewhere = self._sender.spread is not None and self._sender.spread.took(result)
        app = self._app_of(identity)
        whole_s = (
            self._sender.site.longest_s(result.manifest.resources) if means is not None and means.cut else None
        )
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
        self._sender.go()
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
        spread = self._sender.spread
        return packs if spread is None else [pack for pack in packs if spread.back(pack[1])]

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

    def _app_of(self, execution_id: str) -> App:
        return self._inner[execution_id].app if execution_id in self._inner else self._app

    def move(self, site: Site) -> None:
        """Go on on another site, after the one before has failed and was closed: its runs are sent again."""
        before = dict(self.running)
        self._take(retry=False)
        self._finished = queue.SimpleQueue()
        self._suspects = Suspects()
        self.attempts.paused.clear()  # sent again with all others
        self._sender.move(site)
        if self._ensembles is not None:
            self.settle()
            self._ensembles.stop()
        self._ensembles = self._made_ensembles()
        left = [m for i, m in before.items() if i not in self._state.results or not self._state.final(i)]
        self.running.clear()
        # Chains go on where they are; their inner runs are sent again.
        chains = self._chains.names
        going = [m for m in left if m.execution_id in chains]
        self.running.update((m.execution_id, m) for m in going)
        self.orders.look_for_ended()
        self.start([m for m in left if m.execution_id not in self.given_up and m not in going])
        for inner in self._inner.unfinished():
            inner.sent = inner.app.chain and self._chains.running(inner.manifest.execution_id)
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
                    site=self._sender.site_of(identity),
                    workdir=str(self._work / identity),
                    attempt=self._state.retried.get(identity, 1),
                    cost=cost,
                )
            )
        self._ignored.update(self.running)
        self.given_up.update(self.running)
        if self._ensembles is not None:
            self._ensembles.drop(costs)
        self._sender.site.cancel([*self.running, *(i.manifest.execution_id for i in self._inner.unfinished())])
        self.running.clear()
        self.attempts.paused.clear()
        self._chains.forget_due()
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
