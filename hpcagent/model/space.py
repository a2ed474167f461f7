"""Parameters and the space they span."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator, model_validator

from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import Record, Scalar, build
from hpcagent.model.texts import LONGEST_NAME, Line

__all__ = ["Choice", "Float", "Int", "Parameter", "Params", "Space", "Text"]

Params: TypeAlias = dict[str, Scalar]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# A choice reaches programs as a word of their input; nothing in it may start a command or leave a folder.
WORD = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_+./-]*\Z")


# A text is data for an app's own function (a formula, a SMILES, a path), never a word of a program's input.
LONGEST_TEXT = 4096


class Parameter(Record):
    """One knob: a number between bounds with a unit, one of a few choices, or a text that is set and not varied.

    Use `Float`, `Int`, `Choice` or `Text` to make one.

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
            isinstance(value, (bool, str)) or not isinstance(value, (int, float, np.integer, np.floating))
        ):
            raise BadInput(f"{self.name}={value!r} is not a number; allowed: {self.range}.", value=value)
        number = float(value)
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
            if value == choice and (isinstance(choice, bool) or not isinstance(value, (bool, np.bool_))):
                return choice
        raise BadInput(
            f"{self.name}={value!r} is not one of {self.range}; "
            f"{nearest(str(value), [str(c) for c in self.choices])}",
            value=value,
        )

    def _validated_text(self, value: object) -> str:
        if not isinstance(value, str):
            raise BadInput(f"{self.name}={value!r} is not a text; write it in quotes.", value=value)
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

        Raises:
            BadInput: The new range is not inside the old one.
        """
        known = {"low", "high", "log", "choices", "default", "value"}
        if not isinstance(changes.get("choices", ()), (list, tuple)):
            raise BadInput(
                f"choices of {self.label} are a list; got {changes['choices']!r}.", value=changes["choices"]
            )
        for key in changes:
            if key not in known:
                raise BadInput(f"unknown key {key!r} for parameter {self.label}; {nearest(key, known)}")
        data = self.model_dump()
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
) -> Parameter:
    """A real-valued parameter in [low, high].

    Example:
        >>> Float(0.5e-3, 8e-3, unit="ps", log=True).range
        '[0.0005, 0.008] ps'
    """
    bounds = {"low": low, "high": high, "log": log}
    return _made(name, kind="float", unit=unit, default=default, description=description, **bounds)


def Int(  # noqa: N802
    low: int,
    high: int,
    *,
    unit: str = "1",
    log: bool = False,
    default: int | None = None,
    name: str = "_",
    description: str = "",
) -> Parameter:
    """A whole-number parameter in [low, high].

    Example:
        >>> Int(1, 3).levels(3)
        (1, 2, 3)
    """
    bounds = {"low": low, "high": high, "log": log}
    return _made(name, kind="int", unit=unit, default=default, description=description, **bounds)


def Choice(  # noqa: N802
    *choices: Scalar, unit: str = "1", default: Scalar | None = None, name: str = "_", description: str = ""
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
    return _made(name, kind="choice", choices=choices, unit=unit, default=default, description=description)


def Text(  # noqa: N802
    *, default: str | None = None, name: str = "_", description: str = ""
) -> Parameter:
    """A text that is set and never varied: a formula, a SMILES, the name of a functional.

    Example:
        >>> Text(default="PBE").validated("LDA")
        'LDA'
    """
    return _made(name, kind="text", default=default, description=description)


def _plain(given: Any) -> Any:
    """A scalar of numpy as the Python value it is: pydantic would make 1.0 of numpy's True."""
    if isinstance(given, (bytes, bytearray)):  # numpy.bytes_ is one of them
        raise BadInput(f"{given!r} is bytes; a value is a text, a number or a boolean.", value=given)
    return given.item() if isinstance(given, np.generic) else given


def _made(name: str, **fields: Any) -> Parameter:
    for bound in ("low", "high"):
        if isinstance(fields.get(bound), (bool, str)):
            raise BadInput(f"{bound}={fields[bound]!r} is not a number.", value=fields[bound])
    return build(Parameter, {"name": name, **fields}, where="" if name == "_" else str(name))


