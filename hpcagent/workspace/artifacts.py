"""Files of a run, read safely: below its folder only, never through a link, no devices."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput, NotThere, in_brief
from hpcagent.shown import plain

__all__ = ["list_files", "read_piece", "size_of", "tail_of"]

LARGEST_PIECE = 8 << 20
MOST_FILES = 10_000
TAIL_BYTES = 1 << 16
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
LOGS = ("log.lammps", "output.txt", "stderr.txt", "stdout.txt")


def list_files(folder: Path, below: str = "") -> list[dict[str, Any]]:
    """Regular files below a folder: path, bytes; the first ten thousand by name.

    Args:
        folder: The folder.
        below: Only those in this folder of it, e.g. `work/EXECUTION_ID` of a campaign; none where it is not there.

    Raises:
        BadInput: `below` leads elsewhere.
    """
    found: list[dict[str, Any]] = []
    parts = [] if below == "" else _parts(below)
    try:
        here = os.open(folder, _FOLDER)
    except OSError:
        return found
    try:
        for part in parts:
            there = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = there
        # Folder by folder as it was opened: one that becomes a link meanwhile is not followed.
        for where, folders, files, inside in os.fwalk(".", dir_fd=here, follow_symlinks=False):
            folders.sort()
            for name in sorted(files):
                try:
                    status = os.stat(name, dir_fd=inside, follow_symlinks=False)
                except OSError:
                    continue  # gone meanwhile
                if stat.S_ISREG(status.st_mode):
                    found.append(
                        {"path": os.path.normpath(f"{below}/{where}/{name}").lstrip("/"), "bytes": status.st_size}
                    )
                if len(found) >= MOST_FILES:
                    return found
    except OSError:
        return found  # there is no such folder, or not any more
    finally:
        os.close(here)
    return found


def opened(folder: Path, path: str) -> int:
    """A descriptor of a regular file below a folder; no part of its path is followed as a link.

    Raises:
        BadInput: The path leads elsewhere, or there is no such file.
    """
    parts = _parts(path)
    here = -1
    try:
        here = os.open(folder, _FOLDER)
        for part in parts[:-1]:
            there = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = there
        return _opened_in(here, parts[-1], path)
    except OSError as error:
        raise NotThere(
            f"the run has no file {in_brief(path)} that can be read ({error.strerror}); links are not followed.",
            value=path,
        ) from None
    finally:
        if here >= 0:
            os.close(here)


def _opened_in(here: int, name: str, path: str) -> int:
    """A descriptor of a regular file in an open folder; `path` is what it is called in an error."""
    # Not blocking: a pipe that nobody writes would keep the service.
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        os.close(file)
        raise BadInput(f"{in_brief(path)} is no regular file.", value=path)
    # A run can copy what it may read; another user's file that it can only name is no file of the run.
    if status.st_nlink > 1 and status.st_uid != os.geteuid():
        os.close(file)
        raise BadInput(f"{in_brief(path)} is another user's file with several names; it is not read.", value=path)
    return file


def _parts(path: str) -> list[str]:
    """The names in a path below a run's folder.

    Raises:
        BadInput: It leads elsewhere.
    """
    parts = path.split("/") if isinstance(path, str) else [""]
    if any(part in ("", ".", "..") for part in parts) or not path.isprintable() or "\\" in path:
        raise BadInput(
            f"{in_brief(path)} is no path below this run's folder. Give one relative to it, without `..`, empty "
            "parts, backslashes and control characters.",
            value=path,
        )
    return parts


def read_piece(folder: Path, path: str, offset: int, length: int) -> dict[str, Any]:
    """A piece of a file, in base64; `next` is the offset of the piece behind it, None at the end.

    Raises:
        BadInput: There is no such file, or offset or length is out of range.
    """
    if not 0 <= length <= LARGEST_PIECE or offset < 0:
        raise BadInput(
            f"offset={offset}, length={length}: offset is 0 or more, length 0 to {LARGEST_PIECE} bytes.",
            value=[offset, length],
        )
    file = opened(folder, path)
    try:
        size = os.fstat(file).st_size
        data = os.pread(file, length, offset)
    finally:
        os.close(file)
    after = offset + len(data)
    return {
        "path": path,
        "bytes": size,
        "offset": offset,
        "data": base64.b64encode(data).decode(),
        "next": after if after < size else None,
    }


def tail_of(folder: Path, lines: int) -> list[str]:
    """The last lines of a run's log, without control characters; empty where there is none yet."""
    try:
        here = os.open(folder, _FOLDER)
    except OSError:
        return []
    try:
        for name in LOGS:
            try:
                file = _opened_in(here, name, name)
            except (OSError, BadInput):
                continue
            try:
                size = os.fstat(file).st_size
                data = os.pread(file, TAIL_BYTES, max(0, size - TAIL_BYTES))
            finally:
                os.close(file)
            if data:
                text = data.decode("utf-8", "replace").splitlines()
                if size > TAIL_BYTES and len(text) > 1:
                    del text[0]  # a part of a line, of which what tells a secret may be cut off
                return [plain(line) for line in text[-lines:]]
        return []
    finally:
        os.close(here)


def size_of(folder: Path) -> int:
    """Bytes of all files of a run."""
    return sum(int(one["bytes"]) for one in list_files(folder))
