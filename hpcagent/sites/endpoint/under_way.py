"""Requests that are under way, and their answers: from the broker, and where it brings none from the service."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import InvalidStateError
from typing import TYPE_CHECKING

from hpcagent.errors import HpcAgentError, SiteFailed
from hpcagent.shown import plain
from hpcagent.sites.endpoint.credentials import hidden
from hpcagent.sites.endpoint.listening import Listener
from hpcagent.sites.endpoint.refusals import Trouble, bad_answer, of_task

if TYPE_CHECKING:
    from hpcagent.sites.endpoint.sdk import Service
    from hpcagent.sites.endpoint.sent import Sent

__all__ = ["UnderWay", "fail"]

_YOUNG_S = 20.0  # a task is not asked for before
_DEAF_S = 10.0  # between questions for tasks whose queue is not heard
_SWEEP_S = 300.0  # between questions for all that are open
_ASK_MOST = 100  # results in one answer
_MOST_EARLY = 4096
_EARLY_BYTES = 64 * 2**20


class UnderWay:
    """Knows who waits for which task, and brings them their answers; each comes once.

    Args:
        service: Asked for what the broker does not bring.
        port: Of the broker, if not the service's choice.
        tell: Told in a sentence of troubles with the broker.
        failed: Called if the credentials are not taken any more.
    """

    def __init__(
        self,
        service: Service,
        *,
        port: int | None,
        tell: Callable[[str], None] | None,
        failed: Callable[[HpcAgentError], None],
    ) -> None:
        self._service = service
        self._port = port
        self._failed = failed
        self._unheard = Trouble(tell)
        self._unasked = Trouble(tell)
        self._lock = threading.Lock()
        self._wanted = threading.Condition(self._lock)
        self._open: dict[str, Sent] = {}  # task id -> who waits
        self._since: dict[str, float] = {}
        self._early: OrderedDict[str, tuple[str, bool]] = OrderedDict()
        self._ask: set[str] = set()
        self._closed = threading.Event()
        self._asker: threading.Thread | None = None
        self._listener: Listener | None = None

    def ask_for(self, task_ids: Iterable[str]) -> None:
        """Ask the service for results at once: most have ended long ago."""
        with self._wanted:
            self._ask.update(task_ids)
            self._wanted.notify_all()

    def all(self) -> list[Sent]:
        """Forget all that wait, and return them."""
        with self._lock:
            found = list(self._open.values())
            self._open.clear()
            self._since.clear()
        return found

    def close(self) -> None:
        """Hear nothing more; what is open stays open."""
        self._closed.set()
        with self._wanted:
            self._wanted.notify_all()
        if self._listener is not None:
            self._listener.close()
        if self._asker is not None and self._asker is not threading.current_thread():
            self._asker.join(1.0)  # it may be in a request; it is a daemon

    def wait_for(self, requests: Iterable[Sent]) -> None:
        """Bring these their answers. Their groups are to be listened to."""
        early = []
        with self._lock:
            for sent in requests:
                if sent.task_id in self._early:
                    early.append((sent, *self._early.pop(sent.task_id)))
                else:
                    self._open[sent.task_id] = sent
                    self._since[sent.task_id] = time.monotonic()
        for sent, data, is_error in early:
            self._answer(sent, data, is_error)

    def listen(self, groups: list[str]) -> None:
        """Hear the results of these groups, too."""
        with self._lock:
            if self._closed.is_set():
                return
            if self._listener is None:
                self._listener = Listener(
                    self._service,
                    port=self._port,
                    heard=self._heard,
                    withheld=self._withheld,
                    connected=self._connected,
                    trouble=self._heard_trouble,
                )
                self._listener.listen(groups)
                self._listener.start()
                self._asker = threading.Thread(target=self._guarded, name="endpoint-asks", daemon=True)
                self._asker.start()
                return
        self._listener.listen(groups)

    def _heard(self, task_id: str, data: str, is_error: bool) -> None:
        with self._lock:
            sent = self._open.pop(task_id, None)
            self._since.pop(task_id, None)
            self._ask.discard(task_id)
            if sent is None:
                # Faster than the answer to its submission; or the answer to one that was sent again.
                if task_id in self._early:
                    return
                self._early[task_id] = (data, is_error)
                while (
                    len(self._early) > _MOST_EARLY or sum(len(d) for d, _ in self._early.values()) > _EARLY_BYTES
                ):
                    self._early.popitem(last=False)
                return
        self._answer(sent, data, is_error)

    def _answer(self, sent: Sent, data: str, is_error: bool) -> None:
        try:
            self._bring(sent, data, is_error)
        except Exception as error:  # nobody else knows of it any more
            fail(sent, bad_answer(plain(f"{type(error).__name__}: {error}")[:300]))

    def _bring(self, sent: Sent, data: str, is_error: bool) -> None:
        if is_error:
            fail(sent, of_task(data))
            return
        try:
            answer = self._service.answer(data)
            if not isinstance(answer, dict) or (sent.key and answer.get("key") != sent.key):
                raise ValueError("it is not the answer to this request")
        except ValueError as error:
            fail(sent, bad_answer(plain(str(error))[:300]))
            return
        sent.key = sent.key or str(answer.get("key", ""))
        with contextlib.suppress(InvalidStateError):
            sent.future.set_result(answer)

    def _withheld(self, task_id: str) -> None:
        with self._wanted:
            self._ask.add(task_id)
            self._wanted.notify_all()

    def _connected(self) -> None:
        """After a silence: what came meanwhile is asked for."""
        with self._wanted:
            young = time.monotonic() - _YOUNG_S
            self._ask.update(task for task, since in self._since.items() if since < young)
            self._wanted.notify_all()

    def _heard_trouble(self, error: HpcAgentError | None) -> None:
        if error is None:
            self._unheard.over()
        elif isinstance(error, SiteFailed):
            self._failed(error)
        else:
            self._unheard.told(error)

    def _guarded(self) -> None:
        """The asker's thread: what ends it ends the link, so that nobody waits for ever."""
        try:
            self._ask_all()
        except Exception as error:
            words = hidden(plain(f"{type(error).__name__}: {error}"))
            self._failed(SiteFailed(f"The link to the endpoint broke down: {words}."))

    def _ask_all(self) -> None:
        """Ask the service for results that the broker has not brought."""
        sweep = time.monotonic() + _SWEEP_S
        while not self._closed.is_set():
            with self._wanted:
                if not self._ask:
                    self._wanted.wait(_DEAF_S)
                asked = [task for task in self._ask if task in self._open]
                self._ask.clear()
                if time.monotonic() >= sweep:
                    sweep = time.monotonic() + _SWEEP_S
                    asked = list(self._open)
                elif not asked:
                    asked = self._not_heard()
            for at in range(0, len(asked), _ASK_MOST):
                if self._closed.is_set():
                    return
                if not self._ask_for(asked[at : at + _ASK_MOST]):
                    with self._wanted:
                        self._ask.update(asked[at:])
                    self._closed.wait(_DEAF_S)
                    break

    def _not_heard(self) -> list[str]:
        """Tasks, not just begun, whose group's queue nobody listens to."""
        deaf = set(self._listener.deaf()) if self._listener is not None else set()
        if not deaf:
            return []
        young = time.monotonic() - _YOUNG_S
        return [
            task for task, sent in self._open.items() if sent.task_group_id in deaf and self._since[task] < young
        ]

    def _ask_for(self, tasks: list[str]) -> bool:
        try:
            found = self._service.results(tasks)
        except SiteFailed as error:
            self._failed(error)
            return False
        except HpcAgentError as error:
            self._unasked.told(error)
            return False
        self._unasked.over()
        for task, (data, is_error) in found.items():
            if task in tasks:
                self._heard(task, data, is_error)
        return True


def fail(sent: Sent, error: BaseException) -> None:
    """Let a request have failed, unless it has its answer."""
    with contextlib.suppress(InvalidStateError):
        sent.future.set_exception(error)
