"""Runs that take much longer than those before them. Reports each once; never cancels."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.apps.run_records import Begun
from hpcagent.campaign.recent import RecentRuns
from hpcagent.model.records import Manifest

__all__ = ["LateRun", "LateRuns"]

# Nobody needs to hear of a run that is late by less, in seconds.
LEAST_S = 2.0


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

    def look(self, running: Mapping[str, Manifest], recent: RecentRuns) -> list[LateRun]:
        """Return the runs that have become late since the last look, which is at most every `every_s`.

        Args:
            running: Runs that were submitted and have not ended.
            recent: How long runs took so far.
        """
        now = self._clock()
        if now - self._looked < self._every_s:
            return []
        self._looked = now
        # One that was planned a moment ago need not be looked for.
        old = [m for i, m in running.items() if now - m.created_at > LEAST_S and i not in self._told]
        if not old:
            return []
        expected = recent.longest_expected()
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
