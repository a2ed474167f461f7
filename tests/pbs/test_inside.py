"""A coordinator inside of a job of PBS: its runs are on every node of the job, whatever starts the workers there.

The nodes are this machine under other host names (a UTS namespace each); mpiexec, pbsdsh and ssh are small programs
that start processes there as theirs do: with the environment that each hands on, and with what each does at SIGTERM.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from hpcagent.apps.run_records import RunRecords
from hpcagent.elsewhere.submit import submit
from tests.on_record import hosts_on_record

UNSHARE = ["unshare", "--uts", *([] if os.getuid() == 0 else ["--map-root-user"])]
ON = f"""#!/bin/sh
# on HOST WORDS...: under another host name
exec {" ".join(UNSHARE)} /bin/sh -c 'hostname "$0"; exec "$@"' "$@"
"""
MPIEXEC = """#!{python}
import argparse, signal, subprocess, sys
if sys.argv[1:] == ["--version"]:
    sys.exit(print("mpiexec version 1.3.4"))  # PALS
words = argparse.ArgumentParser()
words.add_argument("-n", type=int)
for word in ("--hostfile", "--ppn", "--cpu-bind"):
    words.add_argument(word, required=True)
begin = sys.argv.index({python!r})
told = words.parse_args(sys.argv[1:begin])
hosts = open(told.hostfile).read().split()
assert len(hosts) == told.n and told.ppn == "1", (hosts, told)
started = [subprocess.Popen([{on!r}, host, *sys.argv[begin:]]) for host in hosts]
signal.signal(signal.SIGTERM, lambda *about: [process.terminate() for process in started])
sys.exit(max(process.wait() for process in started))
"""
PBSDSH = """#!{python}
import os, signal, subprocess, sys
assert sys.argv[1] == "--", sys.argv
bare = {{k: v for k, v in os.environ.items() if k in ("HOME", "PBS_JOBID", "PBS_NODEFILE")}}
hosts = open(os.environ["PBS_NODEFILE"]).read().split()
started = [
    subprocess.Popen([{on!r}, host, *sys.argv[2:]], env={{**bare, "PATH": "/usr/bin:/bin"}}, start_new_session=True)
    for host in hosts
]
signal.signal(signal.SIGTERM, lambda *about: [os.killpg(process.pid, 15) for process in started])
sys.exit(max(process.wait() for process in started))
"""
SSH = """#!{python}
import os, subprocess, sys
*options, host, line = sys.argv[1:]
assert options == ["-n", "-o", "BatchMode=yes"], options
bare = {{"HOME": os.environ["HOME"], "PATH": "/usr/bin:/bin"}}
# what is there goes on when ssh is killed
sys.exit(subprocess.run([{on!r}, host, "/bin/sh", "-c", line], env=bare, start_new_session=True).returncode)
"""
CAMPAIGN = """
app = "synthetic"
batch_size = 8
[space]
x = {}
y = {}
[fixed]
run_time_s = 0.3
[objective]
maximize = "value"
[until]
max_runs = 16
[policy]
name = "sobol"
"""
SITE = """
kind = "pbs"
address = "127.0.0.1"
poll_s = 0.5
margin_s = 2
[block]
walltime = "00:05:00"
{block}
[executors.workers]
cpu_affinity = "none"
preload = []
{executor}
"""


@pytest.fixture
def tools(pbs, tmp_path, monkeypatch):
    """A folder with the launchers; every job runs there, on its first node."""
    if subprocess.run([*UNSHARE, "hostname", "n1"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine gives nobody a host name of their own")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "tools"
    folder.mkdir()
    for name, text in (("on", ON), ("mpiexec", MPIEXEC), ("pbsdsh", PBSDSH), ("ssh", SSH)):
        on = str(folder / "on")
        (folder / name).write_text(text if name == "on" else text.format(python=sys.executable, on=on))
        (folder / name).chmod(0o755)
    return folder


def job(pbs, tools, *directives, block="", executor="", words=("--inside",), path=""):
    """Run the campaign in a job; returns what it printed, its exit code and the job's id."""
    Path("my.toml").write_text(CAMPAIGN)
    Path("here.toml").write_text(SITE.format(block=block, executor=executor))
    command = (
        f"{sys.executable} -m hpcagent.cli run my.toml --site here.toml --run-dir r --no-plots {' '.join(words)}"
    )
    first = "n1"
    path = path or f"{tools}:$PATH"
    body = f"cd {Path.cwd()}\n{tools}/on {first} env PATH={path} {command} > out.txt 2>&1\n"
    job_id = pbs.qsub(body + "echo $? > code.txt", *directives, "-l walltime=300")
    pbs.wait(job_id, within_s=300)
    gone_by = time.monotonic() + 40  # a heartbeat would be missed after a minute
    while pbs.processes() and time.monotonic() < gone_by:
        time.sleep(0.1)
    assert not pbs.processes(), pbs.processes()
    return Path("out.txt").read_text(), int(Path("code.txt").read_text()), job_id


