"""Files of a registry: plain ones of one's own are read, written whole; links are neither followed nor trusted."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput
from hpcagent.registry.source import LARGEST
from hpcagent.store.files import open_plain, write_whole

__all__ = ["mark", "newlines", "read_own", "write_record", "young"]

MOST = 10 * LARGEST
"""Bytes of a file."""


def write_record(path: Path, record: Any) -> None:
    """Write a record as JSON that a person can read and edit; the file is replaced whole, also a link."""
    write_whole(path, record.model_dump_json(indent=1) + "\n")


def read_own(path: Path, *, anybodys: bool = False) -> str:
    """The text of a plain file: no link, no second name of another file, no pipe, not too large.

    Args:
        path: The file.
        anybodys: It may belong to another user: what is in it decides nothing.

    Raises:
        BadInput: It is not there, or none.
    """
    try:
        descriptor = open_plain(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        what = (
            "is a symbolic link, which is not followed"
            if path.is_symlink()
            else f"cannot be read: {error.strerror}"
        )
        raise BadInput(f"{path.name} {what}.", value=str(path)) from None
    about = os.fstat(descriptor)
    if stat.S_ISDIR(about.st_mode):
        os.close(descriptor)
        raise BadInput(f"{path.name} is a folder.", value=str(path))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
            raise BadInput(f"{path.name} is no plain file, or a second name of another.", value=str(path))
        if not anybodys and (about.st_uid not in (os.geteuid(), 0) or about.st_mode & stat.S_IWOTH):
            raise BadInput(f"{path.name} belongs to another user, or every user may write it.", value=str(path))
        data = file.read(MOST + 1)
    try:
        if len(data) > MOST:
            raise BadInput(f"{path.name} has more than {MOST} bytes.", value=str(path))
        return data.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{path.name} is no UTF-8.", value=str(path)) from None


def newlines(text: str) -> str:
    """A text with the newlines of this system."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def mark(path: Path) -> tuple[int, int, int] | None:
    """What tells a file from what it was; None where it is not there."""
    try:
        about = path.lstat()
    except OSError:
        return None
    return about.st_ino, about.st_mtime_ns, about.st_size


def young(marks: Any, now: float) -> bool:
    """Whether a file was written so lately that its clock may not tell the next change."""
    return any(one is not None and now - one[1] / 1e9 < 2.0 for one in marks)
