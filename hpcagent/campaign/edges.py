"""Where an answer lies at the end of the range that was searched, and the app allows values beyond."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hpcagent.campaign.record import Campaign
from hpcagent.model.base import Scalar
from hpcagent.model.parameter import Parameter

__all__ = ["at_edges"]

NEAR = 0.01
"""So close to an end, as a share of the searched range, a point is at it."""


def at_edges(campaign: Campaign, params: Mapping[str, Scalar]) -> tuple[str, ...]:
    """For each number in `params` at an end of the searched range that the app's range goes beyond: a sentence.

    Args:
        campaign: What was searched, and what its app allows.
        params: The answer.

    Example:
        >>> from hpcagent.apps.landscape import synthetic
        >>> from hpcagent.model.objective import maximize
        >>> narrow = Campaign(synthetic, maximize("value"), space={"x": {"low": 0.1, "high": 0.5}})
        >>> print(at_edges(narrow, {"x": 0.499})[0])  # doctest: +NORMALIZE_WHITESPACE
        x = 0.499 is at the edge of the range that was searched ([0.1, 0.5]); the app allows [0.02, 1]: a better
        point may lie beyond (in a new campaign: --set space.x.high=... --earlier RUN_DIR)
        >>> at_edges(narrow, {"x": 0.49}), at_edges(Campaign(synthetic, maximize("value")), {"x": 1.0})
        ((), ())
    """
    level = None if campaign.fidelity is None else campaign.fidelity.parameter  # every answer is at its last one
    said = []
    for p in campaign.search.parameters:
        if p.kind in ("float", "int") and p.name in params and p.name != level:
            whole = campaign.app.contract.space[p.name]
            end = _end(p, whole, float(params[p.name]))
            if end:
                unit = "" if p.unit == "1" else f" {p.unit}"
                said.append(
                    f"{p.name} = {params[p.name]:.6g}{unit} is at the edge of the range that was searched "
                    f"({p.range}); the app allows {whole.range}: a better point may lie beyond "
                    f"(in a new campaign: --set space.{p.name}.{end}=... --earlier RUN_DIR)"
                )
    return tuple(said)


def _end(searched: Parameter, whole: Parameter, value: float) -> str:
    """`low` or `high`, where the value is there and the app allows more; otherwise an empty text."""
    assert searched.low is not None and searched.high is not None
    assert whole.low is not None and whole.high is not None
    if searched.low == searched.high:
        return ""
    on = math.log if searched.log else float
    low, high, at = on(searched.low), on(searched.high), on(value)
    near = NEAR * (high - low) * (1 + 1e-9)
    if whole.high > searched.high and high - at <= near:
        return "high"
    return "low" if whole.low < searched.low and at - low <= near else ""
