"""What the people of a workspace share: who may read and write it, and who may tell what."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hpcagent.contexts.admitted import unsecret
from hpcagent.contexts.events import EVERYONE, NAMES, check_name
from hpcagent.errors import BadInput, NotPermitted, in_brief, nearest
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.rules import ROLES, Right, Rights, Rules
from hpcagent.model.texts import LONGEST_NAME
from hpcagent.resources.callers import Caller
from hpcagent.resources.folder import Resources
from hpcagent.resources.record import Action, Resource

__all__ = [
    "NEEDS",
    "TOLD_BY_PEOPLE",
    "change_told",
    "context_permit",
    "key_of",
    "may_read",
    "opened_resources",
    "readers_of",
    "said_by",
]

NEEDS: Mapping[Action, Right] = {
    "read": "read",
    "add": "write",
    "replace": "write",
    "provision": "write",
    "expire": "manage",
    "snapshot": "manage",
}
"""The right that each action on a resource needs."""

TOLD_BY_PEOPLE = (
    "on_message",
    "on_comment_added",
    "on_tool_registered",
    "on_tool_deprecated",
    "on_auth_expiring",
)
"""Events that people and doors tell, beside names of their own; the others only the service knows to be true."""


def resource_refusal(role: str, rules: Rules) -> Callable[[Resource, Action], str]:
    """Why a role may not do something with a resource, as `Caller.refusal` asks; "" if it may.

    The role's `Rights` decide. Of `planner` and `executor`, as they come along, the resource's own permissions are
    asked too: both may write, and what differs between them (an executor adds only) stands there.
    """
    rights = rules.rights(role)
    packaged = role in ROLES and role not in rules.roles

    def refusal(resource: Resource, action: Action) -> str:
        if not rights.uses("resources", resource.name):
            return (
                f"the role {role} uses the resources {', '.join(rights.resources) or '(none)'} only. Have the "
                f"name added to roles.{role}.resources of workspace.toml, or ask somebody who may use it"
            )
        lacking = _lacking(role, rights, NEEDS[action])
        if lacking:
            return lacking
        if packaged and role in ("planner", "executor") and not resource.access.may(role, action):
            may = ", ".join(resource.access.roles_that_may(action)) or "no role"
            return f"its own record permits that to: {may}. Ask one of them"
        return ""

    return refusal


def _lacking(role: str, rights: Rights, right: Right) -> str:
    if right in rights.may:
        return ""
    return (
        f"that needs the right {right!r}, and the role {role} has {', '.join(rights.may) or 'none'}. Ask somebody "
        "who has it, or have it added to the role in workspace.toml"
    )


def opened_resources(
    folder: Path,
    name: str,
    role: str,
    rules: Rules,
    *,
    session: str | None = None,
    announce: Callable[[str, int], object] | None = None,
) -> Resources:
    """The resources of a workspace for somebody, as far as the role's rights go."""
    caller = Caller(name, role, resource_refusal(role, rules))
    return Resources.open(folder, caller=caller, session=session, announce=announce)


def context_permit(name: str, role: str, rules: Rules) -> Callable[[Literal["read", "write"], str], None]:
    """What `Contexts(permit=...)` takes: a role reads with the right `read`, and writes with `write`."""
    rights = rules.rights(role)

    def permit(action: Literal["read", "write"], what: str) -> None:
        lacking = _lacking(role, rights, action)
        if lacking:
            raise NotPermitted(
                f"{name} ({role}) may not {action} {what}; {lacking}.", action=action, resource=what
            )

    return permit


def may_read(rules: Rules, resource: str | None = None) -> tuple[str, ...]:
    """The people of the workspace who may read contexts, or a resource of this name."""
    found = []
    for name, person in rules.people.items():
        rights = rules.rights(person.role)
        if "read" in rights.may and (resource is None or rights.uses("resources", resource)):
            found.append(name)
    return tuple(found)


def change_told(folder: Path, resource: str, at: int, session: str, by: str) -> tuple[dict[str, Any], str]:
    """What `on_resource_modified` says of a change, from the history of the resource, and the event's key.

    Args:
        folder: Of the workspace's resources.
        resource: Its name.
        at: Where the line of the history begins, in bytes.
        session: Of a resource that each session has its own of, else "".
        by: Who has made the change, and says so.

    Raises:
        BadInput: The history has no such change, or somebody else has made it.
    """
    if isinstance(at, bool) or not isinstance(at, int) or at < 0:
        raise BadInput(f"at={in_brief(at)} must be a place in a file, 0 bytes or more.", value=at)
    reader = Caller("workspace", "workspace", lambda *_: "")
    line = Resources.open(folder, caller=reader, session=session or None).change_at(resource, at)
    if line["by"] != by:
        raise BadInput(
            f"the change of {resource} at byte {at} is by {line['by']}, not by {by}; who has made it tells of it.",
            value=at,
        )
    facts = {name: line[name] for name in ("item", "version", "sha256", "run_id") if line.get(name)}
    facts = {name: unsecret(value) if isinstance(value, str) else value for name, value in facts.items()}
    payload = {"resource": resource, "action": line["event"], "by": by, **facts}
    if session:
        payload["session"] = session
    return payload, _short(f"{session}/{resource} at {at} {line['at']:.6f}")


def said_by(event: object, payload: object, by: str) -> dict[str, Any]:
    """A payload as it is told: what somebody says, and who.

    Raises:
        NotAllowed: It is an event that only the service tells, or it is said in another's name.
        BadInput: The name or the payload makes no sense.
    """
    check_name(event)
    if event in NAMES and event not in TOLD_BY_PEOPLE:
        raise NotAllowed(
            "caller",
            f"{event} is told by the workspace's service only, of what it has seen itself",
            field="event",
            value=event,
            allowed=f"{', '.join(TOLD_BY_PEOPLE)}, or a name of your own",
            do="use another event, or a name of your own that does not begin with on_",
        )
    if not isinstance(payload, Mapping):
        raise BadInput(f"{event}: the payload is a table; got {in_brief(payload)}.", value=event)
    if payload.get("by", by) != by:
        raise NotAllowed(
            "caller",
            "an event says by whom it is told, and that is the caller",
            field="by",
            value=payload["by"],
            allowed=by,
            do="leave it out, or use another name for another thing",
        )
    return {**payload, "by": by}


def readers_of(to: str | Sequence[str], rules: Rules, owner: str) -> tuple[str, ...]:
    """Who is meant by `to`: names, or `*` for everybody whom the workspace knows.

    Raises:
        BadInput: Somebody is not known.
    """
    known = dict.fromkeys([owner, *rules.people])
    named: Iterable[str] = (to,) if isinstance(to, str) else to
    found: dict[str, None] = {}
    for one in named:
        if one == EVERYONE:
            found |= known
        elif one in known:
            found[one] = None
        else:
            raise BadInput(
                f"to={in_brief(one)} is nobody of this workspace; {nearest(str(one), known)} "
                f"'{EVERYONE}' is everybody.",
                value=one,
            )
    return tuple(found)


def key_of(key: object, by: str) -> str:
    """The key of an event that somebody tells: theirs, so that nobody's hides another's; a new one for "".

    Raises:
        BadInput: It is no text of 1 to 100 characters.
    """
    if not isinstance(key, str) or len(key) > 100:
        raise BadInput(f"key={in_brief(key)} must be a text of at most 100 characters.", value=key)
    return _short(f"{by}: {key or uuid.uuid4().hex}")


def _short(key: str) -> str:
    """A key that fits into an event."""
    fits = len(key) <= LONGEST_NAME
    return key if fits else hashlib.sha256(key.encode()).hexdigest()
