"""The answer of a campaign as a record: the best point, its runs, what it is compared with."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.campaign.best import Best, Speedup
from hpcagent.campaign.budget import costs
from hpcagent.campaign.compare import Comparison, Estimation, estimated, estimated_at
from hpcagent.campaign.counts import best_single, extended_words, guarded_text, run_counts, told_note, told_words
from hpcagent.campaign.earlier import WarmStart
from hpcagent.campaign.edges import at_edges
from hpcagent.campaign.history import History
from hpcagent.campaign.launch_costs import overhead_words
from hpcagent.campaign.numbers import number, point_text, with_error
from hpcagent.campaign.record import Campaign, about
from hpcagent.campaign.repairing import repaired_note, repaired_there
from hpcagent.campaign.table import Table, headed
from hpcagent.html import Card, Displayed, Rows
from hpcagent.model.failures import RunStates, state_counts
from hpcagent.model.parameter import Params
from hpcagent.model.records import Result
from hpcagent.public import public
from hpcagent.sites.ledger import ELSEWHERE, Entry, read_ledger
from hpcagent.statistics.missed import Missed, missed, undecided
from hpcagent.statistics.points import key
from hpcagent.statistics.ranking import Agreement, agreements
from hpcagent.statistics.recommend import ASKED_CONFIDENCE, Estimate
from hpcagent.store.columns import Column, columns_of
from hpcagent.store.frames import to_pandas, to_xarray
from hpcagent.store.rundir import RunDir

if TYPE_CHECKING:
    import pandas
    import xarray

    from hpcagent.reports.report import Written

__all__ = ["MOST_RIVALS", "CampaignResult", "event_text", "inner_text"]


MOST_RIVALS = 8
"""Rows of the table at the end of a campaign."""


_NOT_COMPLETED: tuple[RunStates, ...] = ("failed", "given up")


@dataclass(frozen=True, repr=False)
class CampaignResult(Displayed):
    """A campaign as it stands, finished or not.

    Attributes:
        campaign: What was asked.
        results: Every result, in manifest order.
        reason: Why it stopped, and which runs were given up; None while it goes on, or was interrupted.
        best: The point to use, or None where no run completed.
        speedups: The best point against the reference and the baseline.
        comparison: How the reference point did.
        run_dir: The campaign's folder.
        front: With several goals: the results on the Pareto front.
        node_hours: Node-hours that the runs had, without the idle part of jobs.
        overhead_node_hours: Of launches that runs share, beside those of the runs: their start, and waiting ranks.
        wall_s: Wall time of the coordinator, in seconds.
        points: What is known of every point: those that keep the limits first, best first.
        events: What the campaign's rules told of: `rule`, `execution_id` and `data` of each.
        inner: App -> how many inner runs of it the chains took: run for this campaign, and found in the cache.
        warm: What it began with: runs of earlier campaigns, or None.
        busy: Of each session that began on a busy machine, how busy, and which speeds that concerns.
        remarks: What could not be read of the record, and what was put back, in sentences without a full stop.
        states: Execution id -> state of every planned run; see `model.failures.RUN_STATES`.
    """

    campaign: Campaign
    results: tuple[Result, ...]
    reason: str | None
    run_dir: Path
    best: Best | None = None
    speedups: tuple[Speedup, ...] = ()
    comparison: Comparison | None = None
    front: tuple[Result, ...] = ()
    node_hours: float = 0.0
    overhead_node_hours: float = 0.0
    wall_s: float = 0.0
    points: tuple[Estimate, ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()
    inner: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    warm: WarmStart | None = None
    busy: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    states: Mapping[str, RunStates] = field(default_factory=dict)

    def table(self, n: int | None = 8) -> Table:
        """The `n` best points: parameters, metrics ± standard error, P(feasible), runs.

        The objective's metrics are what the models of all runs expect, where there are any; others are means.
        """
        campaign, metrics = self.campaign, self.campaign.shown
        units = {m.name: m.unit for m in campaign.app.contract.metrics}
        header = [headed(p.name, p.unit) for p in campaign.search.parameters]
        header += [headed(m, units[m]) for m in metrics] + ["P(feasible)", "runs"]
        rows = []
        for e in self.points[:n]:
            cells = [number(e.params[name]) if name in e.params else "-" for name in campaign.search.names]
            for m in metrics:
                if m in e.expected:
                    cells.append(with_error(e.expected[m], e.expected_error[m]))
                else:
                    cells.append(with_error(e.metrics[m], e.uncertainty.get(m)) if m in e.metrics else "-")
            rows.append([*cells, f"{e.probability_feasible:.2f}", str(e.runs)])
        source = ", as the models of all runs have them" if any(e.expected for e in self.points[:n]) else ""
        compared = self.comparison
        if compared is not None and compared.weather and compared.metric in metrics:
            source += f" (errors beside each other; of absolute {compared.metric} ± {compared.weather:.0%} more"
            guessed = estimated_at(campaign, self.results)
            if any(key(campaign.complete(e.params)) in guessed for e in self.points[:n]):
                source += f", of those estimated from CPU time ± {compared.estimation.bias:.0%} more"
            source += ")"
        return Table(f"best points of {campaign.name}{source}", header, rows)

    @property
    def rivals(self) -> int:
        """How many of the best points are within five standard errors of the first, three at least."""
        if not self.points:
            return 0
        first = self.points[0]
        near = itertools.takewhile(
            lambda e: first.score - e.score <= 5 * math.hypot(first.score_error, e.score_error), self.points
        )
        return min(max(sum(1 for _ in near), 3), MOST_RIVALS)

    def to_pandas(self) -> pandas.DataFrame:
        """Every result as a row of a DataFrame: the columns of `hpcagent export`, units in `attrs["units"]`.

        Raises:
            BadInput: pandas is not installed (extra `pandas`).
        """
        return to_pandas(self.columns, about(self.campaign))

    def to_xarray(self) -> xarray.Dataset:
        """Every result along the dimension `index`, as `metrics.h5` opens in xarray.

        Raises:
            BadInput: xarray is not installed (extra `xarray`).
        """
        return to_xarray(self.columns, about(self.campaign))

    @property
    def columns(self) -> tuple[Column, ...]:
        """The table of all results, which CSV, Parquet, pandas and xarray are made from."""
        return columns_of(self.results, self.campaign.app.contract)

    def report(self, *, plots: bool = True) -> Written:
        """Write `report/report.md` in the campaign's folder, with plots: the answer, tables, what models say.

        Args:
            plots: Draw the plots as well (needs the extra `plots`).

        Returns:
            Where it is: `path`, and `plots`.

        Raises:
            StoreFull: The report cannot be written.
        """
        written: Written = public("report")(self.run_dir, plots=plots)
        return written

    def _card(self) -> Card:
        # Without what fits models (`missed_text`): a cell that ends in `result` answers at once.
        counts, best = self.counts, self.best
        runs = f"{sum(counts.values())} runs, {state_counts(counts)}"
        facts: list[tuple[str, object]] = [
            ("question", self.campaign.objective),
            ("runs", f"{runs}; {self.charged}"),
        ]
        facts += [(state, self._failures_text(state)) for state in _NOT_COMPLETED]
        facts += [
            ("stopped", self.reason or "not finished"),
            ("notes", "\n".join((*self.disturbed, *self.remarks))),
        ]
        if best is None:
            said = "" if self.campaign.sweep else "no run has completed with the objective's metrics"
            facts.append(("answer", said))
        else:
            goal = self.campaign.objective.goal.metric
            label = "best" if best.feasible else "most probable"
            said = f"{label}: {point_text(best.params, best.point_units)}, {goal} = {best.expected_text(goal)}"
            facts += [(label, point_text(best.params, best.point_units)), *best._card().facts]
            facts += [("at an edge", "\n".join(self.edges))]
            facts += [("compared", "\n".join(map(str, self.speedups)))]
        table = self.table()
        tables = [Rows(table.title, table.header, table.rows)] if table.rows else []
        facts.append(("everything is in", self.run_dir))
        folded = [(f"all {len(self.results)} runs", self._all_rows())]
        return Card(type(self).__name__, self.campaign.name, facts, tables, folded, brief=f"{runs}; {said}")

    def _all_rows(self) -> Rows:
        campaign = self.campaign
        units = {m.name: m.unit for m in campaign.app.contract.metrics}
        header = ["run", *(headed(p.name, p.unit) for p in campaign.search.parameters)]
        header += [*(headed(m, units[m]) for m in campaign.shown), "state"]
        rows = []
        for r in self.results:
            params, state = r.manifest.params, self.state(r)
            cells = [
                str(r.manifest.index),
                *(number(params[n]) if n in params else "" for n in campaign.search.names),
            ]
            cells += [number(r.metrics[m]) if m in r.metrics else "-" for m in campaign.shown]
            rows.append([*cells, state if r.failure is None else f"{state}: {r.failure.name}"])
        return Rows("", header, rows)

    @property
    def failures(self) -> dict[str, int]:
        """Name of a failure -> how many runs ended with it, failed or given up."""
        return dict(Counter(r.failure.name for r in self.results if r.failure is not None))

    def state(self, result: Result) -> RunStates:
        """What became of a run; one that was given up may be running again."""
        return self.states.get(result.manifest.execution_id, result.state)

    @property
    def counts(self) -> dict[RunStates, int]:
        """State -> how many runs are in it; what was told is no run."""
        return run_counts(self.results, self.states)

    @property
    def told_text(self) -> str:
        """How many results were told, and where they come from, in words; empty without any."""
        return told_words(self.results)

    @property
    def extended_text(self) -> str:
        """How many runs count as part of one that went on from them, in words; empty without any."""
        return extended_words(self.results)

    @property
    def guarded_text(self) -> str:
        """What the campaign's guard has stopped and saved, in words; empty where it has stopped nothing."""
        return guarded_text(self.results, self.node_hours)

    @property
    def given_up(self) -> tuple[Result, ...]:
        """Results of the runs that were given up: resuming runs them again."""
        return tuple(r for r in self.results if self.state(r) == "given up")

    @property
    def exit_code(self) -> int:
        """Of the command that has run it to its stop.

        0: with an answer; 1: no run completed; 3: no point is feasible; 4: the machine failed runs, which were
        given up and are run again by `resume`.
        """
        if self.best is None:
            return 1
        if any(r.failure is not None and r.failure.means.machine for r in self.given_up):
            return 4
        return 0 if self.best.feasible else 3

    def _failures_text(self, state: RunStates) -> str:
        names = Counter(r.failure.name for r in self.results if r.failure is not None and self.state(r) == state)
        return ", ".join(f"{n} {name}" for name, n in sorted(names.items()))

    @property
    def jobs(self) -> tuple[Entry, ...]:
        """The jobs that were submitted for it, as `jobs.jsonl` has them now; none where there is no scheduler."""
        entries = read_ledger(RunDir(self.run_dir).jobs)
        return tuple(entry for entry in entries if entry.ended not in ("refused", ELSEWHERE))

    @property
    def charged(self) -> str:
        """What the runs and their jobs took, in words."""
        words = f"{self.node_hours:.2g} node-hours{overhead_words(self.overhead_node_hours, self.node_hours)}"
        jobs = self.jobs
        if jobs:
            going = sum(entry.ended is None for entry in jobs)
            words += f" in {len(jobs)} job(s) of {sum(entry.node_hours for entry in jobs):.2g} node-hours"
            words += f" ({going} without an end yet)" if going else ""
            if guessed := sum(entry.estimated for entry in jobs):
                words += f" (estimated: the scheduler did not tell when {guessed} of them ended)"
        return words

    @cached_property
    def missed(self) -> Missed | None:
        """How sure it is that no better point was missed; None with several goals, exact points, or no model."""
        space = self.campaign.smoothed
        if self.best is None or space is None:
            return None
        seen = History(self.campaign, self.results, self.warm).evidence()
        held = self.campaign.last_level
        return missed(
            seen,
            self.campaign.objective,
            self.best.params,
            space=space,
            seed=self.campaign.seed,
            held=held,
            noise=self.campaign.noise,
        )

    @cached_property
    def missed_text(self) -> str:
        """What `missed` says, or why it says nothing: noise not known, or no model; empty with several goals."""
        found, space = self.missed, self.campaign.smoothed
        if found is not None:
            unit = self.campaign.app.contract.metric(found.metric).unit
            return found.text("within the searched range" if self.edges else "", unit)
        if self.best is None or space is None or len(self.campaign.objective.goals) > 1:
            return ""
        seen = History(self.campaign, self.results, self.warm).evidence()
        try:
            unknown = undecided(seen, self.campaign.objective, space=space, noise=self.campaign.noise)
        except ArithmeticError as error:  # no model fits
            return f"whether a better point was missed cannot be said: {error}"
        if not unknown:
            return ""
        names = " and ".join(unknown)
        return (
            f"whether a better point was missed cannot be said: the noise of {names} is not stated and points "
            f"were hardly repeated, so differences of {names} may be noise; run points again, or state the noise "
            "in the contract (0 if there is none)"
        )

    @property
    def edges(self) -> tuple[str, ...]:
        """Where the best point is at an end of a searched range beyond which the app allows more, in sentences."""
        return () if self.best is None else at_edges(self.campaign, self.best.params)

    @property
    def single_text(self) -> str:
        """Why the best single run is not the answer, where it was at another point and better; empty otherwise."""
        objective, best = self.campaign.objective, self.best
        if best is None or not best.feasible or len(objective.goals) != 1 or best.exact:
            return ""
        goal, top = objective.goal, best_single(self.campaign, self.results)
        if top is None or key(varied_of(self.campaign, top.manifest.params)) == key(best.params):
            return ""
        guessed = estimated(self.campaign, top).get(goal.metric)
        value = top.metrics[goal.metric] if guessed is None else guessed
        point = next((e for e in self.points if key(e.params) == key(top.manifest.params)), None)
        answered = goal.score(best.expected.get(goal.metric, best.metrics[goal.metric]))
        if point is None or goal.score(value) <= answered:
            return ""
        unit = "" if (of := self.campaign.app.contract.metric(goal.metric).unit) == "1" else f" {of}"
        if point.probability_feasible < min(best.probability_feasible, ASKED_CONFIDENCE):
            why = f"P(feasible) there is {point.probability_feasible:.2f}, of {ASKED_CONFIDENCE:g} asked for"
        elif key(point.params) in {key(self.campaign.complete(tie)) for tie in best.ties}:
            why = "within the noise the two cannot be told apart, and the answer is the better known one"
        elif goal.metric in point.expected and point.score < answered:
            said = with_error(point.expected[goal.metric], point.expected_error.get(goal.metric))
            why = f"by the models of all runs {said}{unit} is to be expected there"
        else:
            return ""
        had = f"{goal.metric} = {number(value)}{unit}" + ("" if guessed is None else " (estimated from CPU time)")
        which = f"no. {top.manifest.index}{told_note(top)}"
        return f"the best single run, {which}, had {had}; it is not the answer, as {why}"

    @property
    def agreements(self) -> tuple[Agreement, ...]:
        """With a fidelity: how far each level ranks the points as the next one does, and what that leaves open."""
        fidelity = self.campaign.fidelity
        if fidelity is None:
            return ()
        seen = History(self.campaign, self.results, self.warm).evidence()
        return agreements(seen, self.campaign.objective, self.campaign.search, fidelity.model_dump())

    @property
    def distrusted(self) -> int:
        """How many runs did not have their core."""
        return sum(r.distrusted is not None for r in self.results)

    @property
    def disturbed(self) -> list[str]:
        """What disturbed the measured speeds, as lines: a busy machine, runs without their core."""
        lines = [f"a session began on a busy machine ({crowd} measured then may be too low" for crowd in self.busy]
        if not self.distrusted or not self.campaign.timed:
            return lines
        campaign = self.campaign
        twins = {m: campaign.app.contract.metric(m).undisturbed for m in campaign.judged}
        text = f"{self.distrusted} run(s) did not have their core"
        guessed = estimated_at(campaign, self.results)
        for metric, twin in twins.items():
            if twin is not None:
                runs = [r for r in self.results if metric in estimated(campaign, r)]
                used = sum(key(r.manifest.params) in guessed for r in runs)
                text += f"; {metric} of {used} is an estimate from CPU time ({twin})"
                if used < len(runs):
                    text += f", that of {len(runs) - used} is not used, as its point was measured as well"
        goals = [g.metric for g in campaign.objective.goals if twins[g.metric] is None]
        if goals:
            text += f"; their {' and '.join(goals)} is not used where the same was run undisturbed"
        return [*lines, text + self._not_repeated()]

    def _not_repeated(self) -> str:
        """Why runs without their core were not run again, as a clause; empty where they were."""
        if not self.campaign.repeat_distrusted:
            return ""
        if self.campaign.mode == "rolling":
            return "; none was run again: rolling mode repeats none"
        batches: dict[int, list[Result]] = {}
        for result in self.results:
            if result.manifest.role != "repeat":
                batches.setdefault(result.manifest.batch, []).append(result)
        crowded = [  # as `Planner.repeats` decides it
            str(n)
            for n, runs in batches.items()
            if 2 * sum(r.ok and r.distrusted is not None for r in runs) > len(runs)
        ]
        return f"; of batch {', '.join(crowded)} none was run again, as most of it had none" if crowded else ""

    @property
    def about_best(self) -> list[str]:
        """What has to be known of the best point's numbers, as lines; empty without one."""
        best = self.best
        if best is None:
            return []
        lines: list[str] = []
        if self.comparison is not None and self.comparison.weather:
            guessed = self.comparison.metric in best.estimated
            lines.append(self.comparison.weather_text(estimated=guessed))
        elif best.estimated:
            lines.append(
                f"± of {' and '.join(best.estimated)} holds how far estimates from CPU time may be off "
                f"together ({Estimation().bias:.0%})"
            )
        missed = self.missed_text if best.feasible else ""
        lines += [missed, *self.edges, self.single_text, repaired_there(self.results, best.params)]
        lines += map(str, (*self.speedups, *self.agreements))
        return [line for line in lines if line]

    def __str__(self) -> str:
        counts = self.counts
        lines = [f"{self.campaign.name}: {self.campaign.question}"]
        cap = self.campaign.until.cap()
        capped = "" if cap is None else f", cap {cap:g}"
        lines.append(f"{sum(counts.values())} runs, {state_counts(counts)}, {self.charged}{capped}")
        lines += [text for text in (self.told_text, self.extended_text, self.guarded_text) if text]
        lines += [f"{state}: {text}" for state in _NOT_COMPLETED if (text := self._failures_text(state))]
        costed = costs(self.results)
        if costed is not None:
            lines.append(f"cost: {costed}")
        if self.inner:
            lines.append("made of " + inner_text(self.inner))
        if self.warm is not None:
            lines.append(f"begun with {self.warm}")
        lines += self.disturbed
        lines += [said] if (said := repaired_note(self.results)) else []
        lines += [f"note: {remark}" for remark in self.remarks]
        if self.reason:
            lines.append(f"stopped: {self.reason}")
        if self.best is None:
            ended = "no answer: no run completed" if self.reason else "no answer yet: no run has completed"
            lines.append(f"{ended} with the objective's metrics")
        else:
            label = "best" if self.best.feasible else "most probable"
            if self.front:
                label += f" {self.campaign.objective.goal.metric}"
            lines.append(f"{label}: {self.best}")
            lines += [f"  {line}" for line in self.about_best]
        if self.front:
            goals = " and ".join(g.metric for g in self.campaign.objective.goals)
            lines.append(f"front of {goals}: {len(self.front)} runs, in result.front and front.png of the report")
        lines += [event_text(event) for event in self.events]
        lines.append(f"everything is in {self.run_dir}")
        return "\n".join(lines)


