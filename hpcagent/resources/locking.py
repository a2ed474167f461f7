"""Writers take turns: a lock on a file, which the kernel frees when its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from hpcagent.errors import StoreError
from hpcagent.store.files import open_plain, refusing_clearly

__all__ = ["held"]

_PAUSE_S = 0.005


@contextlib.contextmanager
def held(path: Path, *, mode: int = 0o600, within_s: float | None = 60.0) -> Iterator[bool]:
    """Hold the lock of a file while the block runs; threads and processes exclude each other alike.

    Args:
        path: The lock file; made if it is not there, and left there.
        mode: Its permissions when it is made.
        within_s: How long to wait for it, in seconds; None: as long as it takes.

    Yields:
        Whether it had to be waited for.

    Raises:
        StoreError: Somebody else held it all that time, or the file system has no locks.
    """
    with refusing_clearly(path):
        descriptor = open_plain(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        if os.fstat(descriptor).st_uid == os.getuid():
            os.fchmod(descriptor, mode)  # whatever the umask is
        yield _taken(descriptor, path, within_s)
    finally:
        os.close(descriptor)  # frees it


def _taken(descriptor: int, path: Path, within_s: float | None) -> bool:
    until = None if within_s is None else time.monotonic() + within_s
    waited = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return waited
        except BlockingIOError:
            waited = True
            if until is not None and time.monotonic() > until:
                raise StoreError(
                    f"{path} was held by another writer for {within_s:g} s; see who works there, and try again.",
                    path=str(path),
                ) from None
            time.sleep(_PAUSE_S)
        except OSError as error:
            raise StoreError(
                f"{path.parent} is on a file system without file locks ({error.strerror}); put the resources "
                "elsewhere (project space, home).",
                path=str(path),
            ) from error
