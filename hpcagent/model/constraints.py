"""A constraint: a condition between parameters that every point of a space keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_serializer, model_validator

from hpcagent.errors import BadInput
from hpcagent.model.base import Record, Scalar
from hpcagent.model.conditions import holds, value
from hpcagent.model.grammar import Compare, Literal, Name, Node, names_in, pointed, read_condition, written

__all__ = ["Constraint"]


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
