"""`hpcagent list`, `du`, `rm`, `archive`, `compare` and `stop`: many campaigns."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from hpcagent.commands.common import JsonOption, RunDirArgument, say
from hpcagent.errors import BadInput

__all__ = ["add"]

FolderArgument = Annotated[Path, typer.Argument(help="Where campaigns are; may be one itself.", metavar="FOLDER")]
DepthOption = Annotated[int, typer.Option("--depth", min=0, help="Folders below it that are looked into.")]


def add(cli: typer.Typer) -> None:
    """Add the commands."""
    cli.command("list")(list_)
    cli.command()(du)
    cli.command()(stop)
    cli.command()(rm)
    cli.command()(archive)
    cli.command()(compare)


def list_(
    folder: FolderArgument = Path("runs"),
    depth: DepthOption = 4,
    size: Annotated[bool, typer.Option("--size", help="Also what each takes on the disk.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List campaigns: how far each is, who is at it, its best run; reads only."""
    from hpcagent.runs.listed import list_runs

    found = list_runs(folder, depth=depth, size=size)
    if not as_json:
        say(found)
        return
    for path in found.unread:
        say(f"{path} cannot be read", file=sys.stderr)
    for one in found:
        say(json.dumps(one.data()))


def du(folder: FolderArgument = Path("runs"), depth: DepthOption = 4, as_json: JsonOption = False) -> None:
    """Say what campaigns take on the disk: bytes and files by kind, the largest runs, what could be freed."""
    from hpcagent.runs.on_disk import disk_use

    used = disk_use(folder, depth=depth)
    if not as_json:
        say(used)
        return
    for path in used.unread:
        say(f"{path} cannot be read", file=sys.stderr)
    for one in used:
        say(json.dumps(one.data()))


def rm(
    run_dir: RunDirArgument,
    keep_records: Annotated[
        bool, typer.Option("--keep-records", help="Remove only the folders of finished runs.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; remove nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove a campaign's folder, or free those of its runs and keep the records; asks first."""
    from hpcagent.runs.removed import remove_run

    seen = remove_run(run_dir, keep_records=keep_records, dry_run=True)
    if dry_run:
        say(json.dumps(seen.data()) if as_json else seen)
        return
    if not yes:
        if not sys.stdin.isatty():
            raise BadInput(f"{seen}\nNothing was removed: there is no terminal to ask on; give --yes.")
        say(seen, file=sys.stderr)
        if not typer.confirm("Remove it for good?", default=False, err=True):
            say("nothing was removed", file=sys.stderr)
            return
    done = remove_run(run_dir, keep_records=keep_records)
    say(json.dumps(done.data()) if as_json else done)
    if done.failed:
        raise typer.Exit(1)


def archive(
    run_dir: RunDirArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .tar.gz, .tgz or .zip; by the folder's name, here.")
    ] = None,
    with_work: Annotated[
        bool, typer.Option("--with-work", help="All files of runs and logs, also large and binary ones.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Pack a campaign into one file that opens elsewhere, read only; says what was left out."""
    from hpcagent.runs.archive import archive as write_archive

    named = output if output is not None else Path(f"{run_dir.resolve().name}.tar.gz")
    done = write_archive(run_dir, named, with_work=with_work)
    say(json.dumps(done.data()) if as_json else done)


def compare(
    run_dirs: Annotated[
        list[Path], typer.Argument(help="Two folders or archives, or more.", metavar="RUN_DIR...")
    ],
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the best so far as .png, .pdf or .svg.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Put campaigns side by side: settings, answers with errors, progress, points that both have run."""
    from hpcagent.runs.compared import compare as put_side_by_side

    found = put_side_by_side(*run_dirs)
    say(json.dumps(found.data()) if as_json else found)
    if plot is not None:
        say(found.plot(plot), file=sys.stderr if as_json else None)


def stop(
    run_dir: RunDirArgument,
    within_s: Annotated[float, typer.Option("--within", min=1, help="Seconds to wait for its end.")] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Ask the coordinator of a campaign to stop, as Ctrl-C would, and wait until it has."""
    from hpcagent.runs.stopped import stop_run

    try:
        done = stop_run(run_dir, within_s=within_s)
    except TimeoutError as error:
        say(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    say(json.dumps(done.data()) if as_json else done)
    if done.left:
        raise typer.Exit(1)
