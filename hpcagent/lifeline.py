"""Nothing is left running: processes that end with the one they serve.

Four threads hold a site together, each catching what the one before misses:

* `die_with_parent` — the kernel ends a child with its parent (Linux). Also reaches a child in a session
  of its own, which a signal to the process group does not.
* `watch` — calls back when another process, not necessarily the parent, has ended. Used where the kernel's
  signal cannot be: it fires when the parent *thread* ends, and a site may be opened in any thread.
* `end_all` — ends every process that inherited a mark in its environment, whatever it did to detach itself.
* `adopt_orphans` — makes this process the parent of what its descendants leave behind (Linux), so that a daemon
  that dropped the mark as well (`env -i setsid`) is found: `end_detached` at the end of a run, `end_strangers`
  and `end_tree` for all that is left. What has left by way of another machine, or of a service that starts
  processes for others (cron, at, systemd-run), is nobody's child here and is not found.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = [
    "FORKS",
    "MARK",
    "adopt_orphans",
    "birth",
    "die_with_parent",
    "end_all",
    "end_detached",
    "end_strangers",
    "end_tree",
    "is_stopped",
    "node_name",
    "uninterrupted",
    "watch",
]

MARK = "HPCAGENT_LIFELINE"
"""Environment variable that names what a process belongs to: `<site>/<block>/<worker pid>`."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 50
_PAUSE_S = 0.01


@functools.cache
def _prctl() -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    prctl: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
    return prctl


def node_name() -> str:
    """This node as its scheduler calls it: where several nodes are one machine, the host name is not it."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


FORKS = threading.RLock()
"""Held while a process is started with a `preexec_fn`, and while h5py is imported or HDF5 is written.

Before a fork Python takes the locks of `logging` and of h5py; h5py logs while it has its own. Where h5py was
imported before `logging` the two would wait for each other for ever, if the runs are in the coordinator's process.
"""


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends. Linux; elsewhere nothing.

    Cheap enough for `subprocess.Popen(..., preexec_fn=die_with_parent)`, and survives the exec. Start the
    child from a thread that lives as long as the child should: on a worker that is the main thread, which
    runs the tasks.

    Example:
        >>> import subprocess
        >>> subprocess.run(["true"], preexec_fn=die_with_parent).returncode
        0
    """
    prctl = _prctl()
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# Looked up once here: a preexec_fn runs between fork and exec, where loading a library could deadlock.
_prctl()


def birth(pid: int) -> str | None:
    """Return when process `pid` started, or None if it has ended (a zombie has ended).

    Two answers for one pid are equal only if it is still the same process; pids are reused.

    Args:
        pid: A process of this machine.

    Example:
        >>> birth(os.getpid()) == birth(os.getpid())
        True
    """
    if not sys.platform.startswith("linux"):
        import psutil

        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
        except psutil.Error:
            return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def watch(pid: int, born: str, then: Callable[[], None]) -> threading.Thread:
    """Call `then` in a thread of its own as soon as process `pid` has ended.

    Args:
        pid: The process to watch; need not be the parent.
        born: What `birth(pid)` said when it was known to be alive.
        then: Called once, at once if the process has ended already.

    Returns:
        The watching thread, a daemon.
    """

    def wait() -> None:
        _wait_for_end(pid, born)
        then()

    thread = threading.Thread(target=wait, name=f"lifeline-{pid}", daemon=True)
    thread.start()
    return thread


def _wait_for_end(pid: int, born: str) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # kernels before 5.3, some containers, not Linux
        while birth(pid) == born:
            time.sleep(0.5)
        return
    try:
        if birth(pid) == born:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            poll.poll()
    finally:
        os.close(handle)


def end_all(mark: str) -> int:
    """Kill every process of this user that carries `mark`, or one below it, except the caller.

    Finds what escaped the process group and the parent's death signal: a daemon of a user's own, say.

    Args:
        mark: A value of the environment variable `MARK`; `a/0` also means `a/0/4711`, but not `a/01`.

    Returns:
        How many were killed.
    """
    killed = 0
    for _ in range(5):  # again, until no process that forked meanwhile is left
        found = [pid for pid, value in _marked() if value == mark or value.startswith(f"{mark}/")]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
                killed += 1
            except OSError:
                continue
        if not found:
            break
    return killed


def _marked() -> Iterator[tuple[int, str]]:
    """Yield (pid, mark) of the live processes of this user that carry a mark, except the caller."""
    if not sys.platform.startswith("linux"):
        yield from _marked_by_psutil()
        return
    key = f"{MARK}=".encode()
    me = os.getuid()
    for folder in os.scandir("/proc"):
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if folder.stat().st_uid != me:
                continue
            environment = Path(folder.path, "environ").read_bytes()  # empty for a zombie
        except OSError:
            continue
        if key in environment:
            for entry in environment.split(b"\0"):
                if entry.startswith(key):
                    yield int(folder.name), entry[len(key) :].decode(errors="replace")


def _marked_by_psutil() -> Iterator[tuple[int, str]]:
    import psutil

    for process in psutil.process_iter():
        try:
            value = process.environ().get(MARK)
        except psutil.Error:
            continue
        if value is not None and process.pid != os.getpid():
            yield process.pid, value


