"""What runs say of themselves without a directory of their own: one file for each worker, which only grows.

`work/records/PID-RANDOM.jsonl` has a line when a run begins, with its manifest, and one when it has ended,
with its result:

    {"event":"begun","execution_id":"...","at":1790000000.0,"attempt":1,"manifest":{...}}
    {"event":"ended","execution_id":"...","result":{...}}

A run that writes a file has a directory, and there `manifest.json` and `result.json`; its result is there only.
Standard library only: a worker imports this.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "FOLDER",
    "Begun",
    "Ended",
    "OnRecord",
    "RunRecords",
    "close_record_file",
    "close_record_files",
    "open_records",
    "record_file",
]

FOLDER = "records"
"""Beside the directories of the runs."""

_BEGUN, _ENDED = (b'{"event":"%s","execution_id":"' % event for event in (b"begun", b"ended"))

# An open file is closed after so long, at the next line: what a node wrote to a network file system is seen by
# others, and outlives the node, once it is closed. Runs longer than this are seen at once.
_CLOSED_EVERY_S = 1.0

_MOST_OPEN = 8

# A run may close what is not its own, and a file system may lose what is open: then it is opened anew.
_GONE_BAD = (errno.EBADF, errno.ESTALE, errno.EIO)

# Files of runs get the lowest free number: they do not come by that of a file which a run has closed from here on.
_FIRST_DESCRIPTOR = 500


class _RecordFile:
    """The file of this process in one folder."""

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        self._folder = folder
        self._lock = threading.Lock()
        self._descriptor = -1
        self._at = 0
        self._closed_at = 0.0
        self._torn = False
        self._given_up = False

    def begun(self, manifest: Mapping[str, Any], attempt: int) -> None:
        """Write down that a run begins.

        Raises:
            OSError: The disk refuses.
        """
        name = manifest["execution_id"]
        self._write(
            {"event": "begun", "execution_id": name, "at": time.time(), "attempt": attempt, "manifest": manifest}
        )

    def ended(self, execution_id: str, result: Mapping[str, Any]) -> None:
        """Write down how a run has ended.

        Raises:
            OSError: The disk refuses.
        """
        self._write({"event": "ended", "execution_id": execution_id, "result": result})

    def close(self) -> None:
        """Close the file for good: a line that a run has still to write opens it for that line only."""
        with self._lock:
            self._given_up = True
            self._close()

    def _write(self, said: Mapping[str, Any]) -> None:
        line = json.dumps(said, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            try:
                self._append(line)
            except OSError as error:
                if error.errno not in _GONE_BAD:
                    raise self._named(error) from error
                try:  # a line that is there twice is one
                    with contextlib.suppress(OSError):
                        self._close()
                    self._append(line)
                except OSError as again:
                    raise self._named(again) from again
            finally:
                if self._given_up and self._descriptor >= 0:  # the line failed; nobody would close it later
                    with contextlib.suppress(OSError):
                        self._close()

    def _append(self, line: bytes) -> None:
        if not self._ours():
            self._open()
        if self._torn:  # what a full disk has cut off ends here
            line = b"\n" + line
        self._torn = True
        written = os.write(self._descriptor, line)
        self._at = os.lseek(self._descriptor, 0, os.SEEK_CUR)  # after a part of a line, too: still ours
        if written != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        self._torn = False
        now = time.monotonic()
        if self._given_up or now - self._closed_at >= _CLOSED_EVERY_S:
            self._close()
            self._closed_at = now

    def _named(self, error: OSError) -> OSError:
        return error if error.filename else OSError(error.errno, error.strerror or str(error), self._path)

    def _ours(self) -> bool:
        """Whether the file is open: a run may have closed it, and opened one of its own under the same number.

        By the position, which is known here: for `fstat` a network file system may be asked, and written to first.
        """
        if self._descriptor < 0:
            return False
        try:
            return os.lseek(self._descriptor, 0, os.SEEK_CUR) == self._at
        except OSError:  # closed, or a pipe or socket now
            return False

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            low = os.open(self._path, flags, 0o664)
        except FileNotFoundError:
            Path(self._folder).mkdir(0o775, parents=True, exist_ok=True)
            low = os.open(self._path, flags, 0o664)
        try:
            self._descriptor = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
        except OSError:  # so few are allowed
            self._descriptor = low
        else:
            os.close(low)
        self._at = os.lseek(self._descriptor, 0, os.SEEK_CUR)

    def _close(self) -> None:
        """Close it, if it is ours.

        Raises:
            OSError: What was written may not have arrived.
        """
        ours, descriptor = self._ours(), self._descriptor
        self._descriptor = -1
        if ours:
            os.close(descriptor)


_files: dict[tuple[int, str], _RecordFile] = {}
_files_lock = threading.Lock()
_over: set[str] = set()
"""Folders whose campaign has ended in this process: what still runs in its threads keeps no file open."""


def open_records(folder: str) -> None:
    """A campaign begins with this folder of records."""
    _over.discard(folder)


def record_file(folder: str) -> _RecordFile:
    """The file of this process in a folder of records."""
    key = os.getpid(), folder  # a forked process has its own
    found = _files.get(key)
    if found is None:
        with _files_lock:
            if folder in _over:
                late = _RecordFile(folder)
                late.close()
                return late
            found = _files.setdefault(key, _RecordFile(folder))
            while len(_files) > _MOST_OPEN:
                _files.pop(next(iter(_files))).close()
    return found


def close_record_file(folder: str) -> None:
    """Close the file of this process in a folder of records, if it has one: its campaign has ended.

    A run that goes on in a thread all the same opens one for each line, until `open_records`.
    """
    with _files_lock:
        _over.add(folder)
        found = _files.pop((os.getpid(), folder), None)
    if found is not None:
        found.close()


def close_record_files() -> None:
    """Close all files of this process: a site has closed. Runs of another site open their own again."""
    mine = os.getpid()
    for key in [key for key in list(_files) if key[0] == mine]:
        found = _files.pop(key, None)
        if found is not None:
            with contextlib.suppress(OSError):  # nobody waits for these lines any more
                found.close()


@dataclass(frozen=True, slots=True)
class OnRecord:
    """What the records have of one run.

    Attributes:
        manifest: Of its last beginning, as plain data; None where that line is damaged.
        result: Of its last end, as plain data; None where it has not ended, or that line is damaged.
        wrong: What is wrong with the line of its last end: a sentence, or empty.
    """

    manifest: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    wrong: str = ""


class RunRecords:
    """The records of a campaign's runs, as they were when this was made.

    Args:
        work: Folder of the runs.
    """

    def __init__(self, work: Path) -> None:
        self._sizes = dict(_sizes(work / FOLDER))

    def begun(self) -> frozenset[str]:
        """Execution ids of all runs that have begun."""
        return frozenset(_id(line, _BEGUN) for _, line in self._lines() if line.startswith(_BEGUN))

    def of(self, wanted: Callable[[str], bool]) -> dict[str, OnRecord]:
        """What is on record of the runs whose execution ids are wanted.

        Of several attempts at a run the last one counts, by the times in their lines.
        """
        lines: dict[str, tuple[float, Path, bytes]] = {}
        ends: dict[str, list[tuple[Path, bytes]]] = {}
        for path, line in self._lines():
            if line.startswith(_BEGUN):
                name = _id(line, _BEGUN)
                if wanted(name):
                    at = _begun_at(line)
                    if name not in lines or at >= lines[name][0]:
                        lines[name] = at, path, line
            elif line.startswith(_ENDED):
                name = _id(line, _ENDED)
                if wanted(name):
                    ends.setdefault(name, []).append((path, line))
        return {name: _on_record(lines.get(name), ends.get(name, [])) for name in {*lines, *ends}}

    def _lines(self) -> Iterator[tuple[Path, bytes]]:
        for path, size in self._sizes.items():
            with contextlib.suppress(OSError), _opened(path) as file:
                for line in file:
                    size -= len(line)
                    if size < 0:  # written after we looked
                        break
                    yield path, line


class _Grown:
    """What was written into the records since the last time.

    Args:
        work: Folder of the runs.
    """

    def __init__(self, work: Path) -> None:
        self._folder = work / FOLDER
        self._read: dict[Path, int] = {}

    def lines(self) -> Iterator[tuple[Path, bytes]]:
        """Whole lines that no earlier call has given, each with its file."""
        for path, size in _sizes(self._folder):
            before = self._read.get(path, 0)
            if size <= before:
                continue
            with contextlib.suppress(OSError), _opened(path) as file:
                file.seek(before)
                for line in file:
                    if not line.endswith(b"\n"):  # the rest comes
                        break
                    before += len(line)
                    self._read[path] = before
                    yield path, line


class Begun:
    """Which runs have begun and not ended, followed as their records grow.

    Args:
        work: Folder of the runs.
    """

    def __init__(self, work: Path) -> None:
        self._grown = _Grown(work)
        self._at: dict[str, tuple[int, float]] = {}

    def look(self) -> None:
        """Read what was written since the last look."""
        for _, line in self._grown.lines():
            self._take(line)

    def at(self, execution_id: str, attempt: int) -> float | None:
        """When an attempt at a run began, as Unix time in seconds; None: not yet, or it has ended."""
        known = self._at.get(execution_id)
        return known[1] if known is not None and known[0] == attempt else None

    def last(self, execution_id: str) -> float | None:
        """When the last attempt at a run began, as Unix time in seconds; None: not yet, or it has ended."""
        known = self._at.get(execution_id)
        return None if known is None else known[1]

    def _take(self, line: bytes) -> None:
        if line.startswith(_ENDED):
            self._at.pop(_id(line, _ENDED), None)
        elif line.startswith(_BEGUN):
            attempt = _field(line, b',"attempt":')
            self._at[_id(line, _BEGUN)] = int(attempt), _begun_at(line)


class Ended:
    """Results on record whose answer has not come, as where a worker was lost; followed as the records grow.

    Args:
        work: Folder of the runs.
    """

    def __init__(self, work: Path) -> None:
        self._grown = _Grown(work)
        self._ends: dict[str, list[tuple[Path, bytes]]] = {}

    def look(self, known: Callable[[str], bool]) -> None:
        """Read what was written since the last look.

        Args:
            known: Whether the result of a run is known, so that its lines need not be kept.
        """
        for name in [name for name in self._ends if known(name)]:
            del self._ends[name]
        for path, line in self._grown.lines():
            if line.startswith(_ENDED) and not known(name := _id(line, _ENDED)):
                self._ends.setdefault(name, []).append((path, line))

    def of(self, execution_id: str) -> Mapping[str, Any] | None:
        """The result of a run's last end, as plain data; None where there was none at the last look."""
        ends = self._ends.get(execution_id)
        return None if ends is None else _on_record(None, ends).result


