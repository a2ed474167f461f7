"""Commands of the shell by group: `add(cli)` of each adds them; they import what they need when called."""

from __future__ import annotations

from importlib import import_module

import typer

__all__ = ["add_all"]

# In the order in which `hpcagent --help` lists them.
GROUPS: tuple[str, ...] = (
    "starting",
    "reading",
    "sites",
    "listing",
    "site_new",
    "init",
    "contract",
    "enqueue",
    "extend",
    "globus",
    "sweep",
    "tune",
    "runs_commands",
    "fetch",
    "site_template",
    "workspace",
    "tools",
    "mcp",
    "ask",
    "web",
)


def add_all(cli: typer.Typer) -> None:
    """Add the commands of all groups to the command line."""
    for group in GROUPS:
        import_module(f"hpcagent.commands.{group}").add(cli)
