"""How far a campaign is: read from its journal in a moment, without the models that its answer takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.campaign.budget import costs
from hpcagent.campaign.compare import estimated
from hpcagent.campaign.counts import (
    best_single,
    extended_words,
    guarded_text,
    mode_words,
    run_counts,
    sandbox_words,
    told_note,
    told_words,
)
from hpcagent.campaign.launch_costs import overhead_words
from hpcagent.campaign.numbers import point_text, with_error
from hpcagent.campaign.recorded import Snapshot, snapshot
from hpcagent.campaign.repairing import repaired_note
from hpcagent.campaign.standing import Standing, standing
from hpcagent.campaign.sweep_runs import PlannedRuns, ranges_text
from hpcagent.campaign.where import going_on
from hpcagent.model.failures import RunStates, state_counts
from hpcagent.model.records import Result

__all__ = ["Status", "best_run", "status_of"]


@dataclass(frozen=True, slots=True)
class Status:
    """How far a campaign is, and who is at it.

    Attributes:
        name: The campaign's.
        question: Its objective, in words.
        run_dir: Its folder.
        counts: State -> how many of the planned runs are in it, without what was told; see
            `model.failures.RUN_STATES`.
        failures: State (`failed`, `given up`) -> name of a failure -> runs.
        budget: Runs that it ends with, or None where that is open.
        node_hours: Node-hours that the runs had, without the idle part of jobs.
        overhead: What launches that runs share took beside them, in words; empty where there is nothing.
        cost: Estimated against actual node-hours, in words; empty before three runs.
        reason: Why it stopped, and which runs were given up; None while it goes on, or was interrupted.
        best_run: The best single run that kept the limits, or None. It is not the answer: of noisy runs the best
            one was lucky.
        best_text: That run in words; empty where there is none.
        standing: Who is at it, and its jobs.
        goes_on: The command that goes on with it; empty where nobody needs to.
        notes: What else is worth reading: of the record, and of the machine, in sentences without a full stop.
        sweep: Whether it has no objective, and so no best run.
        told: How many results were told, not run here, and by whom, in words; empty without any.
        limited: Whether its objective has limits.
        guarded: What its guard has stopped and saved, in words; empty where it has stopped nothing.
    """

    name: str
    question: str
    run_dir: Path
    counts: Mapping[RunStates, int]
    failures: Mapping[RunStates, Mapping[str, int]]
    budget: int | None
    node_hours: float
    cost: str
    reason: str | None
    best_run: Result | None
    best_text: str
    standing: Standing
    goes_on: str = ""
    notes: tuple[str, ...] = ()
    sweep: bool = False
    told: str = ""
    limited: bool = False
    guarded: str = ""
    overhead: str = ""

    @property
    def runs(self) -> int:
        """How many runs were planned so far; what was told is none."""
        return sum(self.counts.values())

    @property
    def attended(self) -> bool:
        """Whether a coordinator is at it."""
        return self.standing.attended

    @property
    def _without_best(self) -> str:
        completed = self.counts.get("completed", 0)
        if not completed and not self.told:
            return "no run has completed"
        if not self.limited:
            return "no completed run has the objective's metrics at full fidelity"
        return "no completed run keeps the limits"

    def data(self) -> dict[str, Any]:
        """As plain data, without the answer."""
        best = self.best_run
        return {
            "name": self.name,
            "runs": self.runs,
            "budget": self.budget,
            "completed": self.counts.get("completed", 0),
            "states": dict(self.counts),
            "failures": {state: dict(names) for state, names in self.failures.items()},
            "node_hours": self.node_hours,
            "reason": self.reason,
            "run_dir": str(self.run_dir),
            "told": self.told,
            "guarded": self.guarded,
            "remarks": list(self.notes),
            "best_run": None
            if best is None
            else {
                "index": best.manifest.index,
                "params": best.manifest.params,
                "metrics": best.metrics,
                "uncertainty": best.uncertainty,
            },
        }

    def __str__(self) -> str:
        total = f" of {self.budget}" if self.budget is not None and self.budget > self.runs else ""
        lines = [f"{self.name}: {self.question}" if self.question else self.name]
        lines.append(
            f"{self.runs}{total} runs, {state_counts(self.counts)}, {self.node_hours:.2g} node-hours"
            f"{self.overhead}"
        )
        lines += [self.told] if self.told else []
        for state, found in self.failures.items():
            lines.append(f"{state}: " + ", ".join(f"{n} {name}" for name, n in sorted(found.items())))
        lines += [self.guarded] if self.guarded else []
        lines += [f"cost: {self.cost}"] if self.cost else []
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"stopped: {self.reason}"] if self.reason else []
        if self.best_text:
            lines.append(f"best run: {self.best_text}")
            lines.append(
                f"  as measured; the answer, by the models of all runs: hpcagent status {self.run_dir} --answer"
            )
        elif self.sweep:
            lines.append(f"all points with their errors: hpcagent status {self.run_dir} --answer")
        else:
            lines.append(self._without_best)
        lines.append(str(self.standing))
        lines += [f"not finished; it goes on with {self.goes_on}"] if self.goes_on else []
        return "\n".join(lines)


def status_of(run_dir: str | Path, read: Snapshot | None = None) -> Status:
    """Say how far a campaign is and who is at it; reads the journal once and fits nothing.

    Args:
        run_dir: The campaign's folder.
        read: A reading of it, where there is one already.

    Raises:
        BadInput: The folder is not that of a campaign.

    Example:
        >>> import tempfile
        >>> from hpcagent.runs.run import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=folder)
        ...     found = status_of(folder)
        >>> found.runs, found.attended, found.best_run is not None
        (36, False, True)
    """
    read = snapshot(run_dir) if read is None else read
    campaign, state = read.campaign, read.state
    now = standing(run_dir)
    states = state.states(attended=read.attended)
    failures: dict[RunStates, Counter[str]] = {}
    for identity, called in states.items():
        result = state.results.get(identity)
        if called in ("failed", "given up") and result is not None and result.failure is not None:
            failures.setdefault(called, Counter())[result.failure.name] += 1
    best = best_run(read)
    crowded = (f"a session began on a busy machine ({text} measured then may be too low" for text in state.busy)
    return Status(
        name=campaign.name,
        question=f"sweep of {ranges_text(campaign)}" if campaign.sweep else campaign.question,
        run_dir=read.folder.root,
        counts=run_counts(read.results, states),
        failures={called: dict(names) for called, names in failures.items()},
        budget=PlannedRuns(campaign).count(state.manifests),
        node_hours=state.node_hours,
        cost=costs(read.results) or "",
        reason=None if read.reason is None else state.why_stopped(read.reason),
        best_run=best,
        best_text="" if best is None else _in_words(read, best),
        standing=now,
        goes_on="" if read.reason is not None or now.attended else going_on(campaign, run_dir),
        notes=(
            *filter(
                None,
                (
                    mode_words(campaign),
                    sandbox_words(campaign),
                    extended_words(read.results),
                    repaired_note(read.results),
                ),
            ),
            *crowded,
            *read.remarks,
        ),
        sweep=campaign.sweep,
        told=told_words(read.results),
        limited=bool(campaign.objective.constraints),
        guarded=guarded_text(read.results, state.node_hours),
        overhead=overhead_words(state.overhead, state.node_hours),
    )


def best_run(read: Snapshot) -> Result | None:
    """The best single result of a folder that kept the limits; see `counts.best_single`."""
    return best_single(read.campaign, read.results)


def _in_words(read: Snapshot, best: Result) -> str:
    campaign = read.campaign
    units = {m.name: m.unit for m in campaign.app.contract.metrics} | best.units
    places = {p.name: p.unit for p in campaign.app.contract.space.parameters}
    point = {name: best.manifest.params[name] for name in campaign.search.names if name in best.manifest.params}
    said = [f"run {best.manifest.index}{told_note(best)}: {point_text(point, places)}"]
    guessed = estimated(campaign, best)
    for name in campaign.shown:
        value, error, how = best.metrics.get(name), best.uncertainty.get(name), ""
        if name in guessed:
            value, error, how = guessed[name], None, " (estimated from CPU time)"
        if value is not None:
            unit = "" if units.get(name, "1") == "1" else f" {units[name]}"
            said.append(f"{name} = {with_error(value, error)}{unit}{how}")
    return "; ".join(said)
