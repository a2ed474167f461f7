"""Equalities (`a + b + c == 1`): which value follows from the others, and how points come to keep them.

A number that follows is worked out, not hit by chance. Of a sum all real numbers move: from a point beside it to
the nearest one on it (`settle`), or so that even points of the unit cube become even points of the slice
(`spread_over`, the conditional distribution of each number given those before).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from hpcagent.later import Later
from hpcagent.model.conditions import TOLERANCE, value
from hpcagent.model.grammar import Compare, Literal, Logic, Name, Node, Operation, names_in
from hpcagent.model.scale import ten_digits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hpcagent.model.parameter import Parameter
else:
    np = Later("numpy")

__all__ = ["Equality", "equalities", "settle", "spread_over"]

Array: TypeAlias = "NDArray[np.float64]"
Columns: TypeAlias = "dict[str, NDArray[Any]]"
Parameters: TypeAlias = "Mapping[str, Parameter]"

CURVE = 1025


@dataclass(frozen=True)
class Equality:
    """`left == right`, from which the value of a parameter follows.

    Attributes:
        node: `left - right`.
        names: All parameters in it.
        linear: Coefficient of each name where it is a weighted sum, else None.
        constant: What stands beside the sum, so that sum + constant = 0.
        follows: The parameter whose value follows from the others: the last real number named, else the last
            whole one.
        shared: The real numbers of a sum: all of them move to keep it.
    """

    node: Node
    names: frozenset[str]
    linear: Mapping[str, float] | None
    constant: float
    follows: str
    shared: tuple[str, ...]


def equalities(nodes: Iterable[Node], kinds: Mapping[str, str]) -> tuple[Equality, ...]:
    """The equalities that stand by themselves or are joined by `and`.

    Args:
        nodes: Conditions that all hold.
        kinds: Name -> `float` or `int` of the parameters that can follow; others cannot.
    """
    found: list[Equality] = []
    differences = [Operation("-", left, right) for node in nodes for left, right in _pairs(node)]

    def able_in(node: Node) -> list[str]:
        return [n for n in kinds if n in names_in(node)]

    # Those with few parameters first: what follows from them stands in the others.
    for difference in sorted(differences, key=lambda d: len(able_in(d))):
        names, able = names_in(difference), able_in(difference)
        real = [n for n in able if kinds[n] == "float"]
        if not able:
            continue
        sum_of = _linear(difference)
        linear, constant = sum_of if sum_of is not None else (None, 0.0)
        if linear is not None:
            real = [n for n in real if linear.get(n)]
            able = [n for n in able if linear.get(n)]
            if not able:
                continue
        taken = {one.follows for one in found}
        follows = next((n for n in reversed(real or able) if n not in taken), (real or able)[-1])
        shared = tuple(real) if linear is not None else ()
        found.append(Equality(difference, names, linear, constant, follows, shared))
    return tuple(found)


def _pairs(node: Node) -> list[tuple[Node, Node]]:
    if isinstance(node, Logic) and node.op == "and":
        return [pair for part in node.parts for pair in _pairs(part)]
    if isinstance(node, Compare):
        pairs = zip(node.terms, node.ops, node.terms[1:], strict=False)
        return [(a, b) for a, op, b in pairs if op == "=="]
    return []


def _linear(node: Node) -> tuple[dict[str, float], float] | None:
    """Coefficients and constant of a weighted sum; None for anything else."""
    if isinstance(node, Literal):
        return None if isinstance(node.value, (str, bool)) else ({}, float(node.value))
    if isinstance(node, Name):
        return {node.name: 1.0}, 0.0
    if not isinstance(node, Operation):
        return None
    left, right = _linear(node.left), _linear(node.right)
    if left is None or right is None:
        return None
    if node.op in ("+", "-"):
        sign = 1.0 if node.op == "+" else -1.0
        both = dict(left[0])
        for name, c in right[0].items():
            both[name] = both.get(name, 0.0) + sign * c
        return both, left[1] + sign * right[1]
    if node.op == "*" and not left[0]:
        return {n: left[1] * c for n, c in right[0].items()}, left[1] * right[1]
    if node.op == "*" and not right[0]:
        return {n: right[1] * c for n, c in left[0].items()}, left[1] * right[1]
    if node.op == "/" and not right[0] and right[1]:
        return {n: c / right[1] for n, c in left[0].items()}, left[1] / right[1]
    return None


def settle(one: Equality, parameters: Parameters, columns: Columns, on: NDArray[np.bool_], *, move: bool) -> None:
    """Change the numbers of an equality to the nearest place where it holds.

    Args:
        one: The equality.
        parameters: Of the space, by name.
        columns: The points; what moves is put in place of what was there.
        on: The points in which all its parameters are active.
        move: False: only the one number that follows changes, not the others of its sum.
    """
    if not on.any():
        return
    part = {name: column[on] for name, column in columns.items()}
    if one.linear is None:
        part[one.follows] = _root(one, parameters, part)
    else:
        if move and len(one.shared) > 1:
            _project(one, parameters, part)
        _finish(one, parameters, part)
    for name in (*one.shared, one.follows):
        column = columns[name].copy()
        column[on] = part[name]
        columns[name] = column


def _rest(one: Equality, columns: Columns, names: Sequence[str]) -> Array:
    """What the weighted sum of `names` has to come to."""
    assert one.linear is not None
    rest = np.full(len(columns[one.follows]), -one.constant)
    for name, c in one.linear.items():
        if name not in names:
            rest = rest - c * columns[name]
    return rest


def _project(one: Equality, parameters: Parameters, columns: Columns) -> None:
    """Move the numbers of a sum to the nearest place where it holds, distances taken by their ranges."""
    assert one.linear is not None
    low, high = (np.array([getattr(parameters[n], end) for n in one.shared]) for end in ("low", "high"))
    a = np.array([one.linear[n] for n in one.shared])
    x = np.clip(np.column_stack([columns[n] for n in one.shared]), low, high)
    target = _rest(one, columns, one.shared)
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
        columns[name] = np.clip(ten_digits(x[:, i]), low[i], high[i])


def _finish(one: Equality, parameters: Parameters, columns: Columns) -> None:
    """The number that follows, and where it would leave its bounds by a rounding those before it."""
    assert one.linear is not None
    order = [one.follows, *reversed([n for n in one.shared if n != one.follows])]
    for k, name in enumerate(order):
        p, c = parameters[name], one.linear[name]
        target = _rest(one, columns, (name,))
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


def _root(one: Equality, parameters: Parameters, columns: Columns) -> Array:
    """Where along its range the number that follows fulfils the equality: the first place; nan if none."""
    p = parameters[one.follows]
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


def spread_over(one: Equality, parameters: Parameters, columns: Columns, units: Mapping[str, Array]) -> None:
    """Map coordinates in [0, 1] onto the slice of the box in which a sum has its value, evenly.

    The share of the slice beyond x_1 is that of the boxes of the others whose sums fit, P(S <= s) with S their
    sum, each evenly in its range; inverted for the coordinate of x_1, then x_2 with x_1 given, and so on.
    """
    assert one.linear is not None
    names = [*(n for n in one.shared if n != one.follows), one.follows]
    parts = [_term(one.linear[n], parameters[n]) for n in names]  # (least, width) of each term
    rest = _rest(one, columns, names) - sum(least for least, _ in parts)
    for k, name in enumerate(names[:-1]):
        width = parts[k][1]
        grid, curve = _sum_curve([w for _, w in parts[k + 1 :]])
        total = grid[-1]
        # Terms from `start` to `stop` leave a rest that the others can make up.
        start, stop = np.maximum(rest - total, 0.0), np.minimum(rest, width)
        high, low = np.interp(rest - start, grid, curve), np.interp(rest - stop, grid, curve)
        u = units[name]
        t = rest - np.interp(high - u * (high - low), curve, grid)
        t = np.clip(t, np.minimum(start, stop), stop)
        columns[name] = _back(one.linear[name], parameters[name], t)
        rest = rest - t
    columns[names[-1]] = _back(one.linear[names[-1]], parameters[names[-1]], rest)


def _term(c: float, p: Parameter) -> tuple[float, float]:
    assert p.low is not None and p.high is not None
    return min(c * p.low, c * p.high), abs(c) * (p.high - p.low)


def _back(c: float, p: Parameter, t: Array) -> Array:
    """A term above its least value, as the parameter's value."""
    assert p.low is not None and p.high is not None
    return np.asarray(p.low + t / c if c > 0 else p.high + t / c)


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
