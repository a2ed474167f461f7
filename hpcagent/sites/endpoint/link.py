"""The way to an endpoint: requests as JSON go there, and their answers come back, whatever breaks in between.

A link sends requests together, hears their answers from the queue of its own task group, and asks the service for
those that the queue did not bring. What a request is at fault for ends that request alone; an outage is waited
for; what no further try would mend (no login, no such endpoint) ends the link with a `SiteFailed`.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hpcagent.errors import HpcAgentError, SiteFailed
from hpcagent.shown import plain
from hpcagent.sites.endpoint.credentials import hidden
from hpcagent.sites.endpoint.refusals import (
    LARGEST_BATCH,
    Outage,
    RequestRefused,
    Stale,
    Trouble,
    never_taken,
    pause,
    refused,
    too_large,
)
from hpcagent.sites.endpoint.sent import AnyLink, EndpointStatus, OnSent, Sent
from hpcagent.sites.endpoint.under_way import UnderWay, fail
from hpcagent.sites.endpoint_settings import destination

if TYPE_CHECKING:
    from hpcagent.sites.endpoint.sdk import Service
    from hpcagent.sites.profile import Profile

__all__ = ["AnyLink", "EndpointStatus", "Link", "OnSent", "Sent"]

_MOST = 128  # requests in one submission
_ENVELOPE = 8192  # bytes of a submission beside its requests
_GATHER_S = 0.005
_GATHER_MOST_S = 0.05
_HALVE_AFTER = 3  # failures, which are a round
_MOST_ROUNDS = 3
_MOST_ODD = 5  # answers of an unknown form, one after the other
_LONGEST_PAUSE_S = 60.0
_STATUS_S = 4.0


@dataclass(eq=False)
class _Item:
    """A request that is to be submitted."""

    sent: Sent
    payload: str
    size: int  # bytes in the body of a submission
    target: str  # where to, with what configuration and resources, as JSON: what may travel together
    alone: bool = False
    part: int = 0  # of a batch that was sent in vain; parts go apart
    failures: int = 0  # in this round
    rounds: int = 0  # of failures, between which others have passed
    passes: int = -1  # how many had passed at the last one


class Link:
    """An `AnyLink` by the web service and the message broker of Globus Compute.

    Its threads are daemons: a process may end at any time without closing it, and Ctrl-C reaches whoever waits.

    Args:
        profile: Of kind `globus_compute`.
        label: Of its executor, whose own `user_endpoint_config` counts if it has one.
        on_sent: Told of each request that was taken, in the thread that submits.
        tell: Told in a sentence when the service cannot be reached, and when it can again.
        service: Made from the credentials that are found if not given.

    Raises:
        BadInput: The extra `globus` is not installed, or half of a client's credentials are there.
        SiteFailed: Nobody is logged in; says what to do.
    """

    def __init__(
        self,
        profile: Profile,
        label: str = "workers",
        *,
        on_sent: OnSent | None = None,
        tell: Callable[[str], None] | None = None,
        service: Service | None = None,
    ) -> None:
        from hpcagent.sites.endpoint.sdk import Service as Globus

        self.label = label
        self.endpoint_id = str(profile.endpoint_id)
        self._targets = {
            "runs": destination(profile, label),
            "control": destination(profile, label, control=True),
        }
        self._on_sent = on_sent
        self._service: Service = service or Globus()
        self._trouble = Trouble(tell)
        self._under_way = UnderWay(self._service, port=profile.amqp_port, tell=tell, failed=self._fail)
        self._lock = threading.Lock()
        self._something = threading.Condition(self._lock)  # to send
        self._queue: deque[_Item] = deque()
        self._task_group_id = ""
        self._failed: HpcAgentError | None = None
        self._closed = threading.Event()
        self._sender: threading.Thread | None = None
        self._parts = itertools.count(1)
        self._passes = self._in_vain = self._odd = 0
        self._status: tuple[float, EndpointStatus] | None = None

    # ---- what an executor calls

    def submit(
        self, request: Mapping[str, Any], *, resources: Mapping[str, Any] | None = None, control: bool = False
    ) -> Sent:
        """See `AnyLink.submit`."""
        endpoint_id, config = self._targets["control" if control else "runs"]
        target = json.dumps([endpoint_id, config, dict(resources) if resources else None], sort_keys=True)
        sent = Sent(key=str(request["key"]))
        payload = self._service.payload(request)
        size = len(json.dumps(payload)) + 2
        if size + len(target) + _ENVELOPE > LARGEST_BATCH:
            sent.future.set_exception(too_large(size))
            return sent
        with self._something:
            if self._failed is not None:
                raise self._failed
            if self._closed.is_set():
                raise SiteFailed("The link to the endpoint was closed.")
            self._queue.append(_Item(sent, payload, size, target))
            if self._sender is None:
                self._sender = threading.Thread(target=self._guarded, name=f"endpoint-{self.label}", daemon=True)
                self._sender.start()
            self._something.notify_all()
        return sent

    def reattach(
        self,
        task_group_ids: Iterable[str],
        *,
        keys: Mapping[str, str] | None = None,
        skip: Collection[str] = (),
        only: Collection[str] | None = None,
    ) -> Iterator[Sent]:
        """See `AnyLink.reattach`. Waits for the service; a group that it does not know any more gives nothing.

        Raises:
            SiteFailed: The credentials are not taken, or the link was closed.
        """
        known = dict(keys or {})
        for group in dict.fromkeys(task_group_ids):
            mine = [
                Sent(known.get(task, ""), task_group_id=group, task_id=task)
                for task in self._tasks_of(group)
                if task not in skip and (only is None or task in only)
            ]
            if not mine:
                continue
            self._under_way.wait_for(mine)
            self._under_way.listen([group])
            self._under_way.ask_for(sent.task_id for sent in mine)
            yield from mine

    def _tasks_of(self, group: str) -> list[str]:
        failures = 0
        while not self._closed.is_set():
            try:
                return self._service.group(group)
            except (Stale, RequestRefused):
                return []
            except Outage as error:
                failures += 1
                if error.details.get("odd") and failures >= _MOST_ODD:
                    raise SiteFailed(error.message) from None
                self._trouble.told(error)
                self._closed.wait(_pause(failures))
            except SiteFailed as error:
                self._fail(error)
                raise
        raise SiteFailed("The link to the endpoint was closed.")

    def status(self) -> EndpointStatus:
        """See `AnyLink.status`."""
        now = time.monotonic()
        before = self._status
        if before is not None and now - before[0] < _STATUS_S:
            return before[1]
        found = self._asked_status()
        if before is not None and (before[1].online, before[1].known) == (found.online, found.known):
            found = replace(found, since=before[1].since)
        self._status = (time.monotonic(), found)
        return found

    def close(self) -> None:
        """See `AnyLink.close`. Futures that are open stay open; again: does nothing."""
        self._closed.set()
        with self._lock:
            self._queue.clear()
            self._something.notify_all()
        self._under_way.close()
        if self._sender is not None and self._sender is not threading.current_thread():
            self._sender.join(1.0)  # it may be in a request; it is a daemon

    def _asked_status(self) -> EndpointStatus:
        named = f"endpoint {self.endpoint_id}"
        try:
            said = str(self._service.status(self.endpoint_id).get("status", "unknown"))[:40]
        except HpcAgentError as error:
            return EndpointStatus(online=False, words=error.message, known=False, since=time.time())
        return EndpointStatus(said == "online", f"{named} is {plain(said)}", since=time.time())

    # ---- sending

    def _guarded(self) -> None:
        """The sender's thread: no error of its own may leave requests waiting for ever."""
        try:
            while batch := self._next():
                self._send(batch)
        except Exception as error:
            self._fail(_of_link(error))

    def _next(self) -> list[_Item]:
        """What is sent together; empty when the link was closed."""
        with self._something:
            while not self._queue:
                if self._closed.is_set():
                    return []
                self._something.wait()
            # Those that are submitted in one go travel together: wait until no more come.
            deadline = time.monotonic() + _GATHER_MOST_S
            while not self._closed.is_set() and len(self._queue) < _MOST and time.monotonic() < deadline:
                count = len(self._queue)
                self._something.wait(_GATHER_S)
                if len(self._queue) == count:
                    break
            if self._closed.is_set():
                return []
            return self._taken()

    def _taken(self) -> list[_Item]:
        first = self._queue[0]
        batch: list[_Item] = []
        left: list[_Item] = []
        room = LARGEST_BATCH - _ENVELOPE - len(first.target)
        for item in self._queue:
            fits = item.size <= room and len(batch) < (1 if first.alone else _MOST)
            same = (item.target, item.alone, item.part) == (first.target, first.alone, first.part)
            if same and fits:
                batch.append(item)
                room -= item.size
            else:
                left.append(item)
        self._queue = deque(left)
        return batch

    def _send(self, batch: list[_Item]) -> None:
        try:
            self._submit(batch)
        except Exception as error:  # the link ends; nobody else knows of these
            failed = _of_link(error)
            for item in batch:
                fail(item.sent, failed)
            raise failed from None

    def _submit(self, batch: list[_Item]) -> None:
        endpoint_id, config, resources = json.loads(batch[0].target)
        payloads = [item.payload for item in batch]
        stale = 0
        while not self._closed.is_set() and self._failed is None:
            try:
                group, tasks = self._service.submit(
                    endpoint_id, payloads, config=config, resources=resources, task_group_id=self._task_group_id
                )
            except Stale as error:
                stale += 1
                if stale > 2:
                    raise SiteFailed(error.message) from None
                self._renew(error)
            except RequestRefused as error:
                self._apart(batch, error)
                return
            except Outage as error:
                # The service may have taken them all the same, and only its answer was lost. Sent again a run is
                # not computed again: there it finds its directory locked, or its result.
                self._put_off(batch, error)
                return
            else:
                self._trouble.over()
                self._passed()
                self._task_group_id = group
                self._took(batch, group, tasks)
                return
        if self._failed is not None:
            raise self._failed

    def _put_off(self, batch: list[_Item], error: Outage) -> None:
        """Try again later; after a round of failures in halves, behind all others.

        One request may be the reason, or the size of them all, which a proxy does not take. One that has failed
        alone while others passed has failed; while nothing passes it is an outage, and waited for.
        """
        if batch[0].rounds <= 1:
            self._trouble.told(error)
        self._in_vain += 1
        self._odd = self._odd + 1 if error.details.get("odd") else 0
        if self._odd >= _MOST_ODD:
            raise SiteFailed(
                f"{error.message} So it was {self._odd} times: another version of hpcagent is needed."
            )
        with self._something:
            if self._failed is not None:
                raise self._failed
            for item in batch:
                item.failures += 1
            if max(item.failures for item in batch) < _HALVE_AFTER:
                self._queue.extendleft(reversed(batch))
            else:
                self._round(batch, error)
            self._something.wait_for(
                lambda: self._closed.is_set() or any(not i.failures and not i.rounds for i in self._queue),
                timeout=_pause(self._in_vain),
            )

    def _round(self, batch: list[_Item], error: Outage) -> None:
        for item in batch:
            item.failures = 0
            if item.passes != self._passes:
                item.rounds, item.passes = item.rounds + 1, self._passes
        if len(batch) == 1 and batch[0].rounds >= _MOST_ROUNDS:
            fail(batch[0].sent, never_taken(error))
            return
        half = len(batch) // 2
        for part in (batch[:half], batch[half:]):
            number = next(self._parts)
            for item in part:
                item.part = number
            self._queue.extend(part)

    def _passed(self) -> None:
        self._in_vain = self._odd = 0
        with self._lock:
            self._passes += 1
            for item in self._queue:
                if item.rounds <= 1:  # it was an outage, of all
                    item.part = item.failures = 0

    def _renew(self, error: Stale) -> None:
        if error.details["what"] == "group":
            self._task_group_id = ""
        else:
            self._service.forget_function()

    def _apart(self, batch: list[_Item], error: RequestRefused) -> None:
        """A request is at fault, or the batch is too large: only what fails alone has failed."""
        if len(batch) == 1:
            fail(batch[0].sent, refused(error, batch[0].size))
        elif error.details["too_large"]:
            self._again(batch)
        else:
            for item in batch:
                item.alone = True
            with self._something:
                self._queue.extendleft(reversed(batch))

    def _again(self, batch: list[_Item]) -> None:
        half = len(batch) // 2
        for part in (batch[:half], batch[half:]):
            self._send(part)

    def _took(self, batch: list[_Item], group: str, tasks: list[str]) -> None:
        for item, task in zip(batch, tasks, strict=True):
            item.sent.task_group_id, item.sent.task_id = group, task
            if self._on_sent is not None:
                self._on_sent(item.sent.key, group, task)
        self._under_way.wait_for([item.sent for item in batch])
        self._under_way.listen([group])

    # ---- the end

    def _fail(self, error: HpcAgentError) -> None:
        """No further try would mend it: everything that is open fails, and so will what is submitted later."""
        with self._something:
            self._failed = self._failed or error
            waiting = [item.sent for item in self._queue]
            self._queue.clear()
            self._something.notify_all()
        for sent in [*waiting, *self._under_way.all()]:
            fail(sent, self._failed)


def _of_link(error: Exception) -> HpcAgentError:
    if isinstance(error, HpcAgentError):
        return error
    return SiteFailed(hidden(f"the link to the endpoint broke down: {type(error).__name__}: {plain(str(error))}"))


def _pause(failures: int) -> float:
    return pause(failures, _LONGEST_PAUSE_S)
