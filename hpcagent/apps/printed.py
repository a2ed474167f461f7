"""What programs print and write, without ever taking more disk or memory than is allowed. Standard library only.

A program prints into a pipe. A thread copies that into the file as it comes, up to a cap; from there on it keeps
only the end in memory and writes it behind what is there when the program has ended, with a line in between that
says how much is missing. What a program writes into files of its own belongs to it; here those files are read,
their end without what is before it, or whole where they are not too large for that.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from hpcagent.errors import AppFailed
from hpcagent.regular import open_regular

__all__ = [
    "MAX_OUTPUT_MB",
    "MAX_READ_MB",
    "Printed",
    "allowed",
    "bytes_of",
    "number_or_nan",
    "read_bytes",
    "read_head",
    "read_tail",
    "read_text",
    "reading",
    "too_large",
]

MAX_OUTPUT_MB = 64.0
"""Of what a program of a run prints, so much is kept, in MB of 10^6 bytes, where the site does not say."""

MAX_READ_MB = 1000.0
"""The largest text file of a program that is read whole, in MB of 10^6 bytes, where the site does not say."""

_TAIL = 1_000_000
_PIECE = 1 << 16


class Printed:
    """Copies what a program prints from a pipe into a file, of which it bounds the size.

    Give `end` to the program as its output, call `begin` once it is started (in the parent the end is closed then)
    and leave the context when it has ended: what is in the pipe then is taken, and nobody who still holds the
    other end is waited for.

    Args:
        file: Where it goes; opened for writing, unbuffered.
        most: Bytes of it that are kept, in all.
        said: What the line in the place of what is left out names as the setting.

    Attributes:
        end: File descriptor for the program.
        left_out: Bytes that were not kept; known when the context was left.
        total: Bytes that were printed.
    """

    def __init__(self, file: IO[bytes], *, most: int, said: str = "max_output_mb") -> None:
        self._file, self._said = file, said
        self._tail_bytes = min(_TAIL, most // 2)
        self._head_left = most - self._tail_bytes
        self._tail = bytearray()
        self._error: OSError | None = None
        self._thread: threading.Thread | None = None
        self.total = self.left_out = 0
        self._source, self.end = os.pipe()
        self._woken, self._wake = os.pipe()

    def __enter__(self) -> Printed:
        return self

    def begin(self) -> None:
        """The program has been started: take what it prints, in a thread."""
        os.close(self.end)
        self.end = -1
        self._thread = threading.Thread(target=self._follow, name="printed", daemon=True)
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._thread is not None:
                os.write(self._wake, b"e")
                self._thread.join()
                self._write_end()
        finally:
            for descriptor in (self._source, self.end, self._woken, self._wake):
                if descriptor >= 0:
                    os.close(descriptor)
        if self._error is not None and kind is None:
            raise self._error

    def _follow(self) -> None:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        ending_after: int | None = None  # bytes that were in the pipe when the program had ended
        while True:
            # After the end only what is in the pipe is read: who was left behind may hold it, and print, for ever.
            if ending_after is None and self._woken in {descriptor for descriptor, _ in poll.poll()}:
                os.set_blocking(self._source, False)
                ending_after = _capacity(self._source)
            try:
                piece = os.read(self._source, _PIECE)
            except BlockingIOError:
                return
            if not piece:
                return
            self._take(piece)
            if ending_after is not None:
                ending_after -= len(piece)
                if ending_after <= 0:
                    return

    def _take(self, piece: bytes) -> None:
        self.total += len(piece)
        if self._head_left:
            head, piece = piece[: self._head_left], piece[self._head_left :]
            self._head_left -= len(head)
            self._write(head)
        if piece:
            self._tail += piece
            if len(self._tail) > self._tail_bytes + 16 * _PIECE:
                self._shorten()

    def _shorten(self) -> None:
        surplus = len(self._tail) - self._tail_bytes
        if surplus > 0:
            del self._tail[:surplus]
            self.left_out += surplus

    def _write_end(self) -> None:
        if not self._tail:
            return
        self._shorten()
        if self.left_out:
            line = f"\n[... {self.left_out:,} bytes are left out here: {self._said} ...]\n"
            self._write(line.encode())
        self._write(bytes(self._tail))

    def _write(self, piece: bytes) -> None:
        """Write. After a failure the program still gets rid of what it prints; the failure is told in the end."""
        if self._error is not None:
            return
        try:
            while piece:
                written = self._file.write(piece)
                piece = piece[written:]
        except OSError as error:
            self._error = OSError(error.errno or errno.EIO, error.strerror or str(error), self._file.name)


def _capacity(pipe: int) -> int:
    """Bytes that a pipe can hold."""
    import fcntl

    try:
        return fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    except (AttributeError, OSError):  # not Linux
        return 1 << 16


# ---- reading


def bytes_of(site: Mapping[str, Any], key: str, default_mb: float) -> int:
    """A setting of the site in MB, as bytes."""
    given = site.get(key)
    return int(1e6 * (default_mb if given is None else float(given)))


_most: ContextVar[int] = ContextVar("most", default=int(1e6 * MAX_READ_MB))


@contextmanager
def reading(site: Mapping[str, Any]) -> Iterator[None]:
    """Inside, files may be as large as the site of the run says (`max_read_mb`)."""
    token = _most.set(bytes_of(site, "max_read_mb", MAX_READ_MB))
    try:
        yield
    finally:
        _most.reset(token)


def allowed() -> int:
    """Bytes that may be read into memory at once."""
    return _most.get()


def read_head(path: Path, most: int = 4000) -> str:
    """The first `most` bytes of a file as text; empty if there is no such file."""
    try:
        with open_regular(path) as file:
            return file.read(most).decode(errors="replace")
    except FileNotFoundError:
        return ""


def read_tail(path: Path, most: int = 4000) -> str:
    """The last `most` bytes of a file as text; empty if there is no such file."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            return file.read(most).decode(errors="replace")
    except FileNotFoundError:
        return ""


