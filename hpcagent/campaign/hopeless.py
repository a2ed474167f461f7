"""Whether it makes no sense to go on: runs fail in a way that no parameter would change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcagent.apps.base import App
from hpcagent.apps.hooks import LAMMPS
from hpcagent.campaign.record import Campaign
from hpcagent.errors import BadInput
from hpcagent.model.records import Result
from hpcagent.science.lammps.thermo import lacking, remedy

__all__ = ["failed_alike", "never_given", "refuse_unprinted"]

MISSING = "MissingMetric"


def refuse_unprinted(campaign: Campaign) -> None:
    """Refuse an objective of a LAMMPS script whose thermo output has no column for it.

    Where the script does not say what it prints (files that it includes, variables), nothing is refused.

    Raises:
        BadInput: Which metrics, and what to put into the script.
    """
    app = campaign.app
    if app.function != LAMMPS:
        return
    found = lacking(app.settings, campaign.objective.metrics)
    if found:
        words = " and ".join(f"{metric!r} (column {' and '.join(needs)})" for metric, needs in found.items())
        raise BadInput(
            f"objective: no run of {app.source or app.name} would have {words}: its thermo output does not print "
            f"that, so every run would fail. {remedy(app.settings, found)}",
            value=next(iter(found)),
        )


def never_given(campaign: Campaign, ended: Iterable[Result]) -> str | None:
    """Why no point can have the objective: two runs ended without one of its metrics, and no run ever gave it.

    Args:
        campaign: The campaign.
        ended: All its runs that have a result.
    """
    ended = list(ended)
    for metric in campaign.objective.metrics:
        if any(metric in r.metrics for r in ended):
            continue
        without = [r.failure for r in ended if _lacks(r, metric)]
        if len(without) < 2 or without[-1] is None:
            continue
        return (
            f"{len(without)} runs ended without the metric {metric!r} of the objective, and none has ever given "
            f"it; no parameter would change that: {without[-1].message}{_to_do(campaign.app, metric)}"
        )
    return None


def _lacks(result: Result, metric: str) -> bool:
    failure = result.failure
    return failure is not None and failure.name == MISSING and repr(metric) in failure.message


def _to_do(app: App, metric: str) -> str:
    said = remedy(app.settings, [metric]) if app.function == LAMMPS else ""
    return f" {said or f'Correct {app.source or app.name}, or ask for another metric.'}"


def failed_alike(last: Sequence[Result], ended: Sequence[Result], size: int) -> str | None:
    """Why to give up: all runs of a batch failed alike, in a way that no parameter would change.

    Runs that the guard has ended early tell nothing of what becomes of a run at its end. So where a contract fails
    they are passed over, and the runs that ended by themselves before them count as well.

    Args:
        last: The runs of the last batch.
        ended: All runs, in the order in which they ended or were planned.
        size: Runs of a batch.
    """
    counted, least = [r for r in last if r.status != "STOPPED"], min(2, size)
    stopped = len(last) - len(counted)
    if stopped:
        if any(r.failure is None or r.failure.kind != "contract" for r in counted):
            return None  # of a machine that fails, runs that went so far tell that it works
        seen = {r.manifest.execution_id for r in counted}
        own = (r for r in reversed(ended) if r.status != "STOPPED" and r.manifest.execution_id not in seen)
        counted += [r for r, _ in zip(own, range(least - len(counted)), strict=False)] if counted else []
    failures = [r.failure for r in counted]
    if not failures or len(failures) < least or len({(f.kind, f.name) if f else None for f in failures}) != 1:
        return None
    first = failures[0]
    if first is None or not first.means.hopeless:
        return None
    ended_so = "failed" if first.means.final else "were given up"
    which = f"all {len(failures)} runs of the last batch"
    if stopped:
        which = f"the last {len(failures)} runs that the guard has not stopped early"
    return f"{which} {ended_so} alike, and no parameter would change that: {first.name}: {first.message}"
