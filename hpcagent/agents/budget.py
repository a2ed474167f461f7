"""Node-hours that one question may take: each call is priced before it runs, and refused beyond them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from hpcagent.agents.tools import AgentTool
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.mcp.callers import Caller

__all__ = ["Budget"]


class Budget:
    """Node-hours at most, of all that the specialists of one question start.

    Args:
        node_hours: At most; None: the gate alone decides.
    """

    def __init__(self, node_hours: float | None) -> None:
        self.node_hours = node_hours
        self.taken = 0.0
        self._turn = threading.Lock()

    def prices(self, tool: AgentTool) -> bool:
        """Whether calls of a tool are priced: each may then begin no more than its price."""
        return self.node_hours is not None and tool.spends

    def take(self, caller: Caller, tool: AgentTool, arguments: Mapping[str, Any]) -> float:
        """Take what a call may cost at most from the budget.

        Returns:
            The node-hours, for `give_back` where the call came to nothing.

        Raises:
            NotAllowed: It is more than is left, or nothing bounds it.
        """
        if self.node_hours is None or not self.prices(tool):
            return 0.0
        price = self._price(caller, tool, arguments)
        with self._turn:
            left = self.node_hours - self.taken
            if price > left:
                raise NotAllowed(
                    "quota",
                    f"this question may take {self.node_hours:g} node-hours, of which {left:.4g} are left",
                    field="node_hours",
                    value=price,
                    allowed=f"{left:.4g}",
                    do="ask for less, or say that it does not fit",
                )
            self.taken += price
        return price

    def give_back(self, node_hours: float) -> None:
        """Give back what a call has not taken after all."""
        with self._turn:
            self.taken -= node_hours

    def _price(self, caller: Caller, tool: AgentTool, given: Mapping[str, Any]) -> float:
        if tool.price is not None:
            return _most(tool.price.of(caller, given), tool.price.bound)
        raise NotAllowed(
            "quota",
            f"what {tool.name} may cost is not known before it runs, and this question has a budget of node-hours",
            field="node_hours",
            allowed=f"{self.node_hours:g}",
            do="use run_job or start_campaign, or have the person ask without a budget",
        )


def _most(estimate: Mapping[str, Any], bound: str) -> float:
    if estimate.get("known"):
        return 0.0
    most = estimate.get("node_hours_at_most")
    if isinstance(most, bool) or not isinstance(most, int | float):
        raise NotAllowed(
            "quota",
            "nothing bounds what this takes, and this question has a budget of node-hours",
            field="node_hours",
            do=bound,
        )
    return float(most)
