"""Whatever a run does to its process, the next run on it goes as if there had been none before."""

from __future__ import annotations

import decimal
import gc
import importlib
import json
import locale
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcagent.apps.as_found import AsFound, cannot_be_given_back
from hpcagent.apps.base import App
from hpcagent.apps.decorator import app
from hpcagent.apps.ensemble import _executed, execute_ensemble
from hpcagent.apps.launch import planned
from hpcagent.apps.ranks.group import Group, words_of
from hpcagent.apps.run import Run
from hpcagent.apps.worker import execute
from hpcagent.model.contract import Resources
from hpcagent.model.parameter import Choice, Float, Int
from hpcagent.sites.opening import open_site

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what a process has is Linux's")

ROOT = str(Path(__file__).parents[3])
"""Where a rank finds this file."""
ONE = Resources(ranks_per_node=1, walltime_s=60)


class Late(RuntimeError):
    """What a function raises in itself when it takes too long."""


def too_late(*_: object) -> None:
    raise Late("too slow")


# ---- what a function may do


def closes_a_stream() -> None:
    with sys.stdout as stream:
        print("hello", file=stream)


def closes_all_streams() -> None:
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()
    for number in range(3):
        os.close(number)


def detaches_a_stream() -> None:
    sys.stdout.detach()  # type: ignore[union-attr]


def replaces_streams() -> None:
    sys.stdout = sys.stderr = open("own.txt", "w")  # noqa: SIM115, PTH123
    print("of the first")


def redirects_a_descriptor() -> None:
    file = os.open("own.txt", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(file, 1)


def changes_an_encoding() -> None:
    sys.stdout.reconfigure(encoding="ascii", errors="strict")  # type: ignore[union-attr]


def sets_an_alarm() -> None:
    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(1)


def sets_an_alarm_that_ends_the_process() -> None:
    signal.alarm(1)


def sets_a_timer(which: signal.ITIMER_REAL = signal.ITIMER_REAL) -> None:  # type: ignore[valid-type]
    signal.setitimer(which, 0.2, 0.2)


def sets_a_timer_of_virtual_time() -> None:
    sets_a_timer(signal.ITIMER_VIRTUAL)


def sets_a_profiling_timer() -> None:
    sets_a_timer(signal.ITIMER_PROF)


def sets_handlers() -> None:
    for number in (signal.SIGUSR1, signal.SIGCHLD, signal.SIGWINCH, signal.SIGXCPU):
        signal.signal(number, too_late)


def blocks_a_signal() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    signal.raise_signal(signal.SIGUSR2)  # by its default it ends the process, once it is let through


def changes_the_directory() -> None:
    os.chdir("/")


def changes_the_umask() -> None:
    os.umask(0o777)


def clears_the_environment() -> None:
    os.environ.clear()
    os.environ["OMP_NUM_THREADS"] = "64"


def empties_the_path() -> None:
    sys.path[:] = ["/nowhere"]


def has_warnings_raised() -> None:
    warnings.simplefilter("error")


def changes_the_locale() -> None:
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    locale.setlocale(locale.LC_NUMERIC, "POSIX" if locale.setlocale(locale.LC_NUMERIC) != "C" else "C.UTF-8")


def changes_limits_of_the_interpreter() -> None:
    sys.setrecursionlimit(200)
    gc.disable()
    socket.setdefaulttimeout(1e-3)


def changes_how_numbers_are_treated() -> None:
    decimal.getcontext().prec = 3
    np.seterr(all="raise")


def changes_limits_of_the_system() -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (10**13, hard))


def forks_a_child_that_ends() -> None:
    pid = os.fork()
    if pid == 0:
        sys.exit(3)
    assert exit_code(pid) == 3


def forks_a_child_that_fails() -> None:
    pid = os.fork()
    if pid == 0:
        raise ValueError("of the child")
    assert exit_code(pid) == 1


def forks_a_child_that_returns() -> float | None:
    pid = os.fork()
    if pid == 0:
        print("the child was here")
        return -4.0
    assert exit_code(pid) == 0
    return None


