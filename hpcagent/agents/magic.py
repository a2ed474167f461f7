"""Questions in a notebook: `%load_ext hpcagent`, then `%ask` and `%%ask`. Nothing here imports IPython."""

from __future__ import annotations

import argparse
import os
import queue
import shlex
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from hpcagent.agents.needed import supervisors
from hpcagent.errors import BadInput
from hpcagent.workspace.client import Workspace

if TYPE_CHECKING:
    from hpcagent.agents.approving import Question
    from hpcagent.agents.reply import Reply
    from hpcagent.agents.turn import Event

__all__ = ["register"]


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"%ask: {message}. {self.format_usage().strip()}")


def _given(line: str) -> argparse.Namespace:
    found = _Options(prog="%ask", add_help=False, allow_abbrev=False)
    for name, word in (("workspace", "DIR"), ("thread", "NAME"), ("model", "NAME"), ("url", "URL")):
        found.add_argument(f"--{name}", default="", metavar=word)
    found.add_argument("--new", action="store_true")
    found.add_argument("--node-hours", type=float, default=None, metavar="N")
    found.add_argument("question", nargs="*")
    try:
        return found.parse_args(shlex.split(line))
    except ValueError as error:
        raise BadInput(f"%ask: {error} in {line!r}.", value=line) from None


class _Magic:
    """The magic `ask`: questions of a notebook go on in one conversation for each workspace.

    Args:
        names: What the notebook has, by name.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._threads: dict[str, str] = {}

    def ask(self, line: str, cell: str | None = None) -> Reply:
        """Ask the supervisor; each call is printed while it goes on, and a yes is asked for below the cell.

        `%ask [--workspace DIR] [--thread NAME | --new] [--model NAME] [--url URL] [--node-hours N] QUESTION`, or
        `%%ask` with the question below it. DIR and NAME of a model may be variables: an open `ha.Workspace`, a
        model of pydantic-ai. Questions go on in one conversation; `--new` begins another.
        """
        plain = cell is None and not line.lstrip().startswith("--")
        given = _given("" if plain else line)
        question = line if plain else " ".join(given.question) if cell is None else cell
        if not question.strip():
            raise BadInput("%ask: there is no question.")
        there = self._names.get(given.workspace)
        if isinstance(there, Workspace):
            return self._answered(there, given, question)
        with Workspace(given.workspace or None) as workspace:
            return self._answered(workspace, given, question)

    def _answered(self, workspace: Workspace, given: argparse.Namespace, question: str) -> Reply:
        agents, cell = supervisors(), _Cell()
        boss = agents.Supervisor(
            workspace,
            model=self._names.get(given.model, given.model),
            url=given.url,
            limits=agents.Limits(node_hours=given.node_hours),
            ask=cell.person,
            told=cell.told,
        )
        root = os.path.realpath(workspace.folder.root)
        thread = given.thread or ("" if given.new else self._threads.get(root, "")) or boss.threads.new()
        self._threads[root] = thread
        return cell.until(
            lambda: boss.ask(question, thread=thread, stopped=cell.stopped.is_set), lambda: boss.stop(thread)
        )


class _Cell:
    """What a question prints and asks is done by the thread of the cell: a kernel takes answers in no other.

    Attributes:
        stopped: Whether the kernel was interrupted.
    """

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def told(self, event: Event) -> None:
        """Print what goes on."""
        self._todo.put(lambda: print(f"  {event}", flush=True))

    def person(self, question: Question) -> bool | None:
        """Whoever sits at the notebook says yes or no; None: nobody does, or the question is being stopped."""
        said: queue.SimpleQueue[bool | None] = queue.SimpleQueue()

        def put() -> None:
            answer = None
            try:
                answer = None if self.stopped.is_set() else _yes(question)
            finally:
                said.put(answer)

        self._todo.put(put)
        return said.get()

    def until(self, work: Callable[[], Reply], stop: Callable[[], bool]) -> Reply:
        """Do it in a thread of its own to its end; an interrupt stops it, and what was started goes on."""
        found: list[Reply] = []
        failed: list[BaseException] = []

        def apart() -> None:
            try:
                found.append(work())
            except BaseException as error:
                failed.append(error)
            self._todo.put(None)

        threading.Thread(target=apart, name="ask").start()
        while True:
            try:
                do = self._todo.get()
                if do is None:
                    break
                do()
            except KeyboardInterrupt:
                self.stopped.set()
                stop()
        if failed:
            raise failed[0]
        return found[0]


def _yes(question: Question) -> bool | None:
    print(f"\n{question}", flush=True)
    try:
        return input("Run it? [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, RuntimeError):  # a program runs the notebook; a kernel says so by the second
        print("Nobody is there to say yes.", flush=True)
        return None


def register(shell: Any) -> None:
    """Give a notebook the magics `%ask` and `%%ask`.

    Args:
        shell: IPython's.
    """
    shell.register_magic_function(_Magic(shell.user_ns).ask, "line_cell", "ask")
