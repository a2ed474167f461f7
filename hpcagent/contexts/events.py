"""Events of a folder: told once, kept for a while, and brought to those who have subscribed and may see them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcagent.contexts.admitted import admitted, admitted_word
from hpcagent.contexts.bell import POLL_S
from hpcagent.contexts.event_log import EventLog
from hpcagent.contexts.filters import Filter
from hpcagent.contexts.subscriptions import Subscription, Subscriptions
from hpcagent.contexts.told import (
    EVERYONE,
    LOST,
    MISSED,
    NAMES,
    Delivery,
    Notification,
    Told,
    check_name,
    event_of,
    timestamp,
)
from hpcagent.errors import BadInput, in_brief

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

KEEP = 100_000
KEEP_S = 30 * 86400.0
_MOST_READERS = 1000
_LONGEST_CHAIN = 50
# A cursor is moved over events that nobody was told of only so often.
_SKIP = 500
_BY_KEY = uuid.UUID("6f0b1f0e-5d1c-4a53-9a3e-0d6f6f1f3c55")  # ids that follow from owner and key


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
        self._subscribers = Subscriptions(self.folder, keep_s=keep_s)

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
        if key and (found := self._subscribers.known(identity)) is not None:
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
        self._subscribers.add(made)
        return made

    def unsubscribe(self, subscription_id: str, *, owner: str) -> None:
        """End a subscription; again, it does nothing.

        Raises:
            BadInput: The owner has no such subscription.
        """
        self._subscribers.end(subscription_id, owner=owner)

    def subscriptions(self, *, owner: str) -> tuple[Subscription, ...]:
        """The active subscriptions of an owner, the oldest first."""
        return self._subscribers.of(owner)

    def subscription(self, subscription_id: str, *, owner: str) -> Subscription:
        """An active subscription.

        Raises:
            BadInput: The owner has none with this id, or it has ended.
        """
        return self._subscribers.active(subscription_id, owner=owner)

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
        before = cursor = self._subscribers.cursor_of(subscription)
        wanted = self._subscribers.filter_of(subscription)
        found: list[Notification] = []
        while len(found) < most:
            lines, missed = self.log.read(cursor, max(most, _SKIP))
            if not lines and not missed and (last := self.log.within(cursor)) < cursor:
                # Before anything new has these numbers.
                self._subscribers.bring_back(subscription, last)
                lost: dict[str, Any] = {"first": last + 1, "last": cursor, "count": cursor - last, "why": LOST}
                lost["timestamp"] = timestamp(time.time())
                found.append(Notification(subscription_id, MISSED, lost, last))
                before = cursor = last
                continue
            if missed:
                gone: dict[str, Any] = {"first": cursor + 1, "last": cursor + missed, "count": missed}
                gone["timestamp"] = timestamp(time.time())
                found.append(Notification(subscription_id, MISSED, gone, cursor + missed))
                cursor += missed
            for line in lines:
                if len(found) >= most:
                    return Delivery(tuple(found), cursor)
                cursor = line.n
                told = event_of(line)
                if told.event in subscription.events and self.may_see(owner, told) and wanted.meets(told.payload):
                    said = {"timestamp": timestamp(told.at), **told.payload}
                    found.append(Notification(subscription_id, told.event, said, told.n))
            if not lines:
                break
        if not found and cursor - before >= _SKIP:
            self._subscribers.keep_cursor(subscription_id, cursor)
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
        if n > self._subscribers.cursor_of(subscription):
            if not self.log.has(n):
                last = self.log.last()
                raise BadInput(
                    f"event {n} was not told yet, the last one is {last}; nothing is acknowledged.", value=n
                )
            self._subscribers.keep_cursor(subscription_id, n)

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


def _is_for(owner: str, told: Told) -> bool:
    return told.owner in (owner, EVERYONE) or owner in told.readers
