"""A constraint between parameters, and those among them from which one value follows (`a + b + c == 1`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import model_serializer, model_validator

from hpcagent.errors import BadInput
from hpcagent.model.base import Record, Scalar
from hpcagent.model.conditions import TOLERANCE, holds, value
from hpcagent.model.grammar import (
    Compare,
    Literal,
    Logic,
    Name,
    Node,
    Operation,
    names_in,
    pointed,
    read_condition,
    written,
)

__all__ = ["Constraint", "Equality", "equalities"]


class Constraint(Record):
    """A condition that every point of a space keeps, e.g. `x + y <= 1`; in JSON and TOML its text.

    A constraint that names a parameter which is left out of a point (see `Parameter.when`) does not apply there.
    Sums are compared to nine digits.

    Attributes:
        text: As it was written.

    Example:
        >>> rule = Constraint.model_validate("x + y <= 1")
        >>> rule.kept({"x": 0.7, "y": 0.3}), rule.kept({"x": 0.7, "y": 0.4}), rule.kept({"x": 3.0})
        (True, False, True)
    """

    text: str

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        if isinstance(given, Constraint):
            return {"text": given.text}
        if isinstance(given, str):
            return {"text": given.strip()}
        if not isinstance(given, Mapping):
            raise BadInput(f"a constraint is a text such as 'x + y <= 1'; got {given!r}.", value=given)
        return given

    @model_validator(mode="after")
    def _check(self) -> Constraint:
        node = self.node
        if not names_in(node):
            raise BadInput(
                f"the constraint names no parameter, so it says nothing:\n{pointed(self.text, 0)}", value=self.text
            )
        return self

    @model_serializer
    def _as_text(self) -> str:
        return self.text

    def __str__(self) -> str:
        return self.text

    @property
    def node(self) -> Node:
        """The parsed text."""
        return read_condition(self.text)

    @property
    def names(self) -> frozenset[str]:
        """The parameters it names."""
        return names_in(self.node)

    def kept(self, params: Mapping[str, Scalar]) -> bool:
        """Whether a point keeps it; one without all of its parameters does."""
        return not self.names <= set(params) or bool(holds(self.node, params))

    def why_not(self, params: Mapping[str, Scalar]) -> str | None:
        """The constraint with the values that break it; None where it is kept."""
        if self.kept(params):
            return None
        given = ", ".join(f"{name}={_shown(v)}" for name, v in params.items() if name in self.names)
        return f"{self.text!r} is not kept at {given}{_sums(self.node, params)}"


def _shown(value: Scalar) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _sums(node: Node, params: Mapping[str, Scalar]) -> str:
    """What the sides of a plain comparison come to, where that is not the same as what was given."""
    if not isinstance(node, Compare) or all(isinstance(t, (Name, Literal)) for t in node.terms):
        return ""
    sides = [t for t in node.terms if not isinstance(t, (Name, Literal))]
    return " (" + ", ".join(f"{_plain(written(s))} = {float(value(s, params)):.6g}" for s in sides) + ")"


def _plain(text: str) -> str:
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def rule(node: Node) -> Constraint:
    """A constraint of a parsed condition."""
    return Constraint(text=written(node))


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

    @property
    def slack(self) -> float:
        """Relative to the terms."""
        return TOLERANCE


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
