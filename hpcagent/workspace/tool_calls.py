"""What scripts and the shell ask of a workspace about tools and agents."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput
from hpcagent.registry.shared import read_shared, write_shared
from hpcagent.workspace.connection import Connection

__all__ = ["ToolCalls"]

Answer = dict[str, Any]
PAUSE_S = 0.2


class ToolCalls(Connection):
    """Calls of `Workspace` about tools of its own, and agents."""

    def register_tool(
        self,
        tool: str | Path | Callable[..., Any] = "",
        *,
        file: str = "",
        why: str = "",
        origin: str = "",
        sandbox: str = "bubblewrap",
    ) -> list[Answer]:
        """Register functions as tools: pending until their tests have run and a person approves.

        Args:
            tool: Python as a text, the path of a file that has it, or a function of a script whose text is read.
            file: In its place a file of a run: `artifact:RUN/PATH`.
            why: What it is for, for whoever approves.
            origin: Where the text is from, in words.
            sandbox: The tier that each run has at least: `bubblewrap` or `limits`.

        Returns:
            A card of each: `name`, `version`, `state`, `sha256`, `errors`, `warnings`, `tests`.

        Raises:
            BadInput: What is wrong with the text, all of it at once.
            NotAllowed: The role may not write.
        """
        text = "" if file else _text(tool)
        more = {"why": why, "origin": origin, "sandbox": sandbox}
        found: Answer = self._call("register_tool", text=text, file=file, **more)
        cards: list[Answer] = found["tools"]
        return cards

    def tools(self) -> list[Answer]:
        """Registered tools, in whatever state; see `register_tool`."""
        found: list[Answer] = self._call("list_tools")
        return found

    def tool(self, name: str) -> Answer:
        """One tool: its card, `text`, `contract` and `tests`."""
        found: Answer = self._call("get_tool", name=name)
        return found

    def wait_for_tests(self, name: str, timeout_s: float = 180.0) -> Answer:
        """A tool once its tests have ended.

        Raises:
            TimeoutError: They have not, within `timeout_s`.
        """
        until = time.monotonic() + timeout_s
        while True:
            found = self.tool(name)
            if found["tests"]["state"] != "waiting":
                return found
            if time.monotonic() > until:
                raise TimeoutError(f"the tests of {name} have not ended within {timeout_s:g} s.")
            time.sleep(PAUSE_S)

    def approve_tool(
        self,
        name: str,
        note: str = "",
        *,
        sha256: str = "",
        despite_tests: bool = False,
        dry_run: bool = False,
    ) -> Answer:
        """Approve a tool as it is now.

        Args:
            name: The tool.
            note: What is said of it.
            sha256: The digest of the text that was read, all 64 digits; another text is refused.
            despite_tests: Although its tests have failed, are not there or could not run.
            dry_run: Check all that an approval needs, and approve nothing.

        Raises:
            NotAllowed: The role may not, or it is the caller's own tool.
            BadInput: It has errors, its tests say no, or it was changed.
        """
        more = {"note": note, "sha256": sha256, "despite_tests": despite_tests, "dry_run": dry_run}
        found: Answer = self._call("decide_tool", name=name, approve=True, **more)
        return found

    def reject_tool(self, name: str, note: str = "") -> Answer:
        """Reject a tool; one that was approved runs no more."""
        found: Answer = self._call("decide_tool", name=name, approve=False, note=note)
        return found

    def remove_tool(self, name: str) -> Answer:
        """Remove a tool that is not approved."""
        found: Answer = self._call("remove_tool", name=name)
        return found

    def describe(self, app: str) -> Answer:
        """The contract of an app or tool, as plain data."""
        found: Answer = self._call("describe", app=app)
        return found

    def agents(self) -> list[Answer]:
        """Agents: `name`, `role`, `tools`, `problem` where one cannot be used."""
        found: list[Answer] = self._call("list_agents")
        return found

    def add_agent(self, name: str, role: str, tools: Sequence[str] = ()) -> Answer:
        """Make an agent.

        Raises:
            BadInput: There is one of that name, its role text steers it against people, or a tool is not known.
        """
        found: Answer = self._call("add_agent", name=name, role=role, tools=list(tools))
        return found

    def accept_agent(self, name: str) -> Answer:
        """Let an agent work that was imported, when its role text and tools were read.

        Raises:
            NotAllowed: The role may not approve.
        """
        found: Answer = self._call("accept_agent", name=name)
        return found

    def remove_agent(self, name: str) -> Answer:
        """Remove an agent; its tools stay."""
        found: Answer = self._call("remove_agent", name=name)
        return found

    def assign(self, tool: str, agent: str) -> Answer:
        """Give an agent a tool: a registered one, or an app."""
        found: Answer = self._call("assign_tool", tool=tool, agent=agent)
        return found

    def unassign(self, tool: str, agent: str) -> Answer:
        """Take a tool away from an agent."""
        found: Answer = self._call("assign_tool", tool=tool, agent=agent, take=True)
        return found

    def export_tools(self, folder: str | Path, names: Sequence[str] = (), *, commit: str = "") -> list[str]:
        """Write approved tools and agents into a folder, with their digests, for another workspace to import.

        Args:
            folder: Made if it is not there; a git repository will do.
            names: Tools and agents; by default all tools that are approved and all agents that can be used. The
                approved tools of an agent that is named go along.
            commit: Commit them to the folder's git repository with this message; empty: do not.

        Returns:
            `NAME@VERSION` of each tool, `agent NAME` of each agent.

        Raises:
            BadInput: There is no tool or agent of that name, a tool is not approved, or git refuses.
        """
        agents = {one["name"]: one for one in self.agents() if not one["problem"]}
        tools = self.tools()
        scripts = {one["name"] for one in tools if one.get("kind") == "lammps"}
        if scripts & set(names):
            raise BadInput(
                f"{', '.join(sorted(scripts & set(names)))}: a LAMMPS script is not exported; give its files "
                "on, and add it there (`hpcagent workspace add-app`)."
            )
        approved = {one["name"] for one in tools if one["usable"]} - scripts
        named = {name for name in names if name in agents} if names else set(agents)
        along = {tool for name in named for tool in agents[name]["tools"]} & approved
        wanted = sorted({*(name for name in names if name not in agents), *along} if names else approved)
        return write_shared(
            Path(folder), [self.tool(name) for name in wanted], [agents[n] for n in sorted(named)], commit=commit
        )

    def import_tools(self, source: str | Path, *, why: str = "", sandbox: str = "bubblewrap") -> Answer:
        """Register the tools and agents of a folder or git repository that `export_tools` wrote; each is pending.

        Args:
            source: A folder, or the address of a git repository.
            why: What they are for.
            sandbox: The tier of the tools, as in `register_tool`; the folder's own records decide nothing here.

        Returns:
            `tools`: a card of each; `agents`: likewise, without tools that there are not here; `refused`: name ->
            why one was not registered.

        Raises:
            BadInput: There is nothing to import, or a text is not the one of its digest.
        """
        found: Answer = {"tools": [], "agents": [], "refused": {}}
        shared = read_shared(source)
        for name, text, origin in shared.tools:
            try:
                found["tools"] += self.register_tool(text, why=why, origin=origin, sandbox=sandbox)
            except BadInput as error:
                found["refused"][name] = error.message
        here = {one["name"] for one in [*self.tools(), *self._call("apps", query="")]}
        for name, role, tools, origin in shared.agents:
            more = {"tools": [tool for tool in tools if tool in here], "origin": origin}
            try:
                found["agents"].append(self._call("add_agent", name=name, role=role, **more))
            except BadInput as error:
                found["refused"][name] = error.message
        return found


def _text(tool: str | Path | Callable[..., Any]) -> str:
    """The text of a tool: as it is, of a file, or of a function whose source is to be had."""
    if callable(tool):
        try:
            return inspect.getsource(tool)
        except (OSError, TypeError):
            raise BadInput("the text of this function is not to be had; give it as a text.") from None
    if not isinstance(tool, Path):
        return tool  # a text is never taken for a path: it may be a client's
    try:
        return tool.expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{tool} cannot be read: {error}.", value=str(tool)) from None
