"""`hpcagent enqueue`: points of one's own for a campaign, also while it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from hpcagent.commands.common import RunDirArgument, say

__all__ = ["add"]


def add(cli: typer.Typer) -> None:
    """Add the command."""
    cli.command()(enqueue)


def enqueue(
    run_dir: RunDirArgument,
    point: Annotated[
        list[str], typer.Argument(help="All varied parameters of one point.", metavar="NAME=VALUE...")
    ],
) -> None:
    """Have a point of your own run before what the policy suggests; the campaign may be running."""
    from hpcagent.campaign.enqueued import enqueue as add_points
    from hpcagent.campaign.enqueued import point_in
    from hpcagent.campaign.loading import load_run

    space = load_run(run_dir).app.contract.space
    say(add_points(run_dir, [point_in(space, point)]))
