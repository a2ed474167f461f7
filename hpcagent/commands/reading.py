"""Commands that read what is recorded: `status`, `report`, `replay`, `explain`, `export`."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hpcagent.commands.common import NOTHING_WORKED, JsonOption, RunDirArgument, WorkersOption, say
from hpcagent.commands.running import answer_data
from hpcagent.errors import BadInput
from hpcagent.shown import plain

__all__ = ["add"]

QUICK_RUNS = 100
"""With more results than this the models of the answer take longer than `status` may."""


def add(cli: typer.Typer) -> None:
    """Add the commands."""
    cli.command()(status)
    cli.command()(report)
    cli.command()(replay)
    cli.command()(explain)
    cli.command()(export)


def status(
    run_dir: RunDirArgument,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on telling what happens; Ctrl-C leaves it.")
    ] = False,
    with_answer: Annotated[
        bool | None,
        typer.Option(
            "--answer/--no-answer",
            help=f"Fit models for the answer; by default up to {QUICK_RUNS} results, and for --json.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say how far a campaign is and who is at it; does not touch it."""
    from hpcagent.runs.folder_or_archive import opened_folder

    if follow:
        _follow(run_dir, as_json)
        return
    with opened_folder(run_dir) as (folder, archive):
        text = _status_text(folder, with_answer, as_json)
        say(text if archive is None else archive.shown(text))


def _status_text(run_dir: Path, with_answer: bool | None, as_json: bool) -> str:
    from hpcagent.campaign.recorded import snapshot
    from hpcagent.runs.status import status_of

    read = snapshot(run_dir)
    now = status_of(run_dir, read)
    if with_answer is None:
        with_answer = as_json or len(read.results) <= QUICK_RUNS
    if not with_answer:
        return json.dumps({**now.data(), **_standing_data(now.standing)}) if as_json else str(now)
    from hpcagent.campaign.answer import answer_of

    result = answer_of(read)
    if as_json:
        return json.dumps({**answer_data(result), **_standing_data(now.standing)})
    goes_on = f"\nnot finished; it goes on with {now.goes_on}" if now.goes_on else ""
    return f"{result}\n{now.standing}{goes_on}"


def _standing_data(now: Any) -> dict[str, Any]:
    """Who is at a campaign, as plain data."""
    who = now.coordinator
    return {
        "attended": now.attended,
        "coordinator": None if who is None else {"host": who.host, "pid": who.pid, "since": who.since},
        "jobs": [{"name": job.name, "job_id": job.job_id, **(job.about or {})} for job in now.jobs],
        "tasks": [
            {
                "key": t.key,
                "task_id": t.task_id,
                "endpoint_id": t.endpoint_id,
                "runs": list(t.runs),
                "site": t.site,
            }
            for t in now.tasks
        ],
    }


def _follow(run_dir: Path, as_json: bool) -> None:
    from hpcagent.campaign.answer import read_run
    from hpcagent.campaign.loading import load_run
    from hpcagent.campaign.view import JsonLines, Lines, View
    from hpcagent.runs.follow import follow

    campaign = load_run(run_dir, to_read=True)
    view: View = JsonLines(campaign, sys.stdout) if as_json else Lines(campaign, sys.stdout)
    with contextlib.closing(view):
        try:
            for event in follow(run_dir):
                view(event)
        except KeyboardInterrupt:
            say("the campaign itself is not touched by this", file=sys.stderr)
            return
    if event.kind == "left":
        say(event.reason, file=sys.stderr)
        raise typer.Exit(NOTHING_WORKED)
    result = read_run(run_dir)
    if not as_json:
        say(result)
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def report(
    run_dir: RunDirArgument, plots: Annotated[bool, typer.Option(help="Draw the plots as well.")] = True
) -> None:
    """Write report/report.md and its plots anew from the recorded events."""
    from hpcagent.runs.opened import open_run

    say(open_run(run_dir).report(plots=plots))


def replay(
    run_dir: RunDirArgument,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME[:KEY=VALUE,...]", help="Another policy to play; may be repeated."),
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Runs in its batches.")] = None,
    runs: Annotated[int | None, typer.Option("--runs", min=1, help="Runs of a campaign (as recorded).")] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Campaigns of each policy.")] = 20,
    workers: WorkersOption = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw the regret curves.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only ask the recorded policy again: does it say the same?")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Play other policies on a recorded campaign, which is not touched: would one have done better?"""
    from hpcagent.replays.regret import check_plot
    from hpcagent.replays.whatif import replay as play

    if check:
        _check_decisions(run_dir, as_json, other=bool(policy) or plot is not None)
        return
    if plot is not None:
        check_plot(plot)
    told = sys.stderr.isatty()

    def watch(name: str, seed: int) -> None:
        if told:
            sys.stderr.write(f"\r{plain(name)}: {seed + 1} of {seeds}\033[K")
            sys.stderr.flush()

    found = play(run_dir, policy=policy or (), batch=batch, runs=runs, seeds=seeds, workers=workers, watch=watch)
    if told:
        sys.stderr.write("\r\033[K")
    say(json.dumps(found.data()) if as_json else found)
    if plot is not None:
        found.plot(plot)
        say(f"plot: {plot}", file=sys.stderr if as_json else sys.stdout)


def _check_decisions(run_dir: Path, as_json: bool, *, other: bool) -> None:
    from hpcagent.campaign.decisions import decisions, replays

    if other:
        raise BadInput("--check asks the recorded policy again; it goes without --policy and --plot.")
    count = sum(1 for _ in decisions(run_dir))
    different = replays(run_dir)
    if as_json:
        say(json.dumps({"decisions": count, "different": [str(d) for d in different]}))
    elif not different:
        say(f"all {count} decisions replay" if count else "no decision is recorded yet")
    else:
        say(f"{len(different)} of {count} decisions come out differently:")
        say("\n".join(f"  {d}" for d in different))
    if different:
        raise typer.Exit(NOTHING_WORKED)


def explain(
    run_dir: RunDirArgument,
    run: Annotated[str, typer.Argument(help="Its number, or the beginning of its execution id.", metavar="RUN")],
    as_json: JsonOption = False,
) -> None:
    """Say why a run was asked for, what was expected of it, and what came out."""
    from hpcagent.reports.explain import explain as explain_run

    found = explain_run(run_dir, run)
    say(json.dumps(found.data()) if as_json else found)


def export(
    run_dir: RunDirArgument,
    to: Annotated[
        str | None, typer.Option("--to", help="csv or parquet; by default the file's suffix decides, else csv.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file (RUN_DIR/results.TO by default); -: stdout."),
    ] = None,
) -> None:
    """Write all results as a table, with units in the header."""
    from hpcagent.campaign.recorded import snapshot
    from hpcagent.runs.folder_or_archive import opened_folder
    from hpcagent.store.columns import columns_of
    from hpcagent.store.export import export_columns, format_of

    to = format_of(to, output)
    with opened_folder(run_dir) as (folder, archive):
        read = snapshot(folder)
        own = folder / f"results.{to}" if archive is None else Path(f"{read.campaign.name}_results.{to}")
        path = None if output == Path("-") else output or own
        export_columns(columns_of(read.results, read.campaign.app.contract), path, to=to)
    if path is not None:
        say(path)