def exit_code(pid: int) -> int | None:
    """How a child has ended; None: it has not, after a while."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return None


SPOILS: dict[str, Callable[[], Any]] = {
    function.__name__: function
    for function in (
        closes_a_stream,
        closes_all_streams,
        detaches_a_stream,
        replaces_streams,
        redirects_a_descriptor,
        changes_an_encoding,
        sets_an_alarm,
        sets_an_alarm_that_ends_the_process,
        sets_a_timer,
        sets_a_timer_of_virtual_time,
        sets_a_profiling_timer,
        sets_handlers,
        blocks_a_signal,
        changes_the_directory,
        changes_the_umask,
        clears_the_environment,
        empties_the_path,
        has_warnings_raised,
        changes_the_locale,
        changes_limits_of_the_interpreter,
        changes_how_numbers_are_treated,
        changes_limits_of_the_system,
        forks_a_child_that_ends,
        forks_a_child_that_fails,
        forks_a_child_that_returns,
    )
}
SLOW = {"sets_an_alarm": 1.2, "sets_an_alarm_that_ends_the_process": 1.2}


def state(run: Run) -> dict[str, Any]:
    """What a function finds of its process."""
    return {
        "pid": os.getpid(),
        "directory": str(Path.cwd()).replace(str(run.workdir), "its own"),
        "umask": os.umask(os.umask(0o077)) and None,
        "mode": oct((run.workdir / "mode").stat().st_mode),
        # Parsl and `of_a_run` say something of each task in it.
        "environment": {n: v.replace(str(run.workdir), "its own") for n, v in os.environ.items() if "TASK" not in n},
        "handlers": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "pending": sorted(map(int, signal.sigpending())),
        "timers": [signal.getitimer(timer) for timer in range(3)],
        "path": list(sys.path),
        "filters": [str(one) for one in warnings.filters],
        "locale": locale.setlocale(locale.LC_ALL),
        "limits": [sys.getrecursionlimit(), gc.isenabled(), socket.getdefaulttimeout()],
        "numbers": [decimal.getcontext().prec, np.geterr()],
        "system": resource.getrlimit(resource.RLIMIT_AS),
        "streams": [(s.name, s.closed, s.encoding, s.errors, s is t)  # type: ignore[union-attr]
                    for s, t in ((sys.stdin, sys.__stdin__), (sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__))],
    }  # fmt: skip


def body(what: str, run: Run) -> dict[str, float]:
    if what in SPOILS:
        if what in ("replaces_streams", "redirects_a_descriptor"):
            os.chdir(run.workdir)  # where their file is
        given = SPOILS[what]()
        return {"y": 4.0 if given is None else given}
    wait_s = float(what or 0.0)
    (run.workdir / "mode").touch()
    (run.workdir / "state.json").write_text(json.dumps(state(run)))
    until = time.monotonic() + wait_s
    while time.monotonic() < until:  # of virtual time as well
        pass
    print("good: \N{CHECK MARK}", flush=True)
    print("good", file=sys.stderr, flush=True)
    os.write(1, b"good\n")
    return {"y": 1.0}


PARAMETERS = {"what": Choice(*SPOILS, "0", "0.5", "1.2"), "n": Int(0, 1000)}


@app(parameters=PARAMETERS, metrics={"y": "1"}, resources=ONE, seeded=False)
def plain(what: str, n: int, run: Run) -> dict[str, float]:
    return body(what, run)


@app(mpi=True, ensemble=True, parameters=PARAMETERS, metrics={"y": "1"}, resources=ONE, seeded=False)
def ranked(what: str, n: int, run: Run) -> dict[str, float]:
    return body(what, run)


class Counted:
    """Gives every run parameters of its own."""

    number = 0

    @classmethod
    def order(cls, made: App, folder: Path, what: str) -> dict[str, Any]:
        cls.number += 1
        return made.order(made.manifest({"what": what, "n": cls.number}), work=folder, site={"node_cores": 1})


Runs = Callable[[str], tuple[dict[str, Any], Path]]


def is_left_as_found(runs: Runs, what: str) -> Path:
    """Run a function that is fine, one that spoils its process, one that is fine; returns the last's directory."""
    before, there = runs("0")
    assert before.get("failure") is None, before
    spoilt, own = runs(what)
    assert (spoilt["status"], spoilt.get("failure"), spoilt["metrics"]) == ("COMPLETED", None, {"y": 4.0})
    assert "notes" not in spoilt, "all of it is given back"
    after, here = runs(str(SLOW.get(what, 0.5 if "timer" in what else 0)))
    assert after.get("failure") is None, after
    first, last = (json.loads((folder / "state.json").read_text()) for folder in (there, here))
    for name in first:
        assert last[name] == first[name], name
    assert last["mode"][-3:] == first["mode"][-3:] != "000"
    if (own / "own.txt").exists():
        assert "good" not in (own / "own.txt").read_text()
    return here


@pytest.fixture(scope="module")
def on_a_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("plain")
    with open_site("laptop", run_dir=folder, workers=1, private=True) as site:

        def run(what: str) -> tuple[dict[str, Any], Path]:
            order = Counted.order(plain, folder, what)
            return site.submit(execute, order).result(timeout=60), Path(order["workdir"])

        yield run