def inner_text(inner: Mapping[str, tuple[int, int]]) -> str:
    """Inner runs in words.

    Example:
        >>> inner_text({"dft_energy": (7, 2), "rdf": (1, 0), "msd": (0, 1)})
        '11 inner runs (7 dft_energy and 2 from the cache, 1 msd from the cache, 1 rdf)'
    """
    total = sum(ran + shared for ran, shared in inner.values())
    said = []
    for app, (ran, shared) in sorted(inner.items()):
        more = f"{shared} from the cache" if ran else f"{shared} {app} from the cache"
        said.append(" and ".join([*([f"{ran} {app}"] if ran else []), *([more] if shared else [])]))
    return f"{total} inner runs ({', '.join(said)})"


def event_text(event: Mapping[str, Any]) -> str:
    """What a rule told, as one line.

    Example:
        >>> event_text({"rule": "promising", "data": {"catalyst": "Pt", "adsorption_energy": -1.5}})
        'promising: catalyst = Pt, adsorption_energy = -1.5'
    """
    said = ", ".join(f"{name} = {number(value)}" for name, value in event["data"].items())
    return f"{event['rule']}: {said}"


def varied_of(campaign: Campaign, params: Params) -> Params:
    return {name: params[name] for name in campaign.search.names if name in params}
