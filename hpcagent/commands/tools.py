"""`hpcagent tools`: tools of a workspace's own and agents: registered, looked at, approved, assigned, shared."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpcagent.commands.common import JsonOption, say

if TYPE_CHECKING:
    from hpcagent.workspace.client import Workspace

__all__ = ["add"]

WHAT = {
    "list": "tools, in whatever state",
    "show": "NAME: its text, what was found in it, its tests",
    "check": "FILE: what would be refused; nothing is registered",
    "register": "FILE...: register the functions of Python files; exit code 1 where their tests have not passed",
    "write": "DESCRIPTION: have the model of $HPCAGENT_MODEL write one, then register it",
    "approve": "NAME: let it run, when you have read it",
    "reject": "NAME: do not let it run, or not any more",
    "remove": "NAME: remove one that is not approved",
    "agents": "agents, with their tools",
    "add-agent": "NAME ROLE [TOOL...]: make an agent",
    "accept-agent": "NAME: let an agent work that was imported, when you have read its role text",
    "remove-agent": "NAME: remove an agent",
    "assign": "TOOL AGENT: give an agent a tool",
    "unassign": "TOOL AGENT: take it away",
    "export": "FOLDER [NAME...]: write approved tools and agents for others",
    "import": "FOLDER or git address: register tools and agents of others",
}
NEEDED = {"show": 1, "check": 1, "register": 1, "write": 1, "approve": 1, "reject": 1, "remove": 1, "add-agent": 2}
NEEDED |= {"accept-agent": 1, "remove-agent": 1, "assign": 2, "unassign": 2, "export": 1, "import": 1}


_CALLS = {
    "show": "tool",
    "remove": "remove_tool",
    "accept-agent": "accept_agent",
    "remove-agent": "remove_agent",
}


def add(cli: typer.Typer) -> None:
    """Add the command."""
    cli.command()(tools)


def tools(
    what: Annotated[
        str, typer.Argument(help="; ".join(f"{name}: {words}" for name, words in WHAT.items()), metavar="WHAT")
    ],
    words: Annotated[list[str] | None, typer.Argument(help="As WHAT says.", metavar="[...]")] = None,
    where: Annotated[
        Path | None,
        typer.Option("--workspace", metavar="DIR", help="By default $HPCAGENT_WORKSPACE, or .hpcagent."),
    ] = None,
    as_: Annotated[str, typer.Option("--as", metavar="NAME", help="Speak for somebody of workspace.toml.")] = "",
    why: Annotated[
        str, typer.Option("--why", metavar="TEXT", help="register, import, approve, reject: what is said of it.")
    ] = "",
    sandbox: Annotated[
        str,
        typer.Option(
            "--sandbox", metavar="TIER", help="register, write, import: bubblewrap, or the weaker limits."
        ),
    ] = "bubblewrap",
    sha256: Annotated[
        str,
        typer.Option(
            "--sha256",
            metavar="DIGEST",
            help="approve: that of the text you read, all 64 digits (show prints them).",
        ),
    ] = "",
    despite_tests: Annotated[
        bool, typer.Option("--despite-tests", help="approve: although its tests failed or could not run.")
    ] = False,
    commit: Annotated[
        str, typer.Option("--commit", metavar="TEXT", help="export: commit to the folder's git repository.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Tools of a workspace's own: Python functions, in a sandbox, when a person has approved them; agents."""
    from hpcagent.errors import BadInput, nearest
    from hpcagent.shown import plain
    from hpcagent.workspace.client import Workspace

    given = list(words or ())
    if what not in WHAT:
        raise BadInput(f"`hpcagent tools {what}`: {nearest(what, WHAT)}", value=what)
    if len(given) < NEEDED.get(what, 0):
        raise BadInput(f"`hpcagent tools {what}` needs more words: {WHAT[what]}.")
    if what == "check":
        found: Any = _checked(Path(given[0]))
    else:
        there = Workspace(where, as_=as_)
        found = _done(there, what, given, why, sandbox, sha256, despite_tests, commit)
    say(json.dumps(found) if as_json else plain(_shown(what, found)))
    failed = what == "register" and any(one["tests"]["state"] != "passed" for one in found)
    if failed or (what == "check" and found["errors"]):
        raise typer.Exit(1)


def _checked(path: Path) -> dict[str, Any]:
    """What registering a file would say."""
    from hpcagent.catalog import app_names
    from hpcagent.errors import BadInput
    from hpcagent.registry.checked import check_whole
    from hpcagent.registry.findings import errors_of, warnings_of

    try:
        parsed = check_whole(path.read_text(), taken=app_names())
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}.", value=str(path)) from None
    return {
        "tools": [one.name for one in parsed.tools],
        "errors": [str(one) for one in errors_of(parsed.findings)],
        "warnings": [str(one) for one in warnings_of(parsed.findings)],
    }


