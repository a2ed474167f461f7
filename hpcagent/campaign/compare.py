"""Fair comparison of measured speeds: every batch against the reference point run in it.

Machines change speed while a campaign runs. With s_b the reference's value in batch b and S the median
over all batches, a measured value v of batch b is compared as v * S / s_b. How much the machine changes, which is
left out of such ratios, belongs to the error of an absolute speed (`Comparison.weather`).

On several sites each value is compared with the reference of its own site, and shown as it would be on the site
that has had most of them: v * S / s_(b, site), with S the median there. A run on a site without any reference
is not compared: it counts as one that should not be believed.

A run that did not have its core has an estimate of its speed from CPU time. A step takes more CPU time on a busy
machine (caches, memory and the core's other thread are shared), so the estimate is too low: by 10 and by 24 % in
two measurements. Points that were run both ways tell by how much here (`Estimation`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from hpcagent.campaign.record import Campaign
from hpcagent.model.extended import counting
from hpcagent.model.records import Observation, Result
from hpcagent.statistics.points import Key, key

__all__ = [
    "Comparison",
    "Estimation",
    "compare",
    "estimated",
    "estimated_at",
    "full_fidelity",
    "measured",
    "observations",
    "projected",
]

# Relative standard deviation of a speed worked out from CPU time, besides what all of them have in common.
DISTURBED_NOISE = 0.05

# That common error, relative, where no point was run both ways (10 and 24 % were seen).
ESTIMATE_BIAS = 0.15

# How much a machine's speed changes, relative, before anything is known of it, and how many batches that weighs.
WEATHER = 0.1
WEATHER_BATCHES = 2

# Relative standard deviation of a speed measured once on a quiet machine, where nothing better is known.
QUIET_NOISE = 0.01


@dataclass(frozen=True, slots=True)
class Estimation:
    """By what speeds estimated from CPU time are to be multiplied, from points that were run both ways.

    The logarithm of the factor has a normal prior of width `ESTIMATE_BIAS` about 0, and each such estimate tells
    of it with the scatter of the pairs.

    Attributes:
        factor: What an estimate is multiplied with.
        noise: Relative standard deviation of one corrected estimate, besides that of the factor.
        bias: Relative standard deviation of the factor: repeats do not average it out.
        pairs: Estimates at points that were measured as well.
    """

    factor: float = 1.0
    noise: float = DISTURBED_NOISE
    bias: float = ESTIMATE_BIAS
    pairs: int = 0

    @classmethod
    def of(cls, campaign: Campaign, results: Sequence[Result], metric: str) -> Estimation:
        """Learn the factor from all results so far."""
        measured_at: dict[tuple[Key, str], list[float]] = {}  # by point and site
        estimated_at: dict[tuple[Key, str], list[float]] = {}
        for result in results:
            value = measured(campaign, result, metric)
            if value is not None and value > 0:
                at = measured_at if result.distrusted is None else estimated_at
                at.setdefault((key(result.manifest.params), result.site), []).append(math.log(value))
        logs = [
            sum(measured_at[point]) / len(measured_at[point]) - x
            for point, found in estimated_at.items()
            if point in measured_at
            for x in found
        ]
        if not logs:
            return cls()
        n, mean = len(logs), sum(logs) / len(logs)
        squares = sum((x - mean) ** 2 for x in logs) + 4 * DISTURBED_NOISE**2
        variance = squares / (n - 1 + 4)
        weight = n / variance + 1 / ESTIMATE_BIAS**2
        factor = math.exp(mean * n / variance / weight)
        return cls(factor, math.sqrt(variance), math.sqrt(1 / weight), n)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the reference point did.

    Attributes:
        metric: The metric that is compared.
        value: Median of the reference over the batches, in the metric's unit; NaN without one.
        scale: Batch -> factor that its values are multiplied with.
        noise: Relative standard deviation of one compared value.
        spread: Largest over smallest reference value: how much the machine's speed changed.
        weather: Relative standard deviation of the machine's speed: an error that all absolute values share.
        estimation: How estimates from CPU time are made comparable.
        sites: With references on several sites: site -> batch -> factor.
        home: Then the site whose speed is shown.
    """

    metric: str
    value: float = math.nan
    scale: dict[int, float] | None = None
    noise: float = QUIET_NOISE
    spread: float = 1.0
    weather: float = 0.0
    estimation: Estimation = Estimation()
    sites: Mapping[str, Mapping[int, float]] | None = None
    home: str = ""

    def site_text(self) -> str:
        """How speeds of several sites were made comparable, in words; empty for one site."""
        if not self.sites:
            return ""
        return (
            f"{self.metric} was measured on several sites ({', '.join(self.sites)}): each run is compared with "
            f"the reference on its own site, and shown as on {self.home}. What is best on one machine need not be "
            "on another"
        )

    def covers(self, site: str) -> bool:
        """Whether a run on that site has a reference to be compared with."""
        return not self.sites or site in self.sites

    def weather_text(self, *, estimated: bool = False) -> str:
        """What the errors of absolute values hold, in words; `estimated`: the value is one from CPU time."""
        batches = len(self.scale or ())
        if estimated:
            return (
                f"± of {self.metric} holds how the machine's speed changes ({self.weather:.0%}, of the "
                f"reference in {batches} batch(es)) and how far estimates from CPU time may be off together "
                f"({self.estimation.bias:.0%}); ratios below hold the latter alone"
            )
        return (
            f"± of {self.metric} holds how the machine's speed changes ({self.weather:.0%}, of the "
            f"reference in {batches} batch(es)); ratios below do not"
        )

    def of(self, batch: int, site: str = "") -> float:
        """The factor of a batch (that of the nearest batch with a reference), on a site."""
        scale = self.sites.get(site) if self.sites and site else self.scale
        if not scale:
            return 1.0
        nearest = min(scale, key=lambda b: (abs(b - batch), b))
        return scale[nearest]


