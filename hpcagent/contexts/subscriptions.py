"""Who has subscribed to events of a folder: their subscriptions, and how far each has come."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcagent.contexts.filters import Filter
from hpcagent.contexts.lines import Line
from hpcagent.contexts.register import Register
from hpcagent.contexts.told import timestamp
from hpcagent.errors import BadInput, Damaged, in_brief
from hpcagent.store.files import make_folder, open_plain, refusing_clearly

__all__ = ["Subscription", "Subscriptions"]

_MOST_SUBSCRIPTIONS = 1000
# So many ended ones are told apart from those that never were.
_ENDED_KEPT = 1000
_CURSOR_BYTES = 30


@dataclass(frozen=True, slots=True)
class Subscription:
    """Who wants which events.

    Attributes:
        subscription_id: Its id.
        owner: Who gets them, and may see what they say.
        events: Names.
        where: Conditions on the payload, see `Filter`.
        after: Number of the last event before it.
        expires_at: When it ends by itself, as Unix time in seconds; None: it does not.
        status: `active`.
    """

    subscription_id: str
    owner: str
    events: tuple[str, ...]
    where: dict[str, Any]
    after: int
    expires_at: float | None = None
    status: str = "active"

    @property
    def acknowledgement(self) -> dict[str, str]:
        """What the subscriber is answered: `{subscription_id, status}`."""
        return {"subscription_id": self.subscription_id, "status": self.status}


class Subscriptions:
    """Who has subscribed in a folder, and how far each has come. Several processes may enter and end them.

    Args:
        folder: The folder of the events.
        keep_s: So long an expired one is known, in seconds.
    """

    def __init__(self, folder: Path, *, keep_s: float) -> None:
        self._folder = folder
        self._keep_s = keep_s
        self._register = Register(
            folder / "subscriptions.jsonl", begin=self._forget, apply=self._take, needed=self._needed
        )
        self._lock = threading.RLock()
        self._subscriptions: dict[str, Subscription] = {}
        self._filters: dict[str, Filter] = {}
        self._ended: dict[str, str] = {}

    def add(self, made: Subscription) -> None:
        """Write down a subscription.

        Raises:
            BadInput: Its owner has very many.
            StoreFull: The disk refuses.
        """

        def check() -> None:
            mine = [s for s in self._subscriptions.values() if s.owner == made.owner and not _expired(s)]
            if len(mine) >= _MOST_SUBSCRIPTIONS:
                raise BadInput(
                    f"{made.owner!r} has {len(mine)} subscriptions; at most {_MOST_SUBSCRIPTIONS} are allowed. "
                    "End some (`unsubscribe`), or give them expires_s."
                )
            if made.subscription_id not in {s.subscription_id for s in mine}:
                with contextlib.suppress(OSError):  # of one that was of this id and has expired
                    self._cursor(made.subscription_id).unlink()

        self._enter(_entry_of(made), check=check)

    def end(self, subscription_id: str, *, owner: str) -> None:
        """End a subscription; again, it does nothing.

        Raises:
            BadInput: The owner has no such subscription.
        """
        with self._lock:
            self._catch_up()
            if self._ended.get(subscription_id) == owner:
                return
        self.active(subscription_id, owner=owner)
        self._enter({"do": "unsubscribe", "subscription_id": subscription_id})
        with contextlib.suppress(OSError):
            self._cursor(subscription_id).unlink()

    def known(self, subscription_id: str) -> Subscription | None:
        """The active subscription of this id, if there is one."""
        with self._lock:
            self._catch_up()
            found = self._subscriptions.get(subscription_id)
        return None if found is None or _expired(found) else found

    def of(self, owner: str) -> tuple[Subscription, ...]:
        """The active subscriptions of an owner, the oldest first."""
        with self._lock:
            self._catch_up()
            return tuple(s for s in self._subscriptions.values() if s.owner == owner and not _expired(s))

    def active(self, subscription_id: str, *, owner: str) -> Subscription:
        """An active subscription.

        Raises:
            BadInput: The owner has none with this id, or it has ended.
        """
        with self._lock:
            self._catch_up()
            found = self._subscriptions.get(subscription_id)
            ended = self._ended.get(subscription_id) == owner
        if found is None or found.owner != owner:  # one of another owner is as unknown as none
            why = "was ended" if ended else "is not known"
            raise BadInput(
                f"subscription {in_brief(subscription_id)} of {in_brief(owner)} {why}; subscribe anew.",
                value=owner,
            )
        if _expired(found):
            raise BadInput(
                f"subscription {subscription_id!r} has expired "
                f"({timestamp(found.expires_at or 0.0)}); subscribe anew, after={self.cursor_of(found)} goes on "
                "where it ended.",
                value=subscription_id,
            )
        return found

    def filter_of(self, subscription: Subscription) -> Filter:
        """Its conditions, read once."""
        with self._lock:
            id = subscription.subscription_id
            if self._subscriptions.get(id) is not subscription:  # made anew meanwhile
                return Filter(subscription.where)
            if id not in self._filters:
                self._filters[id] = Filter(subscription.where)
            return self._filters[id]

    def _cursor(self, subscription_id: str) -> Path:
        return self._folder / "cursors" / subscription_id

    def cursor_of(self, subscription: Subscription) -> int:
        """Where a subscription stands; of a cursor that cannot be read where it began: rather twice than never."""
        path = self._cursor(subscription.subscription_id)
        for _ in range(3):  # another process may be writing it this moment
            with contextlib.suppress(OSError, ValueError):
                descriptor = open_plain(path, os.O_RDONLY)
                try:
                    number, seal = os.pread(descriptor, _CURSOR_BYTES, 0).split()
                finally:
                    os.close(descriptor)
                if seal == b"%08x" % zlib.crc32(number):
                    return max(int(number), subscription.after)
            if not path.exists():
                break
        return subscription.after

    def keep_cursor(self, subscription_id: str, n: int) -> None:
        """Write down that a subscription has come so far.

        Raises:
            StoreFull: The disk refuses.
        """
        path = self._cursor(subscription_id)
        number = b"%020d" % n
        with refusing_clearly(path):
            make_folder(path.parent)
            # In place and in one write, far below a block: a rename for each costs a file system a flush.
            descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT)
            try:
                os.pwrite(descriptor, b"%s %08x\n" % (number, zlib.crc32(number)), 0)
            finally:
                os.close(descriptor)

    def bring_back(self, subscription: Subscription, n: int) -> None:
        """Have a subscription stand at an event before the one it had come to.

        Raises:
            BadInput: It was ended meanwhile.
            StoreFull: The disk refuses.
        """
        id, owner = subscription.subscription_id, subscription.owner
        self.keep_cursor(id, n)
        if subscription.after > n:
            entry = _entry_of(replace(subscription, after=n))
            self._enter(entry, check=lambda: self.active(id, owner=owner))

    def _enter(self, entry: Mapping[str, Any], *, check: Callable[[], object] | None = None) -> None:
        with self._lock:
            known = set(self._subscriptions)
            self._register.compact()
            for id in known - self._subscriptions.keys():
                with contextlib.suppress(OSError):
                    self._cursor(id).unlink()
            self._register.enter(entry, sync=True, check=check)

    def _catch_up(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._register.catch_up()

    def _forget(self) -> None:
        self._subscriptions.clear()
        self._filters.clear()
        self._ended.clear()

    def _needed(self) -> Iterator[dict[str, Any]]:
        """What the register keeps: subscriptions that are active or expired lately, and the last that were ended.

        Those that expired before any event that is kept are as unknown then as those that never were.
        """
        for id, owner in list(self._ended.items())[-_ENDED_KEPT:]:
            yield {"do": "ended", "subscription_id": id, "owner": owner}
        for made in self._subscriptions.values():
            if made.expires_at is None or made.expires_at > time.time() - self._keep_s:
                yield _entry_of(made)

    def _take(self, line: Line) -> None:
        data = line.data
        try:
            id = str(data["subscription_id"])
            if data["do"] == "subscribe":
                self._filters.pop(id, None)
                self._subscriptions[id] = Subscription(
                    subscription_id=id,
                    owner=str(data["owner"]),
                    events=tuple(data["events"]),
                    where=dict(data["where"]),
                    after=int(data["after"]),
                    expires_at=data["expires_at"],
                )
            elif data["do"] == "ended":
                self._ended[id] = str(data["owner"])
            else:
                gone = self._subscriptions.pop(id, None)
                self._filters.pop(id, None)
                if gone is not None:
                    self._ended[id] = gone.owner
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(
                f"{self._register.path}, line {line.n}: it is no subscription ({error!r}).", version=line.n - 1
            ) from None


def _entry_of(made: Subscription) -> dict[str, Any]:
    """A subscription as the register has it."""
    facts = {name: getattr(made, name) for name in Subscription.__slots__ if name != "status"}
    return {"do": "subscribe", **facts}


def _expired(subscription: Subscription) -> bool:
    return subscription.expires_at is not None and time.time() >= subscription.expires_at
