"""The runs of a campaign as its journal tells them, read once and line by line: a table that grows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcagent.campaign.record import Campaign
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Parameter
from hpcagent.store.growing_lines import GrowingLines
from hpcagent.store.journal import event_in
from hpcagent.workspace.changed import Changed

__all__ = ["CampaignTable", "about_campaign", "columns_of"]

PLAIN = ("index", "id", "state", "role", "batch", "failure", "keeps", "wall_s", "node_hours", "ended_at")
_UNFIT = (KeyError, TypeError, ValueError, AttributeError)


def about_campaign(campaign: Campaign) -> dict[str, Any]:
    """What is asked: parameters and metrics with units, goals, limits, and which metrics tables show.

    Args:
        campaign: The campaign.
    """
    contract, objective = campaign.app.contract, campaign.objective
    units = {m.name: m.unit for m in contract.metrics}
    varied = [_parameter(p) for p in campaign.search.parameters]
    return {
        "name": campaign.name,
        "app": campaign.app.name,
        "policy": campaign.policy.name,
        "question": campaign.question,
        "parameters": varied,
        "fixed_units": {p.name: p.unit for p in contract.space.parameters},
        "metrics": [{"name": m.name, "unit": m.unit, "description": m.description} for m in contract.metrics],
        "shown": list(campaign.shown),
        "goals": [{"metric": g.metric, "direction": g.direction, "sign": g.sign} for g in objective.goals],
        "limits": [{"metric": c.metric, "text": c.text(units.get(c.metric, "1"))} for c in objective.constraints],
    }


def _parameter(p: Parameter) -> dict[str, Any]:
    return {
        "name": p.name,
        "kind": p.kind,
        "unit": p.unit,
        "low": p.low,
        "high": p.high,
        "log": p.log,
        "choices": list(p.choices),
    }


class _Lines(GrowingLines):
    """The lines of a journal; `anew` where another one lies there since."""

    anew = False

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self.anew = True


class CampaignTable:
    """A campaign's runs, one row each.

    Args:
        folder: The campaign's.
        objective: Says which runs keep the limits; without it that is not known.
    """

    def __init__(self, folder: Path, objective: Objective | None = None) -> None:
        self._objective = objective
        self.changed = Changed()
        self.rows: dict[str, dict[str, Any]] = {}
        self.stopped: str | None = None
        self._journal = _Lines(folder, "events.jsonl")

    def look(self) -> None:
        """Take in what was written since the last look; a line that is damaged is left out."""
        while text := self._journal.new():
            if self._journal.anew:
                self._journal.anew = False
                self.changed, self.rows, self.stopped = Changed(), {}, None
            for line in text.splitlines():
                event = event_in(line)
                take = _KINDS.get(str((event or {}).get("event")))
                if event is not None and take is not None:
                    take(self, event)

    def since(self, n: int, most: int) -> tuple[list[dict[str, Any]], int, bool]:
        """Rows that have changed after number `n`, the number to go on from, and whether there are more."""
        found = self.changed.since(n)
        taken = found[:most]
        upto = taken[-1][1] if len(found) > most else self.changed.n
        return [self.rows[identity] for identity, _ in taken], upto, len(found) > most

    def _manifests(self, event: Mapping[str, Any]) -> None:
        for fields in _several(event.get("manifests")):
            self._one(self._manifest, fields)

    def _results(self, event: Mapping[str, Any]) -> None:
        for fields in _several(event.get("results")):
            self._one(self._result, fields)

    def _told(self, event: Mapping[str, Any]) -> None:
        self._one(self._manifest, event.get("manifest"))
        self._one(self._result, event.get("result"))

    def _session(self, event: Mapping[str, Any]) -> None:
        self.stopped = None

    def _stop(self, event: Mapping[str, Any]) -> None:
        self.stopped = str(event.get("reason", ""))

    @staticmethod
    def _one(take: Callable[[Any], None], fields: Any) -> None:
        try:
            take(fields)
        except _UNFIT:
            return  # the campaign's own remarks tell of damage

    def _manifest(self, fields: Mapping[str, Any]) -> None:
        identity = str(fields["execution_id"])
        row = {
            "index": int(fields["index"]),
            "id": identity,
            "state": "",
            "role": str(fields["role"]),
            "batch": int(fields["batch"]),
            "failure": None,
            "keeps": None,
            "wall_s": None,
            "node_hours": None,
            "ended_at": None,
            "params": dict(fields["params"]),
            "metrics": {},
            "uncertainty": {},
        }
        if identity not in self.rows:
            self.rows[identity] = row
            self.changed.touch(identity)

    def _result(self, fields: Mapping[str, Any]) -> None:
        row = self.rows[str(fields["execution_id"])]
        # What was told has cost nothing here.
        cost, failure = fields.get("cost") or {}, fields.get("failure") or {}
        state, metrics = str(fields["status"]).lower(), _numbers(fields.get("metrics"))
        row |= {
            "state": state,
            "keeps": self._keeps(metrics) if state == "completed" else None,
            "failure": failure.get("name"),
            "wall_s": _number(cost.get("wall_s")),
            "node_hours": _number(cost.get("node_hours")),
            "ended_at": _number(fields.get("ended_at")),
            "metrics": metrics,
            "uncertainty": _numbers(fields.get("uncertainty")),
        }
        self.changed.touch(row["id"])

    def _keeps(self, metrics: Mapping[str, float]) -> bool | None:
        objective = self._objective
        if objective is None or any(c.metric not in metrics for c in objective.constraints):
            return None
        return objective.feasible(metrics)


_KINDS: Mapping[str, Callable[[CampaignTable, Mapping[str, Any]], None]] = {
    "manifests": CampaignTable._manifests,
    "rebuilt": CampaignTable._manifests,
    "results": CampaignTable._results,
    "told": CampaignTable._told,
    "session": CampaignTable._session,
    "stop": CampaignTable._stop,
}


def columns_of(rows: Iterable[Mapping[str, Any]], *, going: bool) -> dict[str, Any]:
    """Rows as columns: half the size, and what a plot needs.

    Args:
        rows: Of a `CampaignTable`.
        going: Whether the campaign goes on: what has no result then runs, or waits for its turn.

    Returns:
        A list for each name; `params`, `metrics` and `uncertainty` are tables of lists, None where a row has none.
    """
    rows = list(rows)
    found: dict[str, Any] = {name: [row[name] for row in rows] for name in PLAIN}
    found["state"] = [state or ("running" if going else "waiting") for state in found["state"]]
    for table in ("params", "metrics", "uncertainty"):
        names = dict.fromkeys(name for row in rows for name in row[table])
        found[table] = {name: [row[table].get(name) for row in rows] for name in names}
    return found


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def _numbers(values: Any) -> dict[str, float]:
    found = {name: _number(value) for name, value in (values or {}).items()}
    return {name: value for name, value in found.items() if value is not None}
