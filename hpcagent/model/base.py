"""The base of every record, and the one place where pydantic's errors become a sentence."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from hpcagent.errors import BadInput, nearest
from hpcagent.regular import open_regular
from hpcagent.shown import HIDDEN, is_secret, without_secrets

__all__ = [
    "RECORDED",
    "JSONValue",
    "Record",
    "Scalar",
    "build",
    "canonical_json",
    "explain",
    "open_regular",
    "parse_toml",
    "read_json",
    "read_record",
    "read_text",
    "read_toml",
    "with_shared_names",
]

Scalar = bool | float | int | str
JSONValue = Any  # pydantic's own JsonValue is recursive and slow; these fields only pass through json

R = TypeVar("R", bound=BaseModel)

RECORDED = "recorded"
"""A key of pydantic's validation context: what is read was written down, perhaps before names were checked."""

_DEEPEST = 64
"""Tables within tables; a campaign has five."""
_LARGEST_NUMBER = 10**300
_LARGEST_FILE = 16 << 20
"""Bytes of a TOML or JSON file that is read at once; a long campaign or profile has some ten thousand."""


class Record(BaseModel):
    """A frozen pydantic model that refuses unknown keys.

    Raises:
        BadInput: When it is made by hand of what does not fit; `model_validate` raises pydantic's own error.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise _explain_all(type(self), error, type(self).__name__) from None

    # Else pydantic calls it for each record that is read.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def with_shared_names(cls: type[R]) -> type[R]:
    """Have the instances of a record share the names of their fields, where those are set one by one.

    Python takes the names from the first few instances of a class (PEP 412), and those that pydantic makes have
    dictionaries of their own. So one is made here, before any.
    """
    first = object.__new__(cls)
    for name in cls.model_fields:
        object.__setattr__(first, name, None)
    return cls


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text.

    Example:
        >>> canonical_json({"b": 1, "a": 0.1})
        '{"a":0.1,"b":1}'
    """
    return _CANONICAL.encode(value)


def build(cls: type[R], data: Mapping[str, Any], *, where: str) -> R:
    """Make a record from plain data; whatever is wrong becomes one `BadInput` sentence.

    Args:
        cls: The record's class.
        data: Plain data, e.g. from TOML.
        where: What the data is, for the message ("my.toml", "the campaign").

    Raises:
        BadInput: The first problem found, with the place, the value and what is allowed.
    """
    try:
        return cls.model_validate(dict(data))
    except ValidationError as error:
        raise _explain_all(cls, error, where) from None


def read_record(cls: type[R], data: Mapping[str, Any], unknown: MutableMapping[str, None]) -> R:
    """Make a record from what a version of this library, perhaps a newer one, has written.

    Args:
        cls: The record's class.
        data: As it stands in the file.
        unknown: Takes the keys that this version does not know, e.g. `Result.cost.energy_j`; they are left out.

    Raises:
        ValidationError: Anything else does not fit.

    Example:
        >>> class Point(Record):
        ...     x: float
        >>> unknown = {}
        >>> read_record(Point, {"x": 1.0, "colour": "red"}, unknown), list(unknown)
        (Point(x=1.0), ['Point.colour'])
    """
    try:
        return _validated(cls, data)
    except ValidationError as error:
        extra = [p["loc"] for p in error.errors(include_input=False) if p["type"] == "extra_forbidden"]
        if not extra:
            raise
    known: Any = data
    for place in extra:
        known = _without(known, place)
        names = (str(part) for part in place if not isinstance(part, int))
        unknown[".".join((cls.__name__, *names))] = None
    return _validated(cls, known)


_AS_RECORDED = {RECORDED: True}


def _validated(cls: type[R], data: Mapping[str, Any]) -> R:
    """As `model_validate` does it, without its questions: a journal has two for each run."""
    made: R = cls.__pydantic_validator__.validate_python(data, context=_AS_RECORDED)
    return made


