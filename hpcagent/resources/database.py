"""A table of a fixed schema in SQLite: added to, replaced as versions, asked with filters. No SQL comes in."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput, ContentChanged, StoreError, StoreFull, nearest
from hpcagent.model.base import canonical_json
from hpcagent.model.texts import line
from hpcagent.resources.place import Gone, Page, Place, append_whole, bounded, own_folder
from hpcagent.resources.ranges import Range
from hpcagent.resources.record import OWN_COLUMNS, Field
from hpcagent.store.files import open_plain, refusing_clearly

__all__ = ["Database", "Row"]

FILE = "table.sqlite"
_MOST_VALUES = 100
"""Of a filter that takes one of several texts."""
_BUSY_S = 60.0
# The newest version of each row.
_NEWEST = '"version" = (SELECT max("version") FROM "rows" AS "other" WHERE "other"."id" = "rows"."id")'


@dataclass(frozen=True, slots=True)
class Row:
    """One row, as it was written.

    Attributes:
        id: Its own, the same in all versions.
        version: From 1.
        values: Field -> text, number (in the field's unit) or None.
        created_at: When this version was written: Unix time, in seconds.
        created_by: Name and role of who wrote it.
        run_id: The run that made it, or empty.
        sha256: Of all that.
    """

    id: str
    version: int
    values: Mapping[str, str | float | None]
    created_at: float
    created_by: str
    run_id: str
    sha256: str

    def __getitem__(self, field: str) -> Any:  # text, number or None, by the schema
        return self.values[field]


class Database:
    """A table; from `Resources.database`. Any number of processes may write it at once.

    Rows are never updated in place: `replace` writes a version. What is past its retention is not shown.

    Example:
        >>> import tempfile
        >>> from hpcagent.resources import Resources
        >>> cu = {"metal": "Cu", "support": "ZnO", "adsorbate": "CO", "adsorption_energy": -0.55}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = Resources.open(folder, caller="anna", role="planner").database("catalyst_db")
        ...     row = table.add(cu | {"reference": "doi:10.0000/example", "method": "measured"})
        ...     found = table.query({"metal": "Cu", "adsorption_energy": {"max": -500, "unit": "meV"}})
        ...     found.total, found.items[0]["adsorption_energy"], found.items[0].id == row.id
        (1, -0.55, True)
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._fields = {f.name: f for f in place.record.content.fields}
        self._path = place.folder / FILE

    @property
    def name(self) -> str:
        """Of the resource."""
        return self._place.record.name

    @property
    def uri(self) -> str:
        """Of the resource, by which records speak of it."""
        return self._place.record.identity.uri

    @property
    def fields(self) -> tuple[Field, ...]:
        """Its columns, without those that every table has."""
        return tuple(self._fields.values())

    def add(self, values: Mapping[str, object], *, run_id: str | None = None) -> Row:
        """Add a row.

        Args:
            values: Field -> text or number, in the field's unit; a field that is not required may be left out.
            run_id: The run that made it; some roles have to say.

        Raises:
            NotPermitted: The role may not add.
            BadInput: A field is unknown, missing or of another type.
            StoreFull: The disk refuses.
        """
        self._place.gate.require("add")
        run_id, checked = self._place.gate.require_run(run_id), self._checked(values)
        with self._place.turn(), self._opened(write=True) as connection:
            row = self._insert(connection, uuid.uuid4().hex, 1, checked, run_id)
        self._place.tell("added", item=row.id, version=1, sha256=row.sha256, run_id=run_id)
        return row

    def replace(self, row_id: str, values: Mapping[str, object], *, run_id: str | None = None) -> Row:
        """Write a new version of a row, whole; the version before is kept where the resource has versions.

        Raises:
            NotPermitted: The role may not replace.
            BadInput: There is no such row, or as `add`.
        """
        self._place.gate.require("replace")
        run_id, checked = self._place.gate.require_run(run_id), self._checked(values)
        with self._place.turn(), self._opened(write=True) as connection:
            versions = self._select(connection, '"id" = ?', [row_id])
            if not versions:
                raise BadInput(
                    f"{self.name} has no row {str(row_id)[:80]!r}; `add` writes a new one.", value=row_id
                )
            before = max(versions, key=lambda r: r.version)
            row = self._insert(connection, before.id, before.version + 1, checked, run_id)
            if not self._place.record.provenance.versioning:
                connection.execute('DELETE FROM "rows" WHERE "id" = ? AND "version" < ?', [row.id, row.version])
        self._place.tell("replaced", item=row.id, version=row.version, sha256=row.sha256, was=before.sha256)
        return row

    def query(
        self,
        filters: Mapping[str, object] | None = None,
        *,
        limit: int = 50,
        offset: int = 0,
        order_by: str = "created_at",
        descending: bool = False,
    ) -> Page[Row]:
        """The rows that all filters hold for, in their newest version.

        Args:
            filters: Field -> a text, several texts of which one must be equal, or a `Range` with its unit (a row
                without that number is not in any range). Also `run_id` and `created_by`.
            limit: Largest number of rows, 1 to 1000.
            offset: How many to leave out before.
            order_by: A field, or `created_at`.
            descending: Largest first.

        Raises:
            NotPermitted: The role may not read.
            BadInput: A filter is not one of these.
            ContentChanged: A row is not what was written.
        """
        self._place.gate.require("read")
        limit, offset = bounded(limit, offset)
        where, values = self._where(filters or {})
        orders = (*self._fields, "created_at")
        if order_by not in orders:
            raise BadInput(f"order_by={order_by!r} is no field; {nearest(str(order_by), orders)}", value=order_by)
        before = self._place.before()
        fresh = "1" if before is None else '"created_at" >= ?'
        old = [] if before is None else [before]
        turn = "DESC" if descending else "ASC"
        with self._opened() as connection:
            connection.execute("BEGIN")  # one moment for count and rows
            count = f'SELECT count(*) FROM "rows" WHERE {where} AND {_NEWEST}'
            every = connection.execute(count, values).fetchone()[0]
            total = connection.execute(f"{count} AND {fresh}", [*values, *old]).fetchone()[0]
            rows = self._select(
                connection,
                f"{where} AND {_NEWEST} AND {fresh} "
                f'ORDER BY "{order_by}" {turn}, "created_at", "id" LIMIT ? OFFSET ?',
                [*values, *old, limit, offset],
            )
        return Page(tuple(rows), total, offset, every - total)

    def versions(self, row_id: str) -> tuple[Row, ...]:
        """Every version of a row that is kept, the oldest first; empty where there is none."""
        self._place.gate.require("read")
        with self._opened() as connection:
            return tuple(self._select(connection, '"id" = ? ORDER BY "version"', [row_id]))

    def expire(self, before: float) -> tuple[Gone, ...]:
        """Take out rows whose newest version is older than a time; see `Resources.expire`."""
        self._place.gate.require("expire")
        archive = self._place.folder / "archive"
        with self._place.turn(), self._opened(write=True) as connection:
            old = {r.id: r for r in self._select(connection, f'{_NEWEST} AND "created_at" < ?', [before])}
            if not old:
                return ()
            where = None
            if self._place.record.lifecycle.archive:
                self._place.make(archive)
                where = archive / "rows.jsonl"
                every = [r for one in old for r in self._select(connection, '"id" = ? ORDER BY "version"', [one])]
                data = b"".join((canonical_json(_facts(r)) + "\n").encode() for r in every)
                with refusing_clearly(where):
                    append_whole(where, data, self._place.file_mode)
            connection.executemany('DELETE FROM "rows" WHERE "id" = ?', [(one,) for one in old])
        gone = tuple(
            Gone(self.name, r.id, r.created_at, r.sha256, None if where is None else str(where))
            for r in old.values()
        )
        for one in gone:
            self._place.tell("expired", item=one.item, sha256=one.sha256, archived=one.archived)
        return gone

    def copy_to(self, folder: Path) -> None:
        """Write a copy, of one moment, into a folder; see `Resources.snapshot`."""
        with self._opened() as connection, contextlib.closing(sqlite3.connect(folder / FILE)) as copy:
            connection.backup(copy)

    def create(self) -> None:
        """Make the empty table."""
        with refusing_clearly(self._path):
            os.close(open_plain(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, self._place.file_mode))
            self._path.chmod(self._place.file_mode)
        own = [
            '"id" TEXT NOT NULL',
            '"version" INTEGER NOT NULL',
            *(_column(f) for f in self.fields),
            '"created_at" REAL NOT NULL',
            '"created_by" TEXT NOT NULL',
            '"run_id" TEXT NOT NULL',
            '"sha256" TEXT NOT NULL',
            'PRIMARY KEY ("id", "version")',
        ]
        with self._opened(write=True) as connection:
            connection.execute(f'CREATE TABLE "rows" ({", ".join(own)})')
            connection.execute('CREATE INDEX "by_run" ON "rows" ("run_id")')
            connection.execute('CREATE INDEX "by_time" ON "rows" ("created_at")')

    def _checked(self, values: Mapping[str, object]) -> dict[str, str | float | None]:
        for name in values:
            if name not in self._fields:
                raise BadInput(
                    f"{self.name} has no field {name!r}; {nearest(str(name), self._fields)}", value=name
                )
        return {name: self._one(field, values.get(name)) for name, field in self._fields.items()}

    def _one(self, field: Field, value: object) -> str | float | None:
        where = f"{self.name}, {field.name}"
        if value is None:
            if field.required:
                raise BadInput(f"{where}: is missing, and required ({field.description or field.type}).")
            return None
        if field.type == "number":
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise BadInput(f"{where}: {value!r} is no number; it is in {field.unit}.", value=value)
            number = float(value)
            if number - number != 0.0:
                raise BadInput(f"{where}: {value!r} is not finite; what is not known is None.", value=value)
            return number
        if not isinstance(value, str) or not value.strip():
            raise BadInput(f"{where}: {value!r} must be a text, and not an empty one.", value=value)
        return line(value)

    def _insert(
        self, connection: sqlite3.Connection, row_id: str, version: int, values: dict[str, Any], run_id: str
    ) -> Row:
        caller = self._place.gate.caller
        row = Row(row_id, version, values, self._place.clock(), str(caller), run_id, "")
        row = Row(row.id, version, values, row.created_at, row.created_by, run_id, _digest(row))
        names = ("id", "version", *self._fields, "created_at", "created_by", "run_id", "sha256")
        facts = _facts(row)
        columns = ", ".join(f'"{n}"' for n in names)
        marks = ", ".join("?" for _ in names)
        connection.execute(f'INSERT INTO "rows" ({columns}) VALUES ({marks})', [facts[n] for n in names])
        return row

    def _select(self, connection: sqlite3.Connection, where: str, values: list[Any]) -> list[Row]:
        names = ("id", "version", "created_at", "created_by", "run_id", "sha256", *self._fields)
        columns = ", ".join(f'"{n}"' for n in names)
        found = []
        for one in connection.execute(f'SELECT {columns} FROM "rows" WHERE {where}', values):
            row_id, version, created_at, created_by, run_id, sha256, *rest = one
            of_fields = dict(zip(self._fields, rest, strict=True))
            row = Row(row_id, version, of_fields, created_at, created_by, run_id, sha256)
            if _digest(row) != sha256:
                raise ContentChanged(
                    f"{self.name}: version {version} of the row {row_id} is not what was written ({self._path} "
                    "was changed by hand). Put it back from a snapshot, or `replace` it with what is right.",
                    item=row_id,
                )
            found.append(row)
        return found

    def _where(self, filters: Mapping[str, object]) -> tuple[str, list[Any]]:
        """Conditions with names of the schema only, and the values for their question marks."""
        known = {
            **self._fields,
            **{n: Field.model_construct(name=n, type="string") for n in ("run_id", "created_by")},
        }
        parts, values = ["1"], []
        for name, wanted in filters.items():
            if name not in known:
                own = [n for n in OWN_COLUMNS if n in known]
                raise BadInput(
                    f"{self.name} has no filter {str(name)[:80]!r}; {nearest(str(name), [*self._fields, *own])}",
                    value=name,
                )
            field = known[name]
            if field.type == "number":
                low, high = Range.of(wanted, name).within(field.unit, name)
                for sign, limit in ((">=", low), ("<=", high)):
                    if limit is not None:
                        parts.append(f'"{field.name}" {sign} ?')
                        values.append(limit)
                continue
            texts = [wanted] if isinstance(wanted, str) else wanted
            if (
                not isinstance(texts, (list, tuple))
                or not 1 <= len(texts) <= _MOST_VALUES
                or not all(isinstance(t, str) for t in texts)
            ):
                raise BadInput(f"{name}={wanted!r} must be a text, or 1 to {_MOST_VALUES} of them.", value=wanted)
            parts.append(f'"{field.name}" IN ({", ".join("?" for _ in texts)})')
            values += texts
        return " AND ".join(parts), values

    @contextlib.contextmanager
    def _opened(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection of this call's own; what is written in the block is there whole or not at all."""
        own_folder(self._path)
        try:
            with contextlib.closing(
                sqlite3.connect(
                    f"{self._path.absolute().as_uri()}?mode={'rw' if write else 'ro'}",
                    uri=True,
                    timeout=_BUSY_S,
                    isolation_level=None,
                )
            ) as connection:
                if not write:
                    yield connection
                    return
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                    raise
        except sqlite3.DatabaseError as error:
            kind = StoreFull if write and isinstance(error, sqlite3.OperationalError) else StoreError
            raise kind(
                f"{self._path}: {error}; nothing was changed. See whether the file is there, whole, and may be "
                f"{'written' if write else 'read'}.",
                path=str(self._path),
            ) from error


def _column(field: Field) -> str:
    kinds = {"string": ("TEXT", "text"), "number": ("REAL", "real")}
    declared, found = kinds[field.type]
    needed = " NOT NULL" if field.required else ""
    allowed = f"'{found}'" if field.required else f"'{found}', 'null'"
    return f'"{field.name}" {declared}{needed} CHECK (typeof("{field.name}") IN ({allowed}))'


def _facts(row: Row) -> dict[str, Any]:
    return {
        **row.values,
        "id": row.id,
        "version": row.version,
        "created_at": row.created_at,
        "created_by": row.created_by,
        "run_id": row.run_id,
        "sha256": row.sha256,
    }


def _digest(row: Row) -> str:
    facts = {**_facts(row), "sha256": ""}
    try:
        return hashlib.sha256(canonical_json(facts).encode()).hexdigest()
    except (TypeError, ValueError):  # bytes, or not a number: nothing of ours
        return ""
