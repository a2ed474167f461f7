"""`hpcagent fetch`: files of runs that an endpoint computed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from hpcagent.commands.common import JsonOption, RunDirArgument, SiteOption, say
from hpcagent.errors import Interrupted

__all__ = ["add"]


def add(cli: typer.Typer) -> None:
    """Add the command."""
    cli.command()(fetch)


def fetch(
    run_dir: RunDirArgument,
    run: Annotated[str, typer.Argument(help="Its number, or the beginning of its execution id.", metavar="RUN")],
    paths: Annotated[
        list[str] | None, typer.Argument(help="An artifact (log), a file, a quoted glob.", metavar="[PATH]...")
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Not into the run's own folder.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All files of the run.")] = False,
    max_mb: Annotated[float, typer.Option("--max-mb", help="Largest size of all together, in MB.")] = 100.0,
    changed: Annotated[
        bool, typer.Option("--changed", help="Also what has changed since the run; with --to.")
    ] = False,
    transfer: Annotated[bool, typer.Option("--transfer", help="By Globus Transfer, of any size.")] = False,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring files of a run from the endpoint that computed it, verified; what is here is not sent again."""
    from hpcagent.runs.fetched import fetch as fetch_files

    progress = _Progress()
    try:
        done = fetch_files(
            run_dir,
            run,
            *(paths or ()),
            to=to,
            everything=everything,
            max_mb=max_mb,
            changed=changed,
            transfer=transfer,
            site=site,
            watch=progress,
            say=progress.say,
        )
    except KeyboardInterrupt:
        raise Interrupted("stopped; what has come is kept, and the same command goes on with it.") from None
    finally:
        progress.end()
    say(json.dumps(done.data()) if as_json else done)


class _Progress:
    """One line on a terminal that is written anew; nothing elsewhere."""

    def __init__(self) -> None:
        self._on = sys.stderr is not None and sys.stderr.isatty()
        self._width = 0

    def __call__(self, path: str, have: int, size: int) -> None:
        from hpcagent.shown import size_text

        if self._on:
            share = have / size if size else 1.0
            self._write(f"{path}: {share:4.0%} of {size_text(size)}")

    def say(self, text: str) -> None:
        """A sentence on a line of its own."""
        self.end()
        say(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line empty."""
        if self._width:
            self._write("")
            self._width = 0

    def _write(self, text: str) -> None:
        from hpcagent.shown import plain

        line = plain(text)[:100]
        print(f"\r{line:<{self._width}}\r{line}", end="", file=sys.stderr, flush=True)
        self._width = len(line)
