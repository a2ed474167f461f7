"""The journal of events: append-only files of some thousand events each, of which the oldest are dropped."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from hpcagent.contexts.bell import Bell
from hpcagent.contexts.lines import Held, Line, Lines, unsealed
from hpcagent.errors import BadInput, Damaged, StoreError
from hpcagent.store.files import open_plain, refusing_clearly

__all__ = ["EventLog"]

T = TypeVar("T")
_PART = 10
_PLACES = 1000


class EventLog:
    """Numbered lines in a folder, written and read by several processes.

    Args:
        folder: The folder.
        keep: Lines that are kept at least, while they are not older than `keep_s`.
        keep_s: Lines older than this are dropped, in seconds.

    Raises:
        BadInput: A limit makes no sense.
    """

    def __init__(self, folder: Path, *, keep: int, keep_s: float) -> None:
        if not keep >= _PART:
            raise BadInput(f"keep={keep} events; at least {_PART} are kept.", value=keep)
        if not keep_s > 0:
            raise BadInput(f"keep_s={keep_s} s; a positive time is kept.", value=keep_s)
        self.folder = folder
        self.bell = Bell(folder, folder / ".listening")
        self._keep = keep
        self._keep_s = keep_s
        self._each = min(max(keep // _PART, 1), 5000)
        self._lock = threading.RLock()
        self._highest = 0
        # The file that is written: number of its first line, number of the last one read, where that ends.
        self._first = self._last = self._end = 0
        # The file that was written last here, and its mark then, while it is the newest.
        self._left: tuple[int, tuple[int, int]] | None = None
        self._lines: dict[int, Lines] = {}
        # Where lines end that were read last: number -> (file, byte).
        self._places: dict[int, tuple[int, int]] = {}

    def append(self, data: Mapping[str, Any], *, sync: bool = False) -> int:
        """Append a line.

        Returns:
            Its number.

        Raises:
            StoreFull: The disk refuses.
            Busy: Another process has held the lock all the while.
            Damaged: A line of the file that is written is not as it was written.
        """
        with self._lock:
            n = self._with_newest(lambda held: self._append(held, data, sync))
        self.bell.ring()
        return n

    def last(self) -> int:
        """The number of the last line; 0 where there is none."""
        with self._lock:
            firsts = self._firsts()
            if not firsts:
                return 0
            self._begin(firsts[-1])
            with contextlib.suppress(FileNotFoundError):
                self._take(self._file(self._first).read(after=self._last, end=self._end)[0])
            return self._last

    def has(self, n: int) -> bool:
        """Whether a line of this number was written, also if it was dropped since."""
        if n <= self._highest:
            return True
        with self._lock:
            self._highest = max(self._highest, self.last())
            return n <= self._highest

    def within(self, n: int) -> int:
        """A number, or that of the last line where there is none of this number: a crash of the machine took it.

        Raises:
            Busy: Another process has held the lock all the while.
            Damaged: See `append`.
        """
        if self.has(n):
            return n
        with self._lock:  # with the file's lock what another machine has just written is seen
            return min(n, self._with_newest(lambda held: self._last))

    def read(self, after: int, most: int) -> tuple[list[Line], int]:
        """The lines behind a number.

        Args:
            after: The number.
            most: So many at most.

        Returns:
            The lines, and how many that should be before them were dropped.

        Raises:
            Damaged: A line is not as it was written.
            StoreError: A file cannot be read.
        """
        with self._lock:
            for _ in range(5):
                with contextlib.suppress(FileNotFoundError):  # dropped this moment: look again which are there
                    found, missed = self._read(after, most)
                    dropped = after + missed if missed else 0
                    self._highest = max(self._highest, dropped, *(line.n for line in found[-1:]))
                    return found, missed
            raise StoreError(f"{self.folder} cannot be read: its files come and go.", path=str(self.folder))

    def _read(self, after: int, most: int) -> tuple[list[Line], int]:
        firsts = self._firsts()
        if not firsts:
            return [], 0
        missed = max(firsts[0] - 1 - after, 0)
        after += missed
        found: list[Line] = []
        # A file ends where the next one begins.
        for first, follows in zip(firsts, [*firsts[1:], None], strict=True):
            if follows is not None and follows <= after + 1:
                continue
            place = self._places.get(after)
            start, at = (place[1], after) if place is not None and place[0] == first else (0, first - 1)
            end = start
            for line in self._file(first).each(after=at, end=start):
                at, end = line.n, line.end
                if line.n > after:
                    found.append(line)
                    after = line.n
                    if len(found) == most:
                        break
            self._remember(at, first, end)
            if len(found) == most:
                break
            if follows is not None and after < follows - 1:  # cut: what comes next is told at the next look
                if found:
                    break
                missed += follows - 1 - after
                after = follows - 1
        return found, missed

    def _remember(self, n: int, first: int, end: int) -> None:
        self._places[n] = (first, end)
        while len(self._places) > _PLACES:
            self._places.pop(next(iter(self._places)))

    def repair(self) -> int:
        """Move what is damaged, and what follows it in the same file, to a file `NUMBER.damaged`; others stay.

        Returns:
            The bytes that were moved; 0: nothing is damaged.

        Raises:
            StoreFull: The disk refuses.
        """
        moved = 0
        with self._lock:
            for first in self._firsts():
                with self._file(first).held(make=False) as held:
                    try:
                        for _ in self._file(first).each(after=first - 1, held=True):
                            pass
                        continue
                    except Damaged as damaged:
                        place = int(damaged.details["at"])
                    highest = max([first, *_numbers(self._path(first))])
                    moved += held.cut(place)
                    if first == self._firsts()[-1]:
                        self._begin_file(highest + 1)  # no number is given twice
            self._first, self._left = 0, None
            self._places.clear()
        return moved

    def _firsts(self) -> list[int]:
        try:
            names = [entry.name for entry in os.scandir(self.folder)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be read: {error.strerror}.", path=str(self.folder)) from error
        stems = (name.removesuffix(".jsonl") for name in names if name.endswith(".jsonl"))
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def _path(self, first: int) -> Path:
        return self.folder / f"{first:012d}.jsonl"

    def _file(self, first: int) -> Lines:
        return self._lines.setdefault(first, Lines(self._path(first), first=first))

    def _begin(self, first: int) -> None:
        if first != self._first:
            self._first, self._last, self._end = first, first - 1, 0

    def _take(self, found: list[Line]) -> None:
        if found:
            self._last, self._end = found[-1].n, found[-1].end

    def _with_newest(self, write: Callable[[Held], T]) -> T:
        """Call a function with the newest file, locked and read to its end.

        A file is begun by whoever has just written to the one before, or cut it, with its lock held: while what
        was written last here is as it was left, there is no newer one, and the folder is not listed.
        """
        if self._left is not None and self._left[0] == self._first:
            with contextlib.suppress(FileNotFoundError), self._file(self._first).held(make=False) as held:
                if held.found == self._left[1]:
                    return write(held)
        while True:
            firsts = self._firsts()
            self._begin(firsts[-1] if firsts else 1)
            try:
                with self._file(self._first).held(make=not firsts) as held:
                    # Another may have begun the next one while this one was waited for.
                    if self._firsts()[-1] == self._first:
                        self._take(held.read(after=self._last, end=self._end))
                        return write(held)
            except FileNotFoundError:
                continue  # dropped this moment: look again

    def _append(self, held: Held, data: Mapping[str, Any], sync: bool) -> int:
        self._left = None
        line = held.append(self._last + 1, data, sync=sync)
        self._take([line])
        if self._last - self._first + 1 >= self._each:
            self._begin_file(self._last + 1)
            self._drop()
        else:
            self._left = self._first, held.mark()
        return line.n

    def _begin_file(self, first: int) -> None:
        path = self._path(first)
        with refusing_clearly(path):
            os.close(open_plain(path, os.O_WRONLY | os.O_CREAT))

    def _drop(self) -> None:
        """Remove files that nobody is promised any more; the one that was begun last stays."""
        firsts = self._firsts()
        for first, follows in pairwise(firsts):
            path = self._path(first)
            try:
                old = time.time() - path.stat().st_mtime > self._keep_s
            except OSError:
                continue
            if not old and self._last - follows + 1 < self._keep:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            self._lines.pop(first, None)


def _numbers(path: Path) -> list[int]:
    """The numbers of all lines of a file that are as they were written, also behind a damaged one."""
    return [data["n"] for text in path.read_bytes().split(b"\n") if (data := unsealed(text)) is not None]
