"""events.jsonl: the append-only truth of a campaign.

One JSON object a line. A manifest is written before its run is submitted, a result before the next
suggestion. Everything else in the run directory can be rebuilt from it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from hpcagent.errors import StoreError
from hpcagent.store.files import refusing_clearly

__all__ = ["Journal", "read_events"]

# A crash of the machine (not of the process) can cost what was written since the last fsync.
SYNC_EVERY_S = 1.0


class Journal:
    """The one writer of an events.jsonl; open it with `Journal.open`, which repairs a torn last line."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._size = size
        self._synced_at = 0.0

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open (or begin) the journal at `path` for appending.

        A last line without its end (the writer was killed, the disk was full) is moved to
        `events.torn`, so that the next line starts on its own.

        Raises:
            StoreFull: The file cannot be opened for writing.
        """
        with refusing_clearly(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            size = os.fstat(descriptor).st_size
            whole = _whole_lines(descriptor, size)
            if whole < size:
                torn = os.pread(descriptor, size - whole, whole)
                with path.with_name("events.torn").open("ab") as aside:
                    aside.write(torn + b"\n")
                os.ftruncate(descriptor, whole)
        return cls(path, descriptor, whole)

    def append(self, events: Iterable[Mapping[str, Any] | bytes]) -> None:
        """Append events, all of them or none, in one write.

        Args:
            events: Plain data, or lines that are JSON already (without the newline).

        Raises:
            StoreFull: The disk refuses; the file is as it was before.
        """
        lines = b"".join((e if isinstance(e, bytes) else to_json(e)) + b"\n" for e in events)
        if not lines:
            return
        with refusing_clearly(self.path):
            try:
                written = 0
                while written < len(lines):
                    written += os.write(self._descriptor, lines[written:])
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self._size)
                raise
            self._size += len(lines)
            if time.monotonic() - self._synced_at > SYNC_EVERY_S:
                self.sync()

    def sync(self) -> None:
        """Ask the system to put everything on the disk."""
        with refusing_clearly(self.path):
            os.fsync(self._descriptor)
        self._synced_at = time.monotonic()

    def close(self) -> None:
        """Sync and close; harmless when called twice."""
        if self._descriptor < 0:
            return
        try:
            with contextlib.suppress(StoreError):
                self.sync()
        finally:
            os.close(self._descriptor)
            self._descriptor = -1


def _whole_lines(descriptor: int, size: int) -> int:
    """Length of the part of the file that ends with a newline."""
    end = size
    while end > 0:
        start = max(0, end - 65536)
        at = os.pread(descriptor, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Read the events of a journal, also while another process writes it.

    A torn last line is left out. A damaged line in the middle is skipped: what it said is found again in
    the run's own `result.json`.

    Raises:
        StoreError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    return
                try:
                    event = from_json(line)
                except ValueError:
                    event = {"event": "damaged"}
                if isinstance(event, dict):
                    yield event
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.", path=str(path)) from error
