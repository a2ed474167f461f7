"""Opening this machine as a site: work comes back, trouble is told, and nothing is left running."""

from __future__ import annotations

import functools
import operator
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import parsl
import psutil
import pytest

import hpcagent
from hpcagent.errors import AppFailed, BadInput, SiteFailed
from hpcagent.sites import Profile, Site, current_dfk, current_site, failure_of, find_profile, open_site

ROOT = Path(hpcagent.__file__).parents[1]


def processes(run_dir: Path) -> list[psutil.Process]:
    """Every process that belongs to a site opened in `run_dir`: by its command, or its parents'."""
    found = []
    for process in psutil.process_iter():
        try:
            named = any(str(run_dir) in word for word in process.cmdline())
            inside = process.environ().get("TEST_RUN_DIR") == str(run_dir)
        except psutil.Error:
            continue
        if (named or inside) and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def assert_nothing_left(run_dir: Path, within_s: float = 2.0) -> None:
    deadline = time.monotonic() + within_s
    while processes(run_dir) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes(run_dir)


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    """The laptop profile with two workers, whose children can be told by their environment."""
    laptop = find_profile("laptop")
    return laptop.model_copy(update={"env": {"TEST_RUN_DIR": str(tmp_path)}})


@pytest.fixture
def site(profile: Profile, tmp_path: Path) -> Iterator[Site]:
    with open_site(profile, run_dir=tmp_path, workers=2, private=True) as site:
        yield site
    assert_nothing_left(tmp_path, 0.0)


def sleeper(seconds: float = 600) -> Any:
    """A task that starts a program which would outlive it: in a session of its own, as apps do."""
    return functools.partial(subprocess.call, ["sleep", str(seconds)], start_new_session=True)


