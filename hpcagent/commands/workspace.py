"""`hpcagent workspace`: runs and campaigns behind the gate, approvals, costs; `hpcagent serve`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpcagent.commands.common import JsonOption, SiteOption, say

if TYPE_CHECKING:
    from hpcagent.workspace.client import Workspace

__all__ = ["add"]

WHAT = {
    "init": "make a workspace",
    "about": "the workspace and its service",
    "run": "APP NAME=VALUE...: start a run",
    "estimate": "APP NAME=VALUE...: what it would take; nothing is run",
    "start": "CAMPAIGN: start a campaign",
    "list": "runs, the newest first",
    "status": "RUN: state, metrics, failure, the log's last lines",
    "wait": "RUN: until it has ended",
    "answer": "CAMPAIGN_ID: its answer so far",
    "cancel": "RUN: keep it from being done, or end it",
    "stop": "CAMPAIGN_ID: stop a campaign",
    "extend": "CAMPAIGN_ID: go on with one that has ended, with --set",
    "apps": "apps that the caller may use",
    "add-app": "SCRIPT [NAME=LOW:HIGH...]: make a LAMMPS script an app of the workspace",
    "added-apps": "apps that were added, in whatever state",
    "describe": "APP: its parameters and metrics",
    "remove-app": "APP: remove one that was added",
    "files": "RUN or CAMPAIGN [FOLDER]: its files, or those in a folder of it (work/EXECUTION_ID)",
    "fetch": "RUN PATH [TO]: a file of a run",
    "approvals": "what waits for a person, and what was decided",
    "approve": "APPROVAL: grant it",
    "deny": "APPROVAL: deny it",
    "costs": "spent, committed, estimated against actual",
    "expire": "remove folders of runs that are older than retention_days",
    "end": "end the service; runs go on, unless --runs",
}

# So many parameters or metrics of a run are shown in a list.
IN_A_CELL = 4

WorkspaceOption = Annotated[
    Path | None,
    typer.Option("--workspace", metavar="DIR", help="By default $HPCAGENT_WORKSPACE, or .hpcagent."),
]


def add(cli: typer.Typer) -> None:
    """Add the commands."""
    cli.command()(workspace)
    cli.command()(serve)


def workspace(
    what: Annotated[
        str, typer.Argument(help="; ".join(f"{name}: {words}" for name, words in WHAT.items()), metavar="WHAT")
    ],
    words: Annotated[list[str] | None, typer.Argument(help="As WHAT says.", metavar="[...]")] = None,
    where: WorkspaceOption = None,
    site: SiteOption = None,
    as_: Annotated[str, typer.Option("--as", metavar="NAME", help="Speak for somebody of workspace.toml.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="run, start: until it has ended.")] = False,
    why: Annotated[
        str,
        typer.Option(
            "--why", metavar="TEXT", help="run, start, extend, add-app, approve, deny: what is said of it."
        ),
    ] = "",
    state: Annotated[str, typer.Option("--state", metavar="STATE", help="list: only those in this state.")] = "",
    walltime: Annotated[
        float | None,
        typer.Option(
            "--walltime-s", metavar="S", help="run, add-app: wall time after which it is ended, in seconds."
        ),
    ] = None,
    units: Annotated[
        list[str] | None,
        typer.Option("--unit", metavar="NAME=UNIT", help="add-app: unit of a variable; 1 for a pure number."),
    ] = None,
    seed_variables: Annotated[
        list[str] | None,
        typer.Option("--seed-variable", help="add-app: variable of the script that takes the random seed."),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="add-app: its name (krypton of in.krypton by default).")
    ] = "",
    sandbox: Annotated[
        str, typer.Option("--sandbox", metavar="TIER", help="add-app: bubblewrap or limits, for each of its runs.")
    ] = "",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="start, extend: in place of its own."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="run: once more, where the same has ended.")] = False,
    runs: Annotated[bool, typer.Option("--runs", help="end: what runs, too, and close the sites.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run apps and campaigns in a workspace, behind its gate; see what they took, approve, deny."""
    from hpcagent.errors import BadInput, nearest
    from hpcagent.workspace.client import Workspace
    from hpcagent.workspace.folder import Folder, find_folder

    given = list(words or ())
    if what not in WHAT:
        raise BadInput(f"`hpcagent workspace {what}`: {nearest(what, WHAT)}", value=what)
    if what == "init":
        folder = Folder(find_folder(given[0] if given else where))
        new = folder.create()
        say(f"{folder.root}: {'made' if new else 'was there'}; its rules are in {folder.rules}")
        return
    there = Workspace(where, as_=as_)
    if what == "end":
        there.end(runs=runs)
        say("the service has ended" + (", and what it had running" if runs else ""))
        return
    if what == "add-app":
        found = _added(
            there, given, units, seed_variables, name=name, why=why, sandbox=sandbox, walltime_s=walltime
        )
    else:
        _refuse_for_added(what, units, seed_variables, name, sandbox)
        found = _done(there, what, given, site or "", why, state, changes or [], wait, walltime, again)
    say(json.dumps(found) if as_json else _shown(what, found))
    if isinstance(found, dict) and wait and found.get("state") not in (None, "completed"):
        raise typer.Exit(1)


