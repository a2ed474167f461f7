"""Which point won: from all runs of a campaign, with repeats pooled and noise taken into account.

The luckiest single run is not an answer: with 5 % noise it breaks the limit in a quarter of campaigns. Here
a point counts as feasible only when the measurement keeps the limit and P(the true value keeps it) is high
enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcagent.errors import BadInput
from hpcagent.later import Later
from hpcagent.model.base import Record
from hpcagent.model.objective import Constraint, Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.statistics.points import inside, key, usable
from hpcagent.statistics.trend import Array, chance, tame

if TYPE_CHECKING:
    import numpy as np

    from hpcagent.statistics.surrogate import MetricModel, Surrogate
else:
    np = Later("numpy")

__all__ = ["Estimate", "Recommendation", "estimates", "recommend", "top"]

PRIOR_REPEATS = 4.0  # a point's own scatter counts against the pooled one like this many runs
LEAST_RUNS_FOR_MODEL = 6
# Log of a Bayes factor of 3 (Kass and Raftery, JASA 90 (1995) 773: positive evidence).
TOLD = 1.0
# Length scales and noise are taken as known by the models, and the best of many candidates is one that looks too
# good. Much larger ones leave no answer near a noisy limit, which costs more than they save.
CAUTION = 1.15
# An answer that runs this many times the risk asked for is worth nothing. With P(feasible) = 0.9 asked for a point
# then counts as (2 P - 1) times its gain: as if a wrong answer cost what a right one gains.
MOST_RISK = 5.0
SURELY = 0.97  # so sure that being surer is worth nothing more


ASKED_CONFIDENCE = 0.9
"""P(every limit is kept) that an answer has, unless somebody asks for another."""


class Estimate(Record):
    """What is known of one point.

    Attributes:
        params: The point.
        runs: Completed runs there.
        failed: Runs that failed there.
        metrics: Mean of each metric over the runs.
        uncertainty: Standard error of each mean, where anything is known of the noise.
        score: The goal's value, larger is better, smoothed by the trend where there is one.
        score_error: Its standard error.
        probability_feasible: P(every limit is kept) x share of runs there that completed.
        trusted: Whether at least one run measured the goal undisturbed.
        probability_confirmed: P(the measured mean still keeps every limit after the further runs asked about).
        expected: What the models of all runs say of the objective's metrics there; empty without models.
        expected_error: Standard error of each.
    """

    params: Params
    runs: int
    failed: int = 0
    metrics: dict[str, float]
    uncertainty: dict[str, float] = {}
    score: float
    score_error: float = 0.0
    probability_feasible: float = 1.0
    trusted: bool = True
    probability_confirmed: float = 1.0
    expected: dict[str, float] = {}
    expected_error: dict[str, float] = {}


class Recommendation(Record):
    """The point to use.

    Attributes:
        best: The point and what is known of it.
        feasible: Whether some point keeps every limit with the asked confidence. False means: nothing does, and
            this is the most probable one.
        confidence: The P(feasible) that was asked for.
        surer: The best point that has the asked confidence, where `best` has not: it is so much better that it is
            worth the risk.
        ties: Other feasible points that are not worse by two combined standard errors.
    """

    best: Estimate
    feasible: bool
    confidence: float = 0.9
    ties: tuple[Estimate, ...] = ()
    surer: Estimate | None = None

    @property
    def alike(self) -> tuple[Estimate, ...]:
        """The best point and those ties that are as sure to keep the limits."""
        least = min(self.best.probability_feasible, SURELY)
        return (self.best, *(e for e in self.ties if e.probability_feasible >= least))

    @property
    def params(self) -> Params:
        """The recommended point."""
        return self.best.params

    @property
    def metrics(self) -> dict[str, float]:
        """Mean of each metric there."""
        return self.best.metrics

    @property
    def uncertainty(self) -> dict[str, float]:
        """Standard error of each mean."""
        return self.best.uncertainty

    @property
    def probability_feasible(self) -> float:
        """P(every limit is kept) there."""
        return self.best.probability_feasible


def recommend(
    history: Sequence[Observation],
    objective: Objective,
    *,
    space: Space | None = None,
    confidence: float = ASKED_CONFIDENCE,
    noise: Mapping[str, float] | None = None,
) -> Recommendation | None:
    """Return the point to use, or None where no run completed with the objective's metrics.

    Of the points whose mean keeps every limit the one with the largest gain x (1 - risk / (5 x the risk asked
    for)), risk = 1 - P(feasible): a point just above `confidence` does not win over a surer one by a percent, and
    one just below it is not passed over for one half as good. The most probable point, marked as not feasible,
    where none has `confidence`. With several goals the first one counts.

    Args:
        history: Finished runs.
        objective: Goal and limits.
        space: Lets neighbouring points help each other through a trend; without it every point stands for
            itself.
        confidence: P(feasible) that is enough.
        noise: Known relative standard deviation of one run, by metric; 0 where runs are exact.

    Raises:
        BadInput: `confidence` is not between 0 and 1.

    Example:
        >>> from hpcagent.model.objective import at_most, maximize
        >>> objective = maximize("speed", subject_to={"error": at_most(1.0)})
        >>> runs = [Observation({"x": 1.0}, metrics={"speed": 5.0, "error": 0.5}),
        ...         Observation({"x": 2.0}, metrics={"speed": 9.0, "error": 2.0})]
        >>> recommend(runs, objective).params
        {'x': 1.0}
    """
    if not 0 < confidence < 1:
        raise BadInput(f"confidence={confidence} must be between 0 and 1.", value=confidence)
    known = _rankable(estimates(history, objective, space=space, noise=noise))
    if not known:
        return None
    sure = [e for e in known if _sure(e, objective, confidence)]
    if not sure:
        best = max(known, key=lambda e: (e.probability_feasible, -objective.violation(e.metrics), e.score))
        return Recommendation(best=best, feasible=False, confidence=confidence)
    allowed = [e for e in known if objective.feasible(e.metrics)]
    highest = max(e.score for e in sure)
    size = _size(highest, allowed, objective)
    best = max(allowed, key=lambda e: _worth(e, highest, size, confidence))
    surest = max(sure, key=lambda e: _worth(e, highest, size, confidence))
    ties = tuple(
        e
        for e in sorted(sure, key=lambda e: -e.score)
        if e is not best and best.score - e.score < 2 * math.hypot(best.score_error, e.score_error)
    )
    surer = None if best in sure else surest
    return Recommendation(best=best, feasible=True, confidence=confidence, ties=ties, surer=surer)


def top(
    history: Sequence[Observation],
    objective: Objective,
    k: int,
    *,
    space: Space | None = None,
    confidence: float = 0.9,
    noise: Mapping[str, float] | None = None,
    replicates: int = 2,
) -> list[Estimate]:
    """Return up to `k` points that could be best, most promising first: the ones worth replicating.

    Only points that may be best count. The first has the highest expected gain, score x P(feasible); for the
    others it counts as well whether replicates will confirm them: if the first is thrown out by its next runs,
    one that is a little slower and well inside the limit stands beside it.

    Args:
        history: Finished runs.
        objective: Goal and limits.
        k: How many points.
        space: As for `recommend`.
        confidence: As for `recommend`.
        noise: As for `recommend`.
        replicates: How many further runs each point will get.

    Example:
        >>> from hpcagent.model.objective import maximize
        >>> runs = [Observation({"x": x}, metrics={"y": x}) for x in (1.0, 3.0, 2.0)]
        >>> [e.params["x"] for e in top(runs, maximize("y"), 1)]
        [3.0]
    """
    known = _rankable(estimates(history, objective, space=space, noise=noise, replicates=replicates))
    chosen = recommend(history, objective, space=space, confidence=confidence, noise=noise)
    if chosen is None or k <= 0:
        return []
    if not chosen.feasible:
        return sorted(known, key=lambda e: -e.probability_feasible)[:k]
    lowest = min(0.0, *(e.score for e in known))
    gains = [(e.probability_feasible * (e.score - lowest), e) for e in known if _promise(e, chosen.best) > 0.01]
    if not gains:
        return [chosen.best]
    first = max(gains, key=lambda pair: pair[0])[1]
    others = [(gain * e.probability_confirmed, e) for gain, e in gains if e is not first]
    return [first, *(e for worth, e in sorted(others, key=lambda pair: -pair[0]) if worth > 0)][:k]


def estimates(
    history: Sequence[Observation],
    objective: Objective,
    *,
    space: Space | None = None,
    noise: Mapping[str, float] | None = None,
    replicates: int = 0,
) -> list[Estimate]:
    """Return what is known of every point with a completed run, in the order of the first run there."""
    groups = _grouped(history, objective)
    if not groups:
        return []
    scatter = {m: _pooled(m, [g.values(m) for g in groups], noise or {}) for m in _metrics(groups)}
    means = [{m: float(np.mean(g.values(m))) for m in g.names()} for g in groups]
    probabilities = np.array([g.share for g in groups])
    confirmed = np.ones(len(groups))
    smooth = _Smooth.of(history, objective, groups, space, noise)
    local = {} if smooth is None else smooth.local()
    errors = [
        {m: e for m in g.names() if (e := _standard_error(g, m, scatter[m], local.get((i, m)))) is not None}
        for i, g in enumerate(groups)
    ]
    for i, c in enumerate(objective.constraints):
        kept, still = _kept(c, groups, means, errors, None if smooth is None else smooth.limit(i), replicates)
        probabilities *= kept
        confirmed *= still
    scores, score_errors = _scores(objective, groups, means, errors, smooth)
    expected = {} if smooth is None else smooth.expected(groups)
    return [
        Estimate(
            params=dict(g.params),
            runs=len(g.runs),
            failed=g.failed,
            metrics=means[i],
            uncertainty=errors[i],
            score=float(scores[i]),
            score_error=float(score_errors[i]),
            probability_feasible=float(probabilities[i]),
            trusted=g.trusted,
            probability_confirmed=float(confirmed[i]),
            expected={m: value for m, (value, _) in expected.get(i, {}).items()},
            expected_error={m: error for m, (_, error) in expected.get(i, {}).items()},
        )
        for i, g in enumerate(groups)
    ]


@dataclass(frozen=True)
class _Point:
    """The completed runs at one point."""

    params: Params
    runs: tuple[Observation, ...]
    failed: int
    goals: frozenset[str]

    @property
    def share(self) -> float:
        return len(self.runs) / (len(self.runs) + self.failed)

    @property
    def trusted(self) -> bool:
        return any(not o.distrusted for o in self.runs)

    def of(self, metric: str) -> list[Observation]:
        """The runs whose `metric` may be used: undisturbed ones for a goal, if there are any."""
        return usable(self.runs, metric, goal=metric in self.goals)

    def values(self, metric: str) -> list[float]:
        return [float(v) for v in tame([o.metrics[metric] for o in self.of(metric)])]

    def names(self) -> list[str]:
        return list(dict.fromkeys(m for o in self.runs for m in o.metrics))


def _grouped(history: Sequence[Observation], objective: Objective) -> list[_Point]:
    runs: dict[object, list[Observation]] = {}
    failed: dict[object, int] = {}
    for o in history:
        if o.stopped:
            continue  # an answer rests on runs that went to their end
        if not o.completed:
            failed[key(o.params)] = failed.get(key(o.params), 0) + 1
        elif objective.known(o.metrics):
            runs.setdefault(key(o.params), []).append(o)
    goals = frozenset(g.metric for g in objective.goals) - {c.metric for c in objective.constraints}
    return [_Point(rs[0].params, tuple(rs), failed.get(k, 0), goals) for k, rs in runs.items()]


def _metrics(groups: Sequence[_Point]) -> list[str]:
    return list(dict.fromkeys(m for g in groups for m in g.names()))


@dataclass(frozen=True)
class _Scatter:
    """Standard deviation of one run: a share of the value, or a plain number."""

    size: float | None
    relative: bool

    def at(self, value: float) -> float | None:
        if self.size is None:
            return None
        return self.size * abs(value) if self.relative else self.size


def _pooled(metric: str, groups: Sequence[Sequence[float]], noise: Mapping[str, float]) -> _Scatter:
    """Scatter of single runs pooled over all repeated points: sqrt(sum of squares / degrees of freedom).

    A share of the value where all have one sign, unless none is stated and the repeats speak for a plain number.
    """
    values = np.array([v for vs in groups for v in vs])
    one_sign = bool(values.size) and (bool((values > 0).all()) or bool((values < 0).all()))
    repeated = [np.asarray(vs) for vs in groups if len(vs) > 1]
    squares = np.array([float(((v - v.mean()) ** 2).sum()) for v in repeated])
    sizes = np.array([abs(float(v.mean())) for v in repeated])
    freedoms = np.array([len(v) - 1 for v in repeated])
    freedom = int(freedoms.sum())
    stated = (noise.get(metric) or 0.0) if one_sign else 0.0
    plain = float(squares.sum())
    share = float((squares / sizes**2).sum()) if one_sign else math.inf
    if stated:
        return _Scatter(math.sqrt((share + PRIOR_REPEATS * stated**2) / (freedom + PRIOR_REPEATS)), relative=True)
    if not freedom:
        return _Scatter(None, relative=one_sign)
    # Log of the likelihood of the repeats with a plain number, over that with a share.
    told = 0.5 * freedom * math.log(share / plain) + float(freedoms @ np.log(sizes)) if one_sign and plain else 0.0
    relative = one_sign and told < TOLD
    return _Scatter(math.sqrt((share if relative else plain) / freedom), relative)


def _standard_error(point: _Point, metric: str, scatter: _Scatter, local: float | None) -> float | None:
    """Of the mean: the larger of what the runs scatter and what they state themselves.

    Args:
        point: The runs.
        metric: Of which.
        scatter: Of single runs, everywhere.
        local: Standard deviation of a run at this point by the models of all runs, where there are any.
    """
    runs, values = point.of(metric), np.array(point.values(metric))
    n, mean = len(values), float(values.mean())
    stated = [o.uncertainty[metric] for o in runs if math.isfinite(o.uncertainty.get(metric, math.nan))]
    found = []
    if stated:
        # Root of their mean square; their squares may be too large for a number.
        found.append(math.hypot(*stated) / math.sqrt(len(stated) * n))
    pooled = scatter.at(mean) if local is None else local
    if pooled is not None:
        squares = float(((values - mean) ** 2).sum()) + PRIOR_REPEATS * pooled**2
        found.append(math.sqrt(squares / (n - 1 + PRIOR_REPEATS) / n))
    return max(found) if found else None


@dataclass(frozen=True)
class _Smooth:
    """What the models of all runs say of the points that lie in the space."""

    model: Surrogate
    rows: Array
    use: tuple[int, ...]

    @classmethod
    def of(
        cls,
        history: Sequence[Observation],
        objective: Objective,
        groups: Sequence[_Point],
        space: Space | None,
        noise: Mapping[str, float] | None,
    ) -> _Smooth | None:
        if space is None or len(space) == 0:
            return None
        points = [inside(space, g.params) for g in groups]
        use = tuple(i for i, p in enumerate(points) if p is not None)
        if len(use) < LEAST_RUNS_FOR_MODEL:
            return None
        from hpcagent.statistics.surrogate import Surrogate  # brings scipy, which an import of hpcagent need not

        try:
            model = Surrogate.fit(space, objective, history, noise=noise)
        except ArithmeticError:
            return None
        return cls(model, model.features.rows([p for p in points if p is not None]), use)

    def limit(self, i: int) -> tuple[MetricModel, Array, Array, Array, tuple[int, ...]]:
        """The model of limit `i`, and on its scale its mean, its error and a run's noise at the points `use`."""
        model = self.model.limits[i]
        mean, error = model.gp.predict(self.rows)
        return model, mean, CAUTION * error, model.one_run(self.rows), self.use

    def expected(self, groups: Sequence[_Point]) -> dict[int, dict[str, tuple[float, float]]]:
        """The objective's metrics at each point as the models have them, with standard errors."""
        found: dict[int, dict[str, tuple[float, float]]] = {i: {} for i in self.use}
        for model in (*self.model.goals, *self.model.limits):
            values, errors = model.cautious(self.rows)
            for i, value, error in zip(self.use, values, errors, strict=True):
                # Of a disturbed run the goal is an estimate already, that the models do not have as such.
                if groups[i].trusted or model.metric not in groups[i].goals:
                    found[i][model.metric] = float(value), float(error)
        return found

    def local(self) -> dict[tuple[int, str], float]:
        """Standard deviation of a run at each point by the models, in the metric's unit; not of exact metrics."""
        return {
            (i, model.metric): float(single)
            for model in (*self.model.goals, *self.model.limits)
            if not model.exact
            for i, single in zip(self.use, model.scatter(self.rows), strict=True)
        }

    def goal(self) -> tuple[Array, Array]:
        """The goal and its standard error at the points `use`, in its unit."""
        return self.model.goals[0].cautious(self.rows)


