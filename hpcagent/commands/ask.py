"""`hpcagent ask`: a question to the supervisor, or a conversation; what would be sent; who there is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpcagent.agents.needed import supervisors
from hpcagent.commands.common import JsonOption, say
from hpcagent.errors import BadInput

if TYPE_CHECKING:
    from hpcagent.agents.approving import Ask, Question
    from hpcagent.agents.enhancer import Suggest
    from hpcagent.agents.pool import Pool
    from hpcagent.agents.supervisor import Supervisor
    from hpcagent.agents.threads import Threads
    from hpcagent.agents.turn import Event
    from hpcagent.workspace.client import Workspace

__all__ = ["add"]

NOBODY = "nobody: no model is configured (docs/howto/models.md)"
STOPPED = 1


def add(cli: typer.Typer) -> None:
    """Add the command."""
    cli.command()(ask)


def ask(
    question: Annotated[
        str,
        typer.Argument(help="What is asked; without it questions are read, a line each.", metavar="[QUESTION]"),
    ] = "",
    where: Annotated[
        Path | None,
        typer.Option("--workspace", metavar="DIR", help="By default $HPCAGENT_WORKSPACE, or .hpcagent."),
    ] = None,
    as_: Annotated[str, typer.Option("--as", metavar="NAME", help="Speak for somebody of workspace.toml.")] = "",
    thread: Annotated[
        str,
        typer.Option("--thread", metavar="NAME", help="Go on with this conversation; made if it is not there."),
    ] = "",
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="PROVIDER:MODEL, or one of --url; else $HPCAGENT_MODEL.")
    ] = "",
    url: Annotated[
        str, typer.Option("--url", metavar="URL", help="An OpenAI-compatible server; else $HPCAGENT_MODEL_URL.")
    ] = "",
    hops: Annotated[int, typer.Option("--hops", min=1, help="Requests to the model at most.")] = 25,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens at most, both ways.")] = 500_000,
    node_hours: Annotated[
        float | None,
        typer.Option(
            "--node-hours", min=0, help="Of all that it starts, at most; else what the gate lets through."
        ),
    ] = None,
    suggest: Annotated[
        str, typer.Option("--suggest", metavar="BY", help="Who suggests specialists: words, model or no.")
    ] = "words",
    show_sent: Annotated[bool, typer.Option("--show-sent", help="Say what would be sent; send nothing.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Specialists and tools; asks nobody.")] = False,
    threads: Annotated[bool, typer.Option("--threads", help="Conversations; asks nobody.")] = False,
    forget: Annotated[str, typer.Option("--forget", metavar="THREAD", help="Remove a conversation.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Ask a language model that runs things here, behind the gate; the model is one of your own choice."""
    from hpcagent.workspace.client import Workspace

    agents = supervisors()
    from hpcagent.agents.enhancer import checked

    by = checked(suggest)
    with Workspace(where, as_=as_, client=agents.CLIENT) as workspace:
        if list_ or show_sent or threads or forget:
            _without_a_model(workspace, question, thread, (model, url), by, list_, threads, forget, as_json)
            return
        limits = agents.Limits(hops=hops, tokens=tokens, node_hours=node_hours)
        boss = agents.Supervisor(
            workspace, model=model, url=url, limits=limits, ask=_asker(), told=_shown(as_json)
        )
        if question:
            _answer(boss, question, thread, by, as_json)
        else:
            _converse(boss, thread or boss.threads.new(), by, as_json)


def _answer(boss: Supervisor, question: str, thread: str, suggest: Suggest, as_json: bool) -> None:
    reply = boss.ask(question, thread=thread, suggest=suggest)
    if as_json:
        say(json.dumps(reply.plain()))
    else:
        say(str(reply))
        say(
            f"\n{reply.requests} requests, {reply.input_tokens} + {reply.output_tokens} tokens, "
            f"{reply.node_hours:.4g} node-hours; go on: hpcagent ask --thread {reply.thread} ...",
            file=sys.stderr,
        )
    if reply.state != "answered":
        raise typer.Exit(STOPPED)


