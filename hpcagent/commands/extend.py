"""`hpcagent extend`: a finished run goes on from its end."""

from __future__ import annotations

from typing import Annotated

import typer

from hpcagent.commands.common import RunDirArgument, SiteOption, WorkersOption, say
from hpcagent.commands.running import parse_changes, profile_of

__all__ = ["add"]


def add(cli: typer.Typer) -> None:
    """Add the command."""
    cli.command()(extend)


def extend(
    run_dir: RunDirArgument,
    run: Annotated[str, typer.Argument(help="The run: its position, or (the beginning of) its execution id.")],
    factor: Annotated[float, typer.Option("--factor", help="How many times longer than it is, above 1.")] = 2.0,
    site: SiteOption = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change what may change, e.g. until.max_runs=12."),
    ] = None,
    workers: WorkersOption = None,
) -> None:
    """Have a finished run go on from its restart file; as a measurement the longer one takes its place."""
    from hpcagent.campaign.coordinator import Coordinator
    from hpcagent.campaign.extending import before_and_after
    from hpcagent.campaign.loading import load_run
    from hpcagent.campaign.recorded import snapshot
    from hpcagent.campaign.where import chosen_site

    loaded = load_run(run_dir, changes=parse_changes(changes or []))
    profile = profile_of(chosen_site(loaded, run_dir, site))
    with Coordinator(loaded, site=profile, run_dir=run_dir, workers=workers, progress=False) as coordinator:
        result = coordinator.extend(int(run) if run.isdecimal() and len(run) < 8 else run, factor).result()
    say(result)
    if not result.ok:
        raise typer.Exit(1)
    before = snapshot(run_dir).state.results.get(result.manifest.extends)
    for line in before_and_after(loaded, before, result) if before is not None else ():
        say(line)
