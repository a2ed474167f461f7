"""The consolidated numbers as CSV or Parquet, units in the header."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput
from hpcagent.store.files import refusing_clearly

__all__ = ["FORMATS", "export_table"]

FORMATS = ("csv", "parquet")


def export_table(columns: Mapping[str, list[Any]], units: Mapping[str, str], path: Path, *, to: str) -> None:
    """Write columns to a file.

    Args:
        columns: Name -> values, as from `table_of`.
        units: Name -> unit; a CSV column is headed `name [unit]`, a Parquet field carries it as metadata.
        path: The file.
        to: `csv` or `parquet`.

    Raises:
        BadInput: Unknown format, or Parquet without the extra `parquet`.
        StoreFull: The file cannot be written.
    """
    if to == "csv":
        _write_csv(columns, units, path)
    elif to == "parquet":
        _write_parquet(columns, units, path)
    else:
        raise BadInput(f"unknown format {to!r}; known: {', '.join(FORMATS)}.", value=to)


def _write_csv(columns: Mapping[str, list[Any]], units: Mapping[str, str], path: Path) -> None:
    header = [f"{name} [{units[name]}]" if units.get(name, "1") != "1" else name for name in columns]
    with refusing_clearly(path), path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row in zip(*columns.values(), strict=True):
            writer.writerow(["" if isinstance(v, float) and math.isnan(v) else v for v in row])


def _write_parquet(columns: Mapping[str, list[Any]], units: Mapping[str, str], path: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise BadInput(
            "writing Parquet needs the extra `parquet`: pip install 'hpcagent[parquet]'. CSV needs nothing.",
            value="parquet",
        ) from None
    fields, arrays = [], []
    for name, values in columns.items():
        array = pyarrow.array(values)
        arrays.append(array)
        fields.append(pyarrow.field(name, array.type, metadata={"unit": units.get(name, "1")}))
    with refusing_clearly(path):
        pyarrow.parquet.write_table(pyarrow.table(arrays, schema=pyarrow.schema(fields)), path)
