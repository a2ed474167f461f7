"""The signature of a function, from its syntax tree: what it takes and gives, with units, bounds and defaults."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hpcagent.model.base import Record, Scalar
from hpcagent.registry.annotations import (
    FILES,
    NOTHING,
    TYPES,
    Annotations,
    Kind,
    Meaning,
    finite,
    instead_of,
    name_of,
    unquoted,
)
from hpcagent.registry.docstring import WALLTIME, Docstring, Entry, known_unit, read_docstring, seconds_in, unit_in
from hpcagent.registry.findings import Finding

__all__ = ["DEFAULT_WALLTIME_S", "Argument", "Output", "Signature", "Table", "read_signature", "table_of"]

DEFAULT_WALLTIME_S = 600.0
"""Wall time of a run of a tool whose text states none, in seconds."""
SHORTEST_WALLTIME_S = 1.0
LONGEST_WALLTIME_S = 30 * 86400.0
WIDE = 1e12
"""Bound of a number that names none: programs take finite numbers only."""


class Argument(Record):
    """One argument of a function.

    Attributes:
        name: Its name.
        kind: What it is; `data` is a list or a table, written as JSON.
        low: Smallest value, in `unit`.
        high: Largest value, in `unit`.
        bounded: Whether the text names the bounds.
        unit: Unit of a number, or of the numbers of a list; `1` for a pure number.
        default: Used where it is not given; a list or a table as JSON.
        choices: The values that a choice has.
        description: What the docstring says of it.
    """

    name: str
    kind: Kind
    low: float | None = None
    high: float | None = None
    bounded: bool = False
    unit: str = "1"
    default: Scalar | None = None
    choices: tuple[Scalar, ...] = ()
    description: str = ""


class Output(Record):
    """One value that a function returns.

    Attributes:
        name: Its name; of a single value that of the function.
        kind: A number is a metric, a file an artifact; any other value stands in the artifact `value`.
        unit: Unit of a number.
        description: What the docstring says of it.
    """

    name: str
    kind: Literal["number", "file", "value"]
    unit: str = "1"
    description: str = ""


class Signature(Record):
    """What a function takes and gives.

    Attributes:
        name: Its name.
        summary: The first paragraph of its docstring.
        about: What follows it.
        arguments: In the order of the text.
        outputs: What it returns.
        table: Whether it returns them by name, in a table or dataclass.
        example: Whether its docstring has examples that can be run.
        walltime_s: Wall time after which a run is ended, as the docstring says; None: it says none.
    """

    name: str
    summary: str = ""
    about: str = ""
    arguments: tuple[Argument, ...] = ()
    outputs: tuple[Output, ...] = ()
    table: bool = False
    example: bool = False
    walltime_s: float | None = None

    @property
    def limit_s(self) -> float:
        """Wall time after which a run is ended, in seconds, where the run itself asks for no other."""
        return DEFAULT_WALLTIME_S if self.walltime_s is None else self.walltime_s

    @property
    def limit_words(self) -> str:
        """The wall time, and whose it is."""
        whose = "the text states no Walltime" if self.walltime_s is None else "as its text says"
        return f"each run is ended after {self.limit_s:g} s ({whose})"


@dataclass(frozen=True, slots=True)
class Table:
    """A TypedDict or dataclass of the text: field -> annotation, and what its docstring says."""

    fields: Mapping[str, ast.expr]
    doc: Docstring = field(default_factory=Docstring)


def table_of(node: ast.ClassDef) -> Table:
    """The fields of a class of plain data."""
    fields = {
        one.target.id: one.annotation
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    return Table(fields, read_docstring(ast.get_docstring(node)))


class _Reader:
    """Reads one function, and collects what is wrong with it."""

    def __init__(self, node: ast.FunctionDef, tables: Mapping[str, Table], constants: Mapping[str, Any]) -> None:
        self.node, self.tables = node, tables
        self.doc = read_docstring(ast.get_docstring(node))
        self.findings: list[Finding] = []
        self.annotations = Annotations(tables, constants, self._no_count)

    def say(self, rule: str, says: str, *, line: int = 0, severity: Any = "error") -> None:
        """One more finding."""
        line = line or self.node.lineno
        self.findings.append(Finding(rule=rule, line=line, says=says, severity=severity, tool=self.node.name))

    def _no_count(self, says: str, line: int) -> None:
        self.say("annotation", says, line=line, severity="warning")

    # -- the whole ----------------------------------------------------------------------------

    def signature(self) -> Signature:
        """What it takes and gives, as far as it can be read."""
        name = self.node.name
        if not self.doc.summary:
            self.say("docstring", f"{name} has no docstring; its first line says what it does")
        arguments = self._arguments()
        table, outputs = self._outputs()
        return Signature(
            name=name,
            summary=self.doc.summary,
            about=self.doc.about,
            arguments=tuple(arguments),
            outputs=tuple(outputs),
            table=table,
            example=self.doc.example,
            walltime_s=self._walltime(),
        )

    def _walltime(self) -> float | None:
        """The wall time that the docstring states, in seconds."""
        said = self.doc.walltimes
        if not said:
            return None
        if len(said) > 1:
            self.say(
                "walltime", f"{self.node.name} states {len(said)} wall times; write one line `{WALLTIME} 20 min`"
            )
            return None
        found = seconds_in(said[0])
        if found is None or not SHORTEST_WALLTIME_S <= found <= LONGEST_WALLTIME_S:
            self.say(
                "walltime",
                f"the wall time {said[0]!r:.60} of {self.node.name} is no time of 1 s to 30 days; write a number "
                f"with a unit: `{WALLTIME} 20 min` (s, min, h, day)",
            )
            return None
        return found

    # -- arguments ----------------------------------------------------------------------------

    def _arguments(self) -> list[Argument]:
        args = self.node.args
        for more, star in ((args.vararg, "*"), (args.kwarg, "**")):
            if more is not None:
                self.say("arguments", f"{star}{more.arg}: every argument of a tool has a name and a type")
        if args.posonlyargs:
            self.say("arguments", "arguments are given by name: drop the / from the signature")
        plain = [*args.posonlyargs, *args.args]
        defaults = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
        pairs = [*zip(plain, defaults, strict=True), *zip(args.kwonlyargs, args.kw_defaults, strict=True)]
        found = [one for one in (self._argument(node, default) for node, default in pairs) if one is not None]
        for name in self.doc.args.keys() - {node.arg for node, _ in pairs}:
            self.say("parameter-doc", f"the docstring describes {name}, which is no argument", severity="warning")
        return found

    def _argument(self, node: ast.arg, default: ast.expr | None) -> Argument | None:
        name, said = node.arg, self.doc.args.get(node.arg, Entry(""))
        if not said.text:
            self.say(
                "parameter-doc",
                f"the docstring does not say what {name} is; write it under Args:",
                line=node.lineno,
            )
        if node.annotation is None:
            self.say("annotation", f"{name} has no type; write one of {TYPES}", line=node.lineno)
            return None
        kind = self._type(node.annotation, name)
        if kind is None:
            return None
        unit = kind.unit or said.unit
        if not unit and (kind.kind == "float" or kind.numbers):
            self.say(
                "unit",
                f"{name} has no unit; write [K], or [1] for a pure number, in its line of the docstring",
                line=node.lineno,
            )
        if unit and not known_unit(unit):
            self.say(
                "unit",
                f"the unit {unit} of {name} is not known and cannot be converted",
                line=node.lineno,
                severity="warning",
            )
        low, high, bounded = self._bounds(name, kind, said, node.lineno)
        value = self._default(name, kind, default)
        numeric = kind.kind in ("float", "int")
        if (
            numeric
            and value is not None
            and low is not None
            and high is not None
            and not low <= float(value) <= high
        ):
            self.say(
                "default", f"the default {value} of {name} is outside of [{low:g}, {high:g}]", line=node.lineno
            )
            value = None
        return Argument(
            name=name,
            kind=kind.kind,
            low=low,
            high=high,
            bounded=bounded,
            unit=unit or "1",
            default=value,
            choices=kind.choices,
            description=said.text,
        )

    def _bounds(self, name: str, kind: Meaning, said: Entry, line: int) -> tuple[float | None, float | None, bool]:
        if kind.kind not in ("float", "int"):
            return None, None, False
        low, high = kind.low, kind.high
        if low is None and high is None and said.bounds is not None:
            low, high = said.bounds
        bounded = low is not None and high is not None
        if not bounded:
            self.say(
                "bounds",
                f"{name} has no bounds, so that any value is taken; write Annotated[{kind.kind}, (low, high)], or "
                "`300 to 900` in the docstring",
                line=line,
                severity="warning",
            )
        low, high = -WIDE if low is None else low, WIDE if high is None else high
        if kind.kind == "int":
            low, high = math.ceil(low), math.floor(high)
        if low > high:
            self.say("bounds", f"the bounds of {name} are empty: {low:g} to {high:g}", line=line)
            return None, None, False
        return float(low), float(high), bounded

    def _default(self, name: str, kind: Meaning, node: ast.expr | None) -> Scalar | None:
        if node is None:
            return None
        value = self.annotations.literal(node)
        if value is NOTHING:
            self.say(
                "default",
                f"the default of {name} is no literal; write a number, text, list or dict",
                line=node.lineno,
            )
            return None
        fits = {
            "float": isinstance(value, int | float) and not isinstance(value, bool) and finite(value),
            "int": isinstance(value, int) and not isinstance(value, bool) and finite(value),
            "bool": isinstance(value, bool),
            "text": isinstance(value, str),
            "choice": value in kind.choices if isinstance(value, str | int | float) else False,
            "file": False,
            "data": isinstance(value, list | dict | tuple),
        }[kind.kind]
        if not fits:
            self.say(
                "default",
                f"the default {value!r:.60} of {name} is not of its type ({kind.kind})",
                line=node.lineno,
            )
            return None
        if kind.kind == "data":
            return json.dumps(value)
        return float(value) if kind.kind == "float" else value

    # -- what it returns ----------------------------------------------------------------------

    def _outputs(self) -> tuple[bool, list[Output]]:
        node, name = self.node.returns, self.node.name
        if not self.doc.returns:
            self.say(
                "return-doc", f"the docstring of {name} does not say what it returns; write it under Returns:"
            )
        if node is None:
            self.say("annotation", f"{name} does not say what it returns: def {name}(...) -> float")
            return False, []
        if isinstance(node, ast.Constant) and node.value is None:
            self.say("annotation", f"{name} returns None; a tool returns a value: a number, a table, a file")
            return False, []
        node = unquoted(node)
        table = self.tables.get(name_of(node))
        if table is not None:
            said = table.doc.attributes | self.doc.keys
            return True, [self._field(one, type_, said.get(one)) for one, type_ in table.fields.items()]
        kind = self._type(node, "what it returns")
        if kind is None:
            return False, []
        if kind.kind == "data" and kind.base in ("dict", "Dict", "Mapping"):
            return True, self._keys(node)
        return False, [self._single(kind)]

    def _single(self, kind: Meaning) -> Output:
        name, text = self.node.name, self.doc.returns
        if kind.kind in ("float", "int", "bool"):
            return self._number(name, kind, text)
        return Output(name=name, kind="file" if kind.kind == "file" else "value", description=text)

    def _number(self, name: str, kind: Meaning, text: str) -> Output:
        unit = kind.unit or unit_in(text)
        if not unit and kind.kind == "float":
            self.say(
                "unit",
                f"{name}, which it returns, has no unit; write [1/s], or [1] for a pure number, in the docstring",
            )
        if unit and not known_unit(unit):
            self.say("unit", f"the unit {unit} of {name} is not known and cannot be converted", severity="warning")
        return Output(name=name, kind="number", unit=unit or "1", description=text)

    def _field(self, name: str, node: ast.expr, said: Entry | None) -> Output:
        if said is None:
            self.say(
                "return-doc",
                f"the docstring does not say what {name}, which it returns, is; write it under Returns:",
            )
        text = "" if said is None else said.text
        kind = self._type(node, name) or Meaning("data")
        if kind.kind in ("float", "int", "bool"):
            return self._number(name, kind, text)
        return Output(name=name, kind="file" if kind.kind == "file" else "value", description=text)

    def _keys(self, node: ast.expr) -> list[Output]:
        """The values of a table of which only the docstring has the keys."""
        values = node.slice if isinstance(node, ast.Subscript) else None
        of = name_of(values.elts[1]) if isinstance(values, ast.Tuple) and len(values.elts) == 2 else ""
        found = []
        for name, said in self.doc.keys.items():
            said_kind = said.kind.strip()
            if (
                of in ("float", "int")
                or said_kind in ("float", "int")
                or (not said_kind and of != "str" and said.unit)
            ):
                found.append(
                    self._number(name, Meaning("int" if "int" in (of, said_kind) else "float"), said.text)
                )
            else:
                file = of in FILES or said_kind in FILES
                found.append(Output(name=name, kind="file" if file else "value", description=said.text))
        if not found:
            self.say(
                "return-doc",
                f"{self.node.name} returns a table; name its keys under Returns: (`rate: In 1/s.`), or its "
                "numbers are no metrics",
                severity="warning",
            )
            found = [Output(name=self.node.name, kind="value", description=self.doc.returns)]
        return found

    # -- types --------------------------------------------------------------------------------

    def _type(self, node: ast.expr, what: str) -> Meaning | None:
        found = self.annotations.meant(node)
        if found is None:
            instead = instead_of(unquoted(node))
            self.say(
                "type",
                f"{what}: the type {ast.unparse(node):.80} is none that a tool takes; "
                f"{f'write {instead}' if instead else f'write one of {TYPES}'}",
                line=node.lineno,
            )
        return found


def read_signature(
    node: ast.FunctionDef, tables: Mapping[str, Table], constants: Mapping[str, Any]
) -> tuple[Signature, list[Finding]]:
    """The signature of a function, and what is wrong with it.

    Args:
        node: The function.
        tables: Classes of plain data of the text, by name.
        constants: Constants of the text, by name.

    Example:
        >>> text = "def f(t: Annotated[float, (0, 9), 'K']) -> Annotated[float, 'K']: ..."
        >>> found, findings = read_signature(ast.parse(text).body[0], {}, {})
        >>> found.arguments[0].unit, found.arguments[0].high, [one.rule for one in findings]
        ('K', 9.0, ['docstring', 'parameter-doc', 'return-doc'])
    """
    reader = _Reader(node, tables, constants)
    return reader.signature(), reader.findings
