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

from hpcagent.later import Later
from hpcagent.model.objective import Constraint, Goal, Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.statistics.covariance import Array, Kernel, NoFit, one_thread
from hpcagent.statistics.failures import Failures
from hpcagent.statistics.features import Features
from hpcagent.statistics.gp import GP
from hpcagent.statistics.points import Key, key, located, usable
from hpcagent.statistics.trend import Scale, tame
from hpcagent.statistics.uneven import unevenly

__all__ = ["MetricModel", "Surrogate", "noisy"]

# Imported when a number is first asked for: it takes longer than the rest of a start.
special = Later("scipy.special")

# Of more points than this those are listed that the models think best, and an even selection of the rest.
MOST_POINTS = 200
MOST_BEST = 100
LEAST_POINTS = 3
# With more parameters than this their single effects are not modelled apart.
MOST_SINGLE = 8
KERNELS: tuple[Kernel, ...] = ("rbf", "matern", "mixed")
# A run that is better by so many standard errors than all others let expect, and better than each of them by a
# standard deviation of them all, is not believed before it is repeated.
SURPRISE = 5.0
# The model of fewer others (of one number; of more: twice as many) is not one to doubt a run by.
LEAST_TO_DOUBT = 8
# A standard error of so many times the largest value says that nothing is known; more would only overflow.
UNINFORMED = 1e6
# Noise is known to be small where at most this share of the values' variance is noise with such a probability.
LITTLE_NOISE, DECIDED = 0.1, 0.95
# Models of other length scales and noises that an error is made of, where noise is stated.
ALTERNATIVES = 32
# Log of a Bayes factor of 20 (Kass and Raftery, JASA 90 (1995) 773: strong evidence).
DECISIVE = 3.0
# What two errors of an answer have to be multiplied by to hold in 95 % of campaigns (benchmarks/coverage.py).
CAREFUL = 1.1
# Two equal repeats say that runs are exact.
REPEATS_TO_TELL = 2


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
        surprises: Groups (points) whose only run is too good to be believed before it is repeated.
        exact: Whether runs are stated to be exact, or repeats of them were equal.
        stated: Whether the noise of all runs is stated, by the contract or by the runs themselves.
        untold: Whether nobody states the noise and nothing but the values themselves tells of it: no number varies
            and runs were hardly repeated, so that values need not be alike anywhere and may as well be noise.
    """

    metric: str
    scale: Scale
    gp: GP
    sign: float
    limit: float | None = None
    share: float | None = None
    surprises: tuple[int, ...] = ()
    exact: bool = False
    stated: bool = False
    untold: bool = False

    def values(self, rows: Array) -> tuple[Array, Array]:
        """Median and standard error of the metric at rows, in its unit."""
        mean, sd = self.gp.predict(rows)
        middle = self.scale.backward(mean)
        return middle, sd / np.maximum(self.scale.slope(middle), 1e-300)

    def cautious(self, rows: Array) -> tuple[Array, Array]:
        """As `values`, over rougher models of other lengths and noises, by how much the values speak for each.

        The most probable one alone is too sure: on ten noisy functions 65 to 77 % of answers were within two of
        its errors, and 92 to 93 % within two of these models', which therefore count `CAREFUL` times. Where nobody
        states the noise, every share of it is as likely beforehand. benchmarks/coverage.py measures it.
        """
        if self.exact:
            return self.values(rows)
        gps, weights, _ = self._all_alike
        each = [gp.predict(rows) for gp in gps]
        means, errors = np.array([m for m, _ in each]), np.array([e for _, e in each])
        mean = weights @ means
        sd = np.sqrt(weights @ (errors**2 + (means - mean) ** 2))
        middle = self.scale.backward(mean)
        return middle, CAREFUL * sd / np.maximum(self.scale.slope(middle), 1e-300)

    @property
    def undecided(self) -> bool:
        """Whether the values may as well be noise: that is untold, and they do not tell that it is small."""
        if not self.untold:
            return False
        _, weights, shares = self._by_noise
        return float(weights[shares <= LITTLE_NOISE].sum()) < DECIDED

    @cached_property
    def _by_noise(self) -> tuple[list[GP], Array, Array]:
        return self.gp.by_noise()

    @cached_property
    def _all_alike(self) -> tuple[list[GP], Array, Array]:
        """The models of `cautious`, their weights and their shares of noise."""
        if self.untold:
            return self._by_noise
        rough = self.gp.refitted("matern")
        model = self.gp if self.gp.evidence > rough.evidence + DECISIVE else rough
        if not self.stated:
            return model.by_noise()
        gps = model.alternatives(ALTERNATIVES, np.random.default_rng(0))
        return gps, np.full(len(gps), 1 / len(gps)), np.array([gp.own_noise for gp in gps])

    def scatter(self, rows: Array) -> Array:
        """Standard deviation of a single run at rows in the metric's unit, over the models of `cautious`."""
        gps, weights, _ = self._all_alike
        own = np.array([gp.run_noise(rows) for gp in gps])
        middle, _ = self.cautious(rows)
        variance = (weights @ own) * self.gp.unit**2 + self._stated(self.scale.forward(middle))
        return np.asarray(np.sqrt(variance) / np.maximum(self.scale.slope(middle), 1e-300))

    def one_run(self, rows: Array, *, stated: Array | float = 0.0) -> Array:
        """Standard deviation of a single run about the function at rows, on the scale.

        Args:
            rows: `(m, columns)`.
            stated: Standard errors that the runs state of themselves, on the scale.
        """
        own = self.gp.run_noise(rows) * self.gp.unit**2
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

    def room(self, rows: Array, *, noise: Array | float = 0.0) -> Array:
        """Distance to the limit in standard errors at rows; positive where it is kept.

        Args:
            rows: `(m, columns)`.
            noise: Of a run there, on the scale, for the values of runs in place of the function's.
        """
        assert self.limit is not None
        mean, sd = self.gp.predict(rows)
        return np.asarray(self.sign * (mean - self.limit) / np.hypot(sd, noise))


