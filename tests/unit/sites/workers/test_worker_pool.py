"""The manager of a node's workers: it ends rather than lose one of its threads."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

THREAD = """
import os, sys, threading
from hpcagent.sites.launch import UNNEEDED, defer
defer(*UNNEEDED)  # as a process of a site begins
from parsl.executors.high_throughput import process_worker_pool as parsl_pool
from hpcagent.sites.workers import worker_pool

os.environ[worker_pool.MARK] = f"test-{os.getpid()}"

def thread(self, *arguments):
    if sys.argv[2] == "raises":
        raise OSError(28, "No space left on device")
    if sys.argv[2] == "stops":
        self._stop_event.set()

setattr(parsl_pool.Manager, sys.argv[1], thread)
pool = worker_pool.Pool.__new__(worker_pool.Pool)
pool._stop_event = threading.Event()
started = threading.Thread(target=getattr(pool, sys.argv[1]), args=({},))
started.start()
started.join()
print("lives on")
"""


@pytest.mark.parametrize("name", ["interchange_communicator", "ferry_result", "worker_watchdog"])
@pytest.mark.parametrize("how", ["raises", "returns", "stops"])
def test_a_manager_that_loses_a_thread_ends_and_says_so(name: str, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREAD, name, how],
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    if how == "stops":  # it was told to end
        assert done.returncode == 0 and done.stdout == "lives on\n"
        return
    assert done.returncode == -signal.SIGKILL and "has ended before its time" in done.stdout
    assert ("No space left on device" in done.stderr) is (how == "raises")
