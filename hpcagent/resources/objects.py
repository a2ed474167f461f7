"""Objects by key: JSON and files, in versions with their digests, each written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from hpcagent.errors import BadInput, ContentChanged
from hpcagent.model.texts import checked_name
from hpcagent.resources.place import Gone, Page, Place, bounded, own_folder, plain_data
from hpcagent.store.files import open_plain, refusing_clearly

__all__ = ["ObjectStore", "Stored"]

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of one object.

    Attributes:
        key: Its name.
        version: From 1.
        kind: `json` or `file`.
        size: In bytes.
        sha256: Of its bytes.
        created_at: Unix time, in seconds.
        created_by: Name and role of who wrote it.
        run_id: The run that made it, or empty.
        resource: Name of the store.
    """

    key: str
    version: int
    kind: Literal["json", "file"]
    size: int
    sha256: str
    created_at: float
    created_by: str
    run_id: str
    resource: str

    @property
    def uri(self) -> str:
        """Where records say it is, e.g. `dft_results/CuZnO_CO2_run47.json`."""
        return f"{self.resource}/{self.key}"


class ObjectStore:
    """Objects by key; from `Resources.objects`. Any number of processes may write at once.

    A key is one name, not a path. What is there is not overwritten: `replace` writes a version.

    Example:
        >>> import tempfile
        >>> from hpcagent.resources import Resources
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Resources.open(folder, caller="bot", role="executor").objects("dft_results")
        ...     put = store.put("CuZnO_CO2_run47.json", {"energy_ev": -1.3}, run_id="run47")
        ...     put.uri, put.version, store.get("CuZnO_CO2_run47.json")
        ('dft_results/CuZnO_CO2_run47.json', 1, {'energy_ev': -1.3})
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._root = place.folder / "objects"

    @property
    def name(self) -> str:
        """Of the resource."""
        return self._place.record.name

    def put(
        self, key: str, value: Mapping[str, Any], *, run_id: str | None = None, replace: bool = False
    ) -> Stored:
        """Store a JSON object.

        Where the key has this very content already, that version is returned and nothing is written.

        Args:
            key: Ends in `.json`.
            value: Plain data: dicts, lists, texts, finite numbers, true, false, None.
            run_id: The run that made it; some roles have to say.
            replace: Write a new version of a key that is there.

        Raises:
            NotPermitted: The role may not add (or replace).
            BadInput: The key or the value is not allowed, or the key is there.
            StoreFull: The disk refuses; what was there is as it was.
        """
        key = _checked_key(key)
        if not key.endswith(".json"):
            raise BadInput(f"the key {key!r} of a JSON object must end in .json; files are stored by `put_file`.")
        content = self._place.record.content
        data = plain_data(value, where=key, required=content.required_keys, max_bytes=content.max_mb * 1e6)
        run = self._before_writing(replace, run_id)
        with self._place.turn():
            return self._written(key, "json", data, run, replace)

    def put_file(self, key: str, path: str | Path, *, run_id: str | None = None, replace: bool = False) -> Stored:
        """Store a copy of a file, as it is now.

        Args:
            key: Its name in the store; `.json` is for `put`.
            path: A regular file, no link, not larger than the resource allows.
            run_id: As in `put`.
            replace: As in `put`.

        Raises:
            NotPermitted: As in `put`.
            BadInput: Also: the file is not there, is a link, a device or a pipe, or too large.
        """
        key = _checked_key(key)
        if key.endswith(".json"):
            raise BadInput(f"the key {key!r} ends in .json; JSON is stored by `put`, which looks at it.")
        run = self._before_writing(replace, run_id)
        data = self._content_of(Path(path).expanduser())
        with self._place.turn():
            return self._written(key, "file", data, run, replace)

    def get(self, key: str, *, version: int | None = None) -> dict[str, Any]:
        """A JSON object.

        Args:
            key: Its key.
            version: Which; the newest if not given.

        Raises:
            NotPermitted: The role may not read.
            BadInput: It is not there, is past its retention, or no JSON.
            ContentChanged: It is not what was written.
        """
        info = self.info(key, version=version)
        if info.kind != "json":
            raise BadInput(f"{info.uri} is a file; `read` gives its bytes.", value=key)
        found: dict[str, Any] = json.loads(self._read(info))
        return found

    def read(self, key: str, *, version: int | None = None) -> bytes:
        """The bytes of an object; see `get` for the errors."""
        return self._read(self.info(key, version=version))

    def info(self, key: str, *, version: int | None = None) -> Stored:
        """What is known of an object, without its content; see `get` for the errors."""
        self._place.gate.require("read")
        key = _checked_key(key)
        kept = self._versions(key)
        if not kept:
            raise BadInput(f"{self.name} has no object {key!r}; `listed` shows what there is.", value=key)
        if self._overdue(kept[-1]):
            raise BadInput(
                f"{kept[-1].uri} is past its retention of {self._place.record.storage.retention_days:g} days and "
                "not shown; put it anew if it is still needed.",
                value=key,
            )
        if version is None:
            return kept[-1]
        for one in kept:
            if one.version == version:
                return one
        raise BadInput(
            f"{self.name}/{key} has no version {version!r}; there are {', '.join(str(s.version) for s in kept)}.",
            value=version,
        )

    def versions(self, key: str) -> tuple[Stored, ...]:
        """Every version that is kept, the oldest first; empty where there is none."""
        self._place.gate.require("read")
        return tuple(self._versions(_checked_key(key)))

    def listed(self, prefix: str = "", *, limit: int = 50, offset: int = 0) -> Page[Stored]:
        """The newest versions of all objects, by key.

        Args:
            prefix: What their keys begin with.
            limit: Largest number, 1 to 1000.
            offset: How many to leave out before.
        """
        self._place.gate.require("read")
        limit, offset = bounded(limit, offset)
        every = self._newest(prefix)
        fresh = [s for s in every if not self._overdue(s)]
        return Page(tuple(fresh[offset : offset + limit]), len(fresh), offset, len(every) - len(fresh))

    def expire(self, before: float) -> tuple[Gone, ...]:
        """Take out objects whose newest version is older than a time; see `Resources.expire`."""
        self._place.gate.require("expire")
        gone = []
        with self._place.turn():
            for old in self._newest(""):
                if old.created_at >= before:
                    continue
                source, where = self._root / old.key, None
                with refusing_clearly(source):
                    if self._place.record.lifecycle.archive:
                        archive = self._place.folder / "archive"
                        self._place.make(archive)
                        where = _free(archive, f"{old.key}.{int(self._place.clock())}")
                        source.rename(where)
                    else:
                        shutil.rmtree(source)
                gone.append(
                    Gone(self.name, old.key, old.created_at, old.sha256, None if where is None else str(where))
                )
        for one in gone:
            self._place.tell("expired", item=one.item, sha256=one.sha256, archived=one.archived)
        return tuple(gone)

    def copy_to(self, folder: Path) -> None:
        """Write a copy, of one moment, into a folder; see `Resources.snapshot`."""
        with self._place.turn():
            shutil.copytree(self._root, folder / "objects", symlinks=True)

    def create(self) -> None:
        """Make the empty store."""
        self._place.make(self._root)

    def _before_writing(self, replace: bool, run_id: str | None) -> str:
        self._place.gate.require("replace" if replace else "add")
        return self._place.gate.require_run(run_id)

    def _written(self, key: str, kind: Literal["json", "file"], data: bytes, run: str, replace: bool) -> Stored:
        """Write the next version; the lock is held."""
        kept = self._versions(key)
        sha256 = hashlib.sha256(data).hexdigest()
        if kept and kept[-1].sha256 == sha256 and not self._overdue(kept[-1]):
            self._read(kept[-1])  # is it there?
            return kept[-1]
        if kept and not replace and not self._overdue(kept[-1]):  # what is past its retention is in nobody's way
            last = kept[-1]
            raise BadInput(
                f"{last.uri} is there already (version {last.version}, by {last.created_by}, other content); "
                "choose another key, or replace=True in a role that may, which writes version "
                f"{last.version + 1}.",
                value=key,
            )
        folder, version = self._root / key, kept[-1].version + 1 if kept else 1
        self._place.make(folder)
        now, caller = self._place.clock(), str(self._place.gate.caller)
        stored = Stored(key, version, kind, len(data), sha256, now, caller, run, self.name)
        self._place.write(folder / f"{version:06d}", data)
        # It counts from here on.
        self._place.write(folder / f"{version:06d}.json", json.dumps(asdict(stored), sort_keys=True).encode())
        if kept and not self._place.record.provenance.versioning:
            for old in kept:
                (folder / f"{old.version:06d}.json").unlink()
                (folder / f"{old.version:06d}").unlink(missing_ok=True)
        self._place.tell(
            "replaced" if kept else "added", item=key, version=version, sha256=sha256, size=len(data), run_id=run
        )
        return stored

    def _content_of(self, path: Path) -> bytes:
        most = int(self._place.record.content.max_mb * 1e6)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise BadInput(
                f"{path} cannot be stored: {error.strerror} (links are not followed).", value=str(path)
            ) from None
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise BadInput(f"{path} is no regular file, so it cannot be stored.", value=str(path))
        with os.fdopen(descriptor, "rb") as file:
            data = b"" if found.st_size > most else file.read(most + 1)
        if found.st_size > most or len(data) > most:
            raise BadInput(
                f"{path} has {max(found.st_size, len(data))} bytes; at most {most} are allowed in {self.name}.",
                value=str(path),
            )
        return data

    def _newest(self, prefix: str) -> list[Stored]:
        own_folder(self._root)
        names = sorted(p.name for p in self._root.iterdir() if p.name.startswith(prefix))
        kept = (self._versions(name) for name in names)
        return [versions[-1] for versions in kept if versions]

    def _versions(self, key: str) -> list[Stored]:
        folder = self._root / key
        own_folder(folder)
        try:
            names = sorted(p.name for p in folder.iterdir() if p.name.endswith(".json") and p.name[:-5].isdigit())
        except FileNotFoundError:
            return []
        found = []
        for name in names:
            try:
                with _opened(folder / name) as file:
                    stored = Stored(**json.loads(file.read(_PIECE)))
            except FileNotFoundError:  # replaced at this moment, by a store without versions
                continue
            except (ValueError, TypeError) as error:
                raise ContentChanged(f"{folder / name} was changed by hand: {error}.", item=key) from None
            if stored.key != key or f"{stored.version:06d}.json" != name:
                raise ContentChanged(
                    f"{folder / name} is the record of {stored.key}, version {stored.version}.", item=key
                )
            found.append(stored)
        return found

    def _read(self, info: Stored) -> bytes:
        path = self._root / info.key / f"{info.version:06d}"
        try:
            with _opened(path) as file:
                data = file.read(info.size + 1)
        except FileNotFoundError:
            data = None
        if data is None or len(data) != info.size or hashlib.sha256(data).hexdigest() != info.sha256:
            what = "is gone" if data is None else "is not what was written (its digest differs)"
            raise ContentChanged(
                f"{info.uri}, version {info.version}: {path} {what}. Put it back from a snapshot, or compute "
                "it anew.",
                item=info.key,
            )
        return data

    def _overdue(self, stored: Stored) -> bool:
        before = self._place.before()
        return before is not None and stored.created_at < before


def _checked_key(key: object) -> str:
    if not isinstance(key, str):
        raise BadInput(f"the key {key!r} must be a text.", value=key)
    return checked_name(key, "the key")


def _opened(path: Path) -> IO[bytes]:
    try:
        return os.fdopen(open_plain(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ContentChanged(f"{path} cannot be read: {error.strerror or error}.", path=str(path)) from error


def _free(folder: Path, name: str) -> Path:
    found, n = folder / name, 1
    while found.exists():
        found, n = folder / f"{name}.{n}", n + 1
    return found
