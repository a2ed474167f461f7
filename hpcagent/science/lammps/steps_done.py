"""How many of its steps a LAMMPS run that goes on has done, by its log."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hpcagent.science.lammps.growing import BANNER, LOOP, RUN_COMMAND
from hpcagent.store.growing_lines import GrowingLines

__all__ = ["StepsDone"]

_MARKS = re.compile(
    RUN_COMMAND + rb"|(?P<loop>" + LOOP + rb")"
    rb"|^keywords: \[(?P<yaml>[^\n]*)\]$"
    rb"|^[ \t]*(?P<names>(?:[A-Za-z][^\s]*[ \t]+)*Step(?:[ \t]+[A-Za-z][^\s]*)*)[ \t]*$"
    rb"|" + BANNER + rb"[ \t]*(?P<multi>\d+)",
    re.MULTILINE,
)


class StepsDone(GrowingLines):
    """Steps in the `log.lammps` of a run that goes on, of any script: rows are not kept.

    Args:
        folder: The run's.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "log.lammps")
        self._forget()

    def _forget(self) -> None:
        self._asked: int | None = None
        self._upto = self._ended = False
        self._first: int | None = None
        self._last: int | None = None
        self._place = -1  # of the step among the columns; -1: not known
        self._number = 0
        self._before = 0  # steps of the run commands before this one

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._forget()

    def look(self) -> dict[str, Any] | None:
        """Steps done of those that the `run` commands so far ask for; None where the log does not say it."""
        text, at = self.new(), 0
        for mark in _MARKS.finditer(text):
            self._rows(text[at : mark.start()])
            at = mark.end()
            self._mark(mark)
        self._rows(text[at:])
        here, whole = self._here()
        done, of = self._before + here, self._before + whole
        if of <= 0:
            return None
        words = "run command 1" if self._number == 1 else f"run commands 1 to {self._number}"
        return {
            "done": done,
            "of": of,
            "unit": "steps",
            "share": done / of,
            "from": f"log.lammps: {words}, those begun so far",
        }

    def _here(self) -> tuple[int, int]:
        """Steps done of the newest `run` command, of how many; 0 where the log does not say it yet."""
        if self._asked is None or self._first is None or self._last is None:
            return 0, 0
        whole = max(0, self._asked - self._first if self._upto else self._asked)
        return (whole if self._ended else min(self._last - self._first, whole)), whole

    def _mark(self, mark: re.Match[bytes]) -> None:
        if mark["steps"] is not None:
            self._before += self._here()[0]
            self._asked, self._upto = int(mark["steps"]), b"upto" in mark["more"].split()
            self._first = self._last = None
            self._ended, self._place = False, -1
            self._number += 1
        elif mark["loop"] is not None:
            self._ended = self._first is not None
        elif mark["multi"] is not None:
            self._step(int(mark["multi"]))
        else:
            named = mark["names"]
            names = mark["yaml"].replace(b"'", b"").replace(b",", b" ").split() if named is None else named.split()
            self._place = names.index(b"Step") if b"Step" in names else -1
            self._ended = False

    def _rows(self, text: bytes) -> None:
        """Take the step of the first and the last row of a piece of a table."""
        if self._asked is None or self._place < 0 or self._ended:
            return
        rows = [line for line in text.split(b"\n") if line.strip()] if self._first is None else []
        if self._first is None:
            found = (step for line in rows if (step := self._step_of(line)) is not None)
            self._step(next(found, None))
        for line in reversed(text[-8192:].split(b"\n")):
            step = self._step_of(line)
            if step is not None:
                self._step(step)
                return

    def _step_of(self, line: bytes) -> int | None:
        fields = line.replace(b"  - [", b"").replace(b",", b" ").split()
        try:
            return int(fields[self._place])
        except (ValueError, IndexError):
            return None

    def _step(self, step: int | None) -> None:
        if step is None:
            return
        self._first = step if self._first is None else self._first
        self._last = max(step, self._last or step)
