"""What the nodes of a job make of an executor whose coordinator is inside of it: no process is started here."""

from __future__ import annotations

import subprocess

import pytest

from hpcagent.errors import BadInput
from hpcagent.model.base import build
from hpcagent.sites.launchers import SrunWorkers, SshWorkers, worker_launcher
from hpcagent.sites.ledger import Ledger
from hpcagent.sites.opening import open_site
from hpcagent.sites.profile import Profile
from hpcagent.sites.schedulers.answers import Allocation, NodeShape
from hpcagent.sites.schedulers.pbs import Pbs
from hpcagent.sites.schedulers.registry import scheduler
from hpcagent.sites.workers.batch_of_profile import batch_executor


def opened(tmp_path, nodes, *, kind="pbs", block=None, executor=None, label="workers", workers=None):
    """The executor inside of a job with these nodes: name and cores."""
    profile = build(
        Profile,
        {
            "name": "x",
            "kind": kind,
            "address": "127.0.0.1",
            "block": block or {},
            "executors": {"workers": executor or {}, "mpi": {"mode": "mpi"}},
        },
        where="x",
    )
    made = batch_executor(
        profile,
        label,
        scheduler=scheduler(kind),
        ledger=Ledger(tmp_path / "jobs.jsonl"),
        account=None,
        workers=workers,
        inside=Allocation("7.srv", tuple(NodeShape(host, cores) for host, cores in nodes.items()), None),
    )
    made.provider.script_dir = str(tmp_path)
    return made


def script(executor):
    return executor.provider.lines("work", 1, "block-0")


@pytest.mark.parametrize(("asked", "blocks"), [(1, 1), (2, 2), (4, 4)])
def test_as_many_nodes_are_used_and_said_as_the_job_has_however_many_a_block_has(tmp_path, asked, blocks):
    executor = opened(tmp_path, {"n1": 2, "n2": 2}, block={"nodes_per_block": asked})
    assert (executor.block.nodes_per_block, executor.slots, executor.unused_nodes) == (2, 4, 0)
    assert "printf '%s\\n' n1 n2 > " in script(executor) and "mpiexec -n 2 " in script(executor)
    alone = opened(tmp_path, {"n1": 2}, block={"nodes_per_block": asked})
    assert (alone.block.nodes_per_block, alone.slots) == (1, 2)
    assert script(alone).endswith("\nexec work") and "mpiexec" not in script(alone)


def test_nodes_that_differ_get_as_many_workers_as_each_has_cores_for(tmp_path):
    executor = opened(tmp_path, {"n1": 4, "n2.site": 2}, executor={"cores_per_worker": 2})
    assert executor.slots == 3
    assert '--workers_of={"n1": 2, "n2": 1}' in executor.pool_arguments
    alike = opened(tmp_path, {"n1": 4, "n2": 4})
    assert alike.slots == 8 and not any("workers_of" in word for word in alike.pool_arguments)
    # The variables that say which cores are a job's own are those of its first node.
    assert "--cores=auto" in alike.pool_arguments and "--cores=auto" not in executor.pool_arguments


def test_a_job_with_fewer_cores_than_the_profile_asks_for_gets_fewer_workers_and_none_share_a_core(tmp_path):
    executor = opened(tmp_path, {"n1": 2, "n2": 2}, block={"cores_per_node": 32})
    assert executor.slots == 4 and "--max_workers_per_node=2" in executor.pool_arguments
    assert opened(tmp_path, {"n1": 8}, block={"cores_per_node": 4}).slots == 4  # no more than runs may use
    told = opened(tmp_path, {"n1": 2}, executor={"max_workers_per_node": 6})
    assert told.slots == 6  # who says so wants it
    assert opened(tmp_path, {"n1": 2, "n2": 2}, workers=3).slots == 6
    with pytest.raises(BadInput, match=r"takes 4 cores \(cores_per_worker\), but the node n2 of this job has 2"):
        opened(tmp_path, {"n1": 4, "n2": 2}, executor={"cores_per_worker": 4})


def test_a_launcher_that_leaves_out_nodes_is_heeded_and_not_counted_with_them(tmp_path):
    executor = opened(tmp_path, {"n1": 2, "n2": 2}, block={"worker_launcher": "single", "nodes_per_block": 2})
    assert (executor.block.nodes_per_block, executor.slots, executor.unused_nodes) == (1, 2, 1)


