"""One question while it is answered: what was called, in whose name, with which budget; each call is recorded."""

from __future__ import annotations

import contextvars
import functools
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import anyio.to_thread

from hpcagent.agents.approving import Ask, confirm, let_through
from hpcagent.agents.budget import Budget
from hpcagent.agents.cited import known_of, numbers_of_answer, run_ids_in
from hpcagent.agents.marked import data_text
from hpcagent.agents.numbers import Known
from hpcagent.agents.tools import GOING, AgentTool, Going
from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.mcp.callers import Caller
from hpcagent.mcp.said import clean, clean_text
from hpcagent.workspace.connection import at_most

__all__ = ["Called", "Event", "Told", "TurnNow"]

LONGEST_BRIEF = 300
SETTLES_S = 3.0


@dataclass(frozen=True)
class Event:
    """What goes on, for whoever watches.

    Attributes:
        kind: `delegated`, `handed_back`, `calling`, `called`, `refused`, `retried`.
        agent: The specialist.
        tool: Of `calling`, `called` and `refused`.
        text: More, in a line; of `calling` the arguments.
        runs: Runs and campaigns that the answer names.
    """

    kind: str
    agent: str
    tool: str = ""
    text: str = ""
    runs: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = f"{self.agent}.{self.tool}" if self.tool else self.agent
        runs = f" [{', '.join(self.runs)}]" if self.runs else ""
        return f"{self.kind} {what}{runs}{f': {self.text}' if self.text else ''}"


Told = Callable[[Event], None]


@dataclass(frozen=True)
class Called:
    """A call of a tool, as it was.

    Attributes:
        agent: The specialist that called.
        tool: The tool.
        arguments: As the model gave them.
        refused: Why it was not done; empty if it was.
        really: Whether the tool was reached: arguments that its schema refuses do not count.
        runs: Runs and campaigns that the answer names.
        wall_s: How long it took, in seconds.
        ended: Whether it had ended when the reply was made; what became of one that had not is not known.
        started: Those of them that were not there before.
    """

    agent: str
    tool: str
    arguments: dict[str, Any]
    refused: str = ""
    really: bool = True
    runs: tuple[str, ...] = ()
    wall_s: float = 0.0
    ended: bool = True
    started: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """For a record; without secrets."""
        found: dict[str, Any] = clean(asdict(self))
        return found


@dataclass(eq=False)
class _Open:
    """A call that has begun and not ended."""

    agent: str
    tool: AgentTool
    arguments: dict[str, Any]
    began: float
    going: Going = field(default_factory=Going)

    def runs(self) -> tuple[str, ...]:
        """What it has started, or waits for."""
        asked = self.arguments.get("id")
        waits = [asked] if self.tool.name == "wait_for" and isinstance(asked, str) else []
        return tuple(dict.fromkeys((*waits, *self.going.runs)))


