"""A journal of which only a state counts: written anew, now and then, as what that state needs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcagent.contexts.lines import Held, Line, Lines, sealed, unsealed
from hpcagent.errors import Damaged, StoreFull
from hpcagent.store.files import open_plain, write_whole

__all__ = ["SPARE", "Register"]

SPARE = 1000
"""Lines beyond twice what the state needs, up to which a register grows."""
_COMPACTED = "compacted"
_FIRST_BYTES = 200


class Register:
    """Lines that make up a state, read by several processes and written by them in turn.

    The first line of one that was written anew says so, and for which time: by it a process that has read the old
    file knows that it was not cut, and begins its state anew. The file is replaced whole while its lock is held.

    Args:
        path: The file.
        begin: Makes the state empty.
        apply: Applies a line to the state.
        needed: The entries that make up the state, in order.
    """

    def __init__(
        self,
        path: Path,
        *,
        begin: Callable[[], None],
        apply: Callable[[Line], None],
        needed: Callable[[], Iterable[Mapping[str, Any]]],
    ) -> None:
        self._lines = Lines(path)
        self._begin, self._apply, self._needed = begin, apply, needed
        self._last = Line(0, {}, 0)
        self._times = 0
        self._look_at = SPARE

    @property
    def path(self) -> Path:
        """The file."""
        return self._lines.path

    def catch_up(self) -> None:
        """Apply what others have written.

        Raises:
            Damaged: A line is not as it was written, or the file was cut.
            StoreError: It cannot be read.
            FileNotFoundError: There is none.
        """
        last = self._last
        try:
            found = self._lines.read(after=last.n, end=last.end, seal=last.seal)[0]
        except Damaged:
            if not self._was_compacted():
                raise
            self._restart()
            found = self._lines.read(after=0, end=0)[0]
        self._take(found)

    def enter(
        self, entry: Mapping[str, Any], *, sync: bool = False, check: Callable[[], object] | None = None
    ) -> None:
        """Write an entry, behind what others have written, and apply it.

        Args:
            entry: Plain data; the time is added as `at`.
            sync: See `Held.append`.
            check: Called with the lock held and the state caught up; what it raises keeps the entry out.

        Raises:
            StoreFull: The disk refuses.
            Busy: Somebody else has held the lock all the while.
            Damaged: See `catch_up`.
        """
        with self._lines.held() as held:
            self._catch_up_held(held)
            if check is not None:
                check()
            line = held.append(self._last.n + 1, {"at": time.time(), **entry}, sync=sync)
            self._take([line])

    def open(self) -> None:
        """Begin the file where there is none, catch up, and compact it where that is worth it.

        Raises:
            As `enter`.
        """
        with self._lines.held() as held:
            self._catch_up_held(held)
            self._compact()

    def compact(self) -> None:
        """Write the file anew where it has grown far beyond what the state needs; a full disk leaves it as it is.

        Raises:
            Busy: See `enter`.
            Damaged: See `catch_up`.
        """
        if self._last.n >= self._look_at:
            with self._lines.held() as held:
                self._catch_up_held(held)
                self._compact()

    def _compact(self) -> None:
        """With the lock held; nothing may be written under this lock afterwards, as it is that of the old file."""
        if self._last.n < self._look_at:
            return
        kept = [{"do": _COMPACTED, "times": self._times + 1, "at": time.time()}, *self._needed()]
        worth = 2 * len(kept) + SPARE
        if self._last.n < worth:
            self._look_at = worth
            return
        self._look_at = 2 * self._last.n
        # Each line says for which time: one that was the same in the old file would be taken for it.
        lines = [sealed(n, {**entry, _COMPACTED: self._times + 1}) for n, entry in enumerate(kept, 1)]
        with contextlib.suppress(StoreFull):  # it costs room, nothing else
            write_whole(self.path, lines)
            self._restart()
            self._look_at = worth
            self.catch_up()

    def _catch_up_held(self, held: Held) -> None:
        last = self._last
        try:
            found = held.read(after=last.n, end=last.end, seal=last.seal)
        except Damaged:
            if not self._was_compacted():
                raise
            self._restart()
            found = held.read(after=0, end=0)
        self._take(found)

    def _was_compacted(self) -> bool:
        """Whether the file was written anew since it was read."""
        with contextlib.suppress(OSError, TypeError, ValueError):
            descriptor = open_plain(self.path, os.O_RDONLY)
            try:
                first = os.pread(descriptor, _FIRST_BYTES, 0).partition(b"\n")[0]
            finally:
                os.close(descriptor)
            said = unsealed(first)
            return said is not None and said.get("do") == _COMPACTED and int(said["times"]) > self._times
        return False

    def _restart(self) -> None:
        self._last = Line(0, {}, 0)
        self._look_at = SPARE
        self._begin()

    def _take(self, found: Iterable[Line]) -> None:
        for line in found:
            if line.n == 1 and line.data.get("do") == _COMPACTED:
                self._times = int(line.data["times"])
            else:
                self._apply(line)
            self._last = line
