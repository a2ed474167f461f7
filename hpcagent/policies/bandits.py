"""Bandits over buckets: the space is cut into cells, and each run is a pull of one arm.

Good for a few discrete arms that are pulled repeatedly (a style, a queue, a policy). With more buckets than
runs a bandit knows nothing of most of them: prefer `quality_first` or a sweep for a surface in two or three
numbers.

Rewards (larger is better):

- `gated`: the score where every limit is kept, else 0. Where all scores are positive they are used as they
  are (ns/day if the drift is within its limit, else 0). Otherwise, e.g. when something is minimised and the
  scores are negative, they are first shifted so that the worst measured score is a tenth of the scores'
  spread above 0: breaking a limit is never better than keeping it.
- `penalty`: score - weight x sum of the limits' excess, each relative to its limit.

A failed run gets the worst reward so far. A distrusted run says nothing of speed: where it keeps the limits
it is left out. Pending points count as pulls whose outcome equals what is believed already, so a batch
spreads (Desautels, Krause and Burdick, JMLR 15 (2014) 3873, GP-BUCB).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Literal

import numpy as np

from hpcagent.errors import BadInput
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Parameter, Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.base import one_goal
from hpcagent.policies.early import imputed
from hpcagent.statistics.points import Key, generator, inside, key, located, whole
from hpcagent.statistics.trend import Array, tame

__all__ = ["UCB", "EpsilonGreedy", "Thompson"]

FEW_BUCKETS = 16
MOST_BUCKETS = 10_000


class Bandit:
    """What the three bandits share: buckets, rewards, pulls.

    Args:
        space: Where it may suggest.
        objective: One goal, any number of limits.
        seed: Decides ties and draws.
        buckets: Parts of each numeric range: one number for all, or one for each name (1 where not named).
            A choice has a bucket for each value. None: 4, or fewer so that there are at most 16 buckets.
        jitter: Suggest a point drawn from the bucket instead of its centre.
        reward: `gated` or `penalty`.
        weight: Score lost for an excess as large as the limit; None means the mean size of the scores.

    Raises:
        BadInput: Several goals, an unknown parameter, or a bad option.
    """

    name = "bandit"
    repeats = True
    """The same point may come twice in a batch, on purpose (see `hpcagent.policies.portfolio`)."""

    def __init__(
        self,
        space: Space,
        objective: Objective,
        *,
        seed: int = 0,
        buckets: int | Mapping[str, int] | None = None,
        jitter: bool = False,
        reward: Literal["gated", "penalty"] = "gated",
        weight: float | None = None,
    ) -> None:
        one_goal(self.name, objective)
        if reward not in ("gated", "penalty"):
            raise BadInput(f"reward={reward!r} must be 'gated' or 'penalty'.", value=reward)
        if weight is not None and not (_is_number(weight) and weight > 0):
            raise BadInput(f"weight={weight!r} must be a positive number.", value=weight)
        if weight is not None and reward != "penalty":
            raise BadInput("weight belongs to reward='penalty'.", value=weight)
        if not isinstance(jitter, bool):
            raise BadInput(f"jitter={jitter!r} must be true or false.", value=jitter)
        self.space, self.objective, self.seed = space, objective, abs(int(seed))
        self.jitter, self.reward, self.weight = jitter, reward, weight
        self.parts = _parts(space, buckets)
        if math.prod(self.parts) > MOST_BUCKETS:
            raise BadInput(f"{math.prod(self.parts)} buckets are too many; ask for fewer.", value=buckets)
        self.cells = list(product(*(range(n) for n in self.parts)))
        if not space.simple:
            self._inside = _points_by_cell(space, self.cells, self.parts)
            self.cells = list(self._inside)
        self._number = {cell: i for i, cell in enumerate(self.cells)}

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        """Return `n` points, one pull each; the same point may come again."""
        rng = generator(self.seed, history, pending)
        arms = self._arms(history, pending)
        found: list[Params] = []
        for _ in range(max(n, 0)):
            index = self.index(arms, rng)
            best = np.flatnonzero(index >= index.max())
            arm = int(rng.choice(best))
            arms.waiting[arm] += 1
            found.append(self._point(arm, rng))
        return found

    def index(self, arms: Arms, rng: np.random.Generator) -> Array:
        """How much each arm is wanted, `(arms,)`; the largest is pulled."""
        raise NotImplementedError

    def _point(self, arm: int, rng: np.random.Generator) -> Params:
        if not self.space.simple:
            return self._allowed_point(arm, rng)
        where = rng.random(len(self.parts)) if self.jitter else np.full(len(self.parts), 0.5)
        cell = np.array(self.cells[arm], dtype=float)
        return self.space.from_unit((cell + where) / np.array(self.parts, dtype=float))

    def _allowed_point(self, arm: int, rng: np.random.Generator) -> Params:
        """An allowed point of the bucket: near its middle, or with `jitter` any."""
        points = self._inside[self.cells[arm]]
        return dict(points[int(rng.integers(len(points))) if self.jitter else 0])

    def _bucket(self, params: Params) -> int:
        cell = _cell_of(self.space, params, self.parts)
        if cell in self._number:
            return self._number[cell]
        # A corner of what is allowed that no point was found in: the nearest bucket has it.
        cells = np.array(self.cells, dtype=float) / np.array(self.parts, dtype=float)
        away = np.abs(cells - np.array(cell, dtype=float) / np.array(self.parts, dtype=float)).sum(axis=1)
        return int(np.argmin(away))

    def _arms(self, history: Sequence[Observation], pending: Sequence[Params]) -> Arms:
        runs = located(self.space, history)
        rewards = self._rewards([o for _, o in runs])
        arms = Arms(len(self.cells))
        for (params, o), reward in zip(runs, rewards, strict=True):
            if reward is not None:
                stated = o.uncertainty.get(self.objective.goal.metric, 0.0)
                arms.add(self._bucket(params), reward, stated)
        for point in (inside(self.space, p) for p in pending):
            if point is not None:
                arms.waiting[self._bucket(point)] += 1
        return arms

    def _rewards(self, runs: Sequence[Observation]) -> list[float | None]:
        """The reward of each run, or None where it says nothing."""
        objective = self.objective
        runs = imputed(runs, objective)
        known = [o for o in runs if o.completed and objective.known(o.metrics)]
        scores = [float(tame(objective.score(o.metrics))) for o in known if not o.distrusted]
        low, spread = (min(scores), max(scores) - min(scores)) if scores else (0.0, 0.0)
        shift = 0.0 if low > 0 else (0.1 * spread or 1.0) - low
        weight = self.weight if self.weight is not None else float(np.mean(np.abs(scores))) if scores else 1.0

        def reward(o: Observation) -> float | None:
            if not (o.completed and objective.known(o.metrics)):
                return None
            feasible = objective.feasible(o.metrics)
            if o.distrusted:
                return 0.0 if self.reward == "gated" and not feasible else None
            score = float(tame(objective.score(o.metrics)))
            if self.reward == "gated":
                return score + shift if feasible else 0.0
            return score - weight * objective.violation(o.metrics)

        rewards = [reward(o) for o in runs]
        worst = min((r for r in rewards if r is not None), default=0.0)
        if self.reward == "gated":
            worst = min(worst, 0.0)
        return [worst if not o.completed else r for o, r in zip(runs, rewards, strict=True)]


def _cell_of(space: Space, params: Params, parts: Sequence[int]) -> tuple[int, ...]:
    units = space.to_unit(params)
    return tuple(min(max(int(u * n), 0), n - 1) for u, n in zip(units, parts, strict=True))


def _points_by_cell(
    space: Space, cells: Sequence[tuple[int, ...]], parts: Sequence[int]
) -> dict[tuple[int, ...], list[Params]]:
    """Allowed points of each bucket that has any, the nearest to its middle first.

    Those that cover the space, and the middles themselves; what is left out of a point lies in the middle bucket.
    """
    many, size = space.region.columns, np.array(parts, dtype=float)
    columns = many.at((np.array(cells, dtype=float) + 0.5) / size)
    middles = many.points(columns, np.flatnonzero(many.kept(columns)))
    found: dict[tuple[int, ...], dict[Key, Params]] = {}
    for p in [*(p for p in middles if space.allows(p)), *space.region.cover]:
        found.setdefault(_cell_of(space, p, parts), {})[key(p)] = p
    if not found:
        raise many.empty()

    def by_distance(cell: tuple[int, ...]) -> list[Params]:
        middle = np.array(cell, dtype=float) + 0.5
        return sorted(found[cell].values(), key=lambda p: float(((space.to_unit(p) * size - middle) ** 2).sum()))

    return {cell: by_distance(cell) for cell in cells if cell in found}


class Arms:
    """The pulls of every bucket.

    Attributes:
        waiting: `(arms,)` pulls that have not come back.
    """

    def __init__(self, n: int) -> None:
        self.rewards: list[list[float]] = [[] for _ in range(n)]
        self.stated: list[list[float]] = [[] for _ in range(n)]
        self.waiting = np.zeros(n)

    def add(self, arm: int, reward: float, stated: float) -> None:
        """Note one pull with its reward and the stated standard error of it (0: none)."""
        self.rewards[arm].append(reward)
        self.stated[arm].append(stated if math.isfinite(stated) and stated > 0 else 0.0)

    @property
    def pulls(self) -> Array:
        """`(arms,)` finished pulls."""
        return np.array([len(r) for r in self.rewards], dtype=float)

    @property
    def every(self) -> Array:
        """All rewards."""
        return np.array([r for rs in self.rewards for r in rs])

    @property
    def noise(self) -> float:
        """Standard deviation of one pull, pooled over the buckets pulled more than once; else of all rewards."""
        freedom = sum(len(r) - 1 for r in self.rewards if len(r) > 1)
        if freedom > 0:
            squares = sum(float(((np.array(r) - np.mean(r)) ** 2).sum()) for r in self.rewards if len(r) > 1)
            pooled = math.sqrt(squares / freedom)
            if pooled > 0:
                return pooled
        return float(np.std(self.every)) if self.every.size else 0.0

    def summary(self) -> tuple[Array, Array]:
        """Weighted mean of each bucket (nan without a pull), and its weight in pulls of average precision.

        A run that states a larger standard error than the pooled noise weighs less: noise^2 / (larger)^2.
        """
        noise = self.noise
        mean, weight = np.full(len(self.rewards), np.nan), np.zeros(len(self.rewards))
        for i, (rewards, stated) in enumerate(zip(self.rewards, self.stated, strict=True)):
            if rewards:
                w = np.array([(noise / max(noise, s)) ** 2 if noise > 0 else 1.0 for s in stated])
                mean[i], weight[i] = float(w @ np.array(rewards) / w.sum()), float(w.sum())
        return mean, weight


class EpsilonGreedy(Bandit):
    """Pulls the best bucket so far, and with probability `epsilon` any bucket.

    An unpulled bucket counts as average: every mean is taken with one pull's worth of the overall mean.

    Args:
        space: Where it may suggest.
        objective: One goal, any number of limits.
        seed: Decides ties and draws.
        epsilon: Share of pulls that explore, between 0 and 1.
        buckets: See `Bandit`.
        jitter: See `Bandit`.
        reward: See `Bandit`.
        weight: See `Bandit`.
    """

    name = "epsilon_greedy"

    def __init__(
        self,
        space: Space,
        objective: Objective,
        *,
        seed: int = 0,
        epsilon: float = 0.2,
        buckets: int | Mapping[str, int] | None = None,
        jitter: bool = False,
        reward: Literal["gated", "penalty"] = "gated",
        weight: float | None = None,
    ) -> None:
        super().__init__(space, objective, seed=seed, buckets=buckets, jitter=jitter, reward=reward, weight=weight)
        if not (_is_number(epsilon) and 0 <= epsilon <= 1):
            raise BadInput(f"epsilon={epsilon!r} must be between 0 and 1.", value=epsilon)
        self.epsilon = epsilon

    def index(self, arms: Arms, rng: np.random.Generator) -> Array:
        """Means, or equal for all when exploring."""
        if not arms.every.size or rng.random() < self.epsilon:
            return -arms.waiting
        mean, weight = arms.summary()
        overall = float(arms.every.mean())
        return (np.nan_to_num(mean) * weight + overall) / (weight + 1)


class UCB(Bandit):
    """Pulls the bucket with the largest upper confidence bound; unpulled buckets first.

        mean + exploration x noise x sqrt(2 ln N / n)

    UCB1 of Auer, Cesa-Bianchi and Fischer, Machine Learning 47 (2002) 235, for normal rewards with the
    noise pooled over all buckets; n counts pending pulls.

    Args:
        space: Where it may suggest.
        objective: One goal, any number of limits.
        seed: Decides ties.
        exploration: Factor of the confidence width.
        buckets: See `Bandit`.
        jitter: See `Bandit`.
        reward: See `Bandit`.
        weight: See `Bandit`.
    """

    name = "ucb"

    def __init__(
        self,
        space: Space,
        objective: Objective,
        *,
        seed: int = 0,
        exploration: float = 1.0,
        buckets: int | Mapping[str, int] | None = None,
        jitter: bool = False,
        reward: Literal["gated", "penalty"] = "gated",
        weight: float | None = None,
    ) -> None:
        super().__init__(space, objective, seed=seed, buckets=buckets, jitter=jitter, reward=reward, weight=weight)
        if not (_is_number(exploration) and exploration >= 0):
            raise BadInput(f"exploration={exploration!r} must be a number, at least 0.", value=exploration)
        self.exploration = exploration

    def index(self, arms: Arms, rng: np.random.Generator) -> Array:
        """Upper bounds; infinite, least waiting first, for buckets without a pull."""
        mean, weight = arms.summary()
        n = weight + arms.waiting
        if (n == 0).any() or not arms.every.size:
            return np.where(arms.pulls == 0, 0.0, -np.inf) - arms.waiting
        mean = np.where(np.isnan(mean), float(arms.every.mean()), mean)
        width = self.exploration * arms.noise * np.sqrt(2 * math.log(max(n.sum(), 2.0)) / n)
        return np.asarray(mean + width)


class Thompson(Bandit):
    """Pulls each bucket with its probability to be the best one: draws a mean for each and takes the largest.

    Normal-inverse-gamma posterior (Murphy, "Conjugate Bayesian analysis of the Gaussian distribution",
    2007, section 3) with the overall mean as prior mean and the pooled noise as prior scale, worth
    `certainty` pulls. The term for a bucket's distance from the prior mean is left out of the scale,
    because buckets differ by more than noise. A pending pull narrows the mean without moving it.

    Args:
        space: Where it may suggest.
        objective: One goal, any number of limits.
        seed: Decides the draws.
        certainty: Pulls' worth of trust in the pooled noise.
        buckets: See `Bandit`.
        jitter: See `Bandit`.
        reward: See `Bandit`.
        weight: See `Bandit`.
    """

    name = "thompson"

    def __init__(
        self,
        space: Space,
        objective: Objective,
        *,
        seed: int = 0,
        certainty: float = 4.0,
        buckets: int | Mapping[str, int] | None = None,
        jitter: bool = False,
        reward: Literal["gated", "penalty"] = "gated",
        weight: float | None = None,
    ) -> None:
        super().__init__(space, objective, seed=seed, buckets=buckets, jitter=jitter, reward=reward, weight=weight)
        if not (_is_number(certainty) and certainty > 0):
            raise BadInput(f"certainty={certainty!r} must be a positive number.", value=certainty)
        self.certainty = certainty

    def index(self, arms: Arms, rng: np.random.Generator) -> Array:
        """One draw of every bucket's mean."""
        if not arms.every.size:
            return -arms.waiting
        mean, weight = arms.summary()
        overall, wide = float(arms.every.mean()), float(np.std(arms.every))
        noise = arms.noise or 1e-12
        # The prior mean is uncertain by the spread of all rewards, so its worth in pulls is (noise / spread)^2.
        prior = min((noise / wide) ** 2, 1.0) if wide > 0 else 1.0
        known = np.nan_to_num(mean)
        kappa = prior + weight + arms.waiting
        # A pending pull is taken to come out as the posterior mean, which therefore stays where it is.
        centre = (prior * overall + weight * known) / (prior + weight)
        within = np.array([float(((np.array(r) - np.mean(r)) ** 2).sum()) if r else 0.0 for r in arms.rewards])
        alpha = 0.5 * (self.certainty + weight)
        beta = 0.5 * (self.certainty * noise**2 + within)
        variance = beta / rng.gamma(alpha)
        return np.asarray(centre + np.sqrt(variance / kappa) * rng.standard_normal(len(centre)))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _parts(space: Space, buckets: int | Mapping[str, int] | None) -> list[int]:
    """How many parts each parameter is cut into."""
    if buckets is None:
        for n in (4, 3, 2, 1):
            parts = [_limited(p, n) for p in space.parameters]
            if math.prod(parts) <= FEW_BUCKETS:
                break
        return parts
    if isinstance(buckets, Mapping):
        for name, n in buckets.items():
            if space[name].kind == "choice":
                raise BadInput(f"buckets of {name!r}: a choice has one for each value.", value=n)
            whole(f"buckets of {name!r}", n)
        return [_limited(p, buckets.get(p.name, 1)) for p in space.parameters]
    return [_limited(p, whole("buckets", buckets)) for p in space.parameters]


def _limited(p: Parameter, n: int) -> int:
    if p.kind == "choice":
        return len(p.choices)
    if p.constant:
        return 1
    if p.kind == "int":
        assert p.low is not None and p.high is not None
        return min(n, int(p.high - p.low) + 1)
    return n
