"""What is done when a request has been answered: nobody waits for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

__all__ = ["AFTERWARDS", "Afterwards"]


class Afterwards(threading.local):
    """Work that the thread which answers a request does behind the answer; in other threads it is done at once.

    Example:
        >>> afterwards, done = Afterwards(), []
        >>> with afterwards.answering():
        ...     afterwards.do(lambda: done.append("sent"))
        ...     done.append("answered")
        >>> done
        ['answered', 'sent']
    """

    def __init__(self) -> None:
        self._later: list[Callable[[], None]] | None = None

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """While a request is answered; what was kept for afterwards is done at the end, also where that fails."""
        later: list[Callable[[], None]] = []
        self._later = later
        try:
            yield
        finally:
            self._later = None
            for work in later:
                work()

    def do(self, work: Callable[[], None]) -> None:
        """Do it behind the answer of this thread."""
        if self._later is None:
            work()
        else:
            self._later.append(work)


AFTERWARDS = Afterwards()
