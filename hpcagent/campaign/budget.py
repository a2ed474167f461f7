"""Node-hours as a hard cap: what is spent, committed and forecast, and which runs may still begin.

A run may begin if, with what is spent, the runs in flight and what is kept for the confirmation, the cap is broken
with a probability of at most `RISK` by the forecast (never, where a walltime bounds every run).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcagent.campaign.record import Campaign
from hpcagent.campaign.runtimes import Load, RunTimes
from hpcagent.campaign.state import State
from hpcagent.campaign.sweep_runs import PlannedRuns
from hpcagent.errors import BadInput
from hpcagent.model.parameter import Params
from hpcagent.model.records import Manifest, Result, Role

__all__ = ["Budget", "Outlook", "costs", "refuse_no_first_run", "refuse_small_cap"]

RISK = 0.001
"""Probability, by the forecast, with which a plan may break the cap."""
EARLY_RISK, EARLY = 0.02, 10
"""That of a plan while fewer runs are known: their spread is then mostly that of not knowing, which goes away by
running. Before the first there is only the contract's estimate, which may be wrong by any factor."""
ALIKE = 1.05
"""Within this factor a spread is said in per cent: 'a factor of 1' would say nothing."""
UNKNOWABLE = 5.0
"""Where a tenth of the runs differ by more than this factor from what was typical, the factor helps nobody."""
RESERVE_RISK = 0.05
"""Probability with which a plan may leave too little for the whole confirmation, which then has fewer runs."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Node-hours of a campaign as they stand.

    Attributes:
        spent: By attempts that have ended. One whose worker did not live to tell counts as an expected run.
        committed: By the runs in flight, as expected: what they have had and what they will need.
        forecast: At the end of the campaign, as expected; None where its number of runs is open.
        high: At the end with a probability of 95 % less than this, or None.
        cap: The hard cap, or None.
    """

    spent: float
    committed: float = 0.0
    forecast: float | None = None
    high: float | None = None
    cap: float | None = None

    def __str__(self) -> str:
        words = [f"{self.spent:.2g} node-hours spent"]
        if self.committed > 0:
            words.append(f"{self.committed:.2g} in flight")
        if self.forecast is not None and self.high is not None:
            most = f" (95 %: below {self.high:.2g})" if self.high > 1.02 * self.forecast else ""
            words.append(f"about {self.forecast:.2g} at the end{most}")
        if self.cap is not None:
            words.append(f"cap {self.cap:g}")
        return ", ".join(words)


