"""A table of catalysts as a database of materials."""

from __future__ import annotations

import time

from hpcagent.errors import BadInput
from hpcagent.materials.answer import Answer, Found
from hpcagent.materials.filters import Asked
from hpcagent.model.base import canonical_json
from hpcagent.resources.database import Database

__all__ = ["CatalystTable"]


class CatalystTable:
    """`catalyst_db`, or another table of resources.

    A query `Cu-ZnO` is the metal Cu on the support ZnO, `Cu` the metal on any; `texts` and `ranges` are the
    columns. It has names of materials and not their atoms, so `elements`, `nelements` and `formula` are refused.

    Args:
        table: From `Resources.database`.

    Example:
        >>> import tempfile
        >>> from hpcagent.materials import query_materials_database
        >>> from hpcagent.resources import Resources
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = Resources.open(folder, caller="anna", role="planner").database()
        ...     answer = query_materials_database("Cu-ZnO", source=table)
        >>> answer.source, answer.total
        ('resource:catalyst_db', 0)
    """

    def __init__(self, table: Database) -> None:
        self._table = table

    def find(self, asked: Asked) -> Answer:
        """See `Source`."""
        filters = asked.filters
        for name in ("elements", "nelements", "formula"):
            if getattr(filters, name):
                raise BadInput(
                    f"{self._table.name} has names of materials and not their atoms, so it cannot judge {name}; "
                    "give texts, e.g. {'texts': {'metal': 'Cu'}}, or a query like 'Cu-ZnO'.",
                    value=name,
                )
        known = {f.name: f for f in self._table.fields}
        asked.refuse_unknown(
            self._table.name,
            numbers=[n for n, f in known.items() if f.type == "number"],
            texts=[*(n for n, f in known.items() if f.type == "string"), "run_id", "created_by"],
        )
        sent: dict[str, object] = {**filters.texts}
        for name, part in zip(("metal", "support"), asked.formulas, strict=False):
            if name not in known:
                raise BadInput(f"{self._table.name} has no column {name}, so a query cannot name it; use filters.")
            if sent.get(name, part) != part:
                raise BadInput(
                    f"the query says {name} = {part}, the filters {sent[name]!r}; leave one out.", value=part
                )
            sent[name] = part
        if len(asked.formulas) > 2:
            raise BadInput(
                f"query={asked.query!r} names {len(asked.formulas)} materials; a metal and its support are two.",
                value=asked.query,
            )
        page = self._table.query({**sent, **filters.ranges}, limit=asked.limit, offset=asked.offset)
        records = tuple(
            Found(
                artifact_id=f"{self._table.name}:{row.id}",
                formula="",
                values={
                    **{n: v for n, v in row.values.items() if v is not None},
                    "run_id": row.run_id,
                    "created_by": row.created_by,
                    "created_at": row.created_at,
                    "version": float(row.version),
                },
                units={n: f.unit for n, f in known.items() if f.unit} | {"created_at": "s", "version": "1"},
                where=str(row["reference"]) if "reference" in known else "",
            )
            for row in page
        )
        told = {**sent, **{n: r.model_dump(exclude_none=True) for n, r in filters.ranges.items()}}
        newest = max((r.created_at for r in page), default=None)
        return Answer(
            source=self._table.uri,
            version="as of now" if newest is None else f"newest row shown written at {newest:.0f} (Unix time, s)",
            asked_at=time.time(),
            query=canonical_json(told),
            records=records,
            total=page.total,
            offset=page.offset,
            notes=(f"{page.overdue} more are past their retention and not shown",) if page.overdue else (),
        )
