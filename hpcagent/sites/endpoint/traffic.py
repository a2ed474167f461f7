"""What waits for an endpoint, what is in flight, and what becomes of it. One thread drives it; nothing here waits.

**Lost tasks.** An endpoint takes a task off its queue when it gets it, so the tasks that it holds are lost when it
is killed, and nobody says so. The queue is first in, first out. So after an endpoint was away, after a long
silence and for the tasks of an earlier session, a question is sent down the same way as the runs: whatever has not
begun when it is answered was lost, and is sent again. That is safe where it was only slow: there a run has a lock,
and one that is finished answers at once.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeGuard

from hpcagent.errors import AppFailed, BlockLost, HpcAgentError, SiteFailed
from hpcagent.model.failures import MOST_LOST
from hpcagent.shown import plain
from hpcagent.sites.endpoint import protocol
from hpcagent.sites.endpoint.answers import answers_of, error_of, result_fields
from hpcagent.sites.endpoint.flight import Flight, Paces, Run, fitting
from hpcagent.sites.endpoint.inputs import Inputs
from hpcagent.sites.endpoint.tasks import Book, Task

__all__ = ["Traffic", "Way"]

LEAST_IN_FLIGHT = 64
"""Tasks in flight at least; four for each place there, where these are more. The others wait here, in order."""
FIRST_SILENCE_S, LONGEST_SILENCE_S = 120.0, 900.0
"""After so long without any answer the endpoint is asked what became of the tasks; then after twice as long."""
UNSETTLED_S = 30.0
"""After so long it is asked again for tasks that were going on when an endpoint had come back."""
UNKNOWN_LEAST = 3
"""The service counts as out of reach when it could not be asked so often, one time after the other."""
_MISSING_MOST = 3
_GHOSTS = 2000


class Way(Protocol):
    """How requests get there: `Link`, and what tests have in its place."""

    def submit(self, request: dict[str, Any], *, resources: dict[str, Any] | None, control: bool = False) -> Any:
        """Send a request; what is returned has the `future` of its answer."""


class Traffic:
    """The runs of one executor.

    Args:
        way: To the endpoint.
        book: The ledger of tasks.
        root: The campaign's folder there.
        site: Name of the site.
        endpoint_id: The endpoint.
        at_once: How many runs go at once there.
        offline_wait_s: How long an endpoint that is offline is waited for, in seconds.
        came: Called, in any thread, with the key of a request and the future of its answer, when that is there.
        tell: Called with a sentence for the user.
        look_resources: What a question has to ask for on an MPI engine.
        errand_resources: What an errand has to ask for.
    """

    def __init__(
        self,
        way: Way,
        book: Book,
        *,
        root: str,
        site: str,
        endpoint_id: str,
        at_once: int,
        offline_wait_s: float,
        came: Callable[[str, Future[Any]], None],
        tell: Callable[[str], None],
        look_resources: dict[str, Any] | None = None,
        errand_resources: dict[str, Any] | None = None,
    ) -> None:
        self.way, self.book, self.root = way, book, root
        self.site, self.endpoint_id = site, endpoint_id
        self.at_once, self.offline_wait_s = at_once, offline_wait_s
        self.look_resources, self.errand_resources = look_resources, errand_resources
        self.tell, self._came = tell, came
        self.flights: dict[str, Flight] = {}
        self.refusal: SiteFailed | None = None
        self.online: bool | None = None
        self.paces = Paces()
        self.inputs = Inputs(root, self._errand)
        self._waiting: list[tuple[float, int, Run]] = []
        self._count = itertools.count()
        self._adopted: dict[tuple[str, int], Flight] = {}
        self._ghosts: OrderedDict[str, Flight] = OrderedDict()
        self._markers: dict[str, frozenset[str]] = {}
        self._offline_since: float | None = None
        self._heard_at = 0.0
        self._patience_s = FIRST_SILENCE_S
        self._silence_told = False
        self._ask_again_at: float | None = None
        self._status_words = ""
        self._unknown_since: float | None = None  # since when the service could not be asked
        self._unknown = 0

    # -- what comes in ------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether anything is to be done, or waited for."""
        return bool(self._waiting or self.flights)

    def add(self, run: Run) -> None:
        """A run is to be done; it goes with the next `dispatch`, unless an earlier session has sent it."""
        flight = self._adopted.pop((run.execution_id, run.attempt), None)
        if flight is not None and flight.ended in (None, "finished"):
            flight.runs[run.execution_id] = run
            if run.execution_id in flight.answers:
                self._take(run, flight.answers.pop(run.execution_id))
                return
            if flight.ended is None:
                return
        heapq.heappush(self._waiting, (run.priority, next(self._count), run))

    def adopt(self, tasks: Iterable[Task], now: float) -> None:
        """Take up tasks that an earlier session has sent and that have no end."""
        for task in tasks:
            flight = Flight(dict.fromkeys(task.runs), key=task.key, sent_at=now, adopted=True)
            self.flights[task.key] = flight
            for name, attempt in task.runs.items():
                self._adopted[name, attempt] = flight
        self._heard_at = now

    def adopt_lost(self, tasks: Iterable[Task]) -> None:
        """Know tasks that an earlier session has taken for lost: they are cancelled with the others."""
        for task in tasks:
            flight = Flight(dict.fromkeys(task.runs), key=task.key, adopted=True, ended="lost")
            self._ghosts[task.key] = flight

    def dispatch(self, now: float) -> None:
        """Send what may go: as much as leaves the rest here in its order, several short runs to a task."""
        if self.refusal is not None or self._offline_since is not None:
            return
        ready = []
        share = -(-len(self._waiting) // (2 * self.at_once))
        while self._waiting and len(self.flights) < self.most_in_flight:
            flight = self._next_flight(share)
            self.flights[flight.key] = flight
            if self._bring(flight, _blobs(flight)):
                ready.append(flight)
        self._send(ready, now)

    @property
    def most_in_flight(self) -> int:
        """How many tasks may be in flight."""
        return max(LEAST_IN_FLIGHT, 4 * self.at_once)

    def _next_flight(self, share: int) -> Flight:
        first = heapq.heappop(self._waiting)[2]
        behind = [entry[2] for entry in heapq.nsmallest(min(share, 64) - 1, self._waiting)] if share > 1 else []
        together = fitting(first, behind, expected_s=self.paces.expected_s(first), share=share)
        for _ in together[1:]:
            heapq.heappop(self._waiting)
        return Flight({run.execution_id: run for run in together})

    def _send(self, flights: Sequence[Flight], now: float) -> None:
        if not flights:
            return
        self.book.sending([(flight.key, flight.attempts) for flight in flights if flight.sent_at is None])
        if not any(flight.sent_at is not None for flight in self.flights.values()):
            self._heard_at = now  # silence begins with the first
        for flight in flights:
            flight.sent_at = now
            runs = [run for run in flight.runs.values() if run is not None]
            request = protocol.run(
                self.root,
                [run.order for run in runs],
                upstream=[run.upstream for run in runs],
                key=flight.key,
            )
            try:
                self._go(request, runs[0].resources)
            except Exception as error:
                self._failed(flight, error)

    def _go(self, request: dict[str, Any], resources: dict[str, Any] | None, *, control: bool = False) -> None:
        key = request["key"]
        sent = self.way.submit(request, resources=resources, control=control)
        sent.future.add_done_callback(lambda done: self._came(key, done))

    def _errand(self, request: dict[str, Any]) -> None:
        self._go(request, self.errand_resources, control=True)

    # -- answers ------------------------------------------------------------------------------

    def answered(self, key: str, future: Future[Any], now: float) -> None:
        """An answer is there."""
        self._heard_at, self._patience_s = now, FIRST_SILENCE_S
        self._silence_told = False
        if future.cancelled():
            return  # the link is being closed
        error, answer = future.exception(), None
        if error is None:
            self._unknown_since, self._unknown = None, 0  # it can be reached
            answer = future.result()
            if not isinstance(answer, Mapping) or answer.get("key") != key:
                error = _bad_answer(answer)
        if key in self._markers:
            asked = self._markers.pop(key)
            if _for_good(error):
                self.refuse(error)
            elif error is None and answer is not None and answer.get("error") is None:
                self._settle(asked, answer.get("states"), now)
            return
        if self.inputs.knows(key):
            self._brought(key, answer, error, now)
            return
        flight = self.flights.get(key) or self._ghosts.get(key)
        if flight is None or flight.ended == "finished":
            return
        if error is not None:
            self._failed(flight, error)
        elif answer is not None:
            self._landed(flight, answer, now)

    def _landed(self, flight: Flight, answer: Mapping[str, Any], now: float) -> None:
        missing = answer.get("missing")
        if isinstance(missing, list) and missing and flight.key in self.flights:
            self._bring_again(flight, missing)
            return
        wrong = error_of(answer)
        if wrong is not None:
            self._failed(flight, wrong)
            return
        cancelled = answer.get("cancelled") is True
        try:
            given = answer.get("answers") if cancelled else answers_of(answer, list(flight.runs))
        except AppFailed as error:
            self._failed(flight, error)
            return
        answers = list(given) if isinstance(given, list) else []
        answers += [None] * (len(flight.runs) - len(answers))
        self._end(flight, "cancelled" if cancelled else "finished")
        for (name, run), fields in zip(flight.runs.items(), answers, strict=False):
            if run is None:
                if fields is not None:
                    flight.answers[name] = fields
            elif run.done:
                continue
            elif fields is not None:
                self._take(run, fields)
            elif cancelled and flight.adopted and not flight.cancelling:
                self._once_more(run)  # an earlier session, or `hpcagent reap`, has ended it: this one wants it
            elif cancelled:
                run.fail(_cancelled())
            else:  # the answer had no room for it: it is finished there, and answers at once
                self._once_more(run)

    def _take(self, run: Run, fields: Any) -> None:
        try:
            known = result_fields(
                fields,
                run.manifest,
                attempt=run.attempt,
                workdir=run.workdir,
                site=self.site,
                endpoint_id=self.endpoint_id,
            )
        except AppFailed as error:
            run.fail(error)
            return
        wall_s = (known.get("cost") or {}).get("wall_s", 0.0)
        if wall_s > 0:
            self.paces.heard(run.like, wall_s)
        run.answer(known)

    def _failed(self, flight: Flight, error: BaseException) -> None:
        """A task has no answer. Of an earlier session's nothing is known but that: its runs are sent again."""
        if flight.key not in self.flights:
            return
        if _for_good(error):
            self.refuse(error)  # the link has failed for good: no login, no such endpoint
            return
        if flight.adopted:
            self._lose(flight)
            return
        self._end(flight, "failed")
        known = error if isinstance(error, HpcAgentError) else None
        for run in flight.wanted:
            run.fail(known or _unknown(error))

    def _end(self, flight: Flight, how: str) -> None:
        flight.ended = how
        self.flights.pop(flight.key, None)
        if flight.sent_at is not None:
            self.book.ended(flight.key, how)

    # -- inputs -------------------------------------------------------------------------------

    def _bring(self, flight: Flight, blobs: Mapping[str, Any]) -> bool:
        try:
            return self.inputs.bring(flight.key, blobs)
        except Exception as error:
            self._failed(flight, error)
            return False

    def _bring_again(self, flight: Flight, missing: Sequence[Any]) -> None:
        flight.again += 1
        blobs = _blobs(flight)
        unknown = [sha256 for sha256 in missing if sha256 not in blobs]
        if flight.adopted and not blobs:
            self._lose(flight)
        elif unknown or flight.again > _MISSING_MOST:
            words = f"the endpoint lacks inputs that were sent to it {flight.again - 1} time(s)"
            self._failed(flight, AppFailed(f"{words}.", kind="infrastructure", name="InputsMissing"))
        else:
            self.inputs.forget(missing)
            self._bring(flight, {sha256: blobs[sha256] for sha256 in missing})

    def _brought(self, key: str, answer: Any, error: BaseException | None, now: float) -> None:
        wrong = error or (error_of(answer) if answer is not None else None)
        ready, failed = self.inputs.answered(key, wrong)
        for name, why in failed.items():
            if name in self.flights:
                self._failed(self.flights[name], why)
        self._send([self.flights[name] for name in ready if name in self.flights], now)

    # -- what was lost ------------------------------------------------------------------------

    def mark(self, now: float) -> None:
        """Ask, behind everything that was sent, how the tasks stand."""
        self._ask_again_at = None
        keys = frozenset(flight.key for flight in self.flights.values() if flight.sent_at is not None)
        if not keys:
            self._blockable(self.inputs.again)
            return
        request = protocol.look(self.root, keys=sorted(keys))
        self._markers[request["key"]] = keys
        self._heard_at = now
        self._blockable(self.inputs.again)
        if not self._blockable(lambda: self._go(request, self.look_resources)):
            self._markers.pop(request["key"], None)

    def _blockable(self, send: Callable[[], None]) -> bool:
        """Send; return whether that went. What is blocked for now goes with the next question."""
        try:
            send()
        except HpcAgentError as error:
            if _for_good(error):
                self.refuse(error)
            return False
        return True

    def _settle(self, asked: frozenset[str], states: Any, now: float) -> None:
        if not isinstance(states, Mapping):
            return
        lost = 0
        for key in asked & self.flights.keys():
            told = states.get(key)
            state = told.get("state") if isinstance(told, Mapping) else told
            if state in ("waiting", "dead", "finished"):
                lost += state != "finished"
                self._lose(self.flights[key])
            elif state == "running":
                self._ask_again_at = now + UNSETTLED_S
            elif state == "cancelled":
                self._was_cancelled(self.flights[key])
            else:
                self._failed(self.flights[key], _bad_state(state))
        if lost:
            self.tell(f"{lost} task(s) on the endpoint of {self.site} were lost, and are sent again")

    def _was_cancelled(self, flight: Flight) -> None:
        """Its answer was lost on the way. What this session has not cancelled of an earlier one is sent again."""
        if flight.adopted and not flight.cancelling:
            self._lose(flight)
            return
        self._end(flight, "cancelled")
        for run in flight.wanted:
            run.fail(_cancelled())

    def _lose(self, flight: Flight) -> None:
        """Send the runs of a task again. It is remembered: should it answer after all, that is as good."""
        self._end(flight, "lost")
        self._ghosts[flight.key] = flight
        while len(self._ghosts) > _GHOSTS:
            self._ghosts.popitem(last=False)
        for run in flight.wanted:
            if flight.cancelling:
                run.fail(_cancelled())
            else:
                self._once_more(run)

    def _once_more(self, run: Run) -> None:
        run.lost += 1
        if run.lost > MOST_LOST:
            words = f"the endpoint has lost the run {run.lost} times"
            run.fail(BlockLost(f"{words}.", name="EndpointLost"))
            return
        run.priority = 0.0
        heapq.heappush(self._waiting, (0.0, next(self._count), run))

    # -- time and the endpoint's state --------------------------------------------------------

    def status(self, online: bool | None, words: str, now: float) -> None:
        """What the service says of the endpoint; None: it could not be asked."""
        if online is None:
            self._unknown += 1
            self._unknown_since = now if self._unknown_since is None else self._unknown_since
            if words != self._status_words:
                self.tell(f"whether the endpoint of {self.site} is online is not known: {words}")
            self._status_words = words
            self.tick(now)
            return
        self._status_words = ""
        self._unknown_since, self._unknown = None, 0
        self.online = online
        if online and self._offline_since is not None:
            away_s = now - self._offline_since
            self._offline_since = None
            self.tell(f"the endpoint of {self.site} is online again, after {away_s:.0f} s")
            self.mark(now)
            self.dispatch(now)
        elif not online and self._offline_since is None:
            self._offline_since = now
            wait = f"it is waited for, for {self.offline_wait_s:g} s (offline_wait_s)"
            self.tell(
                f"the endpoint {self.endpoint_id} of {self.site} is offline"
                f"{f' ({words})' if words else ''}; {wait}"
            )
        self.tick(now)

    def tick(self, now: float) -> None:
        """Time goes by."""
        if self._offline_since is not None:
            if self.busy and self.refusal is None and now - self._offline_since >= self.offline_wait_s:
                self._give_up(now - self._offline_since)
            return
        if self._unknown_since is not None and self._unknown >= UNKNOWN_LEAST and self.busy:
            away_s = now - self._unknown_since
            if self.refusal is None and away_s >= self.offline_wait_s:
                self._give_up(away_s)
                return
        if self._ask_again_at is not None and now >= self._ask_again_at:
            self.mark(now)
        sent = any(flight.sent_at is not None for flight in self.flights.values())
        if sent and now - self._heard_at >= self._patience_s:
            self._patience_s = min(2 * self._patience_s, LONGEST_SILENCE_S)
            if self._markers and not self._silence_told:
                self._silence_told = True
                self.tell(
                    f"the endpoint of {self.site} is online, but answers nothing, not even the question how its "
                    f"{sum(f.sent_at is not None for f in self.flights.values())} task(s) stand: they wait for "
                    "nodes, or for workers that are busy with long runs, or its workers cannot start (its own log "
                    f"tells; `hpcagent doctor --site {self.site}`)"
                )
            self.mark(now)

    def _give_up(self, away_s: float) -> None:
        what = f"the endpoint {self.endpoint_id} of the site {self.site} is offline"
        if self._offline_since is None:
            what = (
                f"the service of Globus Compute cannot be reached ({self._status_words}), nor so the endpoint "
                f"{self.endpoint_id} of the site {self.site}"
            )
        offline = SiteFailed(
            f"{what}, for {away_s:.0f} s by now; it "
            f"was waited for, for {self.offline_wait_s:g} s (offline_wait_s). What it was sent is kept: go on "
            "with `hpcagent resume` when it is online again."
        )
        self.refuse(offline)

    def refuse(self, why: SiteFailed) -> None:
        """Nothing more can be sent. What was sent stays in the ledger, for a later session; no run is charged."""
        self.refusal = why
        for run in self._unanswered():
            run.fail(BlockLost(str(why), name="EndpointOffline"))
        self._waiting.clear()

    def _unanswered(self) -> list[Run]:
        return [*(entry[2] for entry in self._waiting), *(r for f in self.flights.values() for r in f.wanted)]

    # -- the end ------------------------------------------------------------------------------

    def cancel(self, executions: frozenset[str]) -> list[str]:
        """Drop runs that wait; return the keys of tasks that have none but these, to be cancelled there."""
        rest = []
        for entry in self._waiting:
            if entry[2].execution_id in executions:
                entry[2].fail(_cancelled())
            else:
                rest.append(entry)
        self._waiting = rest
        heapq.heapify(self._waiting)
        keys = []
        for flight in self.flights.values():
            names = {name for name, run in flight.runs.items() if run is None or not run.done}
            if not flight.cancelling and names <= executions:
                flight.cancelling = True
                keys.append(flight.key)
        for ghost in self._ghosts.values():  # taken for lost, and perhaps only slow
            if not ghost.cancelling and ghost.runs and ghost.runs.keys() <= executions:
                ghost.cancelling = True
                keys.append(ghost.key)
        return keys

    def close(self, error: SiteFailed) -> list[str]:
        """Fail what waits here and there; return the keys of what may still run there."""
        for run in self._unanswered():
            run.done = True
            run.call.close(error)
        self._waiting.clear()
        return [flight.key for flight in self.flights.values() if flight.sent_at is not None]

    def ghosts(self) -> list[str]:
        """Keys of tasks that were taken for lost, of whose runs some have no answer."""
        return [
            ghost.key
            for ghost in self._ghosts.values()
            if ghost.ended == "lost" and any(run is None or not run.done for run in ghost.runs.values())
        ]


def _blobs(flight: Flight) -> dict[str, Any]:
    return {sha256: blob for run in flight.runs.values() if run is not None for sha256, blob in run.blobs.items()}


def _for_good(error: BaseException | None) -> TypeGuard[SiteFailed]:
    """Whether nothing more can be sent."""
    return isinstance(error, SiteFailed) and not isinstance(error, BlockLost)


def _bad_state(state: object) -> AppFailed:
    return AppFailed(
        f"the endpoint says of the task a state that is not known here ({plain(str(state))[:40]!r}): another "
        "version of hpcagent there.",
        kind="infrastructure",
        name="BadResult",
    )


def _cancelled() -> AppFailed:
    return AppFailed("The run was cancelled.", kind="cancelled", name="CancelledError")


def _bad_answer(answer: object) -> AppFailed:
    return AppFailed(
        f"what came back is no answer to what was asked ({type(answer).__name__}).",
        kind="infrastructure",
        name="BadResult",
    )


def _unknown(error: BaseException) -> AppFailed:
    return AppFailed(f"{type(error).__name__}: {error}", kind="infrastructure", name="EndpointError")
