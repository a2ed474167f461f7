"""A campaign on several sites: what it may ask for, and what has to be said of its answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hpcagent.campaign.record import Campaign
from hpcagent.errors import BadInput
from hpcagent.model.records import Result
from hpcagent.sites.profile import Profile
from hpcagent.sites.several_profiles import Several

__all__ = ["by_reference", "judged_speeds", "on_several", "references", "refuse_mixed_speeds"]


def judged_speeds(campaign: Campaign) -> list[str]:
    """The metrics that a campaign judges by, and that another machine or another number of ranks changes."""
    rules = (rule.metric for rule in campaign.rules)
    asked = dict.fromkeys((*campaign.judged, *campaign.until.metrics(), *rules))
    return [metric for metric in asked if metric in campaign.app.contract.timed]


def by_reference(campaign: Campaign) -> bool:
    """Whether what it judges by are speeds, which on several sites are compared by reference runs."""
    return campaign.reference is not None and bool(judged_speeds(campaign))


def references(campaign: Campaign, profile: Profile) -> int:
    """How many reference runs a batch has: one for each site, where speeds are compared."""
    return len(profile.members) if isinstance(profile, Several) and by_reference(campaign) else 1


def refuse_mixed_speeds(campaign: Campaign, profile: Profile) -> None:
    """Raise `BadInput` where speeds of several sites would be compared as if they were of one."""
    asked = judged_speeds(campaign) if isinstance(profile, Several) else []
    if not asked:
        return
    metric = None if campaign.reference is None else campaign.reference.metric
    if campaign.reference is not None and metric is None and campaign.objective.goals:
        metric = campaign.objective.goal.metric
    alone = [name for name in asked if name != metric]
    if not alone:
        return
    how = "name one site"
    if metric is None and campaign.objective.goals:
        how += ", or give the campaign a reference point (reference), which is then run on each of them"
    raise BadInput(
        f"{' and '.join(alone)} {'is' if len(alone) == 1 else 'are'} measured, and differ(s) between the sites "
        f"{profile.name} for no reason of the parameters: {how}.",
        value=alone,
    )


def on_several(campaign: Campaign, results: Sequence[Result]) -> list[str]:
    """What has to be said of runs on several sites, a sentence each without a full stop; nothing for one site."""
    runs = Counter(r.site for r in results if r.site)
    if len(runs) < 2:
        return []
    where = ", ".join(f"{site} {n}" for site, n in runs.most_common())
    known = sorted(m for m in campaign.app.contract.timed if any(m in r.metrics for r in results))
    said = f"; {' and '.join(known)} of different sites tell of the machines, too" if known else ""
    return [f"runs were on several sites ({where}){said}"]