@dataclass(slots=True)
class _Newest:
    at: float = -1.0
    fields: Any = None
    wrong: str = field(default="")


def _on_record(begun: tuple[float, Path, bytes] | None, ends: list[tuple[Path, bytes]]) -> OnRecord:
    manifest = None
    if begun is not None:
        with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):
            manifest = json.loads(begun[2])["manifest"]
    newest = _Newest()
    for path, line in ends:
        try:
            result = json.loads(line)["result"]
            at = float(result["ended_at"])
        except (ValueError, RecursionError, KeyError, TypeError, OverflowError) as error:
            newest.wrong = newest.wrong or f"a result in {path} is damaged: {error}."
            continue
        if at >= newest.at:
            newest = _Newest(at, result)
    return OnRecord(manifest, newest.fields, newest.wrong)


def _sizes(folder: Path) -> Iterator[tuple[Path, int]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.endswith(".jsonl"):
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    yield Path(entry.path), entry.stat(follow_symlinks=False).st_size


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        yield file


def _id(line: bytes, start: bytes) -> str:
    end = line.find(b'"', len(start))
    return line[len(start) : end].decode(errors="replace")


def _field(line: bytes, name: bytes) -> float:
    """A number of a line, by what stands before it; 0 where the line is damaged."""
    begin = line.find(name) + len(name)
    text = line[begin : begin + 32].split(b",", 1)[0]
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def _begun_at(line: bytes) -> float:
    return _field(line, b',"at":')
