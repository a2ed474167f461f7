"""Ctrl-C and SIGTERM that never cut a record in half."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["Signals", "Terminated"]


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; handled like Ctrl-C."""


class Signals:
    """Holds back SIGINT and SIGTERM while something is written, delivers them at the next safe point.

    Does nothing outside the main thread, where Python delivers no signals.
    """

    def __init__(self) -> None:
        self._held = 0
        self._asked: type[KeyboardInterrupt] | None = None
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Take over both signals until `restore`."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._received)

    def restore(self) -> None:
        """Put the earlier handlers back."""
        for number, handler in self._before.items():
            with contextlib.suppress(TypeError, ValueError):
                signal.signal(number, handler)
        self._before = {}

    def _received(self, number: int, frame: FrameType | None) -> None:
        error = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        if self._held:
            self._asked = error
        else:
            raise error

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """No interruption inside; one that came in between is raised at the end."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if not self._held and self._asked is not None:
            error, self._asked = self._asked, None
            raise error