def read_bytes(path: Path) -> bytes:
    """The whole of a file that a program wrote, unless it is larger than the site allows.

    Args:
        path: The file.

    Raises:
        AppFailed: `FileTooLarge`; the file stays where it is.
        OSError: It cannot be read, or is no regular file: a pipe would be waited for.
    """
    most = allowed()
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        # Read no further than was looked: somebody may be writing.
        text = b"" if size > most else file.read(size)
    if size <= most:
        return text
    raise too_large(path, size)


def too_large(path: Path, size: int, *, unpacked: bool = False, most: int | None = None) -> AppFailed:
    """The failure of a file of which more than is allowed would be read into memory.

    Args:
        path: The file.
        size: Its bytes.
        unpacked: They are those that came out of a packed one so far.
        most: Bytes that are allowed, if not those of the site.
    """
    limit = "(max_read_mb of the site profile)" if most is None else "of such a file"
    return AppFailed(
        f"{path.name} has {'at least ' * unpacked}{size / 1e6:.0f} MB{' unpacked' * unpacked}, more than the "
        f"{(allowed() if most is None else most) / 1e6:g} MB that are read into memory {limit}. The file is kept.",
        kind="infrastructure",
        name="FileTooLarge",
        log_tail=read_tail(path),
        repair="let the program write less often, or raise max_read_mb where the nodes have several times that in "
        "memory for each run",
    )


def read_text(path: Path) -> str:
    """As `read_bytes`, as text: what is not UTF-8 is replaced, and every newline is `\\n`."""
    text = read_bytes(path).decode(errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def number_or_nan(word: str) -> float:
    """A number as a program printed it; NaN where it is none: Fortran fills a field that is too narrow with stars.

    Example:
        >>> number_or_nan("-10.6"), number_or_nan("****")
        (-10.6, nan)
    """
    try:
        return float(word)
    except ValueError:
        return float("nan")
