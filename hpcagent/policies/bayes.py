"""Bayesian optimisation under constraints: the default policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import fmin_l_bfgs_b
from scipy.special import log_ndtr, ndtr

from hpcagent.model.objective import Objective
from hpcagent.model.records import Observation
from hpcagent.model.space import Params, Space
from hpcagent.policies.base import Reason
from hpcagent.policies.gp import Array, Features, NoFit
from hpcagent.policies.points import given, inside, key, whole
from hpcagent.policies.surrogate import Surrogate
from hpcagent.policies.sweeps import Sobol

RANDOM = 384
NEAR = 64
STARTS = 4
REINT = True
BOLD = 1.0
WHICH = lambda slot, n: n >= 3 and slot == n - 1
TR0, TRM, TRS = 0.8, 0.8, 1e-3


class Bayes:
    def __init__(self, space: Space, objective: Objective, *, seed: int = 0, initial: int | None = None,
                 explore: bool = True, trust: bool = True, kernel: str = "auto") -> None:
        self.space, self.objective, self.seed = space, objective, seed
        self.initial = whole("initial", initial) if initial is not None else _enough(space)
        self.explore, self.trust, self.kernel = explore, trust, kernel
        self._start = Sobol(space, seed=seed)

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        return [r.params for r in self.reasons(history, n, pending)]

    def reasons(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Reason]:
        early = max(0, self.initial - len(history) - len(pending))
        first = self._start.suggest(history, min(n, early), pending) if early else []
        reasons = [Reason(p, "space-filling") for p in first]
        if len(reasons) == n:
            return reasons
        try:
            surrogate = Surrogate.fit(self.space, self.objective, history, kernel=self.kernel)
        except NoFit:
            more = self._start.suggest(history, n - len(first), [*pending, *first])
            return reasons + [Reason(p, "space-filling") for p in more]
        return reasons + _Search(self, surrogate, history, [*pending, *first]).found(n - len(first))


def _enough(space: Space) -> int:
    size = 2 + sum(len(p.choices) - 1 if p.kind == "choice" else 1 for p in space.parameters if not p.constant)
    return max(4, min(size, 12))


class _Search:
    def __init__(self, policy: Bayes, surrogate: Surrogate, history: Sequence[Observation], pending: Sequence[Params]) -> None:
        self.policy, self.history = policy, history
        self.features: Features = surrogate.features
        self.space = policy.space
        self.rng = np.random.default_rng([abs(policy.seed), len(history), len(pending), 5])
        self.used = {key(p) for o in history if (p := inside(self.space, o.params)) is not None}
        waiting = [p for q in pending if (p := inside(self.space, q)) is not None]
        self.used |= {key(p) for p in waiting}
        self.best, self.tops = incumbent(surrogate)
        self.model = replace(surrogate, goals=tuple(replace(m, gp=m.gp.interpolating()) for m in surrogate.goals)) if REINT else surrogate
        self.believe(self.features.rows(waiting))

    def found(self, n: int) -> list[Reason]:
        reasons: list[Reason] = []
        for slot in range(n):
            explore = self.policy.explore and WHICH(slot, n)
            self.box = None if explore or (n >= 3 and slot == n - 1) else self.trusted()
            rows = self.candidates()
            value = (lambda a: self.curious(a)) if explore else (lambda a: self.improvement(a))
            row = self.climbed(rows, value)
            params = self.features.points(row[None])[0]
            if key(params) in self.used:
                continue
            self.used.add(key(params))
            reasons.append(Reason(params, "exploration" if explore else "improvement"))
            self.believe(self.features.rows([params]))
        return reasons

    def believe(self, rows: Array) -> None:
        """From here on as if runs at these rows had come out as expected: no second reward for the same gain."""
        if not len(rows):
            return
        goal = self.model.goals[0]
        mean = goal.sign * goal.gp.predict(rows)[0]
        hopeful = self.model.feasible(rows) * self.model.completes(rows) >= 0.5
        if hopeful.any():
            self.best = max(-math.inf if self.best is None else self.best, float(mean[hopeful].max()))
        self.model = self.model.believing(rows, exactly=REINT)

    def trusted(self):
        f = self.features
        if not self.policy.trust or int(f.numeric.sum()) < 5 or self.best is None:
            return None
        side = _side(self.history, self.policy.objective, int(f.numeric.sum()))
        lengths = np.clip(self.model.goals[0].gp.lengths[f.numeric], 0.05, 4)
        weights = lengths / np.exp(np.log(lengths).mean())
        low, high = np.zeros(len(f.of)), np.ones(len(f.of))
        top = self.tops[0]
        low[f.numeric] = np.clip(top[f.numeric] - side * weights / 2, 0, 1)
        high[f.numeric] = np.clip(top[f.numeric] + side * weights / 2, 0, 1)
        return low, high

    def candidates(self) -> Array:
        f = self.features
        cube = self.rng.random((RANDOM, f.size))
        rows = [f.from_cube(cube)]
        for top in self.tops:
            for width in (0.2, 0.05, 0.01):
                near = np.repeat(top[None], NEAR // 2, axis=0)
                moved = self.rng.random((len(near), f.size)) < max(0.5, min(1.0, 2 / f.size))
                step = width * self.rng.standard_normal(near.shape) * moved[:, f.of] * f.numeric
                near = near + step
                for j in np.flatnonzero(f.choices):
                    change = self.rng.random(len(near)) < 0.2
                    cols = f.columns(j)
                    k = cols.stop - cols.start
                    pick = self.rng.integers(k, size=len(near))
                    new = np.eye(k)[pick] * math.sqrt(0.5)
                    near[change, cols] = new[change]
                rows.append(near)
        rows = np.vstack(rows)
        if self.box is not None:
            low, high = self.box
            u = rows[:RANDOM]
            rows[:RANDOM] = np.where(f.numeric, low + u * (high - low), u)
            rows = np.where(f.numeric, np.clip(rows, low, high), rows)
        return f.snapped(rows)

    def improvement(self, a: Array) -> tuple[Array, Array]:
        lp, dlp = self.model.log_chances(a)
        return self.gain(a, lp, dlp)

    def gain(self, a, lp, dlp):
        if self.best is None:
            return lp, dlp
        goal = self.model.goals[0]
        mean, sd, dmean, dsd = goal.gp.slopes(a)
        z = (goal.sign * mean - self.best) / sd
        log_h, a1, a2 = _log_h(z)
        return lp + np.log(sd) + log_h, dlp + (goal.sign * a1[:, None] * dmean + a2[:, None] * dsd) / sd[:, None]

    def curious(self, a: Array) -> tuple[Array, Array]:
        """The expected improvement where the limits are taken at their kindest."""
        lp, dlp = self.model.log_chances(a, bold=BOLD)
        return self.gain(a, lp, dlp)

    def climbed(self, rows: Array, value) -> Array:  # type: ignore
        v = value(rows)[0]
        order = np.argsort(-v)
        starts = _apart(rows[order[:200]], STARTS)
        f = self.features
        moving = np.flatnonzero(f.numeric)
        if len(moving):
            k, m = len(starts), len(moving)
            bounds = [(0.0, 1.0)] * m if self.box is None else list(zip(self.box[0][moving], self.box[1][moving]))

            def negative(flat: Array) -> tuple[float, Array]:
                a = starts.copy()
                a[:, moving] = flat.reshape(k, m)
                val, slope = value(a)
                return -float(val.sum()), -slope[:, moving].ravel()

            flat, _, _ = fmin_l_bfgs_b(negative, starts[:, moving].ravel(), bounds=bounds * k, maxiter=25)
            ends = starts.copy()
            ends[:, moving] = flat.reshape(k, m)
            starts = np.vstack([f.snapped(ends), starts])
        more = f.steps(starts[:STARTS])
        if len(more):
            starts = np.vstack([starts, more])
        v = value(starts)[0]
        for i in np.argsort(-v):
            if key(f.points(starts[i][None])[0]) not in self.used:
                return starts[i]
        return starts[int(np.argmax(v))]


def incumbent(s: Surrogate) -> tuple[float | None, Array]:
    goal = s.goals[0]
    mean = goal.sign * goal.gp.predict(s.rows)[0]
    p = s.feasible(s.rows)
    ok = p >= 0.5
    if not ok.any():
        return None, s.rows[np.argsort(-p)[:3]]
    order = np.argsort(-np.where(ok, mean, -np.inf))
    return float(mean[order[0]]), s.rows[order[: min(3, int(ok.sum()))]]


def _apart(rows: Array, k: int) -> Array:
    chosen = [0]
    for i in range(1, len(rows)):
        if len(chosen) == k:
            break
        if ((rows[i] - rows[chosen]) ** 2).sum(1).min() > 0.01:
            chosen.append(i)
    return rows[chosen]


def _log_h(z: Array) -> tuple[Array, Array, Array]:
    """log(phi(z) + z Phi(z)), Phi/h and phi/h."""
    far = z < -7
    zz = np.where(far, -7.0, z)
    phi = np.exp(-0.5 * zz * zz) / math.sqrt(2 * math.pi)
    cdf = ndtr(zz)
    h = phi + zz * cdf
    w = np.where(far, z, -7.0)
    log_h = np.where(far, -0.5 * w * w - 0.9189385332 - 2 * np.log(-w) - 3 / (w * w), np.log(h))
    return log_h, np.where(far, -w + 2 / -w, cdf / h), np.where(far, w * w + 3, phi / h)


def _side(history, objective, d):
    batches = {}
    for o in history:
        batches.setdefault(o.batch, []).append(o)
    best, side, good, bad = None, TR0, 0, 0
    for b in sorted(batches):
        vals = [objective.score(o.metrics) for o in batches[b] if o.completed and objective.known(o.metrics) and objective.feasible(o.metrics)]
        top = max(vals, default=None)
        if best is None:
            best = top
            continue
        size = len(batches[b])
        if top is not None and top > best + TRS * abs(best):
            good, bad, best = good + 1, 0, top
        else:
            good, bad = 0, bad + 1
        if good == 3:
            side, good = min(2 * side, TRM), 0
        if bad >= max(4 / size, d / size):
            side, bad = side / 2, 0
    return max(side, 0.05)
