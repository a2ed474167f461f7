"""Points of a space as columns, many at a time: the values of each parameter, held against the conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from hpcagent.errors import BadInput
from hpcagent.later import Later
from hpcagent.model.base import Scalar
from hpcagent.model.conditions import holds, margin
from hpcagent.model.equalities import equalities, settle, spread_over
from hpcagent.model.grammar import names_in, read_condition
from hpcagent.model.scale import as_given, column_from_unit, is_numeric, rounded_for
from hpcagent.model.within import in_order

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hpcagent.model.constraints import Constraint
    from hpcagent.model.parameter import Parameter, Params
else:
    np = Later("numpy")

__all__ = ["Columns", "Table"]

Array: TypeAlias = "NDArray[np.float64]"
Mask: TypeAlias = "NDArray[np.bool_]"
Table: TypeAlias = "dict[str, NDArray[Any]]"


class Columns:
    """What is asked of many points of a space at a time.

    Attributes:
        by_name: The parameters.
        place: Where each stands among them.
        whens: Name, condition and the names in it of conditional parameters, each after those that it depends on.
        equalities: What follows from what.
    """

    def __init__(self, parameters: Sequence[Parameter], constraints: Sequence[Constraint]) -> None:
        self.parameters = parameters
        self.constraints = constraints
        self.by_name = {p.name: p for p in parameters}
        self.place = {p.name: i for i, p in enumerate(parameters)}
        self._rules = [(c.node, c.names) for c in constraints]
        whens = {p.name: read_condition(p.when) for p in parameters if p.when is not None}
        self.whens = [(n, whens[n], names_in(whens[n])) for n in in_order(whens)]
        kinds = {p.name: p.kind for p in parameters if p.kind in ("float", "int") and not p.constant}
        self.equalities = equalities((node for node, _ in self._rules), kinds)

    def of_units(self, units: Array, *, spread: bool = False) -> Table:
        """Points of the unit cube, `(m, len(space))`, as columns of values; numbers are not rounded.

        With `spread` sums are kept by mapping the cube evenly onto the slice, else by `settled` later.
        """
        shares = dict(zip(self.by_name, units.T, strict=True))
        found = {p.name: column_from_unit(p, shares[p.name]) for p in self.parameters}
        if spread:
            taken: set[str] = set()
            for one in self.equalities:
                if len(one.shared) > 1 and not taken & set(one.shared):
                    taken |= set(one.shared)
                    spread_over(one, self.by_name, found, shares)
        return found

    def at(self, units: Array, *, move: bool = True) -> Table:
        """Points of the unit cube as columns, with equalities settled (see `settled`)."""
        return self.settled(self.of_units(units), move=move)

    def of_points(self, points: Sequence[Mapping[str, Scalar]]) -> Table:
        """Points as columns; what is left out has the middle of its range there."""
        found: Table = {}
        for p in self.parameters:
            given = [point.get(p.name) for point in points]
            if any(v is None for v in given):
                middle = p.default if p.default is not None else p.from_unit(0.5)
                given = [middle if v is None else v for v in given]
            column = np.empty(len(points), dtype=float if is_numeric(p) else object)
            column[:] = given
            found[p.name] = column
        return found

    def active(self, table: Table) -> dict[str, Mask]:
        """Where each conditional parameter is active; those that always are have no entry."""
        found: dict[str, Mask] = {}
        for name, node, names in self.whens:
            size = len(table[name])
            on = np.broadcast_to(np.asarray(holds(node, table), dtype=bool), (size,))
            for other in names:
                if other in found:
                    on = on & found[other]
            found[name] = on
        return found

    def kept(self, table: Table) -> Mask:
        """Which points keep every constraint, and have every number within its bounds."""
        size = len(next(iter(table.values()), ()))
        active = self.active(table)
        good = np.ones(size, dtype=bool)
        for node, names in self._rules:
            good &= np.asarray(holds(node, table), dtype=bool) | self.off(names, active, size)
        for one in self.equalities:
            for name in (*one.shared, one.follows):
                p = self.by_name[name]
                inside = (table[name] >= p.low) & (table[name] <= p.high)
                good &= inside | self.off({name}, active, size)
        return good

    def room(self, table: Table) -> Array:
        """How far each point is from being allowed: 0 inside, else the sum of what is broken (negative)."""
        size = len(next(iter(table.values()), ()))
        active = self.active(table)
        total = np.zeros(size)
        for node, names in self._rules:
            by = np.nan_to_num(np.asarray(margin(node, table), dtype=float), nan=-1e6, neginf=-1e6)
            broken = ~np.asarray(holds(node, table), dtype=bool) & ~self.off(names, active, size)
            total += np.where(broken, np.minimum(by, 0.0) - 1e-12, 0.0)
        return total

    def _on(self, names: frozenset[str], table: Table) -> Mask:
        return ~self.off(names, self.active(table), len(next(iter(table.values()))))

    @staticmethod
    def off(names: frozenset[str] | set[str], active: Mapping[str, Mask], size: int) -> Mask:
        """Where one of the parameters is left out."""
        off = np.zeros(size, dtype=bool)
        for name in names:
            if name in active:
                off |= ~active[name]
        return off

    def settled(self, table: Table, *, move: bool = True) -> Table:
        """The nearest points at which the equalities hold, where there are any.

        With `move=False` only the one number that follows changes, not the others of its sum.
        """
        found = dict(table)
        for _ in range(1 if len(self.equalities) < 2 else 12):
            before = [found[one.follows] for one in self.equalities]
            for one in self.equalities:
                settle(one, self.by_name, found, self._on(one.names, found), move=move)
            after = [found[one.follows] for one in self.equalities]
            if all(np.array_equal(old, new, equal_nan=True) for old, new in zip(before, after, strict=True)):
                break
        return found

    def points(self, table: Table, rows: Sequence[int] | NDArray[np.int64]) -> list[Params]:
        """These rows as points: ten digits, equalities settled, what is inactive left out."""
        rows = np.asarray(rows, dtype=int)
        part = self.settled({n: rounded_for(self.by_name[n], c[rows]) for n, c in table.items()})
        return self.as_they_are(part, range(len(rows)))

    def point(self, params: Mapping[str, Scalar]) -> Params:
        """The point with equalities settled and what is inactive left out; it may still be forbidden."""
        return self.points(self.of_points([params]), [0])[0]

    def allowed(self, params: Params) -> bool:
        """Whether a point made by `points` is one of the space."""
        return bool(self.kept(self.of_points([params]))[0])

    def as_they_are(self, table: Table, rows: Iterable[int]) -> list[Params]:
        """These rows as points, what is inactive left out."""
        active = self.active(table)
        return [
            {
                p.name: as_given(p, table[p.name][i])
                for p in self.parameters
                if p.name not in active or active[p.name][i]
            }
            for i in rows
        ]

    def empty(self) -> BadInput:
        """The error that no point is allowed, with the constraint that forbids most."""
        rng = np.random.default_rng(0)
        table = self.at(rng.random((4096, len(self.parameters))))
        shares = []
        for (node, names), rule in zip(self._rules, self.constraints, strict=True):
            off = self.off(names, self.active(table), 4096)
            shares.append((float(np.mean(np.asarray(holds(node, table), dtype=bool) | off)), str(rule)))
        least, rule_text = min(shares)
        said = "; ".join(text for _, text in shares)
        more = f" {rule_text!r} alone is kept by {least:.2g} of all points." if len(shares) > 1 else ""
        return BadInput(
            f"no point of the space keeps the constraints ({said}), or so few that none was found; widen a range "
            f"or drop one.{more}",
            value=said,
        )