def _added(
    there: Workspace, given: list[str], units: list[str] | None, seed_variables: list[str] | None, **more: Any
) -> Any:
    """The card of a LAMMPS script that is made an app."""
    from hpcagent.commands.added import variables_of
    from hpcagent.errors import BadInput

    if not given:
        raise BadInput(f"`hpcagent workspace add-app` needs more words: {WHAT['add-app']}.")
    variables = variables_of(given[0], given[1:], units)
    return there.add_app(given[0], variables or None, seed_variables=seed_variables, **more)


def _refuse_for_added(what: str, *options: Any) -> None:
    from hpcagent.errors import BadInput

    if any(options):
        raise BadInput(f"--unit, --seed-variable, --name and --sandbox are for `add-app`, not for `{what}`.")


def _done(
    there: Workspace,
    what: str,
    given: list[str],
    site: str,
    why: str,
    state: str,
    changes: list[str],
    wait: bool,
    walltime_s: float | None,
    again: bool,
) -> Any:
    """What the service answers."""
    from hpcagent.errors import BadInput

    if what in ("about", "costs", "expire", "apps", "added-apps"):
        return getattr(there, what.replace("-", "_"))()
    if what == "list":
        return there.list(state=state)
    if what == "approvals":
        return there.approvals()
    if not given:
        raise BadInput(f"`hpcagent workspace {what}` needs more words: {WHAT[what]}.")
    first, rest = given[0], given[1:]
    if what in ("run", "estimate"):
        app = str(Path(first).absolute()) if Path(first).is_file() else first
        params = _params(there, app, rest)
        if what == "estimate":
            return there.estimate(app, params, site=site, walltime_s=walltime_s)
        begun = there.run(app, params, site=site, walltime_s=walltime_s, why=why, again=again)
        begun["note"] = begun["note"].replace("again=true", "`--again`")
        return _waited(there, begun) if wait else begun
    if what == "start":
        begun = there.start(first, changes=_changes(changes), site=site, why=why)
        return _waited(there, begun) | {"answer": there.answer(begun["id"])} if wait else begun
    if what == "extend":
        begun = there.extend(first, _changes(changes), why=why)
        return _waited(there, begun) | {"answer": there.answer(begun["id"])} if wait else begun
    if what == "fetch":
        if not rest:
            raise BadInput("`hpcagent workspace fetch RUN PATH [TO]`: the path is missing.")
        to = Path(rest[1] if len(rest) > 1 else Path(rest[0]).name)
        there.fetch(first, rest[0], to)
        return {"path": str(to)}
    if what == "files":
        return there.artifacts(first, below=rest[0] if rest else "")
    if what == "describe":
        return there.describe(first)
    calls = {"approve": "grant", "deny": "deny"}
    if what in calls:
        return getattr(there, calls[what])(first, why)
    return getattr(there, "remove_app" if what == "remove-app" else what)(first)


