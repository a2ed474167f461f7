"""Fair comparison of measured speeds: every batch against the reference point run in it.

Machines change speed while a campaign runs. With s_b the reference's value in batch b and S the median
over all batches, a measured value v of batch b is compared as v * S / s_b.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from hpcagent.campaign.record import Campaign
from hpcagent.model.records import Observation, Result

__all__ = ["Comparison", "compare", "full_fidelity", "measured", "observations", "projected"]

# Relative standard deviation of a speed worked out from CPU time: shared caches and memory remain.
DISTURBED_NOISE = 0.05

# Relative standard deviation of a speed measured once on a quiet machine, where nothing better is known.
QUIET_NOISE = 0.01


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the reference point did.

    Attributes:
        metric: The metric that is compared.
        value: Median of the reference over the batches, in the metric's unit; NaN without one.
        scale: Batch -> factor that its values are multiplied with.
        noise: Relative standard deviation of one compared value.
        spread: Largest over smallest reference value: how much the machine's speed changed.
    """

    metric: str
    value: float = math.nan
    scale: dict[int, float] | None = None
    noise: float = QUIET_NOISE
    spread: float = 1.0

    def of(self, batch: int) -> float:
        """The factor of a batch (that of the nearest batch with a reference)."""
        if not self.scale:
            return 1.0
        nearest = min(self.scale, key=lambda b: (abs(b - batch), b))
        return self.scale[nearest]


def compare(campaign: Campaign, results: Sequence[Result]) -> Comparison | None:
    """Work out the comparison from the reference runs, or None if the campaign has no reference."""
    if campaign.reference is None:
        return None
    metric = campaign.reference.metric or campaign.objective.goal.metric
    values: dict[int, list[float]] = {}
    for result in results:
        value = measured(campaign, result, metric)
        if result.manifest.role == "reference" and value is not None and value > 0:
            values.setdefault(result.manifest.batch, []).append(value)
    if not values:
        return Comparison(metric)
    of_batch = {batch: median(found) for batch, found in values.items()}
    middle = median(of_batch.values())
    return Comparison(
        metric,
        value=middle,
        scale={batch: middle / value for batch, value in of_batch.items()},
        noise=_noise(campaign, of_batch, results, metric),
        spread=max(of_batch.values()) / min(of_batch.values()),
    )


def _noise(campaign: Campaign, of_batch: dict[int, float], results: Sequence[Result], metric: str) -> float:
    """Relative sd of a ratio of two runs of the same batch.

    From repeats of the same parameters after scaling, where there are any; otherwise from what the contract
    states or a quiet machine shows. A ratio has the noise of both runs, hence the factor sqrt(2).
    """
    groups: dict[tuple[tuple[str, float | int | str], ...], list[float]] = {}
    for result in results:
        value = measured(campaign, result, metric)
        base = of_batch.get(result.manifest.batch)
        if result.manifest.role != "reference" and value is not None and value > 0 and base:
            groups.setdefault(tuple(sorted(result.manifest.params.items())), []).append(math.log(value / base))
    stated = campaign.app.contract.metric(metric).noise or QUIET_NOISE
    squares, freedom = 4 * 2 * stated**2, 4.0
    for logs in groups.values():
        if len(logs) > 1:
            mean = sum(logs) / len(logs)
            squares += sum((x - mean) ** 2 for x in logs)
            freedom += len(logs) - 1
    return math.sqrt(squares / freedom)


def measured(campaign: Campaign, result: Result, metric: str) -> float | None:
    """The metric's value, or its estimate from CPU time if the run did not have its core; None without one."""
    if not result.ok:
        return None
    if result.distrusted is None:
        return result.metrics.get(metric)
    substitute = campaign.app.contract.metric(metric).undisturbed
    return None if substitute is None else result.metrics.get(substitute)


def observations(
    campaign: Campaign, results: Sequence[Result], comparison: Comparison | None
) -> list[Observation]:
    """What a policy sees: finished runs with speeds that can be compared, without infrastructure failures."""
    return [
        _compared(campaign, r, comparison)
        for r in results
        if r.failure is None or r.failure.kind in ("simulation", "contract")
    ]


def full_fidelity(campaign: Campaign, seen: Sequence[Observation]) -> list[Observation]:
    """The observations that may be an answer: those at the last level, where the campaign has a fidelity."""
    return [o for o in seen if campaign.full(o.params)]


def _compared(campaign: Campaign, result: Result, comparison: Comparison | None) -> Observation:
    seen = result.observation()
    metric = campaign.objective.goal.metric if comparison is None else comparison.metric
    value = measured(campaign, result, metric)
    if value is None or (comparison is None and not seen.distrusted):
        return seen
    noise = 0.0
    if comparison is not None and comparison.scale:
        value *= comparison.of(seen.batch)
        noise = comparison.noise
    uncertainty = seen.uncertainty
    if seen.distrusted:
        noise = max(noise, DISTURBED_NOISE)
    if noise:
        uncertainty = uncertainty | {metric: noise * abs(value)}
    return replace(seen, metrics=seen.metrics | {metric: value}, uncertainty=uncertainty, distrusted=False)


def projected(campaign: Campaign, seen: Sequence[Observation]) -> list[Observation]:
    """The observations as points of the search space: what a policy may learn from.

    A reference or baseline that differs in a parameter that is not varied is another system; it is left out.
    """
    names = campaign.search.names
    middle = campaign.complete(campaign.search.from_unit([0.5] * len(names)))
    constant = {name: value for name, value in middle.items() if name not in names}
    return [
        replace(o, params={name: o.params[name] for name in names})
        for o in seen
        if all(o.params.get(name) == value for name, value in constant.items())
    ]
