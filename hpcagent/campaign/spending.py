"""What a campaign in progress spends: the runs in flight, what may still begin, and the end at the cap."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpcagent.apps.run_records import Begun
from hpcagent.campaign.budget import Budget, Outlook
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.runtimes import Load
from hpcagent.campaign.state import State
from hpcagent.model.parameter import Params
from hpcagent.model.records import Cost, Manifest, Role

__all__ = ["Spending"]

LOOK_EVERY_S = 1.0
"""The directories of runs in flight are looked at no more often: there may be thousands."""


TRUSTED = 5
"""Runs that must be known before a forecast decides, in place of the contract, which block a run is put into."""


class Spending:
    """The budget of a campaign, with the runs that are in flight now.

    Args:
        campaign: Whose.
        state: What is known.
        work: Folder of the runs: a run has begun when the workers' records say so, or its directory has a
            `manifest.json`.
        node_cores: Cores of a node of the site, if known.
        expected_s: As of `Budget`.
        workers: Runs that go at the same time.
        clock: Unix time, in seconds.

    Attributes:
        refusal: Why the last plan could not begin, with the numbers, or None.
        planned_out: Why there were no more runs before the confirmation, if it was the cap.
        reached: Why the runs in flight were ended, or None.
        unbooked: Node-hours of launches that neither a run nor the journal has, from those of the runs in flight.
    """

    def __init__(
        self,
        campaign: Campaign,
        state: State,
        work: Path,
        *,
        node_cores: int | None = None,
        expected_s: float | None = None,
        workers: int = 1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.refusal: str | None = None
        self.planned_out: str | None = None
        self.reached: str | None = None
        self.unbooked: Callable[[Mapping[str, float]], float] = lambda taken: 0.0
        self._campaign, self._state, self._work, self._clock = campaign, state, work, clock
        self._budget = Budget(campaign, node_cores=node_cores, expected_s=expected_s)
        self._workers = max(1, workers)
        self._running: Mapping[str, Manifest] = {}
        self._sent: dict[tuple[str, int], float] = {}
        self._began: dict[tuple[str, int], float] = {}
        self._looked = 0.0
        self._on_record = Begun(work)
        self._outlook: tuple[float, int, Outlook] | None = None
        self._reserve: tuple[int, list[Params]] = (-1, [])

    @property
    def cap(self) -> float | None:
        """Node-hours that must not be exceeded, or None."""
        return self._budget.cap

    # -- what is in flight --------------------------------------------------------------------

    def look(self, running: Mapping[str, Manifest]) -> None:
        """Note which runs are in flight, and, from time to time, which of them have begun."""
        self._running = running
        now = self._clock()
        if now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        keys = {(i, self._state.retried.get(i, 1)) for i in running}
        for known in (self._sent, self._began):
            for key in [key for key in known if key not in keys]:
                del known[key]
        for key in keys:
            self._sent.setdefault(key, now)
        self._on_record.look()
        for key in keys - self._began.keys():
            if (began := self._on_record.at(*key)) is not None:
                self._began[key] = began
        # Those that wait for a worker come last; not all of thousands are looked at.
        waiting = (i for i in running if (i, self._state.retried.get(i, 1)) not in self._began)
        for identity in itertools.islice(waiting, 2 * self._workers):
            key = identity, self._state.retried.get(identity, 1)
            try:
                written = (self._work / identity / "manifest.json").stat().st_mtime
            except OSError:
                continue  # it still waits for a worker
            if key[1] == 1 or written >= self._sent[key] - LOOK_EVERY_S:  # not that of the attempt before
                self._began[key] = written

    def _flights(self) -> dict[str, tuple[Manifest, float]]:
        now = self._clock()
        found = {}
        for identity, manifest in self._running.items():
            began = self._began.get((identity, self._state.retried.get(identity, 1)))
            found[identity] = manifest, 0.0 if began is None else max(0.0, now - began)
        return found

    def outlook(self) -> Outlook:
        """What is spent, committed and forecast; worked out anew at most every second."""
        now, rows = self._clock(), len(self._state.rows)
        last = self._outlook
        over = self._state.stopped is not None or self.reached is not None
        if last is None or over or now - last[0] >= LOOK_EVERY_S or (rows != last[1] and not self._running):
            closed = over or self.planned_out is not None
            flights = self._flights()
            unbooked = self._unbooked(flights)
            found = self._budget.outlook(self._state, flights, closed=closed, unbooked=unbooked)
            last = self._outlook = now, rows, found
        return last[2]

    # -- what may begin -----------------------------------------------------------------------

    def most(self, n: int) -> int:
        """How many of `n` runs a policy should be asked for: no more than may begin, but one."""
        if self.cap is None or n <= 1:
            return n
        self._budget.learn(self._state)
        spent, flying = self._spent_and_flying()
        return self._budget.most(n, spent=spent, running=flying, reserve=self._kept())

    def plan(
        self,
        points: Sequence[tuple[Params, Role]],
        *,
        confirm: bool = False,
        known: Mapping[int, float] | None = None,
    ) -> list[int]:
        """Which of these runs may begin, by position; `refusal` says why none, if so.

        Args:
            points: Complete parameters and roles.
            confirm: Whether this is the confirmation, for which a part was kept.
            known: Position -> expected node-hours, of those that are no ordinary runs.
        """
        self.refusal = None
        if self.cap is None or not points:
            return list(range(len(points)))
        if self.reached is not None:
            self.refusal = self.reached
            return []
        self._budget.learn(self._state)
        spent, flying = self._spent_and_flying()
        kept = [] if confirm else self._kept()
        found = self._budget.fitting(points, spent=spent, running=flying, reserve=kept, known=known)
        if not found:
            told = [i for i, (_, role) in enumerate(points) if role != "reference"] or list(range(len(points)))
            dear = {n: known[i] for n, i in enumerate(told) if known and i in known}
            wanted = [points[i][0] for i in told]
            self.refusal = self._budget.refusal(wanted, spent=spent, running=flying, reserve=kept, known=dear)
        if any(role == "suggested" for _, role in points):
            self.planned_out = self.refusal
        return found

    def affordable(self, manifests: Sequence[Manifest]) -> list[Manifest]:
        """Those that may be begun again, of runs that were planned in an earlier session."""
        found = self.plan([(m.params, "repeat") for m in manifests], confirm=True)
        return [manifests[i] for i in found]

    def may_retry(self, manifest: Manifest, node_hours: float) -> bool:
        """Whether a further attempt at a run may begin.

        Args:
            manifest: Of the run, or of an inner run of a chain.
            node_hours: What the attempt took that has failed, which is not recorded yet.
        """
        if self.cap is None:
            return True
        if self.reached is not None:
            return False
        self._budget.learn(self._state)
        spent, flying = self._spent_and_flying(without=manifest.execution_id)
        # What an inner run takes is part of its chain, which is in flight.
        own = self._state.manifest(manifest.execution_id) is not None
        points = [manifest.params] if own else []
        return self._budget.allows(points, spent=spent + node_hours, running=flying, reserve=())

    def estimates(self, points: Sequence[Params]) -> list[dict[str, float]]:
        """What a manifest says of each run's cost: its fields `estimated_*`."""
        self._budget.learn(self._state)
        chain = self._campaign.app.chain
        found = []
        for seconds, hours, high in self._budget.times.estimates(points):
            fields = {"estimated_node_hours": _short(hours), "estimated_node_hours_high": _short(high)}
            # A chain's own time is not that of its runs, which is what is known.
            if not chain and self._budget.times.known >= TRUSTED:
                fields["estimated_runtime_s"] = _short(seconds)
            found.append(fields)
        return found

    def _spent_and_flying(self, *, without: str = "") -> tuple[float, Load]:
        there = self._flights()
        flights = {i: flight for i, flight in there.items() if i != without}
        return self._budget.spent(self._state) + self._unbooked(there), self._budget.committed(flights)

    def _unbooked(self, flights: Mapping[str, tuple[Manifest, float]]) -> float:
        if not self._campaign.app.shares_launches:
            return 0.0
        return self.unbooked({i: self._budget.times.rate(m.resources) * s for i, (m, s) in flights.items()})

    def _kept(self) -> list[Params]:
        """Runs like those of the confirmation: at the best single point so far, or at any."""
        confirm = self._campaign.confirming
        state = self._state
        if confirm is None or (state.confirmed is not None and state.confirmed_cap == self.cap):
            return []
        n = confirm.runs + (self._campaign.reference is not None)
        if self._reserve[0] != len(self._state.rows):
            best = self._best()
            self._reserve = len(self._state.rows), [] if best is None else [best] * n
        typical = self._budget.times.typical()
        return self._reserve[1] or [typical[i % len(typical)] for i in range(n)]

    def _best(self) -> Params | None:
        campaign, objective = self._campaign, self._campaign.objective
        if campaign.sweep:
            return None
        done = (r for r in self._state.results.values() if r.ok and campaign.full(r.manifest.params))
        known = [r for r in done if objective.known(r.metrics) and objective.feasible(r.metrics)]
        best = max(known, key=lambda r: objective.score(r.metrics), default=None)
        return None if best is None else best.manifest.params

    # -- the end at the cap -------------------------------------------------------------------

    def at_the_cap(self) -> dict[str, Cost]:
        """What each run in flight has taken, if with that the cap is reached; otherwise nothing.

        The forecast makes this rare. It is what makes the cap a hard one.
        """
        if self.cap is None or self.reached is not None or not self._running:
            return {}
        costs: dict[str, Cost] = {}
        flights = self._flights()
        for identity, (manifest, elapsed_s) in flights.items():
            rate = 0.0 if self._campaign.app.chain else self._budget.times.rate(manifest.resources)
            core_hours = manifest.resources.cores * elapsed_s / 3600
            costs[identity] = Cost(wall_s=elapsed_s, core_hours=core_hours, node_hours=rate * elapsed_s)
        flying = sum(cost.node_hours for cost in costs.values())
        spent = self._budget.spent(self._state) + self._unbooked(flights)
        if spent + flying < self.cap:
            return {}
        self.reached = (
            f"the cap of {self.cap:g} node-hours is reached: {spent:.4g} were spent, and {len(costs)} run(s) in "
            f"flight had taken {flying:.3g}; they took longer than forecast, and were ended."
        )
        return costs


def _short(value: float) -> float:
    return float(f"{value:.4g}")
