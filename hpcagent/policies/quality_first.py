"""Rules a careful person would follow: meet the quality limits first, then look for speed.

1. *Spread.* The first points cover the space (a Latin hypercube).
2. *Learn the quality knobs.* Regress every limited metric on the parameters over all completed runs
   (`Trend`). A parameter the metric depends on is a quality knob; one it doesn't depend on is a pure speed
   knob.
3. *Go to the limit.* Put the strongest quality knob where the limit is predicted to be kept with a margin
   taken from the regression's own uncertainty. This works in both directions: a timestep shrinks when the
   limit is broken and grows when there is slack. It never leaves the space, and never jumps far beyond what
   was measured.
4. *Then speed.* Around the best point change one thing at a time: each number by a step to both sides (the
   step is halved when both sides were tried), each choice to its other values. After every such change the
   quality knob is put back at the limit. Runs are compared after removing what the other knobs did, and a
   difference below its own standard error is a tie.
5. *Failed runs push away.* No suggestion is made where the nearest runs failed, or where a logistic
   regression expects a failure.
6. Where no limit can be met and nothing depends on any knob, the points stay spread, so that a stop
   condition can conclude that these knobs are not the cause.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.base import one_goal
from hpcagent.policies.early import imputed
from hpcagent.policies.sweeps import LatinHypercube, Sobol
from hpcagent.statistics.points import fraction, generator, given, inside, key, led_back, located, shares, whole
from hpcagent.statistics.recommend import Estimate, estimates
from hpcagent.statistics.trend import Array, Scale, Trend, chance, tame

__all__ = ["QualityFirst"]

MARGINS = (1.6, 2.2, 1.1, 1.8, 1.3, 2.8)  # standard errors to stay inside the limit, in turn
REACH = 0.25  # how far beyond the measured range of the quality knob, in the unit cube
POSITIONS = 33  # values of a speed knob that are compared
FINEST = 401  # positions of the quality knob that are compared
OTHER_CHOICE = 0.1  # distance between two values of a choice, in the unit cube, where failures are concerned
TRIES = 3  # runs of a choice before it may be dropped as clearly worse
SURELY = 0.3  # standard errors by which another value must be better to become the centre
CLEARLY = 2.0  # standard errors of a difference that is not a tie
WIDTH = 0.06  # how close two values of a knob are compared as one, as a share of the range
TIE = 0.05  # a gain below this is not worth a run, on the goal's scale (5 % where it is logarithmic)


class QualityFirst:
    """Meets the limits first, then looks for speed.

    The rules are at the top of this module.

    Args:
        space: Where it may suggest.
        objective: One goal, any number of limits.
        seed: Decides the first points and the order of ties.
        initial: Points of the first spread; None means two for each free parameter, at least 4.
        step: First step of a compass move, as a share of the range.
        smallest_step: Steps are not halved below this.
        risk: Largest accepted chance that a run fails.
        noise: Relative standard deviation of one run that is known beforehand, by metric; 0 where runs are exact.

    Raises:
        BadInput: Several goals, or a bad option.
    """

    def __init__(
        self,
        space: Space,
        objective: Objective,
        *,
        seed: int = 0,
        initial: int | None = None,
        step: float = 0.25,
        smallest_step: float = 0.03,
        risk: float = 0.3,
        noise: Mapping[str, float] | None = None,
    ) -> None:
        one_goal("quality_first", objective)
        self.space = space
        self.objective = objective
        self.seed = abs(int(seed))
        free = len(space.free)
        self.initial = max(4, 2 * free) if initial is None else whole("initial", initial)
        self.step = fraction("step", step)
        self.smallest_step = fraction("smallest_step", smallest_step)
        self.risk = fraction("risk", risk)
        self.noise = shares(noise)

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        """Return `n` points of different roles: at the limit, another choice, a step of a speed knob."""
        if n <= 0:
            return []
        view = _View(self, history, pending)
        moves: Iterator[Array]
        # What earlier campaigns have found need not be looked for again.
        known = len(given(history, pending)) + sum(o.role in ("earlier", "enqueued", "told") for o in history)
        if known < self.initial or not view.ranked:
            moves = view.spread()
        else:
            moves = view.moves(n)
        found = view.accepted(moves, n)
        if len(found) < n:
            found += view.accepted(view.spread(), n - len(found), besides=found)
        return found + view.anything(n - len(found), besides=found)


class _View:
    """What the history says, worked out once for one call of `suggest`."""

    def __init__(self, policy: QualityFirst, history: Sequence[Observation], pending: Sequence[Params]) -> None:
        self.policy = policy
        self.space = policy.space
        self.history, self.pending = history, pending
        self.rng = generator(policy.seed, history, pending)
        located_runs = located(self.space, history)
        ended = imputed([o for _, o in located_runs], policy.objective)
        self.runs = [(p, o) for (p, _), o in zip(located_runs, ended, strict=True)]
        self.units = np.array([self.space.to_unit(p) for p, _ in self.runs]).reshape(-1, len(self.space))
        failed = np.array([not o.completed for _, o in self.runs], dtype=bool)
        self.failures = _Failures(self.space, self.units, failed, policy.risk)
        self.waiting = [self.space.to_unit(q) for q in (inside(self.space, p) for p in pending) if q is not None]
        self.used = {key(p) for p, _ in self.runs} | {key(p) for p in pending}
        self.limits = _Limits(self.space, policy.objective, self.runs, self.units)
        # Points outside of the space may be in the history (references), but cannot be the centre.
        known = estimates([o for _, o in self.runs], policy.objective, space=self.space, noise=policy.noise)
        self.ranked = [e for e in known if e.trusted] or known
        self.speed = _Speed(self.space, policy.objective, self.runs, self.units, self.limits)

    # Where to go

    def moves(self, n: int) -> Iterator[Array]:
        """Points in the order they are wanted: the kinds take turns, over several calls for fewer than three."""
        centre = self.limits.repaired(self._best(), self.speed, MARGINS[0])
        if not self.limits.hopeful(centre):
            yield from self.spread()
        centre = self._improved(centre)
        kinds = [self._at_limit(centre), self._other_choices(centre), self._steps(centre)]
        few = bool(self.pending) or n < len(kinds)
        start = (len(self.history) + len(self.pending)) % len(kinds) if few else 0
        kinds = kinds[start:] + kinds[:start]
        while kinds:
            for kind in list(kinds):
                point = next(kind, None)
                if point is None:
                    kinds.remove(kind)
                else:
                    yield point

    def spread(self) -> Iterator[Array]:
        """Points that cover the space evenly, going on where the campaign is."""
        done = len(given(self.history, self.pending))
        first = LatinHypercube(self.space, seed=self.policy.seed, size=self.policy.initial)
        then = Sobol(self.space, seed=self.policy.seed)
        if done < self.policy.initial:
            yield from first.unit_points(self.policy.initial)[done : self.policy.initial]
            done = self.policy.initial
        yield from then.unit_points(done + 128)[done:]

    def _best(self) -> Array:
        """The best measured point that probably keeps the limits, else the most probable one."""

        def rank(e: Estimate) -> tuple[float, float]:
            return (1.0, e.score) if e.probability_feasible >= 0.8 else (e.probability_feasible, e.score)

        return self.space.to_unit(max(self.ranked, key=rank).params)

    def _improved(self, centre: Array) -> Array:
        """Every speed knob at the best value that was tried, where it is better beyond the noise."""
        for k, p in enumerate(self.space.parameters):
            if p.constant or k == self.limits.knob(centre):
                continue
            tried = sorted(set(self.units[self.speed.rows, k].tolist()))
            options = [self._with(centre, k, u) for u in tried]
            options = [x for x in options if self.limits.probability(x) > 0.5 and not self.failures.likely(x)]
            if not options:
                continue
            here, here_error, _ = self.speed.profile(centre, k, [centre])
            there, there_error, _ = self.speed.profile(centre, k, options)
            gain = there - here[0] - SURELY * np.hypot(there_error, here_error[0])
            if gain.max() > 0:
                centre = options[int(gain.argmax())]
        return centre

    def _with(self, centre: Array, k: int, u: float) -> Array:
        """The centre with knob k at u, put back at the limit."""
        moved = centre.copy()
        moved[k] = u
        return self.limits.repaired(moved, self.speed, MARGINS[0])

    def _at_limit(self, centre: Array) -> Iterator[Array]:
        """The centre at the limit, then with other margins and with the speed knobs where they may be better."""
        first = len(self.pending) % len(MARGINS)
        for i, margin in enumerate(MARGINS[first:] + MARGINS[:first]):
            point = centre if i == 0 else self._varied(centre)
            yield self.limits.repaired(point, self.speed, margin)
        for _ in range(24):
            yield self._near(self._varied(centre))

    def _varied(self, centre: Array) -> Array:
        """The centre with each pure speed knob drawn with its chance to be the best value.

        Every run at the limit then also compares speed knobs: nothing is spent on a plain repeat.
        """
        quality = self.limits.knob(centre)
        varied = centre.copy()
        for k, p in enumerate(self.space.parameters):
            if p.kind == "choice" or p.constant or k == quality or p.name in self.limits.drivers:
                continue
            line = np.repeat(centre[None, :], POSITIONS, axis=0)
            line[:, k] = np.linspace(0, 1, POSITIONS)
            mean, error, _ = self.speed.profile(centre, k, list(line))
            shift = np.interp(line[:, k], np.linspace(0, 1, 9), self.rng.standard_normal(9))
            varied[k] = line[int(np.argmax(mean + error * shift)), k]
        return varied

    def _near(self, point: Array) -> Array:
        """A point that compares with `point` as a repeat would, but is not the same."""
        numbers = [k for k, p in enumerate(self.space.parameters) if p.kind != "choice" and not p.constant]
        close = point.copy()
        close[numbers] += 0.5 * self.policy.smallest_step * self.rng.uniform(-1, 1, len(numbers))
        close = self.limits.repaired(np.clip(close, 0, 1), self.speed, float(self.rng.choice(MARGINS)))
        close[numbers] += 0.03 * self.policy.smallest_step * self.rng.uniform(-1, 1, len(numbers))
        return np.asarray(np.clip(close, 0, 1))

    def _other_choices(self, centre: Array) -> Iterator[Array]:
        """Other values of the choices, least tried first, unless they are clearly worse."""
        options: list[tuple[int, float, Array]] = []
        for k, p in enumerate(self.space.parameters):
            if p.kind != "choice" or p.constant:
                continue
            for i in range(len(p.choices)):
                u = (i + 0.5) / len(p.choices)
                if u == centre[k]:
                    continue
                point = self._with(centre, k, u)
                tries = int(np.sum(self.units[:, k] == u)) + sum(w[k] == u for w in self.waiting)
                if not (self._worse(centre, k, point) and tries >= TRIES):
                    options.append((tries, self.rng.random(), point))
        for _, _, point in sorted(options, key=lambda o: o[:2]):
            yield self._near(self._varied(point))

    def _worse(self, centre: Array, k: int, point: Array, *, width: float = WIDTH) -> bool:
        """Whether `point` is slower than the centre beyond the noise."""
        here, here_error, _ = self.speed.profile(centre, k, [centre], width=width)
        there, there_error, _ = self.speed.profile(centre, k, [point], width=width)
        return bool(here[0] - there[0] > CLEARLY * math.hypot(here_error[0], there_error[0]))

    def _steps(self, centre: Array) -> Iterator[Array]:
        """Compass moves, most promising first: a step that might still gain more than a tie is worth."""
        quality = self.limits.knob(centre)
        moves: list[tuple[float, float, Array]] = []
        for k, p in enumerate(self.space.parameters):
            if p.kind == "choice" or p.constant or k == quality:
                continue
            step = self.policy.step
            while step >= self.policy.smallest_step:
                for side in (-1, 1):
                    u = float(np.clip(centre[k] + side * step, 0, 1))
                    if abs(u - centre[k]) >= step / 2:
                        point = self._with(centre, k, u)
                        promise = self._promise(centre, k, point, width=min(step / 2, WIDTH))
                        moves.append((-promise, self.rng.random(), point))
                step /= 2
        for promise, _, point in sorted(moves, key=lambda m: m[:2]):
            if -promise > TIE:
                new = key(self.space.from_unit(point)) not in self.used
                yield point if new else self._near(point)

    def _promise(self, centre: Array, k: int, point: Array, *, width: float) -> float:
        """What `point` might gain over the centre: the difference plus one standard error of it."""
        here, here_error, _ = self.speed.profile(centre, k, [centre], width=width)
        there, there_error, runs = self.speed.profile(centre, k, [point], width=width)
        waiting = sum(math.exp(-0.5 * ((w[k] - point[k]) / width) ** 2) for w in self.waiting)
        error = there_error[0] * math.sqrt((runs[0] + 0.5) / (runs[0] + waiting + 0.5))
        return float(there[0] - here[0] + math.hypot(here_error[0], error))

    # What may be suggested

    def accepted(self, points: Iterator[Array], n: int, *, besides: Sequence[Params] = ()) -> list[Params]:
        """The first `n` points that are new and not expected to fail."""
        found: list[Params] = []
        used = self.used | {key(p) for p in besides}
        for point in points:
            if len(found) == n:
                break
            safe = self._safe(point)
            if safe is None:
                continue
            params = self.space.from_unit(safe)
            if not self.space.simple:
                params = self._allowed(params)
            if key(params) not in used:
                used.add(key(params))
                found.append(params)
        return found

    def _allowed(self, params: Params) -> Params:
        """The point, or the furthest allowed one on the way to it."""
        return led_back(self.space, params, [p for p, o in self.runs if o.completed])

    def _safe(self, point: Array) -> Array | None:
        """The point, or the furthest on the way from the nearest completed run that isn't expected to fail."""
        if not self.failures.likely(point):
            return point
        good = self.units[~self.failures.failed]
        if not len(good) or not self.ranked:
            return None
        start = good[int(np.argmin(_distances(self.space, good, point)))]
        start = np.where([p.kind == "choice" for p in self.space.parameters], point, start)
        for share in (0.8, 0.6, 0.4, 0.2):
            back: Array = np.clip(start + share * (point - start), 0, 1)
            if not self.failures.likely(back):
                return back
        return None

    def anything(self, n: int, *, besides: Sequence[Params]) -> list[Params]:
        """Unused points wherever they are, least dangerous first: nothing better is left."""
        if n <= 0:
            return []
        pretended = [Observation(p) for p in (*(q for q, _ in self.runs), *self.pending, *besides)]
        pool = Sobol(self.space, seed=self.policy.seed).suggest(pretended, 8 * n)
        order = np.argsort([self.failures.chance(self.space.to_unit(p)) for p in pool], kind="stable")
        return [pool[i] for i in order[:n]]


