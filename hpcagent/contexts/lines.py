"""A journal that several processes write: one JSON object a line, each with its number and a checksum.

A write takes the kernel's lock of the file for as long as it takes to read what others have added and to append
one line. Readers take no lock: they see whole lines only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from hpcagent.errors import BadInput, Busy, Damaged, StoreError
from hpcagent.shown import size_text
from hpcagent.store.files import make_folder, open_plain, refusing_clearly

__all__ = ["SYNC_EVERY_S", "WAIT_S", "Held", "Line", "Lines"]

# A crash of the machine (not of the process) can cost what was written since the last fsync.
SYNC_EVERY_S = 1.0
WAIT_S = 10.0
"""So long a write waits for the lock of another."""
SHARED_WAIT_S = 1.0
_FIRST_PAUSE_S = 20e-6
_LONGEST_PAUSE_S = 2e-3

# What stands at the end of each line: `,"crc":"89abcdef"}`.
_CRC = b',"crc":"'
_TAIL = len(_CRC) + 8 + len(b'"}')
_BLOCK = 1 << 20
LONGEST_LINE = 2 << 20
"""Bytes; what is longer is none of ours."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line that was read.

    Attributes:
        n: Its number, from 1; the numbers of a journal have no gap.
        data: What it says.
        end: Where it ends in the file, in bytes.
        seal: Its checksum.
    """

    n: int
    data: dict[str, Any]
    end: int
    seal: str = ""


def sealed(n: int, data: Mapping[str, Any]) -> bytes:
    """A line with its number and its checksum (CRC-32 of all before it)."""
    body = to_json({"n": n, **data})[:-1]
    return body + _CRC + f"{zlib.crc32(body):08x}".encode() + b'"}\n'


def unsealed(line: bytes) -> dict[str, Any] | None:
    """What a line says (without its newline); None where it is not as it was written."""
    body, tail = line[:-_TAIL], line[-_TAIL:]
    if tail != _CRC + f"{zlib.crc32(body):08x}".encode() + b'"}':
        return None
    try:
        data = from_json(body + b"}")
    except ValueError:
        return None
    if not isinstance(data, dict) or not isinstance(data.get("n"), int):
        return None
    return data


class Lines:
    """A journal by its path. It keeps no file open, so forks, renames and network file systems do no harm.

    Args:
        path: The file.
        first: The number of its first line.
    """

    def __init__(self, path: Path, *, first: int = 1) -> None:
        self.path = path
        self.first = first
        self._thread = threading.RLock()  # a lock of the kernel keeps processes apart, not threads
        self._synced_at = 0.0

    def read(self, *, after: int, end: int, seal: str = "") -> tuple[list[Line], int]:
        """The whole lines behind a place.

        Args:
            after: Number of the line that ends there.
            end: The place, in bytes.
            seal: The checksum of that line: it is looked whether it is still there.

        Returns:
            The lines, and the size that the file had.

        Raises:
            Damaged: A line is not as it was written, or the file is shorter than it was.
            StoreError: The file cannot be read.
            FileNotFoundError: There is none.
        """
        size = [end]
        found = list(self.each(after=after, end=end, seal=seal, size=size))
        return found, size[0]

    def each(
        self,
        *,
        after: int = 0,
        end: int = 0,
        seal: str = "",
        size: list[int] | None = None,
        held: bool = False,
    ) -> Iterator[Line]:
        """As `read`, one by one: the lines before a damaged one are yielded before the error.

        Args:
            after: See `read`.
            end: See `read`.
            seal: See `read`.
            size: Takes the size that the file had.
            held: The lock is held, so there is nobody to wait for.
        """
        try:
            with os.fdopen(open_plain(self.path, os.O_RDONLY), "rb") as file:
                descriptor = file.fileno()
                try:
                    for line in self._each(descriptor, after, end, size, seal):
                        after, end, seal = line.n, line.end, line.seal
                        yield line
                    return
                except Damaged:
                    if held:
                        raise
                    # Without a lock a network file system may show a line of another machine before its bytes.
                    with contextlib.suppress(OSError, StoreError):
                        self._wait(descriptor, time.monotonic() + SHARED_WAIT_S, SHARED_WAIT_S, fcntl.LOCK_SH)
                yield from self._each(descriptor, after, end, size, seal)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be read: {error.strerror or error}.", path=str(self.path)
            ) from error

    def _each(
        self, descriptor: int, after: int, end: int, told: list[int] | None = None, seal: str = ""
    ) -> Iterator[Line]:
        size = os.fstat(descriptor).st_size
        if told is not None:
            told[0] = size
        if size < end or (seal and _seal_at(descriptor, end) != seal):
            raise Damaged(
                f"{self.path} does not have the line {after} any more that was read before: it was cut or "
                "replaced. Open it anew, or put it back from a backup.",
                version=after,
                path=str(self.path),
            )
        rest = b""
        at = end
        while at < size:
            piece = os.pread(descriptor, min(_BLOCK, size - at), at)
            if not piece:
                break
            at += len(piece)
            *whole, rest = (rest + piece).split(b"\n")
            for text in whole:
                data = unsealed(text)
                if data is None or data["n"] != after + 1:
                    raise self._damaged(text, data, after + 1, end)
                after += 1
                end += len(text) + 1
                yield Line(after, data, end, text[-10:-2].decode())
            if len(rest) > LONGEST_LINE:
                raise self._damaged(rest, None, after + 1, end)

    def _damaged(self, text: bytes, data: dict[str, Any] | None, n: int, at: int) -> Damaged:
        if data is not None:
            what = f"it has the number {data['n']} where {n} should stand: lines are missing, doubled or moved"
        elif not text.strip():
            what = "it is empty"
        else:
            what = "its checksum does not fit, so it is not as it was written"
        return Damaged(
            f"{self.path}, line {n - self.first + 1} (byte {at}): {what}. What was written before it is good: "
            f"read it up to number {n - 1}, put the file back from a backup, or set the rest aside (`repair`).",
            version=n - 1,
            path=str(self.path),
            at=at,
        )

    @contextlib.contextmanager
    def held(self, *, make: bool = True, wait_s: float = WAIT_S) -> Iterator[Held]:
        """Hold the journal's lock: no other process or thread writes meanwhile. Keep it short.

        Args:
            make: Begin the journal where there is none.
            wait_s: So long it waits for others.

        Raises:
            Busy: Somebody else held it all the while.
            StoreFull: The file cannot be opened for writing.
            FileNotFoundError: There is none, and `make` is False.
        """
        if not self._thread.acquire(timeout=wait_s):
            raise self._busy(wait_s)
        try:
            descriptor = self._locked(make, wait_s)
            try:
                yield Held(self, descriptor)
            finally:
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)  # also of a copy that a fork has taken along
                os.close(descriptor)
        finally:
            self._thread.release()

    def _locked(self, make: bool, wait_s: float) -> int:
        deadline = time.monotonic() + wait_s
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if make else 0)
        while True:
            with refusing_clearly(self.path):
                try:
                    descriptor = open_plain(self.path, flags)
                except FileNotFoundError:
                    if not make:
                        break
                    make_folder(self.path.parent)
                    continue
            try:
                self._wait(descriptor, deadline, wait_s)
                # Between open and lock it may have been removed, and made anew by another.
                if _same(descriptor, self.path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        raise FileNotFoundError(str(self.path))

    def _wait(self, descriptor: int, deadline: float, wait_s: float, kind: int = fcntl.LOCK_EX) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise self._busy(wait_s) from None
            except OSError as error:
                raise StoreError(
                    f"{self.path.parent} is on a file system without file locks ({error.strerror}); contexts need "
                    "them: put the folder elsewhere.",
                    path=str(self.path),
                ) from error
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE_S)

    def _busy(self, wait_s: float) -> Busy:
        return Busy(
            f"{self.path} was locked by another process or thread for {wait_s:g} s. Nothing was written; try "
            f"again, or see who has it (`lsof {self.path}`).",
            path=str(self.path),
        )


def _same(descriptor: int, path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    held = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)


class Held:
    """A journal whose lock is held.

    Attributes:
        size: Bytes of it, once it was read to its end.
        found: Its mark when the lock was taken, see `mark`.
    """

    def __init__(self, lines: Lines, descriptor: int) -> None:
        self._lines = lines
        self._descriptor = descriptor
        self.found = self.mark()
        self.size = self.found[0]

    def mark(self) -> tuple[int, int]:
        """Its bytes, and when it was changed, in Unix nanoseconds: of one that nobody has written to, the same."""
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def read(self, *, after: int, end: int, seal: str = "") -> list[Line]:
        """As `Lines.read`; a last line without its end is set aside (in `NAME.torn`): its writer was killed.

        Raises:
            Damaged: A line is not as it was written.
            StoreFull: The disk refuses.
        """
        size = [end]
        found = list(self._lines._each(self._descriptor, after, end, size, seal))
        whole = found[-1].end if found else end
        if whole < size[0]:
            self._set_aside(whole, size[0], ".torn")
        self.size = whole
        return found

    def append(self, n: int, data: Mapping[str, Any], *, sync: bool = False) -> Line:
        """Append a line at the end that was read; all of it or nothing.

        Args:
            n: Its number.
            data: What it says.
            sync: Put it on the disk before this returns; else at most a second passes until then while others
                write.

        Raises:
            StoreFull: The disk refuses; the file is as it was before.
            BadInput: The line would be longer than any reader takes.
        """
        line = sealed(n, data)
        if len(line) > LONGEST_LINE:
            raise BadInput(
                f"{self._lines.path}: {size_text(len(line))} in one write; at most {size_text(LONGEST_LINE)} are "
                "allowed. Write it in parts.",
                bytes=len(line),
            )
        with refusing_clearly(self._lines.path):
            try:
                written = 0
                while written < len(line):
                    written += os.write(self._descriptor, line[written:])
                now = time.monotonic()
                if sync or now - self._lines._synced_at > SYNC_EVERY_S:
                    os.fsync(self._descriptor)  # which may be the first to say that a quota is used up
                    self._lines._synced_at = now
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self.size)
                raise
            self.size += len(line)
        return Line(n, {"n": n, **data}, self.size, line[-11:-3].decode())

    def cut(self, end: int) -> int:
        """Move all behind a place to `NAME.damaged`; the number of bytes moved.

        Raises:
            StoreFull: The disk refuses.
        """
        size = os.fstat(self._descriptor).st_size
        self._set_aside(end, size, ".damaged")
        self.size = end
        return size - end

    def _set_aside(self, start: int, end: int, ending: str) -> None:
        path = self._lines.path.with_suffix(ending)
        with refusing_clearly(path):
            with os.fdopen(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as aside:
                at = start
                while at < end:
                    piece = os.pread(self._descriptor, min(_BLOCK, end - at), at)
                    if not piece:
                        break
                    aside.write(piece)
                    at += len(piece)
                aside.write(b"\n")
                aside.flush()
                os.fsync(aside.fileno())
            os.ftruncate(self._descriptor, start)


def _seal_at(descriptor: int, end: int) -> str:
    if end < _TAIL + 1:
        return ""
    tail = os.pread(descriptor, _TAIL + 1, end - _TAIL - 1)
    return tail[len(_CRC) : len(_CRC) + 8].decode("ascii", "replace") if tail.startswith(_CRC) else ""


def seal_of(path: Path, end: int) -> str:
    """The checksum of the line that ends at a place of a file; empty where none ends there."""
    try:
        descriptor = open_plain(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return _seal_at(descriptor, end)
    finally:
        os.close(descriptor)
