"""What a process was started with and may lack (streams, working directory); notebook or worker?"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from hpcagent.errors import BadInput

__all__ = [
    "WORKING_DIRECTORY_GONE",
    "import_on_a_worker",
    "importing_on_a_worker",
    "in_notebook",
    "open_closed_streams",
    "require_working_directory",
    "working_directory",
]

WORKING_DIRECTORY_GONE = (
    "the working directory of this process was deleted, so that no relative path leads anywhere and no program "
    "can be started from it; `cd` to a folder that is there (also `cd .` where one of the same name was made "
    "anew), and try again."
)


def open_closed_streams() -> None:
    """Give a process that was started without stdin, stdout or stderr (`2>&-`) /dev/null in their place.

    Otherwise the next file that is opened gets the number of the closed one, and what a library or a child prints
    goes into it: a journal, for instance.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def working_directory() -> Path | None:
    """The working directory, or None if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def require_working_directory() -> None:
    """Raise `BadInput` if the working directory was deleted."""
    if working_directory() is None:
        raise BadInput(WORKING_DIRECTORY_GONE[0].upper() + WORKING_DIRECTORY_GONE[1:])


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook.

    Example:
        >>> in_notebook()
        False
    """
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


_ON_A_WORKER: ContextVar[bool] = ContextVar("importing_on_a_worker", default=False)


@contextlib.contextmanager
def import_on_a_worker() -> Iterator[None]:
    """Inside, what a module of the user's says of files is not held against this machine."""
    token = _ON_A_WORKER.set(True)
    try:
        yield
    finally:
        _ON_A_WORKER.reset(token)


def importing_on_a_worker() -> bool:
    """Whether this is such an import: files that a module names may be on another machine, or gone."""
    return _ON_A_WORKER.get()
