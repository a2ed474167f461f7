"""Campaigns as they end: what they took is booked, and their runs teach estimates."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcagent.campaign.recorded import Snapshot, snapshot
from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.gate.rules import Caller
from hpcagent.shown import plain
from hpcagent.store.journal import event_in
from hpcagent.store.rundir import holder
from hpcagent.workspace.artifacts import size_of
from hpcagent.workspace.references import version_of
from hpcagent.workspace.rows import Row
from hpcagent.workspace.simulations import Simulations
from hpcagent.workspace.took import numbers_of

__all__ = ["BEGINS_WITHIN_S", "Booking"]

MOST_TIMES = 100
"""Runs of a campaign that estimates learn from, the last ones."""
# A coordinator that was started has the lock of its folder after so long.
BEGINS_WITHIN_S = 20.0


class Booking(Simulations):
    """Campaigns whose coordinators have ended. Arguments as `Simulations`."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time, apart: bool = False) -> None:
        super().__init__(root, clock=clock, apart=apart)
        self._beginning: set[str] = set()  # those whose coordinator is being started
        self._booked_at: dict[str, float] = {}  # id -> when the journal was last written that is booked to its end
        self._up_since = time.monotonic() if self.rows else -BEGINS_WITHIN_S

    def _campaign(self, caller: Caller, identity: str) -> Row:
        with self._turn:
            row = self._row(caller, identity)
        if row.kind != "campaign":
            raise BadInput(f"{identity} is a single run, not a campaign: ask for its status.", value=identity)
        return row

    def _since(self, row: Row, event: str) -> bool:
        """Whether a campaign's own journal has such an event since it was let through, or let go on."""
        path = self._workdir(row) / "events.jsonl"
        if not row.again_at or row.again_behind is None:
            return path.exists()
        try:
            with path.open("rb") as file:
                file.seek(row.again_behind)
                return any((event_in(line) or {}).get("event") == event for line in file)
        except OSError:
            return False

    def _written_since(self, row: Row) -> bool:
        """Whether a campaign's journal was written after it was seen to have ended, and not looked at since."""
        at = _written_at(self._workdir(row))
        return at > row.ended_at and at != self._booked_at.get(row.id)

    def _look_at_campaigns(self) -> None:
        """See which have ended, and book what they took.

        A campaign that goes on again has the end of before in its journal until it has begun: that is none.
        """
        with self._turn:
            campaigns = [row for row in self.rows.values() if row.kind == "campaign"]
            open_ones = [row for row in campaigns if not row.over and row.id not in self._beginning]
            stopped = [row for row in campaigns if row.state == "stopped"]
        # One that was stopped may have been gone on with by hand.
        for row in (*open_ones, *filter(self._written_since, stopped)):
            seen, written_at = _standing(row), _written_at(self._workdir(row))
            if holder(self._workdir(row))[0]:
                continue
            try:
                there = snapshot(self._workdir(row))
            except HpcAgentError as error:
                with self._turn:
                    gone_on = row.id in self._beginning or holder(self._workdir(row))[0]
                    if not row.over and not gone_on and _standing(row) == seen:
                        self._end(row, "failed", note=f"its folder cannot be read: {plain(error.message)}")
                continue
            reason = there.reason if self._since(row, "stop") else None
            young = time.monotonic() - self._up_since < BEGINS_WITHIN_S
            if there.attended or (young and reason is None and not row.over):
                continue  # what the service before this one has begun may not have its lock yet
            hours = max(0.0, there.state.node_hours + there.state.overhead - row.settled)
            price = self.rules.price(row.site)
            state = "completed" if reason is not None else "stopped"
            if reason is not None and not there.state.manifests:
                state = "failed"  # it could begin no run: the note says why
            taught = _taught(there, row.taught)
            if row.state == state and not hours and taught is None:
                self._booked_at[row.id] = written_at
                continue
            with self._turn:
                if row.id in self._beginning or _standing(row) != seen:
                    continue  # it goes on since it was read, or another thread has booked this
                self._end(
                    row,
                    state,
                    node_hours=hours,
                    usd=0.0 if price is None else price * hours,
                    note=reason or "it was interrupted; `hpcagent resume` goes on with its folder",
                    bytes=max(0, size_of(self._workdir(row)) - row.stored),
                    taught=None if taught is None else taught | self._runs_of(row, there),
                )

    def _runs_of(self, row: Row, there: Snapshot) -> dict[str, str]:
        """What the runs of a campaign are of: `version`, and `code` where it is somebody's own; see `ran`."""
        try:
            own = self.references.brings_code(there.campaign.app, row.reference)
        except BadInput:  # the kept app is damaged
            own = True
        of = version_of(there.campaign.app, own=own)
        return {"version": of.version} | ({"code": of.code} if of.code else {})


def _taught(there: Snapshot, before: int) -> dict[str, Any] | None:
    """What estimates learn from a campaign: `results` so far; of the new ones how many `failed`, and `times`.

    Args:
        there: The campaign.
        before: Its results that were taken in when it ended before, in the order in which they came; that of a run
            which was given up and run again is there twice.

    Returns:
        `times` are wall time in seconds and numbers among the parameters of the last that were run here;
        None: nothing is new.
    """
    new = there.state.rows[before:]
    runs = [one for one in new if not one.manifest.origin and not one.manifest.extends and one.manifest.times == 1]
    whole = [one for one in runs if one.status == "COMPLETED" and one.cost.wall_s > 0]
    times = [(one.cost.wall_s, numbers_of(one.manifest.params)) for one in whole[-MOST_TIMES:]]
    failed = sum(one.status == "FAILED" and one.final for one in runs)  # what is run again has not failed
    return {"results": before + len(new), "failed": failed, "times": times} if new else None


def _written_at(run_dir: Path) -> float:
    """When a campaign's own journal was written, Unix time in seconds; 0 where it has none."""
    try:
        return (run_dir / "events.jsonl").stat().st_mtime
    except OSError:
        return 0.0


def _standing(row: Row) -> tuple[str, float, float]:
    """What of a campaign is another when it has ended, or was let go on."""
    return row.state, row.ended_at, row.again_at
