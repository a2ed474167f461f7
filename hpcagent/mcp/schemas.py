"""Schemas of tools as models read them: short, with each unit and bound; and what one of them allows, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["allowed_by", "short", "with_refusal"]

Schema = dict[str, Any]

_NAMED = ("properties", "$defs")  # names of arguments and definitions, not words of JSON Schema
_ENDS = ("maxLength", "maxItems", "maxProperties", "minLength", "maximum")
_FEW, _MANY = 99, 1 << 40  # of a length, of a number: what is beyond says no more than that there is an end


def short(schema: Mapping[str, Any], *, takes: bool = False) -> Schema:
    """A schema without what pydantic adds and nobody needs.

    Args:
        schema: As pydantic writes it.
        takes: It is of arguments: null as "not given" need not be said, nor an empty default.

    Example:
        >>> short({"title": "S", "anyOf": [{"type": "number", "title": "N"}, {"type": "null"}]}, takes=True)
        {'type': 'number'}
    """
    found = _short(schema, dict(schema.get("$defs", {})), takes)
    found.pop("description", None)  # the tool has one
    return found


def _short(schema: Mapping[str, Any], known: Schema, takes: bool) -> Schema:
    if "$ref" in schema:
        named = known[schema["$ref"].rpartition("/")[2]]
        schema = {**named, **{k: v for k, v in schema.items() if k != "$ref"}}
    found: Schema = {}
    # An answer has all of its fields.
    skipped = ("title", "$defs") if takes else ("title", "$defs", "required", "default")
    for word, value in schema.items():
        if word in skipped or (word == "additionalProperties" and value is True):
            continue
        if word in _ENDS and not (value < _MANY if word == "maximum" else 1 < value <= _FEW):
            continue
        if word == "default" and takes and _nothing(value):
            continue
        if word in _NAMED:
            found[word] = {name: _short(one, known, takes) for name, one in value.items()}
        elif isinstance(value, Mapping) and word in ("items", "additionalProperties"):
            inner = _short(value, known, takes)
            if takes or "properties" in inner:  # of an answer the description says it
                found[word] = inner
        elif word == "anyOf":
            found[word] = [_short(one, known, takes) for one in value]
        else:
            found[word] = value
    return _without_null(found, takes)


def _nothing(default: Any) -> bool:
    """Whether a default says no more than that something was not given."""
    if isinstance(default, Mapping):
        return all(_nothing(one) for one in default.values())
    return default is None or default in ("", [])


def _without_null(schema: Schema, takes: bool) -> Schema:
    """`anyOf` of something and null as one schema."""
    either = schema.get("anyOf")
    if either is None or {"type": "null"} not in either:
        return schema
    rest = [one for one in either if one != {"type": "null"}]
    if len(rest) != 1:
        return schema
    (one,) = rest
    outer = {word: value for word, value in schema.items() if word != "anyOf"}
    # Some clients take one `type` only, and no list of them.
    return {**one, **outer} if takes else schema


_REFUSAL = {"error": "string", "refused": "object", "kind": "string"}


def with_refusal(schema: Mapping[str, Any]) -> Schema:
    """The schema of an answer, which an error is of, too: clients check it also where `isError` is set.

    An answer has its first field, an error has `error`; what else an error has (`refused`, `kind`) any object may.
    """
    properties = dict(schema.get("properties", {}))
    first = next(iter(properties))
    for name, kind in _REFUSAL.items():
        own = properties.get(name)
        if own is not None and {"type": kind} not in own.get("anyOf", ()) and own.get("type") != kind:
            several = own.get("anyOf", [own])
            properties[name] = {**(own if "anyOf" in own else {}), "anyOf": [*several, {"type": kind}]}
    return {**schema, "properties": properties, "anyOf": [{"required": [first]}, {"required": ["error"]}]}


def allowed_by(schema: Mapping[str, Any], where: Sequence[str | int]) -> str:
    """What a schema allows at a place, in words; empty: it does not say.

    Args:
        schema: Of all arguments.
        where: Names, numbers of items, and what pydantic puts between them.

    Example:
        >>> allowed_by({"properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}}, ("n",))
        'integer, 1 to 9'
    """
    known = dict(schema.get("$defs", {}))
    one = _at(schema, where, known)
    return "" if one is None else _words(one, known)


def _resolved(schema: Mapping[str, Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**known[schema["$ref"].rpartition("/")[2]], **schema} if "$ref" in schema else schema


def _at(
    schema: Mapping[str, Any], where: Sequence[str | int], known: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    found = _resolved(schema, known)
    if not where:
        return found
    step, rest = where[0], where[1:]
    if isinstance(step, int):
        inner = found.get("items")
    else:
        inner = found.get("properties", {}).get(step)
        extra = found.get("additionalProperties")
        inner = extra if inner is None and isinstance(extra, Mapping) else inner
    if isinstance(inner, Mapping):
        return _at(inner, rest, known)
    for one in found.get("anyOf", ()):
        deeper = _at(one, where, known)
        if deeper is not None:
            return deeper
    # Where there are several possibilities pydantic names the one that it tried.
    return _at(found, rest, known) if isinstance(step, str) else None


def _words(schema: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return f"{schema['const']}"
    if "anyOf" in schema:
        said = [_words(_resolved(one, known), known) for one in schema["anyOf"]]
        return " or ".join(dict.fromkeys(filter(None, said)))
    parts = [str(schema["type"])] if "type" in schema else []
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        parts.append(f"{low:.7g} to {high:.7g}")
    else:
        parts += [f"at least {low:.7g}"] if low is not None else []
        parts += [f"at most {high:.7g}"] if high is not None else []
    if "exclusiveMinimum" in schema:
        parts.append(f"above {schema['exclusiveMinimum']:.7g}")
    if "exclusiveMaximum" in schema:
        parts.append(f"below {schema['exclusiveMaximum']:.7g}")
    if "pattern" in schema:
        parts.append(f"as the pattern {schema['pattern']}")
    for word, unit in (("Length", "characters"), ("Items", "items")):
        parts += [f"at least {schema['min' + word]} {unit}"] if schema.get("min" + word) else []
        parts += [f"at most {schema['max' + word]} {unit}"] if "max" + word in schema else []
    if schema.get("properties"):
        parts.append("with " + ", ".join(schema["properties"]))
    return ", ".join(parts)
