"""How sure it is that nothing better was missed: the regret of an answer.

    max(0, max_x f(x) - f(answer))   over x that keep the limits and complete

by joint draws of the goal, the limits and the failures from their models, on points that cover the space, the
points that were run, and points around the best ones. One best model is too sure where few runs are: a smooth one
forgets what may lie between them. So goals and limits are taken as rough (Matern 5/2), with length scales,
variance and noise drawn from their posterior density, too. Points at which runs may well fail count in those draws
in which they complete. How often the 95 % were right is measured by benchmarks/coverage.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hpcagent.model.base import Record, Scalar
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hpcagent.statistics.covariance import Array
    from hpcagent.statistics.surrogate import MetricModel, Surrogate

__all__ = ["Missed", "missed", "undecided"]

COVERING = 2048
AROUND = 32
WIDTHS = (0.1, 0.03, 0.01)
MODELS, DRAWS = 16, 16
# Points that are drawn together: of those with such a chance to be allowed, with a hope of so many standard errors
# above the mean, the so many best ones.
LOOKED_AT = ((0.5, 0.0, 50), (0.5, 1.0, 50), (0.5, 2.5, 70), (0.2, 2.5, 70), (0.02, 2.5, 70))
# Log of a Bayes factor of 20 (Kass and Raftery, JASA 90 (1995) 773: strong evidence).
DECISIVE = 3.0
# This quantile of the draws was seen to be right in 95 % of campaigns (benchmarks/coverage.py).
CERTAIN = 0.975
NOTABLE = 0.01
LEAST = 1e-6  # of the spread of the measured values: nothing is known more precisely


LOST = 0.5  # an expected regret of so large a share of the answer is not knowing anything yet


def _brief(value: float) -> str:
    """Two digits, without an exponent where none is needed: 110, not 1.1e+02."""
    return f"{float(f'{value:.2g}'):.15g}" if 1e-4 <= abs(value) < 1e6 else f"{value:.2g}"


class Missed(Record):
    """What a better point than the answer may be worth.

    Attributes:
        metric: The goal.
        expected: Expected regret, in the goal's unit, never negative.
        share: The same as a share of the answer's value; NaN where that is small against the spread of the values
            or its own error, unless the expected regret is over half of a value that is to be small and that was
            positive in every run.
        at_most: With 95 % certainty no allowed point is better by more than this, in the goal's unit.
        notable: P(an allowed point is better by more than 1 % of the answer's value).
    """

    metric: str
    expected: float
    share: float
    at_most: float
    notable: float

    def __str__(self) -> str:
        return self.text()

    def text(self, where: str = "", unit: str = "1") -> str:
        """In words; `where` says of which points, if not of all that the app allows, and `unit` is the goal's."""
        expected, most = (
            _brief(one) + ("" if unit == "1" else f" {unit}") for one in (self.expected, self.at_most)
        )
        if np.isfinite(self.share) and self.share > LOST:
            return (
                f"too little is known to say what was missed: by the models, {self.metric} of an allowed point "
                f"may be better by {expected} on average, over half of the answer's value; run more"
            )
        where = f" {where}" if where else ""
        share = f" ({self.share:.1%})" if np.isfinite(self.share) else ""
        return (
            f"expected regret {expected}{share}: so much better in {self.metric} the best allowed "
            f"point{where} may be, on average; 95 % sure that{where} it is not better by more than "
            f"{most}, by the models"
        )


def missed(
    history: Sequence[Observation],
    objective: Objective,
    params: Params,
    *,
    space: Space,
    seed: int = 0,
    held: Mapping[str, Scalar] | None = None,
    noise: Mapping[str, float] | None = None,
) -> Missed | None:
    """Estimate what was missed by answering `params`; None where no model fits, or with several goals.

    With several goals nothing is stated: the search follows a front, and what was said of the first goal alone
    was right in 85 of 100 campaigns only. None as well where noise cannot be told apart (`undecided`).

    Args:
        history: Finished runs.
        objective: Goal and limits.
        params: The answer.
        space: Where better points are looked for.
        seed: Of the draws.
        held: Parameters that every answer has alike, e.g. the fidelity; runs with other values still teach.
        noise: Known relative standard deviation of one run, by metric; 0 where runs are exact.

    Example:
        >>> from hpcagent.model.objective import maximize
        >>> from hpcagent.model.parameter import Float
        >>> space = Space.of(x=Float(0, 1))
        >>> runs = [Observation({"x": x / 16}, metrics={"y": -(x / 16 - 0.5) ** 2}) for x in range(17)]
        >>> missed(runs, maximize("y"), {"x": 0.5}, space=space).expected < 0.002
        True
    """
    from hpcagent.statistics.acquisition import incumbents  # bring scipy, which reading a result need not
    from hpcagent.statistics.covariance import one_thread
    from hpcagent.statistics.surrogate import Surrogate

    if len(objective.goals) > 1:
        return None
    rng = np.random.default_rng([abs(seed), len(history), 9])
    try:
        s = Surrogate.fit(space, objective, history, noise=noise)
        if any(model.undecided for model in (*s.goals[:1], *s.limits)):
            return None
        f = s.features
        s = replace(s, rows=np.unique(f.held(s.rows, held or {}), axis=0))
        with one_thread():
            answer = f.rows([params])
            _, tops = incumbents(s)
            near = [
                np.where(f.numeric, np.clip(top + width * rng.standard_normal((AROUND, len(f.of))), 0, 1), top)
                for top in (*tops, *answer)
                for width in WIDTHS
            ]
            cover = f.drawn(rng, COVERING)
            rows = np.vstack([f.kept(f.held(f.snapped(np.vstack([cover, *near])), held or {})), s.rows])
            rough, rows = _rough(s), np.unique(rows, axis=0)
            regret, value = _regrets(rough, np.vstack([answer, rows[_promising(rough, rows)]]), rng)
            at_most = float(np.quantile(regret, CERTAIN))
            likely = _likely(s, rough)
            if likely is not rough:
                regret, value = _regrets(likely, np.vstack([answer, rows[_promising(likely, rows)]]), rng)
    except (ArithmeticError, np.linalg.LinAlgError):
        return None
    goal = s.goals[0]
    size = abs(float(np.median(value)))
    measured = goal.scale.backward(goal.gp.centre + goal.gp.unit * goal.gp.y)
    spread = float(np.ptp(measured))
    # A share of what is itself lost in the spread, or not known to differ from 0, says nothing.
    relative = size > max(0.01 * spread, float(value.std()))
    # More than half of a value which no run has had the other sign of: such a point would hardly be possible.
    relative |= (
        s.objective.goal.direction == "minimize"
        and bool((measured > 0).all())
        and float(regret.mean()) > LOST * size
    )
    return Missed(
        metric=goal.metric,
        expected=float(regret.mean()),
        share=float(regret.mean()) / size if relative else float("nan"),
        at_most=max(at_most, LEAST * spread),
        notable=float((regret > NOTABLE * size).mean()) if relative else float("nan"),
    )


def undecided(
    history: Sequence[Observation],
    objective: Objective,
    *,
    space: Space,
    noise: Mapping[str, float] | None = None,
) -> tuple[str, ...]:
    """The metrics whose values may as well be noise, so that nothing can be said of what was missed.

    Args:
        history: Finished runs.
        objective: Goal and limits.
        space: As for `missed`.
        noise: As for `missed`.

    Raises:
        NoFit: No model fits the runs, and why: then nothing can be said either.

    Example:
        >>> from hpcagent.model.objective import maximize
        >>> from hpcagent.model.parameter import Choice
        >>> space = Space.of(word=Choice("a", "b", "c"))
        >>> runs = [Observation({"word": w}, metrics={"y": y}) for w, y in (("a", 1.0), ("b", 2.0), ("c", 4.0))]
        >>> undecided(runs, maximize("y"), space=space)
        ('y',)
        >>> undecided(runs, maximize("y"), space=space, noise={"y": 0.0})
        ()
    """
    from hpcagent.statistics.covariance import NoFit
    from hpcagent.statistics.surrogate import Surrogate  # brings scipy, which reading a result need not

    try:
        s = Surrogate.fit(space, objective, history, noise=noise)
    except np.linalg.LinAlgError as error:
        raise NoFit(str(error)) from None
    return tuple(m.metric for m in (*s.goals[:1], *s.limits) if m.undecided)


def _rough(s: Surrogate) -> Surrogate:
    """The models with the rougher correlation."""
    return replace(
        s,
        goals=tuple(replace(m, gp=m.gp.refitted("matern")) for m in s.goals[:1]),
        limits=tuple(replace(m, gp=m.gp.refitted("matern")) for m in s.limits),
    )


def _likely(s: Surrogate, rough: Surrogate) -> Surrogate:
    """The rough models, but those of which the values tell clearly that effects of single parameters add up."""

    def chosen(evident: MetricModel, cautious: MetricModel) -> MetricModel:
        clear = evident.gp.kernel == "mixed" and evident.gp.evidence > cautious.gp.evidence + DECISIVE
        return evident if clear else cautious

    pairs = zip((*s.goals[:1], *s.limits), (*rough.goals, *rough.limits), strict=True)
    models = tuple(chosen(evident, cautious) for evident, cautious in pairs)
    if all(a is b for a, b in zip(models, (*rough.goals, *rough.limits), strict=True)):
        return rough
    return replace(s, goals=models[:1], limits=models[1:])


def _promising(s: Surrogate, rows: Array) -> NDArray[np.int_]:
    """Which rows may be the best allowed ones: the highest hopes at several chances to be allowed."""
    goal = s.goals[0]
    mean, sd = goal.gp.predict(rows)
    chance = s.completes(rows) * s.feasible(rows)
    found = np.zeros(0, dtype=int)
    for least, hope, most in LOOKED_AT:
        order = np.argsort(-(goal.sign * mean + hope * sd), kind="stable")
        left = order[(chance[order] >= least) & ~np.isin(order, found)]
        found = np.concatenate([found, left[:most]])
    return found


def _regrets(s: Surrogate, rows: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """`(MODELS * DRAWS,)` draws of the regret of the first row and of its goal, larger is better."""
    goal = s.goals[0]
    goals = goal.gp.alternatives(MODELS, rng)
    limits = [model.gp.alternatives(MODELS, rng) for model in s.limits]
    regrets, own = [], []
    for i, gp in enumerate(goals):
        values = goal.sign * goal.scale.backward(_drawn(gp.joint(rows), rng))
        kept = np.ones(values.shape, dtype=bool)
        for model, alike in zip(s.limits, limits, strict=True):
            assert model.limit is not None
            kept &= model.sign * (_drawn(alike[i].joint(rows), rng) - model.limit) >= 0
        if s.failures is not None:
            kept &= _drawn(s.failures.gp.joint(rows), rng) < 0.5
        best = np.where(kept, values, -np.inf).max(axis=1)
        regrets.append(np.maximum(best - values[:, 0], 0.0))
        own.append(values[:, 0])
    return np.concatenate(regrets), np.concatenate(own)


def _drawn(joint: tuple[Array, Array], rng: np.random.Generator) -> Array:
    """`(DRAWS, m)` draws of a normal vector."""
    from scipy.linalg import lapack

    mean, covariance = joint
    normal = rng.standard_normal((DRAWS, len(mean)))
    size = max(float(np.diag(covariance).max()), 1e-300)
    lower, failed = lapack.dpotrf(covariance + 1e-7 * size * np.eye(len(mean)), lower=1)
    if failed:  # nearly all is known, and the rest is rounding
        values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
        lower = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(mean + normal @ lower.T)