def _done(
    there: Workspace,
    what: str,
    given: list[str],
    why: str,
    sandbox: str,
    sha256: str,
    despite_tests: bool,
    commit: str,
) -> Any:
    """What the service answers."""
    if what == "list":
        return there.tools()
    if what == "agents":
        return there.agents()
    first, rest = given[0], given[1:]
    if what == "register":
        found = [one for file in given for one in there.register_tool(Path(file), why=why, sandbox=sandbox)]
        return [there.wait_for_tests(one["name"]) for one in found]
    if what == "write":
        from hpcagent.agents.needed import supervisors

        return supervisors().Supervisor(there).write_tool(" ".join(given), sandbox=sandbox)
    if what == "approve":
        return there.approve_tool(first, why, sha256=sha256, despite_tests=despite_tests)
    if what == "reject":
        return there.reject_tool(first, why)
    if what == "add-agent":
        return there.add_agent(first, rest[0], rest[1:])
    if what in ("assign", "unassign"):
        return getattr(there, what)(first, rest[0])
    if what == "export":
        return there.export_tools(first, rest, commit=commit)
    if what == "import":
        return there.import_tools(first, why=why, sandbox=sandbox)
    return getattr(there, _CALLS[what])(first)


def _shown(what: str, found: Any) -> str:
    """For a person."""
    if what == "show":
        return _whole(found)
    if what == "import":
        lines = [_card(one) for one in [*found["tools"], *found["agents"]]]
        return "\n\n".join([*lines, *(f"{name}: not registered: {why}" for name, why in found["refused"].items())])
    if what == "check":
        return "\n".join([f"tools: {', '.join(found['tools']) or 'none'}", *_findings(found)])
    if isinstance(found, list):
        parts = [one if isinstance(one, str) else _card(one) for one in found]
        return "\n".join(parts) if what == "export" else "\n\n".join(parts) or "none"
    return _card(found)


def _card(one: dict[str, Any]) -> str:
    """A tool or an agent, in a few lines."""
    if "role" in one:
        lines = [f"{one['name']}: {', '.join(one['tools']) or 'no tools'}", f"  {one['role']}"]
    elif "state" in one:
        tests = one["tests"] if isinstance(one["tests"], str) else one["tests"]["state"]
        lines = [f"{one['name']} {one['version']}: {one['state']}; tests: {tests}; SHA-256 {one['sha256'][:12]}"]
        lines += [f"  {one['description']}"] if one["description"] else []
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["at"]))
        lines.append(f"  registered by {one['asked_by']}, {at} ({one['origin']}), sandbox {one['sandbox']}")
        lines += [f"  {one['limit']}"] if one["limit"] else []
        settings = [f"{name} = {json.dumps(value)}" for name, value in (one.get("settings") or {}).items()]
        lines += [f"  settings: {'; '.join(settings)}"] if settings else []
        lines += [f"  {one['state']} by {one['decided_by']}: {one['note']}"] if one["decided_by"] else []
        lines += [f"  agents: {', '.join(one['agents'])}"] if one["agents"] else []
        lines += [f"  {line}" for line in _findings(one)]
        if not isinstance(one["tests"], str):
            lines += [f"  {line}" for line in _tests(one["tests"])]
    else:
        lines = [f"{one['name']}: removed"]
    return "\n".join([*lines, *([f"  cannot be used: {one['problem']}"] if one.get("problem") else [])])


def _findings(one: dict[str, Any]) -> list[str]:
    return [*(f"error: {line}" for line in one["errors"]), *(f"look at: {line}" for line in one["warnings"])]


def _tests(trial: dict[str, Any]) -> list[str]:
    lines = [f"tests ({trial['kind'] or 'none'}): {trial['state']}{', ' + trial['why'] if trial['why'] else ''}"]
    for case in trial["cases"]:
        lines.append(f"  {'passed' if case['passed'] else 'FAILED'}: {case['name']}")
        if not case["passed"]:
            lines += [f"    {line}" for line in case["said"].splitlines()]
    return lines


def _whole(found: dict[str, Any]) -> str:
    return "\n".join(
        [
            _card(found),
            f"  SHA-256 {found['sha256']}",
            "",
            *(f"  | {line}".rstrip() for line in found["text"].splitlines()),
        ]
    )
