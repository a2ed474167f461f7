"""Unix sockets of the owner's alone, and the note beside each that says where it is."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import select
import socket
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.lifeline import node_name
from hpcagent.model.base import read_json
from hpcagent.store.files import write_whole

__all__ = ["Lines", "Listening", "connect"]

LOOK_S = 1.0
# So often a process shows that it lives; on another machine it is taken for dead after so long without.
BEAT_S = 60.0
SILENT_S = 300.0
# The path of a Unix socket has at most 107 bytes (Linux: unix(7)).
LONGEST_PATH = 100


class Lines:
    """A connection that is read by one thread and written by others, line by line.

    Args:
        connection: The socket; it is closed with this.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._reader = connection.makefile("rb")

    @property
    def uid(self) -> int:
        """The user at the other end (Linux: socket(7), SO_PEERCRED)."""
        size = struct.calcsize("3i")
        _, uid, _ = struct.unpack("3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        return int(uid)

    def read(self, most: int = -1) -> bytes:
        """The next line, of at most so many bytes; empty at the end."""
        return self._reader.readline(most)

    def write(self, said: Any) -> None:
        """Send plain data as a line.

        Raises:
            OSError: The other end has gone.
        """
        self._socket.sendall(json.dumps(said, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Close it, also under a thread that reads; harmless when called twice."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._reader.close()  # a thread that reads has come to the end by now
        self._socket.close()

    def __del__(self) -> None:
        """A connection that is forgotten is closed."""
        self.close()


class Listening:
    """A socket in a folder, of mode 600; `about` says host, process and path.

    Args:
        folder: Where it is, if its path is short enough and the file system has sockets; else in a private one.
        name: Its name there.
        about: The note.
        most: So many connections wait.
    """

    def __init__(self, folder: Path, name: str, about: Path, *, most: int) -> None:
        self._about = about
        self._touched = time.monotonic()
        self._private: Path | None = None
        inside = folder / name
        if len(os.fsencode(inside)) > LONGEST_PATH or not _takes_sockets(folder):
            self._private = Path(tempfile.mkdtemp(prefix="hpcagent-", dir=os.environ.get("XDG_RUNTIME_DIR")))
            inside = self._private / name
        self._place = inside
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            with contextlib.suppress(FileNotFoundError):
                inside.unlink()  # of a process that was killed: the lock of its folder is ours
            self.socket.bind(str(inside))
        finally:
            os.umask(before)
        self.socket.listen(most)
        self.socket.setblocking(False)
        self._stopped, self._stop = socket.socketpair()
        self._look = select.poll()
        for one in (self.socket, self._stopped):
            self._look.register(one, select.POLLIN)
        self._said = {
            "host": node_name(),
            "pid": os.getpid(),
            "socket": str(inside),
            "folder": str(about.parent.resolve()),
            "since": time.time(),
        }
        self._write_note()

    def _write_note(self) -> None:
        write_whole(self._about, json.dumps(self._said) + "\n", private=True)
        self._remember()

    def _remember(self) -> None:
        status = self._about.stat()
        self._as_left = status.st_size, status.st_mtime_ns

    @property
    def found(self) -> bool:
        """Whether others can reach this process: its socket is there."""
        return self._place.exists()

    def accept(self) -> Lines | None:
        """The next connection; None if none came for a while, or there are no descriptors for it at the moment."""
        try:
            if self._look.poll(LOOK_S * 1000) == []:
                return None
            connection, _ = self.socket.accept()
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED, errno.ENOBUFS, errno.ENOMEM):
                raise
            time.sleep(0.1)
            return None
        connection.setblocking(True)
        return Lines(connection)

    def stop(self) -> None:
        """Have `accept` return at once from now on; from any thread, or a signal's handler."""
        with contextlib.suppress(OSError):  # closed already
            self._stop.send(b"\n")

    def touch(self) -> None:
        """Show that this process lives, to those on other machines; mend a note that somebody has changed."""
        with contextlib.suppress(OSError):
            now = self._about.stat() if self._about.exists() else None
            if now is None or (now.st_size, now.st_mtime_ns) != self._as_left:
                self._write_note()
        if time.monotonic() - self._touched > BEAT_S:
            self._touched = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self._about)
                self._remember()

    def close(self) -> None:
        """Close it and remove socket and note; harmless when called twice."""
        self.socket.close()
        self._stopped.close()
        self._stop.close()
        for path in (self._place, self._about):
            with contextlib.suppress(OSError):
                path.unlink()
        if self._private is not None:
            with contextlib.suppress(OSError):
                self._private.rmdir()


def connect(about: Path, *, what: str, do: str) -> Lines | None:
    """A connection to the process that listens; None if there is none.

    Args:
        about: The note that `Listening` writes.
        what: Who it is, for an error.
        do: What to do where it is on another machine.

    Raises:
        BadInput: It runs on another machine, or its socket is not the user's alone.
    """
    try:
        said = read_json(about)
        place, host = str(said["socket"]), str(said["host"])
        if said["folder"] != str(about.parent.resolve()):
            return None  # a copy of the folder: it is the other's
    except (HpcAgentError, OSError, KeyError, TypeError):
        return None
    if host != node_name():
        if _is_dead(about):
            return None
        raise BadInput(
            f"{what} runs on {host}, and this is {node_name()}: {do}. Was that machine switched off, it is taken "
            f"for dead {SILENT_S:g} s after its last sign.",
            value=host,
        )
    _refuse_foreign(Path(place))
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.connect(place)
    except OSError:
        one.close()
        return None
    return Lines(one)


def _is_dead(about: Path) -> bool:
    """Whether a process on another machine has given no sign for long. If it lives, its lock keeps others out."""
    try:
        return time.time() - about.stat().st_mtime > SILENT_S
    except OSError:
        return True


def _takes_sockets(folder: Path) -> bool:
    """Whether the file system has sockets: some network file systems do not."""
    path = folder / f".{secrets.token_hex(4)}.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        try:
            one.bind(str(path))
        except OSError:
            return False
        path.unlink()
        return True


def _refuse_foreign(place: Path) -> None:
    """Refuse a socket that another user may have put there, or may use."""
    try:
        status = place.lstat()
    except OSError:
        return
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise BadInput(
            f"{place} belongs to user {status.st_uid} with mode {status.st_mode & 0o777:o}; it has to be yours "
            "with mode 600. Remove it, and ask again: the process is started anew.",
            value=str(place),
        )
