"""An ASE database (ase.db, SQLite) as a database of materials."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput, SourceFailed
from hpcagent.materials.answer import Answer, Found
from hpcagent.materials.filters import Asked
from hpcagent.materials.formulas import counts_of, reduced_text
from hpcagent.units import measure

__all__ = ["AseDatabase"]

# Columns of ASE's table of systems that are numbers (https://wiki.fysik.dtu.dk/ase/ase/db/db.html).
_COLUMNS = {
    "energy": "eV",
    "fmax": "eV/angstrom",
    "smax": "eV/angstrom^3",
    "volume": "angstrom^3",
    "mass": "amu",
    "charge": "e",
    "magmom": "mu_B",
    "natoms": "1",
}
_TEXTS = ("calculator", "unique_id", "user")
_T2000 = 946681200.0  # ASE counts years from here
_YEAR = 31557600.0


class AseDatabase:
    """A file that `ase.db.connect` has written. It is read, never written.

    `ranges` are about energy, fmax, smax, volume, mass, charge, magmom, natoms, and the file's own numeric
    keys. Of own keys ASE knows a unit only where the metadata of the file describe them; without one a range has
    no unit either (`unit` left out) and means what is stored.

    Args:
        path: The file.

    Example:
        >>> import os, tempfile
        >>> from ase.build import bulk
        >>> from ase.db import connect
        >>> from hpcagent.materials import AseDatabase, query_materials_database
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "bulk.db")
        ...     with connect(path) as file:
        ...         written = [file.write(bulk(name)) for name in ("Cu", "Al", "NaCl")[:2]]
        ...     answer = query_materials_database("Cu", source=AseDatabase(path))
        >>> answer.total, answer.records[0].formula
        (1, 'Cu')
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).expanduser().absolute()

    def find(self, asked: Asked) -> Answer:
        """See `Source`."""
        numbers, texts = self._keys()
        try:
            from ase.db import connect
        except ImportError:
            raise BadInput(
                "the package ase, which reads this file, is missing: pip install 'hpcagent[ase]'."
            ) from None
        try:
            file = connect(self._path, type="db", use_lock_file=False, create_indices=False)
            numbers |= _described(file.metadata, numbers)
            asked.refuse_unknown(f"the ASE database {self._path}", numbers=numbers, texts=texts)
            chosen, python = _selection(asked, numbers)
            total, rows = _rows(file, chosen, python, asked)
            version = f"ase.db {file.version}"
        except (sqlite3.Error, OSError) as error:
            raise SourceFailed(f"{self._path}: {error}.", source=str(self._path)) from error
        changed = self._path.stat().st_mtime
        return Answer(
            source=f"ase:{self._path}",
            version=f"{version}, file changed at {changed:.0f} (Unix time, s)",
            asked_at=time.time(),
            query=" AND ".join(f"{k} {op} {v!r}" for k, op, v in chosen) + (f" AND {python}" if python else ""),
            records=tuple(_record(row, numbers, self._path) for row in rows),
            total=total,
            offset=asked.offset,
        )

    def _keys(self) -> tuple[dict[str, str | None], list[str]]:
        """Names of numbers with their units, and of texts, that some row has."""
        try:
            with self._path.open("rb") as file:
                begin = file.read(16)
        except OSError as error:
            raise BadInput(f"{self._path} cannot be read: {error.strerror}.", value=str(self._path)) from None
        if begin != b"SQLite format 3\0":
            raise BadInput(
                f"{self._path} is no SQLite file; an ASE database of this kind is written by "
                "ase.db.connect('NAME.db').",
                value=str(self._path),
            )
        own = []
        try:
            with contextlib.closing(sqlite3.connect(f"{self._path.as_uri()}?mode=ro", uri=True)) as connection:
                connection.execute("SELECT unique_id FROM systems LIMIT 1")
                for table in ("number_key_values", "text_key_values"):
                    own.append([key for (key,) in connection.execute(f"SELECT DISTINCT key FROM {table}")])
        except sqlite3.Error as error:
            raise BadInput(f"{self._path} is no ASE database: {error}.", value=str(self._path)) from None
        return {**dict.fromkeys(own[0]), **_COLUMNS}, [*_TEXTS, *own[1]]


