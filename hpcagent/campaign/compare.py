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

__all__ = ["Comparison", "compare", "observations"]

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
        trusted = result.ok and result.distrusted is None
        if result.manifest.role == "reference" and trusted and result.metrics.get(metric, 0.0) > 0:
            values.setdefault(result.manifest.batch, []).append(result.metrics[metric])
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
        if not result.ok or result.distrusted is not None or result.manifest.role == "reference":
            continue
        value = result.metrics.get(metric, 0.0)
        base = of_batch.get(result.manifest.batch)
        if value > 0 and base:
            groups.setdefault(tuple(sorted(result.manifest.params.items())), []).append(math.log(value / base))
    stated = campaign.app.contract.metric(metric).noise or QUIET_NOISE
    squares, freedom = 4 * 2 * stated**2, 4.0
    for logs in groups.values():
        if len(logs) > 1:
            mean = sum(logs) / len(logs)
            squares += sum((x - mean) ** 2 for x in logs)
            freedom += len(logs) - 1
    return math.sqrt(squares / freedom)


def observations(results: Sequence[Result], comparison: Comparison | None) -> list[Observation]:
    """What a policy sees: finished runs with compared speeds, without infrastructure failures."""
    seen = [
        r.observation()
        for r in results
        if r.failure is None or r.failure.kind in ("simulation", "contract")
    ]
    if comparison is None or not comparison.scale:
        return seen
    return [_compared(o, comparison) for o in seen]


def _compared(observation: Observation, comparison: Comparison) -> Observation:
    value = observation.metrics.get(comparison.metric)
    if value is None:
        return observation
    scaled = value * comparison.of(observation.batch)
    return replace(
        observation,
        metrics=observation.metrics | {comparison.metric: scaled},
        uncertainty=observation.uncertainty | {comparison.metric: comparison.noise * abs(scaled)},
    )
