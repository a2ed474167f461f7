"""What the history says of every point: a model of each goal, of each limited metric, and of where runs fail.

Each metric is modelled on the scale on which it is smooth and its noise even (logarithmic for positive values that
spread), by a Gaussian process of its own. Runs of the same point are one value with less noise, and their scatter
tells of the noise; a value that is only a bound (the run was stopped early) is replaced by what the model expects
beyond the bound. A failed run teaches where runs fail, nothing else.

Noise that is known beforehand, a run's own standard error or what the app's contract states (the larger of both
counts), is put on the model's scale where the model expects the value to be. A share of the reading itself would
make low readings weigh more than high ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from hpcagent.model.objective import Constraint, Goal, Objective
from hpcagent.model.records import Observation
from hpcagent.model.space import Params, Space
from hpcagent.policies.gp import GP, Array, Features, Kernel, NoFit, one_thread
from hpcagent.policies.points import key, located
from hpcagent.policies.trend import Scale, tame

__all__ = ["Failures", "MetricModel", "Surrogate"]

# Points beyond this many are thinned out before a model is made.
MOST_POINTS = 200
# Of these, so many are the best ones; the rest are spread evenly over the campaign.
MOST_BEST = 100
LEAST_POINTS = 3
# With more parameters than this their single effects are not modelled apart.
MOST_SINGLE = 8
KERNELS: tuple[Kernel, ...] = ("rbf", "matern", "mixed")
# A run that completes with this chance is taken to complete while it is waiting.
SURE = 0.9


@dataclass(frozen=True)
class MetricModel:
    """How one metric depends on the parameters.

    Attributes:
        metric: Its name.
        scale: The scale of the model.
        gp: The model, of `scale.forward(value)`.
        sign: 1 where larger is better, -1 where smaller is: sign * value is to be large.
        limit: Where it has one: the limit on the scale.
        share: Relative standard deviation of one run that is known beforehand; 0 where runs are exact, None where
            nothing is known.
    """

    metric: str
    scale: Scale
    gp: GP
    sign: float
    limit: float | None = None
    share: float | None = None

    def values(self, rows: Array) -> tuple[Array, Array]:
        """Median and standard error of the metric at rows, in its unit."""
        mean, sd = self.gp.predict(rows)
        middle = self.scale.backward(mean)
        return middle, sd / np.maximum(self.scale.slope(middle), 1e-300)

    def one_run(self, rows: Array, *, stated: Array | float = 0.0) -> Array:
        """Standard deviation of a single run about the function at rows, on the scale.

        Args:
            rows: `(m, columns)`.
            stated: Standard errors that the runs state of themselves, on the scale.
        """
        own = self.gp.own_noise * self.gp.unit**2
        known = np.maximum(self._stated(self.gp.predict(rows)[0]), np.square(stated))
        return np.asarray(np.sqrt(own + known))

    def believing(self, rows: Array, *, exactly: bool = False) -> MetricModel:
        """As if runs at these rows had come out as expected; with `exactly`, without noise."""
        if not len(rows):
            return self
        mean = self.gp.predict(rows)[0]
        known = None if exactly else self._stated(mean)
        return replace(self, gp=self.gp.told(rows, mean, exactly=exactly, known=known))

    def _stated(self, mean: Array) -> Array:
        """Variance of one run that is known beforehand, where the mean is this, on the scale."""
        if not self.share:
            return np.zeros(len(mean))
        middle = self.scale.backward(mean)
        return np.asarray((self.share * middle * self.scale.slope(middle)) ** 2)

    def room(self, rows: Array) -> Array:
        """Distance to the limit in standard errors at rows; positive where it is kept."""
        assert self.limit is not None
        mean, sd = self.gp.predict(rows)
        return self.sign * (mean - self.limit) / sd


@dataclass(frozen=True)
class Failures:
    """Where runs fail: a regression of 0 (completed) and 1 (failed), squeezed into a probability."""

    gp: GP

    def completes(self, rows: Array) -> Array:
        """P(a run completes) at rows."""
        mean, sd = self.gp.predict(rows)
        return np.asarray(ndtr((0.5 - mean) / self._width(sd)))

    def believing(self, rows: Array) -> Failures:
        """As if runs at these rows that may well fail had failed: not a whole batch is lost at one edge."""
        expected = np.where(self.completes(rows) < SURE, 1.0, self.gp.predict(rows)[0])
        return Failures(self.gp.told(rows, expected))

    def log_completes(self, rows: Array) -> tuple[Array, Array]:
        """Log of that, and its derivative by the columns."""
        mean, sd, dmean, dsd = self.gp.slopes(rows)
        width = self._width(sd)
        z = (0.5 - mean) / width
        dz = -dmean / width[:, None] - (z * sd / width**2)[:, None] * dsd
        log_p = log_ndtr(z)
        return log_p, np.exp(-0.5 * z * z - log_p)[:, None] / math.sqrt(2 * math.pi) * dz

    def _width(self, sd: Array) -> Array:
        return np.sqrt(sd**2 + self.gp.own_noise * self.gp.unit**2 + 0.01)


@dataclass(frozen=True)
class Surrogate:
    """The models of a campaign.

    Attributes:
        features: What the columns of rows mean.
        objective: Goals and limits.
        goals: A model for each goal.
        limits: A model for each limit.
        failures: Where runs fail, or None if none did.
        rows: `(n, columns)` every point with a completed run that has the objective's metrics.
        points: The same as parameters.
    """

    features: Features
    objective: Objective
    goals: tuple[MetricModel, ...]
    limits: tuple[MetricModel, ...]
    failures: Failures | None
    rows: Array
    points: tuple[Params, ...]

    @classmethod
    def fit(
        cls,
        space: Space,
        objective: Objective,
        history: Sequence[Observation],
        *,
        noise: Mapping[str, float] | None = None,
    ) -> Surrogate:
        """Fit to the finished runs.

        Args:
            space: The parameters.
            objective: Whose metrics are modelled.
            history: The runs.
            noise: Relative standard deviation of one run that is known beforehand, by metric; 0 where runs are
                exact.

        Raises:
            NoFit: Too few runs, or values that no model fits.
        """
        features = Features(space)
        groups = _grouped(located(space, history))
        completed = [g for g in groups if g.runs and objective.known(g.first)]
        if len(completed) < LEAST_POINTS or not features.size:
            raise NoFit(f"{len(completed)} points with a completed run; a model needs {LEAST_POINTS}")
        completed = _thinned(completed, objective)
        rows = features.rows([g.params for g in completed])
        noise = noise or {}
        with one_thread():
            return cls(
                features=features,
                objective=objective,
                goals=tuple(_goal_model(features, goal, completed, rows, noise) for goal in objective.goals),
                limits=tuple(_limit_model(features, c, completed, rows, noise) for c in objective.constraints),
                failures=_failures(features, groups),
                rows=rows,
                points=tuple(g.params for g in completed),
            )

    def believing(self, rows: Array, *, exactly: bool = False) -> Surrogate:
        """The models as if runs at these rows had come out as expected; with `exactly` the goals without noise."""
        if not len(rows):
            return self
        return replace(
            self,
            goals=tuple(m.believing(rows, exactly=exactly) for m in self.goals),
            limits=tuple(m.believing(rows) for m in self.limits),
            failures=None if self.failures is None else self.failures.believing(rows),
        )

    def feasible(self, rows: Array) -> Array:
        """P(every limit is kept) at rows."""
        p = np.ones(len(rows))
        for model in self.limits:
            p *= ndtr(model.room(rows))
        return p

    def completes(self, rows: Array) -> Array:
        """P(a run does not fail) at rows."""
        return np.ones(len(rows)) if self.failures is None else self.failures.completes(rows)

    def log_chances(self, rows: Array, *, bold: float = 0.0, spare: float = 0.0) -> tuple[Array, Array]:
        """Log P(feasible and completes) at rows, and its derivative by the columns."""
        total, slope = np.zeros(len(rows)), np.zeros(rows.shape)
        if self.failures is not None:
            total, slope = self.failures.log_completes(rows)
        for model in self.limits:
            assert model.limit is not None
            mean, sd, dmean, dsd = model.gp.slopes(rows)
            margin = spare * model.one_run(rows) if spare else 0.0
            z = (model.sign * (mean - model.limit) - margin) / sd
            dz = (model.sign * dmean - z[:, None] * dsd) / sd[:, None]
            z = z + bold
            log_p = log_ndtr(z)
            total = total + log_p
            slope = slope + np.exp(-0.5 * z * z - log_p)[:, None] / math.sqrt(2 * math.pi) * dz
        return total, slope


@dataclass(frozen=True)
class _Group:
    """The runs of one point."""

    params: Params
    runs: tuple[Observation, ...]
    failed: int
    order: int

    @cached_property
    def first(self) -> Mapping[str, float]:
        return self.runs[0].metrics if self.runs else {}


def _grouped(runs: Sequence[tuple[Params, Observation]]) -> list[_Group]:
    found: dict[object, tuple[Params, list[Observation], list[int]]] = {}
    for params, o in runs:
        entry = found.setdefault(key(params), (params, [], [0, len(found)]))
        if o.completed:
            entry[1].append(o)
        else:
            entry[2][0] += 1
    return [_Group(p, tuple(rs), counts[0], counts[1]) for p, rs, counts in found.values()]


def _thinned(groups: list[_Group], objective: Objective) -> list[_Group]:
    """The best points, and an even selection of the rest, in the order in which they came."""
    if len(groups) <= MOST_POINTS:
        return groups
    scores = np.array([objective.score(g.first) for g in groups])
    kept = np.array([objective.feasible(g.first) for g in groups])
    best = np.lexsort((-scores, ~kept))[:MOST_BEST]
    rest = np.setdiff1d(np.arange(len(groups)), best)
    even = rest[np.unique(np.linspace(0, len(rest) - 1, MOST_POINTS - MOST_BEST).astype(int))]
    return [groups[i] for i in np.sort(np.concatenate([best, even]))]


def _usable(group: _Group, metric: str, *, goal: bool) -> list[Observation]:
    runs = [o for o in group.runs if metric in o.metrics]
    if goal:
        runs = [o for o in runs if not o.distrusted] or runs
    return runs


@dataclass(frozen=True)
class _Values:
    """One metric at the points that have it: means of the runs on a scale, and what is known of their noise.

    Attributes:
        at: `(n,)` which groups.
        scale: The scale.
        mean: `(n,)` mean of the runs, on the scale.
        runs: `(n,)` how many.
        fixed: `(n,)` variance of each mean by errors that are stated as such, in the square of the metric's unit.
        shares: `(n,)` by errors that are a share of the value: variance of the mean over the value's square.
        squares, freedom: `(n,)` sum of squares of the runs about their mean, on the scale; degrees of freedom.
        above, below: `(n,)` whether a value is only a bound.
    """

    at: NDArray[np.int_]
    scale: Scale
    mean: Array
    runs: Array
    fixed: Array
    shares: Array
    squares: Array
    freedom: Array
    above: NDArray[np.bool_]
    below: NDArray[np.bool_]

    def known(self, expected: Array) -> Array:
        """`(n,)` variance of each mean that is known beforehand, where these values are expected, on the scale."""
        middle = self.scale.backward(expected)
        return np.asarray((self.fixed + self.shares * middle**2) * self.scale.slope(middle) ** 2)


def _values(groups: Sequence[_Group], metric: str, scale: Scale, *, goal: bool, share: float) -> _Values:
    used = [(i, _usable(g, metric, goal=goal)) for i, g in enumerate(groups)]
    used = [(i, runs) for i, runs in used if runs]
    size = np.array([len(runs) for _, runs in used], dtype=float)
    first = np.concatenate([[0], np.cumsum(size)[:-1]]).astype(int)
    every = [o for _, runs in used for o in runs]
    raw = tame([o.metrics[metric] for o in every])
    errors = np.array([o.uncertainty.get(metric, 0.0) for o in every])
    fixed, shares = _stated(raw, np.where(np.isfinite(errors), np.abs(errors), 0.0), share)
    v = scale.forward(raw)
    mean = np.add.reduceat(v, first) / size
    sides = [{o.bounds.get(metric) for o in runs} for _, runs in used]
    return _Values(
        at=np.array([i for i, _ in used], dtype=int),
        scale=scale,
        mean=mean,
        runs=size,
        fixed=np.add.reduceat(fixed**2, first) / size**2,
        shares=np.add.reduceat(shares**2, first) / size**2,
        squares=np.add.reduceat((v - np.repeat(mean, size.astype(int))) ** 2, first),
        freedom=size - 1,
        above=np.array(["above" in s for s in sides], dtype=bool),
        below=np.array(["below" in s for s in sides], dtype=bool),
    )


def _stated(raw: Array, errors: Array, share: float) -> tuple[Array, Array]:
    """What is known of each run's noise: a standard error, or a share of the value; the other one is 0.

    Errors that follow the readings more closely than they are alike were worked out as a share of them.
    """
    size = np.maximum(np.abs(raw), 1e-300)
    some = errors > 0
    if some.sum() > 1 and np.std(np.log(errors[some] / size[some])) <= np.std(np.log(errors[some])):
        return np.zeros(len(raw)), np.maximum(errors / size, share)
    larger = errors > share * size
    return np.where(larger, errors, 0.0), np.where(larger, 0.0, share)


def _fitted(features: Features, rows: Array, v: _Values, kernels: Sequence[Kernel] = ()) -> GP:
    """The model of the most evident kernel."""
    if not kernels:
        kernels = KERNELS if 1 < features.size <= MOST_SINGLE else KERNELS[:2]
    known = v.known(v.mean)
    if known.any():
        # Where the value is expected is known from a first model, which takes the readings for it.
        expected = _of(features, rows, v, known, KERNELS[:1]).predict(rows[v.at])[0]
        known = v.known(expected)
    return _of(features, rows, v, known, kernels)


def _of(features: Features, rows: Array, v: _Values, known: Array, kernels: Sequence[Kernel]) -> GP:
    x, y = rows[v.at], v.mean
    bound = v.above | v.below
    if bound.any() and not bound.all():
        # A bound stands for the mean of what the others expect beyond it, with what is left of their error.
        gp = GP.fit(features, x[~bound], y[~bound], known=known[~bound], runs=v.runs[~bound])
        mean, sd = gp.predict(x[bound])
        up = np.where(v.above[bound], 1.0, -1.0)
        z = up * (y[bound] - mean) / sd
        hazard = np.exp(-0.5 * z * z - log_ndtr(-z)) / math.sqrt(2 * math.pi)
        y, known = y.copy(), known.copy()
        y[bound] = mean + up * sd * hazard
        known[bound] = sd**2 * np.clip(1 + z * hazard - hazard**2, 0.05, 1.0)
    scatter = (np.where(bound, 0.0, v.squares), np.where(bound, 0.0, v.freedom))
    return max(
        (GP.fit(features, x, y, known=known, runs=v.runs, scatter=scatter, kernel=k) for k in kernels),
        key=lambda m: m.evidence,
    )


def _goal_model(
    features: Features, goal: Goal, groups: Sequence[_Group], rows: Array, noise: Mapping[str, float]
) -> MetricModel:
    share = noise.get(goal.metric)
    raw = tame([o.metrics[goal.metric] for g in groups for o in _usable(g, goal.metric, goal=True)])
    scale = Scale("linear", origin=float(np.median(raw)), unit=float(np.std(raw)) or 1.0)
    if Scale.of_goal(raw).kind == "log":
        # Small values of what is to be large need no resolution, small values of what is to be small do.
        small = goal.direction == "minimize"
        other = Scale("log") if small else Scale("offset_log", unit=float(np.median(raw)))
        tried = [_values(groups, goal.metric, s, goal=True, share=share or 0.0) for s in (scale, other)]
        values = max(tried, key=lambda v: _evidence(features, rows, v))
    else:
        values = _values(groups, goal.metric, scale, goal=True, share=share or 0.0)
    return MetricModel(goal.metric, values.scale, _fitted(features, rows, values), goal.sign, share=share)


def _evidence(features: Features, rows: Array, v: _Values) -> float:
    """Log density of the values themselves under a model on this scale, so that scales can be compared."""
    slopes = v.runs * np.log(v.scale.slope(v.scale.backward(v.mean)))
    return _fitted(features, rows, v, KERNELS[:1]).evidence + float(slopes.sum())


def _limit_model(
    features: Features, c: Constraint, groups: Sequence[_Group], rows: Array, noise: Mapping[str, float]
) -> MetricModel:
    share = noise.get(c.metric)
    raw = tame([o.metrics[c.metric] for g in groups for o in _usable(g, c.metric, goal=False)])
    scale = Scale.of_limited(raw, c.limit)
    gp = _fitted(features, rows, _values(groups, c.metric, scale, goal=False, share=share or 0.0))
    return MetricModel(c.metric, scale, gp, c.sign, limit=float(scale.forward(c.limit)), share=share)


def _failures(features: Features, groups: Sequence[_Group]) -> Failures | None:
    if not any(g.failed for g in groups):
        return None
    if len(groups) > MOST_POINTS:
        groups = [groups[i] for i in np.unique(np.linspace(0, len(groups) - 1, MOST_POINTS).astype(int))]
    rows = features.rows([g.params for g in groups])
    shares = np.array([g.failed / (g.failed + len(g.runs)) for g in groups])
    runs = np.array([g.failed + len(g.runs) for g in groups], dtype=float)
    return Failures(GP.fit(features, rows, shares, runs=runs, kernel="matern", least_noise=1e-3, shortest=0.15))
