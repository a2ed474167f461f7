"""Reads one column of a table that a program wrote: what can be meant in two ways is refused, not guessed."""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.bounded import LONGEST_LINE, require_room
from hpcagent.errors import AppFailed, nearest

__all__ = ["parse_number", "read_table", "wrong"]

_BLANK = ""
"""Stands for any number of blanks and tabs between cells."""

_NAMES = {_BLANK: "blanks", ",": "','", ";": "';'", "\t": "tabs"}
_QUOTED = re.compile(r'"[^"]*"')
# A number, also one that lost its E or has a decimal comma; what programs print in place of a number.
_NUMERIC = re.compile(
    r"[-+]?[\d.,]*\d[.,]?([eEdD]?[-+]?\d+)?|\*+|\?+|-+|[-+]?(nan|inf|infinity)(\(\w*\))?|[-+]?\d\.#\w+|"
    r"n/?a|null|none|nil|missing",
    re.IGNORECASE,
)
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+([eEdD][-+]?\d+)?")
_WHOLE = re.compile(r"\d+")
_POINTS = "write numbers with a point, and one of ',', ';', tabs or blanks between them"


def wrong(metric: str, why: str, name: str = "BadOutput") -> AppFailed:
    """The failure of a run whose output is not as the reading of a metric expects it."""
    return AppFailed(f"the metric {metric!r}: {why}.", kind="contract", name=name)


def parse_number(text: str) -> float:
    """A number as programs print it; the exponents of Fortran's double precision are exponents.

    Raises:
        ValueError: It is none.

    Example:
        >>> parse_number("1.5D-03"), parse_number("-2")
        (0.0015, -2.0)
    """
    if "_" in text:
        raise ValueError(text)
    try:
        return float(text)
    except ValueError:
        return float(text.strip().upper().replace("D", "E", 1))


def read_table(metric: str, path: Path, column: str | int) -> NDArray[np.float64]:
    """One column of a table: CSV with `,` or `;` between, or with tabs or blanks.

    What stands between the cells is that of the first row, and all rows have as many cells as it has. Titles are
    the first row if the column is called by one of them, or if no cell of it looks like a number or like what
    programs print in place of one (`nan`, `NA`, `******`); else the comment (`#`) right above the first row.

    Returns:
        (n_rows,) float64.

    Raises:
        AppFailed: `BadOutput`, `MissingMetric` or `FileTooLarge`.
    """
    values = array("d")
    table: _Table | None = None
    above = ""
    for number, line in enumerate(_lines(path), start=1):
        if line.lstrip().startswith("#"):
            above = line.strip().lstrip("#").strip() if table is None else above
            continue
        if not line.strip():
            continue
        if table is None:
            table = _Table(metric, path.name, column, line, number, above)
            if table.titled:
                continue
        values.append(table.value(line, number))
        if not len(values) & 0xFFFF:
            require_room(path, 8.0 * len(values), "its numbers take")
    if table is not None:
        table.refuse_commas()
    return np.array(values, dtype=np.float64)


def _lines(path: Path) -> Iterator[str]:
    # Newlines of all systems; also those of an old Macintosh, which Windows programs still write.
    with path.open(encoding="utf-8-sig", errors="replace", newline=None) as file:
        while line := file.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise AppFailed(
                    f"{path.name} has a line of more than {LONGEST_LINE:,} bytes; it is no table.",
                    kind="contract",
                    name="BadOutput",
                )
            yield line


