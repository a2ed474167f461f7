"""Questions in a notebook: `%load_ext hpcagent.agents.magic`, then `%ask` and `%%ask`."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING, Any

from hpcagent.agents.supervisor import CLIENT, Limits, Supervisor
from hpcagent.errors import BadInput
from hpcagent.workspace.client import Workspace

if TYPE_CHECKING:
    from hpcagent.agents.approving import Question
    from hpcagent.agents.reply import Reply
    from hpcagent.agents.turn import Event

__all__ = ["load_ipython_extension"]


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise BadInput(f"%ask: {message}. {self.format_usage().strip()}")


def _options() -> _Options:
    found = _Options(prog="%ask", add_help=False, allow_abbrev=False)
    found.add_argument("--workspace", default="", metavar="DIR")
    found.add_argument("--thread", default="", metavar="NAME")
    found.add_argument("--new", action="store_true")
    found.add_argument("--model", default="", metavar="NAME")
    found.add_argument("--url", default="", metavar="URL")
    found.add_argument("--node-hours", type=float, default=None, metavar="N")
    found.add_argument("question", nargs="*")
    return found


class _Asked:
    """The magic `ask`: questions of a notebook go on in one conversation for each workspace."""

    def __init__(self) -> None:
        self._threads: dict[str, str] = {}
        self.model: Any = ""

    def ask(self, line: str, cell: str | None = None) -> Reply:
        """Ask the supervisor; each call is printed while it goes on, and a yes is asked for below the cell.

        `%ask [--workspace DIR] [--thread NAME | --new] [--model NAME] [--url URL] [--node-hours N] QUESTION`, or
        `%%ask` with the question below it. Questions go on in one conversation; `--new` begins another.
        """
        try:
            words = shlex.split(line) if cell is not None or line.lstrip().startswith("--") else ["--", line]
        except ValueError as error:
            raise BadInput(f"%ask: {error} in {line!r}.", value=line) from None
        given = _options().parse_args(words)
        question = " ".join(given.question) if cell is None else cell
        if not question.strip():
            raise BadInput("%ask: there is no question.")
        with Workspace(given.workspace or None, client=CLIENT) as workspace:
            boss = Supervisor(
                workspace,
                model=given.model or self.model,
                url=given.url,
                limits=Limits(node_hours=given.node_hours),
                ask=_yes,
                told=_told,
            )
            root = os.path.realpath(workspace.folder.root)
            thread = given.thread or ("" if given.new else self._threads.get(root, ""))
            reply = boss.ask(question, thread=thread)
            self._threads[root] = reply.thread
        return reply


def _told(event: Event) -> None:
    print(f"  {event}", flush=True)


def _yes(question: Question) -> bool | None:
    print(f"\n{question}", flush=True)
    try:
        return input("Run it? [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, RuntimeError, NotImplementedError):  # nobody sits there: the notebook is run by a program
        return None


def load_ipython_extension(shell: Any) -> None:
    """Register `%ask` and `%%ask`; IPython calls it."""
    shell.register_magic_function(_Asked().ask, "line_cell", "ask")
