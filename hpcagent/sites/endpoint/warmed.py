"""The warm processes of a worker: started when they are needed, one for each task that goes at once."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcagent.errors import AppFailed
from hpcagent.lifeline import MARK, end_all
from hpcagent.sites.endpoint.warm import received, send

__all__ = ["Warm", "close", "warm"]

_START_S = 120.0
_END_S = 5.0
# The worker's import path comes first: a checkout, say. -P: no module of the folder one happens to stand in.
_BOOT = (
    "import json, sys; sys.path[:0] = json.loads(sys.argv.pop(1)); "
    "from hpcagent.sites.endpoint.warm import main; main()"
)
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Warm:
    """A process that forks a child for each task; see `hpcagent.sites.endpoint.warm`.

    Args:
        numpy: Whether it imports numpy, which then has one thread in all its children.

    Raises:
        AppFailed: It does not start.

    Attributes:
        sock: What it says: messages of `warm.received`.
        mark: In the environment of all that it starts.
        lost: Set by who uses it: it is not to be used again.
    """

    def __init__(self, *, numpy: bool) -> None:
        self.numpy = numpy
        self.lost = False
        self.mark = f"endpoint-{uuid.uuid4().hex}"
        self._sent: dict[str, str] | None = None
        self.sock, theirs = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the process)
        paths = [str(Path(path or os.curdir).absolute()) for path in sys.path]
        words = [json.dumps(paths), str(theirs.fileno()), str(os.getpid()), "numpy" if numpy else "plain"]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, *words],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={**os.environ, **_ONE_THREAD, MARK: self.mark},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        finally:
            theirs.close()
        self.sock.settimeout(_START_S)
        try:
            ready = received(self.sock)
        except OSError as error:
            ready, why = None, f" ({error})"
        else:
            why = ""
        if ready is None:
            tail = self.last_words()
            self.discard()
            raise AppFailed(
                f"the process that forks runs did not start{why}: {tail.strip().splitlines()[-1:] or 'no word'}.",
                kind="infrastructure",
                name="WorkerLost",
                log_tail=tail,
            )
        self.sock.settimeout(None)

    def start(self, task: dict[str, Any], answers: int, output: int) -> None:
        """Have it fork a child for a task, as this thread is now: its environment and cores.

        Args:
            task: For `computing.compute`.
            answers: Open file that takes the child's answers.
            output: Open file that takes what it prints.

        Raises:
            OSError: It is gone.
        """
        environ = {**os.environ, MARK: self.mark}
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        new = None if environ == self._sent else environ
        send(self.sock, {**task, "cores": cores, "environ": new}, (answers, output))
        self._sent = environ

    def is_alive(self) -> bool:
        """Whether it can be given a task."""
        return self._process.poll() is None

    def end_child(self) -> None:
        """Have it end its child."""
        with contextlib.suppress(OSError):
            send(self.sock, {"end": True})

    def last_words(self) -> str:
        """The end of what it has printed itself."""
        with contextlib.suppress(OSError, ValueError):
            self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - 4000))
            return self._said.read().decode(errors="replace")
        return ""

    def discard(self) -> None:
        """End it, its child and whatever they left."""
        self.sock.close()  # it then ends its child, and itself
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        end_all(self.mark)
        self._said.close()


class _Idle:
    """Processes of this process that are waiting for a task; a fork of it has none."""

    lock = threading.Lock()
    of = 0
    processes: list[Warm] = []


def _after_fork() -> None:
    _Idle.lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def warm(*, numpy: bool = True) -> Iterator[Warm]:
    """A warm process for one task; it waits for the next one then, unless it is lost or there was an error.

    Args:
        numpy: Whether it may have imported numpy: not for runs of several threads.

    Raises:
        AppFailed: It does not start.
    """
    process = _taken(numpy) or Warm(numpy=numpy)
    try:
        yield process
    except BaseException:
        process.discard()
        raise
    if process.lost:
        process.discard()
        return
    with _Idle.lock:
        _Idle.processes.append(process)


def _taken(numpy: bool) -> Warm | None:
    with _Idle.lock:
        if _Idle.of != os.getpid():  # those of the process that this one was forked from
            _Idle.of, _Idle.processes = os.getpid(), []
        for process in [p for p in _Idle.processes if p.numpy == numpy]:
            _Idle.processes.remove(process)
            if process.is_alive():
                return process
            process.discard()  # somebody has killed it while it waited
    return None


def close() -> None:
    """End the warm processes that wait for a task. They end by themselves with this process."""
    with _Idle.lock:
        processes, _Idle.processes = (_Idle.processes if _Idle.of == os.getpid() else []), []
    for process in processes:
        process.discard()
