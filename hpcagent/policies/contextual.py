"""Contextual bandits: what was learned at other sizes or on other nodes helps to choose here.

A context is what a campaign states of its circumstances, e.g. `{"atoms": 32000, "node_type": "gpu"}`. Runs of this
campaign have its own context; runs of earlier campaigns (role `earlier`) have theirs. The arms are the buckets of
`hpcagent.policies.bandits`. The goal's value y of arm a in context x is modelled as

    y = x . (b + b_a) + noise,   x = (1, features of the context),

ridge regressions of every arm (b_a) beside one that they share (b): the hybrid model of LinUCB (Li, Chu, Langford
and Schapire, WWW 2010, section 3.2, doi:10.1145/1772690.1772758), with the size of b_a and of the noise by
marginal likelihood. A number is taken by its logarithm where it is positive and varies by more than a factor of
three, and standardised over the contexts; a word is a column for each of its values. A feature that a context does
not state is taken as average. Values are compared on the scale of `hpcagent.statistics.trend.Scale`.

Each limited metric has such a model of its own, which gives P(the limit is kept). A failed run counts as a little
worse than the worst value known, and an arm is wanted less by the share of its runs that failed, in whatever
context; one that was stopped early counts as the bound that it gave. A distrusted run says nothing of the goal. A
pending run narrows the model without moving it (Desautels, Krause and Burdick, JMLR 15 (2014) 3873).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from hpcagent.errors import BadInput
from hpcagent.model.base import Scalar
from hpcagent.model.objective import Constraint, Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.bandits import Bandit
from hpcagent.policies.base import Reason
from hpcagent.policies.early import imputed
from hpcagent.statistics.points import generator, inside, located
from hpcagent.statistics.trend import Array, Scale, tame

__all__ = ["LinUCB", "LinearThompson"]

MOST_ARMS = 64  # a run or so for each is needed before anything is known of it
WIDE = 3.0  # a ratio of largest to smallest beyond which a feature is taken by its logarithm
ARM_SIZES = (0.1, 0.3, 1.0, 3.0)  # of b_a, in standard deviations of the values
NOISES = (0.01, 0.03, 0.1, 0.3, 1.0)  # of one run, likewise
PRIOR_NOISE = 0.3
LEAST_ROOM = 0.1  # a failure is worse than the worst value by this share of the values' range


class LinearBandit(Bandit):
    """What both policies share: contexts, models, pending pulls.

    Args:
        space: Where it may suggest.
        objective: One goal, any number of limits.
        seed: Decides ties and draws.
        context: Feature -> number or word: the circumstances of this campaign (its `context`).
        exploration: Factor of the models' standard errors.
        buckets: As for `Bandit`; at most 64 in all.
        jitter: As for `Bandit`.

    Raises:
        BadInput: Several goals, too many buckets, or a bad option.
    """

    contextual = True

    def __init__(
        self,
        space: Space,
        objective: Objective,
        *,
        seed: int = 0,
        context: Mapping[str, Scalar] | None = None,
        exploration: float = 1.0,
        buckets: int | Mapping[str, int] | None = None,
        jitter: bool = False,
    ) -> None:
        super().__init__(space, objective, seed=seed, buckets=buckets, jitter=jitter)
        number = isinstance(exploration, (int, float)) and not isinstance(exploration, bool)
        if not (number and math.isfinite(exploration) and exploration >= 0):
            raise BadInput(f"exploration={exploration!r} must be a number, at least 0.", value=exploration)
        if len(self.cells) > MOST_ARMS:
            raise BadInput(
                f"{len(self.cells)} buckets are too many for {self.name} (at most {MOST_ARMS}); ask for fewer "
                "(buckets), or fix some parameters.",
                value=len(self.cells),
            )
        self.exploration = float(exploration)
        self.context = dict(context or {})

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        """Return `n` points, one pull each; the same point may come again."""
        return [reason.params for reason in self.reasons(history, n, pending)]

    def reasons(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Reason]:
        """The points of `suggest`, and what the models say of them."""
        rng = generator(self.seed, history, pending)
        beliefs = _Beliefs(self, history, pending)
        found: list[Reason] = []
        for _ in range(max(n, 0)):
            index = self.wanted(beliefs, rng) if beliefs.runs else -beliefs.waiting
            arm = int(rng.choice(np.flatnonzero(index >= index.max())))
            found.append(self._reason(arm, beliefs, self._point(arm, rng)))
            beliefs.wait_for(arm)
        return found

    def wanted(self, beliefs: _Beliefs, rng: np.random.Generator) -> Array:
        """How much each arm is wanted here, `(arms,)`; the largest is pulled."""
        raise NotImplementedError

    def context_of(self, seen: Observation) -> Mapping[str, Scalar]:
        """An earlier run's own context; this campaign's for its own runs."""
        return seen.context if seen.role == "earlier" else self.context

    def _reason(self, arm: int, beliefs: _Beliefs, params: Params) -> Reason:
        if not beliefs.runs:
            return Reason(params, "space-filling", "Nothing is known yet.")
        best = int(np.argmax(beliefs.log_worth(0.0)))
        role = "improvement" if arm == best else "exploration"
        mean, error = beliefs.goal.in_unit(arm)
        text = "The best bucket as far as is known" if arm == best else "It may be better than the best one known"
        others = f", {beliefs.elsewhere} of them in other contexts" if beliefs.elsewhere else ""
        return Reason(
            params,
            role,
            f"{text}; from {beliefs.runs} run(s){others}.",
            predicted={self.objective.goal.metric: (mean, error)},
            probability_feasible=float(np.exp(beliefs.log_chance(0.0)[arm])) if beliefs.limits else None,
            probability_completes=float(beliefs.completes[arm]),
        )


class LinUCB(LinearBandit):
    """Pulls the bucket with the largest upper confidence bound in this campaign's context.

        P(completes) x P(limits kept) x (mean + exploration x standard error - worst)

    P(limits kept) likewise taken `exploration` standard errors towards the better. Li et al. state
    1 + sqrt(ln(2/d)/2) as the factor for bounds that hold with probability 1 - d, and find smaller ones better.

    Args:
        space: Where it may suggest.
        objective: One goal, any number of limits.
        seed: Decides ties.
        context: See `LinearBandit`.
        exploration: See above.
        buckets: As for `Bandit`; at most 64 in all.
        jitter: As for `Bandit`.
    """

    name = "linucb"

    def wanted(self, beliefs: _Beliefs, rng: np.random.Generator) -> Array:
        """The logarithm of the index, so that small chances can be told apart."""
        return beliefs.log_worth(self.exploration)


class LinearThompson(LinearBandit):
    """Pulls each bucket with its probability to be the best one in this campaign's context.

    Draws values of the goal and of every limited metric from the models and takes the best bucket that keeps the
    limits in the draw, or the one that breaks them least (Agrawal and Goyal, ICML 2013, PMLR 28(3) 127).

    Args:
        space: Where it may suggest.
        objective: One goal, any number of limits.
        seed: Decides the draws.
        context: See `LinearBandit`.
        exploration: Draws are this many times as wide as the models' standard errors.
        buckets: As for `Bandit`; at most 64 in all.
        jitter: As for `Bandit`.
    """

    name = "linear_thompson"

    def wanted(self, beliefs: _Beliefs, rng: np.random.Generator) -> Array:
        """A draw of the goal where the drawn limits are kept, else how far they are broken."""
        drawn = np.maximum(beliefs.goal.drawn(rng, self.exploration) - beliefs.worst, 1e-9) * beliefs.completes
        broken = np.zeros(len(drawn))
        for limit, model in beliefs.limits:
            broken += np.maximum(model.drawn(rng, self.exploration) - limit, 0.0)
        return np.where(broken > 0, -broken, drawn)


@dataclass
class _Model:
    """What is believed of every arm's value in this campaign's context.

    Attributes:
        mean: `(arms,)`, standardised.
        covariance: `(arms, arms)`.
        noise: Standard deviation of one run.
        scale: The scale of the values.
        centre: What is subtracted on that scale.
        unit: What it is then divided by; negative where smaller values are better.
    """

    mean: Array
    covariance: Array
    noise: float
    scale: Scale
    centre: float
    unit: float

    @property
    def error(self) -> Array:
        """`(arms,)` standard errors."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 1e-18))

    def wait_for(self, arm: int) -> None:
        """Narrow by a pull that comes out as expected."""
        column = self.covariance[:, arm]
        self.covariance = self.covariance - np.outer(column, column) / (self.noise**2 + column[arm])

    def drawn(self, rng: np.random.Generator, width: float) -> Array:
        """One draw of all arms' values."""
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return np.asarray(self.mean + width * (root @ rng.standard_normal(len(values))))

    def in_unit(self, arm: int) -> tuple[float, float]:
        """Mean and standard error of an arm in the metric's unit."""
        value = self.scale.backward(np.array([self.mean[arm] * self.unit + self.centre]))
        error = abs(self.unit) * self.error[arm] / np.maximum(self.scale.slope(value), 1e-300)
        return float(tame(value)[0]), float(tame(error)[0])


