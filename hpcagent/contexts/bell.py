"""How a waiting process hears of a write: by a named pipe of its own, and by a look at the size now and then.

A listener sleeps in the kernel until a byte comes. Pipes do not reach other machines: there the file's size is
looked at every `poll_s`, by opening it, since that is when a network file system asks its server.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import stat
import time
from pathlib import Path
from types import TracebackType

from hpcagent.store.files import make_folder, open_plain

__all__ = ["POLL_S", "Bell", "Listener"]

POLL_S = 0.5
"""So often a listener looks at the size of the file, in seconds."""
_COUNT = itertools.count()


class Bell:
    """Rung by whoever has written a file.

    Args:
        path: The file that is written.
        folder: Where listeners have their pipes.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self.folder = folder

    def ring(self) -> None:
        """Wake the listeners on this machine; costs one look at a folder where there are none."""
        try:
            entries = list(os.scandir(self.folder))
        except OSError:
            return
        for entry in entries:
            self._wake(entry.path)

    def _wake(self, path: str) -> None:
        try:
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            # Nobody reads it: its listener was killed, or is on another machine, where it hears no pipe of ours.
            self._sweep(path)
            return
        try:
            if stat.S_ISFIFO(os.fstat(pipe).st_mode):
                os.write(pipe, b"!")
        except OSError:
            pass  # full of bytes that were not read yet, or closed this moment
        finally:
            os.close(pipe)

    def _sweep(self, path: str) -> None:
        host = Path(path).name.rpartition("@")[2]
        with contextlib.suppress(OSError):
            if host == os.uname().nodename and stat.S_ISFIFO(os.lstat(path).st_mode):
                os.unlink(path)  # noqa: PTH108

    def listen(self, *, poll_s: float = POLL_S) -> Listener:
        """A listener; close it, or use it in a `with` statement."""
        return Listener(self, poll_s)


class Listener:
    """Waits until a file has grown.

    Args:
        bell: What it listens to.
        poll_s: So often the size is looked at, in seconds.
    """

    def __init__(self, bell: Bell, poll_s: float) -> None:
        self._path = bell.path
        self._poll_s = poll_s
        self._pipe = -1
        self._name: Path | None = None
        name = bell.folder / f"{os.getpid()}-{next(_COUNT)}@{os.uname().nodename}"
        try:
            make_folder(bell.folder)
            os.mkfifo(name, 0o600)
            self._name = name
            # Also for writing: else it reads as ended whenever a writer closes it.
            self._pipe = os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self.close()  # a file system without pipes, or a folder that only others write: by size alone

    @property
    def hears(self) -> bool:
        """Whether it has a pipe; else it looks at the size only."""
        return self._pipe >= 0

    def wait(self, size: int | None, timeout_s: float | None = None) -> bool:
        """Wait until the file has another size than this, or somebody rings.

        Args:
            size: Bytes that it had when it was read; None: it is not looked at.
            timeout_s: So long at most; None: as long as it takes.

        Returns:
            Whether there may be something to read; False: the time is over.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if size is not None and self._size() != size:
                return True
            rest = self._poll_s if deadline is None else min(self._poll_s, deadline - time.monotonic())
            if rest <= 0:
                return False
            if self._pipe < 0:
                time.sleep(rest)
                continue
            ready, _, _ = select.select([self._pipe], [], [], rest)
            if ready:
                with contextlib.suppress(OSError):
                    os.read(self._pipe, 4096)
                return True

    def _size(self) -> int:
        try:
            descriptor = open_plain(self._path, os.O_RDONLY)
        except OSError:
            return 0
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Take the pipe away; harmless when called twice."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._name is not None:
            with contextlib.suppress(OSError):
                self._name.unlink()
            self._name = None

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
