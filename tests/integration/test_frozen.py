"""A process that is alive but stopped: it is replaced, and every run is made once."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.apps.landscape import synthetic
from hpcagent.sites.workers import executor, worker_pool

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the states are Linux's")


def processes_of(folder: Path, what: str) -> list[int]:
    """Ids of this process's descendants or their like with a word and the folder in their command."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if what in command and str(folder) in command:
                found.append(int(entry.name))
    return found


def test_a_frozen_interchange_is_noticed_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_ASK_EVERY_S", 0.5)
    monkeypatch.setattr(executor, "_UNANSWERED_MOST", 5)
    said: list[str] = []
    stopped: list[int] = []

    def watch(event: Any) -> None:
        if event.kind == "site":
            said.append(event.reason)
        if event.kind == "finished" and not stopped:
            stopped.extend(processes_of(tmp_path, "hpcagent.sites.workers.interchange"))
            assert len(stopped) == 1
            os.kill(stopped[0], signal.SIGSTOP)

    campaign = ha.Campaign(
        synthetic,
        ha.maximize("value"),
        space={"x": {}},
        fixed={"run_time_s": 0.2},
        policy="random",
        until=ha.until.max_runs(8),
        batch_size=8,
    )
    began = time.monotonic()
    result = ha.run(campaign, site="laptop", run_dir=tmp_path / "run", workers=1, watch=watch)
    assert len([r for r in result.results if r.ok]) == 8
    assert time.monotonic() - began < 40
    assert any("has not answered for 1.5 s (somebody has stopped it)" in text for text in said)
    assert any(
        "did not answer for 2.5 s (somebody has stopped it) and was ended; the site is opened again" in text
        for text in said
    )
    assert not list((tmp_path / "run" / "work").glob("*/attempt-2"))


def test_a_worker_that_is_stopped_for_good_is_ended_and_one_that_runs_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import subprocess
    import threading
    from types import SimpleNamespace

    monkeypatch.setattr(worker_pool, "_LOOK_AT_WORKERS_S", 0.1)
    monkeypatch.setattr(worker_pool, "_STOPPED_S", 0.5)
    workers = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    over = threading.Event()
    pool: Any = SimpleNamespace(_workers=dict(enumerate(workers)), _stop_event=over)
    watch = threading.Thread(target=worker_pool.Pool._end_stopped, args=(pool,))
    try:
        os.kill(workers[0].pid, signal.SIGSTOP)
        watch.start()
        time.sleep(0.2)
        assert workers[0].poll() is None  # it may still be continued
        assert workers[0].wait(10) == -signal.SIGKILL
        assert workers[1].poll() is None
    finally:
        over.set()
        watch.join()
        for worker in workers:
            worker.kill()
            worker.wait()
