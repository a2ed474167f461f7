"""What a run started and left running ends with the run, whatever it did to be forgotten."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcagent import lifeline
from hpcagent.apps.ending import run_mpi
from hpcagent.apps.run import Run
from hpcagent.apps.worker import execute
from hpcagent.lifeline import birth
from hpcagent.sites.doctor import examine
from hpcagent.sites.opening import open_site
from hpcagent.sites.profiles import find_profile

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's part of it is Linux's")

# Twice forked, in a session of its own, without any variable of ours; it names itself in the file.
DAEMON = """env -i setsid sh -c 'sh -c "echo \\$\\$ > {pid}; exec sleep 120" > /dev/null 2>&1 &'"""


def order_of(workdir: Path, function: object, **site: object) -> dict[str, object]:
    resources = {"nodes": 1, "ranks_per_node": 1, "threads_per_rank": 1}
    manifest = {"execution_id": "x", "seed": 0, "replicate": 0, "params": {}, "resources": resources}
    return {
        "manifest": manifest,
        "function": function,
        "settings": {},
        "workdir": str(workdir),
        "promises": {},
        "site": site,
    }


def leaves_a_daemon(run: Run) -> dict[str, float]:
    pid = run.workdir / "pid"
    run_mpi(run, ["sh", "-c", DAEMON.format(pid=pid)])
    while not pid.exists() or not pid.read_text().strip():
        time.sleep(0.01)
    return {"worker": float(os.getpid()), "alive": float(birth(int(pid.read_text())) is not None)}


def waits_beside_a_daemon(run: Run) -> dict[str, float]:
    leaves_a_daemon(run)
    (run.workdir / "ready").touch()
    time.sleep(120)
    return {}


def keeps_a_pool() -> int:
    """A child in the worker's own session, as a pool for the next call would be."""
    return subprocess.Popen(["sleep", "120"]).pid


def gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while birth(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    return birth(pid) is None


def test_a_daemon_without_mark_and_session_ends_with_its_run_and_a_pool_of_the_worker_does_not(
    tmp_path: Path,
) -> None:
    with open_site("laptop", run_dir=tmp_path, workers=1, private=True) as site:
        pool = site.submit(keeps_a_pool).result(timeout=60)
        fields = site.submit(execute, order_of(tmp_path / "x", leaves_a_daemon)).result(timeout=60)
        assert fields["metrics"]["alive"] == 1.0
        assert birth(int((tmp_path / "x" / "pid").read_text())) is None
        assert fields["notes"] == [
            "1 process(es) that the run had started and left running by themselves were ended with it"
        ]
        assert birth(pool) is not None
    assert gone(pool)


@pytest.mark.parametrize("how", ["the worker is killed", "the site is closed"])
def test_a_daemon_ends_where_its_run_does_not_come_to_an_end(tmp_path: Path, how: str) -> None:
    with open_site("laptop", run_dir=tmp_path, workers=1, private=True) as site:
        future = site.submit(execute, order_of(tmp_path / "x", waits_beside_a_daemon))
        while not (tmp_path / "x" / "ready").exists():
            assert not future.done(), future.result()
            time.sleep(0.02)
        daemon = int((tmp_path / "x" / "pid").read_text())
        if how == "the worker is killed":
            sleeper = Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1]
            os.kill(int(sleeper), signal.SIGKILL)  # its parent by now: the worker
            assert future.exception(timeout=30) is not None
            assert gone(daemon)
    assert gone(daemon, 0.5)


def test_a_process_that_is_given_no_orphans_ends_nobodys_children() -> None:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        assert lifeline.end_detached() == 0 == lifeline.end_strangers(frozenset())
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_a_worker_leaves_no_zombies_and_no_descriptors_behind(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, time; from hpcagent import lifeline; from pathlib import Path\n"
        "assert lifeline.adopt_orphans()\n"
        "kept = subprocess.Popen(['sh', '-c', 'exit 3'])\n"
        "for i in range(60):\n"
        "    subprocess.run(['sh', '-c', '(true &) ; setsid sleep 60 &'])\n"
        "    if i == 0: lifeline.end_detached(); assert kept.wait() == 3\n"
        "    lifeline.end_detached()\n"
        "time.sleep(0.5); lifeline.end_detached(); lifeline.end_detached()\n"
        "print(len(lifeline._children()), len(list(Path('/proc/self/fd').iterdir())))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    children, descriptors = map(int, found.stdout.split())
    assert children == 0 and descriptors <= 5


def test_sigterm_ends_a_process_whose_threads_do_not_return(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; import hpcagent as ha\n"
        "from hpcagent.apps.landscape import synthetic\n"
        "def watch(event):\n"
        "    if event.kind == 'submitted': Path(sys.argv[1], 'begun').touch()\n"
        "    if event.kind == 'site': print(event.reason, flush=True)\n"
        "c = ha.Campaign(synthetic, ha.maximize('value'), space={'x': {}}, fixed={'run_time_s': 300.0},\n"
        "                policy='random', until=ha.until.max_runs(4), batch_size=4)\n"
        "ha.run(c, site='threads', run_dir=Path(sys.argv[1], 'run'), workers=2, watch=watch)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        while not (tmp_path / "begun").exists() and process.poll() is None:
            time.sleep(0.05)
        time.sleep(0.5)
        began = time.monotonic()
        process.terminate()
        out, err = process.communicate(timeout=90)
    finally:
        process.kill()
    assert time.monotonic() - began < 60
    assert process.returncode != 0 and "stopped by SIGTERM" in err
    assert "2 run(s) go on in threads of this process, which cannot be ended" in out


def test_doctor_says_where_detached_processes_are_not_found(tmp_path: Path) -> None:
    said = {}
    for site in ("threads", "laptop"):
        checks = examine(find_profile(site), submit=False, run_dir=tmp_path)
        (said[site],) = (check.status for check in checks if check.what == "detached processes")
    assert said == {"threads": "warn", "laptop": "ok"}
