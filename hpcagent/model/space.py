"""Parameters and the space they span."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from hpcagent.errors import BadInput, in_brief, nearest
from hpcagent.html import Card, Displayed, Rows
from hpcagent.later import Later, is_numpy
from hpcagent.model.allowed import Region
from hpcagent.model.base import Record, Scalar, build
from hpcagent.model.conditions import holds
from hpcagent.model.constraints import Constraint
from hpcagent.model.files import FileChoice, check_files, file_choices
from hpcagent.model.texts import LONGEST_NAME, Line
from hpcagent.model.within import check_rules, without_known

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = Later("numpy")

__all__ = ["Choice", "File", "Float", "Int", "Parameter", "Params", "Space", "Text"]

Params: TypeAlias = dict[str, Scalar]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# A choice reaches programs as a word of their input; nothing in it may start a command or leave a folder.
WORD = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_+./-]*\Z")


# A text is data for an app's own function (a formula, a SMILES, a path), never a word of a program's input.
LONGEST_TEXT = 4096


class Parameter(Displayed, Record):
    """One knob: a number between bounds with a unit, one of a few choices, or a text that is set and not varied.

    Use `Float`, `Int`, `Choice`, `File` or `Text` to make one.

    Attributes:
        name: An identifier, as the app spells it.
        kind: `float`, `int`, `choice` or `text`.
        low: Smallest allowed value, in `unit`.
        high: Largest allowed value, in `unit`.
        unit: Unit of the value; `"1"` for a pure number.
        log: Whether ratios matter rather than differences (spread on a logarithmic scale).
        choices: The allowed values of a `choice`.
        default: Used where a campaign does not say.
        description: One sentence.
        when: A condition on other parameters, e.g. `solver == 'mg'`; the parameter is left out of points where it
            is not kept. None: it is a part of every point.
        files: Where the choices are names of files: those files (see `File`).
    """

    name: str
    kind: Literal["float", "int", "choice", "text"] = "float"
    low: float | None = None
    high: float | None = None
    unit: Line = "1"
    log: bool = False
    choices: tuple[Scalar, ...] = ()
    default: Scalar | None = None
    description: str = ""
    when: str | None = None
    files: tuple[FileChoice, ...] = ()

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without `when` and `files` where there are none: digests of campaigns stay what they were."""
        data: dict[str, Any] = dump(self)
        return {k: v for k, v in data.items() if k not in ("when", "files") or v}

    @field_validator("choices", "default", mode="before")
    @classmethod
    def _numpy(cls, given: Any) -> Any:
        return type(given)(map(_plain, given)) if type(given) in (list, tuple) else _plain(given)

    @model_validator(mode="after")
    def _check(self) -> Parameter:
        if not NAME.match(self.name):
            raise BadInput(f"parameter name {self.name!r} is not an identifier (letters, digits, _).")
        if len(self.name) > LONGEST_NAME:
            raise BadInput(
                f"parameter name {self.name[:40]!r}... has {len(self.name)} characters; allowed: {LONGEST_NAME}."
            )
        if not self.unit:
            raise BadInput(f"parameter {self.label} has no unit; write '1' for a pure number.")
        if self.kind == "choice":
            self._check_choices()
        elif self.kind == "text":
            if self.low is not None or self.high is not None or self.log or self.choices:
                raise BadInput(f"parameter {self.label} is a text; low, high, log and choices do not apply.")
        else:
            self._check_bounds()
        if self.default is not None:
            # An unnamed one says `default='b' is not one of ...`.
            self.model_copy(update={"name": "default"} if self.name == "_" else None).validated(self.default)
        return self

    def _check_choices(self) -> None:
        if not self.choices:
            raise BadInput(f"parameter {self.label} is a choice without choices; list at least one.")
        # True == 1 in Python, so a boolean beside a number is a choice twice.
        if len(set(self.choices)) != len(self.choices):
            raise BadInput(f"parameter {self.label} lists a choice twice: {list(self.choices)}.")
        if self.low is not None or self.high is not None or self.log:
            raise BadInput(f"parameter {self.label} is a choice; low, high and log do not apply.")
        if self.files and not set(self.choices) <= {file.name for file in self.files}:
            raise BadInput(f"parameter {self.label} has choices that are none of its files: {self.range}.")
        for choice in self.choices:
            if isinstance(choice, str) and (not WORD.match(choice) or ".." in choice):
                raise BadInput(
                    f"choice {choice!r} of {self.label} is not a plain word "
                    "(letters, digits, _ + . / -, not starting with . / or -, no '..')."
                )
            if isinstance(choice, float) and not math.isfinite(choice):
                raise BadInput(f"choice {choice!r} of {self.label} is not finite.")

    def _check_bounds(self) -> None:
        if self.choices:
            raise BadInput(f"parameter {self.label} is a {self.kind}; choices do not apply.")
        if self.low is None or self.high is None:
            raise BadInput(f"parameter {self.label} needs both low and high.")
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise BadInput(f"bounds of {self.label} are not finite: [{self.low}, {self.high}].")
        if self.low > self.high:
            raise BadInput(f"low > high for {self.label}: {self.low:g} > {self.high:g}{self._suffix}; swap them.")
        if self.log and self.low <= 0:
            raise BadInput(f"{self.label} is logarithmic, so low must be > 0; got {self.low:g}.")
        if self.kind == "int" and (self.low != int(self.low) or self.high != int(self.high)):
            raise BadInput(f"{self.label} is an int; its bounds [{self.low}, {self.high}] are not.")

    @property
    def label(self) -> str:
        """The name in quotes, for messages; a parameter gets its name from where it is put."""
        return "(unnamed)" if self.name == "_" else repr(self.name)

    @property
    def range(self) -> str:
        """The allowed values as text: `[0.3, 6] angstrom` or `{off, opt, omp}`."""
        if self.kind == "choice":
            return "{" + ", ".join(map(str, self.choices)) + "}"
        if self.kind == "text":
            return "any text"
        return f"[{self.low:g}, {self.high:g}]{self._suffix}"

    def shown(self, value: Scalar) -> str:
        """A value with its unit.

        Example:
            >>> Float(0.3, 6, unit="angstrom").shown(2.0)
            '2.0 angstrom'
        """
        return f"{value}{self._suffix}"

    def _card(self) -> Card:
        default = "" if self.default is None else self.shown(self.default)
        spread = "logarithmic" if self.log else ""
        facts = [("allowed", self.range), ("default", default), ("scale", spread), ("when", self.when or "")]
        brief = "; ".join([self.range, *(f"{name} {text}" for name, text in facts[1:] if text)])
        name = "" if self.name == "_" else self.name
        return Card("Parameter", name, [*facts, ("about", self.description)], brief=brief)

    @property
    def _suffix(self) -> str:
        return "" if self.unit == "1" else f" {self.unit}"

    @property
    def constant(self) -> bool:
        """Whether there is nothing to vary: one value is allowed, or it is a text."""
        if self.kind == "text":
            return True
        return len(self.choices) == 1 if self.kind == "choice" else self.low == self.high

    def validated(self, value: object) -> Scalar:
        """Return `value` as a plain Python number or word, or say why it is not allowed.

        Raises:
            BadInput: Wrong type, not finite, or outside the bounds.
        """
        if self.kind == "choice":
            return self._validated_choice(value)
        if self.kind == "text":
            return self._validated_text(value)
        if type(value) is not float and (
            isinstance(value, (bool, str))
            or not (isinstance(value, (int, float)) or is_numpy(value, "integer", "floating"))
        ):
            raise BadInput(f"{self.name}={in_brief(value)} is not a number; allowed: {self.range}.", value=value)
        try:
            number = float(value)
        except OverflowError:
            raise BadInput(
                f"{self.name}={in_brief(value)} is no number that can be written; allowed: {self.range}.",
                value=in_brief(value),
            ) from None
        if not math.isfinite(number):
            raise BadInput(f"{self.name}={number} is not finite; allowed: {self.range}.", value=value)
        assert self.low is not None and self.high is not None
        if self.kind == "int" and number != int(number):
            raise BadInput(f"{self.name}={number:g} is not a whole number; allowed: {self.range}.", value=value)
        if not self.low <= number <= self.high:
            raise BadInput(f"{self.name}={number:g}{self._suffix} is outside {self.range}.", value=value)
        return int(number) if self.kind == "int" else number

    def _validated_choice(self, value: object) -> Scalar:
        for choice in self.choices:
            # A record of before booleans were kept has 1.0 and 0.0 in their place.
            if value == choice and (
                isinstance(choice, bool) or not (isinstance(value, bool) or is_numpy(value, "bool_"))
            ):
                return choice
        said = value[:200] if isinstance(value, str) else in_brief(value)
        raise BadInput(
            f"{self.name}={in_brief(value)} is not one of {self.range}; "
            f"{nearest(said, [str(c) for c in self.choices])}",
            value=value,
        )

    def _validated_text(self, value: object) -> str:
        if not isinstance(value, str):
            raise BadInput(f"{self.name}={in_brief(value)} is not a text; write it in quotes.", value=value)
        if len(value) > LONGEST_TEXT or not value.isprintable():
            raise BadInput(
                f"{self.name} is a text of {len(value)} characters; allowed: at most {LONGEST_TEXT} printable "
                "ones on one line.",
                value=value,
            )
        return value

    def _only_value(self) -> Scalar:
        if self.default is None:
            raise BadInput(f"parameter {self.label} is a text and has no default; set it, it cannot be varied.")
        return self.default

    def from_unit(self, u: float) -> Scalar:
        """Map `u` in [0, 1] onto the range (log scale where `log`; equal shares for ints and choices)."""
        u = min(max(float(u), 0.0), 1.0)
        if self.kind == "text":
            return self._only_value()
        if self.kind == "choice":
            return self.choices[min(int(u * len(self.choices)), len(self.choices) - 1)]
        assert self.low is not None and self.high is not None
        low, high = self.low, self.high
        if self.kind == "int":
            if self.log:
                value = math.exp(math.log(low) + u * (math.log(high + 1) - math.log(low)))
            else:
                value = low + u * (high - low + 1)
            return min(max(int(value), int(low)), int(high))
        if self.log:
            value = math.exp(math.log(low) + u * (math.log(high) - math.log(low)))
        else:
            value = low + u * (high - low)
        # Ten digits: short in tables and inputs, far below any accuracy that matters.
        return min(max(float(f"{value:.10g}"), low), high)

    def to_unit(self, value: Scalar) -> float:
        """The inverse of `from_unit`: where in [0, 1] the value lies (middle of its share for choices)."""
        if self.kind == "choice":
            return (self.choices.index(value) + 0.5) / len(self.choices)
        if self.kind == "text":
            return 0.5
        assert self.low is not None and self.high is not None and not isinstance(value, str)
        low, high, x = self.low, self.high, float(value)
        if self.kind == "int":
            low, high, x = low, high + 1, x + 0.5
        if low == high:
            return 0.5
        if self.log:
            return (math.log(x) - math.log(low)) / (math.log(high) - math.log(low))
        return (x - low) / (high - low)

    def levels(self, n: int) -> tuple[Scalar, ...]:
        """At most `n` values spread over the range, ends included; every choice of a choice."""
        if n < 1:
            raise BadInput(f"a grid needs at least 1 level of {self.label}; got {n}.", value=n)
        if self.kind == "choice":
            return self.choices
        if self.kind == "text":
            return (self._only_value(),)
        if self.constant:
            return (self.validated(self.low),)
        assert self.low is not None and self.high is not None
        if n == 1:
            return (self.from_unit(0.5),)
        scale = np.geomspace if self.log else np.linspace
        values = scale(self.low, self.high, n)
        values[0], values[-1] = self.low, self.high
        if self.kind == "int":
            return tuple(dict.fromkeys(round(v) for v in values))
        return tuple(min(max(float(f"{v:.10g}"), self.low), self.high) for v in values)

    def narrowed(self, **changes: Any) -> Parameter:
        """A copy with tighter bounds, fewer choices or another default; a text becomes one of the `choices`.

        A condition (`when`) is added to the one it may have.

        Raises:
            BadInput: The new range is not inside the old one.
        """
        known = {"low", "high", "log", "choices", "default", "value", "when"}
        if not isinstance(changes.get("choices", ()), (list, tuple)):
            raise BadInput(
                f"choices of {self.label} are a list; got {changes['choices']!r}.", value=changes["choices"]
            )
        for key in changes:
            if key not in known:
                raise BadInput(f"unknown key {key!r} for parameter {self.label}; {nearest(key, known)}")
        data = self.model_dump()
        if self.when is not None and changes.get("when") is not None:
            changes["when"] = f"({self.when}) and ({changes['when']})"
        if self.kind == "text" and "choices" in changes:
            data["kind"] = "choice"  # a text that is one of a few can be varied
        if "value" in changes:
            value = self.validated(changes.pop("value"))
            if self.kind != "text":
                changes |= {"choices": (value,)} if self.kind == "choice" else {"low": value, "high": value}
            changes["default"] = value
        for key in ("low", "high"):
            if key in changes:
                changes[key] = float(self.validated(changes[key]))
        for choice in changes.get("choices", ()):
            self.validated(choice)
        if {"low", "high", "choices"} & set(changes) and "default" not in changes:
            changes["default"] = None
            fitting = Parameter(**(data | changes))
            with contextlib.suppress(BadInput):
                changes["default"] = None if self.default is None else fitting.validated(self.default)
        return Parameter(**(data | changes))

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of a value of this parameter (with `unit` as an annotation)."""
        schema: dict[str, Any] = {"description": self.description, "unit": self.unit}
        if self.kind == "choice":
            schema["enum"] = list(self.choices)
        elif self.kind == "text":
            schema |= {"type": "string", "maxLength": LONGEST_TEXT}
        else:
            schema |= {"type": "integer" if self.kind == "int" else "number"}
            assert self.low is not None and self.high is not None
            cast = int if self.kind == "int" else float
            schema |= {"minimum": cast(self.low), "maximum": cast(self.high)}
        if self.default is not None:
            schema["default"] = self.default
        if self.when is not None:
            about = f"{self.description.rstrip('.')}. " if self.description else ""
            schema["description"] = f"{about}Only when {self.when}."
            schema["x-when"] = self.when
        return schema


def Float(  # noqa: N802  (reads as a type where it is used)
    low: float,
    high: float,
    *,
    unit: str = "1",
    log: bool = False,
    default: float | None = None,
    name: str = "_",
    description: str = "",
    when: str | None = None,
) -> Parameter:
    """A real-valued parameter in [low, high].

    Example:
        >>> Float(0.5e-3, 8e-3, unit="ps", log=True).range
        '[0.0005, 0.008] ps'
    """
    bounds = {"low": low, "high": high, "log": log}
    return _made(name, kind="float", unit=unit, default=default, description=description, when=when, **bounds)


def Int(  # noqa: N802
    low: int,
    high: int,
    *,
    unit: str = "1",
    log: bool = False,
    default: int | None = None,
    name: str = "_",
    description: str = "",
    when: str | None = None,
) -> Parameter:
    """A whole-number parameter in [low, high].

    Example:
        >>> Int(1, 3).levels(3)
        (1, 2, 3)
    """
    bounds = {"low": low, "high": high, "log": log}
    return _made(name, kind="int", unit=unit, default=default, description=description, when=when, **bounds)


def Choice(  # noqa: N802
    *choices: Scalar,
    unit: str = "1",
    default: Scalar | None = None,
    name: str = "_",
    description: str = "",
    when: str | None = None,
) -> Parameter:
    """A parameter that takes one of a few values.

    Example:
        >>> Choice("off", "opt", "omp").range
        '{off, opt, omp}'
    """
    if len(choices) == 1 and isinstance(choices[0], (list, tuple, set, frozenset, dict)):
        listed = ", ".join(map(repr, choices[0]))
        raise BadInput(
            f"the choices are given one by one: Choice({listed}), not as one {type(choices[0]).__name__}."
        )
    rest = {"unit": unit, "default": default, "description": description, "when": when}
    return _made(name, kind="choice", choices=choices, **rest)


def File(  # noqa: N802
    *paths: str | Path,
    default: str | None = None,
    name: str = "_",
    description: str = "",
    when: str | None = None,
) -> Parameter:
    """A parameter that takes one of a few files: structures, potentials, inputs.

    Points, tables and the answer have the file's name; its content decides the execution id. A function gets the
    path of a copy in the run's own directory, a program its name there.

    Args:
        paths: The files; relative ones lie in the working directory.
        default: Name of one of them, used where a campaign does not say.
        name: An identifier; given by where the parameter is put.
        description: One sentence.
        when: A condition on other parameters (see `Parameter`).

    Raises:
        BadInput: A file is not there or cannot be read, or two have the same content.

    Example:
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for lattice in ("fcc", "bcc"):
        ...         _ = pathlib.Path(folder, f"{lattice}.xyz").write_text(lattice)
        ...     File(f"{folder}/fcc.xyz", f"{folder}/bcc.xyz").range
        '{fcc.xyz, bcc.xyz}'
    """
    files = file_choices(paths, where="" if name == "_" else name)
    rest = {"default": default, "description": description, "when": when}
    return _made(name, kind="choice", choices=tuple(file.name for file in files), files=files, **rest)


def Text(  # noqa: N802
    *, default: str | None = None, name: str = "_", description: str = "", when: str | None = None
) -> Parameter:
    """A text that is set and never varied: a formula, a SMILES, the name of a functional.

    Example:
        >>> Text(default="PBE").validated("LDA")
        'LDA'
    """
    return _made(name, kind="text", default=default, description=description, when=when)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool) or is_numpy(value, "bool_")


def _plain(given: Any) -> Any:
    """A scalar of numpy as the Python value it is: pydantic would make 1.0 of numpy's True."""
    if isinstance(given, (bytes, bytearray)):  # numpy.bytes_ is one of them
        raise BadInput(f"{given!r} is bytes; a value is a text, a number or a boolean.", value=given)
    return given.item() if is_numpy(given, "generic") else given


