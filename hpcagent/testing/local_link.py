"""A link whose endpoint is threads of this process, with faults to order: for tests of what uses a link."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from hpcagent.errors import AppFailed, SiteFailed
from hpcagent.sites.endpoint.sent import EndpointStatus, OnSent, Sent

__all__ = ["Faults", "LocalLink"]

Answer = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class Faults:
    """What goes wrong; set on a link at any time.

    Attributes:
        lose: So many of the next tasks are taken by the endpoint and never begun, as when it is killed.
        lose_answers: So many of the next answers are not delivered, until they are reattached to.
        delay_s: Every answer comes so late, in seconds.
        fail_submit: Raised by the futures of the next requests, one each.
        offline: The endpoint takes nothing; what is sent waits until it is False again.
        twice: So many of the next requests are carried out twice, as after a submission whose answer was lost.
    """

    lose: int = 0
    lose_answers: int = 0
    delay_s: float = 0.0
    fail_submit: list[Exception] = field(default_factory=list)
    offline: bool = False
    twice: int = 0


class LocalLink:
    """Answers requests in threads, with real JSON round trips; an `AnyLink`.

    Args:
        profile: Not looked at.
        label: Of the executor.
        on_sent: Told of each request that was taken.
        tell: Not called.
        answer: What an endpoint does with a request; `hpcagent.sites.endpoint.there.answer` if not given.
        workers: Requests at once. They begin in the order in which they were sent.
        faults: What goes wrong.

    Attributes:
        requests: Every request that was submitted, as JSON made it.
    """

    def __init__(
        self,
        profile: Any = None,
        label: str = "workers",
        *,
        on_sent: OnSent | None = None,
        tell: Callable[[str], None] | None = None,
        answer: Answer | None = None,
        workers: int = 4,
        faults: Faults | None = None,
    ) -> None:
        self.label = label
        self.on_sent = on_sent
        self.faults = faults or Faults()
        self.requests: list[dict[str, Any]] = []
        self.task_group_id = str(uuid.uuid4())
        self._answer = answer
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=f"endpoint-{label}")
        self._lock = threading.Lock()
        self._back = threading.Condition(self._lock)
        self._closed = False
        self._answers: dict[str, Future[dict[str, Any]]] = {}  # task id -> what the service keeps

    def submit(
        self, request: Mapping[str, Any], *, resources: Mapping[str, Any] | None = None, control: bool = False
    ) -> Sent:
        """See `AnyLink.submit`."""
        if self._closed:
            raise SiteFailed("The link to the endpoint was closed.")
        asked = json.loads(json.dumps(request, allow_nan=False))
        sent = Sent(key=asked["key"])
        with self._lock:
            self.requests.append(asked)
            if self.faults.fail_submit:
                sent.future.set_exception(self.faults.fail_submit.pop(0))
                return sent
            lost = self._take("lose")
            unheard = self._take("lose_answers")
            again = self._take("twice")
        sent.task_group_id, sent.task_id = self.task_group_id, str(uuid.uuid4())
        if self.on_sent is not None:
            self.on_sent(sent.key, sent.task_group_id, sent.task_id)
        kept: Future[dict[str, Any]] = Future()
        self._answers[sent.task_id] = kept
        if not lost:
            self._pool.submit(self._carry_out, asked, kept, again)
        if not unheard:
            kept.add_done_callback(lambda done: _pass_on(done, sent.future))
        return sent

    def reattach(
        self,
        task_group_ids: Iterable[str],
        *,
        keys: Mapping[str, str] | None = None,
        skip: Collection[str] = (),
        only: Collection[str] | None = None,
    ) -> Iterator[Sent]:
        """See `AnyLink.reattach`."""
        if self.task_group_id in set(task_group_ids):
            for task_id, kept in list(self._answers.items()):
                if task_id not in skip and (only is None or task_id in only):
                    sent = Sent((keys or {}).get(task_id, ""), task_group_id=self.task_group_id, task_id=task_id)
                    kept.add_done_callback(lambda done, sent=sent: _pass_on(done, sent.future))  # type: ignore[misc]
                    yield sent

    def status(self) -> EndpointStatus:
        """See `AnyLink.status`."""
        return EndpointStatus(not self.faults.offline, "offline" if self.faults.offline else "online")

    def set_offline(self, offline: bool) -> None:
        """The endpoint goes, or comes back: what waited for it begins then."""
        with self._back:
            self.faults.offline = offline
            self._back.notify_all()

    def close(self) -> None:
        """See `AnyLink.close`."""
        with self._back:
            self._closed = True
            self._back.notify_all()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _take(self, fault: str) -> bool:
        left = getattr(self.faults, fault)
        if left:
            setattr(self.faults, fault, left - 1)
        return bool(left)

    def _carry_out(self, request: dict[str, Any], kept: Future[dict[str, Any]], again: bool) -> None:
        with self._back:
            while self.faults.offline and not self._closed:
                self._back.wait(0.2)
            if self._closed and self.faults.offline:
                return
        try:
            answered = json.dumps(self._answers_with(request), allow_nan=False)
            if again:
                answered = json.dumps(self._answers_with(request), allow_nan=False)
        except Exception as error:
            kept.set_exception(AppFailed(str(error), kind="infrastructure", name=type(error).__name__))
            return
        if self.faults.delay_s:
            time.sleep(self.faults.delay_s)
        kept.set_result(json.loads(answered))

    def _answers_with(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._answer is None:
            self._answer = import_module("hpcagent.sites.endpoint.there").answer
            assert self._answer is not None
        return self._answer(request)


def _pass_on(done: Future[dict[str, Any]], to: Future[dict[str, Any]]) -> None:
    error = done.exception()
    if to.done():
        return
    if error is not None:
        to.set_exception(error)
    else:
        to.set_result(json.loads(json.dumps(done.result())))