class Budget:
    """What a campaign may still spend.

    Args:
        campaign: Whose.
        node_cores: Cores of a node of the site, if known.
        expected_s: What a run is expected to take until one has ended, in seconds; None: as the contract says.

    Attributes:
        cap: Node-hours that must not be exceeded, or None.
        times: The model of its runs.
    """

    def __init__(
        self, campaign: Campaign, *, node_cores: int | None = None, expected_s: float | None = None
    ) -> None:
        self.campaign = campaign
        self.cap = campaign.until.cap()
        self._planned = PlannedRuns(campaign)
        self.times = RunTimes(campaign, node_cores=node_cores, expected_s=expected_s)
        self._seen = 0
        self._chain_spent: dict[str, float] = {}
        self._parts_seen = 0

    def learn(self, state: State) -> None:
        """Take in what has ended since."""
        new = state.rows[self._seen :]
        self._seen = len(state.rows)
        self.times.learn(new)
        for identity, part in itertools.islice(state.part_results.items(), self._parts_seen, None):
            self._parts_seen += 1
            chain = state.parts.get(identity)
            if chain is not None and identity not in state.shared_parts:
                self._chain_spent[chain] = self._chain_spent.get(chain, 0.0) + part.cost.node_hours

    def spent(self, state: State) -> float:
        """Node-hours of all attempts that have ended, and of launches beside their runs.

        Where the worker did not live to tell what an attempt took, it counts as an expected run.
        """
        unknown = [(state.manifest(identity), n) for identity, n in state.attempts_of_unknown_cost.items()]
        lost = [(manifest.params, n) for manifest, n in unknown if manifest is not None]
        presumed = self.times.loads([params for params, _ in lost])
        return (
            state.node_hours
            + state.overhead
            + sum(n * load.expected for (_, n), load in zip(lost, presumed, strict=True))
        )

    def committed(self, running: Mapping[str, tuple[Manifest, float]]) -> Load:
        """What the runs in flight will have taken, less what is counted as spent already.

        Args:
            running: Execution id -> manifest, and seconds since it began.
        """
        chain = self.campaign.app.chain
        # What goes on from another run tells nothing of how long ordinary ones take.
        flights = [flight for flight in running.values() if not flight[0].extends]
        longer = [flight for flight in running.values() if flight[0].extends]
        total = Load.none()
        for (manifest, seconds), load in zip(longer, self.times.loads([m.params for m, _ in longer]), strict=True):
            taken = seconds * self.times.rate(manifest.resources)
            total += load.expecting(manifest.estimated_node_hours or load.expected, taken=taken)
        elapsed = [0.0 if chain else seconds for _, seconds in flights]
        for (manifest, _), load in zip(
            flights, self.times.loads([m.params for m, _ in flights], elapsed), strict=True
        ):
            paid = self._chain_spent.get(manifest.execution_id, 0.0) if chain else 0.0
            total += load.less(paid) if paid else load
        return total

    def fitting(
        self,
        points: Sequence[tuple[Params, Role]],
        *,
        spent: float,
        running: Load,
        reserve: Sequence[Params] = (),
        known: Mapping[int, float] | None = None,
    ) -> list[int]:
        """Which of the points may begin, by position: as many as fit under the cap, the first ones first.

        References come before all others, and do not go alone. Where the first suggestion is too dear, the
        cheaper ones are tried.

        Args:
            points: Complete parameters and roles.
            spent: Node-hours.
            running: Of the runs in flight.
            reserve: Runs that have to be possible afterwards.
            known: Position -> expected node-hours, of those that are no ordinary runs.
        """
        if self.cap is None:
            return list(range(len(points)))
        room = self.cap - spent
        loads = self.times.loads([params for params, _ in points])
        for i, node_hours in (known or {}).items():
            loads[i] = loads[i].expecting(node_hours)
        kept = self.reserved(reserve)
        order = sorted(range(len(points)), key=lambda i: points[i][1] != "reference")
        first = sum(role == "reference" for _, role in points)
        found = self._longest(running, kept, [loads[i] for i in order], room)
        if found <= first < len(points):
            order[first:] = sorted(order[first:], key=lambda i: loads[i].expected)
            found = self._longest(running, kept, [loads[i] for i in order], room)
            if found <= first:
                return self._pilot(points, loads, spent=spent, running=running)
        return sorted(order[:found])

    def most(self, n: int, *, spent: float, running: Load, reserve: Sequence[Params] = ()) -> int:
        """How many of `n` runs like the latest ones may begin: what a policy is asked for. At least one."""
        if self.cap is None or n <= 1:
            return n
        typical = self.times.loads(self.times.typical())
        cycle = list(itertools.islice(itertools.cycle(typical), n))
        return max(1, self._longest(running, self.reserved(reserve), cycle, self.cap - spent))

    def room(self, n: int, state: State) -> int:
        """How many of `n` runs like the latest ones may begin under the cap; none where it leaves no room.

        Args:
            n: Runs that are to come.
            state: What is on record; nothing is in flight.
        """
        self.learn(state)
        if self.cap is None or not self.times.known or n <= 0:
            return n
        typical = self.times.loads(self.times.typical())
        cycle = list(itertools.islice(itertools.cycle(typical), n))
        return self._longest(Load.none(), Load.none(), cycle, self.cap - self.spent(state))

    def reserved(self, points: Sequence[Params]) -> Load:
        """What is kept for the confirmation: at most half of the cap, or nothing would be left to confirm."""
        total = Load.none()
        for load in self.times.loads(points):
            if self.cap is not None and (total + load).expected > self.cap / 2:
                break
            total += load
        return total

    def allows(self, points: Sequence[Params], *, spent: float, running: Load, reserve: Sequence[Params]) -> bool:
        """Whether further attempts at these points may begin."""
        if self.cap is None:
            return True
        loads = self.times.loads(points)
        return self._longest(running, self.reserved(reserve), loads, self.cap - spent) == len(points)

    def _longest(self, running: Load, reserve: Load, loads: Sequence[Load], room: float) -> int:
        """How many of the loads, in their order, fit into the room beside what is there already."""
        # With runs in flight, more will be known soon without starting any.
        risk = EARLY_RISK if 0 < self.times.known < EARLY and not running.mean.any() else RISK
        sums = list(itertools.accumulate(loads, initial=running))

        def fits(n: int) -> bool:
            total = sums[n]
            if total.most <= room and (total + reserve).most <= room:
                return True
            safe = total.within(room) >= 1 - risk and total.expected + total.worst <= room
            return safe and (total + reserve).within(room) >= 1 - RESERVE_RISK

        if not fits(0):
            return 0
        low, high = 0, len(loads)
        while low < high:
            middle = (low + high + 1) // 2
            if fits(middle):
                low = middle
            else:
                high = middle - 1
        return low

    def _pilot(
        self, points: Sequence[tuple[Params, Role]], loads: Sequence[Load], *, spent: float, running: Load
    ) -> list[int]:
        """The cheapest run by itself, where nothing has run and nothing is spent: it tells what others take."""
        assert self.cap is not None
        suggested = [i for i, (_, role) in enumerate(points) if role != "reference"]
        if self.times.known or spent > 0 or running.mean.any() or not suggested:
            return []
        one = min(suggested, key=lambda i: loads[i].expected)
        return [one] if loads[one].expected <= self.cap else []

    def refusal(
        self,
        points: Sequence[Params],
        *,
        spent: float,
        running: Load,
        reserve: Sequence[Params],
        known: Mapping[int, float] | None = None,
    ) -> str:
        """Why none of these runs may begin, with the numbers."""
        assert self.cap is not None
        loads = self.times.loads(points)
        for i, node_hours in (known or {}).items():
            loads[i] = loads[i].expecting(node_hours)
        one = min(loads, key=lambda load: load.expected)
        kept = self.reserved(reserve).quantile(0.95)
        words = f"the cap of {self.cap:g} node-hours leaves no room for another run: {spent:.4g} are spent"
        flying = running.quantile(0.95)
        if flying > 0:
            words += f", up to {flying:.2g} are in flight"
        if kept > 0:
            words += f", up to {kept:.2g} are kept for the confirmation"
        left = max(0.0, self.cap - spent - flying - kept)
        return (
            f"{words}, which leaves {left:.3g}; a run is forecast to take {one.expected:.2g}, and at most "
            f"{one.quantile(1 - RISK):.2g} with a probability of {100 * (1 - RISK):g} %."
        )

    def outlook(
        self,
        state: State,
        running: Mapping[str, tuple[Manifest, float]],
        *,
        closed: bool = False,
        unbooked: float = 0.0,
    ) -> Outlook:
        """What is spent, committed and forecast now.

        Args:
            closed: Whether no more runs are to come.
            unbooked: Node-hours of launches that neither a run nor the journal has.
        """
        self.learn(state)
        spent, flying = self.spent(state) + unbooked, self.committed(running)
        committed = flying.expected
        budget = self._planned.count(state.manifests)
        # What the cheap runs of a screening took says nothing of the dear ones to come.
        if budget is None or self.campaign.fidelity is not None:
            return Outlook(spent, committed, cap=self.cap)
        # Runs in flight, and those that have ended: the rest is not planned, or is to be run again.
        left = 0 if closed else max(0, budget - len(state.results) - len(running))
        typical = self.times.loads(self.times.typical())
        share = left / max(1, len(typical))
        rest = Load(
            sum((load.mean for load in typical), Load.none().mean) * share,
            sum((load.variance + load.mean**2 for load in typical), Load.none().mean) * share,
            sum(load.most for load in typical) * share if share else 0.0,
        )
        total = flying + rest
        forecast, high = spent + total.expected, spent + total.quantile(0.95)
        if self.cap is not None:
            forecast, high = min(forecast, max(self.cap, spent)), min(high, max(self.cap, spent))
        return Outlook(spent, committed, forecast, max(forecast, high), self.cap)


