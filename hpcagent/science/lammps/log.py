"""Reads LAMMPS log files: the thermo tables, what LAMMPS says about each run, errors and warnings.

Tables are found by fast searches and handed in megabytes to numpy's C reader; a megabyte with anything else
between its rows (warnings, `print`, `fix print`) goes through a regular expression that picks the rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.printed import read_bytes
from hpcagent.moved import moved
from hpcagent.science.lammps.after_table import Table, run_of
from hpcagent.science.lammps.echoed import Between, Echoed, State
from hpcagent.science.lammps.log_records import Log
from hpcagent.science.lammps.log_words import A_NUMBER, decoded, names_of, seconds_of
from hpcagent.science.lammps.thermo_columns import canonical
from hpcagent.science.lammps.thermo_tables import BANNER, CHUNK, Unread, read_multi, read_one, read_tad, read_yaml
from hpcagent.science.lammps.true_rows import gaps, true_steps

__all__ = ["parse_log", "read_log"]

_Array = NDArray[np.float64]


def read_log(path: str | Path) -> Log:
    """Reads a log file; see `parse_log`.

    Args:
        path: The file.

    Returns:
        Its content.

    Raises:
        OSError: The file cannot be read.
        AppFailed: `FileTooLarge`: it has more than 1000 MB.
    """
    return parse_log(read_bytes(Path(path)))


def parse_log(text: str | bytes) -> Log:
    """Reads the text of a log, or of LAMMPS's screen output.

    Never raises for what a log can contain: cut-off text, foreign lines and invalid UTF-8 give fewer or
    shorter runs.

    Args:
        text: The log; Windows newlines are understood.

    Returns:
        Its content.

    Example:
        >>> log = parse_log("units metal\\nrun 0\\n   Step   Temp \\n   0   80 \\n")
        >>> log.units, len(log.runs[0]), log.runs[0].complete
        ('metal', 1, False)
    """
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    return _Reader(data).read()


_MEMORY = (b"Per MPI rank memory allocation", b"Memory usage per processor")
_LOOP = re.compile(rb"Loop time of (\S+) on (\d+) procs(?: \([^)\n]*\))? for (\d+) steps with (\d+) atoms")
_ERROR = re.compile(rb"ERROR(?: on proc \d+)?: (.*)")
_WARNING = re.compile(rb"WARNING(?: on proc \d+)?: (.*)")
# "Climbing replica": the second half of a `neb`, with a table of its own.
_END_MARKS = tuple(
    b"\n" + mark for mark in (b"Loop time of ", b"ERROR", b"LAMMPS (", *_MEMORY, b"Climbing replica = ")
)
_DOUBTFUL_MARKS = _END_MARKS[:2]
_ROW_BYTES = b"0123456789+-.eE \t\n[],"
# The end of a table is looked for this far at first, then twice as far: what is looked at grows with the table.
_NEAR = 1 << 12
# Tables of all replicas together, by a column that only they have. Their rows may repeat a step.
_UNIVERSE = {"MaxReplicaForce": "neb", "Coincident": "prd", "T0": "temper", "Margin": "tad"}
# Its fifth column is a word: E, D or DF.
_TAD_HEADER = b"Step CPU N M Status "
# Of a warning that is longer than a line.
_WARNING_GOES_ON = re.compile(rb" \([\w./]+:\d+\)[ \t]*")


class _Reader:
    """Walks through a log: text line by line, tables in one stroke."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.echoed = Echoed()
        self.tables: list[Table] = []
        # Stretches of nothing but numbers; searches for words leave them out.
        self.numeric: list[tuple[int, int]] = []

    def read(self) -> Log:
        # `sure`: the next line must be a table's header; `after_run`: it may well be.
        position, sure, after_run = 0, False, False
        continued = b""
        while position < len(self.data):
            end = self.data.find(b"\n", position)
            stop = len(self.data) if end < 0 else end
            line = self.data[position:stop]
            next_position = stop + 1
            table = self._table_at(position, line, next_position, sure=sure, after_run=after_run)
            if table is not None:
                position, sure, after_run = table, False, False
                continue
            if line.startswith(_MEMORY):
                sure = True
            elif line.strip() and not _is_warning(line):
                sure = False
            # An echoed command may go over several lines, each but the last ending in `&`.
            if line.rstrip().endswith(b"&"):
                continued += line.rstrip()[:-1] + b" "
            else:
                whole = continued + line
                if self.tables:
                    self.tables[-1].said.append(whole)
                if self.echoed.note(whole):
                    after_run = True
                continued = b""
            position = next_position
        return self._log()

    # -- tables

    def _table_at(self, position: int, line: bytes, body: int, *, sure: bool, after_run: bool) -> int | None:
        """Read the table whose header starts at `position`, if one does; its end."""
        if line.startswith(b"keywords:"):
            names = [
                a.replace(b"''", b"'") if a else b
                for a, b in re.findall(rb"'((?:[^']|'')*)'|([^\s,\[\]']+)", line[len(b"keywords:") :])
            ]
            return self._finish(names_of(names), body, read_yaml) if body <= len(self.data) else None
        if BANNER.fullmatch(line):
            end, loop = self._end(position)
            unread = Unread()
            columns, data = read_multi(self.data[position : end + 1], unread, cut=end >= len(self.data))
            return self._add(columns, data, end, loop, unread)
        if line.startswith(_TAD_HEADER) and body <= len(self.data):
            return self._finish(names_of(line.split()), body, read_tad)
        if body > len(self.data) or not self._is_header(line, body, sure=sure, after_run=after_run):
            return None
        return self._finish(names_of(_header(line, self._next_line(body))), body, read_one)

    def _is_header(self, line: bytes, body: int, *, sure: bool, after_run: bool) -> bool:
        words = line.split()
        if not words or _is_warning(line) or line == b"---":
            return False
        if sure:
            return not line.startswith((b"ERROR", b"Loop time"))
        if any(A_NUMBER.fullmatch(w) for w in words):
            return False
        follower = self._next_line(body)
        values = follower.split()
        numbers = bool(values) and all(A_NUMBER.fullmatch(v) for v in values)
        fits = numbers and len(values) == len(_header(line, follower))
        printed = _padded(line) and _padded(follower)
        if b"Step" in words:
            cut = not follower.strip() or follower.startswith(b"ERROR")
            return (fits and (after_run or printed or not self.echoed.state.echo)) or (cut and after_run)
        return fits and printed and (after_run or not self.echoed.state.echo)

    def _next_line(self, position: int) -> bytes:
        """The first finished line at or after `position` that is no warning; empty if there is none."""
        while (end := self.data.find(b"\n", position)) >= 0:
            line = self.data[position:end]
            if not _is_warning(line):
                return line
            position = end + 1
        return b""

    def _end(self, start: int) -> tuple[int, re.Match[bytes] | None]:
        """Newline before what ends the table that starts at `start`, and its `Loop time` line if that is it."""
        step = _NEAR
        while start < len(self.data):
            stop = self.data.find(b"\n", start + step)
            step = min(2 * step, CHUNK)
            stop = len(self.data) if stop < 0 else stop + 1
            if not self.data[start:stop].translate(None, _ROW_BYTES):
                self.numeric.append((start, stop))
            elif (found := self._end_between(start, stop)) is not None:
                return found
            start = stop
        return len(self.data), None

    def _end_between(self, start: int, stop: int) -> tuple[int, re.Match[bytes] | None] | None:
        nearest, found = stop, None
        for mark in _END_MARKS:
            at = self.data.find(mark, max(start - 1, 0), nearest + len(mark))
            while 0 <= at < nearest:
                loop = _LOOP.match(self.data, at + 1)
                if loop or mark not in _DOUBTFUL_MARKS or _ERROR.match(self.data, at + 1):
                    nearest, found = at, (at, loop)
                    break
                at = self.data.find(mark, at + 1, nearest + len(mark))
        return found

    def _finish(
        self,
        columns: tuple[str, ...],
        body: int,
        read: Callable[[bytes, tuple[str, ...], Unread], _Array],
    ) -> int:
        end, loop = self._end(body)
        unread = Unread()
        return self._add(columns, read(self.data[body : end + 1], columns, unread), end, loop, unread)

    def _add(
        self,
        columns: tuple[str, ...],
        data: _Array,
        end: int,
        loop: re.Match[bytes] | None,
        unread: Unread,
    ) -> int:
        snapshot = State(**{name: getattr(self.echoed.state, name) for name in State.__slots__})
        snapshot.kind = next((kind for name, kind in _UNIVERSE.items() if name in columns), snapshot.kind)
        names = [canonical(c) for c in columns]
        missing = None
        # A rerun may visit steps in any order.
        if "step" in names and snapshot.kind not in ("rerun", *_UNIVERSE.values()):
            data, missing = self._checked(data, data[:, names.index("step")], loop, unread)
        follows, broken_by = self._follows(columns, data, snapshot)
        self.tables.append(Table(columns, data, snapshot, loop, unread, missing, follows, broken_by))
        self.echoed.state.atoms = int(loop[4]) if loop else None
        if loop is None:
            return end + 1
        return loop.end() + 1 if loop.end() < len(self.data) else len(self.data)

    def _follows(
        self, columns: tuple[str, ...], data: _Array, state: State
    ) -> tuple[Literal["", "every", "pre no", "loop"], str]:
        """How a run follows the one before it, or else what came between where it might have."""
        between = self.echoed.between
        self.echoed.between = Between(before=between.run or between.before)
        last = self.tables[-1] if self.tables else None
        piece = between.piece
        if last is None or not piece or (last.state.kind, state.kind) != ("run", "run"):
            return "", ""
        names = [canonical(c) for c in columns]
        if between.changed:
            return "", decoded(between.changed[:80])
        if columns != last.columns or state.norm != last.state.norm:
            return "", "another thermo output"
        if state.every != last.state.every:
            return "", "another `thermo` interval"
        if state.timestep != last.state.timestep:
            return "", "another timestep"
        step = names.index("step") if "step" in names else None
        if step is None or last.loop is None or not len(data) or not len(last.data):
            return "", ""
        going_on = data[0, step] == last.data[-1, step]
        return (piece, "") if going_on else ("", "another step")

    def _checked(
        self, data: _Array, step: _Array, loop: re.Match[bytes] | None, unread: Unread
    ) -> tuple[_Array, int | None]:
        """The rows that the run can have printed, and how many of those that it must have printed are missing."""
        state = self.echoed.state
        # What follows from the commands holds for these two.
        steps = int(loop[3]) if loop and state.kind in ("run", "minimize") else None
        every = state.every if state.kind == "run" else None
        kept = true_steps(step, every, steps)
        true = step[kept]
        if true.size < step.size:
            refused = np.setdiff1d(np.arange(step.size), kept)
            unread.add([b" ".join(b"%.10g" % v for v in data[i]) for i in refused[:1]])
            unread.count += refused.size - 1
        return data[kept], None if steps is None or not every else gaps(true, every, steps)

    # -- the whole

    def _log(self) -> Log:
        runs = tuple(run_of(table) for table in self.tables)
        version = self._first(re.compile(rb"LAMMPS \(([^)\n]*)\)"), b"LAMMPS (")
        units = runs[-1].units if runs else self.echoed.state.style({})
        error = self._first(_ERROR, b"ERROR")
        at = self._first(re.compile(rb"Last (?:command|input line): (.*)"), b"Last ")
        wall = self._first(re.compile(rb"Total wall time: ([\d:]+)"), b"Total wall time: ")
        return Log(
            version=decoded(version[1]) if version else None,
            units=units,
            runs=runs,
            warnings=tuple(decoded(m[1]).strip() for m in self._lines(_WARNING, b"WARNING")),
            error=decoded(error[1]).strip() if error else None,
            error_line=decoded(at[1]).strip() if at else None,
            finished=wall is not None,
            total_wall_s=seconds_of(wall[1]) if wall else None,
        )

    def _first(self, pattern: re.Pattern[bytes], start: bytes) -> re.Match[bytes] | None:
        return next(self._lines(pattern, start), None)

    def _lines(self, pattern: re.Pattern[bytes], start: bytes) -> Iterator[re.Match[bytes]]:
        """Matches of `pattern` at the start of a line; every match begins with `start`."""
        for low, high in self._wordy():
            at = self.data.find(start, low, high)
            while at >= 0:
                if at == 0 or self.data[at - 1] == 10:
                    match = pattern.match(self.data, at)
                    if match:
                        yield match
                at = self.data.find(start, at + len(start), high)

    def _wordy(self) -> Iterator[tuple[int, int]]:
        """What is left of the log without the numeric stretches."""
        low = 0
        for start, stop in self.numeric:
            if start > low:
                yield low, start
            low = stop
        if low < len(self.data):
            yield low, len(self.data)


def _header(line: bytes, follower: bytes) -> list[bytes]:
    """Column names of a one-line header, given the line after it.

    `thermo_modify colname` allows names with blanks; those are told apart by the wider gaps between columns.
    """
    words, values = line.split(), follower.split()
    if len(values) == len(words) or not values or not all(A_NUMBER.fullmatch(v) for v in values):
        return words
    apart = re.split(rb"\s{2,}", line.strip())
    if len(apart) == len(values):
        return apart
    # Names that cannot be told apart must not end up on the wrong columns.
    return [b"column_%d" % (i + 1) for i in range(len(values))] if follower[-1:].isspace() else words


def _is_warning(line: bytes) -> bool:
    return line.startswith(b"WARNING") or _WARNING_GOES_ON.fullmatch(line) is not None


def _padded(line: bytes) -> bool:
    """Whether a line is printed in columns: there are wide gaps inside, or a blank at its end."""
    return line[-1:].isspace() or b"  " in line.strip()


__getattr__ = moved(
    __name__,
    {
        "Run": "hpcagent.science.lammps.log_records",
        "TimingRow": "hpcagent.science.lammps.log_records",
        "column_units": "hpcagent.science.lammps.thermo_columns",
    },
)
