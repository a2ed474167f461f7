"""The coordinator in jobs: one after another, with their own nodes, killed, cancelled, and by hand with --inside."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from hpcagent.sites.ledger import read_ledger
from tests.on_record import hosts_on_record
from tests.warm import command

pytestmark = pytest.mark.slow

CAMPAIGN = """
app = "synthetic"
batch_size = 4
[space]
x = {{}}
y = {{}}
[fixed]
run_time_s = {run_time_s}
[objective]
maximize = "value"
[until]
max_runs = {runs}
[policy]
name = "sobol"
"""
SITE = """
kind = "slurm"
address = "127.0.0.1"
poll_s = 0.5
heartbeat_s = 10
margin_s = {margin_s}
[nodes.n]
cores = 2
[queues.debug]
node = "n"
[block]
queue = "debug"
walltime = "{walltime}"
nodes_per_block = {nodes}
max_idletime = 5
[executors.workers]
"""


@pytest.fixture
def here(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(*, margin_s, nodes=1, runs=12, run_time_s=2.0, walltime="00:03:00"):
    Path("my.toml").write_text(CAMPAIGN.format(runs=runs, run_time_s=run_time_s))
    Path("here.toml").write_text(SITE.format(margin_s=margin_s, nodes=nodes, walltime=walltime))


def hpcagent(*words, check=True):
    done = command(*words, timeout=900)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def until(what, within_s=300.0):
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline, log()
        time.sleep(0.2)


def log():
    path = Path("r/coordinator.log")
    printed = [p.read_text() for p in Path("r/coordinator").glob("*") if p.is_file()]
    return "\n".join([path.read_text() if path.exists() else "(no log)", *printed])


def events():
    return [json.loads(line) for line in Path("r/events.jsonl").read_text().splitlines()]


def results():
    """How many results there are of each run."""
    found = [r["execution_id"] for e in events() if e["event"] == "results" for r in e["results"]]
    return Counter(found)


def hosts_by_session():
    """The hosts of the runs that ended in each session of a coordinator."""
    found = []
    for event in events():
        if event["event"] == "session":
            found.append(set())
        elif event["event"] == "results":
            found[-1] |= {result["host"] for result in event["results"]}
    return found


def coordinators():
    return [e for e in read_ledger(Path("r/jobs.jsonl")) if (e.about or {}).get("role") == "coordinator"]


def pids():
    return [e["pid"] for e in events() if e["event"] == "session"]


def test_jobs_follow_one_another_on_their_own_nodes_until_the_campaign_stops(here, cluster):
    # A job has a minute for its runs and one for its end. More than 44 runs of 5 s do not go into a minute of four workers,
    # and a machine that takes half a minute for the start of a job still gets some results in each.
    write(margin_s=60, nodes=2, runs=46, run_time_s=5.0, walltime="00:02:00")
    shown = hpcagent("submit", "my.toml", "--site", "here.toml", "--run-dir", "r", "--inside", "--dry-run").stdout
    assert "#SBATCH --nodes=2" in shown and "--exclusive" in shown and not Path("r").exists()
    first = hpcagent("submit", "my.toml", "--site", "here.toml", "--run-dir", "r", "--inside").stdout
    assert "#SBATCH --nodes=2" in first and "hpcagent status r --follow" in first
    told = hpcagent("status", "r", "--follow").stdout
    assert "stopped: All 46 runs have ended." in told and "its time was over" in told, log()
    until(lambda: not cluster.jobs())
    assert len(results()) == 46 and set(results().values()) == {1}
    chain, sessions = coordinators(), [e for e in events() if e["event"] == "session"]
    # How many jobs the runs take is the machine's affair; each has one successor.
    assert len(sessions) >= 2 and sessions[0]["workers"] == 4
    assert [e.ended for e in chain] == [*["completed"] * len(sessions), "cancelled"], log()
    assert not list(Path("r/work").glob("*/attempt-2"))
    hosts = hosts_by_session()
    assert max(map(len, hosts)) == 2 and set().union(*hosts) <= set(
        cluster.nodes
    )  # never on a node of another job


def test_a_coordinator_that_is_killed_is_followed_by_the_next_job(here, cluster):
    write(margin_s=10, runs=12)
    shown = hpcagent("submit", "my.toml", "--site", "here.toml", "--run-dir", "r").stdout
    assert "--cpus-per-task=2" in shown and "--exclusive" not in shown  # the coordinator needs no whole node
    until(lambda: Path("r/events.jsonl").exists() and results().total() >= 4)
    os.kill(pids()[0], signal.SIGKILL)
    told = hpcagent("status", "r", "--follow").stdout
    assert "stopped: All 12 runs have ended." in told, log()
    until(lambda: not cluster.jobs())
    assert len(results()) == 12 and set(results().values()) == {1} and len(pids()) == 2
    assert {e.ended for e in read_ledger(Path("r/jobs.jsonl"))} <= {"completed", "cancelled", "failed"}


def test_a_coordinator_that_is_cancelled_is_followed_by_none_and_reap_leaves_nothing(here, cluster):
    write(margin_s=10, runs=40)
    hpcagent("submit", "my.toml", "--site", "here.toml", "--run-dir", "r")
    again = hpcagent("submit", "r", "--site", "here.toml", check=False)
    assert again.returncode == 2 and "is the coordinator of r already" in again.stderr
    until(lambda: Path("r/events.jsonl").exists() and results().total() >= 4)
    first, second = coordinators()
    cluster.run(f"scancel {first.job_id}")
    until(lambda: first.job_id not in cluster.jobs())
    assert second.job_id not in cluster.jobs() and "ended from outside" in log()
    hpcagent("reap", "r")
    assert cluster.jobs() == {} and all(e.ended for e in read_ledger(Path("r/jobs.jsonl")))
    assert hpcagent("reap", "r").stdout == "no job was left\n"


def test_a_coordinator_whose_node_is_set_down_is_followed_by_the_next_job(here, cluster):
    write(margin_s=10, runs=16)
    hpcagent("submit", "my.toml", "--site", "here.toml", "--run-dir", "r")
    until(lambda: Path("r/events.jsonl").exists() and results().total() >= 4)
    first, second = coordinators()
    node = cluster.details(first.job_id)["NodeList"]
    cluster.down(node)  # its processes get SIGTERM, as after scancel
    until(lambda: first.job_id not in cluster.jobs())
    cluster.resume(node)
    assert f"(node_failed); job {second.job_id} goes on" in log(), log()
    told = hpcagent("status", "r", "--follow").stdout
    assert "stopped: All 16 runs have ended." in told, log()
    until(lambda: not cluster.jobs())
    assert len(results()) == 16 and set(results().values()) == {1} and len(pids()) == 2
    assert coordinators()[0].ended == "node_failed"


def test_a_job_without_a_new_result_is_not_repeated(here, cluster):
    write(margin_s=50, run_time_s=300.0, walltime="00:01:00")
    hpcagent("submit", "my.toml", "--site", "here.toml", "--run-dir", "r")
    until(lambda: "no new result, so none follows" in log())
    until(lambda: not cluster.jobs())
    assert "no other one goes on" in log() and len(pids()) == 1
    left = hpcagent("status", "r", "--follow", check=False)
    assert left.returncode == 1 and "hpcagent resume r" in left.stderr


def test_inside_a_job_the_coordinator_stops_in_time_and_says_how_to_go_on(here, cluster):
    write(margin_s=85, nodes=2, runs=400, run_time_s=0.5, walltime="00:02:00")
    words = f"{sys.executable} -m hpcagent.cli run my.toml --site here.toml --run-dir r --inside --no-plots"
    Path("job.sh").write_text(f"#!/bin/bash\n{words} > out.txt 2>&1\necho $? > code.txt\n")
    job = cluster.run(f"cd {here} && sbatch -N2 --exclusive -t2 -o job.out job.sh")
    until(lambda: Path("code.txt").exists() and Path("code.txt").read_text())
    out = Path("out.txt").read_text()
    assert Path("code.txt").read_text() == "75\n" and "hpcagent resume r --inside" in out, out
    job_id = job.rpartition(" ")[2].strip()  # "Submitted batch job 7"
    assert out.count(f"workers start on the 2 nodes of job {job_id}") == 1, out
    assert "submitted" not in out and f"job {job_id} runs" not in out and "walltime" not in out, out
    assert results().total() > 4 and set(results().values()) == {1}
    hosts = set(hosts_on_record(Path("r/work")))
    assert len(hosts) == 2 and hosts <= set(cluster.nodes)
    assert Path("r/jobs.jsonl").exists() is False
    until(lambda: not cluster.jobs())


def test_workers_that_end_inside_a_job_are_told_of_as_workers_and_not_as_a_job(here, cluster):
    write(margin_s=10)
    with Path("here.toml").open("a") as site:
        site.write('worker_init = "echo no such module >&2; exit 3"\n')
    words = f"{sys.executable} -m hpcagent.cli run my.toml --site here.toml --run-dir r --inside --no-plots"
    Path("job.sh").write_text(f"#!/bin/bash\n{words} > out.txt 2>&1\necho $? > code.txt\n")
    job_id = cluster.run(f"cd {here} && sbatch --parsable -N1 --exclusive -t3 -o job.out job.sh").strip()
    until(lambda: Path("code.txt").exists() and Path("code.txt").read_text())
    out = Path("out.txt").read_text()
    ended = f"he workers on the nodes of job {job_id} ended with exit code 3 before they were ready"
    assert Path("code.txt").read_text() == "1\n" and ended in out and "no such module" in out, out
    assert f"workers start on the 1 node of job {job_id}" in out and "submitted" not in out, out
    until(lambda: not cluster.jobs())


def test_that_a_job_runs_is_told_when_its_workers_report_however_seldom_the_scheduler_is_asked(here, cluster):
    write(margin_s=10, runs=8, run_time_s=2.0)
    Path("here.toml").write_text(Path("here.toml").read_text().replace("poll_s = 0.5", "poll_s = 300"))
    done = hpcagent("run", "my.toml", "--site", "here.toml", "--run-dir", "r", "--json", "--no-plots")
    told = done.stderr + done.stdout
    assert told.index(" runs on n1") < told.index('"event": "batch"'), told


def test_inside_of_no_job_is_refused(here):
    write(margin_s=10)
    done = hpcagent("run", "my.toml", "--site", "here.toml", "--inside", check=False)
    assert done.returncode == 2 and "in no slurm job" in done.stderr


def test_where_the_site_wants_its_coordinators_is_heeded_with_its_reason(here):
    write(margin_s=10)
    text = Path("here.toml").read_text()
    rule = '[coordinator]\nwhere = ["{}"]\nnote = "So says the site."\n'
    Path("here.toml").write_text(text + rule.format("login"))
    refused = hpcagent("submit", "my.toml", "--site", "here.toml", check=False)
    assert refused.returncode == 2 and "So says the site." in refused.stderr
    Path("here.toml").write_text(text + rule.format("job"))
    for more in ([], ["--detach"]):
        refused = hpcagent("run", "my.toml", "--site", "here.toml", "--run-dir", "r", *more, check=False)
        assert refused.returncode == 2 and "So says the site." in refused.stderr, refused.stderr


@pytest.mark.slow
def test_a_job_too_short_for_any_run_is_bad_input_and_not_a_job_to_be_repeated(here, cluster):
    write(margin_s=70, walltime="00:02:00")
    words = f"{sys.executable} -m hpcagent.cli run my.toml --site here.toml --run-dir r --inside --no-plots"
    Path("job.sh").write_text(f"#!/bin/bash\n{words} > out.txt 2>&1\necho $? > code.txt\n")
    cluster.run(f"cd {here} && sbatch --exclusive -t1 -o job.out job.sh")
    until(lambda: Path("code.txt").exists() and Path("code.txt").read_text())
    assert Path("code.txt").read_text() == "2\n" and "Ask for a longer job" in Path("out.txt").read_text()
    until(lambda: not cluster.jobs())


@pytest.mark.slow
def test_a_coordinator_in_the_background_is_reported_only_when_its_first_job_was_taken(here, cluster):
    write(margin_s=10, runs=40)
    wrong = Path("here.toml").read_text().replace('"debug"', '"gone"').replace("[queues.debug]", "[queues.gone]")
    Path("wrong.toml").write_text(wrong)
    refused = hpcagent("run", "my.toml", "--site", "wrong.toml", "--run-dir", "r", "--detach", check=False)
    assert refused.returncode == 1 and "nvalid partition" in refused.stderr and "goes on" not in refused.stdout
    taken = hpcagent("run", "my.toml", "--site", "here.toml", "--run-dir", "r", "--detach").stdout
    assert "goes on in the background" in taken and cluster.jobs()
    until(lambda: "running, on n" in hpcagent("status", "r").stdout)
    os.kill(pids()[-1], signal.SIGTERM)
    until(lambda: not cluster.jobs())
    before = results().total()
    hpcagent("resume", "r", "--no-plots", "--set", f"until.max_runs={before + 2}")  # no --site: where it was last
    assert [e["site"] for e in events() if e["event"] == "session"] == ["wrong", "here", "here"]
    assert "process" in hpcagent("status", "r").stdout


@pytest.mark.parametrize("mode", ["tasks", "mpi"])
def test_from_a_shell_of_salloc_on_another_machine_the_runs_are_on_the_nodes_of_the_job(here, cluster, mode):
    """Many sites leave that shell on the login node. The profile's blocks have one node, the job two."""
    write(margin_s=10, runs=12, run_time_s=0.5)
    with Path("here.toml").open("a") as site:
        site.write(f'mode = "{mode}"\n')
    words = f"{sys.executable} -m hpcagent.cli run my.toml --site here.toml --run-dir r --inside --no-plots"
    out = cluster.run(f"cd {here} && salloc -N2 --exclusive -t5 {words} 2>&1", timeout_s=180)
    assert "workers start on the 2 nodes of job" in out and "All 12 runs" in out, out
    hosts = Counter(hosts_on_record(Path("r/work")))
    # A run of one rank is in the worker itself, which is on the first node.
    assert hosts.total() == 12 and set(hosts) <= set(cluster.nodes), hosts
    assert len(hosts) == (2 if mode == "tasks" else 1) and min(hosts.values()) >= 3
    until(lambda: not cluster.jobs())
    assert cluster.processes() == []
