"""The specialists: those of the workspace, and a few that are always there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hpcagent.agents.tools import AgentTool, app_tool, first_line, served_tools, wait_tool
from hpcagent.errors import BadInput
from hpcagent.mcp.callers import Caller
from hpcagent.mcp.said import clean_text
from hpcagent.registry.scripts import SCRIPTS, scripts_on

__all__ = ["SPECIALISTS", "Pool", "Specialist", "knowledge"]

LONGEST_ROLE = 4000
LONGEST_LINE = 300

MoreTools = Callable[[], Iterable[AgentTool]]
MoreSpecialists = Callable[[], "Iterable[Specialist]"]


@dataclass(frozen=True)
class Specialist:
    """Who does a part of a goal.

    Attributes:
        name: As the supervisor calls it.
        role: What it is told that it is and does.
        tools: Names of its tools; those that there are not at the moment are left out.
        needs: A tool without which it is not there; empty: any will do.
    """

    name: str
    role: str
    tools: tuple[str, ...]
    needs: str = ""


_FOLLOW = ("wait_for", "get_status", "list_artifacts", "fetch_artifact", "cancel")
SPECIALISTS: tuple[Specialist, ...] = (
    Specialist(
        "runner",
        "You find the app for a task, estimate and start single runs, wait for them and report their metrics.",
        (
            "list_apps",
            "describe_app",
            "estimate",
            "run_job",
            "repeat_run",
            "explain_run",
            "list_runs",
            *_FOLLOW,
            "get_node_counters",
        ),
    ),
    Specialist(
        "campaigner",
        "You plan, estimate, start and follow campaigns: many runs that a policy steers to the best point.",
        (
            "list_packaged_campaigns",
            "list_apps",
            "describe_app",
            "estimate_campaign",
            "start_campaign",
            "bayesian_optimize",
            "get_campaign",
            "extend_campaign",
            "stop_campaign",
            "recommend_points",
            "explain_run",
            "replay_campaign",
            "make_report",
            "get_answer",
            "wait_for",
        ),
    ),
    Specialist(
        "catalyst_chemist",
        "You look adsorption energies of catalysts up, compute those that are missing, and keep the notebook.",
        (
            "query_database",
            "run_dft",
            "get_dft",
            "optimize_geometry",
            "plot_band_structure",
            "add_catalyst",
            "append_notebook_entry",
            "tell_event",
            "wait_for",
        ),
    ),
    Specialist(
        "bookkeeper",
        "You say what has run, what it has cost, what holds here and which approvals wait.",
        ("get_workspace", "get_costs", "list_approvals", "list_runs", "get_status"),
    ),
    Specialist(
        "toolsmith",
        "You register tools and agents that a person has given or asked for; a person confirms each change, and "
        "approves each tool before it runs.",
        (
            "register_tool_from_code",
            "register_tool_from_file",
            "list_registered_tools",
            "get_registered_tool",
            "assign_tool_to_agent",
            "remove_tool_from_agent",
            "add_agent_to_pool",
            "remove_agent_from_pool",
            "list_agents",
        ),
    ),
    Specialist(
        "shell_agent",
        "You do with lines of a shell what no other specialist can: look into files of runs, convert them, "
        "count. You start from nothing each time, without network; a file of a run is given as artifact:RUN/PATH.",
        ("shell_command", "list_runs", *_FOLLOW),
        needs="shell_command",
    ),
    Specialist(
        "compute_agent",
        "You compute numbers with Python that you write, one number a run, from values that you were given with "
        "their units or from a file of a run (artifact:RUN/PATH). You say how you have computed each.",
        ("python_code", "calculate", "plot_data", *_FOLLOW),
        needs="python_code",
    ),
)
"""Those that are there from the start; one of the workspace with the same name stands in its place. The last two
are there where `base_agents` of `workspace.toml` says so."""


class Pool:
    """Specialists and tools as they are at this moment; asked again, read again.

    Args:
        caller: In whose name.
        specialists: In place of those of the workspace and those that are always there.
        tools: More tools, asked for each time.
    """

    def __init__(
        self, caller: Caller, *, specialists: MoreSpecialists | None = None, tools: MoreTools | None = None
    ) -> None:
        self._caller, self._given, self._more = caller, specialists, tools

    def specialists(self) -> list[Specialist]:
        """Who there is, by name; those whose role text or record has a problem are left out."""
        if self._given is not None:
            return sorted(self._given(), key=lambda one: one.name)
        found = {one.name: one for one in SPECIALISTS}
        for one in self._caller.workspace.agents():
            found.pop(one["name"], None)
            if not one.get("problem"):
                found[one["name"]] = Specialist(one["name"], one["role"], tuple(one["tools"]))
        return [found[name] for name in sorted(found) if self._has_tools(found[name])]

    def _has_tools(self, one: Specialist) -> bool:
        if one.needs:
            return self._app(one.needs) is not None
        return bool(set(one.tools) & self._plain().keys()) or one not in SPECIALISTS

    def get(self, name: str) -> Specialist:
        """One of them.

        Raises:
            BadInput: There is none of that name.
        """
        found = {one.name: one for one in self.specialists()}
        if name not in found:
            raise BadInput(f"there is no specialist {name!r}; there are {', '.join(found)}.", value=name)
        return found[name]

    def tools_of(self, one: Specialist) -> list[AgentTool]:
        """The tools that it has now."""
        known = self._plain()
        return [tool for name in one.tools if (tool := known.get(name) or self._app(name)) is not None]

    def _plain(self) -> dict[str, AgentTool]:
        waits = wait_tool()
        more = {} if self._more is None else {one.name: one for one in self._more()}
        return {**served_tools(), waits.name: waits, **more}

    def _app(self, name: str) -> AgentTool | None:
        """An app or registered tool by its name; None: there is none that may be used now."""
        if name in SCRIPTS and name not in scripts_on(self._caller.workspace.folder.read_rules()):
            return None
        usable = {one["name"] for one in self._caller.workspace.apps()}
        if name.partition("@")[0] not in usable:
            return None
        return app_tool(name, self._caller.workspace.describe(name))


def knowledge(pool: Pool) -> str:
    """What the supervisor knows: each specialist, its role, the first line of each of its tools."""
    lines: list[str] = []
    for one in pool.specialists():
        lines.append(f"- {one.name}: {_brief(one.role, LONGEST_ROLE)}")
        tools: Sequence[AgentTool] = pool.tools_of(one)
        lines += [f"  - {tool.name}: {_brief(first_line(tool), LONGEST_LINE)}" for tool in tools]
        lines += [] if tools else ["  (no tool at the moment: it can do nothing)"]
    return "\n".join(lines)


def _brief(text: str, most: int) -> str:
    return " ".join(clean_text(text, most).split()).replace("<", "(")
