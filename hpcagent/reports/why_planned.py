"""Why a run was asked for that no policy suggested: by the campaign itself, or by somebody."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpcagent.campaign.history import History
from hpcagent.campaign.numbers import number
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.state import State
from hpcagent.model.parameter import Params
from hpcagent.model.records import Manifest, Observation
from hpcagent.reports.outcome import Outcome
from hpcagent.statistics.recommend import Estimate, estimates
from hpcagent.statistics.surest import contenders as found_contenders

__all__ = ["planned"]


def planned(campaign: Campaign, before: State, state: State, manifest: Manifest, seen: Outcome) -> dict[str, Any]:
    """Fields of the explanation; `before` is the state in which the run was planned, `state` that of now."""
    if manifest.role == "reference":
        return {"purpose": "reference", "why": _why_reference(campaign, seen)}
    if manifest.role == "repeat":
        return {"purpose": "repeat", "why": _why_repeat(state, manifest)}
    if manifest.role == "extended":
        why = f"somebody asked that run {manifest.extends} goes on, to {manifest.times:g} times an ordinary run."
        return {"purpose": "extended", "why": why}
    if manifest.role == "enqueued":
        return {"purpose": "enqueued", "why": "somebody chose this point; the policy did not suggest it."}
    if manifest.role == "told":
        why = f"its result was told, not run here ({manifest.origin}); nobody suggested the point."
        return {"purpose": "told", "why": why}
    if manifest.role != "replicate":
        return {"purpose": manifest.role, "why": f"it was asked for as a {manifest.role} run."}
    return _confirmation(campaign, before, manifest, seen)


def _why_reference(campaign: Campaign, seen: Outcome) -> str:
    text = "the reference point is run in every batch, to see how the machine's speed changes."
    comparison, result = seen.comparison, seen.result
    if comparison is None or not comparison.scale or result is None or not result.ok:
        return text
    factor = comparison.of(result.manifest.batch, result.site)
    return (
        f"{text} Here {comparison.metric} was {100 * (1 / factor - 1):+.1f} % off its median over "
        f"{len(comparison.scale)} batches, {number(comparison.value)}."
    )


def _why_repeat(state: State, manifest: Manifest) -> str:
    for other in (m for m in state.manifests if m.index < manifest.index):
        result = state.results.get(other.execution_id)
        if other.params == manifest.params and result is not None and result.distrusted is not None:
            return (
                f"run {other.index} again, because its measured times should not be believed: {result.distrusted}"
            )
    return "a run whose measured times should not be believed, once more."


def _confirmation(campaign: Campaign, before: State, manifest: Manifest, seen: Outcome) -> dict[str, Any]:
    """A contender run again at the end, or the baseline beside it."""
    then = History.now(campaign, before)
    confirm, history, known = campaign.confirming, then.contending(), len(then.results)
    found = [] if confirm is None else _contenders(campaign, history, confirm.top, confirm.replicates)
    params = [campaign.complete(point) for point, _ in found]
    about: dict[str, Any] = {"purpose": "confirmation"}
    if manifest.params not in params:
        return about | {"why": _why_baseline(campaign, manifest, params)}
    place = params.index(manifest.params)
    estimate = found[place][1]
    if estimate is None:
        return about | {
            "why": f"the contender no. {place + 1} of {len(found)} after {known} results, not run before: "
            "of all points that surely keep the limits the best one, as the models have it."
        }
    noise = campaign.noise
    expected = []
    for metric in campaign.objective.metrics:
        if metric in estimate.metrics:
            mean, error = estimate.metrics[metric], estimate.uncertainty.get(metric)
            one_run = abs(mean) * noise.get(metric, 0.0) if error is None else error * math.sqrt(estimate.runs)
            if error is None and metric in estimate.expected:
                # Nothing but the models knows of the noise.
                mean, error = estimate.expected[metric], estimate.expected_error[metric]
            expected.append(seen.beside(metric, mean, error or 0.0, noise=one_run))
    return about | {
        "why": f"run again to confirm: the contender no. {place + 1} of {len(found)} after {known} "
        f"results; it had {estimate.runs} run(s) there.",
        "source": "runs",
        "expected": tuple(expected),
        "probability_feasible": estimate.probability_feasible if campaign.objective.constraints else None,
    }


def _contenders(
    campaign: Campaign, history: Sequence[Observation], k: int, replicates: int
) -> list[tuple[Params, Estimate | None]]:
    """The contenders, each with what was known of it; None of one that had not been run."""
    space, noise = campaign.smoothed, campaign.noise
    found = found_contenders(
        history,
        campaign.objective,
        k,
        space=space,
        noise=noise,
        replicates=max(1, replicates),
        held=campaign.last_level,
    )
    every = estimates(history, campaign.objective, space=space, noise=noise)
    known = {tuple(e.params.items()): e for e in every}
    return [(point, known.get(tuple(point.items()))) for point in found]


def _why_baseline(campaign: Campaign, manifest: Manifest, contenders: Sequence[Params]) -> str:
    confirm = campaign.confirm
    if confirm is not None and confirm.baseline:
        for i, params in enumerate(contenders):
            if campaign.complete({**params, **confirm.baseline}) == manifest.params:
                changed = ", ".join(f"{k} = {v}" for k, v in confirm.baseline.items())
                return f"the baseline: the contender no. {i + 1} with {changed}, to see what the change is worth."
    return (
        "a contender run again to confirm it. From what the journal says was known then, it is not one of the "
        "contenders now: the library's version differs, or the journal was changed."
    )
