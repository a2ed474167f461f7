"""Apps of `hpcagent workspace run` and `estimate`: parameters as a person writes them, and names misspelt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import read_toml

if TYPE_CHECKING:
    from hpcagent.workspace.client import Workspace

__all__ = ["is_campaign_file", "params_of", "refuse_unknown", "refuse_unknown_of"]


def params_of(there: Workspace, app: str, words: Sequence[str]) -> dict[str, Any]:
    """Parameters as a person writes them, read by the app's contract.

    Args:
        there: The workspace.
        app: Its name, or the path of a file.
        words: `NAME=VALUE`, in the contract's unit.

    Raises:
        BadInput: There is no such app, or a word is none of its parameters.
    """
    from hpcagent.campaign.enqueued import point_in
    from hpcagent.catalog import find_app
    from hpcagent.model.contract import Contract

    artifacts = dict(word.split("=", 1) for word in words if "=artifact:" in word)
    plain = [word for word in words if "=artifact:" not in word]
    if there.is_tool(app):
        space = Contract.model_validate(there.describe(app)).space
    else:
        refuse_unknown(there, app)
        space = find_app(app.partition("@")[0]).contract.space
    return {**point_in(space, plain), **artifacts}


def is_campaign_file(word: str) -> bool:
    """Whether it is the TOML of a campaign.

    Args:
        word: As it stands on the command line.
    """
    path = Path(word).expanduser()
    table = read_toml(path) if path.is_file() and path.suffix == ".toml" else {}
    return "app" in table or "objective" in table


def refuse_unknown_of(there: Workspace, campaign: str, changes: Mapping[str, Any]) -> None:
    """As `refuse_unknown`, of the app that a campaign's file, or a change of it, names.

    Args:
        there: The workspace.
        campaign: Path of its file; another word is left alone.
        changes: Dotted key -> value.
    """
    if is_campaign_file(campaign):
        path = Path(campaign).expanduser()
        app = changes.get("app", read_toml(path).get("app"))
        if isinstance(app, str) and not (path.parent / app).is_file():
            refuse_unknown(there, app)


def refuse_unknown(there: Workspace, app: str) -> None:
    """Refuse a plain name that no app has, with the nearest one, the workspace's own included.

    Args:
        there: The workspace.
        app: As it was given; paths and `package.module:name` are left alone.

    Raises:
        BadInput: There is none.
    """
    from hpcagent.catalog import app_names

    name = app.partition("@")[0]
    if not name.isidentifier() or name in app_names() or there.has_tool(name) or Path(app).is_file():
        return
    own = sorted(
        note.stem for folder in (there.folder.tools, there.folder.added) for note in folder.glob("*.json")
    )
    close = nearest(name, [*own, *app_names()])
    if close.startswith("known:"):
        ours = f"this workspace has {', '.join(own)}" if own else "this workspace has none of its own"
        close = f"none is called nearly so; {ours}."
    raise BadInput(
        f"no app {name!r}: {close} `hpcagent workspace apps` lists all that may be used here; a LAMMPS script is "
        "named by its path, or added (`hpcagent workspace add-app`), an app of your own is 'package.module:name'.",
        value=name,
    )
