"""`hpcagent workspace repeat`: an earlier run with something changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcagent.commands.workspace_shown import Said
from hpcagent.errors import BadInput

if TYPE_CHECKING:
    from hpcagent.workspace.client import Workspace

__all__ = ["repeated", "repeated_words"]


def repeated(
    there: Workspace, identity: str, changes: Sequence[str], *, why: str, other_version: bool = False
) -> dict[str, Any]:
    """Begin a run once more with something changed; see `Workspace.repeat`.

    Args:
        there: The workspace.
        identity: The run.
        changes: `timestep = 0.002 ps`, `temperature +50 K`, `timestep /2`.
        why: What it is for.
        other_version: Also where the app has another version now.

    Raises:
        BadInput: Nothing is changed, a unit is missing or wrong, or the gate refuses it.
    """
    if not changes:
        raise BadInput(
            f'`hpcagent workspace repeat {identity}`: say what shall be other, e.g. "timestep = 0.002 ps", '
            f'"temperature +50 K" or "timestep /2"; `run APP ... --again` does the same work once more.',
            value=identity,
        )
    try:
        return there.repeat(list(changes), identity, why=why, other_version=other_version)
    except BadInput as error:
        if "other_version=True" not in error.message:
            raise
        raise BadInput(error.message.replace("other_version=True", "`--other-version`"), **error.details) from None


def repeated_words(begun: Mapping[str, Any]) -> Said:
    """What was begun, with its parameters."""
    return Said(begun, lambda: "\n".join(_lines(begun)))


def _lines(begun: Mapping[str, Any]) -> list[str]:
    from hpcagent.campaign.numbers import point_text

    lines = [
        f"{begun['id']}: {begun['state']}; {begun['app']} {begun['version']} on the site {begun['site']}",
        f"as {begun['since']}, but: {', '.join(begun['changes'])}",
        f"parameters: {point_text(begun['params'], begun['units'])}",
    ]
    lines += [f"note: {note}" for note in begun["notes"]]
    lines += [f"note: {begun['note']}"] if begun.get("note") else []
    return [*lines, f"workdir: {begun['workdir']}"]
