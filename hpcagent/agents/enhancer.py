"""Suggestions for a goal, by the words of names and descriptions: the same goal, the same suggestions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from hpcagent.agents.pool import Pool, Specialist
from hpcagent.agents.tools import AgentTool, first_line
from hpcagent.errors import BadInput

__all__ = ["MOST_STEPS", "Suggest", "Suggestion", "checked", "enhanced", "suggest", "with_suggestions"]

CLEAR = 1.3
"""So many times the score of the next one makes a suggestion unambiguous."""
NAME_COUNTS = 3.0
MOST_STEPS = 12
Suggest = Literal["words", "model", "no"]
_STEPS = re.compile(r"\s*(?:;|\n+|,?\s+(?:and\s+)?then\s+|,?\s+after(?:\s+that|wards)\s+|\.\s+(?=[A-Z]))\s*")
_WORDS = (
    "a an and are as at be by can do does for from give has have how i if in is it its me my of on one only or "
    "please run show so tell that the their them then there these this those to up use want was we what when "
    "where which will with you your"
)
_COMMON = frozenset(_WORDS.split())


def checked(suggest: str) -> Suggest:
    """Who makes suggestions, if it is one of them.

    Raises:
        BadInput: It is not.
    """
    for one in get_args(Suggest):
        if suggest == one:
            return cast("Suggest", one)
    raise BadInput(f"suggestions: by 'words', by the 'model', or 'no'; got {suggest!r}.", value=suggest)


@dataclass(frozen=True)
class Suggestion:
    """Who could do a step.

    Attributes:
        step: The part of the goal.
        agent: The specialist whose names and descriptions have most of its words; empty: none is ahead.
        tool: Its tool, if one is clearly ahead.
    """

    step: str
    agent: str = ""
    tool: str = ""


def suggest(goal: str, pool: Pool) -> list[Suggestion]:
    """A suggestion for each step of a goal."""
    every = [(one, pool.tools_of(one)) for one in pool.specialists()]
    steps = [step.strip(" .") for step in _STEPS.split(goal) if step.strip(" .")]
    return [_for(step, every) for step in steps[:MOST_STEPS]]


def enhanced(goal: str, pool: Pool) -> str:
    """The goal with suggestions behind it; as it is where nothing is ahead."""
    found = [one for one in suggest(goal, pool) if one.agent]
    return with_suggestions(goal, found, "Suggested by words alone (you may do otherwise):")


def with_suggestions(goal: str, found: Sequence[Suggestion], heading: str) -> str:
    """The goal with suggestions behind it, one a line; as it is where there are none."""
    if not found:
        return goal
    lines = [f"- {one.step}" + _who(one) for one in found]
    return f"{goal}\n\n{heading}\n" + "\n".join(lines)


def _who(one: Suggestion) -> str:
    if not one.agent:
        return ""
    return f": {one.agent}" + (f", tool {one.tool}" if one.tool else "")


def _for(step: str, every: Sequence[tuple[Specialist, list[AgentTool]]]) -> Suggestion:
    asked = _words(step)
    tools = [(agent, tool, _bag(tool)) for agent, has in every for tool in has]
    rare = _rarity([bag for _, _, bag in tools])
    scored = sorted(
        ((_score(asked, bag, rare), agent.name, tool.name) for agent, tool, bag in tools),
        key=lambda one: (-one[0], one[1], one[2]),
    )
    if not scored or scored[0][0] <= 0:
        return Suggestion(step)
    best, agent, tool = scored[0]
    agents = {name: max(score for score, other, _ in scored if other == name) for _, name, _ in scored}
    ahead = [name for name, score in agents.items() if score == best]
    if len(ahead) > 1:
        # Several have that tool: whose role and other tools have more of the words.
        whole = {one.name: len(asked & _words(f"{one.name} {one.role}")) for one, _ in every}
        ahead.sort(key=lambda name: (-whole[name], name))
        if whole[ahead[0]] == whole[ahead[1]]:
            return Suggestion(step)
        agent = ahead[0]
    others = [score for score, _, name in scored if name != tool]
    clear = not others or best >= CLEAR * others[0]
    return Suggestion(step, agent, tool if clear else "")


def _bag(tool: AgentTool) -> dict[str, float]:
    bag = dict.fromkeys(_words(first_line(tool)), 1.0)
    return bag | dict.fromkeys(_words(tool.name), NAME_COUNTS)


def _rarity(bags: Sequence[Iterable[str]]) -> dict[str, float]:
    count: dict[str, int] = {}
    for bag in bags:
        for word in bag:
            count[word] = count.get(word, 0) + 1
    return {word: math.log(1 + len(bags) / n) for word, n in count.items()}


def _score(asked: set[str], bag: dict[str, float], rare: dict[str, float]) -> float:
    return sum(weight * rare[word] for word, weight in sorted(bag.items()) if word in asked)


def _words(text: str) -> set[str]:
    found = re.findall(r"[a-z0-9]+", text.lower().replace("_", " "))
    return {_stem(word) for word in found if word not in _COMMON and len(word) > 1}


def _stem(word: str) -> str:
    for ending in ("ies", "ing", "es", "ed", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)]
    return word