@dataclass
class TurnNow:
    """A question that is answered.

    Attributes:
        caller: In whose name the tools are called.
        budget: Node-hours.
        ask: Puts a question to a person; None: nobody can be asked.
        told: Is told what goes on.
        calls: What was called, in the order in which it ended.
        known: Numbers that tools said.
    """

    caller: Caller
    budget: Budget
    ask: Ask | None = None
    told: Told = lambda event: None
    calls: list[Called] = field(default_factory=list)
    known: list[Known] = field(default_factory=list)
    _turn: threading.Condition = field(default_factory=threading.Condition)
    _going: list[_Open] = field(default_factory=list)
    _given_up: bool = False

    def tell(self, event: Event) -> None:
        """Tell whoever watches, one at a time."""
        with self._turn:
            self.told(event)

    async def call(self, agent: str, tool: AgentTool, arguments: Mapping[str, Any]) -> tuple[str, Called]:
        """Call a tool for a specialist; returns what the model is told, and the record."""
        within = contextvars.copy_context()
        work = functools.partial(within.run, self._call, agent, tool, dict(arguments))
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)

    def _call(self, agent: str, tool: AgentTool, arguments: dict[str, Any]) -> tuple[str, Called]:
        self.tell(Event("calling", agent, tool.name, _brief(arguments)))
        one = _Open(agent, tool, arguments, time.monotonic())
        with self._turn:
            self._going.append(one)
            if self._given_up:
                one.going.given_up.set()
        GOING.set(one.going)
        try:
            return self._done(one)
        finally:
            with self._turn:
                self._going.remove(one)
                self._turn.notify_all()

    def _done(self, one: _Open) -> tuple[str, Called]:
        agent, tool, arguments = one.agent, one.tool, one.arguments
        taken = 0.0
        try:
            if tool.manages:
                confirm(tool.name, arguments, "a change of the tools or agents of this workspace", self.ask, agent)
            elif tool.ends and not self.started().issuperset(map(str, arguments.values())):
                confirm(tool.name, arguments, "it ends what this question has not started", self.ask, agent)
            taken = self.budget.take(self.caller, tool, arguments)
            with at_most(taken if self.budget.prices(tool) else None):
                answer = let_through(self.caller, lambda: tool.do(self.caller, arguments), self.ask, agent)
        except HpcAgentError as error:
            if isinstance(error, BadInput) and not one.going.runs:
                self.budget.give_back(taken)  # any other error leaves open whether something has begun
            return self._refused(one, error)
        except Exception as error:  # a registered tool of somebody: a model is told, nothing else breaks
            broken = HpcAgentError(f"{tool.name} failed: {type(error).__name__}: {error}")
            return self._refused(one, broken)
        runs = tuple(run_ids_in(answer))
        wall_s = time.monotonic() - one.began
        started = _started(arguments, answer, runs) if tool.spends else ()
        done = Called(agent, tool.name, arguments, runs=runs, wall_s=wall_s, started=started)
        with self._turn:
            self.calls.append(done)
            self.known += numbers_of_answer(tool.name, answer)
        self.tell(Event("called", agent, tool.name, runs=runs))
        return data_text(tool.name, answer), done

    def _refused(self, one: _Open, error: HpcAgentError) -> tuple[str, Called]:
        agent, tool, going = one.agent, one.tool, one.going
        wall_s = time.monotonic() - one.began
        wrong = isinstance(error, NotAllowed) and error.check == "contract"
        said = {"error": error.message, **({"refused": error.plain()} if isinstance(error, NotAllowed) else {})}
        runs, begun = tuple(going.runs), tuple(going.begun)
        done = Called(
            agent, tool.name, one.arguments, error.message, not wrong, runs=runs, wall_s=wall_s, started=begun
        )
        with self._turn:
            self.calls.append(done)
        self.tell(Event("refused", agent, tool.name, error.message))
        return data_text(tool.name, said), done

    def give_up(self) -> None:
        """Nobody waits any more: what still goes on is recorded as asked for, its outcome unknown.

        A call that is starting something is given a moment to say which run that is.
        """
        until = time.monotonic() + SETTLES_S
        with self._turn:
            self._given_up = True
            for one in self._going:
                one.going.given_up.set()
            self._turn.wait_for(
                lambda: not any(one.tool.spends and not one.going.runs for one in self._going),
                max(0.0, until - time.monotonic()),
            )
            now = time.monotonic()
            self.calls += [
                Called(
                    one.agent, one.tool.name, one.arguments, runs=one.runs(), wall_s=now - one.began, ended=False
                )
                for one in self._going
            ]

    def started(self) -> set[str]:
        """Runs and campaigns that calls of this question have started."""
        with self._turn:
            return {run for call in self.calls for run in call.started}

    def runs(self) -> tuple[str, ...]:
        """Runs and campaigns that tools have named, in their order."""
        return tuple(dict.fromkeys(run for call in self.calls for run in call.runs))

    def of_runs(self, runs: tuple[str, ...]) -> list[Known]:
        """The numbers that these runs have now."""
        return [known for run in runs for known in known_of(self.caller, run)]


def _started(arguments: Mapping[str, Any], answer: Mapping[str, Any], runs: tuple[str, ...]) -> tuple[str, ...]:
    """What a call has started: not what it was given, nor what it found of an earlier call or of somebody else."""
    given = json.dumps(dict(arguments), default=str)
    return () if answer.get("found") else tuple(run for run in runs if run not in given)


def _brief(arguments: Mapping[str, Any]) -> str:
    """Arguments in a line, without secrets."""
    return clean_text(json.dumps(clean(dict(arguments)), ensure_ascii=False, default=str), LONGEST_BRIEF)
