"""How long the latest runs of a campaign took: told by its state of every result once, asked by all."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from hpcagent.model.records import Manifest, Result
from hpcagent.statistics.pace import RECENT, Pace

__all__ = ["RecentRuns", "longest_expected"]

# So many runs must have completed before any can be called late.
LEAST_RUNS = 8

# The latest runs that completed, by which others are judged.
REMEMBERED = 200

# Machines are never quieter than that: relative standard deviation of run times.
LEAST_SPREAD = 0.1

# 99 of 100 runs end before this many standard deviations of log(run time).
Z_99 = 2.326


class RecentRuns:
    """Wall times of the runs that ended last, for whoever has to know how long the next one goes on.

    A run counts if a worker says how long it took and the campaign's guard has not ended it. Cheap enough to ask
    before every run. What a run at a certain point will take is asked of `RunTimes`, which fits a model; a
    manifest has its answer (`estimated_runtime_s`).

    Example:
        >>> recent = RecentRuns()
        >>> print(recent.mean_s)
        None
        >>> run = Manifest(execution_id="a", app="x", app_version="1.0.0", estimated_runtime_s=60.0)
        >>> recent.expected_s(run)
        60.0
        >>> recent.add(Result(manifest=run, status="COMPLETED", cost={"wall_s": 12.0}, site="laptop"))
        >>> recent.expected_s(run), recent.on("laptop").mean_s, recent.on("cluster").mean_s
        (12.0, 12.0, None)
    """

    def __init__(self) -> None:
        self._all = Pace()
        self._on: dict[str, Pace] = {}
        self._completed_s: deque[float] = deque(maxlen=REMEMBERED)

    def add(self, result: Result) -> None:
        """A run of the campaign has ended."""
        if result.cost.wall_s <= 0 or result.stopped is not None:
            return
        self._all.add(result.cost.wall_s)
        if result.ok:
            self._completed_s.append(result.cost.wall_s)
        self.add_part(result)

    def add_part(self, result: Result) -> None:
        """An inner run of a chain has ended: it tells of its site, and nothing of how long a chain takes."""
        # A site on which all runs fail at once is no quick one.
        if result.ok and result.cost.wall_s > 0:
            self.on(result.site).add(result.cost.wall_s)

    @property
    def enough(self) -> bool:
        """Whether the mean is worth something: half of the runs that it is taken of are there."""
        return len(self._all) >= RECENT // 2

    @property
    def mean_s(self) -> float | None:
        """Mean wall time of the last runs in seconds, failed ones too; None before the first."""
        return self._all.mean_s

    def expected_s(self, manifest: Manifest) -> float:
        """How long a run like the last ones takes, in seconds; before any has ended, what its manifest says."""
        return self._all.mean_s or manifest.estimated_runtime_s or 1.0

    def on(self, site: str) -> Pace:
        """How long runs take that complete on a site."""
        pace = self._on.get(site)
        if pace is None:
            pace = self._on[site] = Pace()
        return pace

    def longest_expected(self) -> tuple[float, float] | None:
        """Median of the completed runs, and what 99 of 100 stay below; see `longest_expected`."""
        return longest_expected(self._completed_s)


def longest_expected(walls: Sequence[float]) -> tuple[float, float] | None:
    """The typical run time, and the one that 99 of 100 runs stay below, if run times are log-normal.

    Args:
        walls: Wall times of runs that have ended, in seconds.

    Returns:
        Both in seconds, or None where too few runs have ended to say.

    Example:
        >>> longest_expected([10.0] * 7) is None
        True
        >>> [round(x, 1) for x in longest_expected([8.0, 9.0, 10.0, 11.0, 12.0] * 4)]
        [9.9, 14.5]
    """
    logs = [math.log(wall) for wall in walls if wall > 0]
    n = len(logs)
    if n < LEAST_RUNS:
        return None
    mean = sum(logs) / n
    spread = max(LEAST_SPREAD, math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1)))
    # Student's t for the next one, by the first terms of its expansion about the normal distribution.
    free = n - 1
    t = Z_99 + (Z_99**3 + Z_99) / (4 * free) + (5 * Z_99**5 + 16 * Z_99**3 + 3 * Z_99) / (96 * free**2)
    return math.exp(mean), math.exp(mean + t * spread * math.sqrt(1 + 1 / n))
