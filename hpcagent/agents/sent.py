"""What a model is told, and what would be sent to it first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcagent.agents.delegating import SPECIALIST_RULES, SUPERVISOR_RULES
from hpcagent.agents.enhancer import Suggest, enhanced
from hpcagent.agents.marked import goal_text
from hpcagent.agents.planning import planner
from hpcagent.agents.pool import Pool, knowledge
from hpcagent.agents.threads import Turn

__all__ = ["instructions", "would_send"]


def instructions(pool: Pool) -> str:
    """What the supervisor is told, with who there is at this moment."""
    return f"{SUPERVISOR_RULES}\n\nSpecialists, and their tools:\n{knowledge(pool)}"


def would_send(
    where: str, pool: Pool, goal: str, before: Sequence[Turn] = (), *, suggest: Suggest = "words"
) -> dict[str, Any]:
    """What the first request to the model would have; nothing is sent.

    Args:
        where: To whom.
        pool: Who there is.
        goal: The question.
        before: Turns of the thread that go along.
        suggest: Who makes suggestions; by the `model`, it is asked for them before, with `planner`.

    Returns:
        `to`, `instructions`, `earlier` (turns that go along), `goal`, `tools`, `specialists` (name to what each is
        told, and its tools), `then` (what follows later); `planner` where the model makes the suggestions.
    """
    asked = goal_text(goal)
    specialists = {
        one.name: {
            "told": f"{one.role}\n\n{SPECIALIST_RULES}",
            "tools": {tool.name: tool.description for tool in pool.tools_of(one)},
        }
        for one in pool.specialists()
    }
    first = {"planner": planner(pool)} if suggest == "model" else {}
    return {
        "to": where,
        **first,
        "instructions": instructions(pool),
        "earlier": [{"goal": turn.goal, "reply": turn.reply.get("text", "")} for turn in before],
        "goal": enhanced(asked, pool) if suggest == "words" else asked,
        "tools": ["delegate"],
        "specialists": specialists,
        "then": "what the tools of a specialist answer when it calls them: parameters, metrics, logs, files of "
        "this workspace, without what looks like a secret",
    }
