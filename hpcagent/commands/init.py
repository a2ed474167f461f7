"""`hpcagent init`: a starting campaign."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hpcagent.commands.common import say

__all__ = ["add"]


def add(cli: typer.Typer) -> None:
    """Add the command."""
    cli.command()(init)


def init(
    kind: Annotated[
        str | None, typer.Argument(help="lammps, executable, function or dft; without, they are listed.")
    ] = None,
    folder: Annotated[Path, typer.Argument(help="Where to; made if it is not there.")] = Path(),
) -> None:
    """Write a starting campaign that runs as it is, for LAMMPS, a program, a function or a DFT question."""
    from hpcagent.campaign.starts import list_starts, write_start

    if kind is None:
        for name, question in list_starts().items():
            say(f"{name:11} {question}")
        return
    written = write_start(kind, folder)
    for path in written:
        say(path)
    here = folder == Path()
    say(f"run it: {'' if here else f'cd {shlex.quote(str(folder))} && '}hpcagent run {written[0].name}")
