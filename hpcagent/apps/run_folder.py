"""A run's own directory: made when something is first written into it, and held by one worker at a time.

Standard library only: a worker imports this.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcagent.owners import own_link

__all__ = ["LazyFolder", "locked", "make_dir", "opened", "set_aside", "sole_owner", "write_json"]

# How long a process that was killed may still hold the run's directory.
_ENDING_S = 1.0


class LazyFolder:
    """A run's directory, made and held when it is first asked for."""

    def __init__(self, manifest: Mapping[str, Any], path: Path) -> None:
        self._manifest, self._path = manifest, path
        self._lock = threading.Lock()  # a function may have threads
        self._held: contextlib.ExitStack | None = None
        self._ended = False
        _asked_for_none.add(self)

    @property
    def made(self) -> bool:
        return self._held is not None

    def path(self) -> Path:
        """The directory.

        Raises:
            OSError: It cannot be made.
        """
        if self._held is None:
            with self._lock:
                if self._held is None:
                    self._make()
        return self._path

    def _make(self) -> None:
        new = make_dir(self._path)
        with contextlib.ExitStack() as held:
            held.enter_context(sole_owner(self._path))
            if not new:
                set_aside(self._path)
            write_json(f"{self._path}/manifest.json", self._manifest)
            # A thread that the function has left behind comes after its end: the result on record stays the run's,
            # and a further attempt must not wait for that thread.
            self._held = contextlib.ExitStack() if self._ended else held.pop_all()
        _asked_for_none.discard(self)

    def close(self) -> None:
        _asked_for_none.discard(self)
        with self._lock:
            self._ended = True
            if self._held is not None:
                self._held.close()


_asked_for_none: set[LazyFolder] = set()


def _before_a_fork() -> None:
    """Make the directories of the runs that go on: a forked process would make its own, and hold it."""
    for folder in list(_asked_for_none):
        with contextlib.suppress(OSError):  # the function is told when it asks for it
            folder.path()


os.register_at_fork(before=_before_a_fork)


def locked(descriptor: int) -> None:
    """Hold a run's directory: the process that is being ended still does for a moment.

    Raises:
        OSError: It is held for longer: another worker is at it.
    """
    until = time.monotonic() + _ENDING_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def make_dir(workdir: Path) -> bool:
    """Make the directory; return whether it is new."""
    try:
        os.mkdir(workdir, 0o775)  # noqa: PTH102  (others cannot write it, whatever the umask)
        return True
    except FileExistsError:
        return False
    except FileNotFoundError:
        workdir.mkdir(0o775, parents=True, exist_ok=True)
        # Another worker may have made it at the same moment.
        return False


@contextlib.contextmanager
def sole_owner(workdir: Path) -> Iterator[None]:
    """Hold the directory, so that a forgotten worker of a killed coordinator and ours never share it."""
    descriptor = opened(workdir)
    try:
        # Where the file system knows no locks (ENOTSUP, ENOLCK) the lock is not worth failing for.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def opened(workdir: Path) -> int:
    """The directory, open; never by a link of another user, who would choose where the run writes.

    Raises:
        OSError: It is such a link, or cannot be opened.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(workdir, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR) or not own_link(workdir):
            raise
        return os.open(workdir, flags)  # e.g. of runs that were moved to an archive


def set_aside(workdir: Path) -> None:
    """Move what an interrupted attempt left into attempt-N/, so that nothing is lost or mixed up."""
    left = [p for p in workdir.iterdir() if not p.name.startswith("attempt-")]
    if not left:
        return
    number = 1
    while (workdir / f"attempt-{number}").exists():
        number += 1
    aside = workdir / f"attempt-{number}"
    aside.mkdir(0o775)
    for path in left:
        path.rename(aside / path.name)


def write_json(path: str, data: Any) -> None:
    """Write JSON under another name and rename it: a reader sees the whole file or none of it."""
    part = f"{path}.part"
    # Not through a link: in a folder that several share (`cache`), somebody else may have put one there.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(part, flags, 0o664), "wb", buffering=0) as file:
        text = json.dumps(data).encode()
        if file.write(text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    os.rename(part, path)  # noqa: PTH104