class _Beliefs:
    """The models of goal and limits after a history.

    Attributes:
        goal: Larger is better.
        limits: For each limit where it lies, standardised, and the model of its metric: smaller is better.
        worst: What counts as the goal of a failed run, standardised.
        completes: `(arms,)` share of runs that completed, with one more that did.
        runs: How many runs anything was learned from.
        elsewhere: Of these, how many in other contexts.
        waiting: `(arms,)` pulls that have not come back.
    """

    def __init__(self, policy: LinearBandit, history: Sequence[Observation], pending: Sequence[Params]) -> None:
        seen = located(policy.space, history)
        self._arm = [policy._bucket(params) for params, _ in seen]
        self._seen = imputed([o for _, o in seen], policy.objective)
        contexts = [policy.context_of(o) for o in self._seen]
        features = _Features([policy.context, *contexts])
        self._rows = np.array([features.row(c) for c in contexts]).reshape(len(contexts), features.size)
        self._here = features.row(policy.context)
        self._arms = len(policy.cells)
        self.runs = len(seen)
        self.elsewhere = sum(c != policy.context for c in contexts)
        self.waiting = np.zeros(self._arms)
        ended = np.array([o.completed or bool(o.bounds) for o in self._seen], dtype=float)
        each = np.bincount(self._arm, minlength=self._arms) if self._arm else np.zeros(self._arms)
        good = np.bincount(self._arm, weights=ended, minlength=self._arms) if self._arm else each
        self.completes = (good + 1) / (each + 1)
        self.limits: list[tuple[float, _Model]] = []
        self.goal, self.worst = self._goal(policy.objective)
        self.limits = [self._limit(c, policy.objective) for c in policy.objective.constraints]
        for point in (inside(policy.space, p) for p in pending):
            if point is not None:
                self.wait_for(policy._bucket(point))

    def wait_for(self, arm: int) -> None:
        """Take in a pull that has not come back."""
        self.waiting[arm] += 1
        for model in (self.goal, *(model for _, model in self.limits)):
            model.wait_for(arm)

    def log_worth(self, hope: float) -> Array:
        """`(arms,)` log of P(completes) x P(limits kept) x (goal - that of a failure), `hope` errors better."""
        above = np.maximum(self.goal.mean + hope * self.goal.error - self.worst, 1e-9)
        return np.asarray(self.log_chance(hope) + np.log(above) + np.log(self.completes))

    def log_chance(self, hope: float) -> Array:
        """`(arms,)` log P(every limit is kept), each metric taken `hope` standard errors better."""
        total = np.zeros(self._arms)
        for limit, model in self.limits:
            total += log_ndtr(np.clip((limit - model.mean) / model.error, -1e6, 1e6) + hope)
        return total

    def _goal(self, objective: Objective) -> tuple[_Model, float]:
        metric = objective.goal.metric
        sign = objective.goal.sign
        use = [i for i, o in enumerate(self._seen) if _told(o, metric) and not o.distrusted]
        failed = [i for i, o in enumerate(self._seen) if not o.completed and not o.bounds]
        values = tame([self._seen[i].metrics[metric] for i in use])
        scale = Scale.of_goal(values)
        y = sign * scale.forward(values)
        low, spread = (float(y.min()), float(np.ptp(y))) if len(y) else (0.0, 0.0)
        worst = low - LEAST_ROOM * (spread or max(abs(low), 1.0))
        stated = self._stated(use, metric) * scale.slope(values)
        y = np.concatenate([y, np.full(len(failed), worst)])
        stated = np.concatenate([stated, np.zeros(len(failed))])
        model = self._model(use + failed, y, stated, scale)
        model.unit, worst = sign * model.unit, (worst - model.centre) / model.unit
        model.centre *= sign
        return model, worst

    def _limit(self, c: Constraint, objective: Objective) -> tuple[float, _Model]:
        use = [i for i, o in enumerate(self._seen) if _told(o, c.metric)]
        if c.metric == objective.goal.metric:
            use = [i for i in use if not self._seen[i].distrusted]
        sign = -c.sign  # the model is of what is to be small
        values = tame([self._seen[i].metrics[c.metric] for i in use])
        scale = Scale.of_limited(values, c.limit)
        stated = self._stated(use, c.metric) * scale.slope(values)
        model = self._model(use, sign * scale.forward(values), stated, scale)
        limit = (sign * float(scale.forward(c.limit)) - model.centre) / model.unit
        model.unit, model.centre = sign * model.unit, sign * model.centre
        return limit, model

    def _stated(self, use: Sequence[int], metric: str) -> Array:
        """Standard errors that the runs themselves state; 0 where none."""
        errors = [self._seen[i].uncertainty.get(metric, 0.0) for i in use]
        return tame([e if math.isfinite(e) and e > 0 else 0.0 for e in errors])

    def _model(self, use: Sequence[int], y: Array, stated: Array, scale: Scale) -> _Model:
        """Ridge regression with sizes by marginal likelihood (Rasmussen and Williams 2006, eq. 2.30)."""
        centre = float(np.mean(y)) if len(y) else 0.0
        unit = (float(np.std(y)) if len(y) else 0.0) or 1.0
        y, stated = (y - centre) / unit, stated / unit
        shared = self._rows[list(use)]
        every = np.arange(self._arms)
        best: tuple[float, Array, Array, float] | None = None
        for size in ARM_SIZES if len(y) else ARM_SIZES[2:3]:
            design = _design(shared, np.array([self._arm[i] for i in use], dtype=int), self._arms, size)
            here = _design(np.tile(self._here, (self._arms, 1)), every, self._arms, size)
            for noise in NOISES if len(y) else (PRIOR_NOISE,):
                found = _posterior(design, y, noise**2 + stated**2)
                if best is None or found[0] > best[0] + 1e-9:
                    likelihood, mean, root = found
                    half = root @ here.T
                    best = (likelihood, here @ mean, half.T @ half, noise)
        assert best is not None
        return _Model(best[1], best[2], best[3], scale, centre, unit)


