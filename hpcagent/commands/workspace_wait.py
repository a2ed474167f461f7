"""`--wait` and `wait` of `hpcagent workspace`: until it has ended; Ctrl-C leaves what runs alone, and says so."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.commands.common import say
from hpcagent.errors import Interrupted

if TYPE_CHECKING:
    from hpcagent.workspace.client import Workspace

__all__ = ["asking", "commands_of", "waited"]


def commands_of(where: Path | None, as_: str) -> Callable[..., str]:
    """Makes commands of a workspace, with the options that lead to it.

    Args:
        where: As it was given; None: as `$HPCAGENT_WORKSPACE` or the folder says.
        as_: Whom it speaks for.

    Example:
        >>> commands_of(Path("my group"), "ada")("stop", "c-1")
        "hpcagent workspace --workspace 'my group' --as ada stop c-1"
    """
    options = [*(["--workspace", str(where)] if where is not None else []), *(["--as", as_] if as_ else [])]
    return lambda *words: shlex.join(["hpcagent", "workspace", *options, *words])


@contextlib.contextmanager
def asking(command: Callable[..., str]) -> Iterator[None]:
    """Ask for something to be begun; Ctrl-C before the answer leaves open whether it was.

    Raises:
        Interrupted: Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped before the workspace has answered; it may have begun all the same.\nlook: {command('list')}"
        ) from None


def waited(there: Workspace, begun: dict[str, Any], command: Callable[..., str]) -> dict[str, Any]:
    """Its status once it has ended; its id is shown at once, for whoever does not wait so long.

    Args:
        there: The workspace.
        begun: What was begun.
        command: Makes a command of this workspace from its words.

    Raises:
        Interrupted: Ctrl-C; it goes on.
    """
    try:
        say(f"{begun['id']} ({begun['state']})", file=sys.stderr)
        if begun.get("note"):
            say(begun["note"], file=sys.stderr)
        return there.wait(begun["id"])
    except KeyboardInterrupt:
        raise Interrupted(_goes_on(begun["id"], command)) from None


def until_ended(there: Workspace, identity: str, command: Callable[..., str]) -> dict[str, Any]:
    """As `waited`, of what was begun earlier."""
    try:
        return there.wait(identity)
    except KeyboardInterrupt:
        raise Interrupted(_goes_on(identity, command)) from None


def _goes_on(identity: str, command: Callable[..., str]) -> str:
    campaign = identity.startswith("c-")
    lines = [
        f"{identity} goes on: only the waiting for it has ended.",
        f"follow it: {command('status', identity)}, {command('wait', identity)}",
        f"stop it: {command('stop' if campaign else 'cancel', identity)}",
    ]
    if campaign:
        lines.insert(2, f"its answer so far: {command('answer', identity)}")
    return "\n".join(lines)
