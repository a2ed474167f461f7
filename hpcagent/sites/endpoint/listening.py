"""Hears the results of task groups from the service's message broker, for as long as it takes.

Whatever becomes of the connection it is made again: the broker keeps what was not acknowledged, and the service
keeps every result besides, where `link.Link` asks for what the broker did not bring.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hpcagent.errors import HpcAgentError
from hpcagent.lifeline import FORKS
from hpcagent.sites.endpoint.credentials import hidden
from hpcagent.sites.endpoint.refusals import Outage, pause

if TYPE_CHECKING:
    from hpcagent.sites.endpoint.sdk import Service

__all__ = ["Listener"]

# A connection that is dead without a word is noticed after two of them, in seconds.
_HEARTBEAT_S = 30
_AT_ONCE = 256  # messages on their way to us without having been acknowledged
_LONGEST_PAUSE_S = 30.0
_ASK_AGAIN_S = 120.0  # for a queue that was not there

Heard = Callable[[str, str, bool], None]
"""Is told a task id, what the task gave, and whether that is an error."""


class Listener(threading.Thread):
    """Consumes the result queues of task groups in a thread of its own, which keeps nobody from ending.

    Args:
        service: Gives the broker's address, anew for each connection.
        port: Of the broker, if not the service's choice.
        heard: Called with each result, before it is acknowledged.
        withheld: Called with the id of a task whose result the broker may not carry: it is to be asked for.
        connected: Called after each connection with the groups whose queues are not there.
        trouble: Called with an `Outage` for each failure, and with None when all is well again.
    """

    def __init__(
        self,
        service: Service,
        *,
        port: int | None,
        heard: Heard,
        withheld: Callable[[str], None],
        connected: Callable[[], None],
        trouble: Callable[[HpcAgentError | None], None],
    ) -> None:
        super().__init__(name="endpoint-results", daemon=True)
        self._service = service
        self._port = port
        self._heard = heard
        self._withheld = withheld
        self._connected = connected
        self._trouble = trouble
        self._lock = threading.Lock()
        self._groups: dict[str, None] = {}
        self._consumed: dict[str, Any] = {}  # group -> its channel
        self._absent: dict[str, float] = {}  # group -> when its queue was last not there
        self._cancelled: set[str] = set()  # whose queue was taken away under us
        self._connection: Any = None
        self._prefix = ""
        self._closing = threading.Event()

    def listen(self, groups: Iterable[str]) -> None:
        """Hear the results of these groups, too."""
        with self._lock:
            new = [group for group in groups if group not in self._groups]
            self._groups.update(dict.fromkeys(new))
            connection = self._connection
        if new and connection is not None:
            with contextlib.suppress(Exception):  # it is gone: the next one has them
                connection.add_callback_threadsafe(self._consume_all)

    def deaf(self) -> list[str]:
        """Groups that are not listened to at the moment."""
        with self._lock:
            return [group for group in self._groups if group not in self._consumed]

    def close(self) -> None:
        """Stop; returns when it has, or after two seconds."""
        self._closing.set()
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.add_callback_threadsafe(lambda: None)  # it wakes up, and sees
        if self.is_alive() and threading.current_thread() is not self:
            self.join(2.0)

    def run(self) -> None:
        """Connect, hear, and connect again."""
        failures = 0
        while not self._closing.is_set():
            begun = time.monotonic()
            try:
                self._hear()
            except Exception as error:
                if time.monotonic() - begun > 60:
                    failures = 0
                failures += 1
                if self._closing.is_set():
                    return
                self._trouble(_outage(error))
            finally:
                self._drop()
            self._closing.wait(pause(failures, _LONGEST_PAUSE_S))

    def _hear(self) -> None:
        self._prefix, address = self._service.queue()
        with FORKS:
            import pika
        parameters = pika.URLParameters(address)
        parameters.heartbeat = min(parameters.heartbeat or _HEARTBEAT_S, _HEARTBEAT_S)
        parameters.blocked_connection_timeout = 4 * _HEARTBEAT_S
        if self._port is not None:
            parameters.port = self._port
        connection = pika.BlockingConnection(parameters)
        with self._lock:
            self._connection = connection
        self._consume_all()
        self._trouble(None)
        self._connected()
        while not self._closing.is_set():
            connection.process_data_events(5.0)
            self._consume_all()

    def _consume_all(self) -> None:
        now = time.monotonic()
        with self._lock:
            for group, channel in list(self._consumed.items()):
                if not channel.is_open or group in self._cancelled:
                    self._cancelled.discard(group)
                    del self._consumed[group]
                    self._absent[group] = now
            wanted = [
                group
                for group in self._groups
                if group not in self._consumed and now - self._absent.get(group, -_ASK_AGAIN_S) >= _ASK_AGAIN_S
            ]
        for group in wanted:
            self._consume(group)

    def _consume(self, group: str) -> None:
        from pika.exceptions import ChannelClosed

        channel = self._connection.channel()  # of its own: a queue that is not there closes its channel
        channel.basic_qos(prefetch_count=_AT_ONCE)
        channel.add_on_cancel_callback(lambda _: self._cancelled.add(group))
        try:
            channel.basic_consume(f"{self._prefix}{group}", self._message)
        except ChannelClosed:
            with self._lock:
                self._absent[group] = time.monotonic()
            return
        with self._lock:
            self._consumed[group] = channel
            self._absent.pop(group, None)

    def _message(self, channel: Any, deliver: Any, properties: Any, body: bytes) -> None:
        from globus_compute_common import messagepack
        from globus_compute_common.messagepack.message_types import Result

        try:
            found = messagepack.unpack(body)
        except Exception:
            found = None
        if not isinstance(found, Result):
            # Nobody will ever understand it, and the service has the result if it was one.
            channel.basic_nack(deliver.delivery_tag, requeue=False)
            return
        if (properties.headers or {}).get("high_assurance"):
            self._withheld(str(found.task_id))
        else:
            self._heard(str(found.task_id), found.data, found.is_error)
        channel.basic_ack(deliver.delivery_tag)

    def _drop(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            self._consumed.clear()
            self._absent.clear()
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()


def _outage(error: Exception) -> HpcAgentError:
    if isinstance(error, HpcAgentError):
        return error
    words = hidden(f"{type(error).__name__}: {error}".rstrip(": "))[:300]
    return Outage(f"The queue of results cannot be heard: {words}.")
