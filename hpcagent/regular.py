"""Files are opened without ever waiting for another program. Standard library only: workers use it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

__all__ = ["open_regular", "read_regular"]


def open_regular(path: str | Path, *, follow: bool = True) -> IO[bytes]:
    """Open a file for reading, never waiting for another program: a named pipe in its place is refused.

    Args:
        path: The file.
        follow: Whether it may be a link: not where a program that is not trusted can put one.

    Raises:
        OSError: It cannot be opened, or is no regular file; what a shell gives (`/dev/fd/63`) may be a pipe.

    Example:
        >>> with open_regular(os.devnull) as file:
        ...     file.read()
        b''
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(found):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found):
            if not str(path).startswith("/dev/"):
                raise OSError(errno.EINVAL, "it is no regular file", str(path))
            os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | Path) -> bytes:
    """The content of a file, as `open_regular` opens it.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """
    with open_regular(path) as file:
        return file.read()
