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
from typing import Any, BinaryIO

from pydantic_core import from_json, to_json

from hpcagent.errors import RunDirGone, StoreError
from hpcagent.store.files import open_plain, refusing_clearly

__all__ = ["Journal", "event_in", "read_events"]

# A crash of the machine (not of the process) can cost what was written since the last fsync.
SYNC_EVERY_S = 1.0

# A file system may take a millisecond for a look at the journal; it is written hundreds of times a second.
CHECK_EVERY_S = 0.1

# So often is the folder beside the journal looked at while nothing is written.
LOOK_EVERY_S = 30.0

# What a reader takes into memory for one line, in bytes; a batch of 100 000 manifests has less.
LONGEST_EVENT = 1 << 28


class Journal:
    """The one writer of an events.jsonl; open it with `Journal.open`, which repairs a torn last line.

    Before a write it looks whether the path still leads to this file, as it was left: one `stat`, whatever the
    number of events and writes, every CHECK_EVERY_S at most.

    Attributes:
        path: The file.
        torn: Bytes of a last line without its end that were set aside when it was opened.
    """

    def __init__(
        self, path: Path, descriptor: int, size: int, *, torn: int = 0, beside: Path | None = None
    ) -> None:
        self.path = path
        self.torn = torn
        self._descriptor = descriptor
        self._size = size
        self._synced_at = 0.0
        self._itself = _identity(os.fstat(descriptor))
        self._beside = beside
        self._beside_itself = None if beside is None else _identity(beside.stat())
        self._looked_at = self._checked_at = 0.0

    @classmethod
    def open(cls, path: Path, *, beside: Path | None = None) -> Journal:
        """Open (or begin) the journal at `path` for appending.

        A last line without its end (the writer was killed, the disk was full) is moved to
        `events.torn`, so that the next line starts on its own.

        Args:
            path: The file.
            beside: A folder that has to stay where it is as well.

        Raises:
            StoreFull: The file cannot be opened for writing.
        """
        with refusing_clearly(path):
            descriptor = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                size = os.fstat(descriptor).st_size
                whole = _whole_lines(descriptor, size)
                if whole < size and _ends_an_event(descriptor, whole, size):
                    whole = size = size + os.write(descriptor, b"\n")
                elif whole < size:
                    _set_aside(descriptor, whole, size, path.with_name("events.torn"))
                    os.ftruncate(descriptor, whole)
                return cls(path, descriptor, whole, torn=size - whole, beside=beside)
            except BaseException:
                os.close(descriptor)
                raise

    def append(self, events: Iterable[Mapping[str, Any] | bytes]) -> None:
        """Append events, all of them or none, in one write.

        Args:
            events: Plain data, or lines that are JSON already (without the newline).

        Raises:
            StoreFull: The disk refuses; the file is as it was before.
            RunDirGone: See `check`; nothing of it is written.
        """
        lines = b"".join((e if isinstance(e, bytes) else to_json(e)) + b"\n" for e in events)
        if not lines:
            return
        now = time.monotonic()
        if now - self._checked_at > CHECK_EVERY_S:
            self.check(beside=now - self._looked_at > SYNC_EVERY_S)
        with refusing_clearly(self.path):
            before, written = self._size, 0
            try:
                while written < len(lines):
                    written += os.write(self._descriptor, lines[written:])
                self._size += len(lines)
                if time.monotonic() - self._synced_at > SYNC_EVERY_S:
                    self.sync()  # a file system on a network may say only now that a quota is used up
            except (OSError, StoreError):
                self._size = before  # where it cannot be cut, the next look refuses the file
                with contextlib.suppress(OSError):
                    if os.fstat(self._descriptor).st_size == before + written:  # else others have written, too
                        os.ftruncate(self._descriptor, before)
                raise

    def look(self) -> None:
        """Do as `check`, where that was not done for a while: for a coordinator that has nothing to write.

        Raises:
            RunDirGone: See `check`.
        """
        if time.monotonic() - self._looked_at > LOOK_EVERY_S:
            self.check()

    def check(self, *, beside: bool = True) -> None:
        """See that what is written here is found where the campaign is looked for.

        Args:
            beside: Look at the folder beside it as well.

        Raises:
            RunDirGone: The file, or the folder beside it, was deleted, moved or replaced, or somebody else has
                written or cut the file.
        """
        self._checked_at = time.monotonic()
        found = _found(self.path)
        if found is None or _identity(found) != self._itself:
            raise self._gone(self.path, found is not None, _now_at(self._descriptor))
        if found.st_size != self._size:
            what = (
                "was cut"
                if found.st_size < self._size
                else "was written by another process, which should not be: see which coordinators run"
            )
            raise RunDirGone(
                f"{self.path} {what} while the campaign ran: it has {found.st_size} bytes where "
                f"{self._size} were written. The campaign was stopped, nothing was recorded after that; "
                f"`hpcagent resume {self.path.parent}` goes on with what is there.",
                path=str(self.path),
            )
        if beside and self._beside is not None:
            self._looked_at = time.monotonic()
            there = _found(self._beside)
            if there is None or _identity(there) != self._beside_itself:
                raise self._gone(self._beside, there is not None, "")

    def _gone(self, path: Path, replaced: bool, now_at: str) -> RunDirGone:
        what = "was replaced by another" if replaced else "is gone"
        then = f"it is now {now_at}" if now_at else "it was deleted or moved"
        folder = Path(now_at).parent if now_at else self.path.parent
        return RunDirGone(
            f"{path} {what} while the campaign ran ({then}). The campaign was stopped, its jobs were cancelled, "
            f"and what ended since is not recorded; where it still is, `hpcagent resume {folder}` goes on.",
            path=str(path),
        )

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


