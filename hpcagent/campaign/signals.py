"""Ctrl-C, SIGTERM and a lost connection that never cut a record in half."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["Signals", "Terminated"]

_SAME_S = 1.0
"""Signals within so short a time are one: `timeout` and some schedulers send it to a process and to its group."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived; handled like Ctrl-C.

    Attributes:
        name: Of the signal.
    """

    def __init__(self, name: str = "SIGTERM") -> None:
        super().__init__(name)
        self.name = name


class Signals:
    """Holds back SIGINT, SIGTERM and SIGHUP while something is written, delivers them at the next safe point.

    SIGHUP comes when the terminal has gone, as with a lost ssh connection. Where it is ignored (nohup, `--detach`)
    it stays so. Does nothing outside the main thread, where Python delivers no signals.
    """

    def __init__(self) -> None:
        self._held = 0
        self._asked: KeyboardInterrupt | None = None
        self._asked_at = 0.0
        self._before: dict[int, Any] = {}
        self._terminals: list[int] = []

    def install(self) -> None:
        """Take over the signals until `restore`."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._terminals = [descriptor for descriptor in (0, 1, 2) if os.isatty(descriptor)]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._received)

    def restore(self) -> None:
        """Put the earlier handlers back; where others have been installed since, they put back ours no more."""
        for number, handler in self._before.items():
            now = signal.getsignal(number)
            if now == self._received:
                with contextlib.suppress(TypeError, ValueError):
                    signal.signal(number, handler)
                continue
            while isinstance(owner := getattr(now, "__self__", None), Signals):
                now = owner._before.get(number)
                if now == self._received:
                    owner._before[number] = handler
        self._before = {}

    def _received(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._leave_terminals()
        error = KeyboardInterrupt() if number == signal.SIGINT else Terminated(signal.Signals(number).name)
        if self._held and self._asked is None:
            self._asked, self._asked_at = error, time.monotonic()
        elif not self._held or time.monotonic() - self._asked_at > _SAME_S:
            # The second while the first still waits: whoever sends it does not want to wait. Records stand a kill
            # at any moment; what is cut off here is set aside when they are read.
            self._asked = None
            raise error

    def _leave_terminals(self) -> None:
        """Print to nowhere what would have gone to a terminal that is no more, where every write is an error."""
        gone = [descriptor for descriptor in self._terminals if not os.isatty(descriptor)]
        if gone:
            nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            for descriptor in gone:
                os.dup2(nowhere, descriptor)
            os.close(nowhere)

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
