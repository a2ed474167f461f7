"""What hpcagent says of Slurm's jobs is what a private real Slurm does with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpcagent.sites.schedulers import slurm as module
from hpcagent.sites.schedulers.base import SchedulerDown
from hpcagent.sites.schedulers.registry import scheduler
from hpcagent.sites.schedulers.slurm import Slurm, expand_nodes
from hpcagent.sites.schedulers.submission import Refused, Sent
from hpcagent.testing import SchedulerContract


def script(folder: Path, body: str = "exec sleep 300", *options: str, name: str = "job") -> Path:
    path = folder / f"{name}.sh"
    size = () if any("--nodes" in option for option in options) else ("--ntasks=1",)
    lines = "".join(f"#SBATCH {option}\n" for option in ("--output=/dev/null", "--mem=50", *size, *options))
    path.write_text(f"#!/bin/bash\n#SBATCH '--job-name={name}'\n{lines}{body}\n")
    return path


@pytest.mark.usefixtures("cluster")
class TestContract(SchedulerContract):
    kind = "slurm"

    def script(self, lines: str, name: str, folder: Path) -> Path:
        return script(folder, lines, "--time=2", name=name)


@pytest.mark.parametrize("kind", ["plain", "accounting"])
def test_every_end_of_a_job_is_told_apart(
    kind: str, endings: dict[str, dict[str, str]], the_cluster: Any, the_accounting_cluster: Any, request: Any
) -> None:
    request.getfixturevalue("cluster" if kind == "plain" else "accounting_cluster")
    ids = endings[kind]
    for _ in range(2):  # and it stays so
        jobs = Slurm().jobs(ids.values())
        told = {how: (jobs[i].state, jobs[i].exit_code) for how, i in ids.items()}
        assert told["completed"] == ("completed", 0)
        assert told["failed"] == ("failed", 3)
        assert told["signalled"][0] == "failed" and told["signalled"][1] in (-9, 137)
        assert told["cancelled"][0] == "cancelled"
        assert told["timeout"][0] == "timeout"
        assert told["node_failed"][0] == "node_failed"
    assert "TimeLimit" in jobs[ids["timeout"]].reason
    assert jobs[ids["timeout"]].started_at is not None and jobs[ids["node_failed"]].hosts == ("n4",)
    assert jobs[ids["failed"]].name == "failed"


def test_accounting_tells_how_a_job_ended_that_slurmctld_has_forgotten(
    endings: dict[str, dict[str, str]], accounting_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slurm, "_mine", lambda self: {})  # MinJobAge is over: squeue has nothing
    ids = endings["accounting"]
    deadline = time.monotonic() + 30  # the database learns of an end some seconds later
    while len(jobs := Slurm().jobs(ids.values())) < len(ids) and time.monotonic() < deadline:
        time.sleep(0.5)
    told = {how: (jobs[i].state, jobs[i].exit_code) for how, i in ids.items()}
    assert told["completed"] == ("completed", 0) and told["failed"] == ("failed", 3)
    assert [told[how][0] for how in ("cancelled", "timeout", "node_failed")] == [
        "cancelled",
        "timeout",
        "node_failed",
    ]
    assert jobs[ids["cancelled"]].reason == f"CANCELLED by {os.getuid()}"
    assert jobs[ids["node_failed"]].hosts == ("n4",) and jobs[ids["timeout"]].started_at is not None


def test_a_job_that_only_the_database_believes_to_run_is_not_known(
    accounting_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Slurm()
    job_id = there.submit(script(tmp_path))
    accounting_cluster.wait_for(job_id, "RUNNING")
    deadline = time.monotonic() + 30
    while (
        "RUNNING" not in accounting_cluster.run(f"sacct -X -n -j {job_id} -o state")
        and time.monotonic() < deadline
    ):
        time.sleep(0.3)
    with monkeypatch.context() as patch:
        patch.setattr(Slurm, "_mine", lambda self: {})
        assert there.jobs([job_id]) == {}
    there.cancel_and_see([job_id])


def test_a_job_is_followed_from_the_queue_to_its_end(cluster: Any, tmp_path: Path) -> None:
    there = Slurm()
    first = there.submit(
        script(tmp_path, "exec sleep 300", "--nodes=2", "--exclusive", "--time=7", name="two nodes")
    )
    held = there.submit(script(tmp_path, "true", "--hold"))
    second = there.submit(script(tmp_path, "true"), after=first)
    assert there.jobs([first])[first].state in ("pending", "running")  # at once: never "not there"
    cluster.wait_for(first, "RUNNING")
    jobs = there.jobs([first, held, second, "999999"])
    assert set(jobs) == {first, held, second}
    running = jobs[first]
    assert (running.state, running.hosts, running.name) == ("running", ("n1", "n2"), "two nodes")
    assert running.started_at is not None and running.ends_at == running.started_at + 7 * 60
    assert abs(running.started_at - time.time()) < 60
    assert (jobs[held].state, jobs[held].reason) == ("held", "JobHeldUser")
    assert (jobs[second].state, jobs[second].started_at) == ("pending", None)
    assert [job.job_id for job in there.named("two")] == [first]
    ended = there.cancel_and_see([first, held, "999999"])
    assert {job.state for job in ended.values()} == {"cancelled"} and len(ended) == 3
    assert there.named("two") == []
    cluster.wait_for(second, "COMPLETED")  # afterany: however the first one ended
    there.cancel([first, second, "999999", "nonsense"])  # ended, unknown: no error


def test_a_job_with_a_name_in_latin_1_hides_no_other(cluster: Any, tmp_path: Path) -> None:
    there = Slurm()
    job_id = there.submit(script(tmp_path, "true", "--hold"))
    words = [b"sbatch", b"--parsable", b"--hold", b"-o", b"/dev/null", b"-J", b"s\xe9lf", b"--wrap", b"true"]
    other = subprocess.run(words, capture_output=True, check=True).stdout.decode().strip()
    asked = subprocess.run(["squeue", "--noheader", "--format=%j"], capture_output=True, check=True).stdout
    assert b"s\xe9lf" in asked  # as it came: no UTF-8
    jobs = there.jobs([job_id, other])
    assert {job.state for job in jobs.values()} == {"held"} and jobs[other].name == "s\ufffdlf"
    assert there.cancel_and_see([job_id, other]).keys() == {job_id, other}


def test_an_id_that_is_another_jobs_by_now_is_not_cancelled(cluster: Any, tmp_path: Path) -> None:
    there = Slurm()
    other = there.submit(script(tmp_path, "true", "--hold", name="somebody-elses"))
    ours = there.submit(script(tmp_path, "true", "--hold", name="block-0.0a1b2c3d.17"))
    at = time.time()
    ended = there.cancel_and_see({other: Sent("block-1.99887766", at), ours: Sent("block-0.0a1b2c3d", at)})
    assert {job_id: job.state for job_id, job in ended.items()} == {other: "cancelled", ours: "cancelled"}
    assert "called 'somebody-elses'" in ended[other].reason  # ours of that id is gone
    assert there.jobs([other])[other].state == "held" and there.jobs([ours])[ours].state == "cancelled"
    assert abs((there.jobs([ours])[ours].submitted_at or 0) - at) < 60
    there.cancel_and_see([other])


def test_one_unknown_id_or_word_does_not_keep_the_others_from_being_cancelled(
    cluster: Any, tmp_path: Path
) -> None:
    there = Slurm()
    job_id = there.submit(script(tmp_path, "true", "--hold"))
    there.cancel(["nonsense", "999999", job_id])
    assert there.jobs([job_id])[job_id].state == "cancelled"


def test_a_suspended_job_is_held_and_one_that_is_queued_again_has_not_ended(cluster: Any, tmp_path: Path) -> None:
    there = Slurm()
    job_id = there.submit(script(tmp_path))
    cluster.wait_for(job_id, "RUNNING")
    cluster.run(f"scontrol suspend {job_id}")
    assert there.jobs([job_id])[job_id].state == "held"
    cluster.run(f"scontrol resume {job_id}")
    cluster.run(f"scontrol requeue {job_id}")
    for _ in range(20):
        assert not there.jobs([job_id])[job_id].over
        time.sleep(0.05)
    there.cancel_and_see([job_id])


def test_a_cancelled_job_that_does_not_want_to_go_is_ending_until_it_is_gone(cluster: Any, tmp_path: Path) -> None:
    there = Slurm()
    job_id = there.submit(script(tmp_path, "trap '' TERM; for i in $(seq 300); do sleep 1; done"))
    cluster.wait_for(job_id, "RUNNING")
    there.cancel([job_id])
    seen = [there.jobs([job_id])[job_id].state]
    while seen[-1] != "cancelled":
        time.sleep(0.1)
        seen.append(there.jobs([job_id])[job_id].state)
        assert len(seen) < 600
    assert set(seen) <= {"running", "ending", "cancelled"} and seen.index("cancelled") == len(seen) - 1


def test_while_slurmctld_is_down_nothing_is_known_and_nothing_has_ended(cluster: Any, tmp_path: Path) -> None:
    there = Slurm()
    job_id = there.submit(script(tmp_path))
    cluster.stop_controller()
    with ThreadPoolExecutor() as pool:  # each takes some seconds to give up
        asked = pool.submit(there.jobs, [job_id])
        cancelled = pool.submit(there.cancel, [job_id])
        submitted = pool.submit(there.submit, script(tmp_path, name="another"))
    for future in (asked, cancelled, submitted):
        with pytest.raises((SchedulerDown, Refused), match="Unable to contact slurm controller"):
            future.result()
    refusal = submitted.exception()
    assert isinstance(refusal, Refused) and refusal.transient
    with pytest.raises(SchedulerDown, match=r"did not answer within 0\.2 s"):
        Slurm(timeout_s=0.2).jobs([job_id])
    cluster.start_controller()
    assert not there.jobs([job_id])[job_id].over
    there.cancel_and_see([job_id])


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--partition=nope", "Invalid partition name specified"),
        ("--mem=100G", "Memory specification can not be satisfied"),
        ("--nodes=9", "Node count specification invalid|More processors requested|configuration is not available"),
        ("--constraint=nope", "Invalid feature specification"),
        ("--gres=gpu:2", r"Invalid generic resource \(gres\) specification"),
        ("--nonsense", "unrecognized option"),
    ],
)
def test_what_slurm_will_never_take_is_refused_with_its_words(
    option: str, words: str, cluster: Any, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=words) as caught:
        Slurm().submit(script(tmp_path, "true", option))
    assert not caught.value.transient


def test_a_walltime_over_the_partitions_limit_is_refused_for_good(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="time limit is invalid") as caught:
        Slurm().submit(script(tmp_path, "true", "--partition=short", "--time=00:10:00"))
    assert not caught.value.transient


def fake_sbatch(folder: Path, words: str, monkeypatch: pytest.MonkeyPatch, *, times: int = 1000) -> None:
    """An sbatch that refuses some times with these words, and then is the real one."""
    real = shutil.which("sbatch")
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "words").write_text(words)
    (folder / "times").write_text(str(times))
    fake = folder / "bin" / "sbatch"
    fake.write_text(
        f"#!/bin/bash\nn=$(cat {folder}/times)\necho $((n - 1)) > {folder}/times\n"
        f'if [ $n -gt 0 ]; then cat {folder}/words >&2; exit 1; fi\nexec {real} "$@"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("words", "transient"),
    [
        ("Batch job submission failed: Socket timed out on send/recv operation", True),
        ("Batch job submission failed: Unable to contact slurm controller (connect failure)", True),
        ("Batch job submission failed: Resource temporarily unavailable", True),
        ("Batch job submission failed: Slurm backup controller in standby mode", True),
        ("Batch job submission failed: Zero Bytes were transmitted or received", True),
        ("Batch job submission failed: Protocol authentication error", True),
        ("Batch job submission failed: Required partition not available (inactive or drain)", True),
        ("Something that nobody has foreseen", True),
        (
            "QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates "
            "accounting/QOS policy (job submit limit, user's size and/or time limits)",
            True,
        ),
        (
            "AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates "
            "accounting/QOS policy (job submit limit, user's size and/or time limits)",
            True,
        ),
        (
            "QOSMaxWallDurationPerJobLimit\nsbatch: error: Batch job submission failed: Job violates "
            "accounting/QOS policy (job submit limit, user's size and/or time limits)",
            False,
        ),
        ("Batch job submission failed: Invalid account or account/partition combination specified", False),
        ("Batch job submission failed: Invalid qos specification", False),
        ("Batch job submission failed: User's group not permitted to use this partition", False),
        ("Batch job submission failed: Requested node configuration is not available", False),
        ("Unable to open file /scratch/job.sh", False),
    ],
)
def test_a_refusal_is_transient_or_not(
    words: str, transient: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_sbatch(tmp_path, f"sbatch: error: {words}\n", monkeypatch)
    with pytest.raises(Refused) as caught:
        Slurm().submit(tmp_path / "job.sh")
    assert caught.value.transient is transient
    assert str(caught.value).endswith(words)


def test_the_next_try_after_a_transient_refusal_is_taken(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_sbatch(tmp_path, "sbatch: error: Batch job submission failed: Socket timed out\n", monkeypatch, times=2)
    path = script(tmp_path, "true", "--hold")
    for _ in range(2):
        with pytest.raises(Refused):
            Slurm().submit(path)
    Slurm().cancel_and_see([Slurm().submit(path)])


def test_without_slurm_the_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="sbatch is not on this machine's PATH") as caught:
        Slurm().submit(tmp_path / "job.sh")
    assert not caught.value.transient
    with pytest.raises(SchedulerDown, match="squeue is not on this machine's PATH"):
        Slurm().jobs(["1"])
    with pytest.raises(SchedulerDown, match="sbatch is not on this machine's PATH"):
        Slurm().version()
    assert Slurm().jobs([]) == {}


def test_the_version_is_slurms(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scheduler("slurm").version().startswith("slurm")
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho I am another\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SchedulerDown, match=r"not Slurm's: .* says 'I am another'"):
        Slurm().version()


def test_a_job_knows_its_allocation(cluster: Any, tmp_path: Path) -> None:
    there = Slurm()
    out = tmp_path / "environ"
    body = f"env -0 > {out}.part && mv {out}.part {out}; exec sleep 300"
    job_id = there.submit(script(tmp_path, body, "--nodes=3", "--exclusive", "--time=9"))
    cluster.wait_for(job_id, "RUNNING")
    deadline = time.monotonic() + 30
    while not out.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    environ = dict(pair.split("=", 1) for pair in out.read_text().split("\0") if "=" in pair)
    found = there.allocation(environ)
    assert found is not None and found.job_id == job_id
    assert [(node.host, node.cores, node.gpus) for node in found.nodes] == [
        ("n1", 2, 0),
        ("n2", 2, 0),
        ("n3", 2, 0),
    ]
    assert found.ends_at == there.jobs([job_id])[job_id].ends_at is not None
    elsewhere = there.allocation({**environ, "SLURMD_NODENAME": "n3", "SLURM_JOB_END_TIME": "1800000000"})
    assert elsewhere is not None and elsewhere.nodes[0].host == "n3" and elsewhere.ends_at == 1800000000
    there.cancel_and_see([job_id])
    assert there.allocation({}) is None


def test_an_allocation_with_gpus_and_unequal_nodes_is_read_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no squeue: the end is unknown, the rest is not
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "nid[001-002],gpu4",
        "SLURM_JOB_CPUS_PER_NODE": "64(x2),32",
        "SLURM_GPUS_ON_NODE": "4",
    }
    found = Slurm().allocation(environ)
    assert found is not None and found.ends_at is None
    assert [(n.host, n.cores, n.gpus) for n in found.nodes] == [
        ("nid001", 64, 4),
        ("nid002", 64, 4),
        ("gpu4", 32, 4),
    ]
    del environ["SLURM_GPUS_ON_NODE"]
    found = Slurm().allocation({**environ, "SLURM_JOB_GPUS": "0,1"})
    assert found is not None and found.nodes[0].gpus == 2


@pytest.mark.parametrize(
    "nodes", ["n1", "n[1-3]", "a[01-12],b7", "x[1,3-4,009-011],y", "r[1-2]n[1-2]", "gpu-a[8-11]"]
)
def test_node_lists_are_expanded_as_slurm_does(nodes: str, cluster: Any) -> None:
    assert list(expand_nodes(nodes)) == cluster.run(f"scontrol show hostnames '{nodes}'").splitlines()


def test_partitions_are_described(cluster: Any) -> None:
    debug, short = sorted(Slurm().queues(), key=lambda queue: queue.name)
    assert (debug.name, debug.default, debug.open, debug.max_walltime_s) == ("debug", True, True, None)
    assert (debug.nodes, debug.cores, debug.memory_gb, debug.gpus) == (4, 2, 4.0, 0)
    assert (short.name, short.default, short.max_walltime_s, short.max_nodes) == ("short", False, 120.0, None)
    cluster.run("scontrol update partitionname=short state=down")
    assert [q.open for q in Slurm().queues() if q.name == "short"] == [False]
    cluster.run("scontrol update partitionname=short state=up")


def test_whether_the_past_is_told_depends_on_accounting(cluster: Any) -> None:
    works, words = Slurm().keeps_finished_jobs()
    assert not works and "accounting storage is disabled" in words


def test_the_past_is_told_with_accounting(accounting_cluster: Any) -> None:
    assert Slurm().keeps_finished_jobs() == (True, "sacct tells how finished jobs ended.")


def test_the_users_settings_do_not_change_the_answers(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "SQUEUE_PARTITION": "short",
        "SQUEUE_FORMAT": "%t",
        "SQUEUE_NAMES": "none",
        "SLURM_TIME_FORMAT": "relative",
        "SLURM_JOB_ID": "1",  # we are in a job ourselves; its shape is not for the jobs we submit
        "SLURM_MEM_PER_CPU": "1000000",
    }.items():
        monkeypatch.setenv(name, value)
    there = Slurm()
    out = tmp_path / "memory"
    job_id = there.submit(script(tmp_path, f"echo ${{SLURM_MEM_PER_CPU:-none}} > {out}"))
    deadline = time.monotonic() + 60
    while (job := there.jobs([job_id])[job_id]).state != "completed" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert job.started_at is not None and abs(job.started_at - time.time()) < 100
    assert out.read_text() == "none\n"


def test_many_ids_are_asked_for_in_several_commands() -> None:
    assert [len(some) for some in module._chunks([str(i) for i in range(450)])] == [200, 200, 50]