def compare(campaign: Campaign, results: Sequence[Result]) -> Comparison | None:
    """Work out the comparison from the reference runs, or None if the campaign has no reference."""
    if campaign.reference is None:
        return None
    metric = campaign.reference.metric or campaign.objective.goal.metric
    estimation = Estimation.of(campaign, results, metric)
    found: dict[str, dict[int, list[float]]] = {}
    for result in results:
        value = measured(campaign, result, metric, estimation)
        if result.manifest.role == "reference" and value is not None and value > 0:
            found.setdefault(result.site, {}).setdefault(result.manifest.batch, []).append(value)
    if not found:
        return Comparison(metric, estimation=estimation)
    if "" in found:  # records of before do not say where it was
        found = {"": _together(found.values())}
    by_site = {site: {batch: median(values) for batch, values in of.items()} for site, of in sorted(found.items())}
    home = max(by_site, key=lambda site: len(by_site[site]))  # the first of those with as many
    of_batch = by_site[home]
    middle = median(of_batch.values())
    scales = {site: {b: middle / value for b, value in of.items()} for site, of in by_site.items()}
    return Comparison(
        metric,
        value=middle,
        scale=scales[home],
        noise=_noise(campaign, by_site, results, metric, estimation),
        spread=max(max(of.values()) / min(of.values()) for of in by_site.values()),
        weather=_weather(list(of_batch.values())),
        estimation=estimation,
        sites=scales if len(scales) > 1 else None,
        home=home if len(scales) > 1 else "",
    )


