"""The folder of one resource: its lock, its history, the permissions of its files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from hpcagent.errors import BadInput, ContentChanged
from hpcagent.model.base import canonical_json
from hpcagent.resources.callers import Gate
from hpcagent.resources.locking import held
from hpcagent.resources.record import Resource
from hpcagent.store.files import open_plain, refusing_clearly, write_whole

__all__ = [
    "CHANGES",
    "DAY_S",
    "MOST_SHOWN",
    "Gone",
    "Page",
    "Place",
    "bounded",
    "change_at",
    "own_folder",
    "plain_data",
]

DAY_S = 86400.0
MOST_SHOWN = 1000
CHANGES = ("added", "replaced", "appended", "expired")
"""Events of a history by which what is in a resource has changed."""
HISTORY = "history.jsonl"
_LONGEST_LINE = 1 << 16
_DEEPEST = 64
_MODES = {"user": (0o700, 0o600), "group": (0o2770, 0o660), "all": (0o755, 0o644)}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of what there is.

    Attributes:
        items: What is shown, in order.
        total: How many there are in all.
        offset: How many are before these.
        overdue: How many more would be there, but are past their retention: not shown, and the next that
            `expire` takes out.
    """

    items: tuple[T, ...]
    total: int
    offset: int = 0
    overdue: int = 0

    @property
    def next_offset(self) -> int | None:
        """Where the next page begins; None after the last."""
        after = self.offset + len(self.items)
        return after if self.items and after < self.total else None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class Gone:
    """Something that `expire` has taken out.

    Attributes:
        resource: Name of the resource.
        item: Id of the row, or key of the object.
        created_at: Of its newest version: Unix time, in seconds.
        sha256: Of its newest version.
        archived: File or folder where it is now, or None where it was deleted.
    """

    resource: str
    item: str
    created_at: float
    sha256: str
    archived: str | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where one resource lies, and who stands before it.

    Attributes:
        folder: Its folder.
        record: What it is.
        gate: Whose permissions count.
        clock: Gives the time: Unix time, in seconds.
        announce: Called after each of `CHANGES` with the resource's name and where its line of the history begins,
            in bytes. What it raises is raised; the change stands.
    """

    folder: Path
    record: Resource
    gate: Gate
    clock: Callable[[], float] = time.time
    announce: Callable[[str, int], object] | None = None

    @property
    def folder_mode(self) -> int:
        """Permissions of its folders."""
        return _MODES[self.record.access.auth_scope][0]

    @property
    def file_mode(self) -> int:
        """Permissions of its files."""
        return _MODES[self.record.access.auth_scope][1]

    def turn(self) -> AbstractContextManager[bool]:
        """Hold the resource: one writer after another."""
        return held(self.folder / ".lock", mode=self.file_mode)

    def before(self, now: float | None = None) -> float | None:
        """What was written before this is past its retention: Unix time, in seconds; None: nothing ever is."""
        days = self.record.storage.retention_days
        return None if days is None else (self.clock() if now is None else now) - days * DAY_S

    def tell(self, event: str, **facts: Any) -> None:
        """Add a line to the resource's history."""
        caller = self.gate.caller
        said = {"at": self.clock(), "event": event, "by": caller.name, "role": caller.role, **facts}
        path = self.folder / HISTORY
        line = (canonical_json(said) + "\n").encode()
        with held(self.folder / ".history.lock", mode=self.file_mode), refusing_clearly(path):
            at = append_whole(path, line, self.file_mode)
        if self.announce is not None and event in CHANGES:
            self.announce(self.record.name, at)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file of the resource: all of it or nothing, with the resource's permissions."""
        write_whole(path, data, private=self.file_mode == 0o600)
        if self.file_mode != 0o600:
            path.chmod(self.file_mode)

    def make(self, folder: Path) -> None:
        """Make a folder of the resource, if it is not there."""
        with refusing_clearly(folder):
            own_folder(folder)
            folder.mkdir(self.folder_mode, exist_ok=True)
            if folder.stat().st_uid == os.getuid():
                folder.chmod(self.folder_mode)


