"""The consolidated numbers as CSV or Parquet, units in the header."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput
from hpcagent.store.columns import Column
from hpcagent.store.files import refusing_clearly

__all__ = ["FORMATS", "export_columns", "export_table", "format_of"]

FORMATS = ("csv", "parquet")


def format_of(to: str | None, path: Path | None) -> str:
    """The format that is asked for, by name or by the suffix of the file; CSV where neither says.

    Raises:
        BadInput: The format is unknown, or the file's suffix is that of the other one.

    Example:
        >>> format_of(None, Path("tab.parquet")), format_of(None, Path("tab.txt"))
        ('parquet', 'csv')
    """
    if to is not None and to not in FORMATS:
        raise BadInput(f"--to {to!r}: known formats are {', '.join(FORMATS)}.", value=to)
    suffix = "" if path is None else path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        return to or FORMATS[0]
    if to not in (None, suffix):
        raise BadInput(f"--to {to} does not fit the file {path}; drop --to, or name the file .{to}.", value=to)
    return suffix


def export_columns(columns: Sequence[Column], path: Path | None, *, to: str) -> None:
    """Write the table of results to a file, or to standard output.

    Args:
        columns: From `columns_of`.
        path: The file; None: standard output.
        to: `csv` (headed `name [unit]`) or `parquet` (a field carries its unit as metadata).

    Raises:
        BadInput: Unknown format, Parquet without the extra `parquet`, or Parquet onto a terminal.
        StoreFull: The file cannot be written.
    """
    units = {c.name: c.unit for c in columns if c.unit is not None}
    if to == "parquet":
        # A whole number that is missing is null there, and the others stay whole.
        image = _parquet({c.name: list(c.values) for c in columns}, units, types={c.name: c.kind for c in columns})
    else:
        image = _image({c.name: list(c.filled()) for c in columns}, units, to)
    if path is not None:
        with refusing_clearly(path):
            path.write_bytes(image)
    elif to == "csv":
        sys.stdout.write(image.decode())
    elif sys.stdout.isatty():
        raise BadInput("Parquet is not text: send it into a file (`-o FILE`, or `> FILE`).", value=to)
    else:
        sys.stdout.buffer.write(image)
        sys.stdout.buffer.flush()


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
    with refusing_clearly(path):
        path.write_bytes(_image(columns, units, to))


def _image(columns: Mapping[str, list[Any]], units: Mapping[str, str], to: str) -> bytes:
    if to == "csv":
        return _csv(columns, units)
    if to == "parquet":
        return _parquet(columns, units)
    raise BadInput(f"unknown format {to!r}; known: {', '.join(FORMATS)}.", value=to)


def _csv(columns: Mapping[str, list[Any]], units: Mapping[str, str]) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(f"{name} [{units[name]}]" if units.get(name, "1") != "1" else name for name in columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow(["" if isinstance(v, float) and math.isnan(v) else v for v in row])
    return file.getvalue().encode()


def _parquet(
    columns: Mapping[str, list[Any]], units: Mapping[str, str], types: Mapping[str, str] | None = None
) -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise BadInput(
            "writing Parquet needs the extra `parquet`: pip install 'hpcagent[parquet]'. CSV needs nothing.",
            value="parquet",
        ) from None
    known = {"whole": "int64", "number": "float64", "flag": "bool", "text": "string"}
    fields, arrays = [], []
    for name, values in columns.items():
        array = pyarrow.array(values, type=known[types[name]] if types else None)
        arrays.append(array)
        fields.append(pyarrow.field(name, array.type, metadata={"unit": units.get(name, "1")}))
    image = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(arrays, schema=pyarrow.schema(fields)), image)
    return image.getvalue()
