"""What a session of a campaign is to do, before anything is opened: refusals that need no folder are made here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcagent.campaign.asked import expected_of, refuse_beyond, request_of
from hpcagent.campaign.budget import refuse_small_cap
from hpcagent.campaign.decisions import policy_of
from hpcagent.campaign.earlier import WarmStart
from hpcagent.campaign.hopeless import refuse_unprinted
from hpcagent.campaign.on_sites import refuse_mixed_speeds
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.warm import read_earlier
from hpcagent.campaign.where import chosen_site
from hpcagent.errors import BadInput
from hpcagent.gate.alone import admit_alone
from hpcagent.policies.base import Policy
from hpcagent.sites.opening import open_site
from hpcagent.sites.profile import Profile
from hpcagent.sites.profiles import find_profile
from hpcagent.sites.several_profiles import AnySite, Several, one_site
from hpcagent.sites.site import Site, usable_cores, workers_of
from hpcagent.store.rundir import RunDir

__all__ = ["Plan", "planned"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A campaign, where it runs, and what it begins with.

    Attributes:
        campaign: The campaign.
        folder: Its folder.
        wanted: The profile of its site, or a site that somebody else has opened.
        policy: Its policy.
        warm: What earlier campaigns have found; read before the folder exists, so that a wrong name costs nothing.
        workers: Runs at the same time, in place of what the profile says.
        inside: Use the nodes of the job that this process is in.
    """

    campaign: Campaign
    folder: RunDir
    wanted: Site | Profile
    policy: Policy
    warm: WarmStart | None
    workers: int | None
    inside: bool

    @property
    def profile(self) -> Profile:
        """The profile of its site."""
        return self.wanted.profile if isinstance(self.wanted, Site) else self.wanted

    def open_site(self) -> Site:
        """The site, opened unless it is already."""
        if isinstance(self.wanted, Site):
            return self.wanted
        return open_site(
            self.wanted, run_dir=self.folder.root, workers=self.workers, private=True, inside=self.inside
        )


def planned(
    campaign: Campaign,
    *,
    site: AnySite | None,
    run_dir: str | Path | None,
    workers: int | None,
    inside: bool,
) -> Plan:
    """Check what can be checked without a folder, and find the site.

    Raises:
        BadInput: The campaign, policy or site is wrong, or the site has no place for its runs.
    """
    if campaign.cache is not None:
        whole = str(Path(campaign.cache).expanduser().absolute())
        campaign = campaign.model_copy(update={"cache": whole})
    folder = RunDir(run_dir if run_dir is not None else Path("runs") / campaign.name)
    if not campaign.app.runnable:
        raise BadInput(
            f"the app {campaign.app.name!r} is a function of a script or notebook ({campaign.app.source}); "
            "run that script or cell again to go on, or move the function into a module that can be imported."
        )
    named = site if site is not None else chosen_site(campaign, folder.root)
    wanted = named if isinstance(named, Site) else find_profile(named)
    profile = wanted.profile if isinstance(wanted, Site) else wanted
    refuse_mixed_speeds(campaign, profile)
    if not folder.exists:
        refuse_unprinted(campaign)
    if inside:
        one_site(profile, "--inside (inside=True) is")
    if isinstance(wanted, Profile):
        workers_of(wanted, campaign.largest)
        if not folder.exists and not isinstance(wanted, Several):
            here = None if wanted.batch or wanted.remote else len(usable_cores())
            refuse_small_cap(campaign, node_cores=wanted.node_cores or here, expected_s=expected_of(folder.root))
    asked = request_of(campaign, site=profile.name)
    refuse_beyond(folder.root, asked)
    admit_alone(asked)
    return Plan(
        campaign=campaign,
        folder=folder,
        wanted=wanted,
        policy=policy_of(campaign),
        # A campaign that was begun has them in its journal.
        warm=None if folder.exists else read_earlier(campaign, run_dir=folder.root),
        workers=workers,
        inside=inside,
    )