def _made(name: str, **fields: Any) -> Parameter:
    for bound in ("low", "high"):
        if isinstance(fields.get(bound), (bool, str)):
            raise BadInput(f"{bound}={fields[bound]!r} is not a number.", value=fields[bound])
    return build(Parameter, {"name": name, **fields}, where="" if name == "_" else str(name))


class Space(Displayed, Record):
    """The parameters that may be set together, in a fixed order.

    Attributes:
        parameters: One for each knob. One with a condition (`when`) is left out of points that do not keep it.
        constraints: Conditions that every point keeps, e.g. `x + y <= 1`.

    Example:
        >>> space = Space.of(timestep=Float(0.001, 0.03, unit="ps", log=True), style=Choice("a", "b"))
        >>> space.names
        ('timestep', 'style')
        >>> space.validated({"timestep": 0.002, "style": "a"})
        {'timestep': 0.002, 'style': 'a'}
        >>> mix = Space.of(a=Float(0, 1), b=Float(0, 1), constraints=["a + b <= 1"])
        >>> mix.allows({"a": 0.5, "b": 0.25}), mix.allows({"a": 0.5, "b": 0.75})
        (True, False)
    """

    parameters: tuple[Parameter, ...] = ()
    constraints: tuple[Constraint, ...] = ()

    def _card(self) -> Card:
        brief = ", ".join(f"{p.name} in {p.range}" for p in self.parameters)
        kept = "\n".join(map(str, self.constraints))
        title = f"{len(self)} parameter{'' if len(self) == 1 else 's'}"
        return Card("Space", title, [("constraints", kept)], self._rows(), brief=brief)

    def _rows(self) -> tuple[Rows, ...]:
        """Its parameters as a table, if it has any; a column that would be empty is left out."""
        if not self.parameters:
            return ()
        columns: dict[str, list[object]] = {
            "parameter": [p.name for p in self.parameters],
            "allowed": [p.range for p in self.parameters],
            "default": [p.default for p in self.parameters],
            "scale": ["log" if p.log else None for p in self.parameters],
            "when": [p.when for p in self.parameters],
            "about": [p.description or None for p in self.parameters],
        }
        kept = {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}
        rows = zip(*kept.values(), strict=True)
        return (Rows("", list(kept), [["" if cell is None else cell for cell in row] for row in rows]),)

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without constraints where there are none: digests of campaigns stay what they were."""
        data: dict[str, Any] = dump(self)
        return {k: v for k, v in data.items() if k != "constraints" or v}

    @model_validator(mode="after")
    def _check(self) -> Space:
        names = self.names
        for name in names:
            if names.count(name) > 1:
                raise BadInput(f"parameter {name!r} is given twice.")
        check_rules(self.parameters, self.constraints)
        check_files(self.parameters)
        return self

    @classmethod
    def of(cls, *, constraints: Sequence[str | Constraint] | Parameter = (), **parameters: Parameter) -> Space:
        """A space from keyword arguments; each parameter takes the keyword as its name.

        Args:
            constraints: Conditions that every point keeps, e.g. `["x + y <= 1"]`.
            parameters: The parameters.

        Raises:
            BadInput: One of them is no parameter, a name is no identifier, or a condition makes no sense.
        """
        if isinstance(constraints, Parameter):  # one that is called so
            parameters["constraints"] = constraints
            constraints = ()
        for name, parameter in parameters.items():
            if not isinstance(parameter, Parameter):
                raise BadInput(
                    f"{name}={parameter!r}: a parameter is given as Float(low, high, unit=...), Int(...), "
                    "Choice(...) or Text(...).",
                    value=parameter,
                )
        named = tuple(p.model_copy(update={"name": n}) for n, p in parameters.items())
        return cls.made(named, constraints)

    @classmethod
    def made(cls, parameters: Sequence[Parameter], constraints: Sequence[str | Constraint] = ()) -> Space:
        """A space of these parameters under these constraints.

        Raises:
            BadInput: A constraint cannot be read, or makes no sense for the parameters.
        """
        if isinstance(constraints, str) or not isinstance(constraints, Sequence):
            raise BadInput(
                f'constraints is a list of conditions, e.g. ["x + y <= 1"]; got {constraints!r}.',
                value=constraints,
            )
        return build(cls, {"parameters": tuple(parameters), "constraints": tuple(constraints)}, where="")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters' names in order."""
        return tuple(p.name for p in self.parameters)

    @property
    def free(self) -> Space:
        """The part of the space in which there is something to choose."""
        if self.simple:
            return Space(parameters=tuple(p for p in self.parameters if not p.constant))
        known = {p.name: p.levels(1)[0] for p in self.parameters if p.constant and (p.kind != "text" or p.default)}
        return self.without(known)

    def without(self, known: Mapping[str, Scalar]) -> Space:
        """The rest of the space where these parameters have these values, which conditions then count with.

        Raises:
            BadInput: A constraint is broken by the values, whatever the others are.
        """
        if not known:
            return self
        parameters, constraints = without_known(self.parameters, self.constraints, known)
        return Space(parameters=parameters, constraints=constraints)

    @cached_property
    def simple(self) -> bool:
        """Whether every combination of values is allowed and every parameter a part of every point."""
        return not self.constraints and all(p.when is None for p in self.parameters)

    @cached_property
    def region(self) -> Region:
        """How allowed points are found where there are constraints or conditional parameters."""
        return Region(self)

    @cached_property
    def middle(self) -> Params:
        """The middle of the space, or an allowed point near it.

        Raises:
            BadInput: No point is allowed.
        """
        return self.from_unit([0.5] * len(self)) if self.simple else dict(self.region.middle)

    def allows(self, params: Mapping[str, Scalar]) -> bool:
        """Whether a point keeps every constraint (see `violated`)."""
        return self.violated(params) is None

    def violated(self, params: Mapping[str, Scalar]) -> str | None:
        """The first constraint that a point breaks, with its values, in words; None where all are kept.

        Bounds and types are not looked at (`validated` does). A constraint with a parameter that is left out, or
        that is not active here, does not apply.

        Example:
            >>> Space.of(a=Float(0, 1), b=Float(0, 1), constraints=["a + b <= 1"]).violated({"a": 0.5, "b": 0.75})
            "'a + b <= 1' is not kept at a=0.5, b=0.75 (a + b = 1.25)"
        """
        if not self.constraints:
            return None
        known = self._active(params)
        return next((why for c in self.constraints if (why := c.why_not(known)) is not None), None)

    def _active(self, params: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """The values of parameters that are active."""
        left_out: set[str] = set()
        for name, node, names in self.region.whens:
            if names & left_out or not names <= set(params) or not holds(node, params):
                left_out.add(name)
        return {n: params[n] for n in self.names if n in params and n not in left_out}

    @property
    def size(self) -> float:
        """Number of distinct points; `inf` where a parameter is continuous.

        With constraints those that are allowed, or where there are too many to look through, all.
        """
        if not self.simple and self.region.every is not None:
            return float(len(self.region.every))
        return self.cells

    @property
    def cells(self) -> float:
        """Number of combinations of values, allowed or not; `inf` where a parameter is continuous."""
        total = 1.0
        for p in self.parameters:
            if p.kind == "choice":
                total *= len(p.choices)
            elif p.kind == "text":
                continue
            elif p.kind == "int":
                assert p.low is not None and p.high is not None
                total *= p.high - p.low + 1
            elif not p.constant:
                return math.inf
        return total

    def __getitem__(self, name: str) -> Parameter:
        for p in self.parameters:
            if p.name == name:
                return p
        raise BadInput(f"no parameter {name!r}; {nearest(name, self.names)}", value=name)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __len__(self) -> int:
        return len(self.parameters)

    def validated(self, params: Mapping[str, object], *, where: str = "") -> Params:
        """Return all parameters as plain values in the space's order, defaults filled in.

        Parameters that are not active there (see `Parameter.when`) are left out.

        Raises:
            BadInput: Unknown name, missing value, wrong type, out of bounds, or a constraint is not kept.
        """
        place = f" ({where})" if where else ""
        names = self.names
        for name in params:
            if name not in names:
                raise BadInput(f"unknown parameter {name!r}{place}; {nearest(name, names)}", value=name)
        values: Params = {}
        for p in self.parameters if self.simple else self._in_order:
            if p.when is not None and not self._is_on(p, values):
                continue
            given = params.get(p.name, p.default)
            if given is None:
                if p.constant and p.kind != "text":
                    given = p.choices[0] if p.kind == "choice" else p.low
                else:
                    raise BadInput(f"parameter {p.name!r} has no value{place}; allowed: {p.range}.")
            try:
                values[p.name] = p.validated(given)
            except BadInput as error:
                raise BadInput(error.message.rstrip(".") + f"{place}.", **error.details) from None
        if self.simple:
            return values
        broken = self.violated(values)
        if broken is not None:
            raise BadInput(f"{broken}{place}; change one of these values.", value=broken)
        return {name: values[name] for name in names if name in values}

    @cached_property
    def _in_order(self) -> tuple[Parameter, ...]:
        """The parameters, conditional ones after those that decide about them."""
        last = [name for name, _, _ in self.region.whens]
        return tuple(p for p in self.parameters if p.when is None) + tuple(self[name] for name in last)

    @staticmethod
    def _is_on(p: Parameter, values: Mapping[str, Scalar]) -> bool:
        return p.when is None or (
            Constraint(text=p.when).names <= set(values) and bool(holds(Constraint(text=p.when).node, values))
        )

    def clipped(self, params: Mapping[str, Scalar]) -> Params:
        """Return the nearest point: numbers moved to the bounds, whole numbers rounded, equalities settled.

        It may still break another constraint; what is not active is left out.
        """
        values: Params = {}
        for p in self.parameters:
            if p.name not in params and not self.simple:
                continue
            value = params[p.name]
            if p.kind in ("choice", "text"):
                values[p.name] = p.validated(value)
                continue
            assert p.low is not None and p.high is not None and not isinstance(value, str)
            number = min(max(float(value), p.low), p.high)
            values[p.name] = round(number) if p.kind == "int" else number
        return values if self.simple else self.region.point(values)

    def from_unit(self, u: Sequence[float] | NDArray[np.float64]) -> Params:
        """Map a point of the unit cube, `u: (len(space),)`, to parameters.

        Equalities are settled (the nearest point at which they hold) and what is not active is left out; another
        constraint may still be broken, see `allows`.
        """
        values = {p.name: p.from_unit(float(x)) for p, x in zip(self.parameters, u, strict=True)}
        return values if self.simple else self.region.point(values)

    def to_unit(self, params: Mapping[str, Scalar]) -> NDArray[np.float64]:
        """Map parameters to the unit cube; returns `(len(space),)` float64 in [0, 1], 0.5 for what is left out."""
        if self.simple:
            return np.array([p.to_unit(params[p.name]) for p in self.parameters])
        return np.array([p.to_unit(params[p.name]) if p.name in params else 0.5 for p in self.parameters])

    def sample(self, rng: np.random.Generator, n: int) -> list[Params]:
        """Draw `n` allowed points uniformly (on the log scale where a parameter is logarithmic).

        Raises:
            BadInput: No point is allowed.
        """
        if self.simple:
            return [self.from_unit(u) for u in rng.random((n, len(self)))]
        seed = int(rng.integers(2**31))
        units = lambda stop: np.random.default_rng(seed).random((stop, len(self)))  # noqa: E731
        found = self.region.sequence(units, n, seed=seed, even=False)
        if n and not found:
            raise self.region.empty()
        return [dict(found[i % len(found)]) for i in range(n)]

    def grid(self, levels: int | Mapping[str, int] = 3) -> list[Params]:
        """All allowed combinations of `levels` values of each parameter (every choice of a choice).

        A number that follows from an equality (the last of `a + b + c == 1`) takes what follows.

        Args:
            levels: One number for all, or one for each parameter name (3 where not named).

        Example:
            >>> len(Space.of(x=Float(0, 1), c=Choice("a", "b")).grid(5))
            10
        """
        if isinstance(levels, Mapping):
            for name in levels:
                self[name]
            count = {p.name: int(levels.get(p.name, 3)) for p in self.parameters}
        else:
            count = {p.name: int(levels) for p in self.parameters}
        axes = [p.levels(count[p.name]) for p in self.parameters]
        if not self.simple:
            return self.region.combined(axes)
        return [dict(zip(self.names, values, strict=True)) for values in product(*axes)]

    def narrowed(self, changes: Mapping[str, Mapping[str, Any]]) -> Space:
        """A copy in which the named parameters have tighter ranges (see `Parameter.narrowed`)."""
        for name in changes:
            self[name]
        return Space(
            parameters=tuple(p.narrowed(**changes[p.name]) if p.name in changes else p for p in self.parameters),
            constraints=self.constraints,
        )

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema (2020-12) of a dict of these parameters.

        Example:
            >>> Space.of(x=Float(0, 1)).json_schema()["required"]
            ['x']
        """
        schema: dict[str, Any] = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {p.name: p.json_schema() for p in self.parameters},
            "required": [p.name for p in self.parameters if p.default is None and p.when is None],
            "additionalProperties": False,
        }
        if self.constraints:
            # JSON Schema has no way to compare properties: said in words, and as a list for programs.
            schema["description"] = "Constraints: " + "; ".join(map(str, self.constraints))
            schema["x-constraints"] = [str(c) for c in self.constraints]
        return schema
