"""`hpcagent site template`: a configuration for an endpoint of one's own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hpcagent.commands.common import group_of, say

__all__ = ["add"]


def add(cli: typer.Typer) -> None:
    """Add the command to the group `site`."""
    group_of(cli, "site").command("template")(template)


def template(
    name: Annotated[str | None, typer.Argument(help="slurm, pbs or machine; without, they are listed.")] = None,
    folder: Annotated[Path, typer.Argument(help="Where to; made if it is not there.")] = Path(),
) -> None:
    """Write a template for a Globus Compute endpoint, for `globus-compute-endpoint configure`."""
    from hpcagent.sites.endpoint_templates import copy_template, templates

    if name is None:
        for known, path in templates().items():
            say(f"{known:9} {path}")
        return
    written, schema = copy_template(name, folder)
    say(written)
    say(schema)
    say(
        "edit the lines at the top of the first, then: globus-compute-endpoint configure "
        f"--template-config {shlex.quote(str(written))} --schema-config {shlex.quote(str(schema))} hpcagent"
    )
