"""The command line: parses, calls, prints. What it can do, Python can do first."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Annotated

import typer
from typer.main import get_command_name
from typer.models import CommandInfo

from hpcagent.beside import use_modules_of
from hpcagent.commands import add_all
from hpcagent.commands.common import say
from hpcagent.endings import end_of
from hpcagent.errors import BadInput, HpcAgentError, Interrupted
from hpcagent.later import HEAVY, defer_when_imported
from hpcagent.owners import TRUST, trusting
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


add_all(cli)


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
    defer_when_imported(*HEAVY)
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
