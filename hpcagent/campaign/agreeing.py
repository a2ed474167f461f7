"""Metrics whose repeated runs agree to the last digit, so that no error stands beside what was measured."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpcagent.campaign.record import Campaign
from hpcagent.model.records import Result
from hpcagent.statistics.points import Key, key
from hpcagent.statistics.recommend import Estimate

__all__ = ["agreeing", "as_measured"]


def agreeing(campaign: Campaign, results: Sequence[Result]) -> frozenset[str]:
    """The objective's metrics that every repeated point gave again to the last digit.

    Not speeds, metrics whose noise or error is stated, and whole numbers, which agree by chance.
    """
    runs: dict[Key, list[Result]] = {}
    for r in results:
        if r.ok:
            runs.setdefault(key(r.manifest.params), []).append(r)
    repeated = [of for of in runs.values() if len(of) > 1]
    found = []
    for m in campaign.objective.metrics:
        if campaign.noise.get(m) or campaign.app.contract.metric(m).undisturbed is not None:
            continue
        values = [{r.metrics.get(m) for r in of} for of in repeated]
        stated = any(m in r.uncertainty for of in runs.values() for r in of)
        broken = any(v is not None and not float(v).is_integer() for of in values for v in of)
        if broken and not stated and all(len(of) == 1 for of in values):
            found.append(m)
    return frozenset(found)


def as_measured(estimate: Estimate, exact: Collection[str]) -> Estimate:
    """The same without the models' opinion of `exact` metrics, and without an error of them."""
    kept = {
        name: {m: v for m, v in getattr(estimate, name).items() if m not in exact}
        for name in ("uncertainty", "expected", "expected_error")
    }
    return estimate.model_copy(update=kept) if exact else estimate
