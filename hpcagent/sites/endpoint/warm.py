"""A warm process beside a worker of an endpoint: it has imported what runs need, and forks a child for each task.

A fork of it takes some milliseconds, a new Python half a second. It has one thread, so that the fork is safe: the
worker itself has several. What a run leaves behind becomes a child of this process, whatever it did to detach
itself, and is ended with the run. Where the worker ends, in whatever way, this process ends its child, and itself.

Started by `hpcagent.sites.endpoint.running_there`, never by hand.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from hpcagent.lifeline import adopt_orphans, die_with_parent, end_strangers, end_tree

__all__ = ["GRACE_S", "has_children", "main", "memory_kills", "received", "send"]

GRACE_S = 12.0
"""A run that is to end has so long, in seconds, for the ranks that its launcher has on other hosts."""
_ALONE_S = 1.5
_PAUSE_S = 0.01
_LOOK_S = 2.0
_LIGHT = ("hpcagent.apps.worker",)
_HEAVY = ("numpy", "numpy.random", "hpcagent.apps.base", "hpcagent.apps.travel")


# ---- messages: length and JSON


def send(sock: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send a message, with open files for the other process."""
    text = json.dumps(message).encode()
    head = len(text).to_bytes(8, "big")
    if descriptors:
        socket.send_fds(sock, [head], list(descriptors))
    else:
        sock.sendall(head)
    sock.sendall(text)


def received(sock: socket.socket, descriptors: int = 0) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and its open files; None: the other end is gone."""
    head, files, _, _ = socket.recv_fds(sock, 8, descriptors)
    while head and len(head) < 8:
        more = sock.recv(8 - len(head))
        head = head + more if more else b""
    if not head:
        return None
    left, pieces = int.from_bytes(head, "big"), []
    while left:
        piece = sock.recv(min(left, 1 << 20))
        if not piece:
            return None
        pieces.append(piece)
        left -= len(piece)
    return json.loads(b"".join(pieces)), files


# ---- the process


def main() -> None:
    """Serve tasks until the worker is gone: `-c BOOT DESCRIPTOR WORKER PRELOAD`."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    worker, preload = int(sys.argv[2]), sys.argv[3] == "numpy"
    os.set_inheritable(sock.fileno(), False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    for name in (*_LIGHT, *(_HEAVY if preload else ())):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from hpcagent.sites.endpoint import computing

    gc.collect()
    gc.freeze()  # or the first collection of each child would copy every page
    send(sock, {"ready": os.getpid()})
    environ: dict[str, str] = {}
    while _is_heard(sock, worker):
        task = received(sock, descriptors=2)
        if task is None:
            break
        message, files = task
        if "do" not in message or len(files) != 2:
            continue  # an `end` that came when its child had ended already
        environ = message.pop("environ", None) or environ
        pid = os.fork()
        if pid == 0:
            _be_child(sock, message, files, environ, worker, computing.compute)
        for descriptor in files:
            os.close(descriptor)
        if not _see_to_its_end(sock, pid, worker):
            break


def _be_child(sock: socket.socket, message: Any, files: list[int], environ: Any, worker: int, work: Any) -> None:
    code = 1
    try:
        os.setsid()
        die_with_parent()
        sock.close()
        adopt_orphans()
        work(message, files[0], files[1], environ)
        code = 0
    except BaseException as error:  # the worker says what a child without an answer means
        with contextlib.suppress(BaseException):
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _is_heard(sock: socket.socket, worker: int) -> bool:
    """Wait for a message, or the worker's end; return whether it lives."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while not poll.poll(_LOOK_S * 1000):
        # A process that the worker has forked may hold its end of the socket open.
        if os.getppid() != worker:
            return False
    return True


def _see_to_its_end(sock: socket.socket, pid: int, worker: int) -> bool:
    """Wait for the child, end it where that is asked for, and all it left; return whether the worker lives."""
    send(sock, {"child": pid})
    kills, lives, asked = memory_kills(), True, False
    status: int | None = None
    with _handle(pid) as handle:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        if handle is not None:
            poll.register(handle, select.POLLIN)
        pause_ms = _LOOK_S * 1000 if handle is not None else 5.0
        while status is None:
            ready = [descriptor for descriptor, _ in poll.poll(pause_ms)]
            if sock.fileno() in ready:
                asked = True
                lives = received(sock) is not None
            if os.getppid() != worker:
                lives = False
            if asked or not lives:
                status = _ended(pid)
            else:
                status = _status(pid)
    _end_what_is_left(polite=asked or not lives)
    if lives:
        over = os.waitstatus_to_exitcode(status)
        try:
            send(sock, {"ended": over, "asked": asked, "memory": memory_kills() > kills})
        except OSError:
            return False
    return lives


@contextlib.contextmanager
def _handle(pid: int) -> Any:
    """A descriptor that can be read when the process has ended; None where the kernel has none."""
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def _status(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return status if found else None


def _ended(pid: int) -> int:
    """End the child: politely, so that a launcher can end its ranks on other hosts, then for good."""
    began = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)  # a stopped one hears nothing
    while time.monotonic() - began < (GRACE_S if has_children(pid) else _ALONE_S):
        status = _status(pid)
        if status is not None:
            return status
        time.sleep(_PAUSE_S)
    end_tree(pid)
    return os.waitpid(pid, 0)[1]


def has_children(pid: int) -> bool:
    """Whether a process has children."""
    try:
        return any(Path(task.path, "children").read_bytes() for task in os.scandir(f"/proc/{pid}/task"))
    except OSError:
        return False


def _end_what_is_left(*, polite: bool) -> None:
    """End what the child has left behind: it is ours now."""
    deadline = time.monotonic() + (GRACE_S if polite else 0.0)
    told: set[int] = set()
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        if time.monotonic() >= deadline:
            break
        for pid in _own_children() - told:
            told.add(pid)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        time.sleep(_PAUSE_S)
    end_strangers(frozenset())


def _own_children() -> set[int]:
    try:
        return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_bytes().split()}
    except OSError:
        return set()


def memory_kills() -> int:
    """How often the kernel has ended a process of our control group for its memory; 0 where nobody counts."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        group = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        events = Path(f"/sys/fs/cgroup{group[3:]}/memory.events").read_text().split()
        return int(events[events.index("oom_kill") + 1])
    return 0
