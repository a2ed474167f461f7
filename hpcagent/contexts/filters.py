"""Which events somebody wants: conditions on the fields of their payload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcagent.contexts.admitted import admitted
from hpcagent.errors import BadInput, in_brief, nearest

__all__ = ["Filter"]

_COMPARED = ("above", "below", "at_least", "at_most")
_KNOWN = (*_COMPARED, "equal", "one_of")
_MOST_FIELDS = 50


class Filter:
    """Conditions on fields of a payload, all of which hold for what is wanted.

    Args:
        where: Field -> a value that it equals, a list of values of which it is one, or a table of `above`,
            `below`, `at_least`, `at_most`, `equal`, `one_of`. A field of a table in the payload is written
            `inputs.metal`.

    Raises:
        BadInput: A condition makes no sense.

    Example:
        >>> wanted = Filter({"job_type": "reaction", "adsorption_energy": {"below": -1.2}})
        >>> wanted.meets({"job_type": "reaction", "adsorption_energy": -1.5})
        True
        >>> wanted.meets({"job_type": "reaction"})
        False
    """

    def __init__(self, where: Mapping[str, Any] | None = None) -> None:
        if where is not None and not isinstance(where, Mapping):
            raise BadInput(f"where is a table of fields; got {in_brief(where)}.", value=where)
        if where is not None and len(where) > _MOST_FIELDS:
            raise BadInput(f"where has {len(where)} fields; at most {_MOST_FIELDS} are allowed.")
        self.where: dict[str, Any] = admitted(dict(where or {}), "where")
        self._conditions = {field: _condition(field, given) for field, given in self.where.items()}

    def meets(self, payload: Mapping[str, Any]) -> bool:
        """Whether all conditions hold; of a field that is not there none does."""
        for field, condition in self._conditions.items():
            there, value = _at(payload, field)
            if not there or not all(_holds(word, limit, value) for word, limit in condition.items()):
                return False
        return True


def _condition(field: str, given: Any) -> dict[str, Any]:
    if isinstance(given, list):
        given = {"one_of": given}
    elif not isinstance(given, dict):
        given = {"equal": given}
    if not given:
        raise BadInput(f"where, {field}: an empty table says nothing; give one of {', '.join(_KNOWN)}.")
    for word, limit in given.items():
        place = f"where, {field}"
        if word not in _KNOWN:
            raise BadInput(f"{place}: {word!r} is no condition; {nearest(word, _KNOWN)}", value=word)
        if word in _COMPARED and not _is_number(limit):
            raise BadInput(f"{place}: {word} is a number; got {in_brief(limit)}.", value=limit)
        if word == "one_of" and (not isinstance(limit, list) or not limit):
            raise BadInput(f"{place}: one_of is a list of values; got {in_brief(limit)}.", value=limit)
    low = max((given[word] for word in ("above", "at_least") if word in given), default=None)
    high = min((given[word] for word in ("below", "at_most") if word in given), default=None)
    if low is not None and high is not None and low > high:
        raise BadInput(f"where, {field}: no number is above {low:g} and below {high:g}; swap them.", value=given)
    conditions: dict[str, Any] = given
    return conditions


def _at(payload: Mapping[str, Any], field: str) -> tuple[bool, Any]:
    """Whether a field is there, and its value."""
    if field in payload:
        return True, payload[field]
    value: Any = payload
    for part in field.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False, None
        value = value[part]
    return True, value


def field_of(payload: Mapping[str, Any], field: str) -> Any:
    """The value of a field of a payload, or of a table in it.

    Raises:
        KeyError: There is none.
    """
    there, value = _at(payload, field)
    if not there:
        raise KeyError(field)
    return value


def _holds(word: str, limit: Any, value: Any) -> bool:
    if word == "equal":
        return _same(value, limit)
    if word == "one_of":
        return any(_same(value, one) for one in limit)
    if not _is_number(value):
        return False
    if word == "above":
        return bool(value > limit)
    if word == "below":
        return bool(value < limit)
    return bool(value >= limit) if word == "at_least" else bool(value <= limit)


def _same(value: Any, other: Any) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
