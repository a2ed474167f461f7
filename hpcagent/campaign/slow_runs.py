"""Runs that take much longer than those before them. Nothing is done to them: they are told of, once each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.apps.run_records import Begun
from hpcagent.model.records import Manifest, Result

__all__ = ["LateRun", "LateRuns", "longest_expected"]

# So many runs must have ended before any can be called late.
LEAST_RUNS = 8

# The latest runs, by which others are judged.
REMEMBERED = 200

# Nobody needs to hear of a run that is late by less, in seconds.
LEAST_S = 2.0

# Machines are never quieter than that: relative standard deviation of run times.
LEAST_SPREAD = 0.1

# 99 of 100 runs end before this many standard deviations of log(run time).
Z_99 = 2.326


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


@dataclass(frozen=True, slots=True)
class LateRun:
    """A run that goes on for longer than it should.

    Attributes:
        manifest: Which.
        running_s: For how long it has been going, in seconds.
        typical_s: How long runs of the campaign take (median), in seconds.
        longest_s: What 99 of 100 stay below, in seconds.
    """

    manifest: Manifest
    running_s: float
    typical_s: float
    longest_s: float

    def event(self) -> dict[str, Any]:
        """As it stands in the journal."""
        return {
            "event": "late",
            "execution_id": self.manifest.execution_id,
            "index": self.manifest.index,
            "running_s": round(self.running_s, 3),
            "typical_s": round(self.typical_s, 3),
            "longest_s": round(self.longest_s, 3),
        }

    @staticmethod
    def words(event: Mapping[str, Any]) -> str:
        """The event in a sentence."""
        return (
            f"run {event['index']} is late: it has been going for {event['running_s']:.3g} s; by the runs so far "
            f"99 of 100 end within {event['longest_s']:.3g} s, half of them within {event['typical_s']:.3g} s"
        )


class LateRuns:
    """Finds the runs that are late.

    Args:
        work: Folder of the runs: a run has begun when the workers' records say so, or its directory has a
            `manifest.json` of after now; an older one is what an attempt of an earlier session left.
        every_s: Time between two looks, in seconds.
        clock: Unix time, in seconds.
    """

    def __init__(self, work: Path, *, every_s: float = 1.0, clock: Callable[[], float] = time.time) -> None:
        self._work, self._every_s, self._clock = work, every_s, clock
        self._told: set[str] = set()
        self._looked, self._since = 0.0, clock()
        self._begun = Begun(work)

    def look(self, running: Mapping[str, Manifest], ended: Callable[[], Sequence[Result]]) -> list[LateRun]:
        """Return the runs that have become late since the last look, which is at most every `every_s`.

        Args:
            running: Runs that were submitted and have not ended.
            ended: Gives the results so far, the latest last.
        """
        now = self._clock()
        if now - self._looked < self._every_s:
            return []
        self._looked = now
        # One that was planned a moment ago need not be looked for.
        old = [m for i, m in running.items() if now - m.created_at > LEAST_S and i not in self._told]
        if not old:
            return []
        walls = [r.cost.wall_s for r in ended()[-REMEMBERED:] if r.ok]
        expected = longest_expected(walls)
        if expected is None:
            return []
        typical_s, longest_s = expected
        self._begun.look()
        late = []
        for manifest in old:
            if now - manifest.created_at <= max(longest_s, typical_s + LEAST_S):
                continue
            running_s = self._running_s(manifest, now)
            if running_s is not None and running_s > max(longest_s, typical_s + LEAST_S):
                self._told.add(manifest.execution_id)
                late.append(LateRun(manifest, running_s, typical_s, longest_s))
        return late

    def _running_s(self, manifest: Manifest, now: float) -> float | None:
        on_record = self._begun.last(manifest.execution_id)
        if on_record is not None and on_record >= self._since:
            return now - on_record
        try:
            begun_at = (self._work / manifest.execution_id / "manifest.json").stat().st_mtime
        except OSError:
            return None  # it still waits for a worker
        return now - begun_at if begun_at >= self._since else None