class _Limits:
    """How the limited metrics depend on the knobs."""

    def __init__(
        self,
        space: Space,
        objective: Objective,
        runs: Sequence[tuple[Params, Observation]],
        units: Array,
    ) -> None:
        self.space = space
        self.units = units
        self.fits: list[tuple[float, float, Trend]] = []  # sign of the limit, it on the scale, trend
        for c in objective.constraints:
            rows = [i for i, (_, o) in enumerate(runs) if o.completed and c.metric in o.metrics]
            if len(rows) < 3:
                continue
            values = tame([runs[i][1].metrics[c.metric] for i in rows])
            scale = Scale.of_limited(values, c.limit)
            stated = np.array([runs[i][1].uncertainty.get(c.metric, 0.0) for i in rows]) * scale.slope(values)
            y, limit = scale.forward(values), float(scale.forward(c.limit))
            # Near the limit is where the trend has to be right; what is sure counts more than what is not.
            weights = 1 / (1 + ((y - limit) / math.log(4)) ** 2) / (0.1**2 + np.square(tame(stated)))
            trend = Trend(space, units[rows], y, weights=weights)
            self.fits.append((c.sign, limit, trend))

    @property
    def drivers(self) -> set[str]:
        """Every parameter that a limited metric depends on."""
        return {name for _, _, trend in self.fits for name in trend.drivers}

    def room(self, points: Array) -> tuple[Array, Array]:
        """Least standardised distance to a limit (positive: kept), and least distance, at `points` `(m, d)`."""
        z = np.full(len(points), np.inf)
        distance = np.full(len(points), np.inf)
        for sign, limit, trend in self.fits:
            mean, error = trend.interpolate(points)
            d = sign * (mean - limit)
            distance = np.minimum(distance, d)
            z = np.minimum(z, d / np.maximum(error, 1e-9))
        return z, distance

    def probability(self, point: Array) -> float:
        """P(all limits are kept), by the trends."""
        p = 1.0
        for sign, limit, trend in self.fits:
            mean, error = trend.interpolate(point[None, :])
            p *= float(chance(sign * (mean - limit) / np.maximum(error, 1e-9))[0])
        return p

    def hopeful(self, point: Array) -> bool:
        """Whether a limit is kept at `point`, or something is known that changes it."""
        return bool(self.room(point[None, :])[0][0] > -2) or any(t.drivers for _, _, t in self.fits)

    def knob(self, point: Array) -> int | None:
        """The number that moves the limited metrics most, or None."""
        best, strongest = None, 0.0
        for k, p in enumerate(self.space.parameters):
            if p.kind == "choice" or p.constant:
                continue
            line = self._line(point, k, 21)
            fits = [t for _, _, t in self.fits if p.name in t.drivers]
            strength = sum(float(np.ptp(t.predict(line)[0])) / t.scatter for t in fits)
            if strength > strongest:
                best, strongest = k, strength
        return best

    def repaired(self, point: Array, speed: _Speed, margin: float) -> Array:
        """`point` with the quality knob where speed is best while the limits are kept by `margin` errors."""
        k = self.knob(point)
        if k is None:
            return point.copy()
        line = self._line(point, k, FINEST)
        z, distance = self.room(line)
        kept = z >= margin
        if not kept.any():
            wanted = z
        elif self.space.parameters[k].name in speed.drivers:
            wanted = np.where(kept, speed.trend_at(line)[0], -np.inf)
        else:
            wanted = np.where(kept, -distance, -np.inf)
        return np.array(line[int(np.argmax(wanted))])

    def _line(self, point: Array, k: int, n: int) -> Array:
        """Points along knob k, not far beyond what was measured, and inside the space."""
        u = self.units[:, k]
        low, high = max(float(u.min()) - REACH, 0.0), min(float(u.max()) + REACH, 1.0)
        line = np.repeat(point[None, :], n, axis=0)
        line[:, k] = np.linspace(low, high, n)
        return line


