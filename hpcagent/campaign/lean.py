"""Records of which there are very many, at a third of their size: what is equal in them is there once."""

from __future__ import annotations

from typing import Any, TypeVar

from hpcagent.model.base import Record, read_record
from hpcagent.model.contract import Resources
from hpcagent.model.records import Result

__all__ = ["Lean"]

R = TypeVar("R", bound=Record)

# Fields of results that hold texts by name, most often the same ones in all runs of a campaign.
_ALIKE = ("units", "bounds", "artifacts", "files", "versions", "level_of_theory")
_NOTHING: dict[str, Any] = {}
_set = object.__setattr__


class Lean:
    """Makes records that share what is equal in them; as nothing changes a record, they may."""

    def __init__(self) -> None:
        self._resources: dict[str, Resources] = {}
        self._given: dict[frozenset[str], set[str]] = {}
        self._last: dict[type[Record], set[str]] = {}
        self._equal: dict[tuple[Any, ...], Any] = {}

    def resources(self, fields: Any, unknown: dict[str, None]) -> Resources:
        """One record for all manifests that ask for the same; `unknown` as `read_record` has it."""
        text = repr(fields)
        shared = self._resources.get(text)
        if shared is None:
            shared = self._resources[text] = read_record(Resources, fields, unknown)
        return shared

    def result(self, result: Result) -> Result:
        """An equal result."""
        cost = result.cost
        _set(cost, "__pydantic_fields_set__", self._names_given(cost))
        if not result.uncertainty:
            _set(result, "uncertainty", _NOTHING)
        return self.record(result, *_ALIKE)

    def record(self, record: R, *alike: str) -> R:
        """An equal record.

        Shared are the set of the names that were given, which has three times the record's own size; the names of
        all fields (see `model.base.with_shared_names`); and equal values of the fields `alike`, which are flat
        dictionaries.
        """
        new = object.__new__(type(record))
        fields = record.__dict__
        for name in alike:
            value = fields[name]
            fields[name] = self._equal.setdefault(tuple(value.items()), value) if value else _NOTHING
        new.__dict__.update(fields.items())  # one by one: a copy of the whole has names of its own
        _set(new, "__pydantic_fields_set__", self._names_given(record))
        _set(new, "__pydantic_extra__", None)
        _set(new, "__pydantic_private__", None)
        return new

    def _names_given(self, record: Record) -> set[str]:
        """The set of the names that were given to a record, one for all that have the same."""
        given = record.__pydantic_fields_set__
        last = self._last.get(type(record))
        if last != given:
            last = self._last[type(record)] = self._given.setdefault(frozenset(given), given)
        return last
