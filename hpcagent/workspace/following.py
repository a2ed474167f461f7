"""Following a workspace as it changes: what is new since the last look, and the runs of a campaign as a table."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcagent.campaign.loading import load_run
from hpcagent.campaign.record import Campaign
from hpcagent.errors import BadInput, HpcAgentError, NotThere
from hpcagent.gate.rules import Caller
from hpcagent.sites.ledger import read_ledger
from hpcagent.store.journal import event_in
from hpcagent.workspace.artifacts import tail_of
from hpcagent.workspace.campaign_table import CampaignTable, about_campaign, columns_of
from hpcagent.workspace.enquiries import Enquiries
from hpcagent.workspace.rows import Row

__all__ = ["Following"]

MOST_ROWS = 2000
MOST_TABLES = 8
MOST_JOBS = 200
RECORDED = ("units", "failure", "cost", "host", "site", "attempt", "notes", "stopped", "distrusted", "repairs")


class Following(Enquiries):
    """What a page or another client that shows a workspace asks for.

    Args:
        root: The workspace's folder.
        clock: Unix time, in seconds.
        apart: Sites are kept by processes of their own, which outlive this one.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time, apart: bool = False) -> None:
        super().__init__(root, clock=clock, apart=apart)
        self._tables: dict[str, CampaignTable] = {}
        self._table_turn = threading.Lock()

    def changes(
        self, caller: Caller, *, after: str = "", most: int = 1000, timeout_s: float = 0.0
    ) -> dict[str, Any]:
        """Runs and campaigns that have changed, in the order of their last change, a page at a time.

        Args:
            caller: Who asks.
            after: The cursor of the last answer; empty: from the beginning; `now`: from this moment on.
            most: So many at most.
            timeout_s: Wait so long for a change where there is none, in seconds.

        Returns:
            `rows` as they stand now; `after`, the cursor to go on from; `more`: whether to ask on at once;
            `anew`: the cursor was of another process, and this begins from the beginning.
        """
        if not 1 <= most <= MOST_ROWS:
            raise BadInput(f"most={most} must be 1 to {MOST_ROWS}.", value=most)
        until = time.monotonic() + timeout_s
        with self._turn:
            known = self.changed.n if after == "now" else self.changed.number(after) if after else 0
            n = known or 0
            while True:
                found = self.changed.since(n)
                seen = [one for one in found if self.gate.sees(caller, self.rows[one[0]].owner)]
                left = until - time.monotonic()
                if seen or left <= 0 or self._closed:
                    break
                n = self.changed.n
                self._turn.wait(left)
            more = len(seen) > most
            upto = seen[most - 1][1] if more else self.changed.n
            return {
                "rows": [_line(self.rows[identity]) for identity, _ in seen[:most]],
                "after": self.changed.cursor(upto),
                "more": more,
                "anew": known is None,
            }

    # -- one campaign ----------------------------------------------------------------------------

    def campaign_runs(self, caller: Caller, identity: str, *, after: str = "", most: int = 2000) -> dict[str, Any]:
        """Runs of a campaign that were planned or have ended since, as columns.

        Args:
            caller: Who asks.
            identity: The campaign.
            after: The cursor of the last answer; empty: from the beginning.
            most: So many at most.

        Returns:
            `runs`: a list each of `index`, `id`, `state`, `role`, `batch`, `failure`, `keeps` (every limit; None:
            not known), `wall_s`, `node_hours`, `ended_at` (Unix time, s), and tables of lists `params`, `metrics`,
            `uncertainty`; `after`, `more`, `anew` as `changes` has them; `totals`: `planned`, `done`, `by_state`,
            `failures`, `node_hours`; `about`: what is asked, with units, None before it has begun.
        """
        if not 1 <= most <= MOST_ROWS:
            raise BadInput(f"most={most} must be 1 to {MOST_ROWS}.", value=most)
        row = self._campaign(caller, identity)
        with self._table_turn:
            table = self._table(row)
            table.look()
            known = table.changed.number(after) if after else 0
            rows, upto, more = table.since(known or 0, most)
            return {
                "runs": columns_of(rows, going=not row.over),
                "after": table.changed.cursor(upto),
                "more": more,
                "anew": known is None,
                "totals": _totals(table, going=not row.over),
                "about": None if after and known is not None else self._about(row),
            }

    def _table(self, row: Row) -> CampaignTable:
        """The table of a campaign; those that were asked for last are kept."""
        table = self._tables.pop(row.id, None)
        if table is None:
            campaign = self._recorded_campaign(row)
            table = CampaignTable(self._workdir(row), None if campaign is None else campaign.objective)
            if campaign is None:
                return table  # it is read again when the campaign has begun
        self._tables[row.id] = table
        while len(self._tables) > MOST_TABLES:
            self._tables.pop(next(iter(self._tables)))
        return table

    def _about(self, row: Row) -> dict[str, Any] | None:
        campaign = self._recorded_campaign(row)
        return None if campaign is None else about_campaign(campaign)

    def _recorded_campaign(self, row: Row) -> Campaign | None:
        try:
            return load_run(self._workdir(row), to_read=True)
        except HpcAgentError:  # it has not begun, or its record is damaged: `campaign` says so
            return None

    def campaign_run(self, caller: Caller, identity: str, run: str, *, lines: int = 40) -> dict[str, Any]:
        """One run of a campaign: parameters, metrics with units and errors, failure, cost, the log's last lines.

        Args:
            caller: Who asks.
            identity: The campaign.
            run: Execution id of the run.
            lines: Of its log.

        Raises:
            BadInput: It has no such run.
        """
        row = self._campaign(caller, identity)
        with self._table_turn:
            table = self._table(row)
            table.look()
            found = table.rows.get(run)
            if found is None:
                raise NotThere(f"the campaign {identity} has no run {run[:80]!r}.", value=run[:80])
            state = found["state"] or ("waiting" if row.over else "running")
            found = {**found, "state": state}
        folder = self._workdir(row)
        tail = tail_of(folder / "work" / found["id"], lines) if lines else []
        return found | self._recorded(folder, found["id"]) | {"campaign": identity, "log_tail": tail}

    @staticmethod
    def _recorded(folder: Path, execution_id: str) -> dict[str, Any]:
        """What the journal says of a run beside its row: units, failure with its log, notes, host, cost."""
        wanted = execution_id.encode()
        fields: dict[str, Any] = {}
        try:
            with (folder / "events.jsonl").open("rb") as file:
                for line in file:
                    if wanted not in line or b'"results"' not in line[:80]:
                        continue
                    results = (event_in(line) or {}).get("results") or ()
                    fields = next((one for one in results if one.get("execution_id") == execution_id), fields)
        except OSError:
            pass
        names = (
            "units",
            "failure",
            "cost",
            "host",
            "site",
            "attempt",
            "notes",
            "stopped",
            "distrusted",
            "repairs",
        )
        return {name: fields.get(name) for name in names}

    # -- jobs ------------------------------------------------------------------------------------

    def jobs(self, caller: Caller) -> list[dict[str, Any]]:
        """Jobs of the schedulers that the sites of the workspace have had, the newest first, as their ledgers say.

        Returns:
            `site`, `scheduler`, `job_id`, `nodes`, `state`, and Unix times in seconds: `submitted_at`,
            `started_at`, `ended_at`.
        """
        self.gate.require(caller, "read")
        found = []
        for site in dict.fromkeys((*self.rules.sites, self.rules.default_site, *self._desk_sites())):
            for path in self.folder.ledgers(site):
                found += [
                    {
                        "site": site,
                        "scheduler": entry.scheduler,
                        "job_id": entry.job_id,
                        "nodes": (entry.about or {}).get("nodes"),
                        "submitted_at": entry.submitted_at,
                        "started_at": entry.started_at,
                        "ended_at": entry.ended_at,
                        "state": entry.ended or "waiting or running",
                    }
                    for entry in read_ledger(path)
                ]
        return sorted(found, key=lambda one: -float(one["submitted_at"] or 0.0))[:MOST_JOBS]

    def _desk_sites(self) -> list[str]:
        with self._turn:
            return list(dict.fromkeys(row.site for row in self.rows.values()))


def _line(row: Row) -> dict[str, Any]:
    """A run or campaign as a line of what has changed."""
    cost = (row.result or {}).get("cost") or {}
    more = {"label": row.label, "wall_s": cost.get("wall_s"), "node_hours": row.settled}
    return row.brief() | more | {"campaign_runs": row.request.get("runs")}


def _totals(table: CampaignTable, *, going: bool) -> dict[str, Any]:
    rows = table.rows.values()
    states = Counter(row["state"] or ("running" if going else "waiting") for row in rows)
    return {
        "planned": len(table.rows),
        "done": sum(1 for row in rows if row["state"]),
        "by_state": dict(states),
        "failures": dict(Counter(row["failure"] for row in rows if row["failure"])),
        "node_hours": sum(row["node_hours"] or 0.0 for row in rows),
        "stopped": table.stopped,
    }
