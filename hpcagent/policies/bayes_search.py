"""Where a run is worth most: a gradient search from many starts, or a look at every point of a small space."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Sequence
from itertools import product
from typing import TypeAlias

import numpy as np

from hpcagent.later import Later
from hpcagent.model.objective import Objective
from hpcagent.model.records import Observation
from hpcagent.policies.levels import LevelRows
from hpcagent.statistics.acquisition import Acquisition
from hpcagent.statistics.covariance import Array
from hpcagent.statistics.points import Key, key
from hpcagent.statistics.surrogate import Surrogate

optimize = Later("scipy.optimize")

__all__ = ["CLOSELY", "Search"]

Box: TypeAlias = tuple[Array, Array]

SPREAD_OUT = 256  # random candidates for the start of a search
AROUND = 24  # candidates around each of the best points, at each width
WIDTHS = (0.2, 0.05, 0.01)
STARTS = 2
STEPS = 12
CLOSELY = 8  # after so many points of a batch the search is shorter: fewer candidates, one start, no repeats
ENUMERATED = 2000  # a finite space up to this size is looked through whole
MANY = 5  # numbers from which on a trust region is used
WIDEST, NARROWEST = 0.8, 0.05
GAIN = 1e-3  # a relative gain that counts as progress


class _EnoughLooks(Exception):
    """A climb has looked as often as it may."""


class Search:
    """Looks for the row that is worth most.

    Args:
        surrogate: The models.
        levels: The fidelity, if there is one: an answer has to be at its last level.
        tops: The best rows that are known, around which it looks.
        rng: For starts and directions.
    """

    def __init__(
        self, surrogate: Surrogate, levels: LevelRows | None, tops: Array, rng: np.random.Generator
    ) -> None:
        self._surrogate, self._levels, self._rng = surrogate, levels, rng
        self._features = surrogate.features
        self._space = surrogate.features.space
        self._tops = tops
        self._whole = self._everything()

    def _at_last_level(self, rows: Array) -> Array:
        return rows if self._levels is None else self._levels.at_last(rows)

    def _everything(self) -> Array | None:
        """Every point of a small finite space; None where there are too many."""
        space = self._space
        if space.size > ENUMERATED:
            return None
        if not space.simple:
            every = space.region.every
            return None if every is None else self._at_last_level(self._features.rows(every))
        values = [
            range(int(p.low or 0), int(p.high or 0) + 1) if p.kind == "int" else p.levels(1)
            for p in space.parameters
        ]
        rows = self._features.rows([dict(zip(space.names, point, strict=True)) for point in product(*values)])
        return self._at_last_level(rows)

    def _candidates(self, box: Box | None, part: int) -> Array:
        """Points to begin from; one in `part` of them."""
        f, rng = self._features, self._rng
        around = AROUND // part
        cube = f.drawn(rng, SPREAD_OUT // part)
        low, high = box if box is not None else (np.zeros(len(f.of)), np.ones(len(f.of)))
        found = [np.where(f.numeric, low + cube * (high - low), cube)]
        for top in self._tops:
            for width in WIDTHS:
                near = np.repeat(top[None], around, axis=0)
                moved = rng.random((around, f.size)) < max(0.5, min(1.0, 2 / f.size))
                near = near + width * self._directions(near.shape) * moved[:, f.of] * f.numeric
                for j in np.flatnonzero(f.choices):
                    columns = f.columns(int(j))
                    values = columns.stop - columns.start
                    changed = rng.random(around) < 0.2
                    near[changed, columns] = (
                        math.sqrt(0.5) * np.eye(values)[rng.integers(values, size=around)][changed]
                    )
                found.append(np.where(f.numeric, np.clip(near, low, high), near))
        return self._at_last_level(f.kept(f.snapped(np.vstack(found))))

    def _directions(self, shape: tuple[int, ...]) -> Array:
        """Normal random steps; where not all is allowed half of them have the shape of what is."""
        steps = self._rng.standard_normal(shape)
        f = self._features
        if f.simple or len(f.cover) < 2:
            return steps
        which = self._rng.integers(len(f.cover), size=(2, len(steps)))
        apart = 3.0 * (f.cover[which[0]] - f.cover[which[1]])
        return np.where((self._rng.random(len(steps)) < 0.5)[:, None], apart, steps)

    def box(self, worth: Acquisition, history: Sequence[Observation]) -> Box | None:
        """The trust region around the best point; None with few numbers, or before anything is allowed."""
        f = self._features
        numbers = int(f.numeric.sum())
        if numbers < MANY or worth.best is None or len(self._surrogate.goals) > 1:
            return None
        side = _side(history, self._surrogate.objective, numbers)
        lengths = np.clip(self._surrogate.goals[0].gp.lengths, NARROWEST, 4.0)
        half = np.where(f.numeric, 0.5 * side * lengths / np.exp(np.log(lengths[f.numeric]).mean()), 0.0)
        top = self._tops[0]
        low, high = np.clip(top - half, 0.0, 1.0), np.clip(top + half, 0.0, 1.0)
        return np.where(f.numeric, low, 0.0), np.where(f.numeric, high, 1.0)

    def best(
        self, worth: Acquisition, box: Box | None, used: Collection[Key], *, closely: bool = True
    ) -> Array | None:
        """The row of the best unused point, or None where every point is used."""
        if self._whole is not None:
            return self._unused(self._whole, worth(self._whole, slopes=False)[0], used)
        rows = self._candidates(box, 1 if closely else 4)
        if not len(rows):
            return None
        values = worth(rows, slopes=False)[0]
        starts = _apart(rows[np.argsort(-values, kind="stable")[:200]], STARTS if closely else 1)
        if worth.weights is not None:
            ends = self._wandered(worth, starts)
        else:
            ends = self._climbed(worth, starts, box, STEPS if closely else STEPS // 2)
            if not self._features.simple:
                ends = self._along_borders(worth, starts, ends, closely=closely)
        steps = self._at_last_level(self._features.kept(self._features.steps(np.vstack([ends, starts])[:STARTS])))
        tried = np.vstack([ends, starts, steps])
        return self._unused(tried, worth(tried, slopes=False)[0], used) if len(tried) else None

    def _climbed(self, worth: Acquisition, starts: Array, box: Box | None, steps: int) -> Array:
        """Uphill from every start along the numbers, all at once: of each the best that was seen."""
        moving = np.flatnonzero(self._features.numeric)
        if not len(moving):
            return starts
        k, m = len(starts), len(moving)
        low, high = (np.zeros(m), np.ones(m)) if box is None else (box[0][moving], box[1][moving])
        ends, best, looks = starts.copy(), np.full(k, -np.inf), 0

        def downhill(flat: Array) -> tuple[float, Array]:
            nonlocal looks
            if looks == 2 * steps:  # scipy counts between its line searches only, and one of them may take twenty
                raise _EnoughLooks
            looks += 1
            rows = starts.copy()
            rows[:, moving] = flat.reshape(k, m)
            value, slope = worth(rows)
            better = value > best
            ends[better], best[better] = rows[better], value[better]
            return -float(value.sum()), -slope[:, moving].ravel()

        bounds = list(zip(low, high, strict=True)) * k
        with contextlib.suppress(_EnoughLooks):
            optimize.fmin_l_bfgs_b(downhill, starts[:, moving].ravel(), bounds=bounds, maxiter=steps)
        return self._features.snapped(ends)

    def _along_borders(self, worth: Acquisition, starts: Array, ends: Array, *, closely: bool) -> Array:
        """What was climbed to, led back to what is allowed, and then along its border by ever smaller steps."""
        f = self._features
        low, high = np.zeros(len(ends)), np.ones(len(ends))
        for _ in range(8):  # how far each can go on its way
            middle = 0.5 * (low + high)
            there = f.snapped(starts + middle[:, None] * (ends - starts))
            good = np.array([len(f.kept(row[None])) > 0 for row in there])
            low, high = np.where(good, middle, low), np.where(good, high, middle)
        back = f.snapped(starts + low[:, None] * (ends - starts))
        at = f.kept(np.vstack([starts, back, ends]))
        for width in (0.03, 0.01, 0.003, 0.001) if closely else (0.01,):
            best = at[np.argsort(-worth(at, slopes=False)[0], kind="stable")[:STARTS]]
            near = np.repeat(best, AROUND, axis=0)
            near = near + width * self._directions(near.shape) * f.numeric
            at = np.vstack([best, f.kept(f.snapped(near))])
        order = np.argsort(-worth(at, slopes=False)[0], kind="stable")
        return np.asarray(at[order[:STARTS]])

    def _wandered(self, worth: Acquisition, starts: Array) -> Array:
        """Uphill by random steps, where the worth has no simple derivative."""
        f = self._features
        for width in (0.1, 0.03, 0.01, 0.003):
            steps = self._rng.standard_normal((16, *starts.shape)) * f.numeric * width
            rows = self._at_last_level(f.kept(f.snapped(np.vstack([starts, *(starts + s for s in steps)]))))
            starts = _apart(rows[np.argsort(-worth(rows, slopes=False)[0], kind="stable")], STARTS)
        return starts

    def _unused(self, rows: Array, values: Array, used: Collection[Key]) -> Array | None:
        for i in np.argsort(-values, kind="stable"):
            row: Array = rows[i]
            point = self._features.points(row[None])[0]
            if not self._space.allows(point):
                continue  # by the rounding of a strict constraint
            if key(point) not in used or (self._levels is not None and self._levels.somewhere(row, used)):
                return row
        return None


def _apart(rows: Array, k: int) -> Array:
    """The first `k` rows that are not close to each other."""
    chosen = [0]
    for i in range(1, len(rows)):
        if len(chosen) == k:
            break
        if ((rows[i] - rows[chosen]) ** 2).sum(1).min() > 0.01:
            chosen.append(i)
    return rows[chosen]


def _side(history: Sequence[Observation], objective: Objective, numbers: int) -> float:
    """Side of the trust region: doubled after three batches with progress, halved after a few without."""
    batches: dict[int, list[Observation]] = {}
    for o in history:
        batches.setdefault(o.batch, []).append(o)
    best: float | None = None
    side, good, bad = WIDEST, 0, 0
    for number in sorted(batches):
        runs = [o for o in batches[number] if o.completed and objective.known(o.metrics)]
        top = max((objective.score(o.metrics) for o in runs if objective.feasible(o.metrics)), default=None)
        if best is None:
            best = top
        elif top is not None and top > best + GAIN * abs(best):
            best, good, bad = top, good + 1, 0
        else:
            good, bad = 0, bad + 1
        if good == 3:
            side, good = min(2 * side, WIDEST), 0
        if bad >= max(4, numbers) / len(batches[number]):
            side, bad = max(side / 2, NARROWEST), 0
    return side
