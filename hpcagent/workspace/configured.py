"""An app as a call wants it, and whether it is still what it was when a run was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcagent.apps.base import App
from hpcagent.model.records import Manifest

__all__ = ["changed_since", "configured", "settings_of"]


def configured(app: App, settings: Mapping[str, Any]) -> App:
    """The app with these settings.

    Raises:
        BadInput: It has no such setting, or its file is not there.
    """
    return app.with_settings(**settings) if settings else app


def settings_of(app: App, found: App) -> dict[str, Any]:
    """What of an app is set otherwise than it is found; files by their paths."""
    paths, there = app.settings.get("paths", {}), found.settings.get("paths", {})
    files = {name: str(path) for name, path in paths.items() if path != there.get(name)}
    rest = {
        name: value
        for name, value in app.settings.items()
        if name not in ("files", "paths", *app.settings.get("files", {})) and value != found.settings.get(name)
    }
    return rest | files


def changed_since(app: App, manifest: Manifest, code: str) -> str:
    """What is another one than when the run was asked for, in a sentence; empty if nothing is."""
    version = app.contract.version
    if version != manifest.app_version:
        return f"{app.name} was {manifest.app_version} when it was asked for, and is {version} now."
    if code and app.digest != code:
        return f"the code or settings of {app.name} {version} are others than when it was asked for: ask again."
    return ""
