"""The command line: parses, calls, prints. What it can do, Python can do first."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command_name
from typer.models import CommandInfo

from hpcagent.beside import use_modules_of
from hpcagent.commands import add_all
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
from hpcagent.commands.running import (
    How,
    answer_data,
    parse_changes,
    profile_of,
    run_detached,
    run_to_its_end,
    show_plan,
)
from hpcagent.endings import end_of
from hpcagent.errors import BadInput, HpcAgentError, Interrupted
from hpcagent.owners import TRUST, trusting
from hpcagent.shown import masked, plain
from hpcagent.surroundings import WORKING_DIRECTORY_GONE, open_closed_streams, working_directory

__all__ = ["main"]

EXIT_CODES: dict[int, tuple[str, str]] = {
    0: ("done", ""),
    1: (
        "something broke (site, disk), or no run completed",
        "`run`, `resume`, `status --follow`: so 3 and 4; `doctor`: something is FAIL; `status --follow`: not "
        "finished, and no coordinator is at it; `reap`: a job could not be seen gone; `replay --check`: a "
        "decision comes out differently; `tools check`: errors; `tools register`: tests have not passed",
    ),
    2: ("bad input, nothing was started", ""),
    3: ("the campaign ended without a feasible point", ""),
    4: (
        "the campaign ended, but the machine failed some runs (resume runs them again)",
        "these were [given up](../concepts.md#states): correct the cause first",
    ),
    75: (
        "the job it ran inside of has no time left (resume goes on)",
        "`hpcagent resume --inside` in the next one",
    ),
    130: ("stopped by Ctrl-C, SIGTERM or SIGHUP (resume goes on)", "SIGHUP: a lost connection"),
}
"""Exit code -> what it means in brief, for --help, and what more docs/reference/cli.md says of it, in Markdown."""

QUICK_RUNS = 100
"""With more results than this the models of the answer take longer than `status` may."""
NOTHING_WORKED = 1

cli = typer.Typer(
    name="hpcagent",
    help="Steered campaigns of simulations: from an input script and a question to an answer with an error bar.",
    epilog=f"Exit codes: {'; '.join(f'{code} {words}' for code, (words, _) in EXIT_CODES.items())}.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

site_commands = typer.Typer(help="Make a site profile of your own.", no_args_is_help=True)
cli.add_typer(site_commands, name="site")


@cli.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show tracebacks.")] = False,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            "--trust",
            metavar="USER|@GROUP",
            help="Run what files of this user, or of this group, say; may be repeated.",
        ),
    ] = None,
) -> None:
    if version:
        from hpcagent import __version__

        say(f"hpcagent {__version__}")
        raise typer.Exit


@cli.command()
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


@cli.command()
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


@cli.command()
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


@cli.command()
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


@cli.command()
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


@cli.command()
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


@cli.command()
def report(
    run_dir: RunDirArgument, plots: Annotated[bool, typer.Option(help="Draw the plots as well.")] = True
) -> None:
    """Write report/report.md and its plots anew from the recorded events."""
    from hpcagent.runs.opened import open_run

    say(open_run(run_dir).report(plots=plots))


@cli.command()
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


@cli.command()
def explain(
    run_dir: RunDirArgument,
    run: Annotated[str, typer.Argument(help="Its number, or the beginning of its execution id.", metavar="RUN")],
    as_json: JsonOption = False,
) -> None:
    """Say why a run was asked for, what was expected of it, and what came out."""
    from hpcagent.reports.explain import explain as explain_run

    found = explain_run(run_dir, run)
    say(json.dumps(found.data()) if as_json else found)


@cli.command()
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


add_all(cli)


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


@contextlib.contextmanager
def _one_clear_error(verbose: bool) -> Iterator[None]:
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as error:
        raise SystemExit(end_of(error)) from None
    except HpcAgentError as error:
        if verbose:
            raise
        say(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except FileNotFoundError:
        if working_directory() is not None:
            raise
        say(f"error: {WORKING_DIRECTORY_GONE}", file=sys.stderr)
        raise SystemExit(BadInput.exit_code) from None
    except BrokenPipeError:
        # `hpcagent ... | head`: the reader has gone; keep Python from complaining while it exits.
        with contextlib.suppress(OSError):
            sys.stdout = open("/dev/null", "w")  # noqa: SIM115, PTH123
        raise SystemExit(141) from None


def main() -> None:
    """Entry point of the `hpcagent` command."""
    open_closed_streams()
    os.umask(os.umask(0) | 0o002)  # what is written here decides what is run: other users cannot change it
    # Anywhere on the line, like --help.
    words = [word for word in sys.argv[1:] if word not in ("-v", "--verbose")]
    verbose = len(words) < len(sys.argv) - 1
    words, trusted = _trusted(words)
    _few_threads()
    with _one_clear_error(verbose):
        if trusted:
            os.environ[TRUST] = trusting(trusted, os.environ.get(TRUST, ""))
        _know_the_working_directory()
        _with_only(words)(args=words)


def _with_only(words: list[str]) -> typer.Typer:
    """The command line with the one command that is asked for; all of them where it is not clear which.

    Typer reads the signatures of all commands that it has, which takes longer than many a command.
    """
    asked = words[0] if words else ""
    some = copy(cli)
    some.registered_commands = [one for one in cli.registered_commands if _name_of(one) == asked]
    some.registered_groups = [one for one in cli.registered_groups if one.name == asked]
    return some if some.registered_commands or some.registered_groups else cli


def _name_of(command: CommandInfo) -> str:
    assert command.callback is not None
    return command.name or get_command_name(command.callback.__name__)


def _trusted(words: list[str]) -> tuple[list[str], list[str]]:
    """The command line without `--trust NAME`, wherever it stands, and the names.

    Example:
        >>> _trusted(["resume", "--trust", "ann", "runs/x", "--trust=@lab"])
        (['resume', 'runs/x'], ['ann', '@lab'])
    """
    left: list[str] = []
    names: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--trust":
            names.append(next(rest, ""))
        elif word.startswith("--trust="):
            names.append(word.removeprefix("--trust="))
        else:
            left.append(word)
    return left, names


def _know_the_working_directory() -> None:
    """Apps and policies of one's own lie where one stands: let this process and the workers import them.

    They are found last, and not those that others may write: a `numpy.py` of theirs would be run by every command.
    """
    here = str(working_directory() or "")
    if not here:
        return
    problem = use_modules_of(here)
    if problem and next(Path(here).glob("*.py"), None) is not None:
        say(f"note: no Python module of the working directory is used: {problem}.", file=sys.stderr)


def _few_threads() -> None:
    """The coordinator adds a few numbers; on login nodes, threads count. Workers are given theirs by the site."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # before numpy is imported


if __name__ == "__main__":
    main()
