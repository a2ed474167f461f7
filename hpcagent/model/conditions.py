"""What a parsed condition means: whether it holds, by how much, and whether it makes sense for the parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from hpcagent.errors import BadInput, nearest
from hpcagent.later import Later
from hpcagent.model.base import Scalar
from hpcagent.model.grammar import (
    Call,
    Compare,
    Literal,
    Logic,
    Member,
    Name,
    Node,
    Operation,
    names_in,
    pointed,
)
from hpcagent.units import measure

if TYPE_CHECKING:
    import numpy as np

    from hpcagent.model.parameter import Parameter
else:
    np = Later("numpy")

__all__ = ["TOLERANCE", "checked", "folded", "holds", "margin", "value"]

TOLERANCE = 1e-9
"""Two sides are equal if they differ by no more than this share of their terms: numbers have ten digits."""

Values: TypeAlias = Mapping[str, Any]
"""Name -> a value, or an array with one for each point."""

_FUNCTIONS = ("abs", "sqrt", "exp", "log", "log10")  # of numpy, by the same names
_ARITHMETIC = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "**": "power"}


def _calculated(op: str, a: Any, b: Any) -> Any:
    return _remainder(a, b) if op == "%" else getattr(np, _ARITHMETIC[op])(a, b)


def _remainder(a: Any, b: Any) -> Any:
    """The rest of a division; 0 where a is a multiple of b but for a rounding, as 0.3 is of 0.1."""
    times = np.divide(a, b)
    whole = np.round(times)
    multiple = np.abs(times - whole) <= TOLERANCE * np.maximum(1.0, np.abs(times))
    return np.where(multiple, 0.0, np.mod(a, b))


def holds(node: Node, values: Values) -> Any:
    """Whether the condition is kept, for each point; what has no value there (log of -1) does not keep it."""
    with np.errstate(all="ignore"):
        return _truth(node, values)[0]


def margin(node: Node, values: Values) -> Any:
    """By how much the condition is kept (>= 0) or broken (< 0), for each point, in its unit."""
    with np.errstate(all="ignore"):
        return _margin(node, values)


def value(node: Node, values: Values) -> Any:
    """The value of an expression, for each point; nan where there is none."""
    with np.errstate(all="ignore"):
        return _number(node, values)[0]


def _truth(node: Node, values: Values) -> tuple[Any, Any]:
    """Whether it is kept, and whether it is broken: neither where a number has no value (Kleene's logic)."""
    if isinstance(node, Logic):
        parts = [_truth(p, values) for p in node.parts]
        kept, broken = ([part[i] for part in parts] for i in (0, 1))
        if node.op == "not":
            return broken[0], kept[0]
        every, some = np.logical_and.reduce, np.logical_or.reduce
        if node.op == "and":
            return every(np.broadcast_arrays(*kept)), some(np.broadcast_arrays(*broken))
        return some(np.broadcast_arrays(*kept)), every(np.broadcast_arrays(*broken))
    if isinstance(node, Compare):
        pairs = [
            _pair(left, op, right, values)
            for left, op, right in zip(node.terms, node.ops, node.terms[1:], strict=False)
        ]
        kept, broken = ([pair[i] for pair in pairs] for i in (0, 1))
        return np.logical_and.reduce(np.broadcast_arrays(*kept)), np.logical_or.reduce(
            np.broadcast_arrays(*broken)
        )
    if isinstance(node, Member):
        term = _plain(node.term, values)
        same = np.logical_or.reduce([_same(term, v) for v in node.values])
        there = _there(term)
        return same & there, np.logical_not(same) & there
    same = _same(_plain(node, values), True)
    return same, np.logical_not(same)


def _there(term: Any) -> Any:
    """Where a value is one: a number that is finite, or a word."""
    if isinstance(term, np.ndarray):
        return np.isfinite(term) if term.dtype.kind == "f" else np.ones(term.shape, dtype=bool)
    return not isinstance(term, float) or math.isfinite(term)


def _pair(left: Node, op: str, right: Node, values: Values) -> tuple[Any, Any]:
    if not (_numeric(left, values) and _numeric(right, values)):
        same = _same(_plain(left, values), _plain(right, values))
        other = np.logical_not(same)
        return (same, other) if op == "==" else (other, same)
    a, of_a = _number(left, values)
    b, of_b = _number(right, values)
    slack = TOLERANCE * (of_a + of_b)
    apart = a - b
    kept = {
        "==": np.abs(apart) <= slack,
        "!=": np.abs(apart) > slack,
        "<=": apart <= slack,
        ">=": -apart <= slack,
        "<": a < b,
        ">": a > b,
    }[op]
    there = np.isfinite(a) & np.isfinite(b)
    return kept & there, np.logical_not(kept) & there


def _margin(node: Node, values: Values) -> Any:
    if isinstance(node, Logic):
        parts = [_margin(p, values) for p in node.parts]
        if node.op == "not":
            return -parts[0]
        return (np.minimum if node.op == "and" else np.maximum).reduce(np.broadcast_arrays(*parts))
    if isinstance(node, Compare):
        found = []
        for left, op, right in zip(node.terms, node.ops, node.terms[1:], strict=False):
            if not (_numeric(left, values) and _numeric(right, values)):
                found.append(np.where(_pair(left, op, right, values)[0], 1.0, -1.0))
                continue
            a, b = _number(left, values)[0], _number(right, values)[0]
            away = {"==": -np.abs(a - b), "!=": np.abs(a - b)}
            found.append(away[op] if op in away else b - a if op in ("<", "<=") else a - b)
        return np.minimum.reduce(np.broadcast_arrays(*found))
    return np.where(_truth(node, values)[0], 1.0, -1.0)


def _plain(node: Node, values: Values) -> Any:
    """The value of a word, a truth value or a number."""
    if isinstance(node, Name):
        return values[node.name]
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, (Logic, Compare, Member)):
        return _truth(node, values)[0]
    return _number(node, values)[0]


