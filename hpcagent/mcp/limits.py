"""How much a caller may ask: requests a second, requests at a time, characters of an answer."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from pydantic import BaseModel

from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.mcp.serving import refusal

__all__ = ["LIMIT_EXCEEDED", "Bucket", "Limits", "size_of"]

LIMIT_EXCEEDED = -32005
"""Error code of a refused request that is no call of a tool; `data.retry_after_s` says when to come back."""

# So many callers are counted one by one; beyond it the one who has asked for longest ago is forgotten.
MOST_CALLERS = 4096


@dataclass(slots=True)
class Bucket:
    """What a caller may still ask, and what of theirs is being answered."""

    tokens: float
    at: float
    busy: int = 0
    streams: int = 0


@dataclass
class Limits:
    """Limits of each caller, and the count of what they have used.

    Attributes:
        burst: Requests that may come at once after a pause.
        per_s: Requests a second in the long run.
        at_once: Requests that are answered at a time; others are refused.
        streams: Subscriptions that are open at a time.
        largest_answer: Characters of an answer, at most; about: numbers and marks are not counted exactly.
        now: The clock, in seconds.
    """

    burst: int = 2000
    per_s: float = 200.0
    at_once: int = 2000
    streams: int = 32
    largest_answer: int = 8 << 20
    now: Callable[[], float] = time.monotonic
    _buckets: dict[str, Bucket] = field(default_factory=dict, repr=False)
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    async def answered(self, who: str, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Answer a request of this caller, unless it is one too many.

        Raises:
            MCPError: It is one too many, or its answer is too large, and it is no call of a tool.
        """
        stream = ctx.method == "subscriptions/listen"
        try:
            bucket = self.begin(who, stream=stream)
        except NotAllowed as refused:
            if ctx.method == "tools/call":
                return refusal(refused)
            raise MCPError(LIMIT_EXCEEDED, refused.message, {"retry_after_s": refused.value}) from None
        try:
            answer: HandlerResult = self.cut(ctx.method, await call_next(ctx))
            return answer
        finally:
            self.end(bucket, stream=stream)

    def begin(self, who: str, *, stream: bool = False) -> Bucket:
        """Count a request of this caller, as one that is being answered until `end` is called.

        Args:
            who: The caller.
            stream: It is a subscription, which stays open.

        Raises:
            NotAllowed: Too many have come, or are being answered.
        """
        with self._turn:
            bucket = self._taken(who, stream)
            bucket.busy += not stream
            bucket.streams += stream
        return bucket

    def end(self, bucket: Bucket, *, stream: bool = False) -> None:
        """The request has been answered."""
        with self._turn:
            bucket.busy -= not stream
            bucket.streams -= stream

    def _taken(self, who: str, stream: bool) -> Bucket:
        now = self.now()
        bucket = self._buckets.pop(who, None) or Bucket(float(self.burst), now)
        self._buckets[who] = bucket  # the one that has asked last is the last
        self._forget()
        bucket.tokens = min(float(self.burst), bucket.tokens + (now - bucket.at) * self.per_s)
        bucket.at = now
        if stream and bucket.streams >= self.streams:
            raise _too_many(f"{self.streams} subscriptions are open", f"{self.streams} at a time", 1.0)
        if not stream and bucket.busy >= self.at_once:
            raise _too_many(f"{bucket.busy} requests are being answered", f"{self.at_once} at a time", 1.0)
        if bucket.tokens < 1.0:
            wait_s = (1.0 - bucket.tokens) / self.per_s
            allowed = f"{self.burst} at once and {self.per_s:g} a second"
            raise _too_many("too many requests have come", allowed, wait_s)
        bucket.tokens -= 1.0
        return bucket

    def _forget(self) -> None:
        """Forget those who have asked for longest ago, but not who is being answered."""
        if len(self._buckets) <= MOST_CALLERS:
            return
        for name, bucket in list(self._buckets.items()):
            if not bucket.busy and not bucket.streams:
                del self._buckets[name]
                return

    def cut(self, method: str, answer: Any) -> Any:
        """The answer, or an error in its place where it is too large.

        Raises:
            MCPError: It is the answer to something else than a call of a tool.
        """
        size = size_of(answer, self.largest_answer)
        if size <= self.largest_answer:
            return answer
        refused = NotAllowed(
            "quota",
            f"the answer has more than {self.largest_answer} characters",
            allowed=f"{self.largest_answer} characters",
            do="ask for less: fewer lines, a smaller `most` or `length`, one file instead of all",
        )
        if method == "tools/call":
            return refusal(refused)
        raise MCPError(INTERNAL_ERROR, refused.message)


def _too_many(why: str, allowed: str, wait_s: float) -> NotAllowed:
    seconds = max(1, math.ceil(wait_s))
    return NotAllowed(
        "quota",
        why,
        field="retry_after_s",
        value=seconds,
        allowed=allowed,
        do=f"retry after {seconds} s; get_status need not be asked more than once a second",
    )


def size_of(value: Any, most: int) -> int:
    """Characters of an answer, about; counting ends above `most`.

    Example:
        >>> size_of({"a": ["bcd", 1]}, 100)
        12
    """
    size, left = 0, [value]
    while left and size <= most:
        one = left.pop()
        if isinstance(one, str | bytes):
            size += len(one)
        elif one is None or isinstance(one, int | float):
            size += 8
        elif isinstance(one, dict | Mapping):
            left += one.values()
            size += sum(map(len, map(str, one)))
        elif isinstance(one, BaseModel):
            left += vars(one).values()
            left += (one.model_extra or {}).values()
        elif isinstance(one, Sequence):
            left += one
        else:
            size += 8
    return size
