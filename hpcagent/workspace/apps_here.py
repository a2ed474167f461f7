"""An app and its files as a script has them here, and as the service is asked for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.campaign.loading import load_campaign
from hpcagent.campaign.record import Campaign
from hpcagent.catalog import find_app, is_packaged
from hpcagent.errors import BadInput
from hpcagent.model.base import read_toml
from hpcagent.registry.scripts import SCRIPTS
from hpcagent.workspace.app_store import asked, packed, unpacked
from hpcagent.workspace.connection import Answer, Connection

__all__ = ["AppsHere"]


class AppsHere(Connection):
    """Finds out what a name, a file or an `App` of a call is: a packaged app, or a tool of the workspace."""

    def _asked(
        self, app: str | App, settings: Mapping[str, Any] | None, resources: Mapping[str, Any] | None
    ) -> Answer:
        """An app as the service is asked for it; a registered tool by its name."""
        if isinstance(app, str) and self.is_tool(app):
            return {"app": app, "settings": dict(settings or {}), "resources": dict(resources or {})}
        return asked(app, settings, resources)

    def has_tool(self, name: str) -> bool:
        """Whether it is a registered tool or added app, in any state, or an app that runs scripts (`SCRIPTS`)."""
        notes = (self.folder.tools / f"{name}.json", self.folder.added / f"{name}.json")
        return name in SCRIPTS or (name.isidentifier() and any(note.is_file() for note in notes))

    def is_tool(self, app: str) -> bool:
        """Whether `NAME` or `NAME@VERSION` is that of a registered tool or added app, and of no packaged app."""
        name = app.partition("@")[0]
        return name.isidentifier() and not is_packaged(name) and not Path(app).is_file() and self.has_tool(name)

    def _named(self, app: str | App) -> str:
        """An app by a name that the service knows."""
        wanted = self._asked(app, None, None)
        if not isinstance(wanted["app"], str) or wanted["settings"] or wanted["resources"]:
            raise BadInput(
                f"{app if isinstance(app, str) else app.name!r} has no name that it has everywhere: "
                "`bayesian_optimize` takes packaged apps as they are; `start` takes a campaign with any app.",
                value=str(app),
            )
        return str(wanted["app"])

    def _whole(
        self, campaign: Campaign | str | Path, changes: Mapping[str, Any] | None, data_only: bool
    ) -> dict[str, Any]:
        if data_only:
            return {"data": str(campaign)}
        if isinstance(campaign, Campaign) and changes:
            raise BadInput("changes go with a campaign's TOML; a Campaign has its own values.")
        if not isinstance(campaign, Campaign):
            tool = self._tool_of(Path(campaign).expanduser(), changes or {})
            if tool:
                made = self._tool(tool)
                more = _beside(Path(campaign).expanduser(), made, changes or {})
                return {"toml": load_campaign(campaign, changes=more, app=made).toml(), "app": tool}
        found = campaign if isinstance(campaign, Campaign) else load_campaign(campaign, changes=changes)
        wanted = asked(found.app)
        same = not wanted["settings"] and not wanted["resources"]
        return {"toml": found.toml(), "app": wanted["app"] if same else packed(found.app)}

    def _tool_of(self, path: Path, changes: Mapping[str, Any]) -> str:
        """The registered tool that the TOML of a campaign names as its app; empty: it names another app."""
        named = changes.get("app", read_toml(path).get("app") if path.is_file() else None)
        ours = isinstance(named, str) and not (path.parent / named).is_file() and self.is_tool(named)
        return str(named) if ours else ""

    def _tool(self, app: str) -> App:
        return unpacked(self._one("packed_tool", app=app))

    def _from_here(self, app: str | App, params: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters with absolute paths for files: the service has another working directory."""
        if not any(_is_path(value) for value in params.values()):
            return dict(params)
        found: App | None = None
        if isinstance(app, App):
            found = app
        elif self.is_tool(app):
            found = self._tool(app)
        elif Path(app).is_file():
            found = find_app(app)
        reads = () if found is None else found.settings.get("reads", ())
        return {n: _absolute(v, Path()) if n in reads and _is_path(v) else v for n, v in params.items()}


def _is_path(value: object) -> bool:
    """Whether a parameter could be the path of a file; one of a run is `artifact:RUN/PATH`."""
    return isinstance(value, str | Path) and bool(str(value)) and not str(value).startswith("artifact:")


def _absolute(value: object, folder: Path) -> str:
    return str((folder / Path(str(value)).expanduser()).absolute())


def _beside(path: Path, app: App, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of a campaign with its fixed files as absolute paths; those in its TOML lie beside it."""
    table = read_toml(path)
    fixed = table.get("fixed", {})
    found = dict(changes)
    for name in app.settings.get("reads", ()):
        key = f"fixed.{name}"
        if key in changes:
            found |= {key: _absolute(changes[key], Path())} if _is_path(changes[key]) else {}
        elif isinstance(fixed, Mapping) and _is_path(fixed.get(name)):
            found[key] = _absolute(fixed[name], path.parent)
    return found