def wait_for_sleep(run_dir: Path) -> None:
    deadline = time.monotonic() + 60
    while not any(process.name() == "sleep" for process in processes(run_dir)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def failure(future: Future[Any], within_s: float) -> BaseException:
    error = future.exception(within_s)
    assert error is not None
    return error


# --- work


def test_runs_come_back_from_pinned_workers_and_closing_leaves_nothing(profile: Profile, tmp_path: Path) -> None:
    with open_site(profile, run_dir=tmp_path, workers=2) as site:
        assert (site.workers, current_site(), current_dfk()) == (2, site, site.dfk)
        assert site.run_dir.parent == tmp_path / "parsl"
        assert site.submit(operator.add, {"a": 1}["a"], 2).result(120) == 3
        cores = site.submit(os.sched_getaffinity, 0).result(120)
        assert len(cores) == 1
        assert site.submit(os.getenv, "OMP_NUM_THREADS").result(120) == "1"
        assert len(processes(tmp_path)) == 4  # interchange, manager, two workers
        site.submit(sleeper())
        wait_for_sleep(tmp_path)
    assert_nothing_left(tmp_path, 0.0)
    assert current_site() is None
    assert current_dfk() is None
    site.close()  # again: nothing
    with pytest.raises(SiteFailed, match="closed"):
        site.submit(operator.add, 1, 2)


def test_nothing_listens_beyond_this_machine_and_the_keys_go(site: Site, tmp_path: Path) -> None:
    site.submit(abs, -1).result(120)
    here = [psutil.Process(), *processes(tmp_path)]
    listening = [c for p in here for c in p.net_connections() if c.status == psutil.CONN_LISTEN]
    assert listening
    assert {c.laddr.ip for c in listening} <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert not [p for p in tmp_path.rglob("*") if "secret" in p.name]
    keys = Path(site.dfk.executors["workers"].cert_dir)
    assert (keys.stat().st_mode & 0o777, keys.is_dir()) == (0o700, True)
    site.close()
    assert not keys.parent.exists()


def _shell(words: str, folder: str) -> int:
    return subprocess.run(["timeout", "60", "sh", "-c", words], cwd=folder, check=False).returncode


def test_more_workers_than_cores_take_turns(profile: Profile, tmp_path: Path) -> None:
    many = len(os.sched_getaffinity(0)) + 2
    with open_site(profile, run_dir=tmp_path, workers=many, private=True) as site:
        assert [site.submit(abs, -n).result(120) for n in range(10)] == list(range(10))
        meeting = tmp_path / "meeting"
        meeting.mkdir()
        all_here = f"touch $$; until [ $(ls | wc -l) -ge {many} ]; do sleep 0.05; done"
        waiting = [site.submit(_shell, all_here, str(meeting)) for _ in range(many)]
        assert [future.result(90) for future in waiting] == [0] * many  # all at once


def test_large_data_goes_both_ways(site: Site) -> None:
    data = bytes(3_000_000)
    assert len(site.submit(bytes.swapcase, data).result(120)) == 3_000_000


@pytest.mark.parametrize("private", [False, True])
def test_apps_that_wait_for_each_other_are_parsls_own(profile: Profile, tmp_path: Path, private: bool) -> None:
    with open_site(profile, run_dir=tmp_path, private=private) as site:
        kernel = site.dfk if private else None
        add = parsl.python_app(operator.add, data_flow_kernel=kernel)
        assert add(add(1, 2), add(3, 4)).result(120) == 10
        divide = parsl.python_app(operator.truediv, data_flow_kernel=kernel)
        error = failure(add(divide(1, 0), 1), 120)
        assert failure_of(error) == ("contract", "ZeroDivisionError", "division by zero")


def test_private_sites_live_beside_each_other_and_a_users_own_parsl(profile: Profile, tmp_path: Path) -> None:
    own = parsl.load(
        parsl.Config(
            executors=[parsl.ThreadPoolExecutor()], run_dir=str(tmp_path / "own"), initialize_logging=False
        )
    )
    try:
        with pytest.raises(BadInput, match="private=True"):
            open_site(profile, run_dir=tmp_path)
        with open_site(profile, run_dir=tmp_path, private=True) as one:
            with open_site(profile, run_dir=tmp_path, private=True) as two:
                pids = {s.submit(os.getpid).result(120) for s in (one, two)}
                assert len({*pids, parsl.python_app(os.getpid)().result(120)}) == 3
            assert one.submit(abs, -1).result(120) == 1
        assert current_dfk() is own
        assert current_site() is None
    finally:
        own.cleanup()


def test_threads_are_a_site_too() -> None:
    with open_site("threads", workers=2, private=True) as site:
        assert site.submit(operator.add, 1, 2).result(120) == 3
        assert failure_of(failure(site.submit(operator.truediv, 1, 0), 120))[1] == "ZeroDivisionError"
        running = [site.submit(time.sleep, 0.3) for _ in range(4)]
    for future in running:
        assert failure_of(failure(future, 0))[:2] == ("infrastructure", "SiteFailed")


# --- trouble


def test_closing_fails_what_is_running_waiting_or_dependent(profile: Profile, tmp_path: Path) -> None:
    with open_site(profile, run_dir=tmp_path, workers=1, private=True) as site:
        sent = [site.submit(time.sleep, 600) for _ in range(4)]
        nap = parsl.python_app(subprocess.call, data_flow_kernel=site.dfk)
        again = parsl.python_app(operator.pos, data_flow_kernel=site.dfk)
        chain = [nap(["sleep", "600"])]
        for _ in range(5):
            chain.append(again(chain[-1]))
        started = time.monotonic()
    assert time.monotonic() - started < 60  # not as long as they sleep
    for future in [*sent, *chain]:
        assert failure_of(failure(future, 1))[:2] == ("infrastructure", "SiteFailed")


def test_an_exception_in_the_body_closes_the_site(profile: Profile, tmp_path: Path) -> None:
    with pytest.raises(KeyError), open_site(profile, run_dir=tmp_path, private=True) as site:
        site.submit(sleeper())
        wait_for_sleep(tmp_path)
        raise KeyError
    assert_nothing_left(tmp_path, 0.0)


def test_a_killed_worker_costs_its_run_only(site: Site, tmp_path: Path) -> None:
    pid = site.submit(os.getpid).result(120)
    lost = site.submit(signal.raise_signal, signal.SIGKILL)
    assert failure_of(failure(lost, 2.5))[:2] == ("infrastructure", "WorkerLost")
    # An idle one: with Parsl's own queue it would take the queue's lock with it, and stop the other.
    manager = psutil.Process(pid).parent() if psutil.pid_exists(pid) else None
    for process in processes(tmp_path):
        if manager is not None and process.ppid() == manager.pid:
            process.kill()
    assert [site.submit(abs, -n).result(120) for n in range(20)] == list(range(20))


def test_cancelled_runs_are_not_begun_or_end_with_what_they_started_and_others_go_on(
    profile: Profile, tmp_path: Path
) -> None:
    with open_site(profile, run_dir=tmp_path, workers=1, private=True) as site:
        running = site.submit(sleeper())
        wait_for_sleep(tmp_path)
        waiting = [site.submit(abs, -n) for n in range(6)]  # some at the manager, some at the interchange
        assert site.cancel([], [running, *waiting[::2]])
        assert failure_of(failure(running, 60))[:2] == ("infrastructure", "WorkerLost")
        for future in waiting[::2]:
            assert "The run was cancelled." in str(failure(future, 60))
        assert [future.result(60) for future in waiting[1::2]] == [1, 3, 5]
        deadline = time.monotonic() + 60
        while any(process.name() == "sleep" for process in processes(tmp_path)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not site.cancel([], [running]) and not site.cancel(["unknown"])
    with open_site("threads", workers=1, run_dir=tmp_path) as threads:
        assert not threads.cancel([], [threads.submit(abs, -1)])


def test_what_a_killed_worker_had_started_ends_too(site: Site, tmp_path: Path) -> None:
    future = site.submit(sleeper())
    wait_for_sleep(tmp_path)
    (sleep,) = [process for process in processes(tmp_path) if process.name() == "sleep"]
    sleep.parent().kill()
    assert failure_of(failure(future, 30))[0] == "infrastructure"
    deadline = time.monotonic() + 60
    while sleep in processes(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sleep not in processes(tmp_path)


def test_killed_workers_and_manager_are_replaced(site: Site) -> None:
    manager = site.submit(os.getppid).result(120)
    running = site.submit(time.sleep, 600)
    time.sleep(0.2)
    os.kill(manager, signal.SIGKILL)
    assert failure_of(failure(running, 2.5))[:2] == ("infrastructure", "ManagerLost")
    assert site.submit(abs, -1).result(120) == 1
    assert site.submit(os.getppid).result(120) != manager


def test_a_dead_interchange_fails_everything_and_says_so(site: Site) -> None:
    site.submit(abs, -1).result(120)
    running = site.submit(time.sleep, 600)
    site.dfk.executors["workers"].interchange_proc.kill()
    error = failure(running, 2)
    assert isinstance(error, SiteFailed)
    assert "interchange" in str(error)
    with pytest.raises(SiteFailed, match="interchange"):
        site.submit(abs, -1)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("worker_init", "echo no such module: lammps >&2\nexit 7", "exit code 7.*no such module: lammps"),
        ("python", "/usr/bin/no-python", "no-python"),
        ("worker_init", "export PARSL_CORES=many", "many"),
    ],
)
def test_workers_that_cannot_start_say_why(
    profile: Profile, tmp_path: Path, key: str, value: str, said: str
) -> None:
    executor = profile.executors["workers"].model_copy(update={key: value})
    broken = profile.model_copy(update={"executors": {"workers": executor}})
    with open_site(broken, run_dir=tmp_path, private=True) as site:
        future = site.submit(abs, -1)
        error = failure(future, 3)
    assert isinstance(error, SiteFailed)
    assert "before they were ready" in str(error)
    assert any(said_line in str(error) for said_line in said.split(".*"))


def test_an_app_says_itself_what_went_wrong() -> None:
    lost = AppFailed("Lost 3 atoms.", kind="simulation", name="LostAtoms")
    assert failure_of(lost) == ("simulation", "LostAtoms", "Lost 3 atoms.")
    assert failure_of(CancelledError())[0] == "cancelled"


# --- the opener ends


SCRIPT = """
    import functools, operator, subprocess, sys, time
    import parsl
    from hpcagent.sites import find_profile, open_site
    run_dir = sys.argv[1]
    profile = find_profile("laptop").model_copy(update={"env": {"TEST_RUN_DIR": run_dir}})
    site = open_site(profile, run_dir=run_dir, workers=4)
    site.submit(functools.partial(subprocess.call, ["sleep", "600"], start_new_session=True))
    chain = parsl.python_app(operator.pos)(parsl.python_app(subprocess.call)(["sleep", "600"]))
    answer = site.submit(abs, -42).result(120)
    try:
        print(answer, flush=True)  # from here on it may be interrupted
        time.sleep(float(sys.argv[2]))
    except KeyboardInterrupt:
        print(site.submit(abs, -43).result(120), flush=True)
"""


def start(tmp_path: Path, seconds: float, **environment: str) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    run_dir = tmp_path / "run"
    return subprocess.Popen(
        [sys.executable, str(script), str(run_dir), str(seconds)],
        env={"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_script_that_forgets_to_close_and_has_no_path_leaves_nothing(tmp_path: Path) -> None:
    # As from an environment that is not activated, or a Jupyter kernel. `sleep` must still be found.
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "sleep").symlink_to("/bin/sleep")
    script = start(tmp_path, 0.2, PATH=str(bare))
    out, err = script.communicate(timeout=120)
    assert (script.returncode, out, err) == (0, "42\n", "")
    assert_nothing_left(tmp_path / "run", 0.0)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_an_opener_that_is_killed_leaves_nothing(tmp_path: Path, end: signal.Signals) -> None:
    script = start(tmp_path, 600, PATH=os.environ["PATH"])
    assert script.stdout is not None
    assert script.stdout.readline() == "42\n"
    wait_for_sleep(tmp_path / "run")
    script.send_signal(end)
    script.communicate(timeout=120)
    assert script.returncode == -end
    assert_nothing_left(tmp_path / "run", 2.0)


def test_ctrl_c_at_the_terminal_is_for_the_opener_only(tmp_path: Path) -> None:
    script = start(tmp_path, 600, PATH=os.environ["PATH"])
    assert script.stdout is not None
    assert script.stdout.readline() == "42\n"
    os.killpg(script.pid, signal.SIGINT)  # what a terminal does: the whole foreground group
    out, err = script.communicate(timeout=120)
    assert (script.returncode, out, err) == (0, "43\n", "")
    assert_nothing_left(tmp_path / "run", 0.0)
