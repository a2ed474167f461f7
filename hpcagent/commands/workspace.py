"""`hpcagent workspace`: runs and campaigns behind the gate, approvals, costs; `hpcagent serve`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpcagent.commands.common import JsonOption, SiteOption, say
from hpcagent.commands.workspace_shown import Said, shown

if TYPE_CHECKING:
    from hpcagent.workspace.client import Workspace

__all__ = ["add"]

WHAT = {
    "init": "[DIR]: make a workspace",
    "about": "the workspace and its service",
    "run": "APP NAME=VALUE...: start a run",
    "repeat": "RUN CHANGE...: an earlier run with something changed ('timestep = 0.002 ps', 'T +50 K', 'dt /2')",
    "estimate": "APP NAME=VALUE..., CAMPAIGN, CAMPAIGN_ID --set KEY=VALUE, or RUN CHANGE...: what it would take; "
    "nothing is run",
    "start": "CAMPAIGN: start a campaign",
    "list": "runs, the newest first",
    "status": "RUN, or CAMPAIGN_ID NUMBER: state, metrics, failure, the log's last lines",
    "wait": "RUN: until it has ended",
    "answer": "CAMPAIGN_ID: its answer so far",
    "runs": "CAMPAIGN_ID: its runs by number, with parameters and the objective's metrics",
    "cancel": "RUN: keep it from being done, or end it",
    "stop": "CAMPAIGN_ID: stop a campaign",
    "extend": "CAMPAIGN_ID: go on with one that has ended, with --set",
    "apps": "apps that the caller may use",
    "add-app": "SCRIPT [NAME=LOW:HIGH...]: make a LAMMPS script an app of the workspace",
    "added-apps": "apps that were added, in whatever state",
    "describe": "APP: its parameters and metrics",
    "remove-app": "APP: remove one that was added",
    "files": "RUN, CAMPAIGN_ID or CAMPAIGN_ID NUMBER, [FOLDER]: files, or those in a folder (work/EXECUTION_ID)",
    "fetch": "RUN PATH [TO], or CAMPAIGN_ID NUMBER PATH [TO]: a file of a run",
    "approvals": "[APPROVAL]: what waits for a person, with each parameter whole, and what was decided; or one",
    "approve": "APPROVAL: grant it",
    "deny": "APPROVAL: deny it",
    "costs": "spent, committed, estimated against actual",
    "expire": "remove folders of runs that are older than retention_days",
    "end": "end the service; runs go on, unless --runs",
}

_MOST_WORDS = {
    **dict.fromkeys(("about", "apps", "added-apps", "costs", "end", "expire", "list"), 0),
    **dict.fromkeys(("init", "start", "status", "wait", "answer", "runs", "cancel", "stop", "extend"), 1),
    **dict.fromkeys(("describe", "remove-app", "approvals", "approve", "deny"), 1),
    "files": 2,
}
"""Words that a command takes, besides the number of a campaign's run; the others look at theirs themselves."""

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
    wait: Annotated[bool, typer.Option("--wait", help="run, repeat, start, extend: until it has ended.")] = False,
    why: Annotated[
        str,
        typer.Option(
            "--why", metavar="TEXT", help="run, repeat, start, extend, add-app, approve, deny: what is said of it."
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
        typer.Option(
            "--set", metavar="KEY=VALUE", help="start, extend, estimate of a campaign: in place of its own."
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="run: once more, where the same has ended.")] = False,
    other_version: Annotated[
        bool, typer.Option("--other-version", help="repeat: also where the app has another version now.")
    ] = False,
    first: Annotated[int | None, typer.Option("--first", min=1, help="runs: only the first N.")] = None,
    last: Annotated[int | None, typer.Option("--last", min=1, help="runs: only the last N.")] = None,
    runs: Annotated[bool, typer.Option("--runs", help="end: what runs, too, and close the sites.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run apps and campaigns in a workspace, behind its gate; see what they took, approve, deny."""
    from hpcagent.commands.workspace_wait import commands_of
    from hpcagent.errors import BadInput, nearest
    from hpcagent.workspace.client import Workspace
    from hpcagent.workspace.folder import Folder, find_folder

    given = list(words or ())
    if what not in WHAT:
        raise BadInput(f"`hpcagent workspace {what}`: {nearest(what, WHAT)}", value=what)
    _refuse_surplus(what, given)
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
        if what != "runs" and (first is not None or last is not None):
            raise BadInput(f"--first and --last are for `runs`, not for `{what}`.")
        asked = _Asked(
            command=commands_of(where, as_),
            site=site or "",
            why=why,
            state=state,
            changes=_changes(changes or []),
            wait=wait,
            walltime_s=walltime,
            again=again,
            other_version=other_version,
            first=first,
            last=last,
        )
        found = _done(there, what, given, asked)
    data = found.data if isinstance(found, Said) else found
    say(json.dumps(data) if as_json else shown(what, found))
    if isinstance(data, dict) and (wait or what == "wait") and (code := _exit_code(data)):
        raise typer.Exit(code)


def _exit_code(ended: Mapping[str, Any]) -> int:
    """Of `wait` and `--wait`: of a campaign with its answer that of `hpcagent run`."""
    if ended.get("state") not in (None, "completed"):
        return 1
    return int((ended.get("answer") or {}).get("exit_code", 0))


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


def _refuse_surplus(what: str, given: list[str]) -> None:
    """Refuse words that a command does not take: they would change nothing.

    Raises:
        BadInput: There are some; with what it takes.
    """
    from hpcagent.commands.workspace_runs import is_numbered
    from hpcagent.errors import BadInput

    most = _MOST_WORDS.get(what, len(given))
    if what in ("status", "files") and len(given) > 1 and is_numbered(given[0], given[1]):
        most += 1
    if len(given) > most:
        takes = WHAT[what].partition(": ")[0] if most else "no more words"
        surplus = " ".join(given[most:])
        raise BadInput(f"`hpcagent workspace {what}` takes {takes}; too much: {surplus!r}.", value=surplus)


def _refuse_for_added(what: str, *options: Any) -> None:
    from hpcagent.errors import BadInput

    if any(options):
        raise BadInput(f"--unit, --seed-variable, --name and --sandbox are for `add-app`, not for `{what}`.")


@dataclass(frozen=True, slots=True)
class _Asked:
    """Options of the command line; `command` makes another command of this workspace from its words."""

    command: Callable[..., str]
    site: str
    why: str
    state: str
    changes: dict[str, Any]
    wait: bool
    walltime_s: float | None
    again: bool
    other_version: bool
    first: int | None
    last: int | None


def _done(there: Workspace, what: str, given: list[str], asked: _Asked) -> Any:
    """What the service answers."""
    from hpcagent.errors import BadInput

    if what in ("about", "costs", "expire", "apps", "added-apps"):
        return getattr(there, what.replace("-", "_"))()
    if what == "list":
        return there.list(state=asked.state)
    if what == "approvals":
        from hpcagent.commands.workspace_approvals import approvals_of

        return approvals_of(there, given[0] if given else "")
    if not given:
        raise BadInput(f"`hpcagent workspace {what}` needs more words: {WHAT[what]}.")
    first, rest = given[0], given[1:]
    if what in _CALLS:
        return _CALLS[what](there, first, rest, asked)
    if what in ("approve", "deny"):
        return {"approve": there.grant, "deny": there.deny}[what](first, asked.why)
    return getattr(there, "remove_app" if what == "remove-app" else what)(first)


def _run(there: Workspace, first: str, rest: list[str], asked: _Asked) -> Any:
    from hpcagent.commands.workspace_apps import is_campaign_file, params_of
    from hpcagent.commands.workspace_wait import asking, waited
    from hpcagent.errors import BadInput

    if is_campaign_file(first):
        raise BadInput(f"{first} is a campaign, not an app: {asked.command('start', first)}", value=first)
    app = str(Path(first).absolute()) if Path(first).is_file() else first
    params = params_of(there, app, rest)
    with asking(asked.command):
        begun = there.run(
            app, params, site=asked.site, walltime_s=asked.walltime_s, why=asked.why, again=asked.again
        )
    begun["note"] = begun["note"].replace("again=true", "`--again`")
    return waited(there, begun, asked.command) if asked.wait else begun


def _repeat(there: Workspace, first: str, rest: list[str], asked: _Asked) -> Any:
    from hpcagent.commands.workspace_repeat import repeated, repeated_words
    from hpcagent.commands.workspace_wait import asking, waited

    with asking(asked.command):
        begun = repeated(there, first, rest, why=asked.why, other_version=asked.other_version)
    return waited(there, begun, asked.command) if asked.wait else repeated_words(begun)


def _campaign(there: Workspace, begin: Callable[[], dict[str, Any]], asked: _Asked) -> Any:
    """What was begun; with `--wait` how it has ended, and its answer."""
    from hpcagent.commands.workspace_answer import ended_with_answer
    from hpcagent.commands.workspace_wait import asking, waited

    with asking(asked.command):
        begun = begin()
    if not asked.wait:
        return begun
    return ended_with_answer(there, waited(there, begun, asked.command), asked.command)


def _start(there: Workspace, first: str, rest: list[str], asked: _Asked) -> Any:
    from hpcagent.commands.workspace_apps import refuse_unknown_of

    refuse_unknown_of(there, first, asked.changes)
    return _campaign(
        there, lambda: there.start(first, changes=asked.changes, site=asked.site, why=asked.why), asked
    )


def _extend(there: Workspace, first: str, rest: list[str], asked: _Asked) -> Any:
    return _campaign(there, lambda: there.extend(first, asked.changes, why=asked.why), asked)


def _estimate(there: Workspace, first: str, rest: list[str], asked: _Asked) -> Any:
    from hpcagent.commands.workspace_estimate import estimated

    return estimated(there, [first, *rest], asked.changes, site=asked.site, walltime_s=asked.walltime_s)


def _wait(there: Workspace, first: str, rest: list[str], asked: _Asked) -> Any:
    from hpcagent.commands.workspace_wait import until_ended

    return until_ended(there, first, asked.command)


def _answer(there: Workspace, first: str, rest: list[str], asked: _Asked) -> Any:
    from hpcagent.commands.workspace_answer import answered

    return answered(there, first, asked.command)


def _runs(there: Workspace, first: str, rest: list[str], asked: _Asked) -> Any:
    from hpcagent.commands.workspace_runs import runs_of

    return runs_of(there, first, first=asked.first, last=asked.last)


def _status(there: Workspace, first: str, rest: list[str], asked: _Asked) -> Any:
    from hpcagent.commands.workspace_runs import is_numbered, one_run

    if rest and is_numbered(first, rest[0]):
        return one_run(there, first, rest[0])
    return there.status(first)


def _files(there: Workspace, first: str, rest: list[str], asked: _Asked) -> Any:
    from hpcagent.commands.workspace_runs import folder_of, is_numbered

    if rest and is_numbered(first, rest[0]):
        rest = ["/".join([folder_of(there, first, rest[0]), *rest[1:2]])]
    return there.artifacts(first, below=rest[0] if rest else "")


def _fetch(there: Workspace, first: str, rest: list[str], asked: _Asked) -> Any:
    from hpcagent.commands.workspace_files import fetched

    return fetched(there, first, rest)


def _describe(there: Workspace, first: str, rest: list[str], asked: _Asked) -> Any:
    from hpcagent.commands.workspace_apps import refuse_unknown

    refuse_unknown(there, first)
    return there.describe(first)


_CALLS: Mapping[str, Callable[[Workspace, str, list[str], _Asked], Any]] = {
    "run": _run,
    "repeat": _repeat,
    "start": _start,
    "extend": _extend,
    "estimate": _estimate,
    "wait": _wait,
    "answer": _answer,
    "runs": _runs,
    "status": _status,
    "files": _files,
    "fetch": _fetch,
    "describe": _describe,
}


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


def serve(where: WorkspaceOption = None) -> None:
    """Serve a workspace in the foreground; scripts start one by themselves where none is."""
    from hpcagent.workspace.folder import Folder, find_folder
    from hpcagent.workspace.service import serve_here

    folder = Folder(find_folder(where))
    folder.read_rules()
    serve_here(folder.root, lambda: say(f"serving {folder.root}; Ctrl-C ends it", flush=True))
