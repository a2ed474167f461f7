"""Processes that go on by themselves are forked from one that has imported what they need: no start costs seconds of imports.

A test session has one such process, begun with the first that is asked for. What is started, and how it ends, is as
`hpcagent.elsewhere.detach.started` has it; processes of the shell, which tests start as users do, import for themselves.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import inspect
import json
import os
import random
import resource
import runpy
import select
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODULES = (
    *("hpcagent.workspace.service", "hpcagent.workspace.keeper", "hpcagent.workspace.answering"),
    *("hpcagent.workspace.beginning", "hpcagent.runs.attached", "hpcagent.cli"),
)
OF_SITES = ("hpcagent.sites.workers.interchange", "hpcagent.sites.workers.worker_pool")
FIRST = "HPCAGENT_TESTS_WARM"
"""Where the process listens that all lanes have in common; each test session has a fork of it."""
FIRST_S = 120.0
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Libraries read them as they are loaded, and the process that forks has loaded some: with one thread."""
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
ENDS = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
"""What `Popen` calls the ends of the pipes, and the streams, of a process."""
USUAL = {
    **{"executable": None, "preexec_fn": None, "close_fds": True, "pass_fds": (), "shell": False},
    **{"gid": None, "gids": None, "uid": None, "umask": -1, "process_group": -1},
}
"""What a fork has not got: a process that is started with any other is started as ever."""
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LIMITS = tuple(number for name, number in sorted(vars(resource).items()) if name.startswith("RLIMIT_"))
ROOM = "HPCAGENT_TESTS_ROOM"
"""Of the environment of the process that forks: where a fork writes what it is marked with (`hpcagent.lifeline.MARK`)."""
LENGTH = 8192
"""Bytes of it, and of the room for a fork's command."""
COLD = "HPCAGENT_TESTS_COLD"
"""Where it is set, the interchange and the workers of a site are started as users' are: children of who opens the site."""
PLOTS = "HPCAGENT_TESTS_PLOTS"
"""Where it is set, a campaign that goes on by itself draws the plots of its report: they take as long as all else of it."""


# -- who asks -------------------------------------------------------------------------------------