def _without(data: Any, place: tuple[int | str, ...]) -> Any:
    """A copy of plain data without the key at `place`; the parts that do not lead there are shared."""
    first, *rest = place
    if not rest:
        return {k: v for k, v in data.items() if k != first}
    inner = _without(data[first], tuple(rest))
    if isinstance(data, Mapping):
        return {**data, first: inner}
    return [inner if i == first else item for i, item in enumerate(data)]


def explain(cls: type[BaseModel], error: ValidationError, where: str = "") -> BadInput:
    """The first problem pydantic found, as one sentence with its place."""
    problems = error.errors()
    return _explained(cls, problems, _telling(problems), where)


# As many more faults are told beside the first.
_MORE_TOLD = 5


def _explain_all(cls: type[BaseModel], error: ValidationError, where: str) -> BadInput:
    """As `explain`, with the faults at other places behind the first: they can be corrected at once."""
    problems = error.errors()
    first = _telling(problems)
    unknown = {one["loc"][:-1] for one in problems if one["type"] == "extra_forbidden"}
    told = [first]
    for one in problems:
        misspelt = one["type"] == "missing" and one["loc"][:-1] in unknown
        if not misspelt and not any(_same_place(one, other) for other in told):
            told.append(one)
    found = _explained(cls, problems, first, where)
    # What there is instead is told once.
    more = [re.sub(r"; known: .*", ".", _explained(cls, [one], one, "").message, flags=re.S) for one in told[1:]]
    if not more:
        return found
    left = len(more) - _MORE_TOLD
    said = " Also ".join((found.message, *more[:_MORE_TOLD])) + (f" And {left} more." if left > 0 else "")
    return BadInput(said, **found.details)


def _same_place(one: ErrorDetails, other: ErrorDetails) -> bool:
    """Whether two problems are of one fault, as those of all members of a union are."""
    kinds = {one["type"], other["type"]}
    a, b = one["loc"], other["loc"]
    if "extra_forbidden" in kinds or "missing" in kinds:
        return a == b
    shorter = min(len(a), len(b))
    return a[:shorter] == b[:shorter] or (a[:-1] == b[:-1] and {a[-1], b[-1]} <= _PLAIN.keys())


def _explained(cls: type[BaseModel], problems: list[ErrorDetails], problem: ErrorDetails, where: str) -> BadInput:
    inner = problem.get("ctx", {}).get("error")
    loc = problem["loc"][:-1] if problem["type"] in ("extra_forbidden", "missing") else problem["loc"]
    path = ".".join(str(part) for part in loc)
    at = ", ".join(filter(None, (where, path)))
    at = f"{at}: " if at else ""
    if isinstance(inner, BadInput):
        return BadInput(f"{at}{inner.message}", **inner.details)
    if any(is_secret(str(part)) for part in problem["loc"]):
        problem["input"] = HIDDEN
    details = {"where": where, "value": problem.get("input")}
    either = _either(problems, problem)
    if either:
        at = f"{', '.join(filter(None, (where, '.'.join(map(str, problem['loc'][:-1])))))}: ".removeprefix(": ")
        return BadInput(f"{at}must be {either}; got {_shown(problem.get('input'))}.", **details)
    return BadInput(f"{at}{_sentence(cls, problem)}", **details)


# What pydantic calls the members of a union of plain values, the last part of their place.
_PLAIN = {"bool": "true or false", "float": "a number", "int": "a whole number", "str": "a text"}


def _either(problems: list[ErrorDetails], first: ErrorDetails) -> str:
    """What may stand where plain values of several types may; empty where the first problem is of another kind.

    pydantic reports one problem for each member of a union, and the first alone would name one type only.
    """
    members = [p["loc"][-1] for p in problems if p["loc"] and p["loc"][:-1] == first["loc"][:-1]]
    if len(members) < 2 or not all(member in _PLAIN for member in members):
        return ""
    # A whole number is a number.
    names = [_PLAIN[str(m)] for m in dict.fromkeys(members) if m != "int" or "float" not in members]
    return ", ".join(names[:-1]) + " or " + names[-1] if len(names) > 1 else names[0]


