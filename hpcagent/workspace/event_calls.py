"""What scripts and the shell ask of a workspace about events, contexts and resources."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from hpcagent.contexts.contexts import Contexts
from hpcagent.contexts.events import Events
from hpcagent.gate.rules import Rights
from hpcagent.resources.folder import Resources
from hpcagent.workspace.connection import Answer, Connection
from hpcagent.workspace.shared import context_permit, may_read, opened_resources

__all__ = ["EventCalls"]


class EventCalls(Connection):
    """Calls of `Workspace` about events, and what people share: contexts and resources."""

    def tell(
        self, event: str, payload: Mapping[str, Any], *, to: str | Sequence[str] = (), key: str = ""
    ) -> Answer:
        """Tell an event in the caller's name; the workspace's triggers and subscribers get it.

        Args:
            event: `on_message`, `on_comment_added`, `on_tool_registered`, `on_tool_deprecated`,
                `on_auth_expiring`, or a name of your own that does not begin with `on_`. What the service knows by
                itself (`on_job_*`, `on_resource_modified`, ...) it tells alone.
            payload: What it says: plain data; `by` is added.
            to: Names of people who may see it beside the caller and those who see all; `"*"`: everybody.
            key: The same for the same event told twice, of which a trigger starts something once.

        Returns:
            `event`, its number `n`, and `to` whom.

        Raises:
            NotAllowed: The role has no right to write, or the event is one that only the service tells.
        """
        # Its own key tells triggers apart, also where the service was killed after it had told the event.
        return self._one(
            "tell",
            event=event,
            payload=dict(payload),
            to=to if isinstance(to, str) else list(to),
            key=key or uuid.uuid4().hex,
        )

    def subscribe(
        self,
        events: str | Sequence[str],
        *,
        where: Mapping[str, Any] | None = None,
        after: int | None = None,
        expires_s: float | None = None,
    ) -> Answer:
        """Subscribe to events (`on_job_complete`, ...) by name; `where` has conditions on what they say.

        Returns:
            `subscription_id`, `status`.
        """
        names = [events] if isinstance(events, str) else list(events)
        return self._one("subscribe", events=names, where=where and dict(where), after=after, expires_s=expires_s)

    def unsubscribe(self, subscription_id: str) -> Answer:
        """End a subscription."""
        return self._one("unsubscribe", subscription_id=subscription_id)

    def notifications(self, subscription_id: str, *, most: int = 100, timeout_s: float = 0.0) -> Any:
        """The next notifications: `event`, `payload`, `n`; they come again until `acknowledge` says so.

        Args:
            subscription_id: What `subscribe` has returned.
            most: So many at most.
            timeout_s: Wait so long for one where there is none, in seconds.
        """
        asked = {"subscription_id": subscription_id, "most": most, "timeout_s": timeout_s}
        return self._call("notifications", **asked)

    def acknowledge(self, subscription_id: str, n: int) -> Answer:
        """Say that all notifications up to number `n` have come."""
        return self._one("acknowledge", subscription_id=subscription_id, n=n)

    def whoami(self) -> Answer:
        """Name, role and rights here."""
        return self._one("whoami")

    def rights(self) -> Rights:
        """What one's role may do, as `workspace.toml` says it now; asks no service."""
        return self.folder.rights(self._as)

    def contexts(self) -> Contexts:
        """The contexts that this workspace's people and programs share; a write tells `on_context_update`.

        They are read with the right `read` and written with `write`, as the role has them now.
        """
        who, rules = self.whoami(), self.folder.read_rules()
        events = Events(self.folder.root / "events")
        return Contexts(
            self.folder.root / "contexts",
            announce=events.context_updates(owner=who["name"], readers=may_read(rules)),
            permit=context_permit(who["name"], who["role"], rules),
        )

    def resources(self, session: str | None = None) -> Resources:
        """`catalyst_db`, `dft_results`, `lab_notebook` and others of this workspace; changes are told.

        The role's rights decide, as they are now: `read` reads, `write` adds, replaces and makes, `manage` expires
        and copies, and `resources` says of which names. Each change tells `on_resource_modified`.

        Args:
            session: A name, for resources that each session has its own of.
        """
        who = self.whoami()
        return opened_resources(
            self.folder.root / "resources",
            who["name"],
            who["role"],
            self.folder.read_rules(),
            session=session,
            announce=lambda name, at: self._one("modified", resource=name, at=at, session=session or ""),
        )