def refuse_small_cap(campaign: Campaign, *, node_cores: int | None, expected_s: float | None = None) -> None:
    """Refuse a cap that does not allow a single run; arguments as `Budget`.

    Raises:
        BadInput: With the numbers: a run at its walltime, or as the contract expects it, is above the cap.
    """
    budget = Budget(campaign, node_cores=node_cores, expected_s=expected_s)
    if budget.cap is None or (node_cores is None and campaign.largest.nodes == 1):
        return  # without a cap, or without knowing what share of a node is charged
    worst = [hours for p in budget.times.typical() if (hours := budget.times.worst(p)) is not None]
    if worst and min(worst) > budget.cap:
        raise BadInput(
            f"until.node_hours = {budget.cap:g} does not allow one run: at its walltime it takes {min(worst):.3g} "
            "node-hours. Raise the cap, or lower the run's walltime_s.",
            value=budget.cap,
        )
    guess = min(hours for _, hours, _ in budget.times.estimates(budget.times.typical()))
    if not worst and guess > budget.cap:
        contract = campaign.app.contract
        what, do = f"{contract.estimated_runtime_s:g} s (estimated_runtime_s)", ", or correct the estimate"
        if expected_s is not None:
            what, do = f"{expected_s:.3g} s", ""
        raise BadInput(
            f"until.node_hours = {budget.cap:g} does not allow one run: {campaign.app.name} expects "
            f"{what}, which is {guess:.3g} node-hours. Raise the cap{do}.",
            value=budget.cap,
        )


