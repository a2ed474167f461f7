"""Approvals: asked for, granted or denied by a person, used once, or expired. State is replay of a journal."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hpcagent.errors import BadInput, NotThere
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.request import Request

__all__ = ["OF_APPROVALS", "Approval", "Approvals"]

OF_APPROVALS = ("approval_asked", "approval_granted", "approval_denied", "approval_used")
"""Lines of a journal about approvals."""

State = Literal["pending", "granted", "denied", "used", "expired"]

MOST_PENDING = 100
"""Approvals of one person that may be pending at a time: a person has to read them."""


@dataclass(frozen=True, slots=True)
class Approval:
    """One approval.

    Attributes:
        id: Its id.
        digest: Of the request that it is bound to.
        words: What would run, where, at what cost at most.
        why: Why a person has to decide.
        asked_by: Who asked for it.
        asked_at: Unix time, in seconds.
        expires_at: Likewise.
        state: Where it stands.
        decided_by: Who granted or denied it.
        note: What they said.
        used_for: The run or campaign that used it.
    """

    id: str
    digest: str
    words: str
    why: str
    asked_by: str
    asked_at: float
    expires_at: float
    state: State = "pending"
    decided_by: str = ""
    note: str = ""
    used_for: str = ""
    request: Mapping[str, Any] = field(default_factory=dict)

    def at(self, now: float) -> Approval:
        """As it stands now: what nobody has used by its time has expired."""
        if self.state in ("pending", "granted") and now >= self.expires_at:
            return replace(self, state="expired")
        return self


class Approvals:
    """All approvals of a workspace.

    Args:
        write: Appends events to the journal; an approval holds once this has returned.
        clock: Unix time, in seconds.
        expires_s: How long an approval holds after it was asked for, and after it was granted.
    """

    def __init__(
        self, write: Callable[[dict[str, Any]], None], *, clock: Callable[[], float], expires_s: float
    ) -> None:
        self._write, self._clock, self.expires_s = write, clock, expires_s
        self._all: dict[str, Approval] = {}
        self._open: dict[str, str] = {}  # digest and asker -> id of the one that is pending or granted

    def replay(self, event: Mapping[str, Any]) -> None:
        """Take in an event of the journal."""
        kind = event["event"]
        if kind == "approval_asked":
            names = ("id", "digest", "words", "why", "asked_by", "asked_at", "expires_at", "request")
            one = Approval(**{name: event[name] for name in names})
            self._all[one.id] = one
            self._open[_key(one.digest, one.asked_by)] = one.id
            return
        one = self._all[event["id"]]
        if kind == "approval_used":
            one = replace(one, state="used", used_for=event["by_run"])
        else:
            granted = kind == "approval_granted"
            one = replace(
                one,
                state="granted" if granted else "denied",
                decided_by=event["by"],
                note=event["note"],
                expires_at=event.get("expires_at", one.expires_at),
            )
        self._all[one.id] = one

    def ask(self, request: Request, why: str, asked_by: str) -> Approval:
        """The approval of a request: one that is open already, or a new one that waits for a person.

        Raises:
            NotAllowed: As many of the same person wait already as may.
        """
        now = self._clock()
        known = self._all.get(self._open.get(_key(request.digest, asked_by), ""))
        if known is not None and known.at(now).state in ("pending", "granted"):
            return known
        waiting = sum(one.asked_by == asked_by and one.at(now).state == "pending" for one in self._all.values())
        if waiting >= MOST_PENDING:
            raise NotAllowed(
                "approval",
                f"{waiting} requests of {asked_by} wait for a person already",
                field="approvals_pending",
                value=waiting,
                allowed=f"{MOST_PENDING} of one person",
                do="wait until some of them are decided, or have expired",
            )
        identity = f"a-{secrets.token_urlsafe(9)}"
        event = {
            "event": "approval_asked",
            "id": identity,
            "digest": request.digest,
            "words": request.words(),
            "why": why,
            "asked_by": asked_by,
            "asked_at": now,
            "expires_at": now + self.expires_s,
            "request": request.model_dump(mode="json"),
        }
        self._write(event)
        self.replay(event)
        return self._all[identity]

    def decide(self, identity: str, *, grant: bool, by: str, note: str = "") -> Approval:
        """Grant or deny.

        Raises:
            BadInput: There is no such approval, or it has been decided, used, or has expired.
        """
        now = self._clock()
        one = self.get(identity)
        if one.decided_by == by and one.state == ("granted" if grant else "denied"):
            return one  # said again, as after a lost answer
        if one.state != "pending":
            raise BadInput(
                f"approval {identity} is {one.state}{f' ({one.decided_by})' if one.decided_by else ''}; only one "
                "that is pending can be decided. A new request asks for a new one.",
                value=identity,
            )
        event: dict[str, Any] = {
            "event": "approval_granted" if grant else "approval_denied",
            "id": identity,
            "by": by,
            "note": note,
            "at": now,
        }
        if grant:
            event["expires_at"] = now + self.expires_s
        self._write(event)
        self.replay(event)
        return self._all[identity]

    def use(self, request: Request, asked_by: str, why: str) -> Approval:
        """The granted approval of a request, which `used` makes void.

        Raises:
            NotAllowed: It is pending, was denied, or is not there yet: it is asked for now.
        """
        denied = self._denied(request, asked_by)
        if denied is not None:
            raise NotAllowed(
                "approval",
                f"{denied.decided_by} has denied it{f': {denied.note}' if denied.note else ''}",
                do="ask for something else, or talk to them",
                approval=denied.id,
            )
        one = self.ask(request, why, asked_by)
        if one.state != "granted":
            raise NotAllowed(
                "approval",
                f"a person has to approve {one.words}: {why}",
                do=f"hpcagent workspace approve {one.id} (or deny), by somebody with the right to; then ask again",
                approval=one.id,
            )
        if one.digest != request.digest:
            raise NotAllowed("approval", "it was given for another request", do="ask again", approval=one.id)
        return one

    def used(self, one: Approval, by_run: str) -> dict[str, Any]:
        """The event by which an approval is used; written together with the run that uses it."""
        return {"event": "approval_used", "id": one.id, "by_run": by_run, "at": self._clock()}

    def mark_used(self, identity: str, by_run: str) -> None:
        """An approval that a run names is used, whatever became of the line that says so."""
        one = self._all.get(identity)
        if one is not None and one.state != "used":
            self._all[identity] = replace(one, state="used", used_for=by_run)

    def _denied(self, request: Request, asked_by: str) -> Approval | None:
        """A denial holds for the same request of the same caller, until its time is over."""
        one = self._all.get(self._open.get(_key(request.digest, asked_by), ""))
        if one is None or one.state != "denied" or self._clock() >= one.expires_at:
            return None
        return one

    def get(self, identity: str) -> Approval:
        """As it stands now.

        Raises:
            BadInput: There is none.
        """
        one = self._all.get(identity)
        if one is None:
            raise NotThere(
                f"there is no approval {identity!r}; `hpcagent workspace approvals` lists them.", value=identity
            )
        return one.at(self._clock())

    def list(self, *, pending: bool = False) -> list[Approval]:
        """All of them, the newest first."""
        now = self._clock()
        found = [one.at(now) for one in self._all.values()]
        return [one for one in reversed(found) if not pending or one.state == "pending"]


def _key(digest: str, asked_by: str) -> str:
    return f"{asked_by}\n{digest}"