def test_runs_of_several_ranks_may_be_as_large_as_the_nodes_that_are_there(tmp_path):
    executor = opened(tmp_path, {"n1": 2, "n2": 4}, label="mpi")
    assert executor.slots == 6 and script(executor).endswith("\nexec work")
    executor.refuse_impossible({"nodes": 1, "cores": 4})
    executor.refuse_impossible({"nodes": 2, "cores": 2})
    assert executor.at_once({"nodes": 1, "cores": 2}) == 3 and executor.at_once({"nodes": 1, "cores": 4}) == 1
    words = r"2 node\(s\) x 4 core\(s\) does not fit into job 7\.srv, whose nodes are n1 with 2, n2 with 4"
    with pytest.raises(BadInput, match=words):
        executor.refuse_impossible({"nodes": 2, "cores": 4})
    with pytest.raises(BadInput, match="stay on the first of them"):
        executor.refuse_impossible({"nodes": 1, "cores": 4, "here": True})


def test_a_shell_of_salloc_on_a_login_node_starts_the_manager_of_ranks_on_a_node(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    executor = opened(tmp_path, {"n1": 2, "n2": 2}, kind="slurm", label="mpi")
    assert isinstance(executor.provider.launcher, SrunWorkers)
    assert "srun --nodes=1 --ntasks=1 --ntasks-per-node=1" in script(executor)
    assert "--nodelist=n1 work" in script(executor)
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    assert "srun" not in script(opened(tmp_path, {"n2": 2, "n1": 2}, kind="slurm", label="mpi"))
    tasks = script(opened(tmp_path, {"n1": 2, "n2": 2}, kind="slurm"))
    assert "srun --nodes=2 --ntasks=2" in tasks and "nodelist" not in tasks


def test_pbsdsh_is_refused_on_slurm_and_words_of_the_profile_reach_ssh(tmp_path):
    with pytest.raises(BadInput, match="pbsdsh"):
        opened(tmp_path, {"n1": 1}, kind="slurm", block={"worker_launcher": "pbsdsh"})
    block = {"worker_launcher": "ssh", "overrides": "-p 2222"}
    executor = opened(tmp_path, {"n1": 1, "n2": 1}, block=block)
    assert isinstance(executor.provider.launcher, SshWorkers)
    assert 'ssh -n -o BatchMode=yes -p 2222 "$host"' in script(executor)


def test_on_a_node_without_the_commands_of_its_scheduler_what_is_not_known_is_said(tmp_path, monkeypatch):
    for name in ("SLURM_JOB_ID", "PBS_O_PATH", "HPCAGENT_JOB_STARTED", "PBS_WALLTIME", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "nodes").write_text("n1\nn2\n")
    for name, value in {"PATH": "/nowhere", "PBS_JOBID": "7.srv", "PBS_NODEFILE": str(tmp_path / "nodes")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NCPUS", "2")
    profile = Profile(name="x", kind="pbs", address="127.0.0.1")
    with open_site(profile, inside=True, private=True, run_dir=tmp_path / "r") as site:
        cores, end = site.news()
        assert "taken from the environment (n1 2, n2 2)" in cores and "When job 7.srv ends is not known" in end
        assert site.workers == 4 and site.ends_at is None
    monkeypatch.setenv("HPCAGENT_JOB_STARTED", "1000000000")  # a job that hpcagent has submitted, of an hour
    with open_site(profile, inside=True, private=True, run_dir=tmp_path / "s") as site:
        assert site.ends_at == 1000003600 and len(site.news()) == 1


@pytest.mark.parametrize("kind", ["srun", "mpiexec", "pbsdsh", "ssh"])
def test_words_of_a_profile_are_words_of_the_launcher_and_no_commands(kind, tmp_path):
    hostile = '"$(id -un >PWNED)" `id >PWNED` ; id >PWNED & --constraint "a b"'
    for given in ({"overrides": hostile}, {"bind_cmd": hostile, "overrides": "--depth=64 --ppn 1"}):
        lines = worker_launcher(kind, Pbs, **given)("true", 1, 2, str(tmp_path))
        (tmp_path / "j.sh").write_text(f"JOBNAME=j\nPBS_NODEFILE=/dev/null\n{lines}\n")
        for name in (kind, "mpiexec"):  # a stand-in that does nothing
            (tmp_path / name).write_text("#!/bin/sh\nexit 0\n")
            (tmp_path / name).chmod(0o755)
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        subprocess.run(["/bin/bash", "j.sh"], cwd=tmp_path, env=env, capture_output=True, check=False, timeout=20)
        assert not (tmp_path / "PWNED").exists()
    assert "--depth=64 --ppn 1" in worker_launcher("mpiexec", Pbs, overrides="--depth=64 --ppn 1")("true", 1, 2)
