"""How far runs and campaigns are, by what they have written so far: each look costs what is new since the last."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput
from hpcagent.workspace.artifacts import opened
from hpcagent.workspace.rows import Row

__all__ = ["CampaignJournal", "Growing", "LammpsLog", "Progress"]

MOST_AT_ONCE = 4 << 20
"""Bytes that one look reads; what is beyond comes with the next."""
MOST_FOLLOWED = 1000

_MARKS = re.compile(
    rb"^[ \t]*run[ \t]+(?P<steps>\d+)(?P<more>(?:[ \t][^\n]*)?)$"
    rb"|^(?P<loop>Loop time of )"
    rb"|^keywords: \[(?P<yaml>[^\n]*)\]$"
    rb"|^[ \t]*(?P<names>(?:[A-Za-z][^\s]*[ \t]+)*Step(?:[ \t]+[A-Za-z][^\s]*)*)[ \t]*$"
    rb"|^-+ Step[ \t]+(?P<multi>\d+)",
    re.MULTILINE,
)
_RESULT = re.compile(rb'"execution_id":"([^"]{1,100})","status":"')


class Growing:
    """A file that grows, of which whole lines are read, each once.

    Args:
        folder: Where it lies.
        name: Its name there.

    Attributes:
        inode: Of the file that was read last; 0 before.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._offset = self.inode = 0

    def new(self) -> bytes:
        """Whole lines that were written since the last look; empty where there is no such file."""
        try:
            file = opened(self._folder, self._name)
        except BadInput:
            return b""
        try:
            status = os.fstat(file)
            if status.st_size < self._offset or status.st_ino != self.inode:  # begun anew by another attempt
                self._begin_anew()
                self.inode = status.st_ino
            found = os.pread(file, MOST_AT_ONCE, self._offset)
        finally:
            os.close(file)
        end = found.rfind(b"\n") + 1
        self._offset += end
        return found[:end]

    def _begin_anew(self) -> None:
        self._offset = 0


class LammpsLog(Growing):
    """The `log.lammps` of a run that goes on.

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

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._forget()

    def look(self) -> dict[str, Any] | None:
        """Steps done of those that the newest `run` command asks for; None where the log does not say it."""
        text, at = self.new(), 0
        for mark in _MARKS.finditer(text):
            self._rows(text[at : mark.start()])
            at = mark.end()
            self._mark(mark)
        self._rows(text[at:])
        if self._asked is None or self._first is None or self._last is None:
            return None
        whole = self._asked - self._first if self._upto else self._asked
        if whole <= 0:
            return None
        done = whole if self._ended else min(self._last - self._first, whole)
        return {
            "done": done,
            "of": whole,
            "unit": "steps",
            "share": done / whole,
            "from": f"log.lammps: run command {self._number} of the script",
        }

    def _mark(self, mark: re.Match[bytes]) -> None:
        if mark["steps"] is not None:
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


class CampaignJournal(Growing):
    """The journal of a campaign.

    Args:
        folder: The campaign's.
        most: Runs that it makes at most; None without a bound.
    """

    def __init__(self, folder: Path, most: int | None) -> None:
        super().__init__(folder, "events.jsonl")
        self._most = most
        self._ended: set[bytes] = set()

    def look(self) -> dict[str, Any]:
        """Runs that have ended, of those that it makes at most."""
        self._ended.update(_RESULT.findall(self.new()))
        done = len(self._ended)
        share = min(1.0, done / self._most) if self._most else None
        return {"done": done, "of": self._most, "unit": "runs", "share": share, "from": "its journal"}


class Progress:
    """How far the runs of a workspace are.

    Args:
        folder_of: The folder of a run or campaign.
        clock: Unix time, in seconds.
    """

    def __init__(self, folder_of: Callable[[Row], Path], clock: Callable[[], float]) -> None:
        self._folder_of, self._clock = folder_of, clock
        self._turn = threading.Lock()
        self._followed: OrderedDict[str, LammpsLog | CampaignJournal] = OrderedDict()

    def of(self, row: Row) -> dict[str, Any] | None:
        """How far a run or campaign is; None where it does not go on, or nothing is known.

        Returns:
            `done` and `of` in `unit`, `share` (0 to 1), each None where it is not known; `from`: what says it;
            `elapsed_s` and `expected_s`, in seconds of wall time.
        """
        if row.over:
            with self._turn:
                self._followed.pop(row.id, None)
            return None
        if row.state != "running":
            return None
        expected = float(row.request.get("expected_s") or 0.0) or None
        elapsed = self._elapsed_s(row)
        with self._turn:
            found = self._follower(row).look()
        if found is None:
            if elapsed is None or expected is None:
                return None
            share = min(1.0, elapsed / expected)
            words = "elapsed against expected wall time"
            found = {"done": elapsed, "of": expected, "unit": "s", "share": share, "from": words}
        return {**found, "elapsed_s": elapsed, "expected_s": expected}

    def _follower(self, row: Row) -> LammpsLog | CampaignJournal:
        found = self._followed.get(row.id)
        if found is None:
            folder = self._folder_of(row)
            most = row.request.get("runs")
            found = LammpsLog(folder) if row.kind == "run" else CampaignJournal(folder, most)
            self._followed[row.id] = found
            while len(self._followed) > MOST_FOLLOWED:
                self._followed.popitem(last=False)
        self._followed.move_to_end(row.id)
        return found

    def _elapsed_s(self, row: Row) -> float | None:
        """Since its worker has begun, by its folder; of a campaign since it was asked for. None: not known."""
        if row.kind == "campaign":
            return max(0.0, self._clock() - row.asked_at)
        try:
            began = (self._folder_of(row) / "manifest.json").stat().st_mtime
        except OSError:
            return None
        return max(0.0, self._clock() - began)
