"""What the commands share: their options, and how they print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TextIO

import typer

from hpcagent.shown import plain

__all__ = [
    "NOTHING_WORKED",
    "AccountOption",
    "BlocksOption",
    "DetachOption",
    "EarlierOption",
    "InsideOption",
    "JsonOption",
    "NodesOption",
    "QueueOption",
    "RunDirArgument",
    "SiteOption",
    "WalltimeOption",
    "WorkersOption",
    "group_of",
    "say",
]

NOTHING_WORKED = 1
"""The exit code of what has broken: a site, a run, a decision that comes out differently."""

SiteOption = Annotated[
    str | None, typer.Option("--site", help="Name or path of a site profile; auto: this machine's; several: a,b.")
]
AccountOption = Annotated[
    str | None, typer.Option("--account", help="Account (project) that jobs are charged to.")
]
QueueOption = Annotated[str | None, typer.Option("--queue", help="Queue or partition of the jobs.")]
WalltimeOption = Annotated[str | None, typer.Option("--walltime", help="Of a job, HH:MM:SS.")]
NodesOption = Annotated[int | None, typer.Option("--nodes", min=1, help="Nodes of a job.")]
BlocksOption = Annotated[int | None, typer.Option("--blocks", min=1, help="Jobs at a time, at most.")]
InsideOption = Annotated[
    bool, typer.Option("--inside", help="Use the nodes of the job that this is run in; submit none.")
]
DetachOption = Annotated[
    bool, typer.Option("--detach", help="Go on in the background once it has begun; RUN_DIR/coordinator.log.")
]
EarlierOption = Annotated[
    list[Path] | None,
    typer.Option("--earlier", metavar="RUN_DIR", help="Begin with the runs of this campaign; may be repeated."),
]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="Runs at the same time.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout.")]
RunDirArgument = Annotated[Path, typer.Argument(help="A folder that `hpcagent run` wrote.", metavar="RUN_DIR")]


def say(what: object, *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print what may come from a program, a file or another user, so that no terminal takes it for commands."""
    print(plain(str(what)), file=file, flush=flush)


def group_of(cli: typer.Typer, name: str) -> typer.Typer:
    """The group of commands of that name."""
    (found,) = (group.typer_instance for group in cli.registered_groups if group.name == name)
    assert found is not None
    return found