@dataclass(frozen=True)
class Surrogate:
    """The models of a campaign.

    Attributes:
        features: What the columns of rows mean.
        objective: Goals and limits.
        goals: A model for each goal.
        limits: A model for each limit.
        failures: Where runs fail, or None if none did.
        rows: `(n, columns)` every point with a completed run that has the objective's metrics; of many, some.
        points: The same as parameters.
        used: Every point with a run, completed or failed.
        noisy: Whether another run of a point may come out differently.
        surprising: Points whose only run is too good to be believed before it is repeated.
    """

    features: Features
    objective: Objective
    goals: tuple[MetricModel, ...]
    limits: tuple[MetricModel, ...]
    failures: Failures | None
    rows: Array
    points: tuple[Params, ...]
    used: frozenset[Key] = frozenset()
    noisy: bool = True
    surprising: tuple[Params, ...] = ()

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
        whole = sum(objective.known(g.first) for g in groups)
        completed = [g for g in groups if objective.known(g.first) or g.bounds(objective)]
        if whole < LEAST_POINTS or not features.size:
            raise NoFit(f"{whole} point{'s' * (whole != 1)} with a completed run; a model needs {LEAST_POINTS}")
        rows = features.rows([g.params for g in completed])
        noise = noise or {}
        with one_thread():
            found = cls(
                features=features,
                objective=objective,
                goals=tuple(_goal_model(features, goal, completed, rows, noise) for goal in objective.goals),
                limits=tuple(_limit_model(features, c, completed, rows, noise) for c in objective.constraints),
                failures=_failures(features, groups),
                rows=rows,
                points=tuple(g.params for g in completed),
                used=frozenset(key(g.params) for g in groups),
                noisy=_noisy(groups, objective, noise),
            )
            wondered = {i for m in (*found.goals, *found.limits) for i in m.surprises}
            found = replace(found, surprising=tuple(completed[i].params for i in sorted(wondered)))
            return found if len(rows) <= MOST_POINTS else found._listing()

    def _listing(self) -> Surrogate:
        """With the points that the models think best, and an even selection of the rest.

        Never by what was measured: the best of many noisy runs are the luckiest.
        """
        goal = self.goals[0]
        likely = self.feasible(self.rows) >= 0.5
        best = np.lexsort((-goal.sign * goal.gp.predict(self.rows)[0], ~likely))[:MOST_BEST]
        rest = np.setdiff1d(np.arange(len(self.rows)), best)
        even = rest[np.unique(np.linspace(0, len(rest) - 1, MOST_POINTS - MOST_BEST).astype(int))]
        listed = np.sort(np.concatenate([best, even]))
        return replace(self, rows=self.rows[listed], points=tuple(self.points[i] for i in listed))

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
            p *= special.ndtr(model.room(rows))
        return p

    def completes(self, rows: Array) -> Array:
        """P(a run does not fail) at rows."""
        return np.ones(len(rows)) if self.failures is None else self.failures.completes(rows)

    def log_completes(self, rows: Array, *, slopes: bool = True) -> tuple[Array, Array]:
        """Log P(a run does not fail) at rows, and its derivative by the columns, where it is needed."""
        if self.failures is None:
            return np.zeros(len(rows)), np.zeros(rows.shape)
        return self.failures.log_completes(rows, slopes=slopes)

    def log_feasible(
        self, rows: Array, *, bold: float = 0.0, spare: float = 0.0, slopes: bool = True
    ) -> tuple[Array, Array]:
        """Log P(every limit is kept) at rows, and its derivative by the columns, where it is needed."""
        total, slope = np.zeros(len(rows)), np.zeros(rows.shape)
        for model in self.limits:
            assert model.limit is not None
            mean, sd, dmean, dsd = model.gp.slopes(rows, needed=slopes)
            margin = spare * model.one_run(rows) if spare else 0.0
            z = (model.sign * (mean - model.limit) - margin) / sd
            dz = (model.sign * dmean - z[:, None] * dsd) / sd[:, None]
            z = z + bold
            log_p = special.log_ndtr(z)
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
        return next((o.metrics for o in self.runs if not o.stopped), {})

    def telling(self, metric: str) -> list[Observation]:
        """The runs that have the metric; a bound of one that was stopped early only where none went to its end."""
        whole = [o for o in self.runs if not o.stopped]
        return whole if any(metric in o.metrics for o in whole) else list(self.runs)

    def bounds(self, objective: Objective) -> bool:
        """Whether a run that was stopped early tells a bound of one of the objective's metrics."""
        return any(o.stopped and not o.bounds.keys().isdisjoint(objective.metrics) for o in self.runs)


