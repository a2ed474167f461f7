"""All tests in lanes beside each other: most of the time is waiting for Slurm, PBS and Globus Compute.

    python tests/in_lanes.py            all tests
    python tests/in_lanes.py --check    those that need neither a cluster, nor an engine, nor a compiler, nor a browser, nor Node, nor long
    python tests/in_lanes.py --times    the same with those that take long, which are then written into tests/long.txt
    python tests/in_lanes.py ARGS...    pytest with these arguments, in one process

A lane's tests are collected once, and run by one or more forks of that process, of which each takes the next test that no
other has taken (tests/sharing.py). A test that fails is run once more, alone, after all others: two cores that are full of tests are no fault of the code.
Which ones failed beside others and passed alone is said at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.sharing import CODE, OUTPUT, PID  # noqa: E402

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

# What `make check` is without: those who need it need a machine that has it, or minutes.
NEEDS = ("slow", "long", "slurm", "pbs", "globus", "lammps", "mpi", "dft", "compiler", "browser", "node")


@dataclass(frozen=True)
class Lane:
    """Tests, and how many processes share them.

    Attributes:
        folders: Where the tests are; none: all the others, so that no test is in no lane.
        processes: More than there are cores where tests wait for others.
        late: As many more, from when a process of another lane has ended.
    """

    folders: tuple[str, ...]
    processes: int
    late: int = 0


LANES = {
    "slurm": Lane(("tests/slurm",), 2),
    "pbs": Lane(("tests/pbs",), 2),
    "globus": Lane(("tests/globus",), 1),
    "rest": Lane((), max(2, CORES), late=2),
}
CHECK = {"check": Lane((), 2 * max(2, CORES))}  # half of the time they wait for processes that they have started
TIMES = {"times": Lane((), 2 * max(2, CORES))}

# More than this many failures are no accident of a busy machine.
MOST_AGAIN = 12

# A test ends after 600 s at the latest (pyproject.toml); what is silent for longer hangs where pytest cannot end it.
SILENT_S = 900

SLOWEST = ("--durations=5", "--durations-min=10")

# pytest's exit codes; of several processes one may find nothing left to do.
PASSED, FAILED = 0, 1


def arguments(lane: Lane, lanes: dict[str, Lane]) -> list[str]:
    """What pytest is told in this lane."""
    if lane.folders:
        return list(lane.folders)
    if lanes is CHECK or lanes is TIMES:
        return ["tests", "-m", " and ".join(f"not {need}" for need in NEEDS if lanes is CHECK or need != "long")]
    return ["tests", *(f"--ignore={folder}" for other in lanes.values() for folder in other.folders)]


def environment() -> dict[str, str]:
    """Of all tests. They start thousands of processes, and one without bytecode takes twice as long to start.

    BLAS has one thread: several processes share the cores, and threads that wait for each other in small matrices spin.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {"OPENBLAS_NUM_THREADS": "1"} | kept


def lines_of(
    output: Path, ended: Callable[[], bool], stop: Callable[[signal.Signals], None], tell: Callable[[str], None]
) -> Iterator[str]:
    """The lines that a pytest prints to a FIFO. If it prints nothing for SILENT_S it is stopped, and prints its stacks.

    A process that a test has left may hold the output open: pytest's own end is the end.
    """
    reader = os.open(output, os.O_RDONLY | os.O_NONBLOCK)
    held = os.open(output, os.O_WRONLY)  # so that it is not at its end before pytest has opened it
    rest, heard_s, ends = b"", time.monotonic(), [signal.SIGABRT, signal.SIGKILL]
    while True:
        over = ended()
        if over and held >= 0:
            os.close(held)
            held = -1
        if not over and not select.select([reader], [], [], 1.0)[0]:
            if time.monotonic() - heard_s > SILENT_S and ends:
                tell(f"nothing printed for {SILENT_S} s: it is stopped by {ends[0].name}")
                stop(ends.pop(0))
                heard_s = time.monotonic() - SILENT_S + 30
            continue
        chunk: bytes | None = None
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(reader, 65536)
        if chunk:
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)
            heard_s = time.monotonic()
        elif over:
            if chunk is None:
                tell("a process that a test has left holds the output open")
            break
    os.close(reader)
    if rest:
        yield rest.decode(errors="replace")


