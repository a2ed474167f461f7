"""Triggers: an event starts a tool, a prompt or a campaign. Rules are data; whoever hosts them starts things.

Before anything is started it is written down, with a key that stays the same after a crash. So an event starts a
rule once, and what was begun when the process was killed is handed over again with the same key.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from hpcagent.contexts.admitted import admitted, admitted_word, unsecret
from hpcagent.contexts.bell import POLL_S
from hpcagent.contexts.events import Events
from hpcagent.contexts.filters import Filter, field_of
from hpcagent.contexts.lines import Line
from hpcagent.contexts.register import Register
from hpcagent.contexts.told import LOST, MISSED, Told, check_name, event_of
from hpcagent.errors import BadInput, Damaged, HpcAgentError, RunDirLocked, in_brief
from hpcagent.model.base import Record, build, read_toml
from hpcagent.owners import require_own
from hpcagent.store.files import make_folder
from hpcagent.store.rundir import Lock

__all__ = ["Action", "Fired", "Started", "Trigger", "Triggers", "load_triggers"]

_MINUTE_S = 60.0
_LONGEST_REASON = 500
_MOST = 100
# So many outcomes are kept when the record is written anew.
_FIRED_KEPT = 10_000
_REFUSED_KEPT = 1000


class Action(Record):
    """What a trigger starts.

    Attributes:
        tool: Name of a tool; one of `tool`, `prompt` and `campaign` is given.
        prompt: Name of a prompt.
        campaign: Name of a campaign.
        arguments: Name -> a constant, or `{from = "FIELD"}` for a field of the event's payload (`inputs.metal` for
            one of a table in it).
    """

    tool: str = ""
    prompt: str = ""
    campaign: str = ""
    arguments: dict[str, Any] = {}

    @field_validator("arguments")
    @classmethod
    def _plain_arguments(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = admitted(arguments, "arguments")
        for name, value in made.items():
            if not isinstance(value, dict) or "from" not in value:
                continue
            if set(value) != {"from"} or not _word(value["from"]):
                raise BadInput(
                    f"arguments, {name}: {in_brief(value)}; a field of the payload is {{from = 'FIELD'}} and "
                    "nothing else.",
                    value=value,
                )
        return made

    @model_validator(mode="after")
    def _check(self) -> Action:
        given = [kind for kind in ("tool", "prompt", "campaign") if getattr(self, kind)]
        if len(given) != 1:
            raise BadInput(
                f"a trigger starts one thing: a tool, a prompt or a campaign; got {', '.join(given) or 'none'}."
            )
        admitted_word(self.name, given[0])
        return self

    @property
    def kind(self) -> Literal["tool", "prompt", "campaign"]:
        """`tool`, `prompt` or `campaign`."""
        return "tool" if self.tool else "prompt" if self.prompt else "campaign"

    @property
    def name(self) -> str:
        """Name of what is started."""
        return self.tool or self.prompt or self.campaign

    @property
    def of_payload(self) -> tuple[str, ...]:
        """Names of the arguments whose values an event's payload gives: whoever tells the event says them."""
        return tuple(n for n, value in self.arguments.items() if isinstance(value, dict) and "from" in value)

    def arguments_for(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, with the values of the payload.

        Raises:
            KeyError: The payload has no such field.
        """
        return {
            name: field_of(payload, value["from"]) if isinstance(value, dict) and "from" in value else value
            for name, value in self.arguments.items()
        }


class Trigger(Record):
    """A rule: when such an event is told, that is started.

    Attributes:
        name: Its name.
        when: The event.
        where: Conditions on its payload, see `Filter`.
        then: What is started.
        most_per_minute: So many starts within any 60 s; what is more is not started, and recorded.
        deepest: Length of the longest chain of triggers, this one counted, each of which was set off by what the
            one before it started; what would be longer is not started, and recorded.

    Example:
        >>> Trigger(name="look_closer", when="new_promising_catalyst", then={"tool": "run_dft"}).then.kind
        'tool'
    """

    name: str
    when: str
    where: dict[str, Any] = {}
    then: Action
    most_per_minute: int = Field(default=10, ge=1, le=10_000)
    deepest: int = Field(default=3, ge=1, le=20)

    @model_validator(mode="after")
    def _check(self) -> Trigger:
        if not self.name.isidentifier() or len(self.name) > _MOST:
            raise BadInput(f"trigger {in_brief(self.name)}: its name is no identifier (letters, digits, _).")
        check_name(self.when)
        Filter(self.where)
        return self


def load_triggers(path: str | Path) -> tuple[Trigger, ...]:
    """Read the triggers of a TOML: tables `[[triggers]]`.

    Raises:
        BadInput: The file, a key or a value is wrong, two have one name, or the file is another user's.

    Example:
        >>> _ = Path("triggers.toml").write_text('''
        ... [[triggers]]
        ... name = "look_closer"
        ... when = "new_promising_catalyst"
        ... where = {adsorption_energy = {below = -1.2}}
        ... then = {tool = "run_dft", arguments = {structure = {from = "catalyst"}, cutoff_eV = 400}}
        ... ''')
        >>> load_triggers("triggers.toml")[0].then.arguments
        {'structure': {'from': 'catalyst'}, 'cutoff_eV': 400}
    """
    require_own(Path(path).expanduser(), what="what its triggers start")
    data = read_toml(Path(path).expanduser())
    rows = data.get("triggers")
    if set(data) != {"triggers"} or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(
            f"{path}: triggers stand in tables [[triggers]], and nothing else stands there.", value=str(path)
        )
    return _distinct(build(Trigger, row, where=f"{path}, trigger {i + 1}") for i, row in enumerate(rows))


def _distinct(rules: Iterable[Trigger]) -> tuple[Trigger, ...]:
    made = tuple(rules)
    names = [rule.name for rule in made]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"two triggers have the name {twice!r}; give each its own.", value=twice)
    return made


def _word(value: object) -> bool:
    return isinstance(value, str) and bool(value)


@dataclass(frozen=True, slots=True)
class Started:
    """What the host is to start.

    Attributes:
        kind: `tool`, `prompt` or `campaign`.
        name: Its name.
        arguments: Its arguments. The host checks them as those of any other call.
        key: The same whenever the same is handed over: what was started under it is not started again.
        again: Whether it was handed over before, and the process was killed before it could say that it had
            started.
        trigger: The rule.
        event: The event that set it off.
        owner: For whom.
        cause: Give it to `Events.tell(cause=...)` for what comes of it: so loops are found.
        of_payload: Names of the arguments whose values whoever told the event has said.
    """

    kind: str
    name: str
    arguments: dict[str, Any]
    key: str
    again: bool
    trigger: str
    event: Told
    owner: str
    cause: tuple[str, ...]
    of_payload: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fired:
    """What became of a rule and an event.

    Attributes:
        key: Of both.
        trigger: The rule.
        n: The event's number.
        at: When, as Unix time in seconds.
        state: `starting` (it was not said yet that it has started), `started`, `failed` or `refused`.
        reason: Why not; empty where it has started.
        answer: What the host said of it, e.g. a job's id.
    """

    key: str
    trigger: str
    n: int
    at: float
    state: Literal["starting", "started", "failed", "refused"]
    reason: str = ""
    answer: str = ""


class Triggers:
    """Starts what rules say, event by event. One process at a time does so for a folder.

    Args:
        folder: Where it is written down what was started: `triggers.jsonl`.
        events: The events.
        rules: The rules.
        start: Carries out a `Started`, and returns its id or nothing. It should return soon: submit, not wait.
            Where it raises, that is recorded, and not tried again.
        owner: For whom; only events that this owner may see set anything off.
        after: With a new folder: begin behind this event; None: with those that are told from now on.

    Raises:
        RunDirLocked: Another process has it.
        BadInput: Two rules have one name, or a folder is another user's.
        Damaged: The record is not as it was written.

    Example:
        >>> import tempfile
        >>> from hpcagent.contexts import Events
        >>> rule = Trigger(name="look", when="new_promising_catalyst", then={"tool": "run_dft", "arguments": {
        ...     "metal": {"from": "catalyst"}}})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     events = Events(folder)
        ...     show = lambda job: print(job.name, job.arguments)
        ...     with Triggers(folder, events, [rule], show, owner="ada") as triggers:
        ...         n = events.tell("new_promising_catalyst", {"catalyst": "CuZnO"}, owner="ada")
        ...         triggers.run_once()
        run_dft {'metal': 'CuZnO'}
        1
    """

    def __init__(
        self,
        folder: str | Path,
        events: Events,
        rules: Iterable[Trigger],
        start: Callable[[Started], object],
        *,
        owner: str,
        after: int | None = None,
    ) -> None:
        self.folder = Path(folder).expanduser()
        self.rules = _distinct(rules)
        self._events = events
        self._start = start
        self._owner = admitted_word(owner, "owner")
        self._filters = {rule.name: Filter(rule.where) for rule in self.rules}
        self._lines = Register(
            self.folder / "triggers.jsonl", begin=self._forget, apply=self._take, needed=self._needed
        )
        self._fired: dict[str, Fired] = {}
        self._begun: dict[str, dict[str, Any]] = {}
        self._starts: dict[str, deque[float]] = {}
        self._seen: int | None = None
        self._turn = threading.RLock()
        # Who writes there decides what is started.
        places = (self.folder, self._lines.path, events.folder, events.log.folder)
        require_own(*places, what="what the triggers start")
        self._lock = self._locked()
        try:
            self._lines.open()
            if self._seen is None:
                last = events.log.last()
                self._write({"do": "seen", "to": last if after is None else min(max(after, 0), last)})
        except BaseException:
            self._lock.release()
            raise

    def _locked(self) -> Lock:
        place = self.folder / ".triggers"
        make_folder(place)
        lock = Lock(place)
        try:
            lock.acquire()
        except RunDirLocked as error:
            raise RunDirLocked(
                f"the triggers of {self.folder} are run by another process ({error.message}). One at a time does "
                "so: end that one first.",
                path=str(self.folder),
            ) from None
        return lock

    def run_once(self) -> int:
        """Start what the events since the last time set off.

        First comes what was begun when the process before this one was killed.

        Returns:
            How many were handed over.

        Raises:
            StoreFull: The record cannot be written; nothing is started without.
            Damaged: The events are not as they were written.
        """
        with self._turn:  # of two threads that looked at once both would start the same
            return self._run_once()

    def _run_once(self) -> int:
        count = self._unfinished()
        while True:
            assert self._seen is not None
            lines, missed = self._events.log.read(self._seen, _MOST)
            if not lines and not missed and (last := self._events.log.within(self._seen)) < self._seen:
                reason = f"events {last + 1} to {self._seen}: {LOST}"
                self._note(f"{MISSED}:{last + 1}", "", last + 1, "refused", reason)
                self._write({"do": "seen", "to": last})
                continue
            if missed:
                reason = f"{missed} events were dropped before they were looked at"
                self._note(f"{MISSED}:{self._seen + 1}", "", self._seen + 1, "refused", reason)
            for line in lines:
                told = event_of(line)
                if self._events.may_see(self._owner, told):
                    for rule in self.rules:
                        if rule.when == told.event and self._filters[rule.name].meets(told.payload):
                            count += self._fire(rule, told)
            if lines or missed:
                self._write({"do": "seen", "to": lines[-1].n if lines else self._seen + missed})
                self._lines.compact()
            if not lines:
                return count

    def run(self, *, timeout_s: float | None = None, poll_s: float = POLL_S) -> int:
        """Do as `run_once`, again whenever events are told.

        Args:
            timeout_s: End when nothing was started for so long; None: never.
            poll_s: So often it is looked where nothing wakes it, in seconds.

        Returns:
            How many were handed over.
        """
        count = 0
        with self._events.log.bell.listen(poll_s=poll_s) as listener:
            quiet_since = time.monotonic()
            while True:
                started = self.run_once()
                count += started
                if started:
                    quiet_since = time.monotonic()
                rest = poll_s
                if timeout_s is not None:
                    rest = min(poll_s, quiet_since + timeout_s - time.monotonic())
                    if rest <= 0:
                        return count
                listener.wait(None, rest)

    def history(self) -> tuple[Fired, ...]:
        """What became of every rule and event that met, in order."""
        return tuple(self._fired.values())

    def close(self) -> None:
        """Let another process do it; harmless when called twice."""
        self._lock.release()

    def __enter__(self) -> Triggers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _unfinished(self) -> int:
        """Hand over again what was begun and of which nothing was said."""
        count = 0
        for key, begun in list(self._begun.items()):
            told = event_of(Line(int(begun["told"]["n"]), begun["told"], 0))
            self._hand_over(key, begun, told, again=True)
            count += 1
        return count

    def _fire(self, rule: Trigger, told: Told) -> int:
        key = f"{rule.name}:{told.key}"
        if key in self._fired:
            return 0  # before a crash, or the event was told twice
        reason = self._why_not(rule, told)
        arguments: dict[str, Any] = {}
        if not reason:
            try:
                arguments = rule.then.arguments_for(told.payload)
            except KeyError as error:
                reason = f"the event has no field {error.args[0]!r}, which an argument is to be"
        if reason:
            self._note(key, rule.name, told.n, "refused", reason)
            return 0
        begun = {
            "trigger": rule.name,
            "kind": rule.then.kind,
            "name": rule.then.name,
            "arguments": arguments,
            "of_payload": list(rule.then.of_payload),
            "cause": [*told.cause, key],
            "told": {name: getattr(told, name) for name in Told.__slots__},
        }
        # On the disk before anything is started.
        self._write({"do": "starting", "key": key, **begun}, sync=True)
        self._hand_over(key, begun, told, again=False)
        return 1

    def _why_not(self, rule: Trigger, told: Told) -> str:
        depth = len(told.cause) + 1
        if depth > rule.deepest:
            chain = " -> ".join(told.cause[-3:])
            return f"it would be number {depth} of a chain of triggers, {rule.deepest} are allowed ({chain})"
        starts = self._starts.setdefault(rule.name, deque())
        now = time.time()
        # A clock that was set back is no reason to wait for it.
        while starts and not 0 <= now - starts[0] < _MINUTE_S:
            starts.popleft()
        if len(starts) >= rule.most_per_minute:
            return f"{len(starts)} were started within a minute, {rule.most_per_minute} are allowed"
        return ""

    def _hand_over(self, key: str, begun: Mapping[str, Any], told: Told, *, again: bool) -> None:
        job = Started(
            kind=begun["kind"],
            name=begun["name"],
            arguments=dict(begun["arguments"]),
            key=key,
            again=again,
            trigger=begun["trigger"],
            event=told,
            owner=self._owner,
            cause=tuple(begun["cause"]),
            # What the process before this one has written down may not say it: then it is all of them.
            of_payload=tuple(begun.get("of_payload", begun["arguments"])),
        )
        try:
            answer = self._start(job)
        except Exception as error:  # whatever the host's function raises is its answer
            said = error.message if isinstance(error, HpcAgentError) else f"{type(error).__name__}: {error}"
            self._note(key, job.trigger, told.n, "failed", said)
            return
        self._note(key, job.trigger, told.n, "started", "", "" if answer is None else str(answer))

    def _note(self, key: str, trigger: str, n: int, state: str, reason: str, answer: str = "") -> None:
        said = unsecret(reason)[:_LONGEST_REASON]
        entry = {"do": state, "key": key, "trigger": trigger, "event": n, "reason": said}
        self._write(entry | ({"answer": unsecret(answer)[:_LONGEST_REASON]} if answer else {}), sync=True)

    def _write(self, entry: Mapping[str, Any], *, sync: bool = False) -> None:
        self._lines.enter(entry, sync=sync)

    def _forget(self) -> None:
        self._seen = None
        self._fired.clear()
        self._begun.clear()
        self._starts.clear()

    def _needed(self) -> Iterator[dict[str, Any]]:
        """What the register keeps: what begins anew, what may not start again, the rates of the last minute.

        Of what was refused less is kept: a flood of that pushes nothing out that has started.
        """
        now = time.time()
        yield {"do": "seen", "to": self._seen or 0}
        open_at = {(str(begun["trigger"]), float(begun["at"])) for begun in self._begun.values()}
        for trigger, starts in self._starts.items():
            times = [at for at in starts if 0 <= now - at < _MINUTE_S and (trigger, at) not in open_at]
            if times:
                yield {"do": "starts", "trigger": trigger, "times": times}
        refused = [key for key, fired in self._fired.items() if fired.state == "refused"]
        others = [key for key, fired in self._fired.items() if fired.state != "refused" and key not in self._begun]
        kept = {*refused[-_REFUSED_KEPT:], *others[-_FIRED_KEPT:], *self._begun}
        for key, fired in self._fired.items():
            if key in self._begun:
                yield {name: value for name, value in self._begun[key].items() if name != "n"}
            elif key in kept:
                facts = {"key": key, "trigger": fired.trigger, "event": fired.n, "at": fired.at}
                yield {"do": fired.state, **facts, "reason": fired.reason, "answer": fired.answer}

    def _take(self, line: Line) -> None:
        with self._naming(line):
            self._apply(line)

    def _apply(self, line: Line) -> None:
        data = line.data
        word = data["do"]
        if word == "seen":
            self._seen = int(data["to"])
            return
        if word == "starts":
            self._starts[str(data["trigger"])] = deque(map(float, data["times"]))
            return
        key, trigger = str(data["key"]), str(data["trigger"])
        if word == "starting":
            self._begun[key] = data
            self._starts.setdefault(trigger, deque()).append(float(data["at"]))
            self._fired[key] = Fired(key, trigger, int(data["told"]["n"]), float(data["at"]), "starting")
            return
        before = self._fired.get(key) or Fired(key, trigger, int(data["event"]), float(data["at"]), "refused")
        self._begun.pop(key, None)
        self._fired[key] = replace(
            before, state=word, reason=str(data["reason"]), answer=str(data.get("answer", ""))
        )

    @contextlib.contextmanager
    def _naming(self, line: Line) -> Iterator[None]:
        try:
            yield
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(
                f"{self._lines.path}, line {line.n}: it is no record of a trigger ({error!r}).", version=line.n - 1
            ) from None