def _converse(boss: Supervisor, thread: str, suggest: Suggest, as_json: bool) -> None:
    talks = sys.stdin.isatty()
    if talks:
        say(f"thread {thread}, to {boss.where}; an empty line ends it", file=sys.stderr)
    stopped = False
    while True:
        if talks:
            say("> ", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line or (talks and not line.strip()):
            break
        if line.strip():
            try:
                _answer(boss, line, thread, suggest, as_json)
            except typer.Exit:
                stopped = True
    if stopped:
        raise typer.Exit(STOPPED)


def _shown(as_json: bool) -> Any:
    """One line for each call of a tool, on stderr."""

    def told(event: Event) -> None:
        if as_json:
            data = {"event": event.kind, "agent": event.agent, "tool": event.tool, "text": event.text}
            say(json.dumps(data | {"runs": list(event.runs)}), file=sys.stderr, flush=True)
        else:
            say(f"  {event}", file=sys.stderr, flush=True)

    return told


def _asker() -> Ask | None:
    """Asks whoever sits at the terminal; nobody where there is none."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None

    def ask_person(question: Question) -> bool | None:
        say(f"\n{question}\nRun it? [y/N] ", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return None
        return line.strip().lower() in ("y", "yes")

    return ask_person


def _without_a_model(
    workspace: Workspace,
    question: str,
    thread: str,
    model: tuple[str, str],
    suggest: Suggest,
    list_: bool,
    threads: bool,
    forget: str,
    as_json: bool,
) -> None:
    from hpcagent.agents.pool import Pool
    from hpcagent.agents.threads import Threads
    from hpcagent.mcp.callers import Caller

    pool = Pool(Caller("", frozenset({"runs:read"}), workspace))
    kept = Threads(workspace.folder.root, str(workspace.whoami()["name"]))
    if list_:
        _list(pool, as_json)
    elif threads:
        _threads(kept, as_json)
    elif forget:
        say(f"{forget}: {kept.forget(forget)} turns were removed")
    else:
        _sent(pool, kept, question, thread, model, suggest, as_json)


def _list(pool: Pool, as_json: bool) -> None:
    from hpcagent.agents.tools import first_line

    for one in pool.specialists():
        tools = pool.tools_of(one)
        if as_json:
            listed = [{"name": tool.name, "says": first_line(tool)} for tool in tools]
            say(json.dumps({"name": one.name, "role": one.role, "tools": listed}))
            continue
        say(f"{one.name}: {one.role}")
        for tool in tools:
            say(f"  {tool.name}: {first_line(tool)}")


def _threads(kept: Threads, as_json: bool) -> None:
    from datetime import datetime

    for one in kept.list():
        if as_json:
            say(json.dumps(one))
        else:
            when = datetime.fromtimestamp(one["used_at"]).strftime("%Y-%m-%d %H:%M")
            say(f"{one['thread']}  {when}  {one['turns']} turns  {' '.join(one['goal'].split())[:80]}")


def _sent(
    pool: Pool, kept: Threads, question: str, thread: str, model: tuple[str, str], suggest: Suggest, as_json: bool
) -> None:
    from hpcagent.agents.models import chosen
    from hpcagent.agents.sent import would_send

    try:
        where = chosen(*model).where
    except BadInput as error:
        where = f"{NOBODY}. {error.message}" if any(model) else NOBODY
    before = kept.recent(thread) if thread else []
    sent = would_send(where, pool, question, before, suggest=suggest)
    if as_json:
        say(json.dumps(sent))
        return
    if "planner" in sent:
        say(f"First, for suggestions:\n{sent['planner']}\n")
    say(f"To: {sent['to']}\n\nInstructions:\n{sent['instructions']}\n")
    for one in sent["earlier"]:
        say(f"Earlier: {one['goal']}\n  {one['reply']}\n")
    say(f"Question:\n{sent['goal']}\n\nTools: {', '.join(sent['tools'])}")
    for name, of in sent["specialists"].items():
        say(f"\nTo {name}, when it is asked:\n{of['told']}\nTools: {', '.join(of['tools'])}")
    say(f"\nThen: {sent['then']}.")
