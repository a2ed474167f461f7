"""What a client may call by its name: never a path, a module or a function, for which code would be read here."""

from __future__ import annotations

import re

from hpcagent.catalog import app_names
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.workspace.client import Workspace

__all__ = ["named", "site_name"]

NAME = re.compile(r"[A-Za-z_][\w.-]{0,99}(@[\w.+-]{1,40})?")


def site_name(site: str) -> str:
    """A site by its name: a profile by its path would run the shell lines that it has.

    Raises:
        ValueError: It is none.
    """
    if re.search(r"[/\\\x00-\x1f\x7f]", site) or site.endswith(".toml") or site in (".", ".."):
        raise ValueError("a site is called by its name here, as get_workspace lists it: never by a path")
    return site


def named(app: str, workspace: Workspace) -> str:
    """An app by the name that it has everywhere: never a path or a function, for which code would be read here.

    Args:
        app: Its name.
        workspace: Its registered tools are apps as well; whether one may run the gate says.

    Raises:
        NotAllowed: There is none of that name.
    """
    name = app.partition("@")[0]
    if not NAME.fullmatch(app) or (name not in app_names() and not workspace.has_tool(name)):
        raise NotAllowed(
            "contract",
            "there is no app of that name",
            field="app",
            value=app,
            allowed="a name of list_apps, or NAME@VERSION",
            do="call list_apps",
        )
    return app
