"""Events of a folder: told once, kept for a while, and brought to those who have subscribed and may see them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpcagent.contexts.admitted import admitted, admitted_word
from hpcagent.contexts.bell import POLL_S
from hpcagent.contexts.event_log import EventLog
from hpcagent.contexts.filters import Filter
from hpcagent.contexts.lines import Line
from hpcagent.contexts.register import Register
from hpcagent.errors import BadInput, Damaged, in_brief, nearest
from hpcagent.store.files import make_folder, open_plain, refusing_clearly

__all__ = [
    "EVERYONE",
    "MISSED",
    "NAMES",
    "Delivery",
    "Events",
    "Notification",
    "Subscription",
    "Told",
    "check_name",
    "event_of",
]

EVERYONE = "*"
"""The owner of events that everybody may see."""
MISSED = "on_events_missed"
"""Told to a subscriber that was away for longer than events are kept."""

# Name -> the fields that its payload has at least.
NAMES: dict[str, tuple[str, ...]] = {
    "on_job_started": ("job_id",),
    "on_job_complete": ("job_id", "result_url"),
    "on_job_failed": ("job_id", "reason"),
    "on_resource_modified": ("resource",),
    "on_tool_registered": ("tool", "version"),
    "on_tool_deprecated": ("tool", "version"),
    "on_message": ("text",),
    "on_comment_added": ("on", "text"),
    "on_quota_exceeded": ("quota",),
    "on_auth_expiring": ("service", "expires_at"),
    "on_context_update": ("context_id", "version"),
}
KEEP = 100_000
KEEP_S = 30 * 86400.0
_MOST_SUBSCRIPTIONS = 1000
# So many ended ones are told apart from those that never were.
_ENDED_KEPT = 1000
_MOST_READERS = 1000
_LONGEST_CHAIN = 50
# A cursor is moved over events that nobody was told of only so often.
_SKIP = 500
_CURSOR_BYTES = 30
_BY_KEY = uuid.UUID("6f0b1f0e-5d1c-4a53-9a3e-0d6f6f1f3c55")  # ids that follow from owner and key


@dataclass(frozen=True, slots=True)
class Told:
    """An event.

    Attributes:
        n: Its number; later events have higher ones.
        at: When, as Unix time in seconds.
        event: Its name.
        payload: What it says.
        owner: Whose it is; `EVERYONE`: everybody may see it.
        readers: Who else may see it.
        by: Who told it.
        key: Tells it from others also when it is told twice, e.g. after a crash; `event-N` where none was given.
        cause: The triggers that led to it, the first of all first.
    """

    n: int
    at: float
    event: str
    payload: dict[str, Any]
    owner: str
    readers: tuple[str, ...] = ()
    by: str = ""
    key: str = ""
    cause: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Notification:
    """An event that a subscriber gets.

    Attributes:
        subscription_id: By which subscription.
        event: The event's name.
        payload: What it says, with `timestamp` (ISO 8601, UTC).
        n: The event's number; `Events.acknowledge` takes it.
    """

    subscription_id: str
    event: str
    payload: dict[str, Any]
    n: int

    def data(self) -> dict[str, Any]:
        """As plain data: `{subscription_id, event, payload}`."""
        return {"subscription_id": self.subscription_id, "event": self.event, "payload": self.payload}


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a look gave.

    Attributes:
        notifications: In the order of the events.
        cursor: Number up to which the events were looked at.
    """

    notifications: tuple[Notification, ...]
    cursor: int


