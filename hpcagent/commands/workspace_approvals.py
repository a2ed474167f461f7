"""`hpcagent workspace approvals`: what waits for a person, whole; what was decided, as a table."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hpcagent.commands.workspace_shown import Said, shown
from hpcagent.shown import plain

if TYPE_CHECKING:
    from hpcagent.workspace.client import Workspace

__all__ = ["approvals_of"]

WIDTH = 64
"""Characters of a value in a line; of a longer one each further line begins with a mark, so that none looks like
a line of ours, however narrow the terminal is."""
_DECIDED = ("id", "state", "words", "asked_by", "asked_at", "decided_by", "note", "used_for")


def approvals_of(there: Workspace, identity: str) -> Said:
    """Approvals that the caller may see, or one of them.

    Args:
        there: The workspace.
        identity: Of one; empty: all.

    Raises:
        BadInput: There is no such approval.
    """
    found = there.approvals()
    if not identity:
        return Said(found, lambda: _all(found))
    wanted = next((one for one in found if one["id"] == identity), None)
    if wanted is None:
        from hpcagent.errors import NotThere

        raise NotThere(f"there is no approval {identity[:80]!r}.", value=identity[:80])
    return Said(wanted, lambda: _block(wanted))


def _all(found: list[dict[str, Any]]) -> str:
    waiting = [one for one in found if one["state"] == "pending"]
    decided = [{name: _one_line(one[name]) for name in _DECIDED} for one in found if one["state"] != "pending"]
    parts = [_block(one) for one in waiting]
    if decided:
        parts.append(f"{shown('', decided)}\n`hpcagent workspace approvals APPROVAL` shows one whole")
    return "\n\n".join(parts) or "none"


def _block(one: Mapping[str, Any]) -> str:
    """An approval with all that it is about."""
    request = one.get("request") or {}
    as_words = request.get("kind") == "campaign"  # its parameters are fixed values and ranges as text
    lines = [f"{one['id']}: {one['state']}"]
    lines += [f"  what: {_one_line(one['words'])}", f"  a person decides because {_one_line(one['why'])}"]
    told = {
        "what for": one.get("asked_why"),
        "asked by": one["asked_by"],
        "asked": _at(one["asked_at"]),
        "holds until": _at(one["expires_at"]),
        "decided by": one["decided_by"],
        "note": one["note"],
        "used for": one["used_for"],
        "nodes": request.get("nodes"),
        "sandbox": request.get("sandbox"),
        "code": "not the library's own" if request.get("own") else "",
        "SHA-256 of the request": one["digest"],
    }
    for name, value in told.items():
        if value not in (None, ""):
            lines += _lines(f"  {name}: ", _escaped(str(value)))
    params = one.get("params") or {}
    lines.append(f"  parameters: {len(params) or 'none'}")
    for name, value in params.items():
        text = _escaped(value) if as_words and isinstance(value, str) else _in_json(value)
        lines += _lines(f"    {_one_line(name)} = ", text)
    return "\n".join(lines)


def _lines(name: str, text: str) -> Iterator[str]:
    """A value behind its name; of a long one each line behind a mark, and its length."""
    if len(text) <= WIDTH:
        yield name + text
        return
    blank = " " * (len(name) - len(name.lstrip()) + 2)
    yield f"{name}({len(text)} characters)"
    for i in range(0, len(text), WIDTH):
        yield f"{blank}| {text[i : i + WIDTH]}"


def _in_json(value: Any) -> str:
    return plain(json.dumps(value, ensure_ascii=True))


def _escaped(text: str) -> str:
    r"""A text in which a newline is `\n`, and what does something to a terminal likewise."""
    return _in_json(text)[1:-1].replace('\\"', '"')


def _one_line(value: Any) -> Any:
    return _escaped(value) if isinstance(value, str) else value


def _at(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
