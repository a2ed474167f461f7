"""A campaign as the gate sees it: what it runs as a whole, where, and at what cost at most."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from hpcagent.campaign.budget import Budget
from hpcagent.campaign.sweep_runs import PlannedRuns
from hpcagent.gate.request import Request, Tier
from hpcagent.model.base import canonical_json

if TYPE_CHECKING:
    from hpcagent.campaign.record import Campaign

__all__ = ["request_of"]


def request_of(
    campaign: Campaign,
    *,
    site: str,
    own: bool = False,
    sandbox: Tier = "none",
    price: float | None = None,
    why: str = "",
) -> Request:
    """What the gate decides on: one request for all runs, bound to the campaign as it is written.

    Args:
        campaign: The campaign.
        site: Name of its site.
        own: Whether its app is code that the library does not bring.
        sandbox: The tier that its runs have at least.
        price: US dollars for a node-hour there.
        why: What it is for.

    Example:
        >>> from hpcagent.campaign.record import load_campaign
        >>> asked = request_of(load_campaign("synthetic"), site="laptop")
        >>> asked.kind, asked.app, asked.node_hours is None
        ('campaign', 'synthetic', True)
    """
    budget = Budget(campaign, node_cores=None)
    runs = PlannedRuns(campaign).count([])
    each = campaign.largest.nodes * campaign.app.contract.estimated_runtime_s / 3600
    text = canonical_json([campaign.identity(), campaign.toml()])
    cap = budget.cap
    return Request(
        kind="campaign",
        app=campaign.app.name,
        version=campaign.app.contract.version,
        work=hashlib.sha256(text.encode()).hexdigest(),
        params={p.name: p.kind for p in campaign.search.parameters},
        site=site,
        runs=runs,
        nodes=campaign.largest.nodes,
        node_hours=cap,
        expected_node_hours=each * (runs or 0),
        usd=None if price is None or cap is None else price * cap,
        own=own,
        sandbox=sandbox,
        why=why,
    )
