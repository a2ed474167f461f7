"""Events that the service tells: in their order, and later where a disk refuses them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcagent.contexts.admitted import unsecret
from hpcagent.contexts.events import Events
from hpcagent.errors import HpcAgentError, StoreError
from hpcagent.redacted import redacted_data
from hpcagent.shown import plain

__all__ = ["Outbox"]

MOST_UNTOLD = 10_000
"""Events that wait for a disk; beyond it the oldest are not told."""


class Outbox:
    """What the service has to tell.

    Args:
        events: Where it is told.
        say: Is given a sentence for people where something was not told.

    Attributes:
        told: Whoever waits for notifications waits here.
    """

    def __init__(self, events: Events, say: Callable[[str], None]) -> None:
        self._events, self._say = events, say
        self._turn = threading.Lock()
        self._untold: deque[tuple[str, dict[str, Any], str, str, tuple[str, ...]]] = deque(maxlen=MOST_UNTOLD)
        self.told = threading.Condition()

    def tell(
        self, event: str, owner: str, payload: dict[str, Any], key: str = "", cause: Sequence[str] = ()
    ) -> None:
        """Tell an event; what a disk refuses is told later, in its order, a text that is none costs the event."""
        self.put(event, owner, payload, key, cause)
        self.tell_on()

    def put(
        self, event: str, owner: str, payload: dict[str, Any], key: str = "", cause: Sequence[str] = ()
    ) -> None:
        """Put in its place what `tell_on` is to tell: with the workspace's lock held, and told without it."""
        self._untold.append((event, payload, owner, key, tuple(cause)))

    def tell_on(self) -> None:
        """Tell what is to be told. In order: of what was told last follows what a next service has to tell."""
        if not self._untold:
            return
        with self._turn:
            while self._untold:
                event, payload, owner, key, cause = self._untold[0]
                try:
                    said = _plainly(payload)
                    self._events.tell(event, said, owner=owner, by="workspace", key=key, cause=cause)
                except HpcAgentError as error:
                    later = isinstance(error, StoreError)
                    self._say(f"the event {event} {'is' if later else 'was'} not told: {error.message}")
                    if later:
                        return
                self._untold.popleft()
        self.wake()

    def wake(self) -> None:
        """Whoever waits for notifications looks."""
        with self.told:
            self.told.notify_all()


def _plainly(payload: Mapping[str, Any]) -> dict[str, Any]:
    """What an event says, without credentials and control characters: it is shown to others."""
    shown = redacted_data(
        {name: plain(value) if isinstance(value, str) else value for name, value in payload.items()}
    )
    return {name: unsecret(value) if isinstance(value, str) else value for name, value in shown.items()}
