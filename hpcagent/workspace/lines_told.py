"""Which event a line of the journal tells, and which were told: a service may be killed in between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcagent.contexts.event_log import EventLog

__all__ = ["MOMENT_S", "OF_ADDED", "OF_TOOLS", "Lately", "told_of"]

OF_ADDED = ("app_added", "app_approved", "app_rejected", "app_removed")
"""Lines about added apps."""
OF_TOOLS = ("tool_registered", "tool_approved", "tool_rejected", "tool_removed", "tool_changed", *OF_ADDED)
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


@dataclass(frozen=True, slots=True)
class Lately:
    """What a workspace's services have told.

    Attributes:
        keys: Of the last events.
        from_: Unix time of the oldest event that was looked at; what was told before is not known. None: all was.
    """

    keys: frozenset[str]
    from_: float | None

    @classmethod
    def told(cls, log: EventLog) -> Lately:
        """What stands in the log of events."""
        lines, _ = log.read(max(log.last() - _MOST, 0), _MOST)
        mine = frozenset(str(line.data.get("key", "")) for line in lines if line.data.get("by") == "workspace")
        return cls(mine, float(lines[0].data["at"]) if len(lines) == _MOST else None)

    def since(self, lines: Iterable[tuple[float, str]]) -> float:
        """The time from which lines of the journal may not have been told.

        Services tell lines in their order, but for those of one moment. So it is a moment before the last line
        that was told; where none was, as far as is known, before the last line at all.

        Args:
            lines: Unix time and key of each line that tells an event.

        Example:
            >>> Lately(frozenset({"a"}), None).since([(100.0, "a"), (500.0, "b")])
            40.0
        """
        at = list(lines)
        told = [time for time, key in at if key in self.keys] or [time for time, _ in at]
        since = max(told, default=0.0) - MOMENT_S
        return since if self.from_ is None else max(since, self.from_)
