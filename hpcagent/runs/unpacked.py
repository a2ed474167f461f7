"""An archive opened to be read: its records in a folder of one's own for as long as they are looked at."""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json

from hpcagent.errors import BadInput
from hpcagent.owners import require_own
from hpcagent.runs.archive import CONTENTS, FORMAT, is_record

__all__ = ["Unpacked"]

MOST_BYTES = 1 << 31
"""So much is unpacked to be read, in bytes."""
MOST_FILES = 1_000_000
_MOST_CONTENTS = 1 << 28


class Unpacked:
    """The records of an archive in a temporary folder, which goes when this does.

    Nothing in the archive decides where anything is written but names that are checked; links, folders, sizes
    other than stated, digests that do not fit and more than `MOST_BYTES` are refused.

    Args:
        path: The archive.

    Attributes:
        path: The archive.
        folder: Where its records are.
        contents: What it says of itself.

    Raises:
        BadInput: It is no archive, is damaged or hostile, or another user's who is not trusted.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        require_own(self.path, what="the app and the modules it names")
        self._made = tempfile.TemporaryDirectory(prefix="hpcagent-")
        self._close = weakref.finalize(self, self._made.cleanup)
        self.folder = Path(self._made.name) / "run"
        self.folder.mkdir(mode=0o700)
        try:
            self.contents = _unpack(self.path, self.folder)
        except BaseException as error:
            self.close()
            if isinstance(error, (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error)):
                why = f"{type(error).__name__}: {error}"
                raise BadInput(f"{self.path} is no archive, or is damaged ({why}).", value=str(path)) from None
            raise

    def close(self) -> None:
        """Remove the folder."""
        self._close()

    def shown(self, text: object) -> str:
        """A text with the archive's name in place of the folder's."""
        return str(text).replace(str(self.folder), str(self.path))


def _unpack(path: Path, folder: Path) -> dict[str, Any]:
    members = _members(path)
    name, size, file = next(members, ("", 0, None))
    if name != CONTENTS or file is None:
        raise BadInput(f"{path} is no archive of `hpcagent archive`: it does not begin with {CONTENTS}.")
    contents, files = _contents(path, _read(path, name, file, min(size, _MOST_CONTENTS), size))
    wanted = {name for name in files if is_record(name)}
    if sum(files[name][0] for name in wanted) > MOST_BYTES:
        raise BadInput(f"{path}: its records have more than {MOST_BYTES} bytes; it is not opened.")
    seen = 0
    for name, size, file in members:
        seen += 1
        if not wanted or seen > MOST_FILES:
            break
        if name not in files or files[name][0] != size:
            raise BadInput(f"{path}: {name[:200]!r} is not what {CONTENTS} says; it is damaged or was changed.")
        if name not in wanted:
            continue
        wanted.discard(name)
        data = _read(path, name, file, size, size)
        if hashlib.sha256(data).hexdigest() != files[name][1]:
            raise BadInput(f"{path}: {name} does not have the digest that {CONTENTS} says; it is damaged.")
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as out:
            out.write(data)
    if wanted:
        raise BadInput(f"{path}: {sorted(wanted)[0]} is missing; it is damaged.")
    (folder / "work").mkdir(exist_ok=True)
    return contents


def _contents(path: Path, text: bytes) -> tuple[dict[str, Any], dict[str, tuple[int, str]]]:
    """What an archive says of itself, and of each file its size in bytes and digest."""
    try:
        data = from_json(text)
        files = {str(n): (int(f["size"]), str(f["sha256"])) for n, f in data["files"].items()}
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {str(data['format'])[:40]!r}, this version knows {FORMAT!r}")
        if len(files) > MOST_FILES or any(size < 0 for size, _ in files.values()):
            raise ValueError("its sizes or numbers of files cannot be")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path}: {CONTENTS} is damaged, or of another version ({error}).") from None
    for name in files:
        parts = name.split("/")
        if (
            not all(parts)
            or {".", ".."} & set(parts)
            or "\\" in name
            or not name.isprintable()
            or len(name) > 1000
        ):
            raise BadInput(f"{path}: {name[:200]!r} is no name of a file in an archive; it is not opened.")
    return data, files


def _read(path: Path, name: str, file: IO[bytes], most: int, size: int) -> bytes:
    """All of a file, which has the size that it says, and not more than `most` bytes."""
    data = file.read(most + 1)
    if len(data) != size:
        raise BadInput(f"{path}: {name} has another size than it says; it is damaged or hostile.")
    return data


def _members(path: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size in bytes and content of each file; what is no plain file is refused."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as whole:
            for entry in whole.infolist():
                kind = entry.external_attr >> 16 & 0o170000
                if entry.is_dir() or kind not in (0, 0o100000):
                    raise BadInput(f"{path}: {entry.filename[:200]!r} is no plain file; it is not opened.")
                with whole.open(entry) as file:
                    yield entry.filename, entry.file_size, file
        return
    with tarfile.open(path, "r|gz") as stream:  # read once from its beginning
        for member in stream:
            if not member.isreg():
                raise BadInput(f"{path}: {member.name[:200]!r} is no plain file; it is not opened.")
            inner = stream.extractfile(member)
            assert inner is not None
            yield member.name, member.size, inner
