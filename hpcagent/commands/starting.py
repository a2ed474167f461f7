"""Commands that start a campaign, or go on with one: `run`, `resume`, `submit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hpcagent.commands.common import (
    AccountOption,
    BlocksOption,
    DetachOption,
    EarlierOption,
    InsideOption,
    JsonOption,
    NodesOption,
    QueueOption,
    RunDirArgument,
    SiteOption,
    WalltimeOption,
    WorkersOption,
    say,
)
from hpcagent.commands.running import How, parse_changes, profile_of, run_detached, run_to_its_end, show_plan
from hpcagent.shown import masked

__all__ = ["add"]


def add(cli: typer.Typer) -> None:
    """Add the commands."""
    cli.command()(run)
    cli.command()(resume)
    cli.command()(submit)


def run(
    campaign: Annotated[str, typer.Argument(help="A campaign's TOML, or the name of a packaged one.")],
    site: SiteOption = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="The campaign's folder (runs/NAME by default).")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change the campaign, e.g. until.max_runs=12."),
    ] = None,
    earlier: EarlierOption = None,
    workers: WorkersOption = None,
    account: AccountOption = None,
    queue: QueueOption = None,
    walltime: WalltimeOption = None,
    nodes: NodesOption = None,
    blocks: BlocksOption = None,
    inside: InsideOption = False,
    detach: DetachOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; submit nothing.")] = False,
    as_json: JsonOption = False,
    plots: Annotated[bool, typer.Option(help="Write the report with plots at the end.")] = True,
) -> None:
    """Run a campaign to its end, or go on with it if its folder is there."""
    from hpcagent.campaign.loading import load_campaign
    from hpcagent.campaign.where import chosen_site

    loaded = load_campaign(campaign, changes=_with_earlier(parse_changes(changes or []), earlier))
    profile = profile_of(
        chosen_site(loaded, run_dir, site),
        account=account,
        queue=queue,
        walltime=walltime,
        nodes=nodes,
        blocks=blocks,
    )
    if dry_run:
        show_plan(loaded, profile, workers, run_dir, as_json)
        return
    how = How(profile, workers=workers, inside=inside, as_json=as_json, plots=plots)
    run_detached(loaded, run_dir, how) if detach else run_to_its_end(loaded, run_dir, how)


def resume(
    run_dir: RunDirArgument,
    site: SiteOption = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change what may change: until, site, batch_size, retries."
        ),
    ] = None,
    workers: WorkersOption = None,
    account: AccountOption = None,
    queue: QueueOption = None,
    walltime: WalltimeOption = None,
    nodes: NodesOption = None,
    blocks: BlocksOption = None,
    inside: InsideOption = False,
    detach: DetachOption = False,
    as_json: JsonOption = False,
    plots: Annotated[bool, typer.Option(help="Write the report with plots at the end.")] = True,
) -> None:
    """Go on with a campaign where it stopped; finished runs are not repeated."""
    from hpcagent.campaign.loading import load_run
    from hpcagent.campaign.where import chosen_site

    loaded = load_run(run_dir, changes=parse_changes(changes or []))
    profile = profile_of(
        chosen_site(loaded, run_dir, site),
        account=account,
        queue=queue,
        walltime=walltime,
        nodes=nodes,
        blocks=blocks,
    )
    how = How(profile, workers=workers, inside=inside, as_json=as_json, plots=plots)
    run_detached(loaded, run_dir, how) if detach else run_to_its_end(loaded, run_dir, how)


def submit(
    campaign: Annotated[
        str, typer.Argument(help="A campaign, or the folder of one that was begun.", metavar="CAMPAIGN|RUN_DIR")
    ],
    site: SiteOption = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="The campaign's folder (runs/NAME by default).")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change the campaign, e.g. until.max_runs=12."),
    ] = None,
    earlier: EarlierOption = None,
    account: AccountOption = None,
    queue: QueueOption = None,
    walltime: WalltimeOption = None,
    nodes: NodesOption = None,
    blocks: BlocksOption = None,
    inside: Annotated[bool, typer.Option("--inside", help="The job's own nodes do the runs.")] = False,
    most_jobs: Annotated[
        int, typer.Option("--most-jobs", min=1, help="Jobs that may follow one another until it stops.")
    ] = 20,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the job; submit nothing.")] = False,
) -> None:
    """Submit the coordinator as a job of its own, followed by others until the campaign stops."""
    from hpcagent.campaign.where import chosen_site
    from hpcagent.elsewhere.submit import submit as submit_coordinator

    loaded, folder = _campaign_or_folder(campaign, run_dir, _with_earlier(parse_changes(changes or []), earlier))
    profile = profile_of(
        chosen_site(loaded, folder, site),
        account=account,
        queue=queue,
        walltime=walltime,
        nodes=nodes,
        blocks=blocks,
    )
    done = submit_coordinator(
        loaded, site=profile, run_dir=folder, inside=inside, most_jobs=most_jobs, dry_run=dry_run
    )
    say(masked(done.script.rstrip()))
    for note in done.notes:
        say(f"note: {note}")
    if done.job_id is None:
        say("dry run: nothing was written or submitted")
        return
    say(
        f"job {done.job_id} is the coordinator of {done.run_dir}, the first of {done.most_jobs} at most\n"
        f"follow it: hpcagent status {done.run_dir} --follow     what it prints: {done.run_dir}/coordinator.log\n"
        f"stop it: cancel the job while it runs, or `hpcagent reap {done.run_dir}` while it waits"
    )


def _with_earlier(changes: dict[str, Any], earlier: list[Path] | None) -> dict[str, Any]:
    return changes | ({"earlier": [str(folder) for folder in earlier]} if earlier else {})


def _campaign_or_folder(text: str, run_dir: Path | None, changes: dict[str, Any]) -> tuple[Any, Path | None]:
    from hpcagent.campaign.loading import load_campaign, load_run
    from hpcagent.store.rundir import RunDir

    if RunDir(text).exists:
        return load_run(text, changes=changes), Path(text)
    return load_campaign(text, changes=changes), run_dir
