"""When a campaign ends: conditions for `Campaign(until=...)`; a table `{"max_runs": 24}` says the same.

import hpcagent as ha

ha.Campaign(app, objective, until=ha.until.any_of(ha.until.max_runs(48), ha.until.plateau(3)))
"""

from __future__ import annotations

from hpcagent.policies.stop import Stop
from hpcagent.policies.stop_combined import all_of, any_of
from hpcagent.policies.stop_infeasible import no_feasible_point
from hpcagent.policies.stop_reached import plateau, target
from hpcagent.policies.stop_spent import max_runs, node_hours, wall_time

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