def hosts():
    """Runs by the host that they were on."""
    return Counter(hosts_on_record(Path("r/work")))


def sessions():
    """Workers of each start of the coordinator."""
    lines = [json.loads(line) for line in Path("r/events.jsonl").read_text().splitlines()]
    return [line["workers"] for line in lines if line["event"] == "session"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "directives", "workers"),
    [
        ("", ["-l select=2:ncpus=1+2:ncpus=1"], 4),  # two lines of the node file for each host
        ("pbsdsh", ["-l select=1:ncpus=2+1:ncpus=1", "-l place=scatter"], 3),  # nodes that differ
        ("ssh", ["-l select=2:ncpus=2", "-l place=scatter"], 4),
    ],
)
def test_every_node_of_the_job_gets_runs_whatever_a_block_is(pbs, tools, launcher, directives, workers):
    """A block of the profile has one node."""
    pbs.set(hosts={"n1": 2, "n2": 2})
    out, code, job_id = job(pbs, tools, *directives, block=launcher and f'worker_launcher = "{launcher}"')
    assert code == 0 and f"workers start on the 2 nodes of job {job_id}" in out, out
    assert sum(hosts().values()) == 16 and set(hosts()) == {"n1", "n2"} and min(hosts().values()) >= 3
    assert sessions() == [workers]


@pytest.mark.slow
def test_a_submitted_job_does_its_runs_on_all_its_nodes(pbs, tools):
    pbs.set(hosts={"n1": 2, "n2": 2})
    Path("my.toml").write_text(CAMPAIGN)
    init = f'worker_init = "export PATH={tools}:$PATH"'
    Path("here.toml").write_text(SITE.format(block="nodes_per_block = 2\ncores_per_node = 2", executor=init))
    done = submit("my.toml", site="./here.toml", run_dir="r", inside=True)
    pbs.wait(done.job_id, within_s=300)
    log = Path("r/coordinator.log").read_text()
    assert f"workers start on the 2 nodes of job {done.job_id}" in log and "All 16 runs" in log, log
    assert sum(hosts().values()) == 16 and set(hosts()) == {"n1", "n2"}, log
    give_up = time.monotonic() + 20
    while pbs.open_jobs() and time.monotonic() < give_up:  # its successor is cancelled
        time.sleep(0.1)


@pytest.mark.slow
def test_without_any_mpiexec_the_job_says_what_to_do(pbs, tools):
    pbs.set(hosts={"n1": 1, "n2": 1})
    bare = tools.with_name("bare")
    bare.mkdir()
    for name in ("sort", "bash", "sh", "date"):
        (bare / name).symlink_to(shutil.which(name))
    out, code, _ = job(pbs, tools, "-l select=2:ncpus=1", "-l place=scatter", path=str(bare))
    assert code == 1 and "There is no mpiexec on the PATH of this job" in out, out
    assert "worker_launcher = 'pbsdsh' or 'ssh'" in out and hosts().total() == 0


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["", "pbsdsh", "ssh"])
def test_a_job_that_is_ended_has_ended_its_workers_on_every_node_before_it_is_killed(pbs, tools, launcher):
    pbs.set(hosts={"n1": 1, "n2": 1}, kill_delay_s=10.0)
    Path("my.toml").write_text(CAMPAIGN.replace("0.3", "600.0"))
    block = launcher and f'worker_launcher = "{launcher}"'
    Path("here.toml").write_text(SITE.format(block=block, executor=""))
    command = f"{sys.executable} -m hpcagent.cli run my.toml --site here.toml --run-dir r --inside --no-plots"
    on = f"{tools}/on n1 env PATH={tools}:$PATH"
    job_id = pbs.qsub(
        f"cd {Path.cwd()}\nexec {on} {command} > out.txt 2>&1", "-l select=2:ncpus=1", "-l place=scatter"
    )
    up = time.monotonic() + 60
    while len(managers(pbs)) < 4 or len(RunRecords(Path("r/work")).begun()) < 2:  # a manager and a worker on each
        assert time.monotonic() < up, (managers(pbs), Path("out.txt").read_text())
        time.sleep(0.1)
    begun = time.monotonic()
    pbs.run("qdel", job_id)
    while managers(pbs):
        assert time.monotonic() < begun + 9.0, managers(pbs)
        time.sleep(0.05)
    pbs.wait(job_id)
    assert "SIGTERM" in Path("out.txt").read_text() and not pbs.processes()


def managers(pbs):
    """Processes that hold the workers of a node, workers included."""
    return [
        pid for pid, words in pbs.processes().items() if "worker_pool" in words and "python" in words.split()[0]
    ]