def begun(address: str) -> subprocess.Popen[bytes]:
    """A process that forks: it listens at the address when it has printed that it is ready, and ends with its stdin."""
    return subprocess.Popen(
        [sys.executable, "-P", __file__, address, " " * LENGTH],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            ROOM: " " * LENGTH,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def asked_at(address: str, asked: Mapping[str, Any], moved: Sequence[tuple[int, int]]) -> socket.socket | None:
    """Ask for a process: a line that says its number, and then how it has ended; None where nobody forks."""
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(address)
    except OSError:  # a test has killed it
        line.close()
        return None
    here = {"numbers": [number for _, number in moved], "cwd": str(Path.cwd()), "env": dict(os.environ)}
    data = json.dumps({**here, **inherited(), **asked}).encode()
    socket.send_fds(line, [len(data).to_bytes(8, "big")], [descriptor for descriptor, _ in moved])
    line.sendall(data)
    return line


def inherited() -> dict[str, Any]:
    """What a process has from the one that starts it, beside its folder, environment and streams."""
    mask = os.umask(0o077)
    os.umask(mask)
    return {
        "mask": mask,
        "ignored": [one for one in HANDLED if signal.getsignal(one) is signal.SIG_IGN],
        "blocked": [int(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        "cores": sorted(os.sched_getaffinity(0)),
        "limits": [[one, *resource.getrlimit(one)] for one in LIMITS],
    }


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
        subprocess.Popen = Forking  # type: ignore[misc]

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
        return asked_at(self._address, asked, moved)

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
            first = os.environ.get(FIRST)
            self._process = begun(self._address) if first is None else Another(first, self._address)
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


class Forking(subprocess.Popen[Any]):
    """A `Popen` that asks for a fork where `as_asked` has its command for one; else it starts a process as ever."""

    _line: socket.socket | None = None

    def __init__(self, *given: Any, **options: Any) -> None:
        self._turn = threading.Lock()
        super().__init__(*given, **options)

    def as_asked(self, command: Any, options: Mapping[str, Any]) -> dict[str, Any] | None:
        """What to ask for: the module and its arguments, or why not (None)."""
        return asked_of(command, options)

    def ask(self, asked: Mapping[str, Any], moved: Sequence[tuple[int, int]]) -> socket.socket | None:
        """Ask the process that forks for this one."""
        from hpcagent.elsewhere.detach import started

        assert isinstance(started, Warm)
        return started.asked(asked, moved)

    def _execute_child(self, *given: Any) -> None:
        options = dict(zip(inspect.signature(super()._execute_child).parameters, given, strict=True))  # type: ignore[misc]
        ends = [options[name] for name in ENDS]
        stdin, _, _, stdout, _, stderr = ends
        asked = self.as_asked(options["args"], options)
        if asked is not None:
            streams = [own if end == -1 else end for own, end in enumerate((stdin, stdout, stderr))]
            here = {
                "own_session": options["start_new_session"],
                "cwd": str(options["cwd"] or Path.cwd()),
                "env": dict(os.environ if options["env"] is None else options["env"]),
            }
            self._line = self.ask(here | asked, list(zip(streams, range(3), strict=True)))
        if self._line is None:
            super()._execute_child(*given)  # type: ignore[misc]
            return
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

    def _internal_poll(self, *given: Any, **options: Any) -> int | None:
        if self._line is None:
            return super()._internal_poll(*given, **options)  # type: ignore[misc, no-any-return]
        with self._turn:
            if self.returncode is None and select.select([self._line], [], [], 0)[0]:
                self.returncode = self._number()
                self._line.close()
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._line is None:
            return super()._wait(timeout)  # type: ignore[misc, no-any-return]
        with self._turn:
            line = self._line.dup() if self.returncode is None else None
        if line is not None:
            with line:
                select.select([line], [], [], timeout)
        if self._internal_poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode


def asked_of(command: Any, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """A command that starts the interchange of a site, or its workers on this machine, as what to ask a fork for."""
    from hpcagent.sites.launch import python_command

    if not isinstance(command, list) or any(options.get(name, usual) != usual for name, usual in USUAL.items()):
        return None
    words = block_command(Path(command[1])) if len(command) == 2 else [str(word) for word in command]
    environment = os.environ if options["env"] is None else options["env"]
    if len(words) < 5 or COLD in os.environ or any(environment.get(name, "1") != "1" for name in THREADS):
        return None
    module = next((one for one in OF_SITES if words[:4] == python_command(one)[:4]), "")
    if not module:
        return None
    paths, _ = json.loads(words[4])
    own = {"module": module, "arguments": words[5:], "paths": paths, "told": words[4], "shown": words}
    return own if paths else None


def block_command(script: Path) -> list[str]:
    """The one command of a block's script, without lines of the user's; else nothing."""
    if script.suffix != ".sh" or not script.is_file():
        return []
    first, _, line = script.read_text(errors="replace").rstrip("\n").partition("\n")
    return [] if first or "\n" in line else shlex.split(line.removeprefix("exec "))


class Another(Forking):
    """A process that forks, as a fork of a first one: what that has imported is imported once for all lanes.

    Args:
        first: Where that one listens, or soon will.
        address: Where it listens.
    """

    def __init__(self, first: str, address: str) -> None:
        self._first = first
        super().__init__([address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)

    def as_asked(self, command: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        """Where it listens."""
        return {"module": "", "arguments": command, "paths": None, "told": json.dumps([[], []]), "forks": True}

    def ask(self, asked: Mapping[str, Any], moved: Sequence[tuple[int, int]]) -> socket.socket | None:
        """Ask the first one, when it is there."""
        give_up = time.monotonic() + FIRST_S
        while (line := asked_at(self._first, asked, moved)) is None:
            assert time.monotonic() < give_up, "nothing forks"
            time.sleep(0.05)
        return line


class Script(Forking):
    """A script in a fork of the process of `Warm`: as `Popen([sys.executable, SCRIPT, WORDS], ...)`, without its imports.

    For campaigns of which a test watches what happens to them. It has the folder, environment and streams that are given,
    its folder is the first where it finds modules, and it is `__main__`.

    Args:
        command: The script and its words.
        module: A module with a function `main()` in its place; `command` has the words alone.
        options: Of `Popen`: `cwd`, `env`, `start_new_session` and what it says of streams.
    """

    def __init__(self, command: Sequence[str | Path], *, module: str = "", **options: Any) -> None:
        self._module = module
        super().__init__([str(word) for word in command], text=True, **options)

    def as_asked(self, command: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        """The script, or the module."""
        folder = [] if self._module else [str(Path(options["cwd"] or "", command[0]).absolute().parent)]
        return {
            "module": self._module,
            "arguments": command,
            "paths": [*folder, *(path for path in sys.path if not Path(path).is_relative_to(ROOT / "tests"))],
            "told": json.dumps([[], []]),
        }


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


def end_after(run: Callable[[], None]) -> None:
    """Run, and end as Python does, without taking apart all that was imported: that takes longer than most commands."""
    code: object = None
    try:
        run()
    except SystemExit as ended:
        code = ended.code
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except OSError:
        sys.exit(code)  # which says so
    os._exit(code or 0)


def show(words: Sequence[str]) -> None:
    """Write the mark of this process, and its command, where /proc shows them; else those of the one that forks are there."""
    from hpcagent.lifeline import MARK

    begin = [int(one) for one in Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[45:50]]
    at = Path("/proc/self/environ").read_bytes().index(f"{ROOM}=".encode())
    entry = f"{MARK}={os.environ[MARK]}\0".encode() if MARK in os.environ else b""
    ctypes.memmove(begin[2] + at, entry[:LENGTH].ljust(LENGTH, b"\0"), LENGTH)
    if words:
        length = begin[1] - begin[0] - 1
        command = "".join(f"{word}\0" for word in words).encode()
        ctypes.memmove(begin[0], command[:length].ljust(length, b"\0"), length)


def go(asked: dict[str, Any], given: Sequence[int]) -> None:
    """Be the process that was asked for."""
    from hpcagent.beside import as_told

    if asked["own_session"]:
        os.setsid()
    os.umask(asked["mask"])
    os.chdir(asked["cwd"])
    for number, soft, hard in asked.get("limits", ()):
        if resource.getrlimit(number) != (soft, hard):
            resource.setrlimit(number, (soft, hard))
    if "cores" in asked:
        os.sched_setaffinity(0, asked["cores"])
    for one in HANDLED:
        own = signal.default_int_handler if one == signal.SIGINT else signal.SIG_DFL
        signal.signal(one, signal.SIG_IGN if one in asked.get("ignored", ()) else own)
    signal.pthread_sigmask(signal.SIG_SETMASK, asked.get("blocked", ()))
    os.environ.clear()
    os.environ.update(asked["env"])
    if not asked.get("forks"):
        show(asked.get("shown", ()))
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 16) for descriptor in given]
    for descriptor, number in zip(high, asked["numbers"], strict=True):
        os.dup2(descriptor, number)
    for descriptor in {*given, *high} - set(asked["numbers"]):
        os.close(descriptor)
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    random.seed()
    if "shown" in asked:  # what a user's script or notebook defines is unpickled into an empty `__main__`
        sys.modules["__main__"] = ModuleType("__main__")
    if asked["paths"] is not None:
        by_hand = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        sys.path[:] = dict.fromkeys([*asked["paths"], *by_hand])
    sys.argv[:] = [*filter(None, [asked["module"]]), *asked["arguments"]]
    as_told(json.loads(asked["told"])[1])
    if asked.get("forks"):
        from hpcagent.elsewhere import detach

        assert isinstance(detach.started, Warm)
        (detach.started._address,) = asked["arguments"]
        run = serve(*asked["arguments"])
        return None if run is None else run()
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
    for module in (*MODULES, *OF_SITES, *NEEDED):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    prepare()
    gc.freeze()
    run = serve(where)
    if run is not None:
        end_after(run)
