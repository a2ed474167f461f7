"""A campaign as the gate sees it: what it runs as a whole, where, and at what cost at most."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpcagent.apps.executable.reads import digests
from hpcagent.campaign.budget import Budget
from hpcagent.campaign.sweep_runs import PlannedRuns
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.request import Request, Tier, effects_of
from hpcagent.model.base import canonical_json, read_json
from hpcagent.store.files import write_whole

if TYPE_CHECKING:
    from hpcagent.campaign.record import Campaign

__all__ = ["NOTE", "expected_of", "let_through", "refuse_beyond", "request_of"]

NOTE = "workspace.json"
"""In the folder of a campaign of a workspace: what was let through."""


def request_of(
    campaign: Campaign,
    *,
    site: str,
    own: bool = False,
    sandbox: Tier = "none",
    price: float | None = None,
    why: str = "",
    given: Mapping[str, str] | None = None,
) -> Request:
    """What the gate decides on: one request for all runs, bound to the campaign as it is written.

    Args:
        campaign: The campaign.
        site: Name of its site.
        own: Whether its app is code that the library does not bring.
        sandbox: The tier that its runs have at least.
        price: US dollars for a node-hour there.
        why: What it is for.
        given: Fixed parameters that are files of runs, as the caller wrote them: `artifact:RUN/PATH`.

    Example:
        >>> from hpcagent.campaign.loading import load_campaign
        >>> asked = request_of(load_campaign("synthetic"), site="laptop")
        >>> asked.kind, asked.app, asked.node_hours is None
        ('campaign', 'synthetic', True)
    """
    budget = Budget(campaign, node_cores=None)
    runs = PlannedRuns(campaign).count([])
    each = campaign.largest.nodes * campaign.app.contract.estimated_runtime_s / 3600
    written: list[object] = [campaign.identity(), campaign.toml()]
    read = digests(campaign.fixed, campaign.app.settings)
    text = canonical_json([*written, read] if read else written)
    cap = budget.cap
    return Request(
        kind="campaign",
        app=campaign.app.name,
        version=campaign.app.contract.version,
        work=hashlib.sha256(text.encode()).hexdigest(),
        params={
            "objective and limits": campaign.question,  # no parameter has blanks in its name
            **{name: campaign.app.contract.space[name].shown(value) for name, value in campaign.fixed.items()},
            **{p.name: p.range for p in campaign.search.parameters},
        },
        given=dict(given or {}),
        site=site,
        runs=runs,
        nodes=campaign.largest.nodes,
        node_hours=cap,
        expected_node_hours=None if runs is None else min(each * runs, math.inf if cap is None else cap),
        usd=None if price is None or cap is None else price * cap,
        priced=price is not None,
        effects=effects_of(campaign.app.contract.side_effects),
        own=own,
        sandbox=sandbox,
        why=why,
    )


def let_through(run_dir: Path, request: Request, *, workspace: Path, identity: str, profile: str) -> None:
    """Note in a campaign's folder what its workspace has let through.

    Raises:
        StoreFull: It cannot be written.
    """
    note = {
        "workspace": str(workspace),
        "id": identity,
        "node_hours": request.node_hours,
        "runs": request.runs,
        "expected_s": request.expected_s or None,
        "site": profile,
    }
    write_whole(run_dir / NOTE, json.dumps(note) + "\n", private=True)


def expected_of(run_dir: Path) -> float | None:
    """What a run is expected to take by what its workspace knows, in seconds; None: that is not known."""
    if not (run_dir / NOTE).is_file():
        return None
    found = read_json(run_dir / NOTE).get("expected_s")
    return float(found) if isinstance(found, int | float) and found > 0 else None


def refuse_beyond(run_dir: Path, request: Request) -> None:
    """Refuse to go on with a campaign of a workspace beyond what was let through there.

    Raises:
        NotAllowed: It would take more node-hours or runs, or go on elsewhere.
    """
    if not (run_dir / NOTE).is_file():
        return
    note = read_json(run_dir / NOTE)
    if note.get("site") not in ("", request.site):
        raise NotAllowed(
            "approval",
            f"this campaign belongs to the workspace {note.get('workspace')}: it was let through for another site",
            field="site",
            value=request.site,
            allowed=str(note.get("site")),
            do="go on there, or start it in the workspace with another site",
        )
    for name, unit in (("node_hours", "node-hours"), ("runs", "runs")):
        most, asked = note.get(name), getattr(request, name)
        if most is not None and (asked is None or asked > most * (1 + 1e-9)):
            raise NotAllowed(
                "approval",
                f"this campaign belongs to the workspace {note.get('workspace')}, which let it through with "
                f"{most:g} {unit} at most",
                field=f"until.{'node_hours' if name == 'node_hours' else 'max_runs'}",
                value=asked,
                allowed=f"at most {most:g}",
                do=f"hpcagent workspace extend {note.get('id')} --set KEY=VALUE",
            )