def _told(o: Observation, metric: str) -> bool:
    return metric in o.metrics and (o.completed or bool(o.bounds))


def _design(shared: Array, arm: np.ndarray, arms: int, size: float) -> Array:
    """`(runs, features x (1 + arms))`: the shared columns, then those of each arm."""
    runs, width = shared.shape
    design = np.zeros((runs, width * (1 + arms)))
    design[:, :width] = shared
    for k in range(width):
        design[np.arange(runs), width * (1 + arm) + k] = size * shared[:, k]
    return design


def _posterior(design: Array, y: Array, variance: Array) -> tuple[float, Array, Array]:
    """(log marginal likelihood, mean, R with covariance = R^T R) of coefficients with a standard normal prior."""
    weighted = design / variance[:, None]
    factor = np.linalg.cholesky(design.T @ weighted + np.eye(design.shape[1]))
    root = np.linalg.inv(factor)
    pull = weighted.T @ y
    mean = root.T @ (root @ pull)
    determinant = float(np.log(variance).sum() + 2 * np.log(np.diag(factor)).sum())
    likelihood = -0.5 * (float(y @ (y / variance) - pull @ mean) + determinant)
    return likelihood, mean, root


class _Features:
    """How contexts become rows of numbers."""

    def __init__(self, contexts: Sequence[Mapping[str, Scalar]]) -> None:
        different = {tuple(sorted(c.items(), key=lambda item: item[0])): c for c in contexts}
        self._numbers: list[tuple[str, bool, float, float]] = []
        self._words: list[tuple[str, str]] = []
        for name in sorted({name for c in contexts for name in c}):
            values = [c[name] for c in different.values() if name in c]
            if any(isinstance(v, str) for v in values):
                self._words += [(name, word) for word in sorted({str(v) for v in values})]
                continue
            x = np.array([float(v) for v in values])
            log = bool(x.min() > 0 and x.max() > WIDE * x.min())
            x = np.log(x) if log else x
            if np.ptp(x) > 0:
                self._numbers.append((name, log, float(x.mean()), float(x.std())))

    @property
    def size(self) -> int:
        return 1 + len(self._numbers) + len(self._words)

    def row(self, context: Mapping[str, Scalar]) -> Array:
        """1, the numbers standardised, 1 for each word that holds."""
        row = [1.0]
        for name, log, centre, unit in self._numbers:
            value = context.get(name)
            x = centre if value is None else math.log(float(value)) if log else float(value)
            row.append((x - centre) / unit)
        row += [1.0 if str(context.get(name)) == word else 0.0 for name, word in self._words]
        return np.array(row)
