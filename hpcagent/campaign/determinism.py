"""What is said of results on record that should be the same and are not."""

from __future__ import annotations

from hpcagent.campaign.record import Campaign
from hpcagent.campaign.state import State
from hpcagent.model.contract import Contract
from hpcagent.model.determinism import disagreements
from hpcagent.model.records import Manifest

__all__ = ["unequal_words"]

# So many are told one by one.
_MOST_TOLD = 5


def unequal_words(campaign: Campaign, state: State) -> tuple[str, ...]:
    """A remark for each run whose results do not agree although its app is deterministic, without a full stop.

    Two results of one run meet where it was run again: a retry, a folder that was freed, a resumed campaign. Of an
    app without a seed repeats and replicates are the same run, too.
    """
    contract = campaign.app.contract
    found = list(disagreements(contract, state.rows)) if _may_meet(contract, state) else []
    again = state.replaced_parts
    for name, version in sorted({(r.manifest.app, r.manifest.app_version) for r in again}):
        inner = _contract(name, version)
        if inner is not None:
            both = {r.manifest.execution_id: state.part_results[r.manifest.execution_id] for r in again}
            found += disagreements(inner, (*again, *both.values()))
    said = [str(one) for one in found[:_MOST_TOLD]]
    if len(found) > _MOST_TOLD:
        said.append(f"{len(found) - _MOST_TOLD} more runs gave two results")
    if said:
        said[-1] += "; set deterministic = False in its contract, or find what decides that is no input of it"
    return tuple(said)


def _may_meet(contract: Contract, state: State) -> bool:
    """Whether any two results can be of one manifest; a status of many runs asks often."""
    if not contract.deterministic:
        return False
    return len(state.rows) > len(state.results) or (not contract.seeded and any(map(_again, state.manifests)))


def _again(manifest: Manifest) -> bool:
    return manifest.replicate > 0


def _contract(name: str, version: str) -> Contract | None:
    """The contract of an app of ours that a chain has used; None where it is not known here."""
    from hpcagent.apps import BUILT_IN
    from hpcagent.catalog import look_up

    if name not in BUILT_IN:
        return None
    found = look_up(name).contract
    return found if found.version == version else None