def _grouped(runs: Sequence[tuple[Params, Observation]]) -> list[_Group]:
    found: dict[object, tuple[Params, list[Observation], list[int]]] = {}
    for params, o in runs:
        entry = found.setdefault(key(params), (params, [], [0, len(found)]))
        if not o.failed:  # one that was stopped early has not failed: its bounds are data
            entry[1].append(o)
        else:
            entry[2][0] += 1
    return [_Group(p, tuple(rs), counts[0], counts[1]) for p, rs, counts in found.values()]


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
        doubt: `(n,)` variance of values that are not believed yet, on the scale.
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
    doubt: Array

    def but(self, i: int) -> _Values:
        """Without value `i`."""
        rest = np.arange(len(self.at)) != i
        return _Values(
            at=self.at[rest],
            scale=self.scale,
            mean=self.mean[rest],
            runs=self.runs[rest],
            fixed=self.fixed[rest],
            shares=self.shares[rest],
            squares=self.squares[rest],
            freedom=self.freedom[rest],
            above=self.above[rest],
            below=self.below[rest],
            doubt=self.doubt[rest],
        )

    def known(self, expected: Array) -> Array:
        """`(n,)` variance of each mean that is known beforehand, where these values are expected, on the scale."""
        middle = self.scale.backward(expected)
        return np.asarray((self.fixed + self.shares * middle**2) * self.scale.slope(middle) ** 2 + self.doubt)


