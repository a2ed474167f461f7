"""How a supervisor has a part done: by a specialist, which hands back only after it has used one of its tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcagent.agents.marked import RULE, data_text, goal_text
from hpcagent.agents.pool import Pool, Specialist
from hpcagent.agents.tools import AgentTool
from hpcagent.agents.turn import Called, Event, TurnNow
from hpcagent.errors import BadInput

if TYPE_CHECKING:
    from pydantic_ai.models import Model

__all__ = ["SPECIALIST_RULES", "SUPERVISOR_RULES", "delegate_tool"]

SUPERVISOR_RULES = f"""\
You take a goal apart and have specialists do the parts, by the tool `delegate`. You run nothing yourself.
- Parts that do not need each other: delegate them in one message, so that they go on at the same time.
- A part that needs a result: pass the run_id on in its task; results are found by it.
- When a part has failed or was refused, read why; try once more in another way, or revise the plan. Do not ask
  for the same again when a person has said no.
- Answer from what came back. Each number has its unit and comes from a run: name the run_id behind it. Do not say
  a number that you do not have from a run.
- Write no code unless you are asked for it.
{RULE}"""

SPECIALIST_RULES = f"""\
You do the task with your tools, and then say what came of it: run_ids, metrics with units, what was refused
and why. You hand back only after you have called a tool. Say no number that no tool has said.
{RULE}"""

TRY_AGAIN = "You have called none of your tools. Do the task with them now; what you said is not passed on."
MOST_TOOLS_AT_ONCE = 40
_SCHEMA = {
    "type": "object",
    "properties": {
        "agent": {"type": "string", "description": "Name of a specialist.", "maxLength": 100},
        "task": {
            "type": "string",
            "description": "What it is to do, complete in itself: values with units, run_ids that it needs.",
            "minLength": 1,
            "maxLength": 20_000,
        },
    },
    "required": ["agent", "task"],
    "additionalProperties": False,
}


def delegate_tool(model: Model, pool: Pool, now: TurnNow, limits: Any) -> Any:
    """The one tool of a supervisor.

    Args:
        model: That the specialists ask.
        pool: Who there is; read at each call.
        now: The question that is answered.
        limits: Of requests and tokens, of the supervisor and its specialists together.
    """
    from pydantic_ai.tools import RunContext, Tool

    async def delegate(context: RunContext[object], **given: Any) -> str:
        try:
            agent, task = _asked(given)
            one = pool.get(agent)
        except BadInput as error:
            return data_text("delegate", {"error": error.message})
        now.tell(Event("delegated", one.name, text=" ".join(task.split())[:200]))
        said, calls = await _done(model, pool, one, task, now, context.usage, limits)
        now.tell(Event("handed_back", one.name, text="" if calls else "nothing"))
        return data_text(one.name, said)

    words = "Have a specialist do a part of the goal; returns what it says, and which tools it has really called."
    return Tool.from_schema(delegate, "delegate", words, _SCHEMA, takes_ctx=True)


def _asked(given: Mapping[str, Any]) -> tuple[str, str]:
    agent, task = given.get("agent"), given.get("task")
    if (
        set(given) != {"agent", "task"}
        or not isinstance(agent, str)
        or not isinstance(task, str)
        or not task.strip()
    ):
        raise BadInput("delegate takes agent and task, both texts, and nothing else.")
    return str(agent), str(task)


async def _done(
    model: Model, pool: Pool, one: Specialist, task: str, now: TurnNow, usage: Any, limits: Any
) -> tuple[dict[str, Any], list[Called]]:
    """What a specialist hands back; refused where it has called no tool, also when told so."""
    calls: list[Called] = []
    tools = pool.tools_of(one)
    if not tools:
        return {"agent": one.name, "error": "it has no tool at the moment, so it can do nothing."}, calls
    agent = _agent(model, one, tools, now, calls)
    prompt, history = task, None
    for _ in range(2):
        done = await agent.run(prompt, message_history=history, usage=usage, usage_limits=limits)
        if any(call.really for call in calls):
            said = goal_text(str(done.output))
            return {"agent": one.name, "says": said, "really_called": [_brief(call) for call in calls]}, calls
        now.tell(Event("retried", one.name, text="it has called no tool"))
        prompt, history = TRY_AGAIN, done.all_messages()
    error = f"{one.name} handed back twice without having called a tool; what it said is not passed on."
    return {"agent": one.name, "error": error, "really_called": [_brief(call) for call in calls]}, []


def _brief(call: Called) -> dict[str, Any]:
    refused = {"refused": call.refused} if call.refused else {}
    return {"tool": call.tool, "runs": list(call.runs), **refused}


def _agent(model: Model, one: Specialist, tools: Sequence[AgentTool], now: TurnNow, calls: list[Called]) -> Any:
    from pydantic_ai import Agent

    made = [_tool(one.name, tool, now, calls) for tool in tools[:MOST_TOOLS_AT_ONCE]]
    role = f"You are {one.name}. {one.role}\n\n{SPECIALIST_RULES}"
    return Agent(model, name=one.name, output_type=str, retries=2, instructions=role, tools=made)


def _tool(agent: str, tool: AgentTool, now: TurnNow, calls: list[Called]) -> Any:
    from pydantic_ai.tools import Tool

    async def call(**arguments: Any) -> str:
        said, done = await now.call(agent, tool, arguments)
        calls.append(done)
        return said

    return Tool.from_schema(call, tool.name, tool.description, dict(tool.schema))