def _same(a: Any, b: Any) -> Any:
    if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):
        return bool(a == b)
    return np.asarray(np.equal(np.asarray(a, dtype=object), np.asarray(b, dtype=object)), dtype=bool)


def _numeric(node: Node, values: Values) -> bool:
    if isinstance(node, (Operation, Call)):
        return True
    if not isinstance(node, (Name, Literal)):
        return False
    given = values[node.name] if isinstance(node, Name) else node.value
    if isinstance(given, np.ndarray):
        return bool(given.dtype != object)
    return not isinstance(given, (str, bool))


def _number(node: Node, values: Values) -> tuple[Any, Any]:
    """Value, and the size of the terms that it is the sum of."""
    if isinstance(node, Operation):
        a, of_a = _number(node.left, values)
        b, of_b = _number(node.right, values)
        found = _finite(_calculated(node.op, a, b))
        if node.op in "+-":
            return found, of_a + of_b
        return found, of_a * np.abs(b) if node.op == "*" else np.abs(found)
    if isinstance(node, Call):
        inside = [_number(a, values)[0] for a in node.arguments]
        if node.function in ("min", "max"):
            found = (np.minimum if node.function == "min" else np.maximum).reduce(np.broadcast_arrays(*inside))
        else:
            found = _finite(getattr(np, node.function)(*inside))
        return found, np.abs(found)
    given = values[node.name] if isinstance(node, Name) else getattr(node, "value", math.nan)
    found = np.asarray(given, dtype=float) if isinstance(given, np.ndarray) else np.float64(given)
    return found, np.abs(found)


def _finite(found: Any) -> Any:
    """With nan for what is too large or divided by 0: no value, whatever is done with it."""
    return (
        np.where(np.isfinite(found), found, math.nan)
        if isinstance(found, np.ndarray)
        else (found if math.isfinite(found) else np.float64(math.nan))
    )


def folded(node: Node, known: Mapping[str, Scalar]) -> Node | bool:
    """The condition with known values put in; `True` or `False` where nothing else decides it.

    Example:
        >>> from hpcagent.model.grammar import read_condition, written
        >>> written(folded(read_condition("s == 'a' and x < y"), {"s": "a", "y": 2}))
        'x < 2'
    """
    found = _folded(node, known)
    return found if isinstance(found, bool) or names_in(found) else bool(holds(found, known))


def _folded(node: Node, known: Mapping[str, Scalar]) -> Node | bool:
    if not names_in(node) - set(known):
        with np.errstate(all="ignore"):
            kept, broken = _truth(node, known)
        # What has no value is neither: `not` must not make it true.
        return bool(kept) if kept or broken else _put(node, known)
    if isinstance(node, Logic):
        parts = [_folded(p, known) for p in node.parts]
        if node.op == "not":
            return not parts[0] if isinstance(parts[0], bool) else Logic("not", (parts[0],), node.at)
        decides = node.op == "or"
        if any(p is decides for p in parts):
            return decides
        left = tuple(p for p in parts if not isinstance(p, bool))
        return left[0] if len(left) == 1 else Logic(node.op, left, node.at)
    return _put(node, known)