class Events:
    """The events of a folder. Several processes may tell and take them.

    Args:
        folder: The folder; made with the first event.
        keep: Events that are kept at least, while they are not older than `keep_s`; a subscriber that was away for
            longer is told how many it has missed.
        keep_s: Events older than this are dropped, in seconds.
        may_see: Whether an owner may see an event; by default its owner, its readers, and everybody for events of
            `EVERYONE`.

    Example:
        >>> import tempfile
        >>> from hpcagent.contexts import Events
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     events = Events(folder)
        ...     mine = events.subscribe("on_job_complete", owner="ada", where={"job_type": "reaction_simulation"})
        ...     told = {"job_id": "j7", "job_type": "reaction_simulation", "result_url": "file:///runs/j7.json"}
        ...     n = events.tell("on_job_complete", told, owner="ada")
        ...     got = events.look(mine.subscription_id, owner="ada").notifications
        ...     mine.acknowledgement["status"], got[0].event, got[0].payload["job_id"]
        ('active', 'on_job_complete', 'j7')
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keep: int = KEEP,
        keep_s: float = KEEP_S,
        may_see: Callable[[str, Told], bool] | None = None,
    ) -> None:
        self.folder = Path(folder).expanduser()
        self.log = EventLog(self.folder / "log", keep=keep, keep_s=keep_s)
        self.may_see = may_see or _is_for
        self._keep_s = keep_s
        self._register = Register(
            self.folder / "subscriptions.jsonl", begin=self._forget, apply=self._take, needed=self._needed
        )
        self._lock = threading.RLock()
        self._subscriptions: dict[str, Subscription] = {}
        self._filters: dict[str, Filter] = {}
        self._ended: dict[str, str] = {}

    def tell(
        self,
        event: str,
        payload: Mapping[str, Any],
        *,
        owner: str,
        readers: Iterable[str] = (),
        by: str = "",
        key: str = "",
        cause: Iterable[str] = (),
        sync: bool = False,
    ) -> int:
        """Tell an event.

        Args:
            event: One of `NAMES`, or a name of one's own: an identifier that does not begin with `on_`.
            payload: What it says: plain data; the fields that `NAMES` has for it are there.
            owner: Whose it is; `EVERYONE`: everybody may see it.
            readers: Who else may see it.
            by: Who tells it.
            key: The same for the same event told twice, e.g. `job-7 complete`.
            cause: The `cause` that an action of a trigger was handed, if it led to this.
            sync: Put it on the disk before this returns; else within a second while others are told.

        Returns:
            Its number.

        Raises:
            BadInput: The name is not known, a field is missing, or something may not stand in an event.
            StoreFull: The disk refuses.
            Busy: Another process has held the lock all the while.
        """
        check_name(event)
        if not isinstance(payload, Mapping):
            raise BadInput(f"{event}: the payload is a table; got {in_brief(payload)}.", value=event)
        said = admitted(dict(payload), event)
        for field in NAMES.get(event, ()):
            if said.get(field) in (None, ""):
                raise BadInput(
                    f"{event}: its payload has no {field!r}; it has {', '.join(NAMES[event])} and what else there "
                    "is.",
                    value=field,
                )
        others, chain = tuple(readers), tuple(cause)
        if len(others) > _MOST_READERS or len(chain) > _LONGEST_CHAIN:
            raise BadInput(
                f"{event}: {len(others)} readers and {len(chain)} causes; at most {_MOST_READERS} and "
                f"{_LONGEST_CHAIN} are allowed."
            )
        data: dict[str, Any] = {"at": time.time(), "event": event, "payload": said}
        data["owner"] = admitted_word(owner, f"{event}: owner")
        data |= {"readers": [admitted_word(one, f"{event}: a reader") for one in others]} if others else {}
        data |= {"by": admitted_word(by, f"{event}: by")} if by else {}
        data |= {"key": admitted_word(key, f"{event}: key")} if key else {}
        data |= {"cause": [admitted_word(one, f"{event}: a cause") for one in chain]} if chain else {}
        return self.log.append(data, sync=sync)

    def context_updates(self, *, owner: str, readers: Iterable[str] = ()) -> Callable[[str, int, str], int]:
        """What `Contexts(announce=...)` takes to tell `on_context_update` of every write.

        Args:
            owner: Whose events they are.
            readers: Who else may see them.
        """
        others = tuple(readers)
        return lambda id, version, by: self.tell(
            "on_context_update",
            {"context_id": id, "version": version, "by": by},
            owner=owner,
            readers=others,
            by=by,
        )

    def subscribe(
        self,
        events: str | Iterable[str],
        *,
        owner: str,
        where: Mapping[str, Any] | None = None,
        after: int | None = None,
        expires_s: float | None = None,
        key: str = "",
    ) -> Subscription:
        """Subscribe to events by name.

        Args:
            events: One name or several.
            owner: Who subscribes; gets only what that owner may see.
            where: Conditions on the payload, see `Filter`.
            after: Begin behind this event; None: with those that are told from now on; 0: with the oldest kept.
            expires_s: It ends by itself after so many seconds; None: it does not.
            key: The same for the same request that is sent twice: there is one subscription.

        Returns:
            The subscription; its `acknowledgement` is `{subscription_id, status: "active"}`.

        Raises:
            BadInput: A name or a condition makes no sense, or the owner has very many subscriptions.
            StoreFull: The disk refuses.
        """
        names = (events,) if isinstance(events, str) else tuple(events)
        if not names:
            raise BadInput("a subscription without an event; name at least one.")
        for name in names:
            check_name(name)
        if owner == EVERYONE:
            raise BadInput(f"owner={owner!r} is nobody; a subscription has the owner who gets the events.")
        if expires_s is not None and not 0 < expires_s < 1e10:
            raise BadInput(f"expires_s={expires_s} is no time in which it could expire.", value=expires_s)
        wanted = Filter(where)
        identity = uuid.uuid5(_BY_KEY, f"{owner}\n{key}").hex if key else uuid.uuid4().hex
        if key:
            with self._lock:
                self._catch_up()
                found = self._subscriptions.get(identity)
            if found is not None and not _expired(found):
                return found
        last = self.log.last()
        made = Subscription(
            subscription_id=identity,
            owner=admitted_word(owner, "owner"),
            events=names,
            where=wanted.where,
            after=last if after is None else min(max(after, 0), last),
            expires_at=None if expires_s is None else time.time() + expires_s,
        )
        self._enter(_entry_of(made), limited=made.owner)
        return made

    def unsubscribe(self, subscription_id: str, *, owner: str) -> None:
        """End a subscription; again, it does nothing.

        Raises:
            BadInput: The owner has no such subscription.
        """
        with self._lock:
            self._catch_up()
            if self._ended.get(subscription_id) == owner:
                return
        self.subscription(subscription_id, owner=owner)
        self._enter({"do": "unsubscribe", "subscription_id": subscription_id})
        with contextlib.suppress(OSError):
            self._cursor(subscription_id).unlink()

    def subscriptions(self, *, owner: str) -> tuple[Subscription, ...]:
        """The active subscriptions of an owner, the oldest first."""
        with self._lock:
            self._catch_up()
            return tuple(s for s in self._subscriptions.values() if s.owner == owner and not _expired(s))

    def subscription(self, subscription_id: str, *, owner: str) -> Subscription:
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
                f"({_timestamp(found.expires_at or 0.0)}); subscribe anew, after={self._cursor_of(found)} goes on "
                "where it ended.",
                value=subscription_id,
            )
        return found

    def look(self, subscription_id: str, *, owner: str, most: int = 100) -> Delivery:
        """The next notifications of a subscription. The same ones come again until they are acknowledged.

        Args:
            subscription_id: Which.
            owner: Whose it is.
            most: So many notifications at most.

        Raises:
            BadInput: See `subscription`.
            Damaged: The journal of events is not as it was written; `log.repair()` sets the damage aside.
        """
        subscription = self.subscription(subscription_id, owner=owner)
        before = cursor = self._cursor_of(subscription)
        wanted = self._filter(subscription)
        found: list[Notification] = []
        while len(found) < most:
            lines, missed = self.log.read(cursor, max(most, _SKIP))
            if missed:
                gone: dict[str, Any] = {"first": cursor + 1, "last": cursor + missed, "count": missed}
                gone["timestamp"] = _timestamp(time.time())
                found.append(Notification(subscription_id, MISSED, gone, cursor + missed))
                cursor += missed
            for line in lines:
                if len(found) >= most:
                    return Delivery(tuple(found), cursor)
                cursor = line.n
                told = event_of(line)
                if told.event in subscription.events and self.may_see(owner, told) and wanted.meets(told.payload):
                    said = {"timestamp": _timestamp(told.at), **told.payload}
                    found.append(Notification(subscription_id, told.event, said, told.n))
            if not lines:
                break
        if not found and cursor - before >= _SKIP:
            self._keep_cursor(subscription_id, cursor)
        return Delivery(tuple(found), cursor)

    def acknowledge(self, subscription_id: str, n: int, *, owner: str) -> None:
        """Say that all notifications up to an event's number have come: they do not come again.

        Args:
            subscription_id: Which.
            n: The number; one that was acknowledged before changes nothing.
            owner: Whose it is.

        Raises:
            BadInput: See `subscription`, or there is no such event yet.
            StoreFull: The disk refuses.
        """
        subscription = self.subscription(subscription_id, owner=owner)
        if n > self._cursor_of(subscription):
            if not self.log.has(n):
                last = self.log.last()
                raise BadInput(
                    f"event {n} was not told yet, the last one is {last}; nothing is acknowledged.", value=n
                )
            self._keep_cursor(subscription_id, n)

    def notifications(
        self, subscription_id: str, *, owner: str, timeout_s: float | None = None, poll_s: float = POLL_S
    ) -> Iterator[Notification]:
        """Wait for notifications and yield each. One is acknowledged when the next is asked for.

        So what was being worked on when the process was killed comes again. What came before is not lost either: a
        subscriber that was away gets it first.

        Args:
            subscription_id: Which.
            owner: Whose it is.
            timeout_s: End when none has come for so long; None: never.
            poll_s: So often the folder is looked at where nothing wakes it (a network file system), in seconds.

        Raises:
            As `look`, also when the subscription ends meanwhile.
        """
        with self.log.bell.listen(poll_s=poll_s) as listener:
            quiet_since = time.monotonic()
            while True:
                delivery = self.look(subscription_id, owner=owner)
                for notification in delivery.notifications:
                    yield notification
                    self.acknowledge(subscription_id, notification.n, owner=owner)
                    quiet_since = time.monotonic()
                if delivery.notifications:
                    continue
                rest = poll_s
                if timeout_s is not None:
                    rest = min(poll_s, quiet_since + timeout_s - time.monotonic())
                    if rest <= 0:
                        return
                listener.wait(None, rest)

    def _filter(self, subscription: Subscription) -> Filter:
        id = subscription.subscription_id
        if id not in self._filters:
            self._filters[id] = Filter(subscription.where)
        return self._filters[id]

    def _cursor(self, subscription_id: str) -> Path:
        return self.folder / "cursors" / subscription_id

    def _cursor_of(self, subscription: Subscription) -> int:
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

    def _keep_cursor(self, subscription_id: str, n: int) -> None:
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

    def _enter(self, entry: Mapping[str, Any], *, limited: str = "") -> None:
        def check() -> None:
            mine = [s for s in self._subscriptions.values() if s.owner == limited and not _expired(s)]
            if len(mine) >= _MOST_SUBSCRIPTIONS:
                raise BadInput(
                    f"{limited!r} has {len(mine)} subscriptions; at most {_MOST_SUBSCRIPTIONS} are allowed. End "
                    "some (`unsubscribe`), or give them expires_s."
                )

        with self._lock:
            known = set(self._subscriptions)
            self._register.compact()
            for id in known - self._subscriptions.keys():
                with contextlib.suppress(OSError):
                    self._cursor(id).unlink()
            self._register.enter(entry, sync=True, check=check if limited else None)

    def _catch_up(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._register.catch_up()

    def _forget(self) -> None:
        self._subscriptions.clear()
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


def _is_for(owner: str, told: Told) -> bool:
    return told.owner in (owner, EVERYONE) or owner in told.readers


def _expired(subscription: Subscription) -> bool:
    return subscription.expires_at is not None and time.time() >= subscription.expires_at


def check_name(event: object) -> None:
    if event in NAMES:
        return
    if not isinstance(event, str) or not event.isidentifier() or len(event) > 100:
        raise BadInput(
            f"{in_brief(event)} is no name of an event; a name of your own is an identifier (letters, digits, _).",
            value=event,
        )
    if event.startswith("on_"):
        raise BadInput(
            f"{event!r} is no event; {nearest(event, NAMES)} A name of your own does not begin with on_.",
            value=event,
        )


def event_of(line: Line) -> Told:
    """The event of a line.

    Raises:
        Damaged: It is none.
    """
    data = line.data
    try:
        return Told(
            n=line.n,
            at=float(data["at"]),
            event=str(data["event"]),
            payload=dict(data["payload"]),
            owner=str(data["owner"]),
            readers=tuple(data.get("readers", ())),
            by=str(data.get("by", "")),
            key=str(data.get("key", "") or f"event-{line.n}"),
            cause=tuple(data.get("cause", ())),
        )
    except (KeyError, TypeError, ValueError) as error:
        why = f"event {line.n} is none ({error!r}): another program has written it."
        raise Damaged(why, version=line.n - 1) from None


def _timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