@dataclass(frozen=True)
class _Readings:
    """One metric as the runs measured it.

    Attributes:
        at: `(n,)` the groups that have it.
        size: `(n,)` how many of their runs do.
        raw: `(runs,)` the values, group by group.
        errors: `(runs,)` standard errors that the runs state; 0 where they state none.
        above, below: `(n,)` whether a value is only a bound.
    """

    at: NDArray[np.int_]
    size: NDArray[np.int_]
    raw: Array
    errors: Array
    above: NDArray[np.bool_]
    below: NDArray[np.bool_]

    @classmethod
    def of(cls, groups: Sequence[_Group], metric: str, *, goal: bool) -> _Readings:
        used = [(i, runs) for i, g in enumerate(groups) if (runs := usable(g.telling(metric), metric, goal=goal))]
        every = [o for _, runs in used for o in runs]
        raw = tame([o.metrics[metric] for o in every])
        errors = np.array([o.uncertainty.get(metric, 0.0) for o in every])
        errors = np.where(np.isfinite(errors), np.abs(errors), 0.0)
        sides = [{o.bounds.get(metric) for o in runs} for _, runs in used]
        return cls(
            at=np.array([i for i, _ in used], dtype=int),
            size=np.array([len(runs) for _, runs in used], dtype=int),
            raw=raw,
            errors=np.minimum(errors, UNINFORMED * (float(np.abs(raw).max(initial=0.0)) or 1.0)),
            above=np.array(["above" in s for s in sides], dtype=bool),
            below=np.array(["below" in s for s in sides], dtype=bool),
        )

    def on(self, scale: Scale, share: float | None) -> _Values:
        """The means on a scale, with noise that is known as a share of the value."""
        first = np.concatenate([[0], np.cumsum(self.size)[:-1]])
        fixed, shares = _stated(self.raw, self.errors, share or 0.0)
        v = scale.forward(self.raw)
        mean = np.add.reduceat(v, first) / self.size
        return _Values(
            at=self.at,
            scale=scale,
            mean=mean,
            runs=self.size.astype(float),
            fixed=np.add.reduceat(fixed**2, first) / self.size**2,
            shares=np.add.reduceat(shares**2, first) / self.size**2,
            squares=np.add.reduceat((v - np.repeat(mean, self.size)) ** 2, first),
            freedom=(self.size - 1).astype(float),
            above=self.above,
            below=self.below,
            doubt=np.zeros(len(self.at)),
        )

    def without(self, i: int, run: int) -> _Readings:
        """Without one run of value `i`, which has others."""
        place = int(self.size[:i].sum()) + run
        size = self.size.copy()
        size[i] -= 1
        return replace(self, size=size, raw=np.delete(self.raw, place), errors=np.delete(self.errors, place))


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
    if (known > v.doubt).any():
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
        hazard = np.exp(-0.5 * z * z - special.log_ndtr(-z)) / math.sqrt(2 * math.pi)
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
    read = _Readings.of(groups, goal.metric, goal=True)
    scale = Scale("linear", origin=float(np.median(read.raw)), unit=float(np.std(read.raw)) or 1.0)
    values = read.on(scale, share)
    if Scale.of_goal(read.raw).kind == "log":
        # Small values of what is to be large need no resolution, small values of what is to be small do.
        small = goal.direction == "minimize"
        other = Scale("log") if small else Scale("offset_log", unit=float(np.median(read.raw)))
        values = max((values, read.on(other, share)), key=lambda v: _evidence(features, rows, v))
    gp, doubted = _believed(features, rows, read, values, share, goal.sign)
    told = _told(features, values, share)
    return MetricModel(goal.metric, values.scale, gp, goal.sign, share=share, surprises=doubted, **told)


def _told(features: Features, v: _Values, share: float | None) -> dict[str, bool]:
    """What is known of the noise beforehand (`MetricModel.exact`, `stated`, `untold`)."""
    stated = share is not None or bool(((v.fixed > 0) | (v.shares > 0)).all())
    repeated = float(v.freedom.sum()) >= REPEATS_TO_TELL
    return {
        "exact": share == 0.0 or (not stated and repeated and not v.squares.any()),
        "stated": stated,
        "untold": not (stated or features.numeric.any() or repeated),
    }


def _evidence(features: Features, rows: Array, v: _Values) -> float:
    """Log density of the values themselves under a model on this scale, so that scales can be compared."""
    slopes = v.runs * np.log(v.scale.slope(v.scale.backward(v.mean)))
    return _fitted(features, rows, v, KERNELS[:1]).evidence + float(slopes.sum())


def _limit_model(
    features: Features, c: Constraint, groups: Sequence[_Group], rows: Array, noise: Mapping[str, float]
) -> MetricModel:
    share = noise.get(c.metric)
    read = _Readings.of(groups, c.metric, goal=False)
    scale = Scale.of_limited(read.raw, c.limit)
    gp, doubted = _believed(features, rows, read, read.on(scale, share), share, c.sign)
    limit, told = float(scale.forward(c.limit)), _told(features, read.on(scale, share), share)
    return MetricModel(c.metric, scale, gp, c.sign, limit=limit, share=share, surprises=doubted, **told)


