"""What a context says: shared values, agents, session, jobs and calls; and the updates that change it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json

from hpcagent.contexts.admitted import admitted, admitted_entry, admitted_word
from hpcagent.errors import BadInput, nearest
from hpcagent.shown import size_text

__all__ = [
    "ENDED",
    "KEPT_CALLS",
    "LARGEST_DOCUMENT",
    "STATUSES",
    "Agent",
    "Call",
    "Document",
    "Job",
    "State",
    "Update",
    "add_job",
    "change_job",
    "drop",
    "give_result",
    "put",
    "put_agent",
    "record_call",
]

STATUSES = ("pending", "running", "finished", "error", "cancelled")
ENDED = STATUSES[2:]
KEPT_CALLS = 200
"""Calls that a document has; older ones stay in the journal."""
LARGEST_DOCUMENT = 1 << 20
"""Bytes, as JSON."""
_MOST_OPERATIONS = 1000

_TABLES = ("shared", "session")
_PARTS = ("shared", "agents", "session", "jobs", "calls")

Operation = tuple[Any, ...]
"""What is done and to what, as plain data: the first is a word of `_APPLY`."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a context.

    Attributes:
        id: Its id.
        status: One of `pending`, `running`, `finished`, `error`, `cancelled`.
        facts: Further plain data: what it runs, the URI of its result, why it failed.
    """

    id: str
    status: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Agent:
    """Who works with a context.

    Attributes:
        name: The name.
        facts: Further plain data: role, tools.
    """

    name: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an app that was made.

    Attributes:
        id: Its id.
        app: Name of the app.
        version: Its version then.
        params: The arguments, in the units of `units`.
        units: Unit of each number; parameters without one are not in it.
        result: URI or execution id of the result; empty while there is none.
        outputs: Small structured outputs, by name.
        by: Who asked for it.
        at: When, as Unix time in seconds.
    """

    id: str
    app: str
    version: str
    params: dict[str, Any]
    units: dict[str, str] = field(default_factory=dict)
    result: str = ""
    outputs: dict[str, Any] = field(default_factory=dict)
    by: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Update:
    """One write of a context.

    Attributes:
        version: The version that it made.
        at: When, as Unix time in seconds.
        by: Who wrote.
        operations: What was done, in order.
    """

    version: int
    at: float
    by: str
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A context as it was at one version; a copy, so changing it changes nothing else.

    Attributes:
        id: The context's id.
        version: Number of its last update; 0 for one that has none.
        at: Time of that update, as Unix time in seconds; 0 where there is none.
        shared: Values that all agents work with.
        session: User, project, intent and what else belongs to the session.
        agents: Who works with it, in the order in which they came.
        jobs: Its jobs, likewise.
        calls: The last `KEPT_CALLS` calls, the oldest first.
        calls_before: How many calls there were before those; the journal has them.
    """

    id: str
    version: int
    at: float
    shared: dict[str, Any]
    session: dict[str, Any]
    agents: tuple[Agent, ...]
    jobs: tuple[Job, ...]
    calls: tuple[Call, ...]
    calls_before: int = 0

    def job(self, id: str) -> Job:
        """The job with this id.

        Raises:
            BadInput: There is none.
        """
        for job in self.jobs:
            if job.id == id:
                return job
        raise BadInput(
            f"context {self.id!r} has no job {id!r}; {nearest(id, [j.id for j in self.jobs])}", value=id
        )

    def call(self, id: str | None = None, *, app: str | None = None) -> Call:
        """A call: the one with this id, the last one of an app, or the last one.

        Raises:
            BadInput: There is none.
        """
        for call in reversed(self.calls):
            if (id is None or call.id == id) and (app is None or call.app == app):
                return call
        what = "call" if id is None else f"call {id!r}"
        of = "" if app is None else f" of app {app!r}"
        then = f" (of {self.calls_before} older ones only the journal knows)" if self.calls_before else ""
        known = [c.id for c in self.calls] if id is not None else [c.app for c in self.calls]
        end = "record one first." if not self.calls else nearest(id or app or "", set(known))
        raise BadInput(f"context {self.id!r} has no {what}{of}{then}; {end}", value=id)

    def data(self) -> dict[str, Any]:
        """All of it as plain data: `{id, version, at, shared, agents, session, jobs, calls, calls_before}`."""
        return {
            "id": self.id,
            "version": self.version,
            "at": self.at,
            "shared": self.shared,
            "agents": [{"name": a.name, **a.facts} for a in self.agents],
            "session": self.session,
            "jobs": [{"id": j.id, "status": j.status, **j.facts} for j in self.jobs],
            "calls": [{name: getattr(c, name) for name in Call.__slots__} for c in self.calls],
            "calls_before": self.calls_before,
        }


def put(part: str, key: str, value: object) -> Operation:
    """Set a value of `shared` or `session`.

    Raises:
        BadInput: No such part, or the value may not stand in a context.

    Example:
        >>> put("shared", "temperature_K", 300)
        ('put', 'shared', 'temperature_K', 300)
    """
    _part(part)
    return ("put", part, key, admitted_entry(key, value, part))


def drop(part: str, key: str) -> Operation:
    """Remove a value of `shared` or `session`, an agent, or a job that has ended.

    Raises:
        BadInput: No such part.
    """
    if part not in (*_TABLES, "agents", "jobs"):
        known = (*_TABLES, "agents", "jobs")
        raise BadInput(f"nothing is dropped of {part!r}; {nearest(part, known)}", value=part)
    return ("drop", part, admitted_word(key, part))


def put_agent(name: str, **facts: object) -> Operation:
    """Set an agent: its role, its tools, and what else is to be known of it.

    Raises:
        BadInput: A fact may not stand in a context.
    """
    return ("agent", admitted_word(name, "an agent's name"), admitted(facts, f"agent {name}"))


def add_job(id: str, *, status: str = "pending", **facts: object) -> Operation:
    """Add a job.

    Args:
        id: Its id; an existing one is refused.
        status: One of `STATUSES`.
        facts: Further plain data.

    Raises:
        BadInput: No such status, or a fact may not stand in a context.
    """
    name = admitted_word(id, "a job's id")
    return ("job+", name, {"status": _status(status), **_facts(facts, f"job {id}")})


def change_job(id: str, status: str | None = None, **facts: object) -> Operation:
    """Change the status of a job, or its further facts; a job that has ended has its status for good.

    Raises:
        BadInput: No such status, or a fact may not stand in a context.
    """
    name = admitted_word(id, "a job's id")
    given = _facts(facts, f"job {id}")
    return ("job", name, given if status is None else {"status": _status(status), **given})


def record_call(
    id: str,
    app: str,
    version: str,
    params: Mapping[str, object],
    *,
    units: Mapping[str, str] | None = None,
    result: str = "",
    outputs: Mapping[str, object] | None = None,
) -> Operation:
    """Record a call of an app.

    Args:
        id: Its id; an existing one is refused.
        app: Name of the app.
        version: Its version.
        params: Its arguments.
        units: The unit of each number.
        result: URI or execution id of the result, if it is known.
        outputs: Small structured outputs.

    Raises:
        BadInput: Something may not stand in a context.
    """
    call = {
        "app": admitted_word(app, "a call's app"),
        "version": admitted_word(version, "a call's app version"),
        "params": admitted(dict(params), "params"),
    }
    call |= {"units": admitted(dict(units), "units")} if units else {}
    call |= {"result": _uri(result)} if result else {}
    call |= {"outputs": admitted(dict(outputs), "outputs")} if outputs else {}
    return ("call", admitted_word(id, "a call's id"), call)


def give_result(id: str, result: str, *, outputs: Mapping[str, object] | None = None) -> Operation:
    """Say where the result of a recorded call is.

    Raises:
        BadInput: Something may not stand in a context.
    """
    given: dict[str, Any] = {"result": _uri(result)}
    given |= {"outputs": admitted(dict(outputs), "outputs")} if outputs else {}
    return ("result", admitted_word(id, "a call's id"), given)


def _uri(result: object) -> str:
    if not isinstance(result, str) or not result.strip():
        raise BadInput("a result is named by its URI or execution id, a text.", value=result)
    made: str = admitted(result, "a call's result", most=4096)
    return made


def _facts(facts: Mapping[str, object], where: str) -> dict[str, Any]:
    made: dict[str, Any] = admitted(dict(facts), where)
    return made


def _part(part: str) -> None:
    if part not in _TABLES:
        raise BadInput(
            f"values are put into 'shared' or 'session', not {part!r}; agents, jobs and calls have operations of "
            "their own.",
            value=part,
        )


def _status(status: object) -> str:
    if status not in STATUSES:
        raise BadInput(f"{status!r} is no status of a job; {nearest(str(status), STATUSES)}", value=status)
    return str(status)


class State:
    """A context in memory: the journal's updates, applied one after another.

    Attributes:
        id: The context's id.
        version: Number of the last update.
        at: Time of it.
        calls_before: Calls that are no longer kept.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.version = 0
        self.at = 0.0
        self.calls_before = 0
        self._parts: dict[str, dict[str, Any]] = {part: {} for part in _PARTS}
        self._sizes: dict[tuple[str, str], int] = {}
        self.size = 0

    def copy(self) -> State:
        """Another one with the same content: values are never changed in place, so they are shared."""
        other = State(self.id)
        other.version, other.at, other.calls_before, other.size = (
            self.version,
            self.at,
            self.calls_before,
            self.size,
        )
        other._parts = {part: dict(values) for part, values in self._parts.items()}
        other._sizes = dict(self._sizes)
        return other

    def check(self, operations: Sequence[Operation], by: str) -> None:
        """Refuse operations that make no sense here; nothing is changed.

        Raises:
            BadInput: A job or call exists or does not, has ended, or the document would be too large.
        """
        if not operations:
            raise BadInput("an update without operations; give at least one.")
        if len(operations) > _MOST_OPERATIONS:
            raise BadInput(f"{len(operations)} operations in one update; at most {_MOST_OPERATIONS} are allowed.")
        changed: dict[tuple[str, str], Any] = {}
        grown = 0
        for operation in operations:
            part, key, value = self._outcome(operation, changed, by, time.time())
            if (part, key) in changed:
                before = _size(changed[part, key])
            else:
                before = self._sizes.get((part, key), 0)
            grown += _size(value) - before
            changed[part, key] = value
        if grown > 0 and self.size + grown > LARGEST_DOCUMENT:
            raise BadInput(
                f"context {self.id!r} would have {size_text(self.size + grown)}; at most "
                f"{size_text(LARGEST_DOCUMENT)} are allowed. Drop what is done with (drop('jobs', id) for jobs "
                "that have ended), give URIs in place of values, or begin another context for each experiment.",
                bytes=self.size + grown,
            )

    def apply(self, update: Update) -> None:
        """Apply an update of the journal.

        Raises:
            BadInput: It does not fit to what came before.
        """
        for operation in update.operations:
            part, key, value = self._outcome(operation, {}, update.by, update.at)
            self._set(part, key, value)
        calls = self._parts["calls"]
        while len(calls) > KEPT_CALLS:
            self._set("calls", next(iter(calls)), None)
            self.calls_before += 1
        self.version, self.at = update.version, update.at

    def _set(self, part: str, key: str, value: Any) -> None:
        size = _size(value)
        self.size += size - self._sizes.pop((part, key), 0)
        if value is None:
            self._parts[part].pop(key, None)
        else:
            self._parts[part][key] = value
            self._sizes[part, key] = size

    def _outcome(
        self, operation: Operation, changed: Mapping[tuple[str, str], Any], by: str, at: float
    ) -> tuple[str, str, Any]:
        """Part, key and new value (in a list, so that None can be one) of an operation; None: it is gone."""
        word, *rest = operation
        if word == "put":
            part, key, value = rest
            return part, key, [value]
        if word == "drop":
            part, key = rest
            return self._dropped(part, key, self._now(part, key, changed))
        if word == "agent":
            return "agents", rest[0], [rest[1]]
        key, given = rest
        part = "jobs" if word in ("job+", "job") else "calls"
        before = self._now(part, key, changed)
        if word == "job+":
            if before is not None:
                raise BadInput(f"context {self.id!r} has a job {key!r} already; give another id.", value=key)
            return part, key, [given]
        if word == "call":
            if before is not None:
                raise BadInput(f"context {self.id!r} has a call {key!r} already; give another id.", value=key)
            return part, key, [given | {"by": by, "at": at}]
        if before is None:
            one = "job" if part == "jobs" else "call"
            raise BadInput(
                f"context {self.id!r} has no {one} {key!r}; {nearest(key, self._parts[part])}", value=key
            )
        old = before[0]
        if word == "job":
            status = given.get("status", old["status"])
            if old["status"] in ENDED and status != old["status"]:
                raise BadInput(
                    f"job {key!r} of context {self.id!r} is {old['status']!r} for good and cannot become "
                    f"{status!r}; add another job.",
                    value=status,
                )
            if (old["status"], status) == ("running", "pending"):
                raise BadInput(
                    f"job {key!r} of context {self.id!r} runs; it cannot be pending again.", value=status
                )
        elif word != "result":
            raise BadInput(f"{word!r} is no operation of a context.", value=word)
        return part, key, [old | given]

    def _dropped(self, part: str, key: str, before: Any) -> tuple[str, str, None]:
        if before is None:
            raise BadInput(
                f"context {self.id!r} has no {part} {key!r} to drop; {nearest(key, self._parts[part])}", value=key
            )
        if part == "jobs" and before[0]["status"] not in ENDED:
            raise BadInput(
                f"job {key!r} of context {self.id!r} is {before[0]['status']!r}; a job is dropped once it has "
                "ended.",
                value=key,
            )
        return part, key, None

    def _now(self, part: str, key: str, changed: Mapping[tuple[str, str], Any]) -> Any:
        return changed[part, key] if (part, key) in changed else self._parts[part].get(key)

    def document(self) -> Document:
        """What it says, as a copy."""
        parts = from_json(to_json(self._parts))
        return Document(
            id=self.id,
            version=self.version,
            at=self.at,
            shared={key: value[0] for key, value in parts["shared"].items()},
            session={key: value[0] for key, value in parts["session"].items()},
            agents=tuple(Agent(name, facts[0]) for name, facts in parts["agents"].items()),
            jobs=tuple(
                Job(id, job["status"], {k: v for k, v in job.items() if k != "status"})
                for id, (job,) in parts["jobs"].items()
            ),
            calls=tuple(Call(id=id, **call) for id, (call,) in parts["calls"].items()),
            calls_before=self.calls_before,
        )

    def kept(self) -> dict[str, Any]:
        """What a snapshot has of it."""
        return {
            "id": self.id,
            "version": self.version,
            "at": self.at,
            "calls_before": self.calls_before,
            "parts": self._parts,
        }

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> State:
        """The state of a snapshot.

        Raises:
            KeyError, TypeError, ValueError: It is none.
        """
        state = cls(str(kept["id"]))
        for part in _PARTS:
            for key, value in kept["parts"][part].items():
                if not isinstance(value, list) or len(value) != 1:
                    raise ValueError(f"{part} {key}")
                state._set(part, key, value)
        state.version, state.at = int(kept["version"]), float(kept["at"])
        state.calls_before = int(kept["calls_before"])
        return state


def _size(value: Any) -> int:
    return 0 if value is None else len(to_json(value)) + 8


def written(update: Update) -> dict[str, Any]:
    """An update as a line of the journal, without its number."""
    return {"at": update.at, "by": update.by, "do": update.operations}


def read(n: int, data: Mapping[str, Any]) -> Update:
    """The update of a line.

    Raises:
        KeyError, TypeError, ValueError: It is none.
    """
    operations = tuple(tuple(one) for one in data["do"])
    return Update(version=n, at=float(data["at"]), by=str(data["by"]), operations=operations)
