"""`hpcagent tune`: the settings with which an input script runs fastest here, as accurately as it came."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from hpcagent.commands.axes import named_values
from hpcagent.commands.common import (
    AccountOption,
    JsonOption,
    QueueOption,
    SiteOption,
    WalltimeOption,
    say,
)
from hpcagent.errors import BadInput

__all__ = ["add"]


def add(cli: typer.Typer) -> None:
    """Add the command."""
    cli.command(name="tune")(tune)


def tune(
    script: Annotated[
        str, typer.Argument(help="A LAMMPS input script of your own, or a packaged one.", metavar="SCRIPT")
    ],
    ranks: Annotated[
        str | None, typer.Option("--ranks", help="Numbers of MPI ranks to try, e.g. 1,2,4 (a node's by default).")
    ] = None,
    runs: Annotated[int, typer.Option("--runs", help="Runs of the campaign.")] = 24,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Steps of the timed run; else what takes --seconds.")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", help="Wall time of a run of the script as it came.")
    ] = 4.0,
    earlier: Annotated[int, typer.Option("--earlier", help="Most steps of each run before the timed one.")] = 1000,
    longest: Annotated[
        float, typer.Option("--longest", help="Wall time after which any run is ended, in seconds.")
    ] = 900.0,
    ranks_now: Annotated[
        int | None, typer.Option("--ranks-now", help="MPI ranks that it is run on now (1, or its grid's).")
    ] = None,
    threads_now: Annotated[
        int | None, typer.Option("--threads-now", help="OpenMP threads of each now (1, or its package's).")
    ] = None,
    variables: Annotated[
        list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help="As -var of LAMMPS; may be repeated.")
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", help="Times that the tuned script is timed at the end.")
    ] = 5,
    same_forces: Annotated[
        bool, typer.Option("--same-forces", help="Try only settings that change no force.")
    ] = False,
    wait_quiet: Annotated[
        float,
        typer.Option("--wait-quiet", help="Longest wait for a quiet machine, in seconds.", metavar="SECONDS"),
    ] = 0.0,
    folder: Annotated[Path | None, typer.Option("--folder", help="tuned/NAME by default.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the policy.")] = 1,
    site: SiteOption = None,
    account: AccountOption = None,
    queue: QueueOption = None,
    walltime: WalltimeOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what the script has; run nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Find the settings with which an input script runs fastest on a site, as accurately as it came."""
    from hpcagent.commands.running import profile_of
    from hpcagent.tuning.tune import tune as find

    found = find(
        script,
        site=profile_of(site or "laptop", account=account, queue=queue, walltime=walltime),
        ranks=_numbers(ranks),
        runs=runs,
        steps=steps,
        earlier=earlier,
        seconds=seconds,
        longest=longest,
        ranks_now=ranks_now,
        threads_now=threads_now,
        variables=named_values(variables, "--var"),
        repeats=repeats,
        same_forces=same_forces,
        wait_quiet=wait_quiet,
        folder=folder,
        seed=seed,
        dry_run=dry_run,
        say=lambda line: say(line, file=sys.stderr),
        progress=False if as_json else None,
    )
    say(json.dumps(found.data()) if as_json else found)
    if (found.script is None or found.slower) and not dry_run:
        raise typer.Exit(1)


def _numbers(text: str | None) -> tuple[int, ...]:
    try:
        return () if text is None else tuple(int(word) for word in text.split(","))
    except ValueError:
        raise BadInput(
            f"--ranks {text}: write whole numbers with commas between them: 1,2,4.", value=text
        ) from None