class _Speed:
    """How the goal depends on the knobs; larger is better."""

    def __init__(
        self,
        space: Space,
        objective: Objective,
        runs: Sequence[tuple[Params, Observation]],
        units: Array,
        limits: _Limits,
    ) -> None:
        goal = objective.goal
        usable = [i for i, (_, o) in enumerate(runs) if o.completed and goal.metric in o.metrics]
        self.rows = [i for i in usable if not runs[i][1].distrusted] or usable
        values = tame([runs[i][1].metrics[goal.metric] for i in self.rows])
        scale = Scale.of_goal(values)
        self.sign = goal.sign
        self.units = units[self.rows]
        # Runs near the limits say most about speed where the answer will be.
        _, off = limits.room(self.units)
        weights = 1 / (1 + (np.where(np.isfinite(off), off, 0.0) / math.log(3)) ** 2)
        y = self.sign * scale.forward(values)
        self.trend = Trend(space, self.units, y, weights=weights) if self.rows else None

    @property
    def drivers(self) -> tuple[str, ...]:
        return self.trend.drivers if self.trend else ()

    def trend_at(self, points: Array) -> tuple[Array, Array]:
        if self.trend is None:
            return np.zeros(len(points)), np.full(len(points), np.inf)
        return self.trend.predict(points)

    def profile(
        self, centre: Array, k: int, points: Sequence[Array], *, width: float = WIDTH
    ) -> tuple[Array, Array, Array]:
        """The goal at `points`, from the runs whose knob k is close, with what other knobs did removed.

        A run counts as trend(point) + its residual: a paired comparison, corrected for the differences
        elsewhere. Weights fall as exp(-(du / width)^2 / 2) along the knob and, slower, with the distance
        elsewhere.

        Returns:
            The goal, its standard error, and the weight of the runs behind it, each `(len(points),)`.
        """
        where = np.array(points)
        mean, _ = self.trend_at(where)
        if self.trend is None:
            return mean, np.full(len(points), np.inf), np.zeros(len(points))
        along = (self.units[None, :, k] - where[:, None, k]) / width
        elsewhere = np.delete(self.units - centre, k, axis=1)
        weight = np.exp(-0.5 * along**2) / (1 + 4 * np.sum(elsewhere**2, axis=1))[None, :]
        total = weight.sum(axis=1)
        # Half a run's worth of "as the trend says" keeps far-off points from following a single residual.
        shift = weight @ self.trend.residuals / (total + 0.5)
        return mean + shift, self.trend.scatter / np.sqrt(total + 0.5), total


