"""`hpcagent web`: the page of a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpcagent.commands.common import say
from hpcagent.errors import BadInput

__all__ = ["add"]

NEEDS = "the page needs a package that is not installed: pip install 'hpcagent[web]'"


def add(cli: typer.Typer) -> None:
    """Add the command."""
    cli.command()(web)


def web(
    where: Annotated[
        Path | None,
        typer.Option("--workspace", "-w", metavar="DIR", help="By default $HPCAGENT_WORKSPACE, or .hpcagent."),
    ] = None,
    as_: Annotated[str, typer.Option("--as", metavar="NAME", help="Speak for somebody of workspace.toml.")] = "",
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="An address that only this machine reaches.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="A free one by default.", show_default=False)
    ] = 0,
) -> None:
    """Serve a page that shows a workspace, starts runs and takes approvals; runs go on when it ends."""
    from hpcagent.workspace.folder import Folder, find_folder

    folder = Folder(find_folder(where))
    known = folder.read_rules().people
    if as_ and as_ not in known:
        raise BadInput(f"--as {as_}: workspace.toml names {', '.join(known) or 'nobody'}.", value=as_)
    try:
        from hpcagent.web.server import serve_page
    except ModuleNotFoundError as error:
        name = error.name or ""
        if name.split(".")[0] == "hpcagent":  # a module of ours that is missing is a bug, and stays one
            raise
        raise BadInput(f"{NEEDS} ({name} is missing).", value=name) from None
    serve_page(
        folder.root,
        host=host,
        port=port,
        as_=as_,
        begun=lambda url: say(f"the page of {folder.root}: {url}\nCtrl-C ends it; runs go on", flush=True),
    )