class Collected:
    """A pytest that collects the tests of a lane once, and whose forks run them (`tests.sharing.Forks`).

    Args:
        name: Of the lane.
        words: What pytest is told.
        shared: A folder for what the lane's processes share.
        root: Where pytest runs.
        most: How many forks may be asked for.
    """

    def __init__(self, name: str, words: Sequence[str], shared: Path, root: Path, most: int) -> None:
        self.name, self._left = name, most
        self._turn = threading.Lock()  # each process of the lane has a thread, and asks in it
        read, self._asked = os.pipe()
        names = {"HPCAGENT_TESTS_SHARED": str(shared), "HPCAGENT_TESTS_FORKS": str(read)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-o", f"cache_dir={shared}/cache", *SLOWEST, *words],
            cwd=root,
            env=environment() | names,
            pass_fds=[read],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        os.close(read)
        self._printing = threading.Thread(target=self._print, daemon=True)
        self._printing.start()

    def fork(self, folder: Path) -> None:
        """Have one more begin to run tests, when they are collected."""
        with self._turn:
            self._left -= 1
            with contextlib.suppress(BrokenPipeError):
                os.write(self._asked, f"{folder}\n".encode())
            if not self._left:
                self.close()

    def close(self) -> None:
        """No more is asked for; what has begun goes on."""
        asked, self._asked = self._asked, -1
        if asked >= 0:
            os.close(asked)

    def end(self) -> None:
        """When all that has begun has ended."""
        self.close()
        self.process.wait()
        self._printing.join()

    def _print(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                print(f"{self.name:8} | {line.decode(errors='replace').rstrip()}", flush=True)


class Process(threading.Thread):
    """One pytest of a lane with a cache of its own, whose lines are printed with its name.

    Attributes:
        code: The exit code of pytest.
        took_s: Wall time in seconds.
    """

    def __init__(self, name: str, folder: Path, collected: Collected) -> None:
        super().__init__(name=name)
        self.folder, self.collected = folder, collected
        self.code, self.took_s = -1, 0.0

    def run(self) -> None:
        """Run it to its end, or until it hangs."""
        began = time.monotonic()
        os.mkfifo(self.folder / OUTPUT)
        self.collected.fork(self.folder)
        for line in lines_of(self.folder / OUTPUT, self.ended, self.stop, self.tell):
            self.tell(line)
        code = self.folder / CODE
        self.code = int(code.read_text()) if code.exists() else self.collected.process.returncode or -1
        self.took_s = time.monotonic() - began
        self.tell(f"ended with {self.code} after {self.took_s:.0f} s")

    def ended(self) -> bool:
        """Whether it has an exit code, or what it is a fork of is gone."""
        return (self.folder / CODE).exists() or self.collected.process.poll() is not None

    def stop(self, by: signal.Signals) -> None:
        """Send it a signal; while tests are collected, to what collects them."""
        number = self.folder / PID
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(number.read_text()) if number.exists() else self.collected.process.pid, by)

    def tell(self, line: str) -> None:
        """Print a line with the name of this process."""
        print(f"{self.name:8} | {line}", flush=True)

    @property
    def failed(self) -> list[str]:
        """The tests that failed."""
        found = self.folder / "cache" / "v" / "cache" / "lastfailed"
        return list(json.loads(found.read_text())) if self.code == FAILED and found.exists() else []


def processes(lanes: dict[str, Lane], folder: Path, root: Path) -> tuple[list[Process], list[Process]]:
    """All processes of all lanes, each with a folder of its own below this one: those of the beginning, and the late."""
    made: tuple[list[Process], list[Process]] = ([], [])
    for name, lane in lanes.items():
        shared = folder / name
        shared.mkdir()
        most = lane.processes + lane.late
        collected = Collected(name, arguments(lane, lanes), shared, root, most)
        for number in range(1, most + 1):
            own = folder / f"{name[0]}{number}"  # short: paths of sockets are below it, and end at 107 characters
            own.mkdir()
            made[number > lane.processes].append(Process(f"{name} {number}", own, collected))
    return made


def run_all(first: Sequence[Process], late: Sequence[Process]) -> None:
    """Run processes to their ends; one more of the late ones begins whenever one has ended."""
    running, waiting = list(first), list(late)
    for one in running:
        one.start()
    while running:
        time.sleep(0.05)
        ended = [one for one in running if not one.is_alive()]
        for one in ended:
            running.remove(one)
            if waiting and running:
                running.append(waiting.pop(0))
                running[-1].start()


@contextlib.contextmanager
def common(folder: str, root: Path) -> Iterator[None]:
    """For the tests of hpcagent: what forks the processes of all lanes (tests/warm.py)."""
    if root != ROOT:
        yield
        return
    from tests.warm import FIRST, begun

    process = begun(f"{folder}/warm")
    os.environ[FIRST] = f"{folder}/warm"
    try:
        yield
    finally:
        del os.environ[FIRST]
        process.communicate()


def main(lanes: dict[str, Lane], root: Path = ROOT) -> int:
    """Run all lanes, then what failed once more; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="lanes", ignore_cleanup_errors=True) as folder, common(folder, root):
        first, late = processes(lanes, Path(folder), root)
        run_all(first, late)
        for one in (*first, *late):
            one.collected.end()
        running = [one for one in (*first, *late) if one.ident is not None]
        broken = [one.code for one in running if one.code not in (PASSED, FAILED)]
        again = [test for one in running for test in one.failed]
    print(", ".join(f"{one.name} {one.took_s:.0f} s" for one in running), flush=True)
    if broken or (any(one.code == FAILED for one in running) and not 0 < len(again) <= MOST_AGAIN):
        return max(broken, default=FAILED)
    if not again:
        return PASSED
    print(f"{len(again)} failed; once more, alone: {' '.join(again)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "pytest", "-v", *again], cwd=root, env=environment()).returncode
    if code == PASSED:
        print(f"failed beside other tests and passed alone: {' '.join(again)}", flush=True)
    return code


def times() -> int:
    """Write anew which tests take long; returns the exit code of the tests."""
    from tests.timing import LIST, long_ones

    with tempfile.TemporaryDirectory() as folder:
        os.environ["HPCAGENT_TESTS_TIMES"] = folder
        code = main(TIMES)
        if code == PASSED:
            LIST.write_text("".join(f"{name}\n" for name in long_ones(Path(folder))))
    return code


if __name__ == "__main__":
    given = sys.argv[1:]
    if given == ["--check"]:
        sys.exit(main(CHECK))
    if given == ["--times"]:
        sys.exit(times())
    sys.exit(
        subprocess.run([sys.executable, "-m", "pytest", *given], cwd=ROOT, env=environment()).returncode
        if given
        else main(LANES)
    )
