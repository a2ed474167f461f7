"""Cancelling tasks on an endpoint: asked for by a control file there, and seen to have ended or said not to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Literal

from hpcagent.errors import HpcAgentError
from hpcagent.sites.endpoint import protocol

if TYPE_CHECKING:
    from hpcagent.sites.endpoint.link import AnyLink, Sent
    from hpcagent.sites.endpoint.tasks import Book

__all__ = ["Cancelling"]

_PAUSE_S = 1.0
_AHEAD = {"priority": 0}
"""To be taken before the runs that wait there, which name no priority; the engines of one machine know none."""
_ENDS = {"ended": "cancelled", "never": "cancelled", "finished": "finished"}
"""What the endpoint says of a task, and its end in the ledger. `never`: it ends as soon as a worker takes it."""


class Cancelling:
    """Cancels tasks of one campaign's folder on an endpoint.

    Args:
        link: To the endpoint.
        book: The ledger, where ends are written.
        root: The campaign's folder there.
        resources: What an errand has to ask for, on an MPI engine. None: that it is taken before the runs; where
            the engine refuses that, in its turn.
        pause: Waits between two questions.

    Attributes:
        words: Why the last ones were not seen to have ended.
        ends: Key -> `cancelled` or `ended` (before it was asked for), of those that were.
    """

    def __init__(
        self,
        link: AnyLink,
        book: Book,
        root: str,
        *,
        resources: dict[str, Any] | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._link, self._book, self._root = link, book, root
        self._resources, self._pause = resources, pause
        self._ahead = resources is None
        self.words = ""
        self.ends: dict[str, Literal["cancelled", "ended"]] = {}

    def ask(self, keys: Sequence[str]) -> Sent | None:
        """Ask for it and return at once; None: the way is blocked, and `words` says how."""
        sent = self._send(keys)
        if sent is not None and self._ahead:
            sent.future.add_done_callback(lambda done: self._send(keys) if self._is_refused(done) else None)
        return sent

    def _send(self, keys: Sequence[str]) -> Sent | None:
        try:
            request = protocol.cancel(self._root, list(keys))
            resources = dict(_AHEAD) if self._ahead else self._resources
            return self._link.submit(request, resources=resources, control=True)
        except HpcAgentError as error:
            self.words = str(error)
            return None

    def _is_refused(self, done: Future[Any]) -> bool:
        """Whether a request to be taken first has failed, after which there is none."""
        if not self._ahead or done.cancelled() or done.exception() is None:
            return False
        self._ahead = False
        return True

    def end(self, keys: Sequence[str], *, within_s: float) -> list[str]:
        """Cancel tasks and wait until they are seen to have ended; each end is written down.

        Args:
            keys: Of the tasks.
            within_s: How long to wait.

        Returns:
            Those that were not; why, `words` says.
        """
        left = list(keys)
        noted = False
        deadline = time.monotonic() + within_s
        while left:
            sent = self._send(left)
            if sent is None:
                return left
            wait([sent.future], timeout=max(0.0, deadline - time.monotonic()))
            if not noted and (sent.task_id or sent.future.done()):  # what was never asked for stays open
                self._book.cancelling(left)
                noted = True
            if not sent.future.done():
                self.words = f"the endpoint has not answered within {within_s:g} s"
                return left
            if self._is_refused(sent.future):
                continue
            error = None if sent.future.cancelled() else sent.future.exception()
            if error is not None or sent.future.cancelled():
                self.words = str(error or "the link was closed")
                return left
            left = self._noted(left, sent.future.result())
            if left and time.monotonic() > deadline:
                self.words = f"they have not ended within {within_s:g} s"
                return left
            if left:
                self._pause(_PAUSE_S)
        return []

    def _noted(self, keys: Sequence[str], answer: object) -> list[str]:
        states = answer.get("states") if isinstance(answer, Mapping) else None
        left = []
        for key in keys:
            state = states.get(key) if isinstance(states, Mapping) else None
            if isinstance(state, str) and state in _ENDS:
                self.ends[key] = "ended" if state == "finished" else "cancelled"
                self._book.ended(key, _ENDS[state])
            else:
                left.append(key)
        self._book.flush()
        return left
