"""Where a campaign goes on: the site that it was on last, unless somebody says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w

from hpcagent.store.files import write_whole
from hpcagent.store.rundir import RunDir

if TYPE_CHECKING:
    from hpcagent.campaign.record import Campaign
    from hpcagent.sites.profile import Profile

__all__ = ["SITE", "chosen_site", "note_site"]

SITE = "site.toml"


def note_site(folder: RunDir, profile: Profile) -> None:
    """Write down the profile as it is used, with what the command line changed in it."""
    data = profile.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    write_whole(folder.root / SITE, tomli_w.dumps(data))


def chosen_site(campaign: Campaign, run_dir: str | Path | None, given: str | Path | None = None) -> str:
    """Return the name or path of the profile to use: the one given, else where the folder's campaign was last.

    A campaign whose own `site` was changed since goes there.
    """
    from hpcagent.campaign.coordinator import load_run

    if given is not None:
        return str(given)
    folder = RunDir(run_dir if run_dir is not None else Path("runs") / campaign.name)
    last = folder.root / SITE
    if folder.exists and last.exists() and load_run(folder.root).site == campaign.site:
        return str(last)
    return campaign.site
