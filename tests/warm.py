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
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
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
    # What a service reads of the packaged apps, what is drawn and sent, and the server of `hpcagent mcp`.
    *(
        "hpcagent.science.lammps.contract",
        "hpcagent.science.lammps.promised",
        "hpcagent.science.lammps.metric_table",
    ),
    *("hpcagent.science.lammps.failures", "hpcagent.science.engines.classical", "hpcagent.reports.model_plots"),
    *("hpcagent.science.chains.adsorption", "hpcagent.sites.workers.wire", "hpcagent.apps.executable.matching"),
    *("hpcagent.reports.sweep_plots", "hpcagent.science.structures.slab", "PIL.JpegImagePlugin"),
    *("hpcagent.sites.workers.local", "hpcagent.runs.run", "threadpoolctl"),
    *("hpcagent.mcp.http", "hpcagent.mcp.stdio"),
)
LONGEST = 1 << 20
PLOTS = "HPCAGENT_TESTS_PLOTS"
"""Where it is set, a campaign that goes on by itself draws the plots of its report: they take as long as all else of it."""


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
        asked = {
            "module": module,
            "arguments": list(arguments),
            "own_session": own_session,
            "paths": sys.path,
            "told": self._detach.python_command(module)[-1],
        }
        line = self.asked(asked, moved) if module in MODULES else None
        return self._cold(module, arguments, moved, own_session=own_session) if line is None else forked(line)

    def asked(self, asked: Mapping[str, Any], moved: Sequence[tuple[int, int]]) -> socket.socket | None:
        """Ask for a process: a line that says its number, and then how it has ended; None where nobody forks."""
        self._begin()
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(self._address)
        except OSError:  # a test has killed it
            line.close()
            return None
        mask = os.umask(0o077)
        os.umask(mask)
        here = {
            "numbers": [number for _, number in moved],
            "cwd": str(Path.cwd()),
            "env": dict(os.environ),
            "mask": mask,
        }
        data = json.dumps({**here, **asked}).encode()
        socket.send_fds(line, [len(data).to_bytes(8, "big")], [descriptor for descriptor, _ in moved])
        line.sendall(data)
        return line

    def command(self, *words: str, before: str = "") -> list[str]:
        """The command `hpcagent WORDS` as a fork, after the code `before`: for servers, which users start as processes.

        SIGINT, SIGTERM and SIGHUP to its process reach the fork, and its exit code is that of the fork.
        """
        return [
            sys.executable,
            "-IS",
            str(ROOT / "tests" / "forked_command.py"),
            self.address,
            f"--before={before}",
            "hpcagent.cli",
            *words,
        ]

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


class Script(subprocess.Popen[str]):
    """A script in a fork of the process of `Warm`: as `Popen([sys.executable, SCRIPT, WORDS], ...)`, without its imports.

    For campaigns of which a test watches what happens to them. It has the folder, environment and streams that are given,
    its folder is the first where it finds modules, and it is `__main__`.

    Args:
        command: The script and its words.
        module: A module with a function `main()` in its place; `command` has the words alone.
        options: Of `Popen`: `cwd`, `env`, `start_new_session` and what it says of streams.
    """

    def __init__(
        self, command: Sequence[str | Path], *, module: str = "", start_new_session: bool = False, **options: Any
    ) -> None:
        self._module, self._own_session = module, start_new_session
        self._line: socket.socket | None = None
        super().__init__([str(word) for word in command], text=True, **options)

    def _execute_child(self, *given: Any) -> None:
        command, _, _, _, _, cwd, env, _, _, _, *ends = given[:16]
        stdin, _, _, stdout, _, stderr = ends
        streams = [own if end == -1 else end for own, end in enumerate((stdin, stdout, stderr))]
        folder = [] if self._module else [str(Path(cwd or "", command[0]).absolute().parent)]
        asked = {
            "module": self._module,
            "arguments": command,
            "own_session": self._own_session,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "paths": [*folder, *(path for path in sys.path if not Path(path).is_relative_to(ROOT / "tests"))],
            "told": json.dumps([[], []]),
        }
        from hpcagent.elsewhere.detach import started

        assert isinstance(started, Warm)
        self._line = started.asked(asked, list(zip(streams, range(3), strict=True)))
        assert self._line is not None, "a test has killed the process that forks"
        self.pid = self._number()
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]

    def _number(self) -> int:
        assert self._line is not None
        read = b""
        while not read.endswith(b"\n"):
            more = self._line.recv(1)
            assert more, "the process that forks has ended"
            read += more
        return int(read)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._line is not None and select.select([self._line], [], [], 0)[0]:
            self.returncode = self._number()
            self._line.close()
            self._line = None
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._line is not None:
            select.select([self._line], [], [], timeout)
        if self._internal_poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode


class Command(Script):
    """`hpcagent WORDS`, likewise."""

    def __init__(self, words: Sequence[object], **options: Any) -> None:
        super().__init__([str(word) for word in words], module="hpcagent.cli", **options)


def command(*words: object, timeout: float = 300.0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `hpcagent WORDS` to its end, in a fork; what it says is caught. `options` as those of `Command`."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with Command(words, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


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


def prepare() -> None:
    """Load of Parsl what a site needs, and draw and write once: what that looks for and keeps is there in all forks."""
    import io

    from hpcagent.sites.launch import load_parsl

    load_parsl()
    with contextlib.suppress(ImportError):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure()
        FigureCanvasAgg(figure)
        axes = figure.add_subplot(xlabel="a", ylabel="$10^{-3}$", title="b")
        axes.plot([1, 10], [1, 100], label="c")
        axes.set(xscale="log", yscale="log")
        axes.legend()
        figure.savefig(io.BytesIO(), format="png")


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
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    random.seed()
    if asked["paths"] is not None:
        by_hand = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        sys.path[:] = dict.fromkeys([*asked["paths"], *by_hand])
    sys.argv[:] = [*filter(None, [asked["module"]]), *asked["arguments"]]
    as_told(json.loads(asked["told"])[1])
    exec(asked.get("before", ""), {})
    if asked["module"] == "hpcagent.runs.attached" and PLOTS not in os.environ:
        from hpcagent.reports import plots

        plots.draw = lambda *_: []
    if asked["module"]:
        importlib.import_module(asked["module"]).main()
    else:
        runpy.run_path(asked["arguments"][0], run_name="__main__")


if __name__ == "__main__":
    from hpcagent.later import HEAVY, defer_when_imported
    from hpcagent.sites.launch import UNNEEDED, defer

    defer(*UNNEEDED)  # as a process does that is started for itself
    defer_when_imported(*HEAVY)
    where = sys.argv[1]
    Warm(where)  # before others take the name
    for module in (*MODULES, *NEEDED):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    prepare()
    gc.freeze()
    run = serve(where)
    if run is not None:
        run()