def _telling(problems: list[ErrorDetails]) -> ErrorDetails:
    """The first problem; where a key is missing and one beside it is unknown, that: it may be misspelt."""
    first = problems[0]
    if first["type"] == "missing":
        for other in problems:
            if other["type"] == "extra_forbidden" and other["loc"][:-1] == first["loc"][:-1]:
                return other
    return first


def _sentence(cls: type[BaseModel], problem: ErrorDetails) -> str:
    if problem["type"] == "extra_forbidden":
        key = str(problem["loc"][-1])
        return f"unknown key {key!r}; {nearest(key, _keys_at(cls, problem['loc'][:-1]))}"
    if problem["type"] == "missing":
        return f"the key {problem['loc'][-1]!r} is missing; add it."
    text = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return f"{text[0].lower()}{text[1:]}; got {_shown(problem.get('input'))}."


def _shown(value: object) -> str:
    text = repr(without_secrets(value))
    return text if len(text) < 120 else text[:117] + "..."


def _keys_at(cls: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The field names of the model at `path`, as far as the annotations tell."""
    model: type[BaseModel] = cls
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        found = _model_in(field.annotation)
        if found is not None:
            model = found
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        BadInput: The file is missing, unreadable, very large or no TOML; the message has the line.
    """
    return parse_toml(read_text(path), str(path))


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Read a text as TOML.

    Raises:
        BadInput: It is none, or nested or written so that no reader can take it; the message begins with `where`.
    """
    try:
        found: dict[str, Any] = _sensible(tomllib.loads(text))
        return found
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{where}: not valid TOML: {error}.", value=where) from None
    except (RecursionError, ValueError) as error:
        raise BadInput(f"{where}: not valid TOML: {_too_much(error)}.", value=where) from None


def read_json(path: Path) -> Any:  # whatever stands in the file
    """Read a JSON file.

    Raises:
        BadInput: The file is missing, unreadable, very large or no JSON, or gives a key twice.
    """
    try:
        return _sensible(json.loads(read_text(path), object_pairs_hook=_once))
    except (RecursionError, ValueError) as error:
        raise BadInput(f"{path}: not valid JSON: {_too_much(error)}.", value=str(path)) from None


def _sensible(data: Any) -> Any:
    """The data, if what works on it later can: no nesting without end, no number that no float can hold.

    Raises:
        ValueError: It is not.
    """
    level, depth = [data], 0
    while level:
        if depth > _DEEPEST:
            raise RecursionError
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, int) and not -_LARGEST_NUMBER < value < _LARGEST_NUMBER:
                raise ValueError("a whole number in it has hundreds of digits")
        level, depth = inner, depth + 1
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {_shown(twice)} is given twice")
    return found


def _too_much(error: RecursionError | ValueError) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = str(error).rstrip(".")
    return "a whole number in it has thousands of digits" if "integer string conversion" in text else text


def read_text(path: Path) -> str:
    """The text of a file that a person or another program gave; no more of it than is sensible."""
    try:
        with open_regular(path) as file:
            data = file.read(_LARGEST_FILE + 1)
        if len(data) > _LARGEST_FILE:
            most = _LARGEST_FILE >> 20
            raise BadInput(f"{path}: larger than {most} MB; this cannot be such a file.", value=str(path))
        return data.decode("utf-8-sig")  # some editors begin with a byte order mark
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file.", value=str(path)) from None
    except UnicodeDecodeError as error:
        row = error.object.count(b"\n", 0, error.start) + 1
        raise BadInput(
            f"{path}, line {row}: the byte 0x{error.object[error.start]:02x} is not UTF-8. Save the file as UTF-8 "
            f"(`iconv -f LATIN1 -t UTF-8 {shlex.quote(str(path))}` shows it so, if it is Latin-1).",
            value=str(path),
        ) from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error}.", value=str(path)) from None