def _together(sites: Iterable[Mapping[int, list[float]]]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for of in sites:
        for batch, values in of.items():
            found.setdefault(batch, []).extend(values)
    return found


def _weather(values: Sequence[float]) -> float:
    """Relative standard deviation of the reference over the batches, with a few batches' worth of a guess."""
    logs = [math.log(v) for v in values]
    mean = sum(logs) / len(logs)
    squares = sum((x - mean) ** 2 for x in logs) + WEATHER_BATCHES * WEATHER**2
    return math.sqrt(squares / (len(logs) - 1 + WEATHER_BATCHES))


def _noise(
    campaign: Campaign,
    by_site: Mapping[str, Mapping[int, float]],
    results: Sequence[Result],
    metric: str,
    estimation: Estimation,
) -> float:
    """Relative sd of a ratio of two runs of the same batch.

    From repeats of the same parameters after scaling, where there are any; otherwise from what the contract
    states or a quiet machine shows. A ratio has the noise of both runs, hence the factor sqrt(2).
    """
    groups: dict[tuple[tuple[str, float | int | str], ...], list[float]] = {}
    for result in results:
        value = measured(campaign, result, metric, estimation)
        of_batch = by_site[next(iter(by_site))] if len(by_site) == 1 else by_site.get(result.site, {})
        base = of_batch.get(result.manifest.batch)
        ours = result.manifest.role != "reference" and not result.manifest.origin
        if ours and value is not None and value > 0 and base:
            groups.setdefault(tuple(sorted(result.manifest.params.items())), []).append(math.log(value / base))
    stated = campaign.app.contract.metric(metric).noise or QUIET_NOISE
    squares, freedom = 4 * 2 * stated**2, 4.0
    for logs in groups.values():
        if len(logs) > 1:
            mean = sum(logs) / len(logs)
            squares += sum((x - mean) ** 2 for x in logs)
            freedom += len(logs) - 1
    return math.sqrt(squares / freedom)


def measured(
    campaign: Campaign, result: Result, metric: str, estimation: Estimation | None = None
) -> float | None:
    """The metric's value, or its estimate from CPU time if the run did not have its core; None without one."""
    if not result.ok:
        return None
    if result.distrusted is None:
        return result.metrics.get(metric)
    substitute = campaign.app.contract.metric(metric).undisturbed
    estimate = None if substitute is None else result.metrics.get(substitute)
    return estimate if estimate is None or estimation is None else estimate * estimation.factor


def estimated(campaign: Campaign, result: Result) -> dict[str, float]:
    """The objective's speeds of a run that did not have its core, from CPU time; empty for any other run."""
    if not result.ok or result.distrusted is None:
        return {}
    found = {m: measured(campaign, result, m) for m in campaign.judged}
    return {m: value for m, value in found.items() if value is not None}


def estimated_at(campaign: Campaign, results: Sequence[Result]) -> frozenset[Key]:
    """The points whose speeds are estimates from CPU time: none of the runs there had its core."""
    done = [r for r in results if r.ok]
    measured_at = {key(r.manifest.params) for r in done if r.distrusted is None}
    return frozenset(key(r.manifest.params) for r in done if estimated(campaign, r)) - measured_at


def observations(
    campaign: Campaign, results: Sequence[Result], comparison: Comparison | None
) -> list[Observation]:
    """What a policy sees: finished runs with speeds that can be compared, without infrastructure failures."""
    counted = [r for r in counting(results) if r.shown]
    if not campaign.timed:  # an energy is what it is, whoever else was on the core
        counted = [r if r.distrusted is None else r.model_copy(update={"distrusted": None}) for r in counted]
    sound = {_same(r, comparison) for r in counted if r.ok and r.distrusted is None}
    # An estimate is not averaged with a measurement: where there is one a disturbed run's speed is not used.
    found = [
        _compared(campaign, r, comparison)
        if r.distrusted is None or _same(r, comparison) not in sound
        else r.observation()
        for r in counted
    ]
    main = _main(campaign, comparison)
    return [
        _as_long_as_it_may(campaign, _limits_estimated(campaign, r, o, main))
        for r, o in zip(counted, found, strict=True)
    ]


def _as_long_as_it_may(campaign: Campaign, seen: Observation) -> Observation:
    if seen.extendable_s is None:
        return seen
    from hpcagent.science.lammps.restart_script import times_at_most  # only runs that can go on need it

    app = campaign.app
    return replace(seen, times_at_most=times_at_most(app.settings, app.contract.space, seen.params))


def _main(campaign: Campaign, comparison: Comparison | None) -> str | None:
    """The metric that speeds are compared by; a sweep has none."""
    if comparison is not None:
        return comparison.metric
    return campaign.objective.goal.metric if campaign.objective.goals else None


def _limits_estimated(campaign: Campaign, result: Result, seen: Observation, main: str | None) -> Observation:
    """The other speeds of the objective, for which there is no reference, where the run did not have its core."""
    if seen.stopped:
        return seen
    others = {m: v for m, v in estimated(campaign, result).items() if m != main}
    if not others:
        return seen
    error = math.hypot(DISTURBED_NOISE, ESTIMATE_BIAS)
    uncertainty = seen.uncertainty | {m: error * abs(v) for m, v in others.items()}
    return replace(seen, metrics=seen.metrics | others, uncertainty=uncertainty)


def _same(result: Result, comparison: Comparison | None) -> tuple[Key, int]:
    """What runs of one point have in common; without a reference nothing of earlier batches changes later."""
    return key(result.manifest.params), 0 if comparison is not None else result.manifest.batch


def full_fidelity(campaign: Campaign, seen: Sequence[Observation]) -> list[Observation]:
    """The observations that may be an answer: those at the last level, where the campaign has a fidelity."""
    return [o for o in seen if campaign.full(o.params)]


def _compared(campaign: Campaign, result: Result, comparison: Comparison | None) -> Observation:
    seen = result.observation()
    metric = _main(campaign, comparison)
    if metric is None or seen.stopped:
        return seen  # its threshold is a value as they are compared
    estimation = Estimation() if comparison is None else comparison.estimation
    value = measured(campaign, result, metric, estimation)
    if value is None or (comparison is None and not seen.distrusted) or result.manifest.origin:
        return seen  # what was measured elsewhere does not know the speed of this machine
    noise = 0.0
    if comparison is not None and not comparison.covers(result.site):
        return replace(seen, distrusted=True)  # with nothing there that it could be compared with
    if comparison is not None and comparison.scale:
        value *= comparison.of(seen.batch, result.site)
        noise = comparison.noise
    uncertainty = seen.uncertainty
    if seen.distrusted:
        noise = math.hypot(noise, estimation.noise, estimation.bias)
    if noise:
        uncertainty = uncertainty | {metric: noise * abs(value)}
    return replace(seen, metrics=seen.metrics | {metric: value}, uncertainty=uncertainty, distrusted=False)


def projected(campaign: Campaign, seen: Sequence[Observation]) -> list[Observation]:
    """The observations as points of the search space: what a policy may learn from.

    A reference or baseline that differs in a parameter that is not varied is another system; it is left out.
    """
    names = campaign.search.names
    middle = campaign.complete(campaign.search.middle)
    others = [name for name in middle if name not in names]
    constant = [middle[name] for name in others]
    return [
        replace(o, params={name: o.params[name] for name in names if name in o.params})
        for o in seen
        if [o.params.get(name) for name in others] == constant
    ]
