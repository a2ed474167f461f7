"""Nothing is left running: processes that end with the one they serve.

Three threads hold a site together, each catching what the one before misses:

* `die_with_parent` — the kernel ends a child with its parent (Linux). Also reaches a child in a session
  of its own, which a signal to the process group does not.
* `watch` — calls back when another process, not necessarily the parent, has ended. Used where the kernel's
  signal cannot be: it fires when the parent *thread* ends, and a site may be opened in any thread.
* `end_all` — ends every process that inherited a mark in its environment, whatever it did to detach itself.
"""

from __future__ import annotations

import ctypes
import functools
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["MARK", "birth", "die_with_parent", "end_all", "watch"]

MARK = "HPCAGENT_LIFELINE"
"""Environment variable that names what a process belongs to: `<site>/<block>/<worker pid>`."""

_PR_SET_PDEATHSIG = 1


@functools.cache
def _prctl() -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    prctl: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
    return prctl


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
