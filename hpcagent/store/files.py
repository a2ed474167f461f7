"""Writing files so that a reader sees all of them or nothing, with one clear error when the disk refuses."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from hpcagent.errors import StoreFull

__all__ = ["make_folder", "open_own", "open_plain", "refusing_clearly", "require_room", "write_whole"]


@contextlib.contextmanager
def refusing_clearly(path: Path) -> Iterator[None]:
    """Turn an `OSError` while writing `path` into `StoreFull` with what to do next."""
    try:
        yield
    except OSError as error:
        folder = _run_dir(path)
        then = (
            "choose another folder, or correct the permissions."
            if folder is None
            else "everything recorded before is safe; free space or correct the permissions, then run "
            f"`hpcagent resume {folder}`."
        )
        raise StoreFull(
            f"{path} cannot be written: {error.strerror or error}; {then}",
            path=str(path),
            errno=error.errno,
        ) from error


def write_whole(path: Path, text: str | bytes | Sequence[bytes | memoryview], *, private: bool = False) -> None:
    """Write a file under another name and rename it: never half a file under the right name.

    Args:
        path: The file.
        text: All of it, or its parts in order.
        private: Nobody else may read it: secrets may be in it.

    Raises:
        StoreFull: The disk, the quota or the permissions refuse.
    """
    whole = text.encode() if isinstance(text, str) else text
    parts = (whole,) if isinstance(whole, bytes) else whole
    part = path.with_name(path.name + ".part")
    with refusing_clearly(path):
        try:
            with open_own(part, private=private) as file:
                for data in parts:
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise


_ROOM = 1 << 16
"""Bytes that processes of a site write before they say anything; with less they end without a word."""


def require_room(folder: Path) -> None:
    """Refuse a folder that cannot be written, or has no room for the little that everything needs.

    Raises:
        StoreFull: The disk, the quota or the permissions refuse.
    """
    path = folder / f".room.{os.getpid()}"
    with refusing_clearly(folder):
        try:
            with open_own(path, private=True) as file:
                file.write(bytes(_ROOM))
                file.flush()
                os.fsync(file.fileno())
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, that other users cannot write whatever the umask is.

    With umask 000 they could put files there that decide what is run, so that the folder would be refused later.

    Raises:
        OSError: It cannot be made.
    """
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(0o775, exist_ok=True)


def open_own(path: Path, *, private: bool = False) -> IO[bytes]:
    """Open a file to write it anew; never through a link that somebody has put there.

    Args:
        path: The file.
        private: Nobody else may read it.
    """
    # Others may not write it in any case: it may decide what is run.
    descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o644)
    if private:
        os.fchmod(descriptor, 0o600)  # it may have been there with another mode
    return os.fdopen(descriptor, "wb")


def open_plain(path: Path, flags: int, mode: int = 0o644) -> int:
    """A descriptor of a file with a fixed name, never of what a link leads to: that may be any file of the user.

    Raises:
        OSError: There is a link, or the file cannot be opened.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno != errno.ELOOP or not path.is_symlink():
            raise
        where = f"it is a symbolic link, to {path.readlink()}, and is not followed: look who made it and remove it"
        raise OSError(errno.ELOOP, where, str(path)) from None


def _run_dir(path: Path) -> Path | None:
    """The campaign's folder that `path` lies in, if there is one."""
    folder = path if path.is_dir() else path.parent
    for candidate in (folder, *folder.parents):
        if (candidate / "events.jsonl").exists() or (candidate / "campaign.toml").exists():
            return candidate
    return None
