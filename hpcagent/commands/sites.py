"""Commands of a site: `reap` ends what is left there, `doctor` checks it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hpcagent.commands.common import (
    NOTHING_WORKED,
    AccountOption,
    JsonOption,
    NodesOption,
    QueueOption,
    RunDirArgument,
    SiteOption,
    WalltimeOption,
    say,
)
from hpcagent.commands.running import profile_of

__all__ = ["add"]


def add(cli: typer.Typer) -> None:
    """Add the commands."""
    cli.command()(reap)
    cli.command()(doctor)


def reap(run_dir: RunDirArgument) -> None:
    """Cancel the jobs that a campaign left behind, and see them gone."""
    from hpcagent.sites.ledger import damage
    from hpcagent.sites.reap import reap as reap_jobs

    done = reap_jobs(run_dir)
    for job in done:
        what = f"{job.done}{f': {job.state}' if job.state not in ('', job.done) else ''}"
        say(f"{job.job_id or job.name}  {what}{f' ({job.words})' if job.words else ''}")
    wrong = damage(run_dir / "jobs.jsonl")
    if wrong:
        say(f"note: {wrong}")
    if not done:
        say("no job was left")
    if any(job.done == "left" for job in done):
        raise typer.Exit(NOTHING_WORKED)


def doctor(
    site: SiteOption = None,
    account: AccountOption = None,
    queue: QueueOption = None,
    walltime: WalltimeOption = None,
    nodes: NodesOption = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="Where campaigns will write (runs by default).")
    ] = None,
    submit_job: Annotated[
        bool, typer.Option("--submit/--no-submit", help="Whether a small job is run through the profile.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Check a site from the scheduler's commands to a run of LAMMPS, one line each; auto without --site."""
    from itertools import chain

    from hpcagent.sites.doctor import examine, others_here

    profile = profile_of(site or "auto", account=account, queue=queue, walltime=walltime, nodes=nodes)
    others = others_here(profile.kind) if site in (None, "auto") else ()
    failed = False
    members = getattr(profile, "members", ()) or (profile,)
    checks = (
        check if member is profile else check._replace(what=f"{member.name}: {check.what}")
        for member in members
        for check in examine(member, submit=submit_job, run_dir=run_dir)
    )
    for check in chain(others, checks):
        failed = failed or check.status == "FAIL"
        say(json.dumps(check._asdict()) if as_json else check, flush=True)
    if failed:
        raise typer.Exit(NOTHING_WORKED)
