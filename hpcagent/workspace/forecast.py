"""What a campaign of a workspace is expected to take: the one number that estimate, gate and approval have."""

from __future__ import annotations

from typing import NamedTuple

from hpcagent.gate.request import Request

__all__ = ["Forecast", "expecting"]


class Forecast(NamedTuple):
    """What a campaign takes, or what comes on top of what it has taken.

    Attributes:
        runs: That are to come, as far as the cap has room; None: nothing bounds them.
        each_s: Wall time of one, in seconds; None: not known.
        node_hours: Of all of them, not above the cap; None: not known.
        source: What that is from.
    """

    runs: int | None
    each_s: float | None
    node_hours: float | None
    source: str


def expecting(asked: Request, node_hours: float | None, each_s: float | None = None) -> Request:
    """A request with what it is expected to take in node-hours, and one run in seconds; None: that is not known.

    Example:
        >>> asked = Request(app="synthetic", version="1.0.0", work="w")
        >>> expecting(asked, 0.5).expected_node_hours, expecting(asked, 0.5).digest == asked.digest
        (0.5, True)
    """
    return asked.model_copy(update={"expected_node_hours": node_hours, "expected_s": each_s or 0.0})
