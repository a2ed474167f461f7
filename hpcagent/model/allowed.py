"""The allowed points of a space with constraints and conditional parameters: which they are, and how to get them.

Many points at a time: a column of values for each parameter, and a mask that says where it is active.

- A number that follows from an equality is worked out, not hit by chance. Of a sum (`a + b + c == 1`) all real
  numbers move: from a point beside it to the nearest one on it (`settled`), or so that even points of the unit
  cube become even points of the slice (`spread`, the conditional distribution of each number given those before).
- What else forbids points sorts them out, from a longer sequence. Where it leaves less than one in a few hundred,
  chains walk inside of the region (slice sampling: Neal, Annals of Statistics 31 (2003) 705).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, TypeAlias

from hpcagent.errors import BadInput
from hpcagent.later import Later
from hpcagent.model.base import Scalar
from hpcagent.model.conditions import TOLERANCE, holds, margin, value
from hpcagent.model.constraints import Equality, equalities
from hpcagent.model.grammar import Node, names_in, read_condition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hpcagent.model.space import Parameter, Params, Space
else:
    np = Later("numpy")

__all__ = ["Region"]

Array: TypeAlias = "NDArray[np.float64]"
Mask: TypeAlias = "NDArray[np.bool_]"
Columns: TypeAlias = "dict[str, NDArray[Any]]"

MOST_LISTED = 100_000
"""A finite space up to this size is looked through whole."""
LONGEST_SEQUENCE = 1 << 16
"""So much of a sequence is sorted through before chains walk."""
FIRST_BLOCK = 1 << 10
COVER = 1 << 10
CHAINS, SHRINKS, BURN_IN = 128, 24, 100
SEARCHED, ROUNDS = 512, 120
PROJECTED, STEPS, OVER, SLOPE_OVER = 512, 60, 1.1, 1e-7
CURVE = 1025


class Region:
    """The allowed part of a space; see the top of this module. Made once for a space (`Space.region`)."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.parameters = space.parameters
        self.place = {p.name: i for i, p in enumerate(self.parameters)}
        self.rules = [(c.node, c.names) for c in space.constraints]
        whens = {p.name: read_condition(p.when) for p in self.parameters if p.when is not None}
        self.whens = [(n, whens[n], names_in(whens[n])) for n in in_order(whens)]
        kinds = {p.name: p.kind for p in self.parameters if p.kind in ("float", "int") and not p.constant}
        self.equalities = equalities((node for node, _ in self.rules), kinds)
        self._pools: dict[tuple[int, int, bool], list[Params]] = {}

    # Columns

    def columns(self, units: Array, *, spread: bool = False) -> Columns:
        """Points of the unit cube, `(m, len(space))`, as columns of values; numbers are not rounded.

        With `spread` sums are kept by mapping the cube evenly onto the slice, else by `settled` later.
        """
        found = {p.name: _values(p, units[:, i]) for i, p in enumerate(self.parameters)}
        if spread:
            taken: set[str] = set()
            for one in self.equalities:
                if len(one.shared) > 1 and not taken & set(one.shared):
                    taken |= set(one.shared)
                    self._spread(one, found, units)
        return found

    def of(self, points: Sequence[Mapping[str, Scalar]]) -> Columns:
        """Points as columns; what is left out has the middle of its range there."""
        found: Columns = {}
        for p in self.parameters:
            given = [point.get(p.name) for point in points]
            if any(v is None for v in given):
                middle = p.default if p.default is not None else p.from_unit(0.5)
                given = [middle if v is None else v for v in given]
            numeric = p.kind in ("float", "int") or _numbers(p)
            column = np.empty(len(points), dtype=float if numeric else object)
            column[:] = given
            found[p.name] = column
        return found

    def active(self, columns: Columns) -> dict[str, Mask]:
        """Where each conditional parameter is active; those that always are have no entry."""
        found: dict[str, Mask] = {}
        for name, node, names in self.whens:
            size = len(columns[name])
            on = np.broadcast_to(np.asarray(holds(node, columns), dtype=bool), (size,))
            for other in names:
                if other in found:
                    on = on & found[other]
            found[name] = on
        return found

    def kept(self, columns: Columns) -> Mask:
        """Which points keep every constraint, and have every number within its bounds."""
        size = len(next(iter(columns.values()), ()))
        active = self.active(columns)
        good = np.ones(size, dtype=bool)
        for node, names in self.rules:
            good &= np.asarray(holds(node, columns), dtype=bool) | self.off(names, active, size)
        for one in self.equalities:
            for name in (*one.shared, one.follows):
                p = self.space[name]
                inside = (columns[name] >= p.low) & (columns[name] <= p.high)
                good &= inside | self.off({name}, active, size)
        return good

    def room(self, columns: Columns) -> Array:
        """How far each point is from being allowed: 0 inside, else the sum of what is broken (negative)."""
        size = len(next(iter(columns.values()), ()))
        active = self.active(columns)
        total = np.zeros(size)
        for node, names in self.rules:
            by = np.nan_to_num(np.asarray(margin(node, columns), dtype=float), nan=-1e6, neginf=-1e6)
            broken = ~np.asarray(holds(node, columns), dtype=bool) & ~self.off(names, active, size)
            total += np.where(broken, np.minimum(by, 0.0) - 1e-12, 0.0)
        return total

    @staticmethod
    def off(names: frozenset[str] | set[str], active: Mapping[str, Mask], size: int) -> Mask:
        """Where one of the parameters is left out."""
        off = np.zeros(size, dtype=bool)
        for name in names:
            if name in active:
                off |= ~active[name]
        return off

    # Equalities

    def settled(self, columns: Columns, *, move: bool = True) -> Columns:
        """The nearest points at which the equalities hold, where there are any.

        With `move=False` only the one number that follows changes, not the others of its sum.
        """
        found = dict(columns)
        for _ in range(1 if len(self.equalities) < 2 else 12):
            before = [found[one.follows] for one in self.equalities]
            for one in self.equalities:
                self._settle(one, found, move=move)
            after = [found[one.follows] for one in self.equalities]
            if all(np.array_equal(old, new, equal_nan=True) for old, new in zip(before, after, strict=True)):
                break
        return found

    def _settle(self, one: Equality, columns: Columns, *, move: bool) -> None:
        active = self.active(columns)
        on = ~self.off(one.names, active, len(columns[one.follows]))
        if not on.any():
            return
        part = {name: column[on] for name, column in columns.items()}
        if one.linear is None:
            part[one.follows] = self._root(one, part)
        else:
            if move and len(one.shared) > 1:
                self._project(one, part)
            self._finish(one, part)
        for name in (*one.shared, one.follows):
            column = columns[name].copy()
            column[on] = part[name]
            columns[name] = column

    def _rest(self, one: Equality, columns: Columns, names: Sequence[str]) -> Array:
        """What the weighted sum of `names` has to come to."""
        assert one.linear is not None
        rest = np.full(len(columns[one.follows]), -one.constant)
        for name, c in one.linear.items():
            if name not in names:
                rest = rest - c * columns[name]
        return rest

    def _project(self, one: Equality, columns: Columns) -> None:
        """Move the numbers of a sum to the nearest place where it holds, distances taken by their ranges."""
        assert one.linear is not None
        low, high = (np.array([getattr(self.space[n], end) for n in one.shared]) for end in ("low", "high"))
        a = np.array([one.linear[n] for n in one.shared])
        x = np.clip(np.column_stack([columns[n] for n in one.shared]), low, high)
        target = self._rest(one, columns, one.shared)
        off = np.abs(x @ a - target) > TOLERANCE * (np.abs(x) @ np.abs(a) + np.abs(target))
        if off.any():
            step = a * (high - low) ** 2
            reach = float(np.max((high - low) / np.abs(step)))
            left, right = np.full(off.sum(), -reach), np.full(off.sum(), reach)
            for _ in range(60):
                middle = 0.5 * (left + right)
                under = np.clip(x[off] + middle[:, None] * step, low, high) @ a < target[off]
                left, right = np.where(under, middle, left), np.where(under, right, middle)
            x[off] = np.clip(x[off] + right[:, None] * step, low, high)
        for i, name in enumerate(one.shared):
            # Ten digits, as everywhere; what is left goes into the number that follows.
            columns[name] = np.clip(_ten_digits(x[:, i]), low[i], high[i])

    def _finish(self, one: Equality, columns: Columns) -> None:
        """The number that follows, and where it would leave its bounds by a rounding those before it."""
        assert one.linear is not None
        order = [one.follows, *reversed([n for n in one.shared if n != one.follows])]
        for k, name in enumerate(order):
            p, c = self.space[name], one.linear[name]
            target = self._rest(one, columns, (name,))
            terms = np.asarray(sum(np.abs(w * columns[n]) for n, w in one.linear.items()) + abs(one.constant))
            exact = _rounded(target / c, terms / abs(c))
            if p.kind == "int":
                exact = np.round(exact)
            if k == 0:
                columns[name] = exact
            assert p.low is not None and p.high is not None
            slack = 1e-8 * terms / abs(c)
            if k > 0:
                # Only what a rounding has left over is taken up here.
                near = np.abs(exact - columns[name]) <= slack
                columns[name] = np.where(near, exact, columns[name])
            clipped = np.clip(columns[name], p.low, p.high) + 0.0
            over = (clipped != columns[name]) & (np.abs(clipped - columns[name]) <= slack)
            columns[name] = np.where(over, clipped, columns[name]) + 0.0
            if not over.any():
                return

    def _root(self, one: Equality, columns: Columns) -> Array:
        """Where along its range the number that follows fulfils the equality: the first place; nan if none."""
        p = self.space[one.follows]
        assert p.low is not None and p.high is not None
        size = len(columns[one.follows])

        def off(x: Array) -> Array:
            return np.broadcast_to(np.asarray(value(one.node, {**columns, one.follows: x}), dtype=float), (size,))

        if p.kind == "int":
            best, least = np.full(size, float(p.low)), np.full(size, np.inf)
            every = np.arange(p.low, p.high + 1) if p.high - p.low < 4096 else np.array([p.low])
            for x in every:
                away = np.abs(off(np.full(size, x)))
                best, least = np.where(away < least, x, best), np.fmin(away, least)
            return best
        ends = np.linspace(p.low, p.high, 33)
        left, right = np.full(size, np.nan), np.full(size, np.nan)
        before = off(np.full(size, ends[0]))
        for a, b in pairwise(ends):
            after = off(np.full(size, b))
            crosses = np.isnan(left) & (before * after <= 0)
            left, right = np.where(crosses, a, left), np.where(crosses, b, right)
            before = after
        rising = off(right) >= off(left)
        for _ in range(60):
            middle = 0.5 * (left + right)
            low_side = (off(middle) < 0) == rising
            left, right = np.where(low_side, middle, left), np.where(low_side, right, middle)
        found = 0.5 * (left + right)
        # A place where the sign changes and the value does not vanish (a pole) is none.
        return np.asarray(found)

    def _spread(self, one: Equality, columns: Columns, units: Array) -> None:
        """Map coordinates in [0, 1] onto the slice of the box in which a sum has its value, evenly.

        The share of the slice beyond x_1 is that of the boxes of the others whose sums fit, P(S <= s) with S their
        sum, each evenly in its range; inverted for the coordinate of x_1, then x_2 with x_1 given, and so on.
        """
        assert one.linear is not None
        names = [*(n for n in one.shared if n != one.follows), one.follows]
        parts = [self._term(one.linear[n], self.space[n]) for n in names]  # (least, width) of each term
        rest = self._rest(one, columns, names) - sum(least for least, _ in parts)
        for k, name in enumerate(names[:-1]):
            width = parts[k][1]
            grid, curve = _sum_curve([w for _, w in parts[k + 1 :]])
            total = grid[-1]
            # Terms from `start` to `stop` leave a rest that the others can make up.
            start, stop = np.maximum(rest - total, 0.0), np.minimum(rest, width)
            high, low = np.interp(rest - start, grid, curve), np.interp(rest - stop, grid, curve)
            u = units[:, self.place[name]]
            t = rest - np.interp(high - u * (high - low), curve, grid)
            t = np.clip(t, np.minimum(start, stop), stop)
            columns[name] = self._back(one.linear[name], self.space[name], t)
            rest = rest - t
        columns[names[-1]] = self._back(one.linear[names[-1]], self.space[names[-1]], rest)

    @staticmethod
    def _term(c: float, p: Parameter) -> tuple[float, float]:
        assert p.low is not None and p.high is not None
        return min(c * p.low, c * p.high), abs(c) * (p.high - p.low)

    @staticmethod
    def _back(c: float, p: Parameter, t: Array) -> Array:
        """A term above its least value, as the parameter's value."""
        assert p.low is not None and p.high is not None
        return np.asarray(p.low + t / c if c > 0 else p.high + t / c)

    # Points

    def points(self, columns: Columns, rows: Sequence[int] | NDArray[np.int64]) -> list[Params]:
        """These rows as points: ten digits, equalities settled, what is inactive left out."""
        rows = np.asarray(rows, dtype=int)
        part = self.settled({n: _rounded_for(self.space[n], c[rows]) for n, c in columns.items()}, move=True)
        active = self.active(part)
        found: list[Params] = []
        for i in range(len(rows)):
            point: Params = {}
            for p in self.parameters:
                if p.name in active and not active[p.name][i]:
                    continue
                given = part[p.name][i]
                point[p.name] = int(given) if p.kind == "int" else _as_given(p, given)
            found.append(point)
        return found

    def point(self, params: Mapping[str, Scalar]) -> Params:
        """The point with equalities settled and what is inactive left out; it may still be forbidden."""
        return self.points(self.of([params]), [0])[0]

    def allowed(self, params: Params) -> bool:
        """Whether a point made by `points` is one of the space."""
        return bool(self.kept(self.of([params]))[0])

    @cached_property
    def every(self) -> list[Params] | None:
        """All allowed points of a finite space; None where there are too many to look through."""
        if self.space.cells > MOST_LISTED:
            return None
        return self.combined(
            [
                list(range(int(p.low or 0), int(p.high or 0) + 1)) if p.kind == "int" else list(p.levels(1))
                for p in self.parameters
            ]
        )

    def combined(self, axes: Sequence[Sequence[Scalar]]) -> list[Params]:
        """All allowed combinations of values; a number that follows from others takes what follows."""
        follow = {one.follows for one in self.equalities}
        short = [axis[:1] if p.name in follow else axis for p, axis in zip(self.parameters, axes, strict=True)]
        everything = list(product(*short))
        columns = self.of([dict(zip(self.place, values, strict=True)) for values in everything])
        columns = self.settled(columns, move=False)
        found: dict[tuple[tuple[str, Scalar], ...], Params] = {}
        good = np.flatnonzero(self.kept(columns))
        for point in self._plain_points(columns, good):
            found.setdefault(tuple(point.items()), point)
        return list(found.values())

    def _plain_points(self, columns: Columns, rows: NDArray[np.int64]) -> list[Params]:
        active = self.active(columns)
        return [
            {
                p.name: int(columns[p.name][i]) if p.kind == "int" else _as_given(p, columns[p.name][i])
                for p in self.parameters
                if p.name not in active or active[p.name][i]
            }
            for i in rows
        ]

    def sequence(
        self, units: Callable[[int], Array], count: int, *, seed: int = 0, even: bool = True
    ) -> list[Params]:
        """The first `count` allowed points of a sequence of the unit cube; fewer only in a small finite space.

        Args:
            units: `units(stop)` gives the first `stop` points or more, `(>= stop, len(space))`.
            count: How many.
            seed: For the chains that walk in a region too thin for the sequence.
            even: Whether points of a thin region are chosen for being far from each other.
        """
        stop = FIRST_BLOCK
        while stop < 2 * count:
            stop *= 2
        while True:
            columns = self.settled(self.columns(units(stop), spread=True), move=False)
            good = np.flatnonzero(self.kept(columns))
            if len(good) >= count or stop >= LONGEST_SEQUENCE or (self.every is not None and stop >= 8192):
                break
            if len(good) * LONGEST_SEQUENCE < count * stop:
                break  # the longest would not do either
            stop *= 4
        found = [p for p in self.points(columns, good[: 2 * count]) if self.allowed(p)][:count]
        if len(found) >= count or self.every is not None:
            return found
        return self._pool(count, seed, even)

    def _pool(self, count: int, seed: int, even: bool) -> list[Params]:
        size = 1 << max(9, math.ceil(math.log2(4 * count)))
        name = (size, seed, even)
        if name not in self._pools:
            rng = np.random.default_rng([seed, 0x77616C6B])
            points = self.walked(rng, size)
            self._pools[name] = self._far_apart(points, min(size // 4, 1024)) if even else points
        return self._pools[name][:count]

    def _far_apart(self, points: list[Params], first: int) -> list[Params]:
        """The points reordered: each of the first ones is the farthest from those before it."""
        if len(points) < 3:
            return points
        rows = np.array([self.space.to_unit(p) for p in points])
        order = [int(np.argmin(((rows - rows.mean(0)) ** 2).sum(1)))]
        away = ((rows - rows[order[0]]) ** 2).sum(1)
        for _ in range(min(first, len(points)) - 1):
            order.append(int(np.argmax(away)))
            away = np.minimum(away, ((rows - rows[order[-1]]) ** 2).sum(1))
        taken = set(order)
        return [points[i] for i in (*order, *(i for i in range(len(points)) if i not in taken))]

    # Where it is thin

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
                columns = self.settled(self.columns(at))
                for point in self.points(columns, np.arange(len(at))):
                    if self.allowed(point):
                        found.setdefault(tuple(point.items()), point)
            if len(found) >= count:
                break
        if not found:
            raise self.empty()
        return list(found.values())

    def _step(self, rng: np.random.Generator, at: Array) -> Array:
        """Each chain moves along a random direction, or draws one of its choices anew."""
        size = len(at)
        words = [i for i, p in enumerate(self.parameters) if p.kind == "choice" and len(p.choices) > 1]
        numbers = [i for i, p in enumerate(self.parameters) if p.kind in ("float", "int") and not p.constant]
        if words and (not numbers or rng.random() < 0.3):
            moved = at.copy()
            moved[:, rng.choice(words)] = rng.random(size)
            good = self.kept(self.settled(self.columns(moved), move=False))
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
            good[rows] = self.kept(self.settled(self.columns(moved[rows]), move=False))
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
        for one in self.equalities:
            if len(one.shared) > 1 and one.linear is not None:
                a = np.zeros(len(self.parameters))
                for n in one.shared:
                    a[self.place[n]] = one.linear[n] * (self.space[n].high - self.space[n].low)  # type: ignore[operator]
                length = float(np.linalg.norm(a))
                for before in (*found, *found):
                    a = a - (a @ before) * before
                left = float(np.linalg.norm(a))
                if left > 1e-9 * length:
                    found.append(a / left)
        return found

    def _inside(self, rng: np.random.Generator) -> Array:
        """Some allowed points of the unit cube, `(k, len(space))`, found by going where less is broken."""
        wide = rng.random((1 << 14, len(self.parameters)))
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
        columns = self.settled(self.columns(wide))
        best = wide[np.argsort(-self.room(columns), kind="stable")[:SEARCHED]]
        worth = self.room(self.settled(self.columns(best)))
        width = np.full(SEARCHED, 0.3)
        for _ in range(ROUNDS):
            moving = rng.random(best.shape) < 0.5
            tried = np.clip(best + width[:, None] * rng.standard_normal(best.shape) * moving, 0, 1)
            good = self._good(tried)
            if len(good):
                return good
            now = self.room(self.settled(self.columns(tried)))
            better = now > worth
            best, worth = np.where(better[:, None], tried, best), np.where(better, now, worth)
            width = np.where(better, 1.3, 0.93) * width
            if len(self.parameters) and _ % 40 == 39:
                order = np.argsort(-worth, kind="stable")[: SEARCHED // 4]
                best, worth, width = (np.concatenate([v[order]] * 4) for v in (best, worth, width))
        raise self.empty()

    def _projected(self, at: Array) -> Array:
        """Points of the unit cube moved down the slope of what is broken, each towards the region by its own way.

        With V what is broken in all, a step is V / |grad V|^2 times grad V: the least V is known to be 0 (Polyak,
        USSR Computational Mathematics and Mathematical Physics 9 (1969) 14), and a little more, to get inside.
        """
        numbers = [i for i, p in enumerate(self.parameters) if p.kind in ("float", "int") and not p.constant]
        at = at.copy()
        for _ in range(STEPS):
            broken = -self.room(self.settled(self.columns(at)))
            left = np.flatnonzero(broken > 0)
            if not len(left):
                break
            start, slope = at[left], np.zeros((len(left), at.shape[1]))
            for i in numbers:
                beside = start.copy()
                by = np.where(start[:, i] > 0.5, -SLOPE_OVER, SLOPE_OVER)
                beside[:, i] += by
                slope[:, i] = (-self.room(self.settled(self.columns(beside))) - broken[left]) / by
            steep = np.maximum((slope**2).sum(1), 1e-300)
            move = (OVER * broken[left] / steep)[:, None] * slope
            at[left] = np.clip(start - np.clip(move, -0.5, 0.5), 0, 1)
        return at

    def _good(self, units: Array) -> Array:
        """The allowed ones, with the coordinates of the points that they settle to."""
        columns = self.settled(self.columns(units))
        rows = np.flatnonzero(self.kept(columns))
        return np.array([self._unit(columns, int(i)) for i in rows[:SEARCHED]]).reshape(-1, len(self.parameters))

    def _unit(self, columns: Columns, i: int) -> list[float]:
        return [
            p.to_unit(int(v) if p.kind == "int" else _as_given(p, v))
            for p in self.parameters
            for v in [columns[p.name][i]]
        ]

    def empty(self) -> BadInput:
        """The error that no point is allowed, with the constraint that forbids most."""
        rng = np.random.default_rng(0)
        columns = self.settled(self.columns(rng.random((4096, len(self.parameters)))))
        shares = []
        for (node, names), rule in zip(self.rules, self.space.constraints, strict=True):
            off = self.off(names, self.active(columns), 4096)
            shares.append((float(np.mean(np.asarray(holds(node, columns), dtype=bool) | off)), str(rule)))
        least, rule_text = min(shares)
        said = "; ".join(text for _, text in shares)
        more = f" {rule_text!r} alone is kept by {least:.2g} of all points." if len(shares) > 1 else ""
        return BadInput(
            f"no point of the space keeps the constraints ({said}), or so few that none was found; widen a range "
            f"or drop one.{more}",
            value=said,
        )

    @cached_property
    def cover(self) -> list[Params]:
        """Allowed points all over the space, at most 1024, always the same.

        Raises:
            BadInput: There is none.
        """
        units = np.random.default_rng(0).random((LONGEST_SEQUENCE, len(self.parameters)))
        found = self.sequence(lambda stop: units[:stop], COVER)
        if not found:
            raise self.empty()
        return found

    @cached_property
    def middle(self) -> Params:
        """An allowed point near the middle of the space.

        Raises:
            BadInput: There is none.
        """
        centre = self.points(self.columns(np.full((1, len(self.parameters)), 0.5)), [0])[0]
        if self.allowed(centre):
            return centre
        found = self.cover if self.every is None else self.every
        if not found:
            raise self.empty()
        return min(found, key=lambda p: float(((self.space.to_unit(p) - 0.5) ** 2).sum()))

    def share(self, n: int = 4096) -> float:
        """Which share of the space (equalities settled) is allowed, by `n` points."""
        units = np.random.default_rng(0).random((n, len(self.parameters)))
        return float(np.mean(self.kept(self.settled(self.columns(units, spread=True), move=False))))


def in_order(whens: Mapping[str, Node]) -> list[str]:
    """Conditional parameters, each after those that its condition names.

    Raises:
        BadInput: Their conditions go round in a circle.
    """
    order: list[str] = []
    left = dict(whens)
    while left:
        ready = [n for n, node in left.items() if not names_in(node) & set(left)]
        if not ready:
            circle = ", ".join(sorted(left))
            raise BadInput(f"the conditions (when) of {circle} depend on each other in a circle.", value=circle)
        order += ready
        left = {n: node for n, node in left.items() if n not in ready}
    return order


def _values(p: Parameter, u: Array) -> NDArray[Any]:
    """`Parameter.from_unit` for many, without rounding."""
    if p.kind == "choice":
        which = np.minimum((u * len(p.choices)).astype(int), len(p.choices) - 1)
        column = np.empty(len(p.choices), dtype=float if _numbers(p) else object)
        column[:] = p.choices
        return np.asarray(column[which])
    if p.kind not in ("float", "int"):
        return np.full(len(u), p.from_unit(0.5), dtype=object)
    assert p.low is not None and p.high is not None
    low, high = p.low, p.high + (p.kind == "int")
    if p.log:
        found = np.exp(math.log(low) + u * (math.log(high) - math.log(low)))
    else:
        found = low + u * (high - low)
    return np.clip(np.floor(found) if p.kind == "int" else found, p.low, p.high)


def _numbers(p: Parameter) -> bool:
    return p.kind == "choice" and not any(isinstance(c, (str, bool)) for c in p.choices)


def _as_given(p: Parameter, value: Any) -> Scalar:
    """A value of a column as the plain value it stands for."""
    if p.kind == "float":
        return float(value)
    if p.kind == "choice":
        return next(
            c for c in p.choices if c == value and isinstance(c, bool) == isinstance(value, (bool, np.bool_))
        )
    return value  # type: ignore[no-any-return]  # a text


def _rounded_for(p: Parameter, column: NDArray[Any]) -> NDArray[Any]:
    if p.kind != "float":
        return column
    assert p.low is not None and p.high is not None
    return np.clip(_ten_digits(column), p.low, p.high)


def _ten_digits(values: NDArray[Any]) -> Array:
    return np.array([float(f"{v:.10g}") for v in values], dtype=float)


def _rounded(values: Array, scale: Array) -> Array:
    """Twelve digits of the scale, so that 1 - 0.7 is 0.3."""
    power = np.ceil(np.log10(np.maximum(scale, 1e-300))) - 12
    unit = 10.0**power
    whole = np.round(values / unit)
    # The nearest number to a decimal one, as long as both of these are exact.
    found = np.asarray(np.where(power < 0, whole / 10.0 ** np.clip(-power, 0, 22), whole * unit), dtype=float)
    odd = ~(np.abs(power) <= 22) | ~(np.abs(whole) < 1e13)
    if odd.any():
        found[odd] = [float(f"{v:.13g}") for v in (whole * unit)[odd]]
    return found


def _sum_curve(widths: Sequence[float]) -> tuple[Array, Array]:
    """P(S <= s) on a grid of s, with S the sum of numbers that are each even in [0, width]."""
    widths = [w for w in widths if w > 0]
    total = float(sum(widths))
    if not widths:
        return np.array([0.0, 1e-300]), np.array([0.0, 1.0])
    grid = np.linspace(0.0, total, CURVE)
    curve = np.clip(grid / widths[0], 0.0, 1.0)
    for width in widths[1:]:
        # P(S + w u <= s) = mean of P(S <= s') over s' from s - w to s
        area = np.concatenate([[0.0], np.cumsum(0.5 * (curve[1:] + curve[:-1]) * np.diff(grid))])
        curve = (np.interp(grid, grid, area) - np.interp(np.maximum(grid - width, 0.0), grid, area)) / width
    curve = np.maximum.accumulate(np.clip(curve, 0.0, 1.0))
    # Strictly rising, so that it can be inverted.
    return grid, curve + np.linspace(0.0, 1e-12, CURVE)
