"""The supervisor: takes a goal apart, has specialists do the parts, and says what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from hpcagent.agents.approving import Ask, one_at_a_time
from hpcagent.agents.budget import Budget
from hpcagent.agents.cited import cite
from hpcagent.agents.delegating import delegate_tool
from hpcagent.agents.enhancer import Suggest, checked, enhanced
from hpcagent.agents.marked import goal_text
from hpcagent.agents.models import chosen, not_asked, opened
from hpcagent.agents.planning import planned
from hpcagent.agents.pool import MoreSpecialists, MoreTools, Pool
from hpcagent.agents.reply import Reply, unknown_runs
from hpcagent.agents.sent import instructions, would_send
from hpcagent.agents.threads import Threads, Turn
from hpcagent.agents.turn import Told, TurnNow
from hpcagent.agents.writing import written
from hpcagent.catalog import app_names
from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.mcp.callers import Caller
from hpcagent.workspace.client import Workspace

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model

__all__ = ["Limits", "Supervisor"]

T = TypeVar("T")
CLIENT = "hpcagent ask"
RETRIES = 2
"""So often a model may call a tool that there is not, before it is given up."""


@dataclass(frozen=True)
class Limits:
    """What one question may take.

    Attributes:
        hops: Requests to the model at most, of the supervisor and its specialists together.
        tokens: Tokens at most, sent and received; None: no limit. Checked after each answer of the model.
        node_hours: Node-hours at most of what it starts; None: what the gate lets through.
    """

    hops: int = 25
    tokens: int | None = 500_000
    node_hours: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("hops", 1), ("tokens", 1), ("node_hours", 0)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise BadInput(f"{name} is at least {least}; got {value!r}.", value=value)


class Supervisor:
    """Answers questions with a language model that calls the workspace's tools.

    Nothing is sent anywhere before `ask`, and then to the model that is configured.

    Args:
        workspace: In whose name, and behind whose gate, everything runs.
        model: `PROVIDER:MODEL`, a model of `url`, or a model of pydantic-ai; by default as the environment says.
        url: Address of an OpenAI-compatible server.
        limits: Of one question.
        ask: Puts a question to a person where the gate wants their yes; without it such calls are refused.
        told: Is told of each call while it goes on.
        specialists: In place of those of the workspace and those that are always there.
        tools: More tools, asked for at each turn.

    Raises:
        BadInput: No model is configured, or its package is missing.
    """

    def __init__(
        self,
        workspace: Workspace,
        *,
        model: str | Model = "",
        url: str = "",
        limits: Limits | None = None,
        ask: Ask | None = None,
        told: Told | None = None,
        specialists: MoreSpecialists | None = None,
        tools: MoreTools | None = None,
    ) -> None:
        if isinstance(model, str):
            found = chosen(model, url)
            self.where, self.model = found.where, opened(found)
        else:
            self.where, self.model = model.model_name, model
        self.workspace, self.limits = workspace, limits or Limits()
        self._ask, self._told = ask and one_at_a_time(ask), told
        # Scopes of a caller that decides nothing: what grants and removes is not there for a model.
        self._caller = Caller("", frozenset({"runs:read", "runs:write"}), workspace, CLIENT)
        self.pool = Pool(self._caller, specialists=specialists, tools=tools)
        self._going: dict[str, Callable[[], None]] = {}

    @functools.cached_property
    def threads(self) -> Threads:
        """Conversations of whoever asks."""
        return Threads(self.workspace.folder.root, str(self.workspace.whoami()["name"]))

    # -- asking -------------------------------------------------------------------------------

    def ask(
        self,
        goal: str,
        *,
        thread: str = "",
        suggest: Suggest = "words",
        stopped: Callable[[], bool] = lambda: False,
    ) -> Reply:
        """Answer a question, or pursue a goal.

        Args:
            goal: What is asked.
            thread: A name: goes on where that conversation was; empty: a new one.
            suggest: Add suggestions of who could do what behind the goal: by `words` of names and descriptions
                alone, by the `model` (one request more, in the same limits), or `no`.
            stopped: Whether it was stopped before it began; `stop` stops it later.

        Raises:
            BadInput: The goal is empty, the thread's name is none, or `suggest` is none of these.
            NotPermitted: The thread is somebody else's.
        """
        work = functools.partial(self.ask_async, goal, thread=thread, suggest=suggest, stopped=stopped)
        return _outside_of_loops(work)

    async def ask_async(
        self,
        goal: str,
        *,
        thread: str = "",
        suggest: Suggest = "words",
        stopped: Callable[[], bool] = lambda: False,
    ) -> Reply:
        """As `ask`, in a loop of one's own."""
        asked, by = goal_text(goal), checked(suggest)
        if not asked:
            raise BadInput("there is no question.")
        name = thread or self.threads.new()
        self.threads.prune()
        before = self.threads.recent(name)
        last = self.threads.turns(name)[-1].n if before else 0
        began = time.monotonic()
        now = TurnNow(self._caller, Budget(self.limits.node_hours), self._ask, self._told or (lambda event: None))
        with anyio.CancelScope() as scope, self._stoppable(name, scope):
            if stopped():
                scope.cancel()
            reply, messages = await self._run(now, asked, before, by)
        if scope.cancelled_caught:
            await anyio.to_thread.run_sync(now.give_up)
            why = "whoever asked has stopped it. What was started goes on."
            reply, messages = Reply("stopped", why), _as_stopped(asked, why, now)
        reply = await anyio.to_thread.run_sync(self._checked, reply, now, asked, before)
        reply = replace(reply, thread=name, model=self.model.model_name, wall_s=time.monotonic() - began)
        self.threads.add(name, Turn(last + 1, asked, messages, reply.plain()))
        return reply

    @contextlib.contextmanager
    def _stoppable(self, thread: str, scope: anyio.CancelScope) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            loop.call_soon_threadsafe(scope.cancel)

        self._going[thread] = stop
        try:
            yield
        finally:
            self._going.pop(thread, None)

    def stop(self, thread: str) -> bool:
        """Stop the question of a thread that is being answered, from any thread of the process.

        Runs that it has started go on; what was called stands in the reply, whose state is `stopped`. A call
        that has not ended is there as asked for, its outcome unknown, with its run where that is known.

        Returns:
            Whether there was one.
        """
        stop = self._going.get(thread)
        if stop is None:
            return False
        with contextlib.suppress(RuntimeError):  # its loop has ended at this moment
            stop()
        return True

    async def _run(self, now: TurnNow, goal: str, before: Sequence[Turn], by: Suggest) -> tuple[Reply, str]:
        """The reply of the model, and the messages of this turn as JSON."""
        from pydantic_ai.exceptions import AgentRunError, ModelAPIError, UsageLimitExceeded, UserError
        from pydantic_ai.messages import ModelMessagesTypeAdapter
        from pydantic_ai.usage import RunUsage

        usage = RunUsage()
        try:
            whole = await self._enhanced(goal, before, by, usage)
            done = await self._agent(now).run(
                whole, message_history=_history(before), usage=usage, usage_limits=self._limits()
            )
            text, state = str(done.output), "answered"
            messages = ModelMessagesTypeAdapter.dump_json(done.new_messages()).decode()
        except UsageLimitExceeded as error:
            text, state = self._spent(str(error)), "stopped"
        except ModelAPIError as error:
            text, state = f"{not_asked(self.model, error)} What was started goes on.", "stopped"
        except (AgentRunError, UserError) as error:
            text, state = f"the model answers nothing that can be used ({error}).", "stopped"
        if state == "stopped":
            messages = _as_stopped(goal, text, now)
        found = Reply(
            "answered" if state == "answered" else "stopped",
            goal_text(text),
            requests=int(usage.requests),
            input_tokens=int(usage.input_tokens),
            output_tokens=int(usage.output_tokens),
        )
        return found, messages

    async def _enhanced(self, goal: str, before: Sequence[Turn], by: Suggest, usage: Any) -> str:
        """The goal as it is sent; what a model suggests has no part in what the goal says itself."""
        if by == "no":
            return goal
        if by == "words":
            return enhanced(goal, self.pool)
        from pydantic_ai.exceptions import UnexpectedModelBehavior

        try:
            return await planned(self.model, goal, self.pool, before=before, usage=usage, limits=self._limits())
        except UnexpectedModelBehavior:
            words = enhanced(goal, self.pool)
            return f"{words}\n\n(No suggestion of the model could be read.)"

    def _spent(self, error: str) -> str:
        hops, tokens = self.limits.hops, self.limits.tokens
        what = f"its {tokens} tokens" if "token" in error else f"its {hops} requests to the model"
        return f"the question has used {what} before there was an answer; what was started goes on."

    def _limits(self) -> Any:
        from pydantic_ai.usage import UsageLimits

        return UsageLimits(request_limit=self.limits.hops, total_tokens_limit=self.limits.tokens)

    def _agent(self, now: TurnNow) -> Any:
        from pydantic_ai import Agent

        agent: Any = Agent(
            self.model,
            name="supervisor",
            output_type=str,
            retries=RETRIES,
            tools=[delegate_tool(self.model, self.pool, now, self._limits())],
        )
        # A function, so that it is made anew at each request: a pool that has changed meanwhile is known.
        agent.instructions(self.instructions)
        return agent

    def instructions(self) -> str:
        """What the supervisor is told, with who there is at this moment."""
        return instructions(self.pool)

    # -- what came of it ----------------------------------------------------------------------

    def _checked(self, reply: Reply, now: TurnNow, goal: str, before: Sequence[Turn]) -> Reply:
        """The reply with what really ran, and with where its numbers come from."""
        here = now.runs()
        earlier = tuple(run for turn in before for run in turn.reply.get("runs", ()))
        runs = tuple(dict.fromkeys((*here, *earlier)))
        asked = "\n".join((*(turn.goal for turn in before), goal))
        numbers = cite(reply.text, runs=now.of_runs(runs), tools=now.known, asked=asked)
        stood = {run: self._stood(run) for run in sorted(now.started())}
        return replace(
            reply,
            calls=tuple(now.calls),
            runs=here,
            states={run: words for run, (words, _) in stood.items()},
            numbers=tuple(numbers) if reply.state == "answered" else (),
            unknown_runs=unknown_runs(reply.text, runs),
            node_hours=sum(hours for _, hours in stood.values()),
        )

    def _stood(self, run: str) -> tuple[str, float]:
        """How a run or campaign stands, in words, and what it has taken so far, in node-hours."""
        try:
            told = self.workspace.status(run, lines=0)
            failure = (told.get("failure") or {}).get("name")
            words = f"{told['state']}: {failure}" if failure else str(told["state"])
            if told.get("kind") == "campaign":
                return words, float(self.workspace.campaign(run)["node_hours"])
        except HpcAgentError:
            return "", 0.0
        return words, float((told.get("cost") or {}).get("node_hours") or 0.0)

    def write_tool(self, description: str, *, sandbox: str = "bubblewrap") -> list[dict[str, Any]]:
        """Have the model write a tool of a plain description; it is checked, tried in the sandbox, and pending.

        What is wrong with a text is given back to the model, twice at most. Nothing of it runs outside of the
        sandbox, and as a tool it runs when a person has read and approved it.

        Args:
            description: What it is to do: arguments with units, the result, the formula or its source.
            sandbox: The tier that each run has at least: `bubblewrap` or `limits`.

        Returns:
            A card of it; see `Workspace.register_tool`.

        Raises:
            BadInput: There is no description.
            NotPermitted: The role may not write.
            SourceFailed: The model could not be asked, or has written nothing that can be registered.

        Example:
            boss.write_tool("kinetic energy in J of a mass in kg at a speed in m/s")
        """
        asked = goal_text(description)
        if not asked:
            raise BadInput("there is no description of a tool.")
        taken = [*app_names(), *(one["name"] for one in self.workspace.tools())]
        write = functools.partial(written, self.model, asked, taken=taken, tokens=self.limits.tokens)
        text = _outside_of_loops(write)
        why, origin = f"as described: {asked}"[:2000], f"written by the model {self.model.model_name}"
        made = self.workspace.register_tool(text, why=why, origin=origin, sandbox=sandbox)
        return [self.workspace.wait_for_tests(one["name"]) for one in made]

    def would_send(self, goal: str, *, thread: str = "", suggest: Suggest = "words") -> dict[str, Any]:
        """What the first request to the model would have; nothing is sent. See `hpcagent.agents.sent`."""
        before = self.threads.recent(thread) if thread else []
        return would_send(self.where, self.pool, goal, before, suggest=checked(suggest))


def _outside_of_loops(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it to its end; a notebook has a loop of its own in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return anyio.run(work)
    found: list[T] = []
    failed: list[BaseException] = []

    def apart() -> None:
        try:
            found.append(anyio.run(work))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=apart, name="supervisor")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _history(before: Sequence[Turn]) -> list[ModelMessage]:
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    return [one for turn in before for one in ModelMessagesTypeAdapter.validate_json(turn.messages)]


def _as_stopped(goal: str, why: str, now: TurnNow) -> str:
    """A turn that was stopped, as messages that a model can be told later: the goal, why, and what was started."""
    from pydantic_ai.messages import (
        ModelMessagesTypeAdapter,
        ModelRequest,
        ModelResponse,
        TextPart,
        UserPromptPart,
    )

    runs = ", ".join(now.runs()) or "none"
    said = TextPart(f"(stopped: {why} Runs and campaigns so far: {runs}.)")
    messages: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart(goal)]), ModelResponse(parts=[said])]
    return ModelMessagesTypeAdapter.dump_json(messages).decode()
