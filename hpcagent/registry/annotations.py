"""What an annotation means, from its syntax tree: a number with bounds and unit, a choice, a file, plain data."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hpcagent.model.base import Scalar

__all__ = [
    "FILES",
    "NOTHING",
    "TYPES",
    "Annotations",
    "Kind",
    "Meaning",
    "finite",
    "instead_of",
    "name_of",
    "unquoted",
]

Kind = Literal["float", "int", "bool", "text", "choice", "file", "data"]
FILES = ("Path", "File", "pathlib.Path")
_LISTS = ("list", "tuple", "dict", "List", "Tuple", "Dict", "Sequence", "Mapping", "set", "Any", "object")
_SIMPLE: dict[str, Kind] = {"float": "float", "int": "int", "bool": "bool", "str": "text"}
TYPES = (
    "float, int, bool, str, Literal[...], Path (a file), list, dict, tuple, a TypedDict or dataclass of the text; "
    "Annotated[float, (low, high), 'unit'] has bounds and a unit"
)
_INSTEAD = (
    (
        ("ndarray", "NDArray", "ArrayLike", "Series"),
        "in its place list[float]: `numpy.array(x)` makes an array of it, `x.tolist()` a list of an array",
    ),
    (
        ("Optional", "Union", "None"),
        "in its place one type, without None: a default is taken for what is not given",
    ),
    (("DataFrame",), "in its place dict[str, list[float]], or Path for a file that has the table"),
    (("complex",), "in its place two floats, the real and the imaginary part"),
    (("bytes", "bytearray"), "in their place Path, a file"),
)


def instead_of(node: ast.expr) -> str:
    """What is written in place of a type that no tool takes; empty if nothing is known of it.

    Example:
        >>> instead_of(ast.parse("np.ndarray", mode="eval").body)[:24]
        'in its place list[float]'
    """
    parts = list(ast.walk(node))
    names = {name_of(one).rpartition(".")[2] for one in parts if isinstance(one, ast.Name | ast.Attribute)}
    names |= {"None" for one in parts if isinstance(one, ast.Constant) and one.value is None}
    return next((words for types, words in _INSTEAD if names & set(types)), "")


NOTHING: Any = object()
"""What `Annotations.literal` gives for what is no literal."""


@dataclass(slots=True)
class Meaning:
    """What an annotation means.

    Attributes:
        kind: What it is.
        base: The name of the type, of plain data.
        choices: Of a choice.
        low: Smallest value, where it says.
        high: Largest value.
        unit: Where it says.
        numbers: Whether it is a list of numbers, which has a unit.
    """

    kind: Kind
    base: str = ""
    choices: tuple[Scalar, ...] = ()
    low: float | None = None
    high: float | None = None
    unit: str = ""
    numbers: bool = False


def name_of(node: ast.expr) -> str:
    """`a.b` of a name or attribute; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        above = name_of(node.value)
        return f"{above}.{node.attr}" if above else ""
    return ""


class Annotations:
    """Reads the annotations of a text.

    Args:
        tables: Names of its classes of plain data.
        constants: Its constants, by name.
        told: Is given a sentence and a line for what in an annotation does not count.
    """

    def __init__(
        self, tables: Collection[str], constants: Mapping[str, Any], told: Callable[[str, int], None]
    ) -> None:
        self._tables, self._constants, self._told = tables, constants, told

    def meant(self, node: ast.expr) -> Meaning | None:
        """What an annotation means; None: nothing that a tool takes."""
        node = unquoted(node)
        name = name_of(node).removeprefix("typing.")
        if name in _SIMPLE:
            return Meaning(_SIMPLE[name])
        if name in FILES:
            return Meaning("file")
        if name in _LISTS:
            return Meaning("data", base=name)
        if name in self._tables:
            return Meaning("data", base=name)
        if not isinstance(node, ast.Subscript):
            return None
        base = name_of(node.value).removeprefix("typing.").removeprefix("collections.abc.")
        parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        if base == "Literal":
            values = [self.literal(one) for one in parts]
            if any(not isinstance(one, str | int | float) for one in values):
                return None
            return Meaning("choice", choices=tuple(values))
        if base == "Annotated" and parts:
            return self._annotated(parts)
        if base in _LISTS:
            numbers = any(name_of(one) == "float" for one in ast.walk(node.slice) if isinstance(one, ast.Name))
            return Meaning("data", base=base, numbers=numbers and base not in ("dict", "Dict", "Mapping"))
        return None

    def _annotated(self, parts: list[ast.expr]) -> Meaning | None:
        found = self.meant(parts[0])
        if found is None:
            return None
        for one in parts[1:]:
            value = self.literal(one)
            if isinstance(value, str):
                found.unit = value
            elif isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_number, value)):
                found.low, found.high = map(float, value)
            elif isinstance(one, ast.Call):
                self._of_call(found, one)
            else:
                said = f"{ast.unparse(one):.60} in Annotated is neither (low, high) nor a unit, and does not count"
                self._told(said, one.lineno)
        return found

    def _of_call(self, found: Meaning, call: ast.Call) -> None:
        """Bounds of `Field(ge=..., le=...)`, `Ge(...)`, `Interval(...)`."""
        name = name_of(call.func).rpartition(".")[2]
        given = {one.arg: self.literal(one.value) for one in call.keywords if one.arg}
        if name in ("Ge", "Gt", "Le", "Lt") and len(call.args) == 1:
            given[name.lower()] = self.literal(call.args[0])
        for key, value in given.items():
            if key not in ("ge", "gt", "le", "lt") or not _is_number(value):
                continue
            number = float(value)
            if key in ("gt", "lt"):
                step = math.inf if key == "gt" else -math.inf
                number = math.nextafter(number, step) if found.kind == "float" else number + math.copysign(1, step)
            if key in ("ge", "gt"):
                found.low = number
            else:
                found.high = number

    def literal(self, node: ast.expr) -> Any:
        """The value of a literal, or of a constant of the text; `NOTHING` if it is none."""
        if isinstance(node, ast.Name):
            return self._constants.get(node.id, NOTHING)
        if isinstance(node, ast.Tuple | ast.List):
            parts = [self.literal(one) for one in node.elts]
            if any(one is NOTHING for one in parts):
                return NOTHING
            return tuple(parts) if isinstance(node, ast.Tuple) else parts
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return NOTHING


def unquoted(node: ast.expr) -> ast.expr:
    """An annotation that stands in quotes, without them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            inner = ast.parse(node.value, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return node
        return ast.copy_location(inner, node)
    return node


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and finite(value)


def finite(value: float) -> bool:
    """Whether a number is one that a float can hold."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