def _waited(there: Workspace, begun: dict[str, Any]) -> Any:
    """Its status once it has ended; its id is shown at once, for whoever does not wait so long."""
    say(f"{begun['id']} ({begun['state']})", file=sys.stderr)
    if begun.get("note"):
        say(begun["note"], file=sys.stderr)
    return there.wait(begun["id"])


def _params(there: Workspace, app: str, words: list[str]) -> dict[str, Any]:
    """Parameters as a person writes them, read by the app's contract."""
    from hpcagent.campaign.enqueued import point_in
    from hpcagent.catalog import find_app
    from hpcagent.model.contract import Contract

    artifacts = dict(word.split("=", 1) for word in words if "=artifact:" in word)
    plain = [word for word in words if "=artifact:" not in word]
    if there.is_tool(app):
        space = Contract.model_validate(there.describe(app)).space
    else:
        space = find_app(app.partition("@")[0]).contract.space
    return {**point_in(space, plain), **artifacts}


def _changes(words: list[str]) -> dict[str, Any]:
    import tomllib

    from hpcagent.errors import BadInput

    found = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise BadInput(f"--set {word}: it is written KEY=VALUE, e.g. until.max_runs=12.", value=word)
        try:
            found[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = text
    return found


def _shown(what: str, found: Any) -> str:
    """For a person: tables of what is a list, lines of what is one thing."""
    if what in ("add-app", "added-apps", "describe", "remove-app"):
        from hpcagent.commands.added import shown

        return shown(what, found)
    if what == "costs":
        people = [
            {"who": name, **about} for name, about in [("all", found["workspace"]), *found["people"].items()]
        ]
        accuracy = [{"app": name, **about} for name, about in found["accuracy"].items()]
        return "\n\n".join(_shown("", table) for table in (people, accuracy) if table)
    rows = found.get("runs") if what == "list" else found if isinstance(found, list) else None
    if rows is not None:
        if not rows:
            return "none"
        names = [n for n in rows[0] if n not in ("request", "digest", "ended_at")]
        table = [names, *([_cell(name, row.get(name)) for name in names] for row in rows)]
        widths = [max(len(line[i]) for line in table) for i in range(len(names))]
        return "\n".join(
            "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in table
        )
    lines = []
    for name, value in found.items():
        if name == "log_tail":
            lines += ["log:", *(f"  {line}" for line in value)]
        elif name == "metrics":
            units, errors = found.get("units", {}), found.get("uncertainty", {})
            for metric, number in value.items():
                error = f" ± {errors[metric]:.2g}" if metric in errors else ""
                lines.append(f"{metric}: {number:.6g}{error} {units.get(metric, '')}".rstrip())
        elif name not in ("units", "uncertainty") and value not in (None, "", [], {}):
            lines.append(f"{name}: {json.dumps(value) if isinstance(value, (dict, list)) else _cell(name, value)}")
    return "\n".join(lines)


def _cell(name: str, value: Any) -> str:
    """A value in a table."""
    if name.endswith("_at") and value:
        return time.strftime("%m-%d %H:%M", time.localtime(value))
    if isinstance(value, dict):
        told = [f"{key}={_cell('', one)}" for key, one in value.items() if one not in ("", None)]
        return " ".join([*told[:IN_A_CELL], *(["..."] if len(told) > IN_A_CELL else [])])
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)


def serve(where: WorkspaceOption = None) -> None:
    """Serve a workspace in the foreground; scripts start one by themselves where none is."""
    from hpcagent.workspace.folder import Folder, find_folder
    from hpcagent.workspace.service import serve_here

    folder = Folder(find_folder(where))
    folder.read_rules()
    serve_here(folder.root, lambda: say(f"serving {folder.root}; Ctrl-C ends it", flush=True))
