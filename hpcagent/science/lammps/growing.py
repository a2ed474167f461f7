"""A LAMMPS log that is still being written: what is new is read, and only that.

Before the production run the text is kept as it is. From its first row on only the rows are kept, as numbers. The
lines before them, without the rows of earlier runs, are put before each piece of new rows, and the reader of
finished logs (`parse_log`) reads both. So a look costs what has come since the look before it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcagent.regular import open_regular
from hpcagent.science.lammps.log import parse_log
from hpcagent.science.lammps.log_records import Log, Run

__all__ = ["BANNER", "LOOP", "MARK", "MOST_ROWS", "RUN_COMMAND", "Growing", "as_log", "asked_of"]

MARK = "# hpcagent: the run after this line is the one that is measured"
"""Stands in the script before the production run, and so in the log, which repeats every line of the script."""
MOST_ROWS = 400_000
"""Rows that are kept of the production run; from there on it is not measured any more while it goes."""
# How a log's lines begin, and a `run` command with what stands behind its number of steps; re.MULTILINE.
LOOP = rb"^Loop time of "
BANNER = rb"^-+ Step "
RUN_COMMAND = rb"^[ \t]*run[ \t]+(?P<steps>\d+)(?P<more>(?:[ \t][^\n]*)?)$"
_MOST_AT_ONCE = 32 << 20
_MOST_BEFORE = 16 << 20
_COMMANDS = 1 << 16
"""Characters behind the mark among which the `run` command is."""

_MARK = re.compile(rb"^" + re.escape(MARK.encode()) + rb"[ \t]*\n", re.MULTILINE)
_MEMORY = rb"(?:Per MPI rank memory allocation|Memory usage per processor)[^\n]*\n"
# What stands before the first row: of the yaml style, of "line multi" (nothing), or one line of names.
_HEADER = re.compile(
    rb"^" + _MEMORY + rb"(?:WARNING[^\n]*\n)*(?:(?P<yaml>---\nkeywords:[^\n]*\ndata:\n)"
    rb"|(?=-+ Step )(?P<multi>)|(?!-)[^\n]+\n)",
    re.MULTILINE,
)
_ROW = re.compile(rb"^(?:  - \[[^\n]*|[ \t]*[-+.\d][-+.\deE \t]*)\n", re.MULTILINE)
_LOOP = re.compile(LOOP + rb"[^\n]*\n", re.MULTILINE)
_BANNER = re.compile(BANNER, re.MULTILINE)
_ANY_RUN = re.compile(rb"^\s*run\s", re.MULTILINE)
_ASKED = re.compile(RUN_COMMAND, re.MULTILINE)


class Growing:
    """A log, or several that the script opens one after the other, as far as written.

    Args:
        folder: The run's directory.
        logs: Further logs that the script's `log` commands open after `log.lammps`, in their order.

    Attributes:
        marked: The line before the production run has been seen.
        ended: The production run has ended: its `Loop time` is there, and no further piece of it has begun.
        full: It has more rows than are kept.
        length: Steps that the production run was asked for; with `upto` the step it ends at. None: not known yet.
        upto: `length` is a step.
        before: The complete runs before it, without their rows but the last.
    """

    def __init__(self, folder: Path, logs: Sequence[str] = ()) -> None:
        self._paths = [folder / name for name in ("log.lammps", *logs)]
        self._offset = 0
        self._text = b""  # complete lines that were not taken yet
        self._head = b""  # what is put before new rows
        self._names: list[bytes] = []  # the lines that name the columns
        self._part: Run | None = None
        self._rows: NDArray[np.float64] = np.zeros((0, 0))
        self._count = 0
        self._piece = False
        self._written_at = 0.0
        self.marked = self.ended = self.full = self.upto = False
        self.length: int | None = None
        self.before: tuple[Run, ...] = ()

    def read(self) -> bool:
        """Read what is new; says whether there was anything."""
        new = self._new()
        if not new:
            return False
        self._text += new
        if not self.marked:
            self._look_for_mark()
        if self.marked:
            while self._advance():
                pass
        return True

    def production(self) -> Run | None:
        """The production run as far as it is there, with its rows; None before its first."""
        if self._part is None or not self._count:
            return None
        return replace(self._part, data=self._rows[: self._count])

    def current(self) -> Run | None:
        """The run that is being made: the production run, or one before it."""
        if self._part is not None:
            return self.production()
        runs = parse_log(self._head + self._text).runs
        return runs[-1] if runs else None

    def closed(self) -> bool:
        """Whether the newest run has come to its `Loop time`: LAMMPS is at what stands after it in the script."""
        return self.ended or (self._part is not None and self._part.complete)

    def written_at(self) -> float:
        """When the log was last written to, at the newest look: seconds by the file system's clock."""
        return self._written_at

    # -- reading

    def _new(self) -> bytes:
        """Whole lines that were written since the last look."""
        found = b""
        while self._paths:
            try:
                # A script in a sandbox may have put a link in its place.
                with open_regular(self._paths[0], follow=False) as file:
                    file.seek(self._offset)
                    new = file.read(_MOST_AT_ONCE)
                    self._written_at = os.fstat(file.fileno()).st_mtime
            except FileNotFoundError:
                new = b""
            end = new.rfind(b"\n") + 1
            self._offset += end
            found += new[:end]
            # The next one begins when LAMMPS has closed this one, so there is nothing more to come of it.
            if end or len(self._paths) == 1 or not self._paths[1].exists():
                break
            self._paths.pop(0)
            self._offset = 0
        return found.replace(b"\r\n", b"\n")

    def _look_for_mark(self) -> None:
        found = _MARK.search(self._text)
        if found is not None:
            self.marked = True
            self._head += self._text[: found.end()]
            self._text = self._text[found.end() :]
        elif len(self._text) + len(self._head) > _MOST_BEFORE:
            # The newest rows stay, and what is no row; where even that is too much, its beginning goes.
            keep = self._text.rfind(b"\n", 0, -(1 << 16)) + 1
            self._head = (self._head + _ROW.sub(b"", self._text[:keep]))[-_MOST_BEFORE:]
            self._text = self._text[keep:]

    def _advance(self) -> bool:
        """Take a step with the text there is; False: more of it is needed."""
        if self.ended:
            self._text = b""
            return False
        if self._part is None or self._part.complete:
            return self._begin()
        return self._grow()

    def _begin(self) -> bool:
        """The head of the table is there: the production run, or a further piece of it, begins."""
        header = _HEADER.search(self._text)
        if header is None:
            if self._part is not None and b"Total wall time" in self._text:
                self.ended = True
            return False
        head = self._text[: header.end()]
        if self._part is None:
            self._asked(head)
            log = parse_log(self._head + head)
            self.before = tuple(replace(run, data=run.data[-1:]) for run in log.runs if run.complete)
            self._head = _ROW.sub(b"", self._head) + head
            self._names = header[0].splitlines()[1:]
        else:
            if header[0].splitlines()[1:] != self._names or _ANY_RUN.search(head):
                self.ended = True  # another table: another run
                return False
            self._piece = True
        self._part = Run((), self._rows, False) if self._part is None else replace(self._part, complete=False)
        self._text = self._text[header.end() :]
        return True

    def _asked(self, head: bytes) -> None:
        found = None
        for found in _ASKED.finditer(head):  # noqa: B007  (the last one)
            pass
        if found is not None:
            self.length = int(found[1])
            self.upto = b"upto" in found[2].split()

    def _grow(self) -> bool:
        loop = _LOOP.search(self._text)
        end = len(self._text) if loop is None else loop.end()
        text = self._text[:end]
        if loop is None and (banners := list(_BANNER.finditer(text))):
            text = text[: banners[-1].start()]  # the last block may not be whole
        if not text:
            return False
        self._text = self._text[len(text) :]
        runs = parse_log(self._head + text).runs
        if runs:
            self._take(runs[-1])
        if loop is not None and self._part is not None:
            self._part = replace(self._part, complete=True)
        return loop is not None

    def _take(self, new: Run) -> None:
        data, old = new.data, self._part
        if old is None or not len(data):
            return
        if not old.columns:
            self._part = replace(new, data=np.zeros((0, len(new.columns))), complete=new.complete)
            self._rows = np.empty((64, len(new.columns)))
        elif new.columns != old.columns:
            return
        if self._count and "Step" in new:
            steps = data[:, new.columns.index("Step")]
            last = self._rows[self._count - 1, new.columns.index("Step")]
            if self._piece and steps[0] != last:
                self.ended = True  # it does not go on where the piece before it ended
                return
            data = data[steps > last]
        self._piece = False
        room = MOST_ROWS - self._count
        if len(data) > room:
            self.full, data = True, data[:room] if room else data[-1:]
            self._count -= 0 if room else 1
        need = self._count + len(data)
        if need > len(self._rows):
            grown = np.empty((max(need, 2 * len(self._rows)), self._rows.shape[1]))
            grown[: self._count] = self._rows[: self._count]
            self._rows = grown
        self._rows[self._count : need] = data
        self._count = need


def asked_of(log: str) -> tuple[int, bool] | None:
    """How long the run behind the mark was to be, by a whole log: steps, and whether that is the step it ends at.

    Returns:
        None where the log does not say it, or the run is asked for in pieces (`every`).

    Example:
        >>> asked_of(f"{MARK}\\nrun ${{steps}} upto\\nrun 2000 upto\\n")
        (2000, True)
    """
    at = log.rfind(MARK)
    if at < 0:
        return None
    behind = log[at : at + _COMMANDS].encode()
    header = _HEADER.search(behind)
    found = None
    for found in _ASKED.finditer(behind[: header.start() if header else None]):  # noqa: B007  (the last one)
        pass
    words = found[2].split() if found is not None else []
    return None if found is None or b"every" in words else (int(found[1]), b"upto" in words)


def as_log(before: Sequence[Run], production: Run) -> Log:
    """A log that ends with this run: what is measured of a run that is going on.

    Args:
        before: The complete runs before it.
        production: The run so far, made to look complete.
    """
    return Log(
        version=None,
        units=production.units,
        runs=(*before, production),
        warnings=(),
        error=None,
        error_line=None,
        finished=False,
        total_wall_s=None,
    )
