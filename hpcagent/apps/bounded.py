"""Files given as input: opened, measured and read line by line within what may be in memory, packed or not.

A megabyte of gzip can be a gigabyte, and a line of a text has no end that its reader could count on. What is
read whole is therefore counted as it is unpacked (`require_size`), what is read by lines has lines of at most
`LONGEST_LINE` bytes, and what a header says is compared with what is allowed first (`require_room`).
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import os
import stat
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.printed import allowed, too_large
from hpcagent.errors import AppFailed

__all__ = [
    "LONGEST_LINE",
    "NOT_UNPACKED",
    "CsvTable",
    "open_unpacked",
    "read_csv",
    "read_fields",
    "require_lines",
    "require_room",
    "require_size",
]

LONGEST_LINE = 1 << 20
"""Bytes of a line of a text that is given; what programs write has hundreds, with a few columns for each atom."""

NOT_UNPACKED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
"""What the readers of packed files raise for one that is cut or damaged (bz2 also a bare OSError)."""

_CHUNK = 1 << 20
_FIELDS = 16 << 20
# Formats in which a newline means nothing: ASE's .traj, HDF5, netCDF, SQLite.
_NOT_TEXT = (b"- of Ulm", b"\x89HDF", b"CDF", b"SQLite format")


def open_unpacked(path: Path) -> IO[bytes]:
    """Open a file to read it, through gzip, bzip2 or xz where its name ends so.

    Raises:
        OSError: It cannot be read, or is no regular file: a pipe would be waited for without end.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(f"{path} is no regular file")
    match path.suffix:
        case ".gz":
            return cast("IO[bytes]", gzip.open(path))
        case ".bz2":
            return bz2.open(path)
        case ".xz":
            return lzma.open(path)
    return path.open("rb")


def require_size(path: Path) -> None:
    """Refuse a file that another library is going to read whole, if it or a line of it is too large for that.

    Raises:
        AppFailed: `FileTooLarge`.
        OSError: It cannot be read, and `EOFError`, `zlib.error` or `lzma.LZMAError` if it cannot be unpacked.
    """
    most = allowed()
    if path.stat().st_size > most:
        raise too_large(path, path.stat().st_size)
    unpacked = line = 0
    with open_unpacked(path) as file:
        while piece := file.read(_CHUNK):
            if not unpacked and (piece.startswith(_NOT_TEXT) or path.name.split(".")[1:2] == ["json"]):
                line = -1
            unpacked += len(piece)
            if unpacked > most:
                raise too_large(path, unpacked, unpacked=True)
            if line >= 0:
                line = _open_line(path, piece, line)


def _open_line(path: Path, piece: bytes, before: int) -> int:
    """Bytes of the line that goes on behind `piece`, of which `before` bytes lie before it."""
    first = piece.find(b"\n")
    if first < 0:
        before += len(piece)
        first = 0
    else:
        before += first
    if before > LONGEST_LINE:
        raise long_line(path)
    # A piece has no more bytes than a line may have.
    last = piece.rfind(b"\n")
    return before if last < 0 else len(piece) - last - 1


def require_lines(block: bytes, path: Path, begin: int = 0) -> None:
    """Refuse a text with a line of more than `LONGEST_LINE` bytes; looks at a few bytes of each million only.

    Raises:
        AppFailed: `FileTooLarge`.
    """
    while len(block) - begin > LONGEST_LINE:
        end = block.rfind(b"\n", begin, begin + LONGEST_LINE + 1)
        if end < 0:
            raise long_line(path)
        begin = end + 1


def long_line(path: Path) -> AppFailed:
    """The failure of a text with a line of more than `LONGEST_LINE` bytes."""
    return AppFailed(
        f"{path} has a line of more than {LONGEST_LINE:,} bytes; no program writes such lines into a file of this "
        "kind.",
        kind="infrastructure",
        name="FileTooLarge",
        repair="give the file that was meant; this one is damaged, or something else",
    )


def require_room(path: Path, size: float, what: str) -> None:
    """Refuse what a file says of its own size, before room is made for it.

    Args:
        path: The file.
        size: Bytes in memory that it asks for.
        what: What of it, for the message.

    Raises:
        AppFailed: `FileTooLarge`.
    """
    if not 0 <= size <= allowed():
        raise AppFailed(
            f"{path} says that {what} {size / 1e6:.3g} MB; {allowed() / 1e6:g} MB may be read into memory at once "
            "(max_read_mb of the site profile).",
            kind="infrastructure",
            name="FileTooLarge",
            repair="look at the file: it is damaged, or raise max_read_mb where the nodes have several times that "
            "in memory for each run",
        )


class CsvTable:
    """A table of numbers.

    Attributes:
        header: Titles of the columns.
        data: (n_rows, n_columns) float64; nan where nothing stands.
        uneven: Rows with more or fewer cells, which are left out.
    """

    def __init__(self, header: list[str], data: NDArray[np.float64], uneven: int) -> None:
        self.header, self.data, self.uneven = header, data, uneven


def read_csv(path: Path) -> CsvTable:
    """A CSV file of numbers with a header; one number takes 8 bytes, whatever it takes as text.

    Raises:
        AppFailed: `FileTooLarge`.
        OSError: It cannot be read.
        ValueError: There is something else than numbers in it.
    """
    rows = csv.reader(_lines(path))
    values = array("d")
    uneven = 0
    try:
        header = next(rows, [])
        for row in rows:
            if len(row) == len(header):
                values.extend([float(cell or "nan") for cell in row])
            else:
                uneven += 1
            if not len(values) & 0xFFF:
                require_room(path, values.itemsize * len(values), "its numbers take")
    except csv.Error as error:
        raise ValueError(str(error)) from None
    data = np.frombuffer(values, np.float64) if values else np.zeros(0)
    return CsvTable(header, data.reshape(-1, max(len(header), 1)), uneven)


def _lines(path: Path) -> Iterator[str]:
    left = allowed()
    with open_unpacked(path) as file:
        while line := file.readline(LONGEST_LINE + 1):
            left -= len(line)
            if len(line) > LONGEST_LINE:
                raise long_line(path)
            if left < 0:
                raise too_large(path, allowed() - left, unpacked=path.suffix in (".gz", ".bz2", ".xz"))
            yield line.decode(errors="replace")


def read_fields(path: Path) -> dict[str, Any]:
    """A small JSON file of an input run, e.g. its protocol.

    Raises:
        AppFailed: `FileTooLarge`; `BadData`: it is no JSON object.
        OSError: It cannot be read.
    """
    most = min(_FIELDS, allowed())
    with open_unpacked(path) as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise too_large(path, os.stat(path).st_size, most=most)  # noqa: PTH116
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise AppFailed(f"{path} is no JSON: {why}.", kind="contract", name="BadData") from None
    if not isinstance(found, dict):
        raise AppFailed(f"{path} holds no JSON object.", kind="contract", name="BadData")
    return found
