"""How a campaign that was stopped ends: one sentence and an exit code, in the shell, a script and a notebook."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from hpcagent.errors import Interrupted
from hpcagent.shown import plain

__all__ = ["Stopped", "end_of", "say_at_exit"]


class Stopped(KeyboardInterrupt):
    """A loop over a `Coordinator` was interrupted; the message says how to go on.

    Attributes:
        name: Of the signal, as a person calls it.
    """

    exit_code = Interrupted.exit_code

    def __init__(self, message: str = "stopped", name: str = "Ctrl-C") -> None:
        super().__init__(message, name)
        self.message = message
        self.name = name

    def __str__(self) -> str:
        return self.message

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback."""
        return [self.message]


def end_of(error: BaseException) -> int | None:
    """Print how a campaign that was stopped goes on, on stderr.

    Returns:
        The exit code of the process, or None where the error is another one and nothing was printed.

    Example:
        >>> end_of(ValueError("x")) is None
        True
    """
    if isinstance(error, Interrupted | Stopped):
        words, code = str(error), error.exit_code
    elif isinstance(error, KeyboardInterrupt):
        words, code = "stopped", Interrupted.exit_code
    else:
        return None
    print(plain(words), file=sys.stderr, flush=True)
    return code


def say_at_exit() -> None:
    """Let a script that does not catch the interruption end as the shell's command does: no traceback, code 130.

    To be called when a campaign was interrupted. Errors of other kinds are shown as before. Does nothing where
    somebody else has taken over `sys.excepthook`, or where a person types (Python's prompt goes on).
    """
    if sys.excepthook is sys.__excepthook__ and not hasattr(sys, "ps1") and not sys.flags.interactive:
        sys.excepthook = _hook


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None, /) -> Any:
    code = end_of(error) if isinstance(error, Interrupted | Stopped) else None
    if code is None:
        sys.__excepthook__(kind, error, trace)
    else:
        raise SystemExit(code)  # what the interpreter then exits with
