"""The agents of a folder: a name, what it is told that it is and does, and the tools that it has."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcagent.errors import BadInput, HpcAgentError, NotThere, nearest
from hpcagent.model.base import read_json
from hpcagent.model.texts import checked_name
from hpcagent.registry.files import read_own, write_record
from hpcagent.registry.findings import Finding, errors_of, refuse, warnings_of
from hpcagent.registry.names import NAME_WORDS, is_name
from hpcagent.registry.record import AgentRecord
from hpcagent.registry.steering import check_text
from hpcagent.resources.locking import held
from hpcagent.store.files import make_folder

__all__ = ["Agents", "SeenAgent"]

MOST_AGENTS = 200
MOST_TOOLS = 200
LOCKED_S = 20.0


@dataclass(frozen=True, slots=True)
class SeenAgent:
    """An agent as it is now.

    Attributes:
        record: What is on record of it.
        findings: What in its role text a person should look at.
        problem: Why it cannot be used, in a sentence; empty if it can.
    """

    record: AgentRecord
    findings: tuple[Finding, ...] = ()
    problem: str = ""


class Agents:
    """The agents of a folder.

    Args:
        root: The folder; made when something is first written.
        clock: Unix time, in seconds.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.root, self._clock = root, clock

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        make_folder(self.root)
        with held(self.root / ".lock", within_s=LOCKED_S):
            yield

    def every(self) -> list[SeenAgent]:
        """All agents, by name; one whose file is damaged or whose role text steers says why it cannot be used."""
        if not self.root.is_dir():
            return []
        names = sorted(path.stem for path in self.root.glob("*.json") if is_name(path.stem))
        return [self._seen(name) for name in names]

    def get(self, name: str) -> SeenAgent:
        """One agent.

        Raises:
            BadInput: There is none of that name.
        """
        if not self._there(name):
            raise NotThere(f"there is no agent {name!r}; {nearest(name, self._names())}", value=name)
        return self._seen(name)

    def add(self, name: str, role: str, *, tools: tuple[str, ...] = (), by: str, origin: str = "") -> SeenAgent:
        """Make an agent.

        Args:
            name: Letters, digits and _.
            role: What it is told that it is and does.
            tools: Names of its tools.
            by: Who makes it.
            origin: Where it is from, in words; one that is from elsewhere waits until a person lets it work.

        Raises:
            BadInput: There is one of that name, or the role text steers it against whom it works for.
        """
        findings = _checked(name, role)
        refuse(findings, f"the agent {name}")
        with self._held():
            if self._there(name):
                raise BadInput(
                    f"there is an agent {name!r} already; remove it first, or take another name.", value=name
                )
            if len(self._names()) >= MOST_AGENTS:
                raise BadInput(f"there are {MOST_AGENTS} agents; remove one first.")
            made = {"origin": origin, "waits": bool(origin), "by": by, "at": self._clock()}
            record = AgentRecord(name=name, role=role, tools=_tools(tools), **made)
            write_record(self._path(name), record)
        return SeenAgent(record, tuple(warnings_of(findings)), _waits(record))

    def accept(self, name: str, *, by: str) -> SeenAgent:
        """Let an agent work that is from elsewhere; again, it does nothing.

        Raises:
            BadInput: There is none of that name, or its role text has a problem.
        """
        with self._held():
            seen = self.get(name)
            if not seen.record.waits:
                return seen
            if seen.problem != _waits(seen.record):
                raise BadInput(f"the agent {name} cannot be used: {seen.problem}.", value=name)
            record = seen.record.model_copy(update={"waits": False, "by": by, "at": self._clock()})
            write_record(self._path(name), record)
            return SeenAgent(record, seen.findings)

    def remove(self, name: str) -> AgentRecord:
        """Remove an agent; its tools stay.

        Raises:
            BadInput: There is none of that name.
        """
        with self._held():
            seen = self.get(name)
            self._path(name).unlink()
            return seen.record

    def assign(self, tool: str, name: str, *, by: str, take: bool = False) -> SeenAgent:
        """Give an agent a tool, or take it away; again, it does nothing.

        Args:
            tool: Name of the tool.
            name: The agent.
            by: Who does it.
            take: Take it away.

        Raises:
            BadInput: There is no such agent, or it does not have the tool that is to be taken away.
        """
        with self._held():
            seen = self.get(name)
            if seen.problem and seen.problem != _waits(seen.record):
                raise BadInput(f"the agent {name} cannot be changed: {seen.problem}.", value=name)
            old = seen.record.tools
            if take and tool not in old:
                raise BadInput(f"the agent {name} has no tool {tool!r}; {nearest(tool, old)}", value=tool)
            new = tuple(one for one in old if one != tool) if take else _tools((*old, tool))
            if new == old:
                return seen
            record = seen.record.model_copy(update={"tools": new, "by": by, "at": self._clock()})
            write_record(self._path(name), record)
            return SeenAgent(record, seen.findings, _waits(record))

    # -- files --------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return sorted(path.stem for path in self.root.glob("*.json")) if self.root.is_dir() else []

    def _there(self, name: str) -> bool:
        return is_name(name) and os.path.lexists(self.root / f"{name}.json")

    def _path(self, name: str) -> Path:
        if not is_name(name):
            raise BadInput(f"{name[:80]!r} is no name of an agent: {NAME_WORDS}.", value=name[:80])
        return self.root / f"{checked_name(name, 'the name of the agent')}.json"

    def _seen(self, name: str) -> SeenAgent:
        try:
            read_own(self._path(name))
            record = AgentRecord.model_validate(read_json(self._path(name)))
        except (HpcAgentError, ValueError) as error:
            said = error.message if isinstance(error, HpcAgentError) else str(error).splitlines()[0]
            return SeenAgent(
                AgentRecord(name=name, role=""), problem=f"its record cannot be read: {said.rstrip('.')}"
            )
        if record.name != name:
            return SeenAgent(record, problem=f"{name}.json is the record of {record.name}")
        findings = _checked(name, record.role)
        errors = errors_of(findings)
        problem = "; ".join(one.says for one in errors) or _waits(record)
        return SeenAgent(record, tuple(warnings_of(findings)), problem)


def _waits(record: AgentRecord) -> str:
    """Why an agent from elsewhere does nothing yet; empty: it may work."""
    return f"it is {record.origin}, and a person has not let it work yet" if record.waits else ""


def _checked(name: str, role: str) -> list[Finding]:
    found = check_text(role, kind="role", tool=name)
    if not is_name(name):
        found.append(Finding(rule="name", says=f"a name is {NAME_WORDS}"))
    if len(role.split()) < 3:
        found.append(Finding(rule="role", says="a role text says in a sentence what the agent is and does"))
    return found


def _tools(given: tuple[str, ...]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(given))
    if len(found) > MOST_TOOLS:
        raise BadInput(f"an agent has at most {MOST_TOOLS} tools; got {len(found)}.")
    return found
