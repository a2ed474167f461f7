"""A parameter: one knob of an app, with its unit and what it may be."""

from __future__ import annotations

import contextlib
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    SerializerFunctionWrapHandler,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_serializer,
    model_validator,
)

from hpcagent.errors import BadInput, in_brief, nearest
from hpcagent.html import Card, Displayed
from hpcagent.later import is_numpy
from hpcagent.model import scale
from hpcagent.model.base import Record, Scalar, build
from hpcagent.model.files import FileChoice, file_choices
from hpcagent.model.texts import LONGEST_NAME, Line

__all__ = ["LONGEST_TEXT", "Choice", "File", "Float", "Int", "Parameter", "Params", "Text"]

_NAMES = frozenset({str})
_VALUES = frozenset({bool, int, float, str})


def _as_they_are(value: Any, validated: ValidatorFunctionWrapHandler) -> Any:
    """Plain names and values stay what they are; a campaign of 100 000 runs has as many such tables."""
    plain = type(value) is dict and _NAMES.issuperset(map(type, value))
    if plain and _VALUES.issuperset(map(type, value.values())):
        return value.copy()
    return validated(value)


Params: TypeAlias = Annotated[dict[str, Scalar], WrapValidator(_as_they_are)]

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

    def from_unit(self, u: float) -> Scalar:
        """Map `u` in [0, 1] onto the range (log scale where `log`; equal shares for ints and choices)."""
        return scale.from_unit(self, u)

    def to_unit(self, value: Scalar) -> float:
        """The inverse of `from_unit`: where in [0, 1] the value lies (middle of its share for choices)."""
        return scale.to_unit(self, value)

    def levels(self, n: int) -> tuple[Scalar, ...]:
        """At most `n` values spread over the range, ends included; every choice of a choice."""
        return scale.levels(self, n)

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