def _put(node: Node, known: Mapping[str, Scalar]) -> Node:
    if isinstance(node, Name):
        return Literal(known[node.name], node.at) if node.name in known else node
    if isinstance(node, Operation):
        return Operation(node.op, _put(node.left, known), _put(node.right, known), node.at)
    if isinstance(node, Call):
        return Call(node.function, tuple(_put(a, known) for a in node.arguments), node.at)
    if isinstance(node, Compare):
        return Compare(tuple(_put(t, known) for t in node.terms), node.ops, node.at)
    if isinstance(node, Logic):
        return Logic(node.op, tuple(_put(p, known) for p in node.parts), node.at)
    if isinstance(node, Member):
        return Member(_put(node.term, known), node.values, node.at)
    return node


# Does it make sense?


@dataclass(frozen=True)
class _Kind:
    """What an expression is: `number`, `word`, `truth` or `condition`.

    Attributes:
        unit: (value in SI, dimension) of a number; None where numbers without a unit leave it open.
        said: The unit in words.
        choices: What a word can be.
    """

    what: str
    unit: tuple[float, tuple[tuple[str, float], ...]] | None = None
    said: str = ""
    choices: tuple[Scalar, ...] = ()


_PURE: tuple[float, tuple[tuple[str, float], ...]] = (1.0, ())


def checked(node: Node, parameters: Mapping[str, Parameter], text: str) -> None:
    """Refuse a condition that makes no sense for the parameters.

    Raises:
        BadInput: An unknown name, words and numbers mixed, a word that is no choice, units that do not fit.
    """
    _Check(parameters, text).condition(node)


