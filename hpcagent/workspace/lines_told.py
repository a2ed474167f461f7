"""Which event a line of the journal tells, and which were told: a service may be killed in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcagent.contexts.event_log import EventLog

__all__ = ["MOMENT_S", "OF_TOOLS", "lately_told", "told_of"]

OF_TOOLS = (
    *("tool_registered", "tool_approved", "tool_rejected", "tool_removed", "tool_changed"),
    *("app_added", "app_approved", "app_rejected", "app_removed"),
)
"""Lines about tools and added apps that tell an event."""
# Of one moment: threads write lines, and tell them, beside each other.
MOMENT_S = 60.0
_MOST = 5000
_HERE = ("registered", "added", "approved")  # any other word: it is not there as it was


def told_of(line: Mapping[str, Any]) -> tuple[str, dict[str, Any], str]:
    """Name, payload and key of the event that a line about a tool or an added app tells.

    Raises:
        KeyError: The line has not all of it: an older library has written it.

    Example:
        >>> line = {"event": "tool_approved", "at": 1.5, "name": "rate", "version": "1.0.0", "by": "ada"}
        >>> told_of(line | {"state": "approved"})[1]["why"]
        'approved by ada'
    """
    what = str(line["event"]).partition("_")[2]
    version, why = line["version"], f"{what} by {line['by']}" if what != "changed" else line["why"]
    here = what in _HERE
    if what == "changed":
        here = line["was"] != "approved"
        version = version if here else line["before"]
    elif what == "registered":
        why += ", and waits for a person"
    payload = {"tool": line["name"], "version": version, "state": line["state"], "why": why}
    key = f"{line['name']} {line['version']} {line['at']!r} {what}"
    return "on_tool_registered" if here else "on_tool_deprecated", payload, key


def lately_told(log: EventLog) -> tuple[frozenset[str], float | None]:
    """Keys of the last events that the service has told, and the Unix time from which these are all.

    The time is None where none is known: nothing was told yet, or all of it is forgotten.
    """
    lines, _ = log.read(max(log.last() - _MOST, 0), _MOST)
    mine = [line.data for line in lines if line.data.get("by") == "workspace"]
    if not mine:
        return frozenset(), None
    since = float(mine[-1]["at"]) - MOMENT_S
    if len(lines) == _MOST:  # what was told before these is not looked at
        since = max(since, float(lines[0].data["at"]))
    return frozenset(str(one.get("key", "")) for one in mine), since