def _believed(
    features: Features, rows: Array, read: _Readings, v: _Values, share: float | None, sign: float
) -> tuple[GP, tuple[int, ...]]:
    """The model without runs that are too good to be true, and the groups where such a run is the only one.

    Such a run is compared with a model of all others. The only run of a point stays, with its surprise as its
    noise; beside other runs of the same point that say otherwise it is left out; runs that agree are believed.
    What is too bad is believed: it costs less than what is too good.
    """
    gp = _fitted(features, rows, v)
    looked: set[int] = set()
    doubted: list[int] = []
    while share != 0.0 and len(v.at) >= LEAST_TO_DOUBT * min(features.size, 2) and len(looked) < 3:
        first = np.concatenate([[0], np.cumsum(read.size)[:-1]])
        highest = np.maximum.reduceat(sign * v.scale.forward(read.raw), first)
        highest[[*looked, *np.flatnonzero(v.above | v.below)]] = -math.inf
        i = int(np.argmax(highest))
        looked.add(i)
        too_good = _too_good(features, rows, read, v, gp, i, sign)
        if too_good is None:
            break
        run, surprise = too_good
        if read.size[i] > 1:
            read = read.without(i, run)
            v = replace(read.on(v.scale, share), doubt=v.doubt)
        else:
            doubt = v.doubt.copy()
            doubt[i] = surprise**2
            v = replace(v, doubt=doubt)
            doubted.append(int(v.at[i]))
        gp = _fitted(features, rows, v)
    return gp if share == 0.0 else unevenly(gp), tuple(doubted)


def _too_good(
    features: Features, rows: Array, read: _Readings, v: _Values, gp: GP, i: int, sign: float
) -> tuple[int, float] | None:
    """The one run of value `i` that is too good by a model of the others, and by how much; None where none is."""
    rest = sign * np.delete(v.mean, i)
    beyond = float(rest.max() + rest.std())
    first = int(read.size[:i].sum())
    values = sign * v.scale.forward(read.raw[first : first + read.size[i]])
    if values.max() <= beyond:
        return None
    here = rows[v.at[i : i + 1]]
    if len(v.at) <= MOST_POINTS:
        others = v.but(i)
        gp = _of(features, rows, others, others.known(others.mean), KERNELS[:1])
    mean, sd = gp.predict(here)
    known = float(v.known(np.full(len(v.at), mean[0]))[i] - v.doubt[i]) * v.runs[i]
    one_run = math.sqrt(float(sd[0]) ** 2 + gp.own_noise * gp.unit**2 + known)
    off = values - sign * mean[0]
    good = np.flatnonzero((off > SURPRISE * one_run) & (values > beyond))
    return (int(good[0]), float(off[good[0]])) if len(good) == 1 else None


def noisy(
    runs: Sequence[tuple[Params, Observation]], objective: Objective, noise: Mapping[str, float] | None = None
) -> bool:
    """Whether another run may come out differently: not where noise is known to be 0, or repeats are equal.

    Args:
        runs: The runs with their points.
        objective: Whose metrics count.
        noise: As for `Surrogate.fit`.
    """
    return _noisy(_grouped(runs), objective, noise or {})


def _noisy(groups: Sequence[_Group], objective: Objective, noise: Mapping[str, float]) -> bool:
    if all(noise.get(m) == 0.0 for m in objective.metrics):
        return False
    repeats = 0
    for group in groups:
        whole = [o for o in group.runs if not o.stopped]
        if len(whole) > 1:
            repeats += len(whole) - 1
            if any(o.metrics.get(m) != group.first.get(m) for o in whole for m in objective.metrics):
                return True
    return repeats < REPEATS_TO_TELL


def _failures(features: Features, groups: Sequence[_Group]) -> Failures | None:
    if not any(g.failed for g in groups):
        return None
    if len(groups) > MOST_POINTS:
        groups = [groups[i] for i in np.unique(np.linspace(0, len(groups) - 1, MOST_POINTS).astype(int))]
    rows = features.rows([g.params for g in groups])
    shares = np.array([g.failed / (g.failed + len(g.runs)) for g in groups])
    runs = np.array([g.failed + len(g.runs) for g in groups], dtype=float)
    return Failures.fit(features, rows, shares, runs)