def _ends_an_event(descriptor: int, start: int, end: int) -> bool:
    """Whether there is a whole event of which only the newline is missing, as some editors and copies leave it."""
    return end - start < LONGEST_EVENT and event_in(os.pread(descriptor, end - start, start)) is not None


def _set_aside(descriptor: int, start: int, end: int, path: Path) -> None:
    """Add a part of an open file, which may be large, to another file as a line of its own."""
    with os.fdopen(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as aside:
        while start < end:
            piece = os.pread(descriptor, min(end - start, 1 << 24), start)
            if not piece:
                break
            aside.write(piece)
            start += len(piece)
        aside.write(b"\n")


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _found(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _now_at(descriptor: int) -> str:
    """Where an open file has been moved to (Linux: proc(5), /proc/PID/fd); empty where that is not known."""
    try:
        where = str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return ""
    return "" if where.endswith(" (deleted)") else where


def event_in(line: bytes) -> dict[str, Any] | None:
    """The event of a line, or None where there is none to be read."""
    try:
        event = from_json(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Read the events of a journal, also while another process writes it: one for each line.

    A torn last line is left out. For a line that cannot be read there is an event `damaged`, for one that stands
    there twice `doubled`, for one without anything `blank`.

    Raises:
        StoreError: The file cannot be read.
    """
    seen: set[int] = set()
    try:
        with path.open("rb") as file:
            for number, line in enumerate(_lines(file)):
                text = line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line  # an editor's byte order mark
                event = event_in(text)
                if event is None:
                    if not line.endswith(b"\n") and len(line) < LONGEST_EVENT:
                        return
                    event = {"event": "damaged" if text.strip() else "blank"}
                elif "at" in event:  # no two events have the same time to the microsecond, and the same words
                    mark = hash(text.strip())
                    event = {"event": "doubled"} if mark in seen else event
                    seen.add(mark)
                yield event
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.", path=str(path)) from error


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; of one that is longer than any of ours only the beginning."""
    while line := file.readline(LONGEST_EVENT):
        yield line
        while len(line) == LONGEST_EVENT and not line.endswith(b"\n"):
            line = file.readline(LONGEST_EVENT)
