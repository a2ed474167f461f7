"""The records that calls give, and those of a campaign: for annotations and `isinstance`. A table does for each.

import hpcagent as ha

def log(event: ha.types.Event) -> None: ...
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_WHERE = {
    "Attached": "hpcagent.runs.attached",
    "Batch": "hpcagent.campaign.events",
    "CampaignResult": "hpcagent.campaign.result",
    "CampaignRun": "hpcagent.runs.opened",
    "Confirm": "hpcagent.campaign.record",
    "Contract": "hpcagent.model.contract",
    "ContractDocument": "hpcagent.apps.document",
    "Event": "hpcagent.campaign.events",
    "Explanation": "hpcagent.reports.explanation",
    "Failure": "hpcagent.model.records",
    "Fidelity": "hpcagent.campaign.record",
    "InnerRun": "hpcagent.model.records",
    "Invocation": "hpcagent.apps.invocation",
    "Manifest": "hpcagent.model.records",
    "Objective": "hpcagent.model.objective",
    "Observation": "hpcagent.model.records",
    "Reference": "hpcagent.campaign.record",
    "Remote": "hpcagent.model.records",
    "Replay": "hpcagent.replays.regret",
    "Rule": "hpcagent.campaign.alerts",
    "Site": "hpcagent.sites.site",
    "SweepResult": "hpcagent.campaign.sweep",
}

__all__ = [
    "Attached",
    "Batch",
    "CampaignResult",
    "CampaignRun",
    "Confirm",
    "Contract",
    "ContractDocument",
    "Event",
    "Explanation",
    "Failure",
    "Fidelity",
    "InnerRun",
    "Invocation",
    "Manifest",
    "Objective",
    "Observation",
    "Reference",
    "Remote",
    "Replay",
    "Rule",
    "Site",
    "SweepResult",
]

if TYPE_CHECKING:
    from hpcagent.apps.document import ContractDocument as ContractDocument
    from hpcagent.apps.invocation import Invocation as Invocation
    from hpcagent.campaign.alerts import Rule as Rule
    from hpcagent.campaign.choices import Confirm as Confirm
    from hpcagent.campaign.choices import Fidelity as Fidelity
    from hpcagent.campaign.choices import Reference as Reference
    from hpcagent.campaign.events import Batch as Batch
    from hpcagent.campaign.events import Event as Event
    from hpcagent.campaign.result import CampaignResult as CampaignResult
    from hpcagent.campaign.sweep import SweepResult as SweepResult
    from hpcagent.model.contract import Contract as Contract
    from hpcagent.model.objective import Objective as Objective
    from hpcagent.model.records import Failure as Failure
    from hpcagent.model.records import InnerRun as InnerRun
    from hpcagent.model.records import Manifest as Manifest
    from hpcagent.model.records import Observation as Observation
    from hpcagent.model.records import Remote as Remote
    from hpcagent.replays.regret import Replay as Replay
    from hpcagent.reports.explanation import Explanation as Explanation
    from hpcagent.runs.attached import Attached as Attached
    from hpcagent.runs.opened import CampaignRun as CampaignRun
    from hpcagent.sites.site import Site as Site


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'hpcagent.types' has no attribute {name!r}")
