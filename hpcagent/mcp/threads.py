"""Threads for what waits for the workspace: calls that wait hold up no quick ones, and no caller the others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from hpcagent.mcp.callers import person_now

__all__ = ["Pool", "in_thread"]

T = TypeVar("T")


class Pool:
    """So many threads, of which one caller has only some at a time.

    Args:
        most: Threads.
        each: Threads of one caller at most.
    """

    def __init__(self, most: int, each: int) -> None:
        self._all = anyio.CapacityLimiter(most)
        self._each = each
        self._of: dict[str, anyio.CapacityLimiter] = {}

    async def run(self, who: str, function: Callable[[], T]) -> T:
        """Call it in a thread once this caller has one left."""
        own = self._of.setdefault(who, anyio.CapacityLimiter(self._each))
        async with AsyncExitStack() as stack:
            # A place belongs to one call: a task that calls twice at once would else be refused.
            place = object()
            try:  # without a turn of the event loop where there is room
                own.acquire_on_behalf_of_nowait(place)
            except anyio.WouldBlock:
                await own.acquire_on_behalf_of(place)
            stack.callback(self._left, who, own, place)
            return await anyio.to_thread.run_sync(function, limiter=self._all)

    def _left(self, who: str, own: anyio.CapacityLimiter, place: object) -> None:
        own.release_on_behalf_of(place)
        found = own.statistics()
        if not found.borrowed_tokens and not found.tasks_waiting:
            self._of.pop(who, None)


_POOLS: RunVar[tuple[Pool, Pool]] = RunVar("hpcagent_mcp_pools")
_QUICK, _WAITING = (32, 8), (64, 16)


async def in_thread(function: Callable[..., T], *args: Any, waits: bool = False) -> T:
    """Call a function that waits for the workspace without holding up other requests.

    Args:
        function: It.
        *args: Its arguments.
        waits: It waits for something to happen, for a moment: such calls have threads of their own.
    """
    pools = _POOLS.get(None)  # of this event loop
    if pools is None:
        pools = Pool(*_QUICK), Pool(*_WAITING)
        _POOLS.set(pools)
    return await pools[waits].run(person_now(), functools.partial(function, *args))