class _Failures:
    """Where runs are expected to fail."""

    def __init__(self, space: Space, units: Array, failed: NDArray[np.bool_], risk: float) -> None:
        self.space, self.units, self.failed, self.risk = space, units, failed, risk
        self.coefficients = _logistic(space, units, self.failed) if self.failed.any() else None

    def chance(self, point: Array) -> float:
        """P(a run fails at `point`): the logistic regression's, or high where the nearest run failed."""
        if self.coefficients is None:
            return 0.0
        z = float(_features(self.space, point[None, :])[0] @ self.coefficients)
        p = 1 / (1 + math.exp(-min(max(z, -50.0), 50.0)))
        nearest = int(np.argmin(_distances(self.space, self.units, point)))
        return max(p, 0.9 if self.failed[nearest] else 0.0)

    def likely(self, point: Array) -> bool:
        """Whether that chance is above the accepted risk."""
        return self.chance(point) > self.risk


def _distances(space: Space, units: Array, point: Array) -> Array:
    """Distance of each run to `point`; a choice that differs counts as a step of a tenth, not as far away.

    Otherwise one crash of a choice at a large step would keep that choice from being tried at a small one.
    """
    choice = np.array([p.kind == "choice" for p in space.parameters], dtype=bool)
    off = np.where(choice, np.where(np.abs(units - point) > 1e-9, OTHER_CHOICE, 0.0), units - point)
    return np.asarray(np.linalg.norm(off, axis=1))


