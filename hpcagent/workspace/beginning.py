"""Begins a campaign of a workspace in a process of its own.

    python -m hpcagent.workspace.beginning ROOT ID PROFILE

The service imports no code of anybody's, and answers others meanwhile. `campaigns/ID.asked.json` says what it is:

    {"toml": "...", "app": "a reference", "changes": null}      a new campaign
    {"toml": null, "app": "a reference", "changes": {...}}      one that goes on, in the folder `campaigns/ID`

Prints one line: empty once it goes on, else why it does not.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.campaign.loading import load_campaign, load_run
from hpcagent.catalog import find_app
from hpcagent.errors import HpcAgentError
from hpcagent.model.base import read_json
from hpcagent.runs.attached import run_detached
from hpcagent.store.files import write_whole
from hpcagent.workspace.app_store import STORED, AppStore

__all__ = ["begin", "main"]


def begin(root: Path, identity: str, profile: str) -> None:
    """Begin it, or go on with it.

    Raises:
        HpcAgentError: It does not begin.
    """
    folder = root / "campaigns" / identity
    asked: dict[str, Any] = read_json(folder.with_name(f"{identity}.asked.json"))
    store = AppStore(root / "apps")
    reference = asked["app"]
    app = _app(store, reference) if reference else None
    if asked["toml"] is not None:
        written = folder.with_name(f"{identity}.toml")
        write_whole(written, asked["toml"], private=True)
        campaign = load_campaign(written, app=app)
    else:
        campaign = load_run(folder, changes=asked["changes"])
        if app is not None and app.sent is not None:
            campaign = campaign.model_copy(update={"app": campaign.app.carrying(app.sent)})
    run_detached(campaign, site=profile, run_dir=folder, report=True)


def _app(store: AppStore, reference: str) -> App:
    if not reference.startswith(STORED):
        return find_app(reference)
    path = store.record(reference)["path"]
    if path:  # the coordinator's and the workers', too
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*path, *([before] if before else [])])
    return store.runnable(reference)


def main() -> None:
    """See the module."""
    root, identity, profile = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    said: dict[str, Any] = {}
    try:
        begin(root, identity, profile)
    except HpcAgentError as error:
        said = {"kind": type(error).__name__, "message": error.message}
    except Exception as error:  # of a module of somebody's own
        said = {"kind": "BadInput", "message": f"{type(error).__name__}: {error}"}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