@pytest.mark.slow
@pytest.mark.parametrize("what", SPOILS)
def test_what_a_run_does_to_its_worker_is_not_found_by_the_next(on_a_worker: Runs, what: str) -> None:
    is_left_as_found(on_a_worker, what)


@pytest.fixture(scope="module")
def in_a_slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Runs one function after another on the only rank of the only slot of a launch, as an ensemble does."""
    pytest.importorskip("mpi4py")
    folder = tmp_path_factory.mktemp("slot")
    asked = {"nodes": 1, "ranks_per_node": 1, "threads_per_rank": 1, "walltime_s": 60}
    run = Run(workdir=folder, resources=asked, site={"launcher": "hydra"})
    launch = planned(run, words_of(1), app="ranked", env={"PYTHONPATH": ROOT})
    group = Group(launch, slots=1, ranks=1)

    def heard(what: str) -> Any:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for event in group.wait(1.0):
                assert event.what == what, (event, group.printed())
                return event.answer
        raise AssertionError(what)

    def called(what: str) -> tuple[dict[str, Any], Path]:
        order = Counted.order(ranked, folder, what)
        group.send(
            0,
            {"what": "call", "function": _executed, "args": [order, sys.path, [], str(folder / "crash")]},
            pickled=True,
        )
        answer = heard("answer")
        assert "value" in answer, answer
        return answer["value"], Path(order["workdir"])

    try:
        heard("ready")
        yield called
    finally:
        group.close(at_once=True)


@pytest.mark.mpi
@pytest.mark.parametrize("what", SPOILS)
def test_what_a_run_does_to_its_slot_of_an_ensemble_is_not_found_by_the_next(in_a_slot: Runs, what: str) -> None:
    here = is_left_as_found(in_a_slot, what)
    assert (here / "output.txt").read_text() == "good: \N{CHECK MARK}\ngood\ngood\n"


@app(mpi=True, parameters={"how": Choice(*SPOILS, "fails")}, metrics={"y": "1"}, resources=ONE)
def launched(how: str, run: Run) -> dict[str, float]:
    if how == "fails":
        closes_all_streams()
        raise ValueError("without a stream")
    given = SPOILS[how]()
    return {"y": 4.0 if given is None else given}


@pytest.mark.mpi
@pytest.mark.parametrize("how", [*(name for name in SPOILS if "fork" in name), "closes_all_streams", "fails"])
def test_a_launch_of_one_run_is_answered_for_by_its_ranks_only(tmp_path: Path, how: str) -> None:
    pytest.importorskip("mpi4py")
    answer = execute(
        launched.order(launched.manifest({"how": how}), work=tmp_path, site={"node_cores": 1, "launcher": "hydra"})
    )
    if how == "fails":
        assert (answer["failure"]["name"], answer["failure"]["message"]) == (
            "ValueError",
            "ValueError: without a stream (rank 0 of 1)",
        )
    else:
        assert answer.get("failure") is None and answer["metrics"] == {"y": 4.0}, answer


# ---- what cannot be given back


@app(parameters={"n": Int(0, 9)}, metrics={"pid": "1"}, resources=ONE, seeded=False, ensemble=True)
def leaves_a_thread(n: int) -> dict[str, float]:
    if n == 1:
        threading.Thread(target=time.sleep, args=(600,), name="left").start()
    elif n == 3:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    return {"pid": os.getpid()}


def orders_of(made: App, folder: Path, count: int) -> list[dict[str, Any]]:
    return [made.order(made.manifest({"n": n}), work=folder, site={"node_cores": 1}) for n in range(count)]


def processes_were_replaced_after_the_second(answers: list[dict[str, Any]]) -> None:
    assert [answer.get("failure") for answer in answers] == [None] * 5, answers
    pids = [answer["metrics"]["pid"] for answer in answers]
    assert pids[0] == pids[1] != pids[2] == pids[3] == pids[4], "a helper thread is no reason"
    said = "the run has left behind the thread 'left': its process is replaced after it"
    assert [answer.get("notes") for answer in answers] == [None, [said], None, None, None]


@pytest.mark.slow
def test_a_worker_in_which_a_run_has_left_a_thread_is_replaced(tmp_path: Path) -> None:
    with open_site("laptop", run_dir=tmp_path, workers=1, private=True) as site:
        orders = orders_of(leaves_a_thread, tmp_path, 5)
        processes_were_replaced_after_the_second([site.submit(execute, o).result(timeout=60) for o in orders])


@pytest.mark.mpi
def test_a_slot_in_which_a_run_has_left_a_thread_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mpi4py")
    monkeypatch.setenv("PYTHONPATH", ROOT)
    orders = orders_of(leaves_a_thread, tmp_path, 5)
    asked = {"nodes": 1, "ranks_per_node": 1, "threads_per_rank": 1, "walltime_s": 60}
    request = {
        "orders": orders,
        "folder": str(tmp_path / "e"),
        "resources": asked,
        "slots": 1,
        "ranks": 1,
        "site": {},
    }
    answers = dict(execute_ensemble(request))
    processes_were_replaced_after_the_second([answers[o["manifest"]["execution_id"]] for o in orders])


def in_a_process(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_where_nobody_replaces_the_process_later_runs_say_what_they_were_beside(tmp_path: Path) -> None:
    said = in_a_process(
        """
        import os, threading, time
        from hpcagent.apps.as_found import AsFound
        from hpcagent.apps.run import noted, noting
        for thread in (True, False):
            with noting():
                with AsFound():
                    if thread:
                        threading.Thread(target=time.sleep, args=(600,), name="left").start()
                print(*noted(), flush=True)
        os._exit(0)
        """,
        tmp_path,
    )
    assert said.splitlines() == [
        "the run has left behind the thread 'left': later runs in its process find it",
        "ran in a process in which an earlier run had left behind the thread 'left'",
    ]


def test_a_limit_that_nobody_may_raise_again_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may raise it")
    code = """
        import resource
        from hpcagent.apps.as_found import AsFound, cannot_be_given_back
        with AsFound():
            resource.setrlimit(resource.RLIMIT_AS, (10**13, 10**13))
        print(*cannot_be_given_back())
        """
    assert in_a_process(code, tmp_path) == "another value of RLIMIT_AS\n"


# ---- what stays


@app(parameters={"x": Float(0, 1)}, metrics={"there": "1"}, seeded=False)
def importing(x: float) -> dict[str, float]:
    folder = os.environ["A_MODULE_IS_IN"]
    if folder not in sys.path:
        sys.path.insert(0, folder)
    importlib.import_module("sets_a_variable_once")
    os.environ["SET_BY_THE_FUNCTION"] = "1"
    return {"there": float(os.environ.get("SET_BY_AN_IMPORT", 0))}


def test_what_a_module_sets_when_it_is_imported_is_there_for_later_runs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is imported once in a process: what it has set, for a library that reads it later, would never come back."""
    (tmp_path / "sets_a_variable_once.py").write_text("import os\nos.environ['SET_BY_AN_IMPORT'] = '2'\n")
    monkeypatch.setenv("A_MODULE_IS_IN", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for x in (0.1, 0.2):
        answer = execute(importing.order(importing.manifest({"x": x}), work=tmp_path, site={"node_cores": 1}))
        assert answer["metrics"] == {"there": 2.0}, answer
        assert "SET_BY_THE_FUNCTION" not in os.environ
    assert sys.path[-1] == str(tmp_path), "where that module may find others; behind all that was there"
    monkeypatch.delenv("SET_BY_AN_IMPORT")


def test_a_timer_of_the_process_goes_on_after_a_run_that_has_stopped_it() -> None:
    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, 300)
    try:
        with AsFound():
            signal.alarm(0)
            time.sleep(0.1)
        assert 200 < signal.getitimer(signal.ITIMER_REAL)[0] < 299.95
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_alarm_that_comes_while_all_is_given_back_hurts_nobody() -> None:

    def spoil(seconds: float) -> None:
        os.umask(0o777)
        signal.signal(signal.SIGALRM, too_late)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    late = 0
    handler = signal.getsignal(signal.SIGALRM)
    for microseconds in range(1, 400, 4):
        umask = os.umask(0o027)
        os.umask(umask)
        try:
            AsFound().call(spoil, seconds=microseconds * 1e-6)
        except Late:  # still in the function
            late += 1
        assert os.umask(umask) == umask and signal.getsignal(signal.SIGALRM) == handler
    assert late < 100
    assert cannot_be_given_back() == ()


def test_in_another_thread_nothing_of_the_process_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_ANOTHER_RUN", "0")

    def run() -> None:
        with AsFound():
            os.environ["OF_ANOTHER_RUN"] = "1"

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert os.environ["OF_ANOTHER_RUN"] == "1"


def test_a_run_that_leaves_its_streams_alone_costs_no_look_at_a_file(tmp_path: Path) -> None:
    """A worker's log may lie on a network, whose server `fstat` asks."""
    code = """
    import os
    from hpcagent.apps.as_found import AsFound, ours
    ours()
    with AsFound():
        pass
    real, calls = os.fstat, []
    os.fstat = lambda number: calls.append(number) or real(number)
    for _ in range(5):
        with AsFound():
            pass
    seldom = len(calls)
    with AsFound():
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    print(seldom, len(calls) > 0)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ROOT}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("0 True\n", "")