def _described(metadata: Mapping[str, Any], names: Mapping[str, str | None]) -> dict[str, str | None]:
    """Units of own keys by the file's metadata: {key: (short, long, unit)}."""
    found: dict[str, str | None] = {}
    described = metadata.get("key_descriptions")
    for name, said in described.items() if isinstance(described, Mapping) else ():
        if name not in names or name in _COLUMNS or not isinstance(said, (list, tuple)) or len(said) != 3:
            continue
        with contextlib.suppress(BadInput):
            unit = str(said[2])
            measure(unit)
            found[name] = unit or "1"
    return found


def _selection(asked: Asked, numbers: Mapping[str, str | None]) -> tuple[list[tuple[str, str, Any]], str]:
    """What ASE judges, as (key, operator, value), which it binds; and, in words, what is judged here."""
    filters = asked.filters
    chosen: list[tuple[str, str, Any]] = [(element, ">", 0) for element in sorted(asked.elements)]
    for name, wanted in filters.ranges.items():
        unit = numbers[name]
        if unit is None and wanted.unit is not None:
            raise BadInput(
                f"the range of {name} is in {wanted.unit}, but the database does not say the unit of {name}; "
                "leave the unit out to compare what is stored.",
                value=name,
            )
        low, high = (wanted.min, wanted.max) if unit is None else wanted.within(unit, name)
        chosen += [(name, op, limit) for op, limit in ((">=", low), ("<=", high)) if limit is not None]
    here = [f"{n} in {t!r}" for n, t in filters.texts.items() if not isinstance(t, str)]
    chosen += [(n, "=", t) for n, t in filters.texts.items() if isinstance(t, str)]
    if filters.nelements is not None:
        here.append(f"nelements = {filters.nelements}")
    if filters.formula is not None:
        here.append(f"formula = {reduced_text(counts_of(filters.formula))}")
    return chosen, " AND ".join(here)


def _rows(file: Any, chosen: list[tuple[str, str, Any]], here: str, asked: Asked) -> tuple[int, list[Any]]:
    """How many rows there are, and those of this page."""
    first, last = asked.offset, asked.offset + asked.limit
    if not here:
        rows = file.select(chosen, limit=asked.limit, offset=first, include_data=False)
        return file.count(chosen), list(rows)
    total, page = 0, []
    for row in _judged(file.select(chosen, include_data=False), asked):
        if first <= total < last:
            page.append(row)
        total += 1
    return total, page


def _judged(rows: Iterator[Any], asked: Asked) -> Iterator[Any]:
    several = {n: t for n, t in asked.filters.texts.items() if not isinstance(t, str)}
    for row in rows:
        symbols = list(row.symbols)
        if asked.holds_for({s: symbols.count(s) for s in dict.fromkeys(symbols)}) and all(
            row.get(name) in texts for name, texts in several.items()
        ):
            yield row


def _record(row: Any, numbers: Mapping[str, str | None], path: Path) -> Found:
    values: dict[str, float | str] = {}
    for name in (*_COLUMNS, *_TEXTS):
        value = row.get(name)
        if value is not None:
            values[name] = value if isinstance(value, str) else float(value)
    for name, value in row.key_value_pairs.items():
        values[name] = value if isinstance(value, str) else float(value)
    values["created_at"] = _T2000 + row.ctime * _YEAR
    symbols = list(row.symbols)
    return Found(
        artifact_id=f"ase:{row.unique_id}",
        formula=reduced_text({s: symbols.count(s) for s in dict.fromkeys(symbols)}),
        values=values,
        units={n: u for n, u in numbers.items() if u is not None and n in values} | {"created_at": "s"},
        where=f"{path}, id {row.id}",
    )