class _Check:
    def __init__(self, parameters: Mapping[str, Parameter], text: str) -> None:
        self.parameters, self.text = parameters, text

    def refuse(self, why: str, at: int) -> BadInput:
        return BadInput(f"{why.rstrip('.?')}:\n{pointed(self.text, at)}", value=self.text)

    def condition(self, node: Node) -> None:
        if isinstance(node, Logic):
            for part in node.parts:
                self.condition(part)
        elif isinstance(node, Compare):
            kinds = [self.kind(t) for t in node.terms]
            for (a, x), op, (b, y) in zip(
                zip(kinds, node.terms, strict=True),
                node.ops,
                list(zip(kinds, node.terms, strict=True))[1:],
                strict=False,
            ):
                self.pair(a, b, op, x, y)
        elif isinstance(node, Member):
            kind = self.kind(node.term)
            for item in node.values:
                self.pair(kind, self.kind(Literal(item, node.at)), "==", node.term, Literal(item, node.at))
        elif self.kind(node).what != "truth":
            raise self.refuse("this is no condition; compare it with something, e.g. '... <= 1'", node.at)

    def pair(self, a: _Kind, b: _Kind, op: str, x: Node, y: Node) -> None:
        if a.what != b.what:
            raise self.refuse(f"a {a.what} cannot be compared with a {b.what}", y.at)
        if a.what == "number":
            self.alike(a, b, y.at, "compared")
            return
        if op not in ("==", "!="):
            raise self.refuse(f"{a.what}s have no order; compare them with == or !=, or 'in'", y.at)
        for one, other, node in ((a, b, y), (b, a, x)):
            if isinstance(node, Literal) and one.choices and node.value not in one.choices and not other.choices:
                known = [str(c) for c in one.choices]
                raise self.refuse(
                    f"{node.value!r} is none of the choices; {nearest(str(node.value), known)}", node.at
                )

    def alike(self, a: _Kind, b: _Kind, at: int, done: str) -> _Kind:
        if a.unit is None or b.unit is None:
            return b if a.unit is None else a
        if a.unit[1] != b.unit[1]:
            raise self.refuse(f"{a.said} and {b.said} cannot be {done}: they are units of different things", at)
        if not math.isclose(a.unit[0], b.unit[0], rel_tol=1e-9):
            factor = b.unit[0] / a.unit[0]
            raise self.refuse(
                f"{a.said} and {b.said} cannot be {done} as they are; multiply what is in {b.said} by "
                f"{factor:.10g}",
                at,
            )
        return a

    def kind(self, node: Node) -> _Kind:
        if isinstance(node, Name):
            return self.parameter(node)
        if isinstance(node, Literal):
            if isinstance(node.value, bool):
                return _Kind("truth")
            return _Kind("word") if isinstance(node.value, str) else _Kind("number")
        if isinstance(node, Operation):
            return self.operation(node)
        if isinstance(node, Call):
            return self.call(node)
        self.condition(node)
        return _Kind("condition")

    def parameter(self, node: Name) -> _Kind:
        p = self.parameters.get(node.name)
        if p is None:
            raise self.refuse(
                f"there is no parameter {node.name!r}; {nearest(node.name, self.parameters)}", node.at
            )
        if p.kind in ("float", "int"):
            return _Kind("number", _unit(p.unit), p.unit)
        if p.kind == "choice":
            if all(isinstance(c, bool) for c in p.choices):
                return _Kind("truth")
            if not any(isinstance(c, (bool, str)) for c in p.choices):
                return _Kind("number", _unit(p.unit), p.unit)
            if not all(isinstance(c, str) for c in p.choices):
                raise self.refuse(
                    f"{node.name!r} mixes words and numbers, so it cannot stand in a condition", node.at
                )
        return _Kind("word", choices=p.choices)

    def number(self, node: Node) -> _Kind:
        kind = self.kind(node)
        if kind.what != "number":
            raise self.refuse(f"a number is needed here, not a {kind.what}", node.at)
        return kind

    def operation(self, node: Operation) -> _Kind:
        a, b = self.number(node.left), self.number(node.right)
        if node.op in ("+", "-", "%"):
            words = {"+": "added", "-": "subtracted", "%": "divided with a rest"}
            return self.alike(a, b, node.right.at, words[node.op])
        if node.op == "**":
            return self.power(a, b, node)
        if a.unit is None or b.unit is None:
            return _Kind("number")  # a factor may carry a unit of its own
        sign = 1.0 if node.op == "*" else -1.0
        powers = dict(a.unit[1])
        for axis, power in b.unit[1]:
            powers[axis] = powers.get(axis, 0.0) + sign * power
        return _Kind("number", _made(a.unit[0] * b.unit[0] ** sign, powers), f"{a.said}{node.op}{b.said}")

    def power(self, a: _Kind, b: _Kind, node: Operation) -> _Kind:
        if b.unit is not None and b.unit != _PURE:
            raise self.refuse(f"an exponent is a pure number, not in {b.said}", node.right.at)
        if a.unit is None or a.unit == _PURE:
            return a
        if not isinstance(node.right, Literal):
            raise self.refuse(f"{a.said} can be raised to a plain number only", node.right.at)
        times = float(node.right.value)
        return _Kind(
            "number", _made(a.unit[0] ** times, {k: v * times for k, v in a.unit[1]}), f"({a.said})**{times:g}"
        )

    def call(self, node: Call) -> _Kind:
        kinds = [self.number(a) for a in node.arguments]
        first = kinds[0]
        if node.function in ("min", "max"):
            for kind, argument in zip(kinds[1:], node.arguments[1:], strict=True):
                first = self.alike(first, kind, argument.at, "compared")
            return first
        if node.function in ("exp", "log", "log10"):
            if first.unit is not None and first.unit != _PURE:
                raise self.refuse(
                    f"{node.function} needs a pure number, not one in {first.said}; divide it by another", node.at
                )
            return _Kind("number", _PURE if first.unit else None, "1")
        if node.function == "sqrt" and first.unit is not None:
            powers = {k: v / 2 for k, v in first.unit[1]}
            return _Kind("number", _made(math.sqrt(first.unit[0]), powers), f"sqrt({first.said})")
        return first


def _made(scale: float, powers: Mapping[str, float]) -> tuple[float, tuple[tuple[str, float], ...]]:
    return scale, tuple(sorted((k, v) for k, v in powers.items() if v))


def _unit(unit: str) -> tuple[float, tuple[tuple[str, float], ...]]:
    try:
        scale, powers = measure(unit)
    except BadInput:  # a unit of the user's own is like itself only
        scale, powers = 1.0, {unit: 1}
    return _made(scale, {k: float(v) for k, v in powers.items()})
