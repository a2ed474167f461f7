"""What a run at a point is expected to be worth: improvements times the chance to keep the limits and complete.

    log alpha(x) = log sd(x) (h(z) + floor) + sum_c log P(limit c is kept at x) + log P(a run at x completes)
                   + log(room beside the waiting points)
    z = (mean(x) - best) / sd(x),   h(z) = phi(z) + z Phi(z)

Expected improvement under constraints (Jones, Schonlau, Welch 1998; Gardner et al., ICML 2014), in logarithms so
that gradients don't vanish (Ament et al., NeurIPS 2023). The floor keeps the search inside of what is allowed
where nothing is to be gained. `best` is the best mean of a point that probably keeps the limits, not the luckiest
run; its value counts as known, so a second run there gains nothing, and elsewhere the noise of what was measured
stays in sd. Several goals are followed by hypervolume scalarisation (Zhang and Golovin, ICML 2020): a random
weight for each suggestion; the mean over all weights is the gain of hypervolume.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hpcagent.later import Later
from hpcagent.model.objective import pareto_front
from hpcagent.statistics.covariance import Array
from hpcagent.statistics.sobol import scrambled_sobol
from hpcagent.statistics.surrogate import MetricModel, Surrogate

special = Later("scipy.special")

__all__ = ["Acquisition", "answer_gain", "incumbents"]

FLOOR = 1e-5
# Limits that a bold suggestion takes as if they were this many standard errors kinder.
BOLD = 1.0
# And what is only doubted to complete, by so many standard errors of the model of failures.
DOUBT = 1.0
# A careful one keeps them with this chance, with so much of a run's noise to spare (a run that measures a broken
# limit is no answer).
SURE, SPARE = 0.95, 0.5
# A run that fails with a greater chance is not suggested, as long as there is anything else.
RISK = 0.15
BARRIER = 30.0
DRAWS = 64
# How near, as a share of a length scale, two runs of a batch crowd each other.
NEAR = 0.25


@dataclass(frozen=True)
class Acquisition:
    """The worth of points, given models and runs that are waiting.

    Attributes:
        models: The goals' models know the best and the waiting points exactly.
        best: Best mean of the goal (larger is better) that probably keeps the limits; None where there is none.
        bold: Standard errors by which limits are taken kinder.
        careful: Whether the limits have to be kept surely.
        answer: Best mean of a point that surely keeps the limits, so far.
        weights: For several goals: how much each counts in this suggestion.
        taken: `(k, columns)` the waiting points.
        crowding: `(k,)` how little another run beside each would tell: the share of noise in a run there.
    """

    models: Surrogate
    best: float | None
    bold: float = 0.0
    weights: Array | None = None
    careful: bool = False
    answer: float | None = None
    taken: Array | None = None
    crowding: Array | None = None

    @classmethod
    def of(cls, surrogate: Surrogate, rows: Array) -> Acquisition:
        """With the runs at `rows` waiting."""
        best, tops = incumbents(surrogate)
        known = tops[: int(best is not None)]
        goals = tuple(m.believing(known, exactly=True) for m in surrogate.goals)
        goal = surrogate.goals[0]
        sure = surrogate.feasible(surrogate.rows) >= SURE
        means = goal.sign * goal.gp.predict(surrogate.rows)[0]
        answer = float(means[sure].max()) if sure.any() else float(means.min())
        return cls(replace(surrogate, goals=goals), best, answer=answer).believing(rows)

    def believing(self, rows: Array) -> Acquisition:
        """As if runs at these rows had come out as expected: no second reward for the same gain."""
        if not len(rows):
            return self
        goal = self.models.goals[0]
        mean = goal.sign * goal.gp.predict(rows)[0]
        hopeful = self.models.feasible(rows) * self.models.completes(rows) >= 0.5
        best = self.best
        if hopeful.any():
            best = max(-math.inf if best is None else best, float(mean[hopeful].max()))
        noise = goal.one_run(rows) ** 2
        crowding = noise / (noise + goal.gp.predict(rows)[1] ** 2)
        if self.taken is not None and self.crowding is not None:
            rows_taken, crowding = np.vstack([self.taken, rows]), np.concatenate([self.crowding, crowding])
        else:
            rows_taken = rows
        models = self.models.believing(rows, exactly=True)
        return replace(self, models=models, best=best, taken=rows_taken, crowding=crowding)

    def _room(self, rows: Array) -> tuple[Array, Array]:
        """Log of how much is left to learn beside the waiting points, and its derivative by the columns.

        Where noise decides what a run says, several spots tell more than the same one several times.
        """
        total, slope = np.zeros(len(rows)), np.zeros(rows.shape)
        if self.taken is None or self.crowding is None:
            return total, slope
        sharp = self.models.goals[0].gp.scales / NEAR
        off = (rows[:, None, :] - self.taken) * sharp
        close = self.crowding * np.exp(-(off**2).sum(2))
        left = 1 - close + 1e-6
        return np.log(left).sum(1), ((2 * close / left)[:, :, None] * off).sum(1) * sharp

    def boldly(self) -> Acquisition:
        """The same with kinder limits, and doubts whether runs complete in their favour: what if it were so?"""
        return replace(self, bold=BOLD)

    def carefully(self) -> Acquisition:
        """An improvement of the answer: over the best point that surely keeps the limits, by one that does too."""
        return replace(self, best=self.answer, careful=True)

    def weighted(self, weights: Array) -> Acquisition:
        """For several goals: the same with weights of the goals, positive with squares that sum to 1."""
        return replace(self, weights=weights)

    def __call__(self, rows: Array, *, slopes: bool = True) -> tuple[Array, Array]:
        """Log of the worth at rows `(m, columns)`, and its derivative by the columns, unless not `slopes`.

        With several goals the derivative is that of the chances alone.
        """
        spare = SPARE if self.careful else 0.0
        log_p, dlog_p = self.models.log_feasible(rows, bold=self.bold, spare=spare, slopes=slopes)
        log_ok, dlog_ok = self.models.log_completes(rows, slopes=slopes)
        log_p, dlog_p = log_p + log_ok, dlog_p + dlog_ok
        if self.careful:
            unsure = log_p < math.log(SURE)
            log_p, dlog_p = (
                log_p + np.where(unsure, BARRIER * (log_p - math.log(SURE)), 0.0),
                dlog_p * np.where(unsure, 1 + BARRIER, 1.0)[:, None],
            )
        log_room, dlog_room = self._room(rows)
        log_p, dlog_p = log_p + log_room, dlog_p + dlog_room
        if self.models.failures is not None:
            if self.bold > 0:
                log_ok, dlog_ok = self.models.failures.log_completes(rows, doubt=DOUBT, slopes=slopes)
            risky = log_ok < math.log(1 - RISK)
            log_p = log_p + np.where(risky, BARRIER * (log_ok - math.log(1 - RISK)), 0.0)
            dlog_p = dlog_p + np.where(risky, BARRIER, 0.0)[:, None] * dlog_ok
        if self.weights is not None:
            return log_p + np.log(self._scalarised(rows) + 1e-9), dlog_p
        if self.best is None:
            return log_p, dlog_p
        goal = self.models.goals[0]
        mean, sd, dmean, dsd = goal.gp.slopes(rows, needed=slopes)
        z = np.clip((goal.sign * mean - self.best) / sd, -30, 1e6)
        phi = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        cdf = special.ndtr(z)
        h = np.maximum(phi + z * cdf, 0.0) + FLOOR
        slope = (goal.sign * (cdf / h)[:, None] * dmean + ((phi + FLOOR) / h)[:, None] * dsd) / sd[:, None]
        return log_p + np.log(sd) + np.log(h), dlog_p + slope

    def improvement(self, rows: Array) -> Array:
        """Expected improvement of the goal at rows, in its unit; NaN where nothing is allowed yet."""
        goal = self.models.goals[0]
        if self.best is None:
            return np.full(len(rows), math.nan)
        mean, sd = goal.gp.predict(rows)
        z = (goal.sign * mean - self.best) / sd
        gain = sd * (np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) + z * special.ndtr(z))
        return np.asarray(gain / goal.scale.slope(goal.scale.backward(goal.sign * np.array(self.best))))

    # Several goals

    @cached_property
    def _front(self) -> tuple[Array, Array, Array]:
        """Means of the goals at the allowed points (larger is better), and the lowest and widest of each."""
        s = self.models
        means = np.column_stack([m.sign * m.gp.predict(s.rows)[0] for m in s.goals])
        allowed = s.feasible(s.rows) >= 0.5
        known = means[allowed] if allowed.any() else means[:0]
        span = known if len(known) > 1 else means
        low = span.min(0) - 0.1 * np.maximum(np.ptp(span, axis=0), 1e-9)
        return known, low, np.maximum(np.ptp(span, axis=0), 1e-9)

    def _scalarised(self, rows: Array) -> Array:
        """Expected gain of min_j ((y_j - low_j) / w_j)^goals over the front, by quasi-random draws."""
        assert self.weights is not None
        known, low, width = self._front
        k = len(self.models.goals)

        def scalar(values: Array) -> Array:
            share = np.maximum((values - low) / width, 0.0)
            return np.asarray((share / self.weights).min(-1) ** k)

        best = float(scalar(known).max()) if len(known) else 0.0
        normal = special.ndtri(np.clip(scrambled_sobol(k, DRAWS, 1), 1e-6, 1 - 1e-6))
        drawn = np.empty((DRAWS, len(rows), k))
        for j, model in enumerate(self.models.goals):
            mean, sd = model.gp.predict(rows)
            drawn[:, :, j] = model.sign * mean + normal[:, j, None] * sd
        return np.asarray(np.maximum(scalar(drawn) - best, 0.0).mean(0))


def answer_gain(s: Surrogate, options: Array, answers: Array, *, noise: Array | None = None) -> Array:
    """How much better the answer is expected to become by one run, with its noise, at each of the options.

        E[max_a P'(a) (mean'(a) - low)] - max_a P(a) (mean(a) - low)

    with the means of the first goal and the chances P to keep the limits as they will be after the run: the
    knowledge gradient (Frazier, Powell, Dayanik, INFORMS J. Comput. 2009), with limits. It takes a repeat of a
    known point and a new point for what they are, runs that teach. `low` is the lowest mean of the answers.

    Args:
        s: The models; waiting runs believed.
        options: `(m, columns)` where the run may be.
        answers: `(a, columns)` what may be answered.
        noise: `(1 + limits, m)` standard deviation of what each option tells of the goal and each limit, on their
            scales; that of a run if None.

    Returns:
        `(m,)`, on the scale of the goal's model, times the chance that the run completes.
    """
    goal = s.goals[0]
    uniform = scrambled_sobol(1 + len(s.limits), DRAWS, 1)
    normal = special.ndtri(np.clip(uniform, 1e-4, 1 - 1e-4))
    normal -= normal.mean(0)
    mean = goal.sign * goal.gp.predict(answers)[0]
    lifted = mean - mean.min()
    chance = np.ones(len(answers))
    then = lifted + normal[:, :1, None] * _told(goal, options, answers, None if noise is None else noise[0])
    for j, model in enumerate(s.limits, start=1):
        assert model.limit is not None
        middle, sd = model.gp.predict(answers)
        chance = chance * special.ndtr(model.sign * (middle - model.limit) / sd)
        told = _told(model, options, answers, None if noise is None else noise[j])
        left = np.sqrt(np.maximum(sd**2 - told**2, 1e-6 * sd**2))
        then = then * special.ndtr(model.sign * (middle + normal[:, j, None, None] * told - model.limit) / left)
    gain = then.max(2).mean(0) - (chance * lifted).max()
    return np.asarray(s.completes(options) * np.maximum(gain, 0.0))


def _told(model: MetricModel, options: Array, answers: Array, noise: Array | None) -> Array:
    """`(m, a)` standard deviation by which a run at each option moves the mean at each answer."""
    sd = np.hypot(model.gp.predict(options)[1], model.one_run(options) if noise is None else noise)
    return model.gp.covariances(options, answers) / sd[:, None]


def incumbents(s: Surrogate, most: int = 3) -> tuple[float | None, Array]:
    """Best mean of the first goal among points that probably keep the limits, and rows of the best points.

    With several goals the rows are those of the front, and the best mean only says whether anything is allowed.
    """
    goal = s.goals[0]
    mean = goal.sign * goal.gp.predict(s.rows)[0]
    p = s.feasible(s.rows)
    allowed = np.flatnonzero(p >= 0.5)
    if not len(allowed):
        return None, s.rows[np.argsort(-p, kind="stable")[:most]]
    order = allowed[np.argsort(-mean[allowed], kind="stable")]
    if len(s.goals) > 1:
        found = [
            {g.metric: float(v) for g, v in zip(s.objective.goals, values, strict=True)}
            for values in np.column_stack([m.values(s.rows[allowed])[0] for m in s.goals])
        ]
        front = pareto_front(s.objective.model_copy(update={"constraints": ()}), found)
        return float(mean[order[0]]), s.rows[allowed[front]][: 2 * most]
    return float(mean[order[0]]), s.rows[order[:most]]
