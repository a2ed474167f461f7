"""A tool from a plain description: a model writes it, what is wrong is given back, a person decides."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from hpcagent.agents.marked import goal_text
from hpcagent.agents.models import not_asked
from hpcagent.errors import SourceFailed
from hpcagent.registry.checked import check_whole
from hpcagent.registry.findings import errors_of

if TYPE_CHECKING:
    from pydantic_ai.models import Model

__all__ = ["TRIES", "written"]

TRIES = 3
"""So often a model may write a text before it is given up."""
HOW = """\
You write Python functions that a research group runs as tools, each by itself in a sandbox without network.
Answer with the text of one Python file and nothing else. It has one function for what is described, and its tests:
- each argument has a type: float, int, bool or str; a number may have bounds: Annotated[float, (300.0, 900.0)].
- the docstring in Google style says what it does in a sentence, each argument (Args:) with its unit in brackets
  such as [K], and what it returns (Returns:) with its unit; [1] is a pure number. A formula has its source.
- it returns a float, or a dict of floats of which each has its own unit.
- two or more functions test_* assert values that are known from elsewhere, with their tolerance.
- it imports the standard library and numpy only, does nothing at its top, writes no file, prints nothing."""
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(?P<text>.*?)```", re.DOTALL)


async def written(model: Model, description: str, *, taken: Collection[str], tokens: int | None) -> str:
    """The text of a tool that passes the checks of a text; nothing of it was run.

    Args:
        model: Writes it, and is told what is wrong with what it has written.
        description: What the tool is to do, in plain words.
        taken: Names that it cannot have.
        tokens: At most, of all tries together; None: no limit.

    Raises:
        SourceFailed: The model could not be asked, or the last text still has errors, which are named.
    """
    from pydantic_ai import Agent
    from pydantic_ai.exceptions import AgentRunError, ModelAPIError, UserError
    from pydantic_ai.usage import RunUsage, UsageLimits

    agent: Agent[None, str] = Agent(model, name="writer", output_type=str, instructions=HOW)
    usage, limits = RunUsage(), UsageLimits(request_limit=TRIES, total_tokens_limit=tokens)
    asked, before, errors = f"The tool: {goal_text(description)}", None, ""
    for _ in range(TRIES):
        try:
            done = await agent.run(asked, message_history=before, usage=usage, usage_limits=limits)
        except ModelAPIError as error:
            raise SourceFailed(f"no tool was written: {not_asked(model, error)}") from None
        except (AgentRunError, UserError) as error:
            raise SourceFailed(f"the model has written no tool: {error}") from None
        text = _text_of(done.output)
        errors = "\n".join(str(one) for one in errors_of(check_whole(text, taken=taken).findings))
        if not errors:
            return text
        asked, before = (
            f"It cannot be registered. Write the whole file again without:\n{errors}",
            done.all_messages(),
        )
    raise SourceFailed(
        f"after {TRIES} tries the model's text still cannot be registered: {errors}. Describe the tool by its "
        "arguments, units and result, or write it by hand (docs/howto/tools_of_your_own.md)."
    )


def _text_of(answer: str) -> str:
    """The file in an answer, with or without a fence around it.

    Example:
        >>> _text_of("Here it is:\\n```python\\nx = 1\\n```\\n")
        'x = 1\\n'
    """
    found = _FENCE.search(answer)
    return found["text"] if found else answer.strip() + "\n"