def _kept(
    c: Constraint,
    groups: Sequence[_Point],
    means: Sequence[Mapping[str, float]],
    errors: Sequence[Mapping[str, float]],
    smooth: tuple[MetricModel, Array, Array, Array, tuple[int, ...]] | None,
    replicates: int,
) -> tuple[Array, Array]:
    """P(the limit is kept) at each point, and P(the mean keeps it after `replicates` further runs).

    The model cannot raise the first where the measurement is beyond the limit.
    """
    values = np.array([m[c.metric] for m in means])
    own = np.array([e.get(c.metric, 0.0) for e in errors])
    alone = np.array([c.probability(v, s) for v, s in zip(values, own, strict=True)])
    if smooth is None:
        return alone, alone
    model, fitted, fitted_error, single, use = smooth
    scale = model.scale
    mean, error = scale.forward(values), own * scale.slope(values)
    mean[list(use)], error[list(use)] = fitted, fitted_error
    limit = scale.forward(c.limit)
    p = chance(c.sign * (mean - limit) / np.maximum(error, 1e-12))
    kept = np.where([c.excess(v) <= 0 for v in values], p, np.minimum(p, alone))
    if not replicates:
        return kept, np.ones(len(groups))
    # The mean then is of n runs that are known and r further ones, each off the expected value by the noise of
    # one run: (n y + r (mean + noise)) / (n + r).
    n = np.array([len(g.runs) for g in groups], dtype=float)
    one_run = own * scale.slope(values) * np.sqrt(n)
    one_run[list(use)] = np.maximum(one_run[list(use)], single)
    share = replicates / (n + replicates)
    then = (1 - share) * scale.forward(values) + share * mean
    spread = share * np.sqrt(error**2 + one_run**2 / replicates)
    return kept, chance(c.sign * (then - limit) / np.maximum(spread, 1e-12))