def change_at(folder: Path, at: int) -> dict[str, Any]:
    """One of `CHANGES` as the history of a resource has it.

    Args:
        folder: The resource's.
        at: Where its line begins, in bytes.

    Raises:
        BadInput: No such line begins there.
    """
    try:
        with os.fdopen(open_plain(folder / HISTORY, os.O_RDONLY), "rb") as file:
            file.seek(max(at - 1, 0))
            begins = at == 0 or file.read(1) == b"\n"
            line = file.readline(_LONGEST_LINE) if begins else b""
        said = json.loads(line) if line.endswith(b"\n") else None
    except (OSError, ValueError):
        said = None
    if not isinstance(said, dict) or said.get("event") not in CHANGES:
        raise BadInput(
            f"the history of {folder.name} has no change at byte {at!r}; a change is told by who has written it.",
            value=at,
        )
    return said


def append_whole(path: Path, data: bytes, mode: int) -> int:
    """Append to a file, all or nothing, and put it on the disk; the caller holds a lock.

    Returns:
        Where it begins in the file, in bytes.

    Raises:
        OSError: It cannot be written; the file is as it was before.
    """
    descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode)
    try:
        before = os.fstat(descriptor).st_size
        if os.fstat(descriptor).st_uid == os.getuid():
            os.fchmod(descriptor, mode)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            os.ftruncate(descriptor, before)
            raise
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return before


def own_folder(folder: Path) -> None:
    """Refuse a link in the place of a folder: it may lead anywhere.

    Raises:
        ContentChanged: It is a link.
    """
    if folder.is_symlink():
        raise ContentChanged(
            f"{folder} is a symbolic link, to {folder.readlink()}, which nothing here makes; look who made it and "
            "remove it.",
            path=str(folder),
        )


def bounded(limit: object, offset: object) -> tuple[int, int]:
    """How many are shown, and from where.

    Raises:
        BadInput: `limit` is not 1 to 1000, or `offset` is negative.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_SHOWN:
        raise BadInput(f"limit={limit!r} must be a whole number, 1 to {MOST_SHOWN}; the rest is on further pages.")
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 2**62:
        raise BadInput(f"offset={offset!r} must be a whole number, 0 or more.")
    return limit, offset


def plain_data(value: Mapping[str, Any], *, where: str, required: tuple[str, ...], max_bytes: float) -> bytes:
    """A JSON object as bytes that say exactly what was given.

    Args:
        value: Dicts with texts as keys, lists, texts, finite numbers, true, false, None.
        where: What it is, for the message.
        required: Keys that it must have.
        max_bytes: Largest size.

    Raises:
        BadInput: It is something else, or too large.
    """
    if not isinstance(value, Mapping):
        raise BadInput(f"{where} is {type(value).__name__}; it must be a JSON object (a dict).")
    missing = [key for key in required if key not in value]
    if missing:
        raise BadInput(f"{where} has no {', '.join(missing)}; required: {', '.join(required)}.")
    text = json.dumps(_plain(value, where, 0), sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False)
    try:
        data = text.encode() + b"\n"
    except UnicodeEncodeError:
        raise BadInput(f"{where} has a text with half a character (a lone surrogate) in it.") from None
    if len(data) > max_bytes:
        raise BadInput(f"{where} has {len(data)} bytes; at most {max_bytes:.0f} are allowed.", value=len(data))
    return data


def _plain(value: Any, where: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise BadInput(f"{where} is nested deeper than {_DEEPEST} levels.")
    if isinstance(value, Mapping):
        wrong = next((key for key in value if not isinstance(key, str)), None)
        if wrong is not None:
            raise BadInput(f"{where} has the key {wrong!r}; keys must be texts.", value=repr(wrong))
        return {key: _plain(one, f"{where}.{key}", depth + 1) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one, f"{where}[{i}]", depth + 1) for i, one in enumerate(value)]
    if isinstance(value, float) and not (value - value == 0.0):
        raise BadInput(f"{where} is {value!r}; numbers must be finite, and what is not known is left out or None.")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        raise BadInput(f"{where} is a whole number of more than 64 bits; write it as a text.")
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise BadInput(
        f"{where} is {type(value).__name__}; allowed are dicts, lists, texts, numbers, true, false and None."
    )