def _features(space: Space, units: Array) -> Array:
    """A constant, every number from -2 to 2, and one column for each value of each choice."""
    columns = [np.ones(len(units))]
    for k, p in enumerate(space.parameters):
        if p.kind == "choice":
            index = np.minimum((units[:, k] * len(p.choices)).astype(int), len(p.choices) - 1)
            columns += [(index == i).astype(float) for i in range(len(p.choices))]
        else:
            columns.append(4 * (units[:, k] - 0.5))
    return np.column_stack(columns)


def _penalties(space: Space) -> list[float]:
    penalties = [0.02]
    for p in space.parameters:
        penalties += [0.5] * len(p.choices) if p.kind == "choice" else [0.03]
    return penalties


def _logistic(space: Space, units: Array, failed: NDArray[np.bool_]) -> Array:
    """Ridge-penalised logistic regression by Newton's method; the penalty keeps separable data finite."""
    x, y = _features(space, units), failed.astype(float)
    penalty = np.diag(_penalties(space))
    beta = np.zeros(x.shape[1])
    for _ in range(25):
        p = 1 / (1 + np.exp(-np.clip(x @ beta, -30, 30)))
        gradient = x.T @ (y - p) - penalty @ beta
        hessian = (x * (p * (1 - p))[:, None]).T @ x + penalty
        change = np.linalg.solve(hessian, gradient)
        beta = beta + np.clip(change, -2, 2)
        if np.abs(change).max() < 1e-6:
            break
    return beta
