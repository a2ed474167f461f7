"""What a campaign found out, as a record and as text."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcagent.campaign.agreeing import agreeing, as_measured
from hpcagent.campaign.best import Best, Speedup
from hpcagent.campaign.compare import (
    Comparison,
    Estimation,
    estimated_at,
)
from hpcagent.campaign.earlier import WarmStart
from hpcagent.campaign.history import History
from hpcagent.campaign.numbers import number, point_text, with_error
from hpcagent.campaign.on_sites import on_several
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.recorded import Snapshot, snapshot
from hpcagent.campaign.result import CampaignResult, varied_of
from hpcagent.campaign.state import State
from hpcagent.campaign.sweep import sweep_answer
from hpcagent.model.objective import pareto_front
from hpcagent.model.records import Observation, Result
from hpcagent.statistics.points import Key, key
from hpcagent.statistics.recommend import Estimate, Recommendation, estimates, recommend
from hpcagent.store.rundir import RunDir

__all__ = [
    "answer",
    "answer_of",
    "number",
    "point_text",
    "read_run",
    "with_error",
]


def answer(
    campaign: Campaign,
    results: Sequence[Result],
    *,
    run_dir: Path,
    reason: str | None = None,
    wall_s: float = 0.0,
    state: State | None = None,
    warm: WarmStart | None = None,
    attended: bool = False,
) -> CampaignResult:
    """Work out what the results say; `state` knows of repeated attempts, inner runs and events too.

    `attended` says whether a coordinator is at it: runs without a result are then running, otherwise waiting.
    """
    warm = state.warm if state is not None else warm
    plain: dict[str, Any] = {
        "reason": reason if reason is None or state is None else state.why_stopped(reason),
        "run_dir": run_dir,
        "node_hours": sum(r.cost.node_hours for r in results) if state is None else state.node_hours,
        "overhead_node_hours": 0.0 if state is None else state.overhead,
        "events": () if state is None else tuple(state.alerts),
        "inner": {} if state is None else _inner(state),
        "wall_s": wall_s,
        "warm": warm,
        "busy": () if state is None else tuple(state.busy),
        "remarks": (
            *(() if state is None else Snapshot(RunDir(run_dir), campaign, state, attended).remarks),
            *on_several(campaign, results),
        ),
        "states": {} if state is None else state.states(attended=attended),
    }
    if campaign.sweep:
        return sweep_answer(campaign, results, plain)
    history = History(campaign, results, warm)
    comparison = history.comparison
    if comparison is not None and comparison.sites:
        plain["remarks"] = (*plain["remarks"], comparison.site_text())
    seen = history.answering()
    ran = {key(o.params) for o in history.own if o.completed and campaign.full(o.params)}
    noise = campaign.noise
    found = _well_known(recommend(seen, campaign.objective, space=campaign.smoothed, noise=noise), ran)
    same = agreeing(campaign, results)
    if found is not None:
        found = found.model_copy(update={"best": as_measured(found.best, same)})
    # A metric may have the name of a parameter: asked by that name, the unit is the metric's.
    units = parameter_units(campaign) | {m.name: m.unit for m in campaign.app.contract.metrics}
    for result in results:
        units |= result.units
    guessed = estimated_at(campaign, results)
    front: tuple[Result, ...] = ()
    if len(campaign.objective.goals) > 1:
        completed = [r for r in results if r.ok]
        front = tuple(completed[i] for i in pareto_front(campaign.objective, [r.metrics for r in completed]))
    return CampaignResult(
        campaign=campaign,
        results=tuple(results),
        best=None if found is None else _best(campaign, found, units, seen, comparison, guessed),
        speedups=()
        if found is None or not found.feasible
        else _speedups(campaign, found, seen, guessed, comparison),
        comparison=comparison,
        front=front,
        points=tuple(as_measured(e, same) for e in _ranked(campaign, seen, noise)),
        **plain,
    )


def read_run(run_dir: str | Path) -> CampaignResult:
    """Read a run directory without touching it, also while its campaign runs.

    Raises:
        BadInput: The folder is not that of a campaign.
    """
    return answer_of(snapshot(run_dir))


def answer_of(read: Snapshot) -> CampaignResult:
    """What the results of a folder say, as it was read."""
    return answer(
        read.campaign,
        read.results,
        run_dir=read.folder.root,
        reason=read.reason,
        wall_s=read.state.elapsed_s,
        state=read.state,
        attended=read.attended,
    )


def _inner(state: State) -> dict[str, tuple[int, int]]:
    counts: dict[str, tuple[int, int]] = {}
    for identity, result in state.part_results.items():
        ran, shared = counts.get(result.manifest.app, (0, 0))
        found = identity in state.shared_parts
        counts[result.manifest.app] = (ran + (not found), shared + found)
    return counts


def _ranked(campaign: Campaign, seen: Sequence[Observation], noise: dict[str, float]) -> tuple[Estimate, ...]:
    def rank(e: Estimate) -> tuple[bool, float]:
        keeps = e.probability_feasible >= 0.9 and campaign.objective.feasible(e.metrics)
        return (keeps, e.score if keeps else e.probability_feasible)

    known = estimates(seen, campaign.objective, space=campaign.smoothed, noise=noise)
    return tuple(sorted(known, key=rank, reverse=True))


def _well_known(found: Recommendation | None, ran: Collection[Key]) -> Recommendation | None:
    """Of points that cannot be told apart, take one that this campaign has run, and more than once."""
    if found is None or not found.feasible:
        return found
    best = max(found.alike, key=lambda e: (key(e.params) in ran, e.runs > 1))
    others = tuple(e for e in (found.best, *found.ties) if e is not best)
    return found.model_copy(update={"best": best, "ties": others})


def parameter_units(campaign: Campaign) -> dict[str, str]:
    """Unit of each parameter of the app."""
    return {p.name: p.unit for p in campaign.app.contract.space.parameters}


def _best(
    campaign: Campaign,
    found: Recommendation,
    units: dict[str, str],
    seen: Sequence[Observation],
    comparison: Comparison | None,
    guessed: Collection[Key],
) -> Best:
    point = key(found.params)
    estimates: tuple[str, ...] = ()
    if key(campaign.complete(found.params)) in guessed:
        contract = campaign.app.contract
        estimates = tuple(m for m in campaign.objective.metrics if contract.metric(m).undisturbed is not None)
    earlier = [o for o in seen if o.role == "earlier" and o.completed and campaign.objective.known(o.metrics)]
    return Best(
        params=varied_of(campaign, found.params),
        metrics=dict(found.metrics),
        uncertainty=_absolute(
            found.metrics, found.uncertainty, comparison, estimates=estimates, runs=found.best.runs
        ),
        units=units,
        point_units=parameter_units(campaign),
        feasible=found.feasible,
        probability_feasible=found.probability_feasible,
        runs=found.best.runs,
        ties=tuple(varied_of(campaign, tie.params) for tie in found.ties),
        shown=tuple(name for name in campaign.shown if name in found.metrics),
        exact=campaign.exact,
        expected=dict(found.best.expected),
        expected_error=_absolute(found.best.expected, found.best.expected_error, comparison, estimates=estimates),
        estimated=estimates,
        earlier=sum(key(o.params) == point for o in earlier),
        told=sum(key(o.params) == point and bool(o.origin) and o.completed for o in seen),
        surer="" if found.surer is None else _surer(campaign, found, found.surer, units),
    )


def _absolute(
    values: Mapping[str, float],
    errors: Mapping[str, float],
    comparison: Comparison | None,
    *,
    estimates: Collection[str],
    runs: int | None = None,
) -> dict[str, float]:
    """Errors that hold how the machine's speed changes, which ratios to the reference do not.

    Where a speed was not measured (`estimates`), also what all estimates have in common, once: each of `runs`
    pooled runs states it already, but it does not average out.
    """
    found = dict(errors)
    for metric in values:
        compared = comparison is not None and comparison.metric == metric
        weather = comparison.weather if comparison is not None and compared else 0.0
        bias = 0.0
        if metric in estimates:
            bias = comparison.estimation.bias if comparison is not None and compared else Estimation().bias
        if not (weather or bias):
            continue
        stated = found.get(metric, 0.0)
        if runs and bias:
            stated = math.sqrt(max(0.0, stated**2 - (bias * values[metric]) ** 2 / runs))
        found[metric] = math.hypot(stated, math.hypot(weather, bias) * values[metric])
    return found


def _surer(campaign: Campaign, found: Recommendation, surer: Estimate, units: dict[str, str]) -> str:
    goal = campaign.objective.goal.metric
    value = surer.expected.get(goal, surer.metrics[goal])
    unit = "" if units.get(goal, "1") == "1" else f" {units[goal]}"
    point = point_text(varied_of(campaign, surer.params), parameter_units(campaign))
    return (
        f"less sure than the {found.confidence:.2f} asked for, and so much better that it is worth the risk; the "
        f"best that is as sure: {point}, {goal} = {number(value)}"
        f"{unit}, P(feasible) = {surer.probability_feasible:.2f}"
    )


def _speedups(
    campaign: Campaign,
    found: Recommendation,
    seen: Sequence[Observation],
    unmeasured: Collection[Key],
    comparison: Comparison | None,
) -> tuple[Speedup, ...]:
    known = {key(e.params): e for e in estimates(seen, campaign.objective)}
    units = {p.name: p.unit for p in campaign.search.parameters}
    speedups = []
    estimation = Estimation() if comparison is None else comparison.estimation
    if campaign.confirm is not None and campaign.confirm.baseline:
        changed = ", ".join(f"{k}={v}" for k, v in campaign.confirm.baseline.items())
        # The best point as recommended, or the fastest that the baseline was run beside. Whether that one kept
        # the limits does not matter: both have the same accuracy, and it is named.
        for better in [found.best, *sorted(known.values(), key=lambda e: -e.score)]:
            other = known.get(key({**better.params, **campaign.confirm.baseline}))
            if other is not None and other.params != better.params:
                where = (
                    "" if better is found.best else f", at {point_text(varied_of(campaign, better.params), units)}"
                )
                over = f"the same with {changed} (same accuracy{where})"
                speedups += _ratio(campaign, better, other, over, unmeasured, estimation, same_accuracy=True)
                break
    if campaign.reference is not None:
        reference = campaign.complete(campaign.reference.params)
        other = known.get(key(reference))
        if other is not None and reference != found.params:
            over = f"the reference ({point_text(varied_of(campaign, reference), units)})"
            speedups += _ratio(campaign, found.best, other, over, unmeasured, estimation, same_accuracy=False)
    return tuple(speedups)


def _ratio(
    campaign: Campaign,
    better: Estimate,
    other: Estimate,
    over: str,
    unmeasured: Collection[Key],
    estimation: Estimation,
    *,
    same_accuracy: bool,
) -> list[Speedup]:
    goal = campaign.objective.goal
    if goal.metric not in other.metrics or goal.metric not in better.metrics:
        return []
    top, bottom = better.metrics[goal.metric], other.metrics[goal.metric]
    if top <= 0 or bottom <= 0:
        return []
    factor = (top / bottom) ** goal.sign
    sides = {"the first": better, "the second": other}
    can_be = campaign.app.contract.metric(goal.metric).undisturbed is not None
    guessed = [side for side, e in sides.items() if can_be and key(campaign.complete(e.params)) in unmeasured]
    # It does not cancel in a ratio of two estimates either: 24 and 10 % too low made 9.1 times of 7.4.
    bias = estimation.bias if guessed else 0.0
    error = factor * math.hypot(
        better.uncertainty.get(goal.metric, 0.0) / top, other.uncertainty.get(goal.metric, 0.0) / bottom, bias
    )
    estimated = f" ({' and '.join(guessed)} estimated from CPU time, not measured)" if guessed else ""
    return [
        Speedup(
            over=over,
            params=other.params,
            factor=factor,
            error=error,
            same_accuracy=same_accuracy,
            estimated=estimated,
        )
    ]