class _Table:
    """What the first row says of all others, and what the rows so far have been.

    Attributes:
        titled: Whether the first row holds titles.
    """

    def __init__(self, metric: str, file: str, column: str | int, line: str, number: int, above: str) -> None:
        self.metric, self.file, self.column, self.first = metric, file, column, number
        self.between = self._between(line, number)
        self.cells = self._split(line, number)
        self.titled = self.cells.count(column) > 0 if isinstance(column, str) else False
        # Of a table of pandas, the title of the first column is empty.
        self.titled = self.titled or (any(self.cells) and not any(map(_numeric, self.cells)))
        self.index = self._index(self.cells if self.titled else self._above(above))
        self.rows = 0
        # "0,5" is two cells or one number of half the world; nothing tells as long as all rows look like it.
        self._as_commas = not self.titled and self.between == "," and len(self.cells) == 2

    def _refuse(self, why: str, name: str = "BadOutput") -> NoReturn:
        raise wrong(self.metric, why, name)

    def _between(self, line: str, number: int) -> str:
        bare = re.sub(r"[ \t]*([,;])[ \t]*", r"\1", _QUOTED.sub("", line.strip()))
        found = [c for c in ",;\t" if c in bare]
        if len(found) > 1 or (found == [","] and _commas(bare.split())):
            names = " and ".join(_NAMES[c] for c in found) if len(found) > 1 else "',' and blanks"
            comma = any(_commas(re.split(r"[;\t]", bare)) for _ in found[:1])
            why = "decimal commas" if comma or len(found) == 1 else "two separators"
            self._refuse(f"line {number:,} of {self.file} has {names} in it, which may be {why}; {_POINTS}")
        return found[0] if found else _BLANK

    def _split(self, line: str, number: int) -> list[str]:
        if self.between == _BLANK:
            return line.split()
        if '"' not in line:
            return [cell.strip() for cell in line.strip(" \n").split(self.between)]
        try:
            cells = next(csv.reader([line], delimiter=self.between, strict=True, skipinitialspace=True))
        except csv.Error as error:
            self._refuse(f"line {number:,} of {self.file} is no row of a table: {error}")
        return [cell.strip() for cell in cells]

    def _above(self, above: str) -> list[str] | None:
        """The titles of a comment; what stands between them may be another thing than in the rows."""
        if not above:
            return None
        ways = [self._split(above, self.first), above.split()]
        ways += [[c.strip() for c in above.split(between)] for between in ",;\t"]
        fits = [cells for cells in ways if len(cells) == len(self.cells)]
        if not fits and any(self.column in cells for cells in ways):
            self._refuse(
                f"the comment above line {self.first:,} of {self.file} names {self.column!r}, but has not as many "
                f"titles as the row has cells ({len(self.cells)}); name the column by its number",
                "MissingMetric",
            )
        return fits[0] if fits else None

    def _index(self, titles: Sequence[str] | None) -> int:
        column, n = self.column, len(self.cells)
        if isinstance(column, int):
            if not -n <= column < n:
                self._refuse(f"{self.file} has {n} column(s), no column {column}", "MissingMetric")
            return column % n
        if titles is None:
            self._refuse(f"{self.file} has no titles; name the column by its number", "MissingMetric")
        if titles.count(column) != 1:
            has = "two columns" if column in titles else "no column"
            near = nearest(column, titles).rstrip(".")
            self._refuse(f"{self.file} has {has} called {column!r}; {near}", "MissingMetric")
        return list(titles).index(column)

    def value(self, line: str, number: int) -> float:
        """The number of one row."""
        cells, n = self._split(line, number), len(self.cells)
        where = f"line {number:,} of {self.file}"
        if len(cells) != n:
            self._refuse(
                f"{where} has {len(cells)} cell(s), and line {self.first:,} has {n}, with {_NAMES[self.between]} "
                "between; all rows of a table have the same number"
            )
        if self.between != _BLANK and (" " in line or "\t" in line):
            self._refuse_blanks(cells, where)
        self._as_commas = self._as_commas and all(map(_WHOLE.fullmatch, (cells[0].lstrip("+-"), cells[1])))
        self.rows += 1
        if self.rows == 2 and not self.titled:
            self._refuse_half_titled(cells)
        try:
            return parse_number(cells[self.index])
        except ValueError:
            shown = cells[self.index] or "nothing"
            comma = f" (a decimal comma? {_POINTS})" if _DECIMAL_COMMA.fullmatch(shown) else ""
            self._refuse(f"{where} has {shown!r:.60}, which is no number{comma}")

    def _refuse_blanks(self, cells: Sequence[str], where: str) -> None:
        for cell in cells:
            if len(parts := cell.split()) > 1 and all(map(_numeric, parts)):
                self._refuse(
                    f"{where} has {cell!r:.60} between two {_NAMES[self.between]}: thousands, decimal commas or "
                    f"two separators; {_POINTS}"
                )

    def _refuse_half_titled(self, cells: Sequence[str]) -> None:
        for first, second in zip(self.cells, cells, strict=True):
            if first and not _numeric(first) and _number(second):
                self._refuse(
                    f"line {self.first:,} of {self.file} has {first!r:.60} where the next row has {second}, but "
                    "numbers beside it: titles, or a row? Name the column by its title, or write a row of titles "
                    "without numbers"
                )

    def refuse_commas(self) -> None:
        """Refuse a table whose every row may be one number with a decimal comma, where its column is not told.

        Raises:
            AppFailed: `BadOutput`.
        """
        if self._as_commas and self.rows and self.column in (0, -1):
            self._refuse(
                f"every row of {self.file} is like {','.join(self.cells)!r:.60}: two columns, or numbers with a "
                "decimal comma? Write a row of titles above them, blanks between the columns, or a decimal point"
            )


def _numeric(cell: str) -> bool:
    return _NUMERIC.fullmatch(cell) is not None


def _number(cell: str) -> bool:
    try:
        parse_number(cell)
    except ValueError:
        return False
    return True


def _commas(cells: Sequence[str]) -> bool:
    """Whether cells, of which there are several, are numbers and some have a decimal comma (or thousands')."""
    return len(cells) > 1 and any(map(_DECIMAL_COMMA.fullmatch, cells)) and all(map(_numeric, cells))
