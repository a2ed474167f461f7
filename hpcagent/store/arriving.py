"""A file that comes from another machine: private, under another name until it is whole, never through a link."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hpcagent.errors import BadInput, StoreFull, in_brief
from hpcagent.owners import own_link

__all__ = ["Arriving", "Place", "digest_of"]

PART = ".part"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_BLOCK = 1 << 20


class Place:
    """A folder into which files come, by paths below it. What is made in it is private to the user.

    Paths have been checked (`model.remote.far_path`); links below the folder are not followed, whoever made them.

    Args:
        base: The folder; made with the first file.
    """

    def __init__(self, base: Path) -> None:
        self.base = base

    def path(self, name: str) -> Path:
        """Where a file of this name is, or will be."""
        return self.base / name

    def digest(self, name: str, size: int) -> str | None:
        """SHA-256 of the file that is here; None where there is none, or it has another size ("" then).

        Raises:
            BadInput: Something else than a file lies there, or the way to it is a link.
        """
        try:
            with self._folder(name, make=False) as folder:
                found = os.stat(os.path.basename(name), dir_fd=folder, follow_symlinks=False)  # noqa: PTH119
                if not stat.S_ISREG(found.st_mode):
                    raise BadInput(
                        f"{self.path(name)} is here, and is no regular file; remove it, or fetch to another "
                        "folder (--to).",
                        value=str(self.path(name)),
                    )
                if found.st_size != size:
                    return ""
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                descriptor = os.open(os.path.basename(name), flags, dir_fd=folder)  # noqa: PTH119
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return digest_of(descriptor)
        finally:
            os.close(descriptor)

    def free(self) -> int:
        """Bytes that the user may still write on the disk of the folder."""
        folder = self.base
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        with contextlib.suppress(OSError):
            found = os.statvfs(folder)
            return found.f_bavail * found.f_frsize
        return 2**63

    @contextlib.contextmanager
    def arriving(self, name: str) -> Iterator[Arriving]:
        """A file on its way, continued where an earlier try was cut off.

        Raises:
            BadInput: Another process brings the same file now, or a link or folder is in the way.
            StoreFull: It cannot be written.
        """
        try:
            with self._folder(name, make=True) as folder:
                file = Arriving(self.path(name), folder)
                try:
                    yield file
                finally:
                    file.close()
        except BadInput:
            raise
        except OSError as error:
            raise StoreFull(
                f"{self.path(name)} cannot be written: {error.strerror or error}. What has come is kept in "
                f"{self.path(name)}{PART}; free space or correct the permissions, and fetch it again.",
                path=str(self.path(name)),
                errno=error.errno,
            ) from error

    @contextlib.contextmanager
    def _folder(self, name: str, *, make: bool) -> Iterator[int]:
        """The folder of a file, open: step by step, so that nothing on the way is a link."""
        if make:
            self.base.mkdir(0o700, parents=True, exist_ok=True)
        descriptor = self._base()
        try:
            for part in name.split("/")[:-1]:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=descriptor)
                inner = self._step(descriptor, part, name)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _base(self) -> int:
        try:
            return os.open(self.base, _FOLDER | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR) or not own_link(self.base):
                raise
            return os.open(self.base, _FOLDER)  # runs that were moved to another disk

    def _step(self, descriptor: int, part: str, name: str) -> int:
        try:
            return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise BadInput(
                f"{in_brief(part)} on the way to {self.path(name)} is a link or a file, no folder; remove it, or "
                "fetch to another folder (--to).",
                value=str(self.path(name)),
            ) from None


class Arriving:
    """One file on its way, as NAME.part beside where it will be.

    Attributes:
        have: Bytes that are here.
    """

    def __init__(self, path: Path, folder: int) -> None:
        self._path, self._folder, self._name = path, folder, path.name
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self._name + PART, flags, 0o600, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
            raise BadInput(f"{path}{PART} is no regular file; remove it.", value=str(path)) from None
        try:
            self._begin()
        except BaseException:
            os.close(self._descriptor)
            raise

    def _begin(self) -> None:
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise BadInput(f"{self._path}{PART} is no file of its own; remove it.", value=str(self._path))
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(
                f"{self._path} is being fetched by another process now; wait for it.", value=str(self._path)
            ) from None
        except OSError:
            pass  # a file system without locks
        os.fchmod(self._descriptor, 0o600)
        self.have = found.st_size

    def write(self, data: bytes) -> None:
        """Append."""
        view = memoryview(data)
        while view:
            done = os.pwrite(self._descriptor, view, self.have)
            self.have += done
            view = view[done:]

    def restart(self) -> None:
        """Forget what is here."""
        os.ftruncate(self._descriptor, 0)
        self.have = 0

    def digest(self) -> str:
        """SHA-256 of what is here."""
        return digest_of(self._descriptor)

    def settle(self) -> None:
        """Give it its name: it is whole and verified. What has that name already stays.

        Raises:
            BadInput: There is such a file by now.
        """
        os.fsync(self._descriptor)
        try:
            # Unlike a rename, a second name is given only where there is none.
            os.link(self._name + PART, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            os.unlink(self._name + PART, dir_fd=self._folder)
        except FileExistsError:
            raise _there_already(self._path) from None
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
                raise
            self._rename()  # a file system without hard links

    def _rename(self) -> None:
        try:
            os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(self._name + PART, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        else:
            raise _there_already(self._path)

    def close(self) -> None:
        """Let go of it; without `settle` it stays as NAME.part, unless nothing of it came."""
        if not self.have:
            with contextlib.suppress(OSError):
                found = os.stat(self._name + PART, dir_fd=self._folder, follow_symlinks=False)
                if found.st_ino == os.fstat(self._descriptor).st_ino:
                    os.unlink(self._name + PART, dir_fd=self._folder)
        os.close(self._descriptor)


def _there_already(path: Path) -> BadInput:
    return BadInput(
        f"{path} is here with another content, and stays. Remove it, or fetch to another folder (--to).",
        value=str(path),
    )


def digest_of(descriptor: int) -> str:
    """SHA-256 of an open file, from its beginning."""
    digest, at = hashlib.sha256(), 0
    while block := os.pread(descriptor, _BLOCK, at):
        digest.update(block)
        at += len(block)
    return digest.hexdigest()
