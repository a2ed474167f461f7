"""A workspace, and models that say what a test has written down for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha

pytest.importorskip("mcp")
pytest.importorskip("pydantic_ai")

from pydantic_ai import models
from pydantic_ai.messages import ModelResponse, RetryPromptPart, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

models.ALLOW_MODEL_REQUESTS = False

RULES = 'name = "group"\ndefault_site = "threads"\n'


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ha.Workspace]:
    """A workspace on threads; its service is ended behind the test."""
    for name in ("HPCAGENT_MODEL", "HPCAGENT_MODEL_URL", "HPCAGENT_MODEL_KEY"):
        monkeypatch.delenv(name, raising=False)
    made = ha.Workspace(tmp_path / "ws", create=True)
    (made.folder.root / "workspace.toml").write_text(RULES)
    yield made
    made.end(runs=True)


class Seen:
    """A request to the model, as it has come."""

    def __init__(self, messages: list[Any], info: Any) -> None:
        self.messages, self.info = messages, info

    @property
    def tools(self) -> list[str]:
        return sorted(one.name for one in self.info.function_tools)

    @property
    def instructions(self) -> str:
        return self.info.instructions or ""

    @property
    def returned(self) -> list[str]:
        """What tools have said so far, as the model is told it."""
        parts = [part for message in self.messages for part in message.parts]
        return [str(part.content) for part in parts if isinstance(part, ToolReturnPart | RetryPromptPart)]

    def data(self, which: int = -1) -> dict[str, Any]:
        """The data of a tool's answer."""
        lines = self.returned[which].splitlines()
        return json.loads(lines[2])

    @property
    def who(self) -> str:
        """The specialist, or `supervisor`."""
        first = self.instructions.splitlines()[0]
        return first.split()[2].rstrip(".") if first.startswith("You are ") else "supervisor"


def call(tool: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(tool, arguments)


class Script:
    """A model: for each of `supervisor` and the specialists a function, or the answers in their order.

    An answer is a text, a call, a list of calls, or a function of what was seen that gives one of them.
    """

    def __init__(self, **says: Any) -> None:
        self.says = {who: iter(list(said)) if isinstance(said, list) else said for who, said in says.items()}
        self.seen: list[Seen] = []
        self.model = FunctionModel(self._answer, model_name="scripted")

    async def _answer(self, messages: list[Any], info: Any) -> ModelResponse:
        seen = Seen(messages, info)
        self.seen.append(seen)
        said = self.says[seen.who]
        answer = said if callable(said) else next(said)
        if callable(answer):
            answer = answer(seen)
        if isinstance(answer, ModelResponse):
            return answer
        if isinstance(answer, str):
            return ModelResponse(parts=[TextPart(answer)])
        return ModelResponse(parts=answer if isinstance(answer, list) else [answer])

    def of(self, who: str) -> list[Seen]:
        return [one for one in self.seen if one.who == who]


@pytest.fixture
def supervisor(workspace: ha.Workspace) -> Callable[..., Any]:
    """A supervisor of the workspace with a script; called with the script and arguments of `Supervisor`."""
    from hpcagent.agents.supervisor import Supervisor

    return lambda script, **more: Supervisor(workspace, model=script.model, **more)
