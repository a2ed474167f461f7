"""Allowed points where they are rare: chains walk inside of the region, whatever its shape.

Slice sampling: Neal, Annals of Statistics 31 (2003) 705. Chains begin at allowed points, which are found by going
where less is broken.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from hpcagent.later import Later
from hpcagent.model.base import Scalar
from hpcagent.model.columns import Columns, Table
from hpcagent.model.scale import as_given

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hpcagent.model.parameter import Params
else:
    np = Later("numpy")

__all__ = ["Chains"]

Array: TypeAlias = "NDArray[np.float64]"

CHAINS, SHRINKS, BURN_IN = 128, 24, 100
SEARCHED, ROUNDS = 512, 120
PROJECTED, STEPS, OVER, SLOPE_OVER = 512, 60, 1.1, 1e-7


class Chains:
    """Chains that walk in the allowed part of a space."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._parameters = columns.parameters
        self._numbers = [
            i for i, p in enumerate(self._parameters) if p.kind in ("float", "int") and not p.constant
        ]

    def walked(self, rng: np.random.Generator, count: int) -> list[Params]:
        """Allowed points by chains that walk in the region: uniform after a while, whatever its shape.

        Raises:
            BadInput: No allowed point can be found.
        """
        at = self._inside(rng)
        at = rng.permutation(at)[:CHAINS] if len(at) >= CHAINS else at[rng.integers(len(at), size=CHAINS)]
        found: dict[tuple[tuple[str, Scalar], ...], Params] = {}
        for step in range(BURN_IN + 6 * math.ceil(count / CHAINS) + 40):
            at = self._step(rng, at)
            if step >= BURN_IN and step % 3 == 0:
                table = self._columns.at(at)
                for point in self._columns.points(table, np.arange(len(at))):
                    if self._columns.allowed(point):
                        found.setdefault(tuple(point.items()), point)
            if len(found) >= count:
                break
        if not found:
            raise self._columns.empty()
        return list(found.values())

    def _step(self, rng: np.random.Generator, at: Array) -> Array:
        """Each chain moves along a random direction, or draws one of its choices anew."""
        size = len(at)
        numbers = self._numbers
        words = [i for i, p in enumerate(self._parameters) if p.kind == "choice" and len(p.choices) > 1]
        if words and (not numbers or rng.random() < 0.3):
            moved = at.copy()
            moved[:, rng.choice(words)] = rng.random(size)
            good = self._columns.kept(self._columns.at(moved, move=False))
            return np.where(good[:, None], moved, at)
        direction = np.zeros(at.shape)
        direction[:, numbers] = rng.standard_normal((size, len(numbers)))
        kind = rng.random()
        if kind < 0.6:
            # From one chain towards another: so steps take the region's own shape, however thin it is.
            apart = at[rng.permutation(size)] - at[rng.permutation(size)]
            lengths = np.abs(apart[:, numbers]).max(1)
            direction[:, numbers] = np.where((lengths > 0)[:, None], apart[:, numbers], direction[:, numbers])
        elif kind < 0.8:  # along one number, or two: what many constraints leave open
            keep = rng.random((size, len(numbers))).argsort(1) < rng.integers(1, 3)
            direction[:, numbers] *= keep
        for a in self._across:
            direction -= np.outer(direction @ a, a)
        direction /= np.maximum(np.linalg.norm(direction, axis=1), 1e-12)[:, None]
        reach = math.sqrt(len(numbers))
        low, high = np.full(size, -reach), np.full(size, reach)
        done = at.copy()
        left = np.ones(size, dtype=bool)
        for _ in range(SHRINKS):
            t = low + rng.random(size) * (high - low)
            moved = at + t[:, None] * direction
            within = ((moved >= 0) & (moved <= 1)).all(1)
            rows = np.flatnonzero(left & within)
            good = np.zeros(size, dtype=bool)
            good[rows] = self._columns.kept(self._columns.at(moved[rows], move=False))
            done = np.where((left & good)[:, None], moved, done)
            left &= ~good
            low, high = np.where(t < 0, t, low), np.where(t >= 0, t, high)
            if not left.any():
                break
        return done

    @cached_property
    def _across(self) -> list[Array]:
        """Directions of the unit cube that leave one of the sums, orthonormal: a step without them keeps all."""
        found: list[Array] = []
        for one in self._columns.equalities:
            if len(one.shared) > 1 and one.linear is not None:
                a = np.zeros(len(self._parameters))
                for n in one.shared:
                    p = self._columns.by_name[n]
                    a[self._columns.place[n]] = one.linear[n] * (p.high - p.low)  # type: ignore[operator]
                length = float(np.linalg.norm(a))
                for before in (*found, *found):
                    a = a - (a @ before) * before
                left = float(np.linalg.norm(a))
                if left > 1e-9 * length:
                    found.append(a / left)
        return found

    def _inside(self, rng: np.random.Generator) -> Array:
        """Some allowed points of the unit cube, `(k, len(space))`, found by going where less is broken."""
        wide = rng.random((1 << 14, len(self._parameters)))
        # Those that will do, of which there are mostly enough long before the end.
        some: list[Array] = []
        for block in np.array_split(wide, 16):
            some.append(self._good(block))
            if sum(map(len, some)) >= SEARCHED:
                break
        good = np.concatenate(some)[:SEARCHED]
        if len(good) >= CHAINS:
            return good
        # Chains that all began at the few found by chance would stay near them in a thin, curved region.
        good = np.concatenate([good, self._good(self._projected(wide[:PROJECTED]))])
        if len(good):
            return good
        table = self._columns.at(wide)
        best = wide[np.argsort(-self._columns.room(table), kind="stable")[:SEARCHED]]
        worth = self._columns.room(self._columns.at(best))
        width = np.full(SEARCHED, 0.3)
        for _ in range(ROUNDS):
            moving = rng.random(best.shape) < 0.5
            tried = np.clip(best + width[:, None] * rng.standard_normal(best.shape) * moving, 0, 1)
            good = self._good(tried)
            if len(good):
                return good
            now = self._columns.room(self._columns.at(tried))
            better = now > worth
            best, worth = np.where(better[:, None], tried, best), np.where(better, now, worth)
            width = np.where(better, 1.3, 0.93) * width
            if len(self._parameters) and _ % 40 == 39:
                order = np.argsort(-worth, kind="stable")[: SEARCHED // 4]
                best, worth, width = (np.concatenate([v[order]] * 4) for v in (best, worth, width))
        raise self._columns.empty()

    def _projected(self, at: Array) -> Array:
        """Points of the unit cube moved down the slope of what is broken, each towards the region by its own way.

        With V what is broken in all, a step is V / |grad V|^2 times grad V: the least V is known to be 0 (Polyak,
        USSR Computational Mathematics and Mathematical Physics 9 (1969) 14), and a little more, to get inside.
        """
        at = at.copy()
        for _ in range(STEPS):
            broken = -self._columns.room(self._columns.at(at))
            left = np.flatnonzero(broken > 0)
            if not len(left):
                break
            start, slope = at[left], np.zeros((len(left), at.shape[1]))
            for i in self._numbers:
                beside = start.copy()
                by = np.where(start[:, i] > 0.5, -SLOPE_OVER, SLOPE_OVER)
                beside[:, i] += by
                slope[:, i] = (-self._columns.room(self._columns.at(beside)) - broken[left]) / by
            steep = np.maximum((slope**2).sum(1), 1e-300)
            move = (OVER * broken[left] / steep)[:, None] * slope
            at[left] = np.clip(start - np.clip(move, -0.5, 0.5), 0, 1)
        return at

    def _good(self, units: Array) -> Array:
        """The allowed ones, with the coordinates of the points that they settle to."""
        table = self._columns.at(units)
        rows = np.flatnonzero(self._columns.kept(table))
        return np.array([self._unit(table, int(i)) for i in rows[:SEARCHED]]).reshape(-1, len(self._parameters))

    def _unit(self, table: Table, i: int) -> list[float]:
        return [p.to_unit(as_given(p, table[p.name][i])) for p in self._parameters]
