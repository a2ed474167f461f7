"""What it is worth to let a known run go on, beside running its point again or a new one.

A run's error has two parts. What its own series tells (`Observation.uncertainty`) falls as 1 / sqrt(length). What
its start decides (the noise that the model fits, from repeats where there are any) stays, however long it goes on;
only a further run averages it. With v the variance of a point's mean now and v' < v then, a longer run tells as
much as another, independent reading of variance w there: 1/w = 1/v' - 1/v. So the same expected gain of the answer
(`acquisition.answer_gain`) compares it with a repeat and with a new point, each for what it costs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcagent.model.extended import MOST_TIMES
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.statistics.acquisition import answer_gain
from hpcagent.statistics.covariance import Array
from hpcagent.statistics.points import Key, key
from hpcagent.statistics.surrogate import MetricModel, Surrogate

__all__ = ["FACTORS", "Costs", "Worth", "extendable", "most_worth", "of_an_ordinary_run"]

FACTORS = (2.0, 4.0, 8.0)
"""How many times longer a policy makes a run: what is worth most for its cost. It may go on again. Shorter steps
(1.5) gave more runs and no better answers (`benchmarks/extend.py --factors`)."""
LEAST_COST = 1e-3  # of an ordinary run


@dataclass(frozen=True)
class Costs:
    """What runs cost, in ordinary runs of the campaign (the median of those that began anew)."""

    usual: float

    @classmethod
    def of(cls, history: Sequence[Observation]) -> Costs:
        """From the runs so far."""
        found = [_cost(o) for o in history if o.completed and o.role not in ("extended", "told", "earlier")]
        found = [cost for cost in found if cost > 0]
        return cls(float(np.median(found)) if found else 0.0)

    def again(self, runs: Sequence[Observation]) -> float:
        """Of a further run of this point."""
        own = [_cost(o) for o in runs if o.completed and o.role not in ("extended", "told", "earlier")]
        own = [cost for cost in own if cost > 0]
        return max(float(np.median(own)) / self.usual, LEAST_COST) if own and self.usual else 1.0

    def longer(self, o: Observation, factor: float) -> float:
        """Of making a run `factor` times longer."""
        if not self.usual or o.extendable_s is None:
            return 1.0
        rate = o.node_hours / o.wall_s if o.wall_s > 0 and o.node_hours > 0 else 1.0
        return max(o.extendable_s * o.times * (factor - 1.0) * rate / self.usual, LEAST_COST)


def _cost(o: Observation) -> float:
    return o.node_hours or o.wall_s


class Worth(NamedTuple):
    """The extension that is worth most.

    Attributes:
        params: Its point.
        row: The same as the model has it.
        run: Of what.
        factor: How many times longer it is to be.
        gain: By how much the answer is expected to become better, on the scale of the goal's model.
        cost: In ordinary runs.
        error: Standard error of the point's goal now and then, as far as its runs decide, on that scale.
    """

    params: Params
    row: Array
    run: Observation
    factor: float
    gain: float
    cost: float
    error: tuple[float, float]


def extendable(
    located: Sequence[tuple[Params, Observation]], waiting: Collection[Key]
) -> list[tuple[Params, Observation, int]]:
    """Runs that can go on, the one of each point that tells least so far; and how many runs the point has.

    Args:
        located: The history, with points.
        waiting: Points of which something is under way.
    """
    groups: dict[Key, tuple[Params, list[Observation]]] = {}
    for params, o in located:
        if o.completed:
            groups.setdefault(key(params), (params, []))[1].append(o)
    found = []
    for mark, (params, runs) in groups.items():
        able = [o for o in runs if _able(o)]
        if able and mark not in waiting:
            found.append((params, min(able, key=lambda o: (o.times, o.index)), len(runs)))
    return found


def _able(o: Observation) -> bool:
    here = o.role not in ("told", "earlier") and not o.origin and not o.distrusted and not o.bounds
    return here and o.extendable_s is not None and bool(_factors(o))


def _factors(o: Observation) -> list[float]:
    """How many times longer a run may be made."""
    most = MOST_TIMES if o.times_at_most is None else min(o.times_at_most, MOST_TIMES)
    return [factor for factor in FACTORS if o.times * factor <= most]


def most_worth(
    s: Surrogate,
    rows: Array,
    found: Sequence[tuple[Params, Observation, int]],
    answers: Array,
    costs: Costs,
) -> Worth | None:
    """The extension with the largest expected gain for its cost; None without any.

    Args:
        s: The models; waiting runs believed.
        rows: `(n, columns)` of the runs.
        found: The runs, from `extendable`.
        answers: `(a, columns)` what may be answered.
        costs: Of runs.
    """
    options = [(i, factor) for i, (_, o, _) in enumerate(found) for factor in _factors(o)]
    if not options:
        return None
    which = np.array([i for i, _ in options])
    asked, places = [found[i] for i in which], rows[which]
    factors = np.array([factor for _, factor in options])
    models = (*s.goals[:1], *s.limits)
    before, after = (
        np.array(v) for v in zip(*(_variances(m, places, asked, factors) for m in models), strict=True)
    )
    told = np.where(after < before, 1.0 / after - 1.0 / before, 0.0)
    with np.errstate(divide="ignore"):
        noise = np.sqrt(1.0 / told)  # infinite where a longer run tells nothing more
    gains = answer_gain(s, places, answers, noise=noise)
    prices = np.array([costs.longer(o, factor) for (_, o, _), factor in zip(asked, factors, strict=True)])
    best = int(np.argmax(gains / prices))
    if not gains[best] > 0:
        return None
    params, run, _ = asked[best]
    error = float(np.sqrt(before[0, best])), float(np.sqrt(after[0, best]))
    return Worth(params, places[best], run, float(factors[best]), float(gains[best]), float(prices[best]), error)


def of_an_ordinary_run(s: Surrogate, rows: Array, history: Sequence[Observation]) -> Array:
    """`(1 + limits, m)` standard deviation of one further run at rows: of the goal and each limit, on their scale.

    With the error that runs usually state of themselves: beside a longer run, whose error is known to fall, a
    further one must not pass for exact.
    """
    found = []
    for model in (*s.goals[:1], *s.limits):
        errors = [o.uncertainty.get(model.metric, 0.0) * np.sqrt(o.times) for o in history if o.completed]
        usual = float(np.median([e for e in errors if np.isfinite(e)] or [0.0]))
        middle = model.scale.backward(model.gp.predict(rows)[0])
        found.append(model.one_run(rows, stated=usual * model.scale.slope(middle)))
    return np.array(found)


def _variances(
    model: MetricModel, rows: Array, found: Sequence[tuple[Params, Observation, int]], factors: Array
) -> tuple[Array, Array]:
    """`(n,)` variance of each point's mean by its runs' noise, now and when the run is longer, on the scale."""
    middle = model.scale.backward(model.gp.predict(rows)[0])
    stated = np.array([o.uncertainty.get(model.metric, 0.0) for _, o, _ in found])
    stated = np.where(np.isfinite(stated), np.abs(stated), 0.0) * model.scale.slope(middle)
    then = stated / np.sqrt(factors)
    runs = np.array([float(n) for _, _, n in found])
    one, longer = model.one_run(rows, stated=stated) ** 2, model.one_run(rows, stated=then) ** 2
    least = 1e-12 * model.gp.unit**2
    before = np.maximum(one, least) / runs
    # Of the point's runs one becomes longer.
    return before, np.maximum(before - (one - longer) / runs**2, least / runs)
