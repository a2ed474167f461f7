"""What estimates learn from: how long the runs of a workspace have taken, of which app, on which site, whose."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

from hpcagent.catalog import app_names
from hpcagent.gate.gate import Gate
from hpcagent.gate.rules import Caller
from hpcagent.workspace.rows import Row, ran
from hpcagent.workspace.took import AppVersion, Took, by_label, lengths_of

__all__ = ["Experience"]


class Experience:
    """Runs that have ended, for estimates.

    Args:
        gate: Who sees what.
        turn: Of the workspace: one thread at a time adds or asks.

    Attributes:
        is_offered: Whether code that the library does not bring is there for everybody by its name.
    """

    def __init__(self, gate: Gate, turn: threading.Condition) -> None:
        self._gate, self._turn = gate, turn
        self.is_offered: Callable[[AppVersion], bool] = lambda of: False
        self._took: dict[AppVersion, Took] = {}  # on all sites
        self._took_at: dict[tuple[str, AppVersion], Took] = {}  # on a site
        self._share_of_node: dict[tuple[str, AppVersion], float] = {}
        self._has_run: set[tuple[str, AppVersion]] = set()  # who what

    def ended(self, row: Row) -> None:
        """Take in a run that has ended."""
        of = ran(row)
        self._has_run.add((row.owner, of))
        if row.shares or not row.result:
            return
        took = self._took.setdefault(of, Took())
        if row.state != "completed":
            took.failed += 1
            return
        cost, expected_s = row.result["cost"], float(row.request.get("expected_s") or 0.0)
        for one in (took, self._at(row.site, of)):
            one.add(expected_s, float(cost["wall_s"]), row.manifest.get("params"))
        self._share_of_node[row.site, of] = _share(cost, row.request.get("nodes", 1))

    def learn(self, row: Row, taught: Mapping[str, Any]) -> bool:
        """Take in the wall times of a campaign's runs; False: their record is damaged, and left out as a whole."""
        try:
            results, failed = int(taught["results"]), int(taught["failed"])
            times = [(float(wall_s), dict(params)) for wall_s, params in taught["times"]]
            if not all(0 < wall_s < math.inf for wall_s, _ in times):
                raise ValueError
            of = ran(row, taught)
        except (KeyError, TypeError, ValueError, OverflowError):
            return False
        row.taught = results
        self._has_run.add((row.owner, of))
        everywhere = self._took.setdefault(of, Took())
        everywhere.failed += failed
        for wall_s, params in times:
            for one in (everywhere, self._at(row.site, of)):
                one.add(None, wall_s, params)
        return True

    def _at(self, site: str, of: AppVersion) -> Took:
        return self._took_at.setdefault((site, of), Took())

    def share_of_node(self, site: str, of: AppVersion) -> float:
        """The share of its nodes that an app's last run on a site was charged for; 1 where it had none."""
        return self._share_of_node.get((site, of), 1.0)

    def expected(
        self,
        of: AppVersion,
        site: str,
        params: Mapping[str, Any],
        contract_s: float,
        *,
        stated: bool = True,
        caller: Caller | None = None,
    ) -> tuple[float, str]:
        """What a run takes on a site, in seconds of wall time, and what that is from.

        An estimate of the contract that nobody has `stated` does not go before runs that are known. What earlier
        runs' parameters were is told only to a caller who sees everybody's runs.
        """
        with self._turn:
            took = self._took_at.get((site, of))
            if took is None:
                elsewhere = self._took.get(of)
                runs = elsewhere.runs if elsewhere is not None else 0
                why = f"none of its {runs} runs here was on {site}" if runs else self._of_others(of, caller)
                return contract_s, "the contract's estimate" + (f": {why}" if why else "")
            said = caller is not None and self._gate.sees_all(caller)
            return took.expected(
                params, contract_s=contract_s, stated=stated, lengths=lengths_of(params), ranges_said=said
            )

    def _of_others(self, of: AppVersion, caller: Caller | None) -> str:
        """Of which other versions an app's runs here were; empty: there are none that the caller knows of."""
        if caller is None:
            return ""
        others = {
            one: took.runs
            for one, took in self._took.items()
            if one.app == of.app and bool(one.code) == bool(of.code) and took.runs and self._knows(caller, one)
        }
        if not others:
            return ""
        runs, versions = sum(others.values()), sorted({one.version for one in others})
        its = f"its {runs} runs here were" if runs > 1 else "its 1 run here was"
        if of.version in versions:
            return f"{its} of other code"
        known = ", ".join(version or "one that is not known" for version in versions)
        return f"{its} of version{'s' if len(versions) > 1 else ''} {known}"

    def _knows(self, caller: Caller, of: AppVersion) -> bool:
        """Whether a caller may know of runs of an app: they have run it, or it is there for them to be used."""
        if self._gate.sees_all(caller) or (caller.name, of) in self._has_run:
            return True
        name = f"own:{of.app}" if of.code else of.app
        return self._gate.may_use(caller, "apps", name) and (not of.code or self.is_offered(of))

    def accuracy(self, caller: Caller) -> dict[str, dict[str, Any]]:
        """Estimated against actual, by app, of those that the caller may know of."""
        with self._turn:
            known = {of: took for of, took in self._took.items() if self._knows(caller, of)}
            return {label: took.accuracy() for label, took in by_label(known, app_names()).items()}


def _share(cost: Mapping[str, Any], nodes: int) -> float:
    """The share of its nodes that a run was charged for."""
    whole = nodes * cost["wall_s"] / 3600
    return min(1.0, cost["node_hours"] / whole) if whole > 0 else 1.0
