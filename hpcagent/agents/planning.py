"""Suggestions for a goal by a model: its steps and who could do each; what is not there is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from hpcagent.agents.enhancer import MOST_STEPS, Suggestion, with_suggestions
from hpcagent.agents.marked import goal_text
from hpcagent.agents.pool import Pool, knowledge

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model

    from hpcagent.agents.threads import Turn

__all__ = ["PLANNER_RULES", "planned", "planner"]

PLANNER_RULES = """\
You take a goal apart for a supervisor, and do nothing else. Give its steps in the order in which they can be done,
each with the specialist that could do it and, where it is clear, its tool, by the names below; leave a
name empty where none is right. Add no step that the goal does not need, and no number that is not in the goal."""


class _Step(BaseModel):
    step: str = Field(description="what is to be done, in one sentence", max_length=500)
    agent: str = Field("", description="name of a specialist")
    tool: str = Field("", description="name of a tool of that specialist")


class _Plan(BaseModel):
    steps: list[_Step] = Field(max_length=MOST_STEPS)


def planner(pool: Pool) -> str:
    """What the model is told that makes suggestions."""
    return f"{PLANNER_RULES}\n\nSpecialists, and their tools:\n{knowledge(pool)}"


async def planned(
    model: Model, goal: str, pool: Pool, *, before: Sequence[Turn] = (), usage: Any, limits: Any
) -> str:
    """The goal, word for word, with a model's suggestions behind it.

    Args:
        model: Is asked once, twice more if its answer cannot be read.
        goal: The goal.
        pool: Who there is: a name that is not in it is left out.
        before: Turns of the thread that go along, as question and answer: "the same with skin 1 A" needs them.
        usage: Of pydantic-ai: what the question has used so far; this is added.
        limits: Of pydantic-ai: what the question may use.

    Raises:
        UnexpectedModelBehavior: Of pydantic-ai: no answer could be read.
        UsageLimitExceeded: Of pydantic-ai.
        ModelAPIError: Of pydantic-ai: the model could not be asked.
    """
    from pydantic_ai import Agent

    agent: Agent[None, _Plan] = Agent(
        model, name="planner", output_type=_Plan, instructions=planner(pool), retries=2
    )
    done = await agent.run(goal, message_history=_told(before), usage=usage, usage_limits=limits)
    plan = done.output
    has = {one.name: {tool.name for tool in pool.tools_of(one)} for one in pool.specialists()}
    found = [
        Suggestion(goal_text(one.step), one.agent if one.agent in has else "", _tool(one, has))
        for one in plan.steps
    ]
    return with_suggestions(goal, found, f"Suggested by the model {model.model_name} (you may do otherwise):")


def _told(before: Sequence[Turn]) -> list[ModelMessage]:
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

    messages: list[ModelMessage] = []
    for turn in before:
        messages.append(ModelRequest(parts=[UserPromptPart(turn.goal)]))
        messages.append(ModelResponse(parts=[TextPart(str(turn.reply.get("text", "")) or "(no answer)")]))
    return messages


def _tool(one: _Step, has: dict[str, set[str]]) -> str:
    return one.tool if one.tool in has.get(one.agent, ()) else ""
