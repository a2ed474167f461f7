"""Points of a space as rows of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from hpcagent.model.base import Scalar
from hpcagent.model.parameter import Parameter, Params
from hpcagent.model.space import Space
from hpcagent.statistics.covariance import Array

__all__ = ["Features"]


class Features:
    """Points of a space as rows of numbers: a coordinate in [0, 1] for a number, a column per value of a choice.

    Constants have no column; what is not active at a point has a fixed value there (0.5; no value of a choice), so
    points that differ in nothing else are one. A row of a choice has 1/sqrt(2) in the column of its value, so that
    the squared distance of two different values is 1.

    Attributes:
        space: The space.
        of: `(columns,)`, which of the varied parameters each column belongs to.
        numeric: `(columns,)`, whether the column is a coordinate that can move.
        size: How many parameters are varied.
        choices: `(size,)`, whether each of them is a choice.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        of: list[int] = []
        numeric: list[bool] = []
        self._columns: list[slice] = []
        self._varied = [p for p in space.parameters if not p.constant]
        for j, p in enumerate(self._varied):
            width = len(p.choices) if p.kind == "choice" else 1
            self._columns.append(slice(len(of), len(of) + width))
            of += [j] * width
            numeric += [p.kind != "choice"] * width
        self.of = np.array(of, dtype=int)
        self.numeric = np.array(numeric, dtype=bool)
        self.size = len(self._varied)
        self.simple = space.simple
        self.choices = np.array([p.kind == "choice" for p in self._varied], dtype=bool)

    @property
    def names(self) -> tuple[str, ...]:
        """The varied parameters."""
        return tuple(p.name for p in self._varied)

    def rows(self, points: Sequence[Params]) -> Array:
        """`(len(points), columns)`."""
        rows = np.zeros((len(points), len(self.of)))
        for p, columns in zip(self._varied, self._columns, strict=True):
            if p.kind == "choice":
                at = {c: i for i, c in enumerate(p.choices)}
                there = [i for i, point in enumerate(points) if p.name in point]
                which = [at[points[i][p.name]] for i in there]
                rows[there, columns.start + np.array(which, dtype=int)] = math.sqrt(0.5)
                continue
            # nan: not active there
            values = np.array([point.get(p.name, math.nan) for point in points], dtype=float)
            rows[:, columns.start] = _coordinates(p, values)
        if not self.simple:
            rows[np.isnan(rows)] = 0.5
        return rows

    def points(self, rows: Array) -> list[Params]:
        """The points of the space nearest to the rows."""
        units = [0.5] * len(self.space)
        place = {name: i for i, name in enumerate(self.space.names)}
        found = []
        for row in rows:
            for p, columns in zip(self._varied, self._columns, strict=True):
                if p.kind == "choice":
                    units[place[p.name]] = (int(np.argmax(row[columns])) + 0.5) / len(p.choices)
                else:
                    units[place[p.name]] = float(row[columns.start])
            found.append(self.space.from_unit(units))
        return found

    def snapped(self, rows: Array) -> Array:
        """The rows moved onto points of the space: whole numbers, one value of a choice, inside the bounds.

        Equalities are settled and what is not active has its fixed value; see `kept` for other constraints.
        """
        rows = np.array(rows, dtype=float)
        for p, columns in zip(self._varied, self._columns, strict=True):
            if p.kind == "choice":
                best = np.argmax(rows[:, columns], axis=1)
                rows[:, columns] = 0.0
                rows[np.arange(len(rows)), columns.start + best] = math.sqrt(0.5)
                continue
            u = np.clip(rows[:, columns.start], 0.0, 1.0)
            if p.kind == "int":
                u = _whole(u, float(p.low or 0), float(p.high or 0) + 1, log=p.log)
            rows[:, columns.start] = u
        return rows if self.simple or not len(rows) else self._settled(rows)

    def _cube(self, rows: Array) -> Array:
        """The rows as points of the unit cube of the whole space."""
        cube = np.full((len(rows), len(self.space)), 0.5)
        for p, columns in zip(self._varied, self._columns, strict=True):
            k = self.space.names.index(p.name)
            if p.kind == "choice":
                cube[:, k] = (np.argmax(rows[:, columns], axis=1) + 0.5) / len(p.choices)
            else:
                cube[:, k] = rows[:, columns.start]
        return cube

    def _settled(self, rows: Array) -> Array:
        many = self.space.region.columns
        columns = many.at(self._cube(rows))
        active = many.active(columns)
        moved = {name for one in many.equalities for name in (*one.shared, one.follows)}
        rows = rows.copy()
        for p, where in zip(self._varied, self._columns, strict=True):
            if p.name in moved:
                rows[:, where] = _coordinates(p, columns[p.name])[:, None]
            if p.name in active:
                rows[~active[p.name], where] = 0.0 if p.kind == "choice" else 0.5
        return rows

    def kept(self, rows: Array) -> Array:
        """The rows (see `snapped`) that keep the constraints of the space."""
        if self.simple or not len(rows):
            return rows
        many = self.space.region.columns
        return np.asarray(rows[many.kept(many.at(self._cube(rows)))])

    @cached_property
    def cover(self) -> Array:
        """`(up to 1024, columns)` allowed points that cover the space."""
        return self.rows(self.space.region.cover)

    def drawn(self, rng: np.random.Generator, n: int) -> Array:
        """`n` allowed points, choices with equal shares."""
        if self.simple or not len(self.cover):
            return self.from_cube(rng.random((n, self.size)))
        return np.asarray(self.cover[rng.integers(len(self.cover), size=n)])

    def from_cube(self, cube: Array) -> Array:
        """Rows for points of the unit cube of the varied parameters, `(m, size)`; choices get equal shares."""
        rows = np.zeros((len(cube), len(self.of)))
        for j, (p, columns) in enumerate(zip(self._varied, self._columns, strict=True)):
            if p.kind == "choice":
                which = np.minimum((cube[:, j] * len(p.choices)).astype(int), len(p.choices) - 1)
                rows[np.arange(len(rows)), columns.start + which] = math.sqrt(0.5)
            else:
                rows[:, columns.start] = cube[:, j]
        return rows

    def with_choice(self, rows: Array, j: int, value: int) -> Array:
        """The rows with varied parameter `j`, a choice, at its value number `value`."""
        columns = self._columns[j]
        rows = rows.copy()
        rows[:, columns] = 0.0
        rows[:, columns.start + value] = math.sqrt(0.5)
        return rows

    def held(self, rows: Array, values: Mapping[str, Scalar]) -> Array:
        """The rows with these parameters at these values; those that do not vary have no column."""
        if not values or not len(rows):
            return rows
        there = self.rows([{**self.points(rows[:1])[0], **values}])[0]
        rows = rows.copy()
        for p, columns in zip(self._varied, self._columns, strict=True):
            if p.name in values:
                rows[:, columns] = there[columns]
        return rows

    def columns(self, j: int) -> slice:
        """The columns of varied parameter `j`."""
        return self._columns[j]

    def steps(self, rows: Array) -> Array:
        """Every row with one whole number moved by one or one choice changed: the neighbours a gradient misses."""
        found = []
        for j, p in enumerate(self._varied):
            if p.kind == "choice":
                found += [self.with_choice(rows, j, value) for value in range(len(p.choices))]
            elif p.kind == "int":
                width = 1 / (float(p.high or 0) - float(p.low or 0) + 1)
                for step in (-width, width):
                    moved = rows.copy()
                    moved[:, self._columns[j].start] += step
                    found.append(moved)
        return self.snapped(np.vstack(found)) if found else rows[:0]


def _coordinates(p: Parameter, values: Array) -> Array:
    """Where in [0, 1] values of a number lie."""
    low, high = float(p.low or 0), float(p.high or 0)
    if p.kind == "int":
        values, high = values + 0.5, high + 1
    if p.log:
        values, low, high = np.log(values), math.log(low), math.log(high)
    return np.asarray((values - low) / (high - low))


def _whole(u: Array, low: float, high: float, *, log: bool) -> Array:
    """Coordinates of the middle of the whole number that each `u` falls on."""
    if log:
        first, last = math.log(low), math.log(high)
        value = np.minimum(np.floor(np.exp(first + u * (last - first))), high - 1)
        return np.asarray((np.log(np.maximum(value, low) + 0.5) - first) / (last - first))
    value = np.minimum(np.floor(low + u * (high - low)), high - 1)
    return np.asarray((value + 0.5 - low) / (high - low))
