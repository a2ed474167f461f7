"""Files of runs that other runs read: taken once, by their content, to where no run can put others."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcagent.apps.made_with import sha256
from hpcagent.errors import BadInput, in_brief
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.store.files import make_folder, refusing_clearly
from hpcagent.workspace.artifacts import opened
from hpcagent.workspace.rows import Row

__all__ = ["Inputs", "Room", "refuse_unended"]

Room = Callable[[str, int], contextlib.AbstractContextManager[None]]
"""Makes room for a file, by its path below the folder and its bytes, or refuses it; around the taking."""

COPIED = 64 << 20
"""Bytes of a file up to which it is copied; of a larger one a second name is made, which takes no room."""
_MOST_KNOWN = 4096
_PIECE = 1 << 20
_DIGEST = re.compile(r"/([0-9a-f]{64})/")


def refuse_unended(text: str, row: Row, others: Sequence[Row], *, field: str = "") -> None:
    """Refuse a file of a run that goes on, or may go on: what it will have in it in the end nobody knows.

    Args:
        text: `artifact:RUN/PATH`.
        row: The run.
        others: Runs that are at the same work at this moment, whoever asked for them.
        field: The parameter that names the file.

    Raises:
        NotAllowed: Which run, and how it stands.
    """
    if row.state == "cancelled":
        raise NotAllowed(
            "contract",
            f"the run {row.id} was cancelled: its files may be half written, and its program may still be at them",
            field=field,
            value=text,
            allowed="a file of a run that has come to its end by itself",
            do="name another run, or do this one once more; `fetch` reads its files as they are",
        )
    if row.over and not others:
        return
    how = f"has not ended ({row.state})" if not row.over else "is being done once more, for somebody else"
    raise NotAllowed(
        "contract",
        f"the run {row.id} {how}: its files may still change",
        field=field,
        value=text,
        allowed="a file of a run that has ended",
        do="wait for it, and ask again; nothing was run",
    )


class Inputs:
    """The folder in which a workspace keeps files of runs that other runs read: `inputs/SHA256/NAME`.

    A run's own folder is no place to read them from: a program may be in it that puts a link there, behind which
    there is any file of the workspace's owner. What is kept here is the file itself that was opened, without
    following a link, and no sandbox can write here. So the same content under the same name has one path, and is
    the same work.

    Small files are copied. Large ones (`COPIED`), trajectories, get a second name, where the file system has such:
    a copy would double what they take. That is as safe, as a name of a file is never a link; who may write the
    run's folder can still write into the file, and then its digest is another one, which the run that reads it
    notices (`FilesChanged`).

    Args:
        folder: Is made when the first file is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[tuple[int, ...], str] = {}

    def keep(self, folder: Path, path: str, room: Room = lambda path, size: contextlib.nullcontext()) -> Path:
        """Take a file of a run, if it is not here yet; its path here.

        Args:
            folder: The run's.
            path: Of the file, below it.
            room: Is asked before it is taken.

        Raises:
            BadInput: There is no such file, a part of its path is a link, or it is written at this moment.
            StoreFull: There is no room for it.
        """
        file = opened(folder, path)
        try:
            state = _state_of(file)
            digest = self._digest(file, state)
            target = self.folder / digest / path.rpartition("/")[2]
            with refusing_clearly(target):
                make_folder(target.parent)
                os.utime(target.parent)  # it was asked for now: see `tidy`
                if not _has(target, digest):
                    self._take(file, target, digest, room)
            if _state_of(file)[:4] != state[:4]:
                raise _is_written(path)
            return target
        finally:
            os.close(file)

    def _take(self, file: int, target: Path, digest: str, room: Room) -> None:
        size, part = os.fstat(file).st_size, target.with_name(f".{secrets.token_hex(8)}.part")
        try:
            linked = size > COPIED and _second_name(file, part)
            with room(f"{digest}/{target.name}", 0 if linked else size):
                if not linked and _copied(file, part) != digest:
                    raise _is_written(target.name)
                part.replace(target)
        finally:
            part.unlink(missing_ok=True)  # two names of one file: the replacement leaves both

    def sizes(self) -> dict[str, int]:
        """Each file here, by its path, and the bytes that it takes: none while a run's folder has it, too."""
        found: dict[str, int] = {}
        for path in self.folder.glob("*/*"):
            with contextlib.suppress(OSError):  # removed at this moment
                now = path.lstat()
                if stat.S_ISREG(now.st_mode):
                    found[f"{path.parent.name}/{path.name}"] = now.st_size if now.st_nlink == 1 else 0
        return found

    def tidy(self, params: Iterable[Mapping[str, Any]], before: float) -> None:
        """Remove what nobody names any longer.

        Args:
            params: Of the runs and campaigns that may still read their files.
            before: What was asked for since then stays in any case, in Unix seconds.
        """
        if not self.folder.is_dir():
            return
        below = str(self.folder)
        named = {
            digest
            for one in params
            for value in one.values()
            if isinstance(value, str) and below in value
            for digest in _DIGEST.findall(value)
        }
        for one in self.folder.iterdir():
            with contextlib.suppress(OSError):
                if one.name not in named and one.lstat().st_mtime < before:
                    shutil.rmtree(one)

    def _digest(self, file: int, state: tuple[int, ...]) -> str:
        found = self._known.get(state)
        if found is None:
            with os.fdopen(os.dup(file), "rb") as content:
                found = hashlib.file_digest(content, "sha256").hexdigest()
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            if _state_of(file) == state:
                self._known[state] = found
        return found


def _state_of(file: int) -> tuple[int, ...]:
    """What changes when the file does; the last number also when it gets another name."""
    now = os.fstat(file)
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def _is_written(name: str) -> BadInput:
    return BadInput(f"{in_brief(name)} is being written at this moment; ask again when it is not.", value=name)


def _has(target: Path, digest: str) -> bool:
    """Whether a file is here as it should be: of one with two names somebody may have changed the content."""
    try:
        return stat.S_ISREG(target.lstat().st_mode) and sha256(target) == digest
    except OSError:
        return False


def _second_name(file: int, path: Path) -> bool:
    """Give the file of a descriptor, whatever has its old name by now, a second name; False: that cannot be."""
    here = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a folder's descriptor the system's linkat is asked, which goes from /proc to the file itself.
        os.link(f"/proc/self/fd/{file}", path.name, dst_dir_fd=here, follow_symlinks=True)
        found = os.stat(path.name, dir_fd=here, follow_symlinks=False)
        if (found.st_dev, found.st_ino) == _state_of(file)[:2]:
            return True
        os.unlink(path.name, dir_fd=here)
    except (OSError, NotImplementedError):
        pass
    finally:
        os.close(here)
    return False


def _copied(file: int, path: Path) -> str:
    """Copy the file of a descriptor; SHA-256 of what was written."""
    made, offset = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    with os.fdopen(descriptor, "wb") as copy:
        while piece := os.pread(file, _PIECE, offset):
            copy.write(piece)
            made.update(piece)
            offset += len(piece)
    return made.hexdigest()
