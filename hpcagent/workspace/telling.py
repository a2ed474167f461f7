"""Events of a workspace, for its people: who tells them, who has subscribed to them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from hpcagent.errors import StoreError, in_brief
from hpcagent.gate.rules import Caller
from hpcagent.workspace.records import Records
from hpcagent.workspace.shared import change_told, key_of, may_read, readers_of, said_by

__all__ = ["Telling"]


class Telling(Records):
    """Events, told and subscribed to. Arguments as `Records`."""

    def subscribe(
        self,
        caller: Caller,
        *,
        events: Sequence[str],
        where: Mapping[str, Any] | None = None,
        after: int | None = None,
        expires_s: float | None = None,
    ) -> dict[str, Any]:
        """Subscribe to events by name, with conditions on what they say; see `Events.subscribe`."""
        more: dict[str, Any] = {"where": where, "after": after, "expires_s": expires_s}
        made = self.events.subscribe(events, owner=caller.name, key=self.answered.key, **more)
        return dict(made.acknowledgement)

    def tell(
        self,
        caller: Caller,
        *,
        event: str,
        payload: Mapping[str, Any],
        to: str | Sequence[str] = (),
        key: str = "",
    ) -> dict[str, Any]:
        """Tell an event of the caller's own; triggers and subscribers get it.

        Args:
            event: One of `TOLD_BY_PEOPLE`, or a name of one's own.
            payload: What it says; `by` is added.
            to: Who may see it beside the caller and those who see all; `*`: everybody.
            key: The same for the same event told twice: it sets off a trigger once.

        Raises:
            NotAllowed: The role may not write, or only the service tells this event.
            BadInput: A field is missing, something may not stand in an event, or somebody is not known.
        """
        with self._turn, self.gate.recorded(caller, what=f"tell {in_brief(event)}"):
            self.gate.require(caller, "write")
            said = said_by(event, payload, caller.name)
        readers = readers_of(to, self.rules, self._owner.name)
        named = key_of(key, caller.name)
        n = self.events.tell(event, said, owner=caller.name, readers=readers, by=caller.name, key=named)
        self.outbox.wake()
        return {"event": event, "n": n, "to": list(readers)}

    def modified(self, caller: Caller, *, resource: str, at: int, session: str = "") -> dict[str, Any]:
        """Tell `on_resource_modified` of a change that the caller has made, as the resource's history has it.

        Args:
            resource: Its name.
            at: Where the line of its history begins, in bytes.
            session: Of a resource that each session has its own of.

        Raises:
            BadInput: The history has no such change of the caller's.
        """
        said, key = change_told(self.folder.root / "resources", resource, at, session, caller.name)
        readers = may_read(self.rules, resource)
        try:
            self.events.tell(
                "on_resource_modified", said, owner=caller.name, readers=readers, by="workspace", key=key
            )
        except StoreError as error:  # as everywhere it costs the event, not the change
            self._say(error.message)
        self.outbox.wake()
        return {"resource": resource, "action": said["action"]}

    def unsubscribe(self, caller: Caller, *, subscription_id: str) -> dict[str, Any]:
        """End a subscription."""
        self.events.unsubscribe(subscription_id, owner=caller.name)
        self.outbox.wake()  # whoever waits for its notifications is told that it has ended
        return {"subscription_id": subscription_id, "status": "ended"}

    def notifications(
        self, caller: Caller, *, subscription_id: str, most: int = 100, timeout_s: float = 0.0
    ) -> list[dict[str, Any]]:
        """The next notifications of a subscription; they come again until they are acknowledged.

        Args:
            subscription_id: The subscription.
            most: So many at most.
            timeout_s: Wait so long for one where there is none, in seconds.
        """
        until = time.monotonic() + timeout_s
        with self.outbox.told:
            while True:
                found = self.events.look(subscription_id, owner=caller.name, most=most)
                left = until - time.monotonic()
                # Others than the service tell events as well: they are looked for once a second.
                if found.notifications or left <= 0 or self._closed:
                    break
                self.outbox.told.wait(min(left, 1.0))
        return [one.data() | {"n": one.n} for one in found.notifications]

    def acknowledge(self, caller: Caller, *, subscription_id: str, n: int) -> dict[str, Any]:
        """Say that all notifications up to number `n` have come."""
        self.events.acknowledge(subscription_id, n, owner=caller.name)
        return {"subscription_id": subscription_id, "n": n}
