"""How far runs and campaigns are, by what they have written so far: each look costs what is new since the last."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcagent.science.lammps.steps_done import StepsDone
from hpcagent.store.growing_lines import GrowingLines
from hpcagent.workspace.rows import Row

__all__ = ["CampaignJournal", "Progress"]

MOST_FOLLOWED = 1000

_RESULT = re.compile(rb'"execution_id":"([^"]{1,100})","status":"')


class CampaignJournal(GrowingLines):
    """The journal of a campaign.

    Args:
        folder: The campaign's.
        most: Runs that it makes at most; None without a bound.
    """

    def __init__(self, folder: Path, most: int | None) -> None:
        super().__init__(folder, "events.jsonl")
        self._most = most
        self._ended: set[bytes] = set()

    def look(self) -> dict[str, Any]:
        """Runs that have ended, of those that it makes at most."""
        self._ended.update(_RESULT.findall(self.new()))
        done = len(self._ended)
        share = min(1.0, done / self._most) if self._most else None
        return {"done": done, "of": self._most, "unit": "runs", "share": share, "from": "its journal"}


class Progress:
    """How far the runs of a workspace are.

    Args:
        folder_of: The folder of a run or campaign.
        clock: Unix time, in seconds.
    """

    def __init__(self, folder_of: Callable[[Row], Path], clock: Callable[[], float]) -> None:
        self._folder_of, self._clock = folder_of, clock
        self._turn = threading.Lock()
        self._followed: OrderedDict[str, StepsDone | CampaignJournal] = OrderedDict()

    def of(self, row: Row) -> dict[str, Any] | None:
        """How far a run or campaign is; None where it does not go on, or nothing is known.

        Returns:
            `done` and `of` in `unit`, `share` (0 to 1), each None where it is not known; `from`: what says it;
            `elapsed_s` and `expected_s`, in seconds of wall time.
        """
        if row.over:
            with self._turn:
                self._followed.pop(row.id, None)
            return None
        if row.state != "running":
            return None
        expected = float(row.request.get("expected_s") or 0.0) or None if row.kind == "run" else None
        elapsed = self._elapsed_s(row)
        with self._turn:
            found = self._follower(row).look()
        if found is None:
            if elapsed is None or expected is None:
                return None
            words = "elapsed against expected wall time"
            late = elapsed >= expected  # nobody knows how long it still takes
            words += ", which is over" if late else ""
            share = None if late else elapsed / expected
            found = {"done": elapsed, "of": None if late else expected, "unit": "s", "share": share, "from": words}
        return {**found, "elapsed_s": elapsed, "expected_s": expected}

    def _follower(self, row: Row) -> StepsDone | CampaignJournal:
        found = self._followed.get(row.id)
        if found is None:
            folder = self._folder_of(row)
            most = row.request.get("runs")
            found = StepsDone(folder) if row.kind == "run" else CampaignJournal(folder, most)
            self._followed[row.id] = found
            while len(self._followed) > MOST_FOLLOWED:
                self._followed.popitem(last=False)
        self._followed.move_to_end(row.id)
        return found

    def _elapsed_s(self, row: Row) -> float | None:
        """Since its worker has begun, by its folder; of a campaign see `Row.elapsed_s`. None: not known."""
        if row.kind == "campaign":
            return row.elapsed_s(self._clock())
        try:
            began = (self._folder_of(row) / "manifest.json").stat().st_mtime
        except OSError:
            return None
        return max(0.0, self._clock() - began)