# ---- orphans


class _Adopted:
    """Whether this process is given orphans, and which of its children had ended when it last looked."""

    by: int | None = None
    ended: frozenset[int] = frozenset()


def adopt_orphans() -> bool:
    """Have the kernel make this process the parent of its descendants' orphans. Not inherited by a fork.

    For processes whose children are all ours to end: a worker, a manager; not for a user's own.

    Returns:
        Whether it does; only Linux (3.4 and later) can.
    """
    prctl = _prctl()
    if prctl is None or prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        return False
    _Adopted.by = os.getpid()
    return True


def end_detached() -> int:
    """End what a task left behind in a session of its own; called by a worker between two tasks.

    A process in the worker's own session is left alone: a pool that a function keeps for its next call is one, and
    what a shell put into the background; those end with the worker. Costs one system call where there are no
    children.

    Returns:
        How many were killed; 0 in a process that is given no orphans.
    """
    if _Adopted.by != os.getpid() or not (mine := _children()):
        return 0
    killed, session = 0, os.getsid(0)
    for _ in range(_ROUNDS):
        detached = [pid for pid in mine if _session(pid) not in (session, None)]
        if not detached:
            break
        killed += _kill(detached)
        _reap(detached)
        mine = _children()  # those of the killed come to us in turn
    # Ended children of a `Popen` may still be asked for their exit code; not those of a task before the last.
    ended = frozenset(pid for pid in mine if _has_ended(pid))
    _reap(ended & _Adopted.ended)
    _Adopted.ended = ended - _Adopted.ended
    return killed


def end_strangers(own: frozenset[int]) -> int:
    """End every child of this process but `own`: orphans of a process that it has lost.

    Args:
        own: Ids of the children that it started itself.
    """
    if _Adopted.by != os.getpid():
        return 0
    killed = 0
    for _ in range(_ROUNDS):
        strangers = [pid for pid in _children() if pid not in own]
        if not strangers:
            break
        killed += _kill(strangers)
        _reap(strangers)
    return killed


def end_tree(root: int, *, itself: bool = True) -> None:
    """Kill all descendants of a process, then the process.

    Args:
        root: Its id. Where it adopts orphans, nothing that was started below it can escape.
        itself: Whether it is ended as well; it is stopped meanwhile then, so that it starts nothing new.
    """
    with uninterrupted():  # left in between, the process would stay stopped for ever
        if itself:
            _signal(root, signal.SIGSTOP)
        for _ in range(_ROUNDS):
            found = _descendants(root)
            if not found:
                break
            for pid in found:
                _signal(pid, signal.SIGKILL)
            time.sleep(_PAUSE_S)
        if itself:
            _signal(root, signal.SIGKILL)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP wait until the end of the block; for what takes a moment and must not be halved.

    Not by a signal mask: the kernel would give the signal to another thread, Python handles it in the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python interrupts the main thread only
        return
    came: list[int] = []
    before: dict[int, Callable[..., object] | int] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handler = signal.getsignal(number)
            if handler is not None and handler != signal.SIG_IGN:  # None: not set by Python, nor put back by it
                before[number] = handler
                signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for held, handler in before.items():
            signal.signal(held, handler)
        for first in came[:1]:
            signal.raise_signal(first)


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped a process (SIGSTOP, Ctrl-Z); False where that is not known."""
    about = _stat(pid)
    return about is not None and about[0] == "T"


def _stat(pid: int) -> tuple[str, int] | None:
    """State and parent of a process; None if it is gone, or this is not Linux."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[1])


def _descendants(root: int) -> list[int]:
    """Live descendants, parents before children."""
    if not Path("/proc/self/stat").exists():
        import psutil

        try:
            return [p.pid for p in psutil.Process(root).children(recursive=True)]
        except psutil.Error:
            return []
    below: dict[int, list[int]] = {}
    ended: set[int] = set()
    for name in os.listdir("/proc"):  # noqa: PTH208  (names are enough)
        about = _stat(int(name)) if name.isdigit() else None
        if about is not None:
            below.setdefault(about[1], []).append(int(name))
            if about[0] in "ZX":
                ended.add(int(name))
    found, todo = [], [root]
    while todo:
        children = below.get(todo.pop(), [])
        found += children
        todo += children
    return [pid for pid in found if pid not in ended and pid != os.getpid()]


def _children() -> list[int]:
    """Children of this process, ended ones among them."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    me = os.getpid()
    try:
        tasks = [Path(entry.path, "children").read_bytes() for entry in os.scandir("/proc/self/task")]
        return [int(pid) for children in tasks for pid in children.split()]
    except OSError:  # a kernel without that file
        names = (name for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
        return [int(name) for name in names if (_stat(int(name)) or ("", 0))[1] == me]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def _kill(children: list[int]) -> int:
    """Kill children; says how many of them were alive."""
    return sum(not _has_ended(pid) and _signal(pid, signal.SIGKILL) for pid in children)


def _reap(children: list[int] | frozenset[int]) -> None:
    """Take the exit codes of children that were killed, or have ended; one that cannot die is left."""
    deadline = time.monotonic() + 1.0
    for pid in children:
        try:
            while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
                time.sleep(0.001)
        except ChildProcessError:
            continue
