"""What a database of materials has answered, and where that comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hpcagent.html import Card, Displayed, Rows
from hpcagent.materials.filters import Asked

__all__ = ["Answer", "Found", "Source"]


@dataclass(frozen=True, slots=True)
class Found:
    """One record.

    Attributes:
        artifact_id: By which it is found again, e.g. `run:EXECUTION_ID`, `catalyst_db:ROW`, `ase:UNIQUE_ID`,
            `optimade:ADDRESS/structures/ID`.
        formula: Chemical formula, or empty where the atoms are not known.
        values: Name -> number or text.
        units: Name -> unit of each number; `1` for a pure one. A number without one has none in its source.
        uncertainty: Standard error of a number, in its unit, where the source has one.
        where: Folder, file or address.
    """

    artifact_id: str
    formula: str
    values: Mapping[str, float | str]
    units: Mapping[str, str] = field(default_factory=dict)
    uncertainty: Mapping[str, float] = field(default_factory=dict)
    where: str = ""

    def __getitem__(self, name: str) -> float | str:
        return self.values[name]


@dataclass(frozen=True, repr=False)
class Answer(Displayed):
    """What one source has answered.

    Attributes:
        source: Kind and address.
        version: Of the source: of its software or protocol, and when it was changed last, as far as it says.
        asked_at: Unix time, in seconds.
        query: What was asked, as the source got it.
        records: What is shown, in the source's order.
        total: How many there are in all; None where the source does not say.
        offset: How many are before these.
        notes: Remarks: what could not be judged, what the source warned of.
    """

    source: str
    version: str
    asked_at: float
    query: str
    records: tuple[Found, ...]
    total: int | None
    offset: int = 0
    notes: tuple[str, ...] = ()

    @property
    def shown(self) -> int:
        """How many records are in this answer."""
        return len(self.records)

    @property
    def next_offset(self) -> int | None:
        """Where the next page begins; None after the last, and where nobody knows whether there is one."""
        after = self.offset + self.shown
        return after if self.records and self.total is not None and after < self.total else None

    @property
    def artifact_ids(self) -> tuple[str, ...]:
        """Of the records, in order."""
        return tuple(r.artifact_id for r in self.records)

    def __iter__(self) -> Iterator[Found]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def _card(self) -> Card:
        of = "an unknown number" if self.total is None else self.total
        facts = [
            ("source", self.source),
            ("version", self.version),
            ("asked", self.query),
            ("shown", f"{self.shown} of {of}, from {self.offset}"),
            ("notes", "\n".join(self.notes)),
        ]
        rows = [
            [r.artifact_id, r.formula, ", ".join(_shown(n, v, r.units.get(n, "")) for n, v in r.values.items())]
            for r in self.records
        ]
        tables = (Rows("", ["record", "formula", "values"], rows),) if rows else ()
        return Card("Answer", f"{self.shown} of {of} records", facts, tables)


def _shown(name: str, value: float | str, unit: str) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f"{name} = {text}{'' if unit in ('', '1') else f' {unit}'}"


class Source(Protocol):
    """A database of materials: anything with this one method may be asked."""

    def find(self, asked: Asked) -> Answer:
        """Answer a question; `BadInput` where a filter cannot be judged, `SourceFailed` where it is not there."""
        ...
