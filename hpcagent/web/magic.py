"""`%page` in a notebook: the page of a workspace as the value of a cell. Nothing here imports IPython."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any, NoReturn

from hpcagent.errors import BadInput
from hpcagent.workspace.client import Workspace

__all__ = ["register"]

NEEDS = "it takes the extras notebook and web: pip install 'hpcagent[notebook,web]'"


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"%page: {message}. {self.format_usage().strip()}")


class _Page:
    """The magic `page`.

    Args:
        names: What the notebook has, by name.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._shown: dict[tuple[Path, str], Any] = {}

    def page(self, line: str) -> Any:
        """The page of a workspace: campaigns, runs, forms, approvals, chat.

        `%page [--workspace DIR] [--as NAME] [--height PIXELS]`; DIR may be a variable: an open `ha.Workspace`, in
        the name of whom it speaks for. The same page, asked for again, takes the place of the former.
        """
        found = _Options(prog="%page", add_help=False, allow_abbrev=False)
        found.add_argument("--workspace", default="", metavar="DIR")
        found.add_argument("--as", default="", metavar="NAME", dest="as_")
        found.add_argument("--height", default=700, type=int, metavar="PIXELS")
        try:
            given = found.parse_args(shlex.split(line))
        except ValueError as error:
            raise BadInput(f"%page: {error} in {line!r}.", value=line) from None
        try:
            from hpcagent.web.widget import Page
        except ImportError as error:
            raise BadInput(f"%page: {error}; {NEEDS}.") from None
        there = self._names.get(given.workspace)
        where, as_ = given.workspace or None, given.as_
        if isinstance(there, Workspace):
            where, as_ = there.folder.root, as_ or there.as_
        made = Page(where, as_=as_, height=given.height)
        former = self._shown.pop((made.root, as_), None)
        if former is not None:
            former.close()
        self._shown[made.root, as_] = made
        return made


def register(shell: Any) -> None:
    """Give a notebook the magic `%page`.

    Args:
        shell: IPython's.
    """
    shell.register_magic_function(_Page(shell.user_ns).page, "line", "page")
