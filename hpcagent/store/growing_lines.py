"""Files that another program appends to: each look reads what is new since the last."""

from __future__ import annotations

import os
from pathlib import Path

from hpcagent.regular import open_regular

__all__ = ["GrowingLines"]

MOST_AT_ONCE = 4 << 20
"""Bytes that one look reads; what is beyond comes with the next."""


class GrowingLines:
    """A file that grows, of which whole lines are read, each once.

    Args:
        folder: Where it is.
        name: Its name there; a link in its place is not followed.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._offset = self._inode = 0

    def new(self) -> bytes:
        """Whole lines that were written since the last look; empty where there is no such file."""
        try:
            file = open_regular(self._folder / self._name, follow=False)
        except OSError:
            return b""
        with file:
            status = os.fstat(file.fileno())
            if status.st_size < self._offset or status.st_ino != self._inode:  # begun anew by another attempt
                self._begin_anew()
                self._inode = status.st_ino
            found = os.pread(file.fileno(), MOST_AT_ONCE, self._offset)
        end = found.rfind(b"\n") + 1
        self._offset += end
        return found[:end]

    def _begin_anew(self) -> None:
        self._offset = 0
