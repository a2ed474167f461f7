"""What a campaign would do first, and what it could cost: nothing is submitted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from hpcagent.campaign.record import Campaign
from hpcagent.model.records import Manifest
from hpcagent.policies.base import make_policy
from hpcagent.sites.profile import Profile, find_profile
from hpcagent.sites.site import usable_cores, workers_of

__all__ = ["Plan", "plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The first batch, and bounds on time and cost.

    Attributes:
        manifests: The first batch, as it would be written.
        profile: The site's profile.
        workers: Runs at the same time there.
        runs: Runs in all, or None without a bound.
        expected_s: Wall time if every run takes what the contract expects, in seconds, or None.
        worst_node_hours: Node-hours if every run takes its whole walltime, or None.
        expected_node_hours: Node-hours as expected, or None.
    """

    manifests: tuple[Manifest, ...]
    profile: Profile
    workers: int
    runs: int | None
    expected_s: float | None
    worst_node_hours: float | None
    expected_node_hours: float | None


def plan(campaign: Campaign, *, site: str | Path | None = None, workers: int | None = None) -> Plan:
    """Work out the first batch and the cost without starting anything.

    Raises:
        BadInput: The campaign, its policy or the site is wrong.

    Example:
        >>> from hpcagent.campaign.record import load_campaign
        >>> len(plan(load_campaign("synthetic"), site="threads").manifests)
        6
    """
    profile = find_profile(site or campaign.site)
    count = workers or workers_of(profile)
    policy = make_policy(
        campaign.policy.name,
        space=campaign.search,
        objective=campaign.objective,
        seed=campaign.seed,
        **campaign.policy.options,
    )
    budget = campaign.until.budget()
    size = campaign.batch_size or max(2, 4 * count)
    size = size if budget is None else min(size, budget)
    points = policy.suggest([], size - (campaign.reference is not None))
    if campaign.reference is not None:
        points.insert(len(points) // 2, dict(campaign.reference.params))
    digest = campaign.app.digest
    manifests = tuple(
        campaign.app.manifest(
            campaign.complete(params), seed=campaign.seed, index=i, role="suggested", digest=digest
        )
        for i, params in enumerate(points)
    )
    contract = campaign.app.contract
    resources = contract.resources
    cores = resources.ranks_per_node * resources.threads_per_rank
    share = min(1.0, cores / (profile.node_cores or len(usable_cores()))) if resources.nodes == 1 else 1.0
    each = resources.nodes * share / 3600
    return Plan(
        manifests=manifests,
        profile=profile,
        workers=count,
        runs=budget,
        expected_s=None if budget is None else math.ceil(budget / count) * contract.estimated_runtime_s,
        worst_node_hours=None if budget is None else budget * each * resources.walltime_s,
        expected_node_hours=None if budget is None else budget * each * contract.estimated_runtime_s,
    )
