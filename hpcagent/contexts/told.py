"""What an event is: its name, what was told, and how a subscriber gets it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hpcagent.contexts.lines import Line
from hpcagent.errors import BadInput, Damaged, in_brief, nearest

__all__ = [
    "EVERYONE",
    "MISSED",
    "NAMES",
    "Delivery",
    "Notification",
    "Told",
    "check_name",
    "event_of",
    "timestamp",
]

EVERYONE = "*"
"""The owner of events that everybody may see."""
MISSED = "on_events_missed"
"""Told to a subscriber that was away for longer than events are kept."""
LOST = "a crash of the machine took them; what is told now has their numbers"

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


def check_name(event: object) -> None:
    """Refuse what is no name of an event.

    Raises:
        BadInput: It is neither one of `NAMES` nor a name of one's own.
    """
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
        at = float(data["at"])
        return Told(
            n=line.n,
            at=at,
            event=str(data["event"]),
            payload=dict(data["payload"]),
            owner=str(data["owner"]),
            readers=tuple(data.get("readers", ())),
            by=str(data.get("by", "")),
            # With the time: after a crash of the machine a number may be given twice.
            key=str(data.get("key", "") or f"event-{line.n}-{at}"),
            cause=tuple(data.get("cause", ())),
        )
    except (KeyError, TypeError, ValueError) as error:
        why = f"event {line.n} is none ({error!r}): another program has written it."
        raise Damaged(why, version=line.n - 1) from None


def timestamp(at: float) -> str:
    """A time, Unix time in seconds, in ISO 8601, UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
