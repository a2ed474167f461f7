"""Processes that go on by themselves are forked from one that has imported what they need: no start costs seconds of imports.

A test session has one such process, begun with the first that is asked for. What is started, and how it ends, is as
`hpcagent.elsewhere.detach.started` has it; processes of the shell, which tests start as users do, import for themselves.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODULES = (
    *("hpcagent.workspace.service", "hpcagent.workspace.keeper", "hpcagent.workspace.answering"),
    *("hpcagent.workspace.beginning", "hpcagent.runs.attached", "hpcagent.cli"),
)
# What a campaign needs from its beginning to its report; where something is not installed, without it.
NEEDED = (
    *(
        "h5py",
        "scipy.linalg",
        "scipy.optimize",
        "matplotlib.figure",
        "matplotlib.backends.backend_agg",
        "markdown_it",
    ),
    *(
        "hpcagent.campaign.coordinator",
        "hpcagent.campaign.view",
        "hpcagent.reports.report",
        "hpcagent.policies.bayes",
    ),
    *("hpcagent.statistics.surrogate", "hpcagent.sites.opening", "hpcagent.apps.landscape"),
)
LONGEST = 1 << 20


# -- who asks -------------------------------------------------------------------------------------


class Warm:
    """Stands for `started` in this process, and in those that it has started.

    Args:
        address: Of the process that forks; empty: it is begun when it is needed.
    """

    def __init__(self, address: str = "") -> None:
        from hpcagent.elsewhere import detach

        self._detach, self._cold = detach, detach.started
        self._address, self._turn = address, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        detach.started = self

    def __call__(
        self, module: str, arguments: Sequence[str], moved: Sequence[tuple[int, int]], *, own_session: bool = False
    ) -> Any:
        if module not in MODULES:
            return self._cold(module, arguments, moved, own_session=own_session)
        self._begin()
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(self._address)
        except OSError:  # a test has killed it
            line.close()
            return self._cold(module, arguments, moved, own_session=own_session)
        mask = os.umask(0o077)
        os.umask(mask)
        asked = {
            "module": module,
            "arguments": list(arguments),
            "numbers": [number for _, number in moved],
            "own_session": own_session,
            "cwd": str(Path.cwd()),
            "env": dict(os.environ),
            "mask": mask,
            "paths": sys.path,
            "told": self._detach.python_command(module)[-1],
        }
        data = json.dumps(asked).encode()
        socket.send_fds(line, [len(data).to_bytes(8, "big")], [descriptor for descriptor, _ in moved])
        line.sendall(data)
        return forked(line)

    @property
    def address(self) -> str:
        """Of the process that forks, for tests/forked_command.py."""
        self._begin()
        return self._address

    def _begin(self) -> None:
        with self._turn:
            if self._address:
                return
            self._folder = tempfile.TemporaryDirectory(prefix="warm")
            self._address = f"{self._folder.name}/socket"
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, self._address],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            assert self._process.stdout is not None
            assert self._process.stdout.readline() == b"ready\n"

    def took_s(self) -> float:
        """CPU seconds of all that it has forked and that has ended."""
        if self._process is None:
            return 0.0
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")  # cutime, cstime
        return 0.0

    def end(self) -> None:
        """End the process that forks; what it has forked goes on."""
        if self._process is not None:
            self._process.communicate()
        if self._folder is not None:
            self._folder.cleanup()


def forked(line: socket.socket) -> Any:
    """A process that was forked, in the form of `Spawned`."""
    from hpcagent.elsewhere.detach import Spawned

    class Forked(Spawned):
        def __init__(self) -> None:
            self._words = line.makefile("r")
            super().__init__(int(self._words.readline()))

        def _reap(self) -> None:
            with contextlib.suppress(ValueError, OSError):
                self.code = int(self._words.readline())
            self._words.close()
            line.close()

    return Forked()


# -- who forks ------------------------------------------------------------------------------------


def received(line: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """What is asked for, and the descriptors that go along; None of somebody who was killed while asking."""
    data, fds, whole = b"", [], 8
    try:
        data, fds, _, _ = socket.recv_fds(line, 8, 8)
        whole += int.from_bytes(data, "big") if len(data) == 8 else 0
        while len(data) < whole and (more := line.recv(min(LONGEST, whole - len(data)))):
            data += more
    except OSError:
        return None, fds
    return (json.loads(data[8:]) if 8 < len(data) == whole else None), fds


def serve(address: str) -> Callable[[], None] | None:
    """Fork a process for each request, until stdin ends; returns in each of them what it is to do."""
    told, told_by = socket.socketpair()
    for one in (told, told_by):
        one.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(told_by.fileno(), warn_on_full_buffer=False)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    print("ready", flush=True)
    lines: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as look:
        for one in (sys.stdin, listening, told):
            look.register(one, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in look.select()]
            if told in ready:
                with contextlib.suppress(BlockingIOError):
                    told.recv(4096)
                reap(lines)
            if listening in ready:
                line, _ = listening.accept()
                asked, given = received(line)
                if asked is None:
                    line.close()
                    for descriptor in given:
                        os.close(descriptor)
                    continue
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for other in (listening, told, told_by, line, *lines.values()):
                        other.close()
                    return lambda: go(asked, given)
                for descriptor in given:
                    os.close(descriptor)
                lines[pid] = line
                with contextlib.suppress(OSError):  # who asked was killed
                    line.sendall(b"%d\n" % pid)
            if sys.stdin in ready:
                return None


def reap(lines: dict[int, socket.socket]) -> None:
    """Tell how processes have ended."""
    while lines:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with contextlib.suppress(OSError), lines.pop(pid) as line:
            line.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def go(asked: dict[str, Any], given: Sequence[int]) -> None:
    """Be the process that was asked for."""
    from hpcagent.beside import as_told

    if asked["own_session"]:
        os.setsid()
    os.umask(asked["mask"])
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 16) for descriptor in given]
    for descriptor, number in zip(high, asked["numbers"], strict=True):
        os.dup2(descriptor, number)
    for descriptor in {*given, *high} - set(asked["numbers"]):
        os.close(descriptor)
    random.seed()
    if asked["paths"] is not None:
        by_hand = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        sys.path[:] = dict.fromkeys([*asked["paths"], *by_hand])
    sys.argv[:] = [asked["module"], *asked["arguments"]]
    as_told(json.loads(asked["told"])[1])
    importlib.import_module(asked["module"]).main()


if __name__ == "__main__":
    from hpcagent.later import HEAVY, defer_when_imported
    from hpcagent.sites.launch import UNNEEDED, defer, load_parsl

    defer(*UNNEEDED)  # as a process does that is started for itself
    defer_when_imported(*HEAVY)
    where = sys.argv[1]
    Warm(where)  # before others take the name
    for module in (*MODULES, *NEEDED):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    load_parsl()
    gc.freeze()
    run = serve(where)
    if run is not None:
        run()