def _scores(
    objective: Objective,
    groups: Sequence[_Point],
    means: Sequence[Mapping[str, float]],
    errors: Sequence[Mapping[str, float]],
    smooth: _Smooth | None,
) -> tuple[Array, Array]:
    goal = objective.goal
    values = np.array([m[goal.metric] for m in means])
    own = np.array([e.get(goal.metric, 0.0) for e in errors])
    if smooth is not None:
        fitted, error = smooth.goal()
        for i, value, sd in zip(smooth.use, fitted, error, strict=True):
            if groups[i].trusted:
                values[i], own[i] = value, sd
    return np.array([goal.score(v) for v in values]), own


def _rankable(known: list[Estimate]) -> list[Estimate]:
    """Points whose goal was measured undisturbed, unless there is no such point."""
    return [e for e in known if e.trusted] or known


def _sure(e: Estimate, objective: Objective, confidence: float) -> bool:
    return e.probability_feasible >= confidence and objective.feasible(e.metrics)


def _size(best: float, allowed: Sequence[Estimate], objective: Objective) -> float:
    """What a difference of scores is measured in: the best one where all values are positive, else their spread.

    A share of the best value says nothing of energies, whose zero is anywhere.
    """
    scores = [e.score for e in allowed]
    if min(e.metrics[objective.goal.metric] for e in allowed) > 0:
        return abs(best)
    return (max(scores) - min(scores)) or 1.0


def _worth(e: Estimate, highest: float, size: float, confidence: float) -> float:
    """The gain of a point, 1 for the highest score of a sure one, times what is left of it at its risk."""
    gain = 1.0 + (e.score - highest) / size
    left = 1.0 - (1.0 - e.probability_feasible) / (MOST_RISK * (1.0 - confidence))
    # Far behind the best, or at too large a risk, it only counts by how far.
    return gain * left if gain > 0 and left > 0 else min(gain, left, 0.0)


def _promise(e: Estimate, best: Estimate) -> float:
    """P(feasible) x P(its score is above the best one's)."""
    error = math.hypot(e.score_error, best.score_error)
    if error > 0:
        above = float(chance((e.score - best.score) / error)[0])
    else:
        # Nothing is known of the noise: closeness to the best is all there is to go by.
        above = 1 / (1 + math.exp(min((best.score - e.score) / (0.05 * abs(best.score) or 1.0), 50.0)))
    return e.probability_feasible * above