def refuse_no_first_run(campaign: Campaign, *, node_cores: int | None, expected_s: float | None = None) -> None:
    """Refuse a cap under which a campaign would end before its first run; arguments as `Budget`.

    Raises:
        BadInput: With the numbers.
    """
    refuse_small_cap(campaign, node_cores=node_cores, expected_s=expected_s)
    budget = Budget(campaign, node_cores=node_cores, expected_s=expected_s)
    if budget.cap is None or campaign.app.contract.resources_from:
        return  # points of another size than those few may have room
    points = budget.times.typical()
    if not budget.fitting([(p, "suggested") for p in points], spent=0.0, running=Load.none()):
        why = budget.refusal(points, spent=0.0, running=Load.none(), reserve=())
        raise BadInput(f"No run could begin: {why} Raise until.node_hours.", value=budget.cap)


def costs(results: Sequence[Result]) -> str | None:
    """Estimated against actual node-hours in a sentence; None before three runs with an estimate have ended.

    Example:
        >>> costs([]) is None
        True
    """
    asked = [(r.manifest.batch, r.manifest.estimated_node_hours, r.cost.node_hours) for r in results]
    known = [(batch, e, a) for batch, e, a in asked if e is not None and e > 0 and a > 0]
    if len(known) < 3:
        return None
    estimated, actual = sum(e for _, e, _ in known), sum(a for _, _, a in known)
    words = f"estimated {estimated:.3g}, actual {actual:.3g} node-hours of {len(known)} run(s)"
    # The first batch is forecast from the contract alone, which says nothing of the forecasts from runs.
    first = min(batch for batch, _, _ in known)
    logs = sorted(math.log(a / e) for batch, e, a in known if batch > first)
    if len(logs) < 3:
        return words
    middle = _quantile(logs, 0.5)
    width = _quantile(sorted(abs(x - middle) for x in logs), 0.9)
    ratio, spread = math.exp(middle), math.exp(width)
    if spread > UNKNOWABLE:
        return f"{words} (too different from run to run for forecasts of single runs)"
    took = f"{words} (after the first batch a run took {ratio:.2f} times its forecast in the median"
    if spread < ALIKE:
        return f"{took}, and 90 % of the runs within {100 * (ALIKE - 1):.0f} % of that)"
    return f"{took}, and 90 % of the runs within a factor of {spread:.2g} of that)"


def _quantile(values: Sequence[float], p: float) -> float:
    at = p * (len(values) - 1)
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (at - low) * (values[high] - values[low])
