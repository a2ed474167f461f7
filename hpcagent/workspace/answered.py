"""Requests that a client sends again, as no answer has come: each is done once, and has its first answer."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcagent.errors import BadInput, in_brief

__all__ = ["KNOWN_S", "LONGEST_KEY", "MOST_BYTES", "MOST_KNOWN", "Answered"]

KNOWN_S = 3600.0
"""A key is known for so long after its answer, in seconds; a client sends a request again within two minutes."""
MOST_KNOWN = 10_000
"""So many keys are known, those of the newest answers."""
MOST_BYTES = 10_000_000
"""So much memory they take at most, the newest answer apart, however long it is."""
LONGEST_KEY = 100

# What a key takes beside its answer: the objects that hold it, as CPython has them on 64 bits.
_EACH = 400

# What the journal has of a request that was not answered when the service ended.
_FACTS = ("id", "since", "runs", "names")

Answer = dict[str, Any]
Earlier = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Done:
    """A request that was done.

    Attributes:
        digest: What was asked.
        at: When, in Unix seconds.
        said: Its answer, or what the journal says of it, as JSON: less than the objects would take.
        answered: Whether it is the answer.
    """

    digest: str
    at: float
    said: bytes
    answered: bool

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, about."""
        return _EACH + len(self.said)


class Answered:
    """Answers to requests with a key, by caller and key, for `KNOWN_S`, the last `MOST_KNOWN` in `MOST_BYTES`.

    The first event that a request writes into the journal is marked with its key: so the next service knows it,
    also where the service was killed before it could answer.

    Args:
        clock: Unix time, in seconds.
        most: So many are known.
        most_bytes: So much memory they take.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        most: int = MOST_KNOWN,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._clock, self._most, self._most_bytes = clock, most, most_bytes
        self._bytes = 0
        self._turn = threading.Condition()
        self._known: OrderedDict[str, _Done] = OrderedDict()  # by caller and key, the oldest answer first
        self._going: dict[str, str] = {}  # what is done at this moment, and what was asked
        self._local = (
            threading.local()
        )  # of the thread that does it: its mark until it is written, what was before

    def __len__(self) -> int:
        return len(self._known)

    def once(self, by: str, key: object, do: str, args: Mapping[str, Any], work: Callable[[], Answer]) -> Answer:
        """The answer to a request: of `work`, or the first one where it was sent before.

        While the same request is done by another thread, this waits for its answer.

        Args:
            by: Who asks; another's equal key is another request.
            key: The caller's; one for each request.
            do: What is asked.
            args: With which arguments.
            work: Does it; an answer that says why nothing was done is an answer.

        Raises:
            BadInput: The key is none, or it is that of another request.
        """
        if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
            raise BadInput(
                f"key={in_brief(key)} must be a text of 1 to {LONGEST_KEY} characters, new for each request.",
                value=key,
            )
        mark, digest = _hashed([by, key], 12), _hashed([do, args], 8)
        earlier = None
        with self._turn:
            while (digest_before := self._going.get(mark)) is not None:
                _refuse_other(digest_before, digest, key, do)
                self._turn.wait()
            self._forget()
            known = self._known.get(mark)
            if known is not None:
                _refuse_other(known.digest, digest, key, do)
                said: dict[str, Any] = json.loads(known.said)
                if known.answered:
                    return said
                earlier = said
            self._going[mark] = digest
        self._local.mark, self._local.earlier, self._local.key = {"call": f"{mark}.{digest}"}, earlier, mark
        answer = None
        try:
            answer = work()
        finally:
            self._local.mark, self._local.earlier, self._local.key = {}, None, ""
            with self._turn:
                del self._going[mark]
                if answer is not None:
                    self._keep(mark, _Done(digest, self._clock(), _json(answer), answered=True))
                self._turn.notify_all()
        return answer

    @property
    def earlier(self) -> Earlier | None:
        """What the service before this one has written down of this thread's request, which is done already."""
        found: Earlier | None = getattr(self._local, "earlier", None)
        return found

    @property
    def key(self) -> str:
        """Caller and key of the request that this thread does, as one word; empty: it has none."""
        return str(getattr(self._local, "key", ""))

    def mark(self, event: dict[str, Any]) -> None:
        """Write the key of this thread's request into the first event that says it is done."""
        event |= getattr(self._local, "mark", {})
        self._local.mark = {}

    def also(self, **facts: Any) -> None:
        """Have facts written down with the key, for the answer of a service that begins after this one."""
        if getattr(self._local, "mark", {}):
            self._local.mark |= facts

    def replay(self, event: Mapping[str, Any]) -> None:
        """Take in an event of the journal that has a mark, as a service begins."""
        at = float(event["at"])
        if self.key or at < self._clock() - KNOWN_S:
            return
        mark, _, digest = str(event["call"]).partition(".")
        facts = {name: event[name] for name in _FACTS if name in event}
        self._keep(mark, _Done(digest, at, _json(facts), answered=False))

    def _keep(self, mark: str, known: _Done) -> None:
        self._drop(mark)
        self._known[mark] = known
        self._bytes += known.size
        self._forget()

    def _drop(self, mark: str) -> None:
        before = self._known.pop(mark, None)
        self._bytes -= 0 if before is None else before.size

    def _forget(self) -> None:
        until = self._clock() - KNOWN_S
        while self._known:
            oldest = next(iter(self._known))
            many = len(self._known) > self._most or (self._bytes > self._most_bytes and len(self._known) > 1)
            if not many and self._known[oldest].at >= until:
                return
            self._drop(oldest)


def _refuse_other(before: str, digest: str, key: object, do: str) -> None:
    if before != digest:
        raise BadInput(
            f"key={in_brief(key)} was sent before with another request than this {do!r}; a request that is sent "
            "again is the same in all its arguments, and each other one has a new key.",
            value=key,
        )


def _json(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()


def _hashed(said: object, size: int) -> str:
    return hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=size).hexdigest()
