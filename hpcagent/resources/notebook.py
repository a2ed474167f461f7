"""A notebook: entries in order, each with the digest of the one before, so that a change is noticed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput, ContentChanged
from hpcagent.model.base import canonical_json
from hpcagent.resources.place import Page, Place, append_whole, bounded, plain_data
from hpcagent.store.files import open_plain, refusing_clearly

__all__ = ["Entry", "Notebook"]

FILE = "entries.jsonl"
HEAD = "head.json"
_START = "0" * 64


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry.

    Attributes:
        number: From 1, without gaps.
        at: When it was written: Unix time, in seconds.
        by: Name and role of who wrote it.
        content: What was written.
        previous: Digest of the entry before; zeros before the first.
        sha256: Of all that.
    """

    number: int
    at: float
    by: str
    content: Mapping[str, Any]
    previous: str
    sha256: str

    def __getitem__(self, key: str) -> Any:  # plain data
        return self.content[key]


class Notebook:
    """Entries that are appended and read; from `Resources.notebook`. There is no way to change or remove one.

    Every reading goes through the whole chain of digests. An entry that was changed, put in or removed by hand is
    noticed, the last ones too, as the number of entries and the last digest are kept beside. Who can write
    the files can forge both: keep `head` elsewhere and give it to `verify` where that matters.

    Example:
        >>> import tempfile
        >>> from hpcagent.resources import Resources
        >>> what = {"catalyst": "Cu-ZnO", "adsorbate": "CO2"}
        >>> entry = {"experiment_id": "run47", "inputs": what, "output_uri": "dft_results/CuZnO_CO2_run47.json"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     notebook = Resources.open(folder, caller="bot", role="executor").notebook("lab_notebook")
        ...     written = notebook.append(entry)
        ...     notebook.verify(), notebook.entries().items[0]["experiment_id"]
        (1, 'run47')
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._path = place.folder / FILE
        self._head = place.folder / HEAD

    @property
    def name(self) -> str:
        """Of the resource."""
        return self._place.record.name

    @property
    def head(self) -> tuple[int, str]:
        """Number of entries and digest of the last one, after looking at all of them."""
        entries = self._read()
        return len(entries), entries[-1].sha256 if entries else _START

    def append(self, content: Mapping[str, Any]) -> Entry:
        """Append an entry.

        Args:
            content: Plain data with the keys that the resource requires: `experiment_id` (a text), `inputs` (a
                dict), `output_uri` (a text, or None where nothing came out); more may be there.

        Raises:
            NotPermitted: The role may not add.
            BadInput: The content is not allowed.
            ContentChanged: The last entry is not what was written; nothing is appended to it.
            StoreFull: The disk refuses; the notebook is as it was.
        """
        self._place.gate.require("add")
        wanted = self._place.record.content
        data = plain_data(content, where="the entry", required=wanted.required_keys, max_bytes=wanted.max_mb * 1e6)
        plain = json.loads(data)
        _check_kinds(plain, wanted.required_keys)
        with self._place.turn():
            torn = self._set_torn_aside()
            number, previous = self._last()
            fields = {
                "number": number + 1,
                "at": self._place.clock(),
                "by": str(self._place.gate.caller),
                "content": plain,
                "previous": previous,
            }
            sha256 = hashlib.sha256(canonical_json(fields).encode()).hexdigest()
            line = (canonical_json({**fields, "sha256": sha256}) + "\n").encode()
            with refusing_clearly(self._path):
                before = append_whole(self._path, line, self._place.file_mode)
            try:
                self._place.write(self._head, canonical_json({"entries": number + 1, "sha256": sha256}).encode())
            except BaseException:
                with contextlib.suppress(OSError, ContentChanged):
                    if self._head_now() != (number + 1, sha256):
                        os.truncate(self._path, before)
                raise
        if torn:
            self._place.tell("torn", bytes=torn, kept_in="entries.torn")
        self._place.tell("appended", item=str(number + 1), sha256=sha256)
        return Entry(number + 1, fields["at"], fields["by"], plain, previous, sha256)

    def entries(self, *, experiment_id: str | None = None, limit: int = 50, offset: int = 0) -> Page[Entry]:
        """Entries in order.

        Args:
            experiment_id: Only those of this experiment.
            limit: Largest number, 1 to 1000.
            offset: How many to leave out before.

        Raises:
            NotPermitted: The role may not read.
            ContentChanged: An entry is not what was written; the message says which.
        """
        limit, offset = bounded(limit, offset)
        found = [
            e for e in self._read() if experiment_id is None or e.content.get("experiment_id") == experiment_id
        ]
        return Page(tuple(found[offset : offset + limit]), len(found), offset)

    def verify(self, *, head: tuple[int, str] | None = None) -> int:
        """Look at every entry, and return how many there are.

        Args:
            head: What `head` was at some time: the entry of that number must have that digest still.

        Raises:
            ContentChanged: An entry was changed, put in or removed; the message says where.
        """
        entries = self._read()
        if head is not None:
            number, sha256 = head
            there = _START if number == 0 else entries[number - 1].sha256 if number <= len(entries) else "gone"
            if there != sha256:
                raise ContentChanged(
                    f"{self._path}: entry {number} had the digest {sha256[:12]}, now {there[:12]}: the notebook "
                    "was written anew from there or earlier.",
                    item=str(number),
                )
        return len(entries)

    def copy_to(self, folder: Path) -> None:
        """Write a copy, of one moment, into a folder; see `Resources.snapshot`."""
        with self._place.turn():
            for path in (self._path, self._head):
                shutil.copyfile(path, folder / path.name)

    def create(self) -> None:
        """Make the empty notebook."""
        with refusing_clearly(self._path):
            os.close(open_plain(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._place.file_mode))
            self._path.chmod(self._place.file_mode)
        self._place.write(self._head, canonical_json({"entries": 0, "sha256": _START}).encode())

    def _read(self) -> list[Entry]:
        self._place.gate.require("read")
        return self._chain()

    def _chain(self) -> list[Entry]:
        # The head first: entries are written before it, so whatever it speaks of is there.
        count, digest = self._head_now()
        entries: list[Entry] = []
        previous = _START
        for number, line in enumerate(self._bytes(self._path).splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                break  # being written, or torn: the next writer sets it aside
            entry = self._entry(line, number)
            if entry.number != number or entry.previous != previous:
                raise self._changed(number, "does not follow from the one before: an entry was put in or removed")
            entries.append(entry)
            previous = entry.sha256
        if len(entries) < count:
            raise self._changed(len(entries) + 1, f"and what follows are gone: {count} were written")
        if count and entries[count - 1].sha256 != digest:
            raise self._changed(count, "is not the last one that was written: the notebook was written anew")
        return entries

    def _entry(self, line: bytes, number: int) -> Entry:
        try:
            fields = json.loads(line)
            sha256 = fields.pop("sha256")
            if hashlib.sha256(canonical_json(fields).encode()).hexdigest() == sha256:
                return Entry(sha256=sha256, **fields)
        except (ValueError, TypeError, KeyError, AttributeError):
            pass
        raise self._changed(number, "is not what was written")

    def _changed(self, number: int, what: str) -> ContentChanged:
        return ContentChanged(
            f"{self._path}: entry {number} {what}. Somebody has changed the file by hand; compare it with a "
            "snapshot or a backup.",
            item=str(number),
        )

    def _head_now(self) -> tuple[int, str]:
        try:
            fields = json.loads(self._bytes(self._head))
            return int(fields["entries"]), str(fields["sha256"])
        except (ValueError, TypeError, KeyError):
            raise ContentChanged(f"{self._head} was changed by hand; put it back from a snapshot.") from None

    def _last(self) -> tuple[int, str]:
        """Number and digest of the last entry, from the end of the file; the lock is held."""
        count, digest = self._head_now()
        line = self._last_line()
        if not line:
            if count:
                raise self._changed(1, f"and what follows are gone: {count} were written")
            return 0, _START
        entry = self._entry(line, count)
        if (entry.number, entry.sha256) != (count, digest):
            # Writers may have been killed between an entry and the head: what follows from the head is theirs.
            entry = self._chain()[-1]
        return entry.number, entry.sha256

    def _last_line(self) -> bytes:
        with refusing_clearly(self._path):
            descriptor = open_plain(self._path, os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            taken, back = b"", 0
            while back < end and taken.count(b"\n") < 2:
                back = min(end, max(1 << 16, back * 2))
                file.seek(end - back)
                taken = file.read(back)
        lines = taken.splitlines(keepends=True)
        return lines[-1] if lines else b""

    def _set_torn_aside(self) -> int:
        """Move a last line without its end, of a writer that was killed, to `entries.torn`; its bytes."""
        line = self._last_line()
        if not line or line.endswith(b"\n"):
            return 0
        with refusing_clearly(self._path):
            append_whole(self._path.with_name("entries.torn"), line + b"\n", self._place.file_mode)
            os.truncate(self._path, self._path.stat().st_size - len(line))
        return len(line)

    def _bytes(self, path: Path) -> bytes:
        try:
            with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
                return file.read()
        except OSError as error:
            raise ContentChanged(f"{path} cannot be read: {error.strerror or error}.", path=str(path)) from error


def _check_kinds(content: Mapping[str, Any], required: tuple[str, ...]) -> None:
    kinds: dict[str, tuple[tuple[type, ...], str]] = {
        "experiment_id": ((str,), "a text"),
        "inputs": ((dict,), "a dict"),
        "output_uri": ((str, type(None)), "a text, or None where nothing came out"),
    }
    for key in required:
        allowed, words = kinds.get(key, ((object,), ""))
        if not isinstance(content[key], allowed) or content[key] == "":
            raise BadInput(f"the entry's {key} is {content[key]!r}; it must be {words}.", value=content[key])
