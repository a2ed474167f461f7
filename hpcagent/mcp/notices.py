"""Push: what happens in the workspace, told to those streams whose caller may see it.

Each person who listens has one thread (`Watch`) with a subscription to the workspace's events in that person's
name. The service decides what they may see; here nothing is told to anybody else. Notices are level triggers: who
gets one reads the resource anew, and polling always suffices.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mcp.server.subscriptions import ServerEvent

from hpcagent.errors import SiteFailed
from hpcagent.mcp.callers import Caller, caller_now
from hpcagent.mcp.watching import Watch

__all__ = ["Notices"]

log = logging.getLogger(__name__)

Listener = Callable[[ServerEvent], None]


@dataclass(frozen=True, slots=True)
class _Ear:
    """A stream that listens: whose, on which loop, and what is called there."""

    person: str
    loop: asyncio.AbstractEventLoop
    listener: Listener

    def tell(self, events: Iterable[ServerEvent]) -> None:
        """Have it told on its own loop, from any thread; one that is closed hears nothing."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._told, tuple(events))

    def _told(self, events: tuple[ServerEvent, ...]) -> None:
        for event in events:
            try:
                self.listener(event)
            except Exception:  # one stream that fails keeps no notice from the others
                log.exception("a stream did not take %r", event)


class Notices:
    """The bus of one server, as the SDK's `SubscriptionBus`, and the threads that feed it."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._ears: dict[object, _Ear] = {}
        self._watches: dict[str, Watch] = {}
        self._leaving: list[Watch] = []
        self._closed = False

    async def publish(self, event: ServerEvent) -> None:
        """Tell every stream that has asked for it: a list that is the same for all has changed."""
        self._tell(None, (event,))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Have a stream of the caller of this request told; returns what ends that."""
        token = object()
        ear = _Ear(caller_now().person, asyncio.get_running_loop(), listener)
        with self._turn:
            self._ears[token] = ear

        def unsubscribe() -> None:
            with self._turn:
                self._ears.pop(token, None)

        return unsubscribe

    def _tell(self, person: str | None, events: Iterable[ServerEvent]) -> None:
        with self._turn:
            ears = [one for one in self._ears.values() if person in (None, one.person)]
        for ear in ears:
            ear.tell(events)

    def attend(self, caller: Caller, uris: Iterable[str]) -> Watch:
        """Have the workspace's events of a caller told from now on; waits for the workspace.

        Args:
            caller: Whose.
            uris: Resources that are to be looked at as well, where no event tells of a change.

        Raises:
            HpcAgentError: The workspace does not answer, or the server ends.
        """
        with self._turn:
            if self._closed:
                raise SiteFailed("the server ends at this moment; listen to the next one.")
            watch = self._watches.get(caller.person)
            if watch is None:
                watch = Watch(caller.workspace, lambda events: self._tell(caller.person, events))
                self._watches[caller.person] = watch
            watch.join(uris)
        try:
            watch.begin()
        except BaseException:
            self.leave(watch, uris)
            raise
        return watch

    def leave(self, watch: Watch, uris: Iterable[str]) -> None:
        """A stream has ended; with a person's last one their thread ends. Waits for nothing."""
        with self._turn:
            if watch.leave(uris):
                return
            self._watches = {name: one for name, one in self._watches.items() if one is not watch}
            self._leaving = [one for one in self._leaving if one.alive]
            self._leaving.append(watch)
        watch.stop()

    def close(self) -> None:
        """End all threads; nobody is told anything any more."""
        with self._turn:
            self._closed = True
            watches = [*self._watches.values(), *self._leaving]
            self._watches, self._leaving = {}, []
            self._ears.clear()
        for watch in watches:
            watch.stop()
        for watch in watches:
            watch.ended()
