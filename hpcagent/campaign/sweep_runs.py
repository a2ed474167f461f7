"""How many runs a campaign plans in all: its budget, or what a sweep's design asks for beside what was run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcagent.campaign.sweep_space import SWEEP
from hpcagent.model.records import Manifest
from hpcagent.policies.base import make_policy
from hpcagent.policies.design import Design
from hpcagent.policies.points import inside

if TYPE_CHECKING:
    from hpcagent.campaign.record import Campaign

__all__ = ["PlannedRuns", "design_of", "ranges_text"]


def design_of(campaign: Campaign) -> Design | None:
    """The design of a sweep; None where another policy suggests."""
    if campaign.policy.name != SWEEP:
        return None
    made = make_policy(
        SWEEP,
        space=campaign.search,
        objective=campaign.objective,
        seed=campaign.seed,
        **campaign.policy_options,
    )
    assert isinstance(made, Design)
    return made


def ranges_text(campaign: Campaign) -> str:
    """What is varied, and in which range."""
    return ", ".join(f"{p.name} in {p.range}" for p in campaign.search.parameters)


class PlannedRuns:
    """Counts the runs of a campaign, those included that are still to come; None where nothing bounds them.

    Args:
        campaign: The campaign.
    """

    def __init__(self, campaign: Campaign) -> None:
        self._budget = campaign.until.budget()
        self._space = campaign.search
        self._design = design_of(campaign)
        self._known: tuple[int, int] | None = None

    def count(self, manifests: Sequence[Manifest]) -> int | None:
        """Runs in all, where these are planned so far."""
        if self._design is None:
            return self._budget
        # Asked at every tick; it changes with the manifests only.
        if self._known is None or self._known[0] != len(manifests):
            ran = (inside(self._space, m.params) for m in manifests if m.role != "repeat")
            left = len(self._design.lacking(p for p in ran if p is not None))
            own = sum(not m.origin for m in manifests)  # what was told is no run
            self._known = len(manifests), own + left
        return self._known[1] if self._budget is None else min(self._budget, self._known[1])
