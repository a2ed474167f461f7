"""Parsl's executor interface over a Globus Compute endpoint.

Calls from any thread are put into a queue that one thread reads, which alone has `Traffic`. Another one asks
whether the endpoint is online. Nobody else waits for the network.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from parsl.executors.base import ParslExecutor

from hpcagent.apps.worker import execute, execute_as_result, execute_each
from hpcagent.errors import BadInput, HpcAgentError, SiteFailed
from hpcagent.model.failures import kind_of_error
from hpcagent.sites.endpoint.cancelling import Cancelling
from hpcagent.sites.endpoint.flight import Call, Run
from hpcagent.sites.endpoint.orders import run_of
from hpcagent.sites.endpoint.reaping import LEAST, errand_resources
from hpcagent.sites.endpoint.tasks import Book, Task
from hpcagent.sites.endpoint.traffic import Traffic
from hpcagent.sites.schedulers.base import Unverified
from hpcagent.sites.workers.executor import closed_error, no_turn

if TYPE_CHECKING:
    from hpcagent.sites.endpoint.link import AnyLink
    from hpcagent.sites.profile import Profile

__all__ = ["EndpointExecutor"]

GATHER_S = 0.02
"""Runs that come within so long travel together."""
LOOK_S = 5.0
"""So often the service is asked whether the endpoint is online, while anything is to be done there."""
CLOSE_S = 20.0
"""So long is waited, when the site is closed, until what runs there is seen to have ended."""
_ANSWER_S = 1.0

Event = tuple[Callable[..., None], tuple[Any, ...]]


class EndpointExecutor(ParslExecutor):  # type: ignore[misc]  # Parsl has no type information
    """Sends runs of hpcagent to an endpoint, and knows no other functions.

    Args:
        label: Of the executor in the profile.
        profile: Of the site.
        link: To the endpoint; closed with the executor.
        book: The ledger of tasks.
        root: The campaign's folder there.
        at_once: How many runs of one core go at once there.
        left: Tasks of an earlier session without an end.
        lost: Tasks that it has taken for lost, and that may run all the same.
        ended: The service's ids of tasks whose ends are known.
        clock: Seconds, from whenever.
    """

    by_hand: Callable[[], float | None] = staticmethod(no_turn)
    """Gives the priority of a run that has none; see `turns.py`."""
    tell: Callable[[str], None] = staticmethod(lambda text: None)
    """Called with a sentence that the user should hear."""
    out_of_time = False

    def __init__(
        self,
        label: str,
        *,
        profile: Profile,
        link: AnyLink,
        book: Book,
        root: str,
        at_once: int,
        left: Sequence[Task] = (),
        lost: Sequence[Task] = (),
        ended: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.label = label
        self._profile, self._link, self._book, self._left = profile, link, book, left
        self._mpi = profile.executors[label].mode == "mpi"
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._clock = clock
        book.noted = self._noted
        self._closing = threading.Event()
        self._submit_lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended = ended
        self._calls: set[Call] = set()  # that have no end: whatever breaks, each hears of it
        errands = errand_resources(profile, label)
        self._cancelling = Cancelling(link, book, root, resources=errands)
        self.traffic = Traffic(
            link,
            book,
            root=root,
            site=profile.name,
            endpoint_id=str(profile.endpoint_id),
            at_once=at_once,
            offline_wait_s=profile.offline_wait_s,
            came=self._came,
            tell=lambda words: self.tell(words),
            look_resources=dict(LEAST) if self._mpi else None,
            errand_resources=errands,
        )
        self.traffic.adopt_lost(lost)

    # -- Parsl's interface --------------------------------------------------------------------

    def start(self) -> None:
        """Take up what an earlier session has left; Parsl calls this."""
        if self._left:
            self.traffic.adopt(self._left, self._clock())
            self._ensure_started()
            self._put(self._reattach)

    def submit(
        self, function: Callable[..., Any], resource_specification: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Send an app that was called by hand.

        Raises:
            BadInput: It is no app of hpcagent.
            SiteFailed: The site is closed, or its endpoint is offline for good.
        """
        return self.submit_plain(function, args, None, resource_specification)

    def submit_plain(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        priority: float | None,
        needs: Mapping[str, Any] | None = None,
    ) -> Future[Any]:
        """Send runs. See `Site.submit`; what they need stands in their manifests.

        Raises:
            BadInput: The function is none of those that run orders, or an input is elsewhere.
            SiteFailed: The site is closed, or its endpoint is offline for good.
        """
        orders, upstream, single, wrap = _understood(function, args, self._profile.name)
        turn = self.by_hand() if priority is None else priority
        call = Call(len(orders), single=single, wrap=wrap)
        runs = [
            run_of(
                order,
                inputs,
                call=call,
                index=index,
                profile=self._profile,
                mpi=self._mpi,
                priority=float("inf") if turn is None else turn,
            )
            for index, (order, inputs) in enumerate(zip(orders, upstream, strict=True))
        ]
        with self._submit_lock:
            if self._closing.is_set():
                raise closed_error()
            if self.traffic.refusal is not None:
                raise self.traffic.refusal
            self._calls.add(call)
            call.future.add_done_callback(lambda _: self._calls.discard(call))
            self._ensure_started()
            self._put(self._add, runs)
        return call.future

    def _add(self, runs: Sequence[Run]) -> None:
        refusal = self.traffic.refusal
        for run in runs:
            if refusal is not None:
                run.fail(refusal)
            else:
                self.traffic.add(run)

    def refuse_impossible(self, needs: Mapping[str, Any]) -> None:
        """What an endpoint has, it says itself."""

    def at_once(self, needs: Mapping[str, Any]) -> int:
        """How many runs with these needs go at once."""
        each = max(1, int(needs.get("nodes", 1))) * max(1, int(needs.get("cores", 1)))
        return max(1, self.traffic.at_once // each)

    def monitor_resources(self) -> bool:
        """Parsl's monitoring would wrap the functions, which travel by their names."""
        return False

    # -- the threads --------------------------------------------------------------------------

    def _ensure_started(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._drive, name=f"endpoint-{self.label}", daemon=True)
            self._thread.start()
            threading.Thread(target=self._watch, name=f"endpoint-watch-{self.label}", daemon=True).start()

    def _put(self, what: Callable[..., None], *args: Any) -> None:
        self._events.put((what, args))

    def _noted(self) -> None:
        self._put(lambda: None)  # a step ends with what was noted on the disk

    def _came(self, key: str, future: Future[Any]) -> None:
        self._put(self._answer, key, future)

    def _answer(self, key: str, future: Future[Any]) -> None:
        self.traffic.answered(key, future, self._clock())

    def _drive(self) -> None:
        while not self._closing.is_set():
            try:
                self._step()
            except HpcAgentError as error:  # the ledger cannot be written
                self._break(error if isinstance(error, SiteFailed) else _broken(error))
            except Exception as error:
                self._break(_broken(error))

    def _step(self) -> None:
        """Take what has come, and what comes within a moment; then send."""
        try:
            first = self._events.get(timeout=_ANSWER_S)
        except queue.Empty:
            self.traffic.tick(self._clock())
            self._book.flush()
            return
        self._handle(first)
        give_up = time.monotonic() + GATHER_S
        while (left_s := give_up - time.monotonic()) > 0:
            try:
                self._handle(self._events.get(timeout=left_s))
            except queue.Empty:
                break
        self.traffic.dispatch(self._clock())
        self.traffic.tick(self._clock())
        self._book.flush()
        if self.traffic.busy:
            self._wake.set()

    def _handle(self, event: Event) -> None:
        what, args = event
        what(*args)

    def _break(self, error: SiteFailed) -> None:
        """Nothing more can be sent: whoever waits hears of it."""
        self.traffic.refusal = self.traffic.refusal or error
        try:
            self.traffic.close(error)
        finally:
            self._close_calls(error)

    def _close_calls(self, error: SiteFailed) -> None:
        for call in list(self._calls):
            call.close(error)

    def _watch(self) -> None:
        """Ask whether the endpoint is online, as long as there is anything to do."""
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            while not self._closing.is_set() and self.traffic.busy:
                try:
                    status = self._link.status()
                except Exception as error:
                    self._put(self._status, None, f"{type(error).__name__}: {error}")
                else:
                    self._put(self._status, status.online if status.known else None, status.words)
                self._closing.wait(LOOK_S)

    def _status(self, online: bool | None, words: str) -> None:
        self.traffic.status(online, words, self._clock())

    # -- an earlier session's tasks -----------------------------------------------------------

    def _reattach(self) -> None:
        """Hear the answers that came meanwhile, and those to come; ask what became of the others."""
        groups = dict.fromkeys(task.task_group_id for task in self._left if task.task_group_id)
        keys = {task.task_id: task.key for task in self._left if task.task_id}
        if groups:
            threading.Thread(
                target=self._hear_again, args=(list(groups), keys), name="endpoint-reattach", daemon=True
            ).start()
        self.tell(
            f"{len(self._left)} task(s) that the last session left on the endpoint of {self._profile.name} are "
            "taken up"
        )
        self.traffic.mark(self._clock())
        self._wake.set()

    def _hear_again(self, groups: list[str], keys: dict[str, str]) -> None:
        try:
            complete = all(task.task_id for task in self._left)  # else one may be among those without a name
            for sent in self._link.reattach(
                groups, keys=keys, skip=self._ended, only=frozenset(keys) if complete else None
            ):
                sent.future.add_done_callback(partial(self._heard, sent.key))
        except Exception as error:  # what is not found is sent again, when the endpoint has told how it stands
            self.tell(f"answers that came meanwhile could not be asked for: {error}")

    def _heard(self, key: str, future: Future[Any]) -> None:
        if not key and not future.cancelled() and future.exception() is None:
            answer = future.result()
            key = str(answer.get("key", "")) if isinstance(answer, Mapping) else ""
        self._came(key, future)

    # -- the end ------------------------------------------------------------------------------

    @property
    def left_there(self) -> frozenset[str]:
        """Execution ids of runs whose tasks an earlier session has left there."""
        return frozenset(execution for task in self._left for execution in task.runs)

    @property
    def offline(self) -> bool:
        """Whether the service says that the endpoint is offline."""
        return self._thread is not None and self.traffic.online is False

    def cancel(self, executions: Iterable[str], futures: Iterable[Future[Any]] = ()) -> bool:
        """Cancel runs: those that wait here at once, the others there; what they still answer comes too late."""
        if self._thread is not None:
            self._put(self._cancel, frozenset(executions))
        return self._thread is not None

    def _cancel(self, executions: frozenset[str]) -> None:
        keys = self.traffic.cancel(executions)
        if keys and self._cancelling.ask(keys) is not None:
            self._book.cancelling(keys)

    def fail_outstanding(self) -> None:
        """Refuse runs and fail those outstanding, because the site is being closed."""
        with self._submit_lock:
            self._closing.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._put(lambda: None)
            self._thread.join(_ANSWER_S + LOOK_S)
        while True:  # what came last is taken in: an answer that is here is not asked for again
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                break
            with contextlib.suppress(Exception):
                self._handle(event)
        self._ghosts = self.traffic.ghosts()
        self._open_keys = self.traffic.close(closed_error())
        self._close_calls(closed_error())

    def shutdown(self) -> None:
        """Cancel what runs there, as the profile says, and see it ended.

        Raises:
            Unverified: Some were not seen to have ended.
        """
        if self._closed:
            return
        self._closed = True
        self.fail_outstanding()
        words = ""
        try:
            asked = [f.key for f in self.traffic.flights.values() if f.cancelling]
            cancels = self._profile.at_close == "cancel"
            keys = self._open_keys if cancels else asked
            if keys and (self.traffic.online is False or self.traffic.refusal is not None):
                # Nobody hears it there: they stay open in the ledger, so that resume takes them up.
                if self.traffic.refusal is None:
                    words = (
                        f"the endpoint of {self._profile.name} is offline: {len(keys)} task(s) there were not "
                        "cancelled. `hpcagent resume` takes them up, and `hpcagent reap RUN_DIR` cancels them"
                    )
            elif keys or (cancels and self._ghosts):
                left = self._cancelling.end([*keys, *self._ghosts], within_s=CLOSE_S)
                left = [key for key in left if key in keys]
                if left:
                    words = (
                        f"{len(left)} task(s) on the endpoint of {self._profile.name} were cancelled and not seen "
                        "to have ended; `hpcagent reap RUN_DIR` looks again"
                    )
            self._book.flush()
        finally:
            self._link.close()
            super().shutdown()
        if words:
            if (
                sys.exc_info()[1] is not None
            ):  # the site is closed for another error, which is the one that is raised
                self.tell(words)
            raise Unverified(f"{words}.")

    _closed = False
    _open_keys: Sequence[str] = ()
    _ghosts: Sequence[str] = ()


def _broken(error: Exception) -> SiteFailed:
    kind = kind_of_error(error)
    name = type(error).__name__
    return SiteFailed(f"the site's link to its endpoint broke down: {name}: {error}" + ("" if kind else "."))


def _understood(
    function: Callable[..., Any], args: tuple[Any, ...], site: str
) -> tuple[list[Any], list[tuple[Any, ...]], bool, Any]:
    """Orders, what each takes as input, whether the caller expects one answer, and what is made of an answer."""
    from hpcagent.sites.placed import run_placed

    if function is execute:
        return [args[0]], [args[1:]], True, None
    if function is execute_each:
        return list(args[0]), [()] * len(args[0]), False, None
    if function is execute_as_result or function is run_placed:
        return [args[0]], [args[1:]], True, _as_result(args[0])
    name = getattr(function, "__qualname__", repr(function))
    raise BadInput(
        f"{name} is no app of hpcagent, and the site {site} (a Globus Compute endpoint) runs nothing else: what "
        "comes back from there is never unpickled. Make it an app (`@hpcagent.app`), or give Parsl its own "
        "parsl.executors.GlobusComputeExecutor for it, in a configuration of your own.",
        value=name,
    )


def _as_result(order: Mapping[str, Any]) -> Callable[[dict[str, Any]], Any]:
    def made(fields: dict[str, Any]) -> Any:
        from hpcagent.model.records import Result

        known = {name: value for name, value in fields.items() if name != "found"}
        return Result.model_validate({"manifest": order["manifest"], **known})

    return made
