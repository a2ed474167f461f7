"""Tables that models are trained on: CSV, JSON or extended XYZ, each column with its unit."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.apps.bounded import require_size
from hpcagent.errors import AppFailed, nearest

__all__ = ["Table", "number", "read_table"]

_HEAD = re.compile(r"\s*(?P<name>[^\[\]]+?)\s*(?:\[(?P<unit>[^\[\]]*)\])?\s*")
STRUCTURES = (".xyz", ".extxyz")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with named columns.

    Attributes:
        units: Unit of each column, "1" for pure numbers and texts.
        rows: Column -> value, as it stands in the file.
        structures: The ASE `Atoms` of each row; empty for a table without structures.
        source: Name of the file.
    """

    units: Mapping[str, str]
    rows: tuple[Mapping[str, Any], ...]
    structures: tuple[Any, ...]
    source: str

    def require(self, name: str, unit: str | None = None) -> None:
        """Refuse a column that is not there, or is in another unit than `unit`.

        Raises:
            AppFailed: `MissingColumn`, `OtherUnit`.
        """
        if name not in self.units:
            raise AppFailed(
                f"{self.source} has no column {name!r}; {nearest(name, self.units)}",
                kind="contract",
                name="MissingColumn",
            )
        if unit is not None and self.units[name] != unit:
            raise AppFailed(
                f"column {name!r} of {self.source} is in {self.units[name]!r}, the model takes {unit!r}.",
                kind="contract",
                name="OtherUnit",
                repair=f"convert it, and head it `{name} [{unit}]`",
            )


def read_table(path: Path) -> Table:
    """Read a table.

    CSV: a column is headed `name [unit]`; without a unit it is a pure number or a text, as in what `hpcagent
    export` writes of a campaign. JSON: a list of objects, or `{"units": {...}, "rows": [...]}`. Extended XYZ: a
    row for each frame, its columns are the keys of the comment line, `energy [eV]`, `energy_per_atom [eV/atom]`
    and `formula`.

    Raises:
        AppFailed: `BadData`: it cannot be read as a table, a column stands twice, or a row has too many or too few
            cells.
    """
    try:
        require_size(path)
        if path.suffix == ".json":
            return _of_json(path)
        if path.suffix in STRUCTURES:
            return _of_structures(path)
        if path.suffix == ".csv":
            return _of_csv(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _bad(path, str(error)) from None
    raise _bad(path, f"its name ends in {path.suffix!r}; .csv, .json, .xyz and .extxyz are known")


def _bad(path: Path, why: str) -> AppFailed:
    return AppFailed(f"{path.name} is no table: {why}.", kind="contract", name="BadData")


def _of_csv(path: Path) -> Table:
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = list(csv.reader(file))
    if not lines:
        raise _bad(path, "it is empty")
    units: dict[str, str] = {}
    for cell in lines[0]:
        match = _HEAD.fullmatch(cell)
        if match is None:
            raise _bad(path, f"the heading {cell!r} is not `name` or `name [unit]`")
        if match["name"] in units:
            raise _bad(path, f"two columns are called {match['name']!r}")
        units[match["name"]] = match["unit"] or "1"
    rows = []
    for i, line in enumerate(lines[1:], 2):
        if not line:
            continue
        if len(line) != len(units):
            raise _bad(path, f"line {i} has {len(line)} cells, the heading {len(units)}")
        rows.append(dict(zip(units, line, strict=True)))
    return Table(units, tuple(rows), (), path.name)


def _of_json(path: Path) -> Table:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"no JSON: {error}") from None
    units: Any = {}
    rows: Any = found
    if isinstance(found, dict):
        units, rows = found.get("units", {}), found.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or not isinstance(units, dict):
        raise _bad(path, 'it is neither a list of objects nor {"units": {...}, "rows": [...]}')
    names = dict.fromkeys(name for row in rows for name in row)
    unknown = [name for name in units if name not in names]
    if unknown:
        raise _bad(path, f"`units` names {', '.join(unknown)}, which no row has")
    return Table({name: str(units.get(name, "1")) for name in names}, tuple(rows), (), path.name)


def _of_structures(path: Path) -> Table:
    import ase.io

    try:
        found: Any = ase.io.read(path, index=":")
    except Exception as error:  # each format fails in its own way
        raise _bad(path, f"ASE cannot read frames from it ({error})") from None
    rows = []
    for atoms in found:
        row = dict(atoms.info) | {"formula": atoms.get_chemical_formula()}
        results = getattr(atoms.calc, "results", {})
        if "energy" in results:
            row |= {"energy": results["energy"], "energy_per_atom": results["energy"] / len(atoms)}
        rows.append(row)
    units = dict.fromkeys((name for row in rows for name in row), "1")
    units |= {n: u for n, u in (("energy", "eV"), ("energy_per_atom", "eV/atom")) if n in units}
    return Table(units, tuple(rows), tuple(found), path.name)


def number(value: Any) -> float | None:
    """A finite number, or None where nothing of the kind stands.

    Example:
        >>> number("2.5"), number(""), number("nan"), number(True)
        (2.5, None, None, None)
    """
    if isinstance(value, bool) or value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def rows_said(dropped: Sequence[tuple[int, str]], most: int = 3) -> str:
    """The first of the rows that were dropped, in words."""
    said = "; ".join(f"row {i}: {why}" for i, why in dropped[:most])
    return said + (f"; and {len(dropped) - most} more" if len(dropped) > most else "")
