"""When a campaign ends: conditions for `Campaign(until=...)`; a table `{"max_runs": 24}` says the same.

import hpcagent as ha

ha.Campaign(app, objective, until=ha.until.any_of(ha.until.max_runs(48), ha.until.plateau(3)))
"""

from __future__ import annotations

from hpcagent.policies.stop import (
    Stop,
    all_of,
    any_of,
    max_runs,
    no_feasible_point,
    node_hours,
    plateau,
    target,
    wall_time,
)

__all__ = [
    "Stop",
    "all_of",
    "any_of",
    "max_runs",
    "no_feasible_point",
    "node_hours",
    "plateau",
    "target",
    "wall_time",
]