class Space(Record):
    """The parameters that may be set together, in a fixed order.

    Example:
        >>> space = Space.of(timestep=Float(0.001, 0.03, unit="ps", log=True), style=Choice("a", "b"))
        >>> space.names
        ('timestep', 'style')
        >>> space.validated({"timestep": 0.002, "style": "a"})
        {'timestep': 0.002, 'style': 'a'}
    """

    parameters: tuple[Parameter, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Space:
        names = self.names
        for name in names:
            if names.count(name) > 1:
                raise BadInput(f"parameter {name!r} is given twice.")
        return self

    @classmethod
    def of(cls, **parameters: Parameter) -> Space:
        """A space from keyword arguments; each parameter takes the keyword as its name.

        Raises:
            BadInput: One of them is no parameter, or a name is no identifier.
        """
        for name, parameter in parameters.items():
            if not isinstance(parameter, Parameter):
                raise BadInput(
                    f"{name}={parameter!r}: a parameter is given as Float(low, high, unit=...), Int(...), "
                    "Choice(...) or Text(...).",
                    value=parameter,
                )
        return cls(parameters=tuple(p.model_copy(update={"name": n}) for n, p in parameters.items()))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters' names in order."""
        return tuple(p.name for p in self.parameters)

    @property
    def free(self) -> Space:
        """The part of the space in which there is something to choose."""
        return Space(parameters=tuple(p for p in self.parameters if not p.constant))

    @property
    def size(self) -> float:
        """Number of distinct points; `inf` where a parameter is continuous."""
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

        Raises:
            BadInput: Unknown name, missing value, wrong type or out of bounds.
        """
        place = f" ({where})" if where else ""
        names = self.names
        for name in params:
            if name not in names:
                raise BadInput(f"unknown parameter {name!r}{place}; {nearest(name, names)}", value=name)
        values: Params = {}
        for p in self.parameters:
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
        return values

    def clipped(self, params: Mapping[str, Scalar]) -> Params:
        """Return the nearest allowed point: numbers moved to the bounds, whole numbers rounded."""
        values: Params = {}
        for p in self.parameters:
            value = params[p.name]
            if p.kind in ("choice", "text"):
                values[p.name] = p.validated(value)
                continue
            assert p.low is not None and p.high is not None and not isinstance(value, str)
            number = min(max(float(value), p.low), p.high)
            values[p.name] = round(number) if p.kind == "int" else number
        return values

    def from_unit(self, u: Sequence[float] | NDArray[np.float64]) -> Params:
        """Map a point of the unit cube, `u: (len(space),)`, to parameters."""
        return {p.name: p.from_unit(float(x)) for p, x in zip(self.parameters, u, strict=True)}

    def to_unit(self, params: Mapping[str, Scalar]) -> NDArray[np.float64]:
        """Map parameters to the unit cube; returns `(len(space),)` float64 in [0, 1]."""
        return np.array([p.to_unit(params[p.name]) for p in self.parameters])

    def sample(self, rng: np.random.Generator, n: int) -> list[Params]:
        """Draw `n` points uniformly (on the log scale where a parameter is logarithmic)."""
        return [self.from_unit(u) for u in rng.random((n, len(self)))]

    def grid(self, levels: int | Mapping[str, int] = 3) -> list[Params]:
        """All combinations of `levels` values of each parameter (every choice of a choice).

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
        return [dict(zip(self.names, values, strict=True)) for values in product(*axes)]

    def narrowed(self, changes: Mapping[str, Mapping[str, Any]]) -> Space:
        """A copy in which the named parameters have tighter ranges (see `Parameter.narrowed`)."""
        for name in changes:
            self[name]
        return Space(
            parameters=tuple(p.narrowed(**changes[p.name]) if p.name in changes else p for p in self.parameters)
        )

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema (2020-12) of a dict of these parameters.

        Example:
            >>> Space.of(x=Float(0, 1)).json_schema()["required"]
            ['x']
        """
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {p.name: p.json_schema() for p in self.parameters},
            "required": [p.name for p in self.parameters if p.default is None],
            "additionalProperties": False,
        }
