"""What a number was made with: the content of the files that decide it, and the versions of the programs.

Imports only the standard library, for workers do.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = [
    "OtherFile",
    "changed_files",
    "mixed_versions",
    "newer_versions",
    "other_files",
    "package_version",
    "sha256",
]


def sha256(path: str | Path) -> str:
    """SHA-256 of a file, in hex. A content is read once by a process: as long as size and time stay, it is known.

    Raises:
        OSError: It cannot be read, or is no regular file: a pipe would be waited for without end.
    """
    found = os.stat(path)  # noqa: PTH116  (one call, and a str will do)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return _of_content(str(path), found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)


@lru_cache(maxsize=4096)
def _of_content(path: str, inode: int, modified_ns: int, changed_ns: int, size: int) -> str:
    with open(path, "rb") as file:  # noqa: PTH123
        return hashlib.file_digest(file, "sha256").hexdigest()


def changed_files(files: Mapping[str, str]) -> list[str]:
    """Which of these files (path -> SHA-256) have another content now; one that is gone tells nothing."""
    changed = []
    for path, digest in files.items():
        with contextlib.suppress(OSError):
            if sha256(path) != digest:
                changed.append(path)
    return changed


@dataclass(frozen=True, slots=True)
class OtherFile:
    """A file of an app's settings that is not as it was.

    Attributes:
        name: Of the setting, or as the script names it.
        path: Where it lies.
        before: SHA-256 that was recorded.
        now: SHA-256 of now; empty if it cannot be read.
    """

    name: str
    path: str
    before: str
    now: str

    def __str__(self) -> str:
        now = f"{self.now[:12]} now" if self.now else "cannot be read now"
        named = "" if self.path.endswith(f"/{self.name}") else f" ({self.name})"
        return f"{self.path}{named}: SHA-256 {self.before[:12]} recorded, {now}"


def other_files(settings: Mapping[str, Any], *, gone: bool = False) -> list[OtherFile]:
    """Which files of an app's settings (`files`: name -> SHA-256, `paths`: name -> path) have another content.

    Takes one call of the file system for each file; its content is read once by a process.

    Args:
        settings: Of the app.
        gone: Whether a file that cannot be read is one of them; where a run is, its function says it better.
    """
    files, paths = settings.get("files"), settings.get("paths")
    if not isinstance(files, Mapping) or not isinstance(paths, Mapping):
        return []
    other = []
    for name, path in paths.items():
        before = files.get(name)
        if not path or not before:
            continue
        now = ""
        with contextlib.suppress(OSError):
            now = sha256(path)
        if now != before and (now or gone):
            other.append(OtherFile(name, path, before, now))
    return other


@lru_cache(maxsize=64)
def package_version(name: str) -> str | None:
    """The version of an installed Python distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def newer_versions(versions: Mapping[str, str]) -> list[str]:
    """A clause for each package of these that is installed here in another version.

    Programs that are no Python packages are not looked at: their version is known once they have run.
    """
    here = {name: package_version(name) for name in versions}
    return [
        f"{name} {version}, here is {here[name]}"
        for name, version in versions.items()
        if here[name] not in (None, version)
    ]


def mixed_versions(of_runs: Iterable[Mapping[str, str]]) -> list[str]:
    """A clause for each program that these runs have used in several versions.

    Example:
        >>> mixed_versions([{"espresso": "6.7"}, {"espresso": "7.3", "ase": "3.29"}, {"ase": "3.29"}])
        ['espresso 6.7 and 7.3']
    """
    seen: dict[str, dict[str, None]] = {}
    for versions in of_runs:
        for name, version in versions.items():
            seen.setdefault(name, {})[version] = None
    return [f"{name} {' and '.join(sorted(found))}" for name, found in seen.items() if len(found) > 1]
