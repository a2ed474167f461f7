"""What the page asks about tools of the workspace's own, and agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from hpcagent.mcp.said import clean, to_approve
from hpcagent.web.asked import Asked, Name
from hpcagent.workspace.client import Workspace

__all__ = ["AgentAsked", "Assignment", "ToolAsked", "ToolDecision", "Toolbox"]

LONGEST_TEXT = 200_000


class ToolAsked(Asked):
    """Functions to be registered as tools."""

    text: str = Field(min_length=1, max_length=LONGEST_TEXT)
    why: str = Field(default="", max_length=2000)
    sandbox: Literal["bubblewrap", "limits"] = "bubblewrap"


class ToolDecision(Asked):
    """Yes or no to a tool, with the digest of the text that was shown."""

    approve: bool
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    note: str = Field(default="", max_length=2000)
    despite_tests: bool = False


class AgentAsked(Asked):
    """An agent to be made."""

    name: Name
    role: str = Field(min_length=1, max_length=20_000)
    tools: list[Name] = Field(default=[], max_length=100)


class Assignment(Asked):
    """A tool that an agent gets, or loses."""

    tool: Name
    take: bool = False


class Toolbox:
    """Answers about tools and agents; each is called with the address's parts and the query, or what was sent.

    Args:
        workspace: In the name of whom the page is for.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._ws = workspace

    def tool(self, at: Mapping[str, str], query: Mapping[str, str]) -> Any:
        """A tool as it is now. Its text is what is approved: nothing is masked, and no character is invisible."""
        found = self._ws.tool(at["name"])
        text = to_approve(found.pop("text"))
        return clean(found) | {"text": text}

    def register(self, at: Mapping[str, str], asked: ToolAsked) -> Any:
        """Register; what is wrong with the text is told all at once."""
        made = self._ws.register_tool(asked.text, why=asked.why, origin="the page", sandbox=asked.sandbox)
        return clean({"tools": made})

    def decide(self, at: Mapping[str, str], asked: ToolDecision) -> Any:
        """Approve or reject the text that was shown."""
        if not asked.approve:
            return clean(self._ws.reject_tool(at["name"], asked.note))
        said = self._ws.approve_tool(
            at["name"], asked.note, sha256=asked.sha256, despite_tests=asked.despite_tests
        )
        return clean(said)

    def remove(self, at: Mapping[str, str], asked: Asked) -> Any:
        """Remove a tool that is not approved."""
        return clean(self._ws.remove_tool(at["name"]))

    def add_agent(self, at: Mapping[str, str], asked: AgentAsked) -> Any:
        """Make an agent."""
        return clean(self._ws.add_agent(asked.name, asked.role, asked.tools))

    def assign(self, at: Mapping[str, str], asked: Assignment) -> Any:
        """Give an agent a tool, or take it away."""
        do = self._ws.unassign if asked.take else self._ws.assign
        return clean(do(asked.tool, at["name"]))

    def remove_agent(self, at: Mapping[str, str], asked: Asked) -> Any:
        """Remove an agent; its tools stay."""
        return clean(self._ws.remove_agent(at["name"]))
