"""What the models of a campaign say of it: which parameters matter, how, and how well the models predict.

Everything here is read off a `Surrogate`; nothing of it steers. All of it is on the scale on which a metric is
modelled (logarithmic for positive values that spread), where noise is even; values come back in the metric's unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hpcagent.later import Later
from hpcagent.model.base import Scalar
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.statistics.covariance import Array
from hpcagent.statistics.gp import GP
from hpcagent.statistics.points import inside, key
from hpcagent.statistics.sobol import scrambled_sobol
from hpcagent.statistics.surrogate import MetricModel, Surrogate
from hpcagent.statistics.trend import tame

__all__ = [
    "Bin",
    "Calibration",
    "Importance",
    "Prediction",
    "Slice",
    "calibration",
    "chances",
    "importance",
    "models",
    "predictions",
    "rank",
    "run_noise",
    "slices",
    "sobol_indices",
]

# Imported when a number is first asked for: it takes longer than the rest of a start.
special = Later("scipy.special")

DESIGN = 1024  # points of each of the two designs; a power of two, as Sobol' sequences want it
ALONG = 81  # points of a slice
SMALL_EFFECT = 0.05  # of the other parameters, in standard deviations of all runs: as good as on the slice
Z_50, Z_90 = 0.6745, 1.6449  # half widths of the central 50 % and 90 % of a normal distribution
BINS = (0.0, 0.25, 0.5, 0.75, 1.0)


def models(surrogate: Surrogate) -> tuple[MetricModel, ...]:
    """Its models, one for each metric: goals, then limits on other metrics; a limited goal has its limit."""
    found: dict[str, MetricModel] = {}
    for model in (*surrogate.goals, *surrogate.limits):
        # A limited goal is modelled twice; the one with the limit can draw it.
        found[model.metric] = model
    return tuple(found.values())


# -- importance ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Importance:
    """How much of a metric's variation over the space each parameter is responsible for.

    Attributes:
        metric: Which.
        scale: The scale it is seen on: `log`, `asinh` or `linear`.
        names: The varied parameters.
        first: Share of the variance that goes if only this parameter were fixed: it alone.
        total: Share of the variance that stays if all others were fixed: it with all it acts together with.
        predicted: Share of the runs' variance that the model predicts of runs left out (1: all).
    """

    metric: str
    scale: str
    names: tuple[str, ...]
    first: tuple[float, ...]
    total: tuple[float, ...]
    predicted: float

    @property
    def trusted(self) -> bool:
        """Whether the model predicts enough for the shares to mean anything."""
        return self.predicted >= 0.5


def sobol_indices(
    function: Callable[[Array], Array], size: int, *, n: int = DESIGN, seed: int = 0
) -> tuple[Array, Array]:
    """First-order and total variance-based indices of a function on the unit cube.

    With A and B two designs and A_i the design A with column i of B,

        ST_i = sum (f(A) - f(A_i))^2 / (2 n V)               (Jansen, Comput. Phys. Commun. 117 (1999) 35)
        S_i  = sum f(B) (f(A_i) - f(A)) / (n V)              (Saltelli et al., ibid. 181 (2010) 259, table 2 b)

    on the first points of a scrambled Sobol' sequence with a fixed seed: the same function gives the same indices.

    Args:
        function: Takes `(m, size)`, returns `(m,)`.
        size: How many parameters.
        n: Points of a design, a power of two; n (size + 2) points are looked at.
        seed: Of the scrambling.

    Returns:
        `(size,)` each; zeros where the function does not vary.

    Example:
        >>> first, total = sobol_indices(lambda u: 3 * u[:, 0] + u[:, 1], 3)
        >>> first.round(2).tolist(), total.round(2).tolist()
        ([0.9, 0.1, 0.0], [0.9, 0.1, 0.0])
    """
    cube = scrambled_sobol(2 * size, n, np.random.default_rng(seed))
    a, b = cube[:, :size], cube[:, size:]
    mixed = np.repeat(a[None], size, axis=0)
    for i in range(size):
        mixed[i, :, i] = b[:, i]
    values = function(np.vstack([a, b, mixed.reshape(size * n, size)]))
    both = values[: 2 * n]
    centre, variance = float(both.mean()), float(both.var())
    if not variance > 1e-20 * max(1.0, centre**2):
        return np.zeros(size), np.zeros(size)
    of_a, of_b = values[:n] - centre, values[n : 2 * n] - centre
    of_mixed = values[2 * n :].reshape(size, n) - centre
    first = (of_b * (of_mixed - of_a)).mean(axis=1) / variance
    total = 0.5 * ((of_a - of_mixed) ** 2).mean(axis=1) / variance
    return np.asarray(first), np.asarray(total)


def importance(surrogate: Surrogate, *, n: int = DESIGN) -> tuple[Importance, ...]:
    """The indices of the expected value of each metric over the whole space, each choice with an equal share."""
    features = surrogate.features
    found = []
    for model in models(surrogate):
        gp = model.gp

        def expected(cube: Array, gp: GP = gp) -> Array:
            return gp.predict(features.snapped(features.from_cube(cube)))[0]

        first, total = sobol_indices(expected, features.size, n=n)
        found.append(
            Importance(
                model.metric,
                model.scale.kind,
                features.names,
                _shares(first),
                _shares(total),
                _predicted_share(model),
            )
        )
    return tuple(found)


def _shares(indices: Array) -> tuple[float, ...]:
    # What lies below 0 or above 1 is the estimator's own error.
    return tuple(float(s) for s in np.clip(indices, 0.0, 1.0))


def _predicted_share(model: MetricModel) -> float:
    mean, _ = model.gp.left_out()
    values = model.gp.centre + model.gp.unit * model.gp.y
    spread = float(((values - values.mean()) ** 2).sum())
    return 1 - float(((values - mean) ** 2).sum()) / spread if spread > 0 else 0.0


# -- slices -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slice:
    """One metric along one parameter, everything else as at one point.

    Attributes:
        metric: Which.
        name: The parameter.
        values: What the parameter is, in its unit; every value of a choice.
        mean: `(values,)` expected there, in the metric's unit.
        low, high: `(values,)` the function lies between them with 90 %.
        feasible: `(values,)` P(every limit is kept and the run completes).
        limit: The metric's limit, in its unit, or None.
        runs: The runs near the slice: (value of the parameter, value of the metric, closeness in (0, 1]).
    """

    metric: str
    name: str
    values: tuple[Scalar, ...]
    mean: Array
    low: Array
    high: Array
    feasible: Array
    limit: float | None
    runs: tuple[tuple[Scalar, float, float], ...]


def slices(
    surrogate: Surrogate,
    point: Params,
    history: Sequence[Observation],
    *,
    names: Sequence[str] | None = None,
    near: float = 0.3,
) -> tuple[Slice, ...]:
    """Every metric along every parameter through one point.

    Args:
        surrogate: The models.
        point: A point of the space.
        history: Runs; those count as near whose other parameters are so close to the point's that the model
            expects about the same there.
        names: The parameters, all by default.
        near: Least correlation with the point of the slice below a run, and least closeness.

    Returns:
        Slices of the first metric along each parameter, then those of the second.
    """
    features = surrogate.features
    limits = {c.metric: c.limit for c in surrogate.objective.constraints}
    runs = [(p, o) for o in history if o.completed and (p := inside(features.space, o.params)) is not None]
    at_runs = features.rows([p for p, _ in runs])
    at_point = features.rows([point])[0]
    found = []
    for model in models(surrogate):
        for j, name in enumerate(features.names):
            if names is not None and name not in names:
                continue
            points = _along(features.space, point, name)
            rows = features.rows(points)
            mean, sd = model.gp.predict(rows)
            columns = features.columns(j)
            close = _closeness(model, at_runs, at_point, columns, near)
            found.append(
                Slice(
                    metric=model.metric,
                    name=name,
                    values=tuple(p[name] for p in points),
                    mean=model.scale.backward(mean),
                    low=model.scale.backward(mean - Z_90 * sd),
                    high=model.scale.backward(mean + Z_90 * sd),
                    feasible=surrogate.feasible(rows) * surrogate.completes(rows),
                    limit=limits.get(model.metric),
                    runs=tuple(
                        (p[name], o.metrics[model.metric], float(c))
                        for (p, o), c in zip(runs, close, strict=True)
                        if c >= near and model.metric in o.metrics
                    ),
                )
            )
    return tuple(found)


def _closeness(model: MetricModel, runs: Array, point: Array, columns: slice, near: float) -> Array:
    """How little the other parameters of runs matter for the metric, in [0, 1]; 0 for those that are far away."""
    moved = np.repeat(point[None], len(runs), axis=0)
    moved[:, columns] = runs[:, columns]
    correlation = np.exp(-0.5 * (((runs - moved) * model.gp.scales) ** 2).sum(axis=1))
    effect = model.gp.predict(runs)[0] - model.gp.predict(moved)[0]
    small = model.gp.unit * math.hypot(SMALL_EFFECT, math.sqrt(model.gp.own_noise))
    return np.where(correlation >= near, np.exp(-0.5 * (effect / small) ** 2), 0.0)


def _along(space: Space, point: Params, name: str) -> list[Params]:
    along = [{**point, name: value} for value in space[name].levels(ALONG)]
    if space.simple:
        return along
    # Equalities are settled by the others; what is not allowed is no part of the slice.
    found = {key(p): p for q in along for p in [space.region.columns.point(q)] if name in p and space.allows(p)}
    return list(found.values())


# -- predictions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """What a model expected of a run that it did not know, beside what came out.

    Attributes:
        metric: Which.
        index: Of the run.
        value: What came out, in the metric's unit.
        mean: What was expected, in its unit.
        low, high: A run's value lies between them with 90 %: the model's error and the run's own noise.
        z: How far off, in standard deviations of such a prediction, on the scale of the model.
    """

    metric: str
    index: int
    value: float
    mean: float
    low: float
    high: float
    z: float


def run_noise(model: MetricModel, rows: Array, stated: Array) -> Array:
    """Standard deviation of single runs about the function, on the model's scale.

    Args:
        model: The model; what it found of the noise comes in addition to what is known of it beforehand.
        rows: `(m, columns)` where.
        stated: `(m,)` standard errors that the runs state, in its unit; 0 where they state none.
    """
    expected = model.scale.backward(model.gp.predict(rows)[0])
    known = tame(np.where(np.isfinite(stated), tame(stated), 0.0) * model.scale.slope(expected))
    return model.one_run(rows, stated=known)


def predictions(surrogate: Surrogate, runs: Sequence[Observation]) -> tuple[Prediction, ...]:
    """What the models say of runs that they were not fitted to.

    Left out are failed runs, values that are only bounds, and speeds of runs that did not have their core.
    """
    goals = {g.metric for g in surrogate.objective.goals}
    found = []
    for model in models(surrogate):
        known = [
            (p, o)
            for o in runs
            if o.completed
            and math.isfinite(o.metrics.get(model.metric, math.nan))
            and model.metric not in o.bounds
            and not (o.distrusted and model.metric in goals)
            and (p := inside(surrogate.features.space, o.params)) is not None
        ]
        if not known:
            continue
        rows = surrogate.features.rows([p for p, _ in known])
        mean, sd = model.gp.predict(rows)
        values = np.array([o.metrics[model.metric] for _, o in known])
        stated = np.array([o.uncertainty.get(model.metric, 0.0) for _, o in known])
        whole = np.hypot(sd, run_noise(model, rows, stated))
        z = (model.scale.forward(values) - mean) / whole
        low, high = model.scale.backward(mean - Z_90 * whole), model.scale.backward(mean + Z_90 * whole)
        middle = model.scale.backward(mean)
        found += [
            Prediction(
                model.metric, o.index, float(v), float(middle[i]), float(low[i]), float(high[i]), float(z[i])
            )
            for i, ((_, o), v) in enumerate(zip(known, values, strict=True))
        ]
    return tuple(found)


def chances(surrogate: Surrogate, runs: Sequence[Observation]) -> tuple[tuple[float, bool], ...]:
    """(P(completes, and the values it measures keep every limit), whether it did so) of runs not fitted to.

    The values of a run have its noise, so this is not the P(feasible) of the point. A run whose limited metric is
    only a bound, or that has none, does not count.
    """
    limited = {c.metric for c in surrogate.objective.constraints}
    known = [
        (p, o)
        for o in runs
        if (
            o.failed
            or _broke(o, limited)
            or (o.completed and limited <= set(o.metrics) and not limited & set(o.bounds))
        )
        and (p := inside(surrogate.features.space, o.params)) is not None
    ]
    if not known:
        return ()
    rows = surrogate.features.rows([p for p, _ in known])
    chance = surrogate.completes(rows)
    for model in surrogate.limits:
        stated = np.array([o.uncertainty.get(model.metric, 0.0) for _, o in known])
        chance = chance * special.ndtr(model.room(rows, noise=run_noise(model, rows, stated)))
    return tuple((float(x), _kept(surrogate.objective, o)) for x, (_, o) in zip(chance, known, strict=True))


def _broke(o: Observation, limited: set[str]) -> bool:
    """Whether it was stopped early because it would have broken a limit."""
    return o.stopped and not limited.isdisjoint(o.bounds)


def _known(o: Observation, limited: set[str]) -> bool:
    return o.completed and limited <= set(o.metrics) and not limited & set(o.bounds)


def _kept(objective: Objective, o: Observation) -> bool:
    return o.completed and all(c.excess(o.metrics[c.metric]) <= 0 for c in objective.constraints)


@dataclass(frozen=True)
class Calibration:
    """How predictions of one metric compare with what came out.

    Attributes:
        metric: Which.
        runs: How many predictions.
        within_50, within_90: Share of the runs inside the central 50 % and 90 % of what was predicted.
        error_50, error_90: Standard deviation that these shares have by chance where the models are right.
        rms: Root mean square of z: 1 where the stated errors are right, more where they are too small.
        bias: Mean of z.
    """

    metric: str
    runs: int
    within_50: float
    error_50: float
    within_90: float
    error_90: float
    rms: float
    bias: float

    @property
    def verdict(self) -> str:
        """In words, where there are enough runs to say."""
        if self.runs < 8:
            return "too few to say"
        # Both shares, and the width: with n values, rms z has a standard deviation of about 1 / sqrt(2 n).
        off = 2 / math.sqrt(2 * self.runs)
        if self.within_90 < 0.9 - 2 * self.error_90 or self.within_50 < 0.5 - 2 * self.error_50:
            return "errors stated too small"
        if self.within_50 > 0.5 + 2 * self.error_50 and self.rms < 1 - off:
            return "errors stated too large"
        return "as stated" if self.rms < 1 + 2 * off else "as stated, but for a few far off"


def calibration(found: Sequence[Prediction]) -> tuple[Calibration, ...]:
    """Of each metric, in the order in which they first appear.

    Example:
        >>> runs = [Prediction("y", i, 0.0, 0.0, -1.0, 1.0, z) for i, z in enumerate((-0.5, 0.2, 1.0, 3.0))]
        >>> calibration(runs)[0].within_50, calibration(runs)[0].within_90
        (0.5, 0.75)
    """
    by_metric: dict[str, list[float]] = {}
    for p in found:
        by_metric.setdefault(p.metric, []).append(p.z)
    return tuple(_calibration(metric, np.array(z)) for metric, z in by_metric.items())


def _calibration(metric: str, z: Array) -> Calibration:
    n = len(z)
    return Calibration(
        metric=metric,
        runs=n,
        within_50=float((np.abs(z) <= Z_50).mean()),
        error_50=math.sqrt(0.5 * 0.5 / n),
        within_90=float((np.abs(z) <= Z_90).mean()),
        error_90=math.sqrt(0.9 * 0.1 / n),
        rms=float(np.sqrt((z**2).mean())),
        bias=float(z.mean()),
    )


@dataclass(frozen=True)
class Bin:
    """Predicted probabilities in a range, and how often it came true.

    Attributes:
        low, high: The range.
        runs: How many predictions fell into it.
        predicted: Their mean.
        share: How often it came true.
        error: Standard deviation that this share has by chance, if the predictions are right.
    """

    low: float
    high: float
    runs: int
    predicted: float
    share: float
    error: float

    @classmethod
    def of(cls, found: Sequence[tuple[float, bool]], edges: Sequence[float] = BINS) -> tuple[Bin, ...]:
        """The bins that have predictions.

        Example:
            >>> [(b.runs, b.share) for b in Bin.of([(0.1, False), (0.9, True), (0.95, False)])]
            [(1, 0.0), (2, 0.5)]
        """
        p = np.array([x for x, _ in found])
        true = np.array([t for _, t in found], dtype=float)
        bins = []
        for low, high in pairwise(edges):
            at = (p >= low) & ((p < high) | ((high == edges[-1]) & (p == high)))
            n = int(at.sum())
            if n:
                error = math.sqrt(float((p[at] * (1 - p[at])).sum())) / n
                bins.append(cls(low, high, n, float(p[at].mean()), float(true[at].mean()), error))
        return tuple(bins)


def rank(surrogate: Surrogate, params: Mapping[str, Scalar]) -> tuple[int, int] | None:
    """Where a point stands by its predicted goal among the points with a run and itself: (place, of how many)."""
    point = inside(surrogate.features.space, params)
    if point is None:
        return None
    model = surrogate.goals[0]
    here = model.sign * model.gp.predict(surrogate.features.rows([point]))[0][0]
    known = model.sign * model.gp.predict(surrogate.rows)[0]
    others = [v for v, p in zip(known, surrogate.points, strict=True) if p != point]
    return 1 + sum(bool(v > here) for v in others), 1 + len(others)
