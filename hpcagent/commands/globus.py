"""`hpcagent globus`: log in to Globus, for endpoints."""

from __future__ import annotations

from typing import Annotated

import typer

from hpcagent.commands.common import JsonOption, say

__all__ = ["add"]


def add(cli: typer.Typer) -> None:
    """Add the command."""
    cli.command()(globus)


def globus(
    what: Annotated[str, typer.Argument(help="login, logout or whoami.", metavar="login|logout|whoami")],
    as_json: JsonOption = False,
    transfer: Annotated[bool, typer.Option("--transfer", help="login: for Globus Transfer, too.")] = False,
    collection: Annotated[
        list[str] | None,
        typer.Option("--collection", metavar="ID", help="login: a collection that wants a consent of its own."),
    ] = None,
) -> None:
    """Log in to Globus for sites of kind globus_compute, log out, or say who you are to it."""
    import json

    from hpcagent.errors import BadInput, nearest
    from hpcagent.sites.endpoint import credentials

    if what == "whoami":
        about = credentials.whoami()
        if as_json:
            say(json.dumps(about))
        else:
            say(about["words"] if about["valid"] else about["problem"])
        raise typer.Exit(0 if about["valid"] else 1)
    if what not in ("login", "logout"):
        raise BadInput(f"`hpcagent globus {what}`: {nearest(what, ('login', 'logout', 'whoami'))}", value=what)
    if what == "logout":
        done = credentials.logout()
    else:
        done = credentials.login(transfer=transfer or bool(collection), collections=collection or ())
    say(json.dumps({"done": done}) if as_json else done)
