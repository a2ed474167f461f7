"""What schedulers answer is read whatever is in it, and an id is no proof that a job is ours. Commands are scripts."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcagent.sites.schedulers.answers import Job
from hpcagent.sites.schedulers.base import SchedulerDown
from hpcagent.sites.schedulers.pbs import Pbs
from hpcagent.sites.schedulers.slurm import Slurm
from hpcagent.sites.schedulers.submission import Refused, Sent

Says = Callable[..., None]


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    """Make a command that prints these bytes, and writes down with what it was called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name: str, printed: bytes, code: int = 0, *, errors: bytes = b"", then: str = "") -> None:
        (folder / f"{name}.out").write_bytes(printed)
        (folder / f"{name}.err").write_bytes(errors)
        (folder / name).write_text(
            f'#!/bin/sh\necho "$@" >> {folder}/{name}.calls\ncat {folder}/{name}.out\ncat {folder}/{name}.err >&2\n'
            f"{then}\nexit {code}\n"
        )
        (folder / name).chmod(0o755)

    return make


def calls(folder: Path, name: str) -> list[str]:
    path = folder / "bin" / f"{name}.calls"
    return path.read_text().splitlines() if path.exists() else []


NOW = 1_790_000_000
# squeue of 22.05 with --format=%i|%T|%S|%e|%V|%N|%r|%j; a job called "sélf" in Latin-1, as sbatch takes it
QUEUE = (
    b"11|RUNNING|%(now)d|N/A|%(now)d|n1|None|s\xe9lf\n12|RUNNING|%(now)d|N/A|%(now)d|n2|None|parsl.htex.block-0.0a1b2c3d.1\n"
    % {b"now": NOW}
)


def test_a_byte_that_is_not_utf8_in_another_jobs_name_hides_no_job_of_slurm(says: Says) -> None:
    says("squeue", QUEUE)
    found = Slurm().jobs(["12"])
    assert (found["12"].state, found["12"].hosts, found["12"].submitted_at) == ("running", ("n2",), NOW)


def test_every_command_of_slurm_may_print_any_bytes(says: Says, tmp_path: Path) -> None:
    says("sbatch", b"Bienvenue \xe0 la machine\n77;caf\xe9\n")
    assert Slurm().submit(tmp_path / "job.sh") == "77"
    says("sinfo", b"caf\xe9|4|8|16000|(null)\n")
    says("scontrol", b"PartitionName=caf\xe9 Default=YES MaxNodes=4 State=UP\n")
    (queue,) = Slurm().queues()
    assert (queue.cores, queue.max_nodes) == (8, 4)
    says("scancel", b"", 1, errors=b"scancel: error: \xe9chec\n")
    with pytest.raises(SchedulerDown, match="chec"):
        Slurm().cancel(["12"])
    says("sacct", b"13|COMPLETED|1|2|1|me|n1|0:0|\xff\xfe\n")
    says("squeue", b"")
    assert Slurm().jobs(["13"])["13"].state == "completed"


def test_a_byte_that_is_not_utf8_hides_no_job_of_pbs(says: Says) -> None:
    says("qstat", b'{"Jobs": {"3.vm": {"Job_Name": "s\xe9lf", "job_state": "R", "Job_Owner": "me@vm"}}}')
    assert Pbs().jobs(["3.vm"])["3.vm"].state == "running"


@pytest.mark.parametrize(
    ("printed", "job_id"),
    [
        (b"123\n", "123"),
        (b"123;cluster\n", "123"),
        (b"250 SU left\n123\n", "123"),  # seen at sites: a wrapper that tells what is left of the account
        (b"123\n250 SU left\n", "123"),
        (b"123;alpha\n2026-11-22 maintenance\n", "123"),
    ],
)
def test_the_job_id_is_a_line_of_its_own(says: Says, tmp_path: Path, printed: bytes, job_id: str) -> None:
    says("sbatch", printed)
    assert Slurm().submit(tmp_path / "job.sh") == job_id


def test_words_that_begin_with_digits_are_no_job_id(says: Says, tmp_path: Path) -> None:
    says("sbatch", b"250 SU left\n")
    with pytest.raises(Refused, match="250 SU left") as caught:
        Slurm().submit(tmp_path / "job.sh")
    assert caught.value.transient and caught.value.unheard  # it is looked for by its name


def test_what_a_command_said_before_it_was_given_up_is_told(says: Says, tmp_path: Path) -> None:
    words = b"sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    says("sbatch", b"", errors=words, then="exec sleep 20")
    with pytest.raises(Refused, match="temporarily unable to accept job") as caught:
        Slurm(timeout_s=0.3).submit(tmp_path / "job.sh")
    assert caught.value.transient and not caught.value.unclear and caught.value.unheard


def test_a_command_that_cannot_be_started_is_a_scheduler_that_does_not_answer(
    says: Says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says("squeue", b"")
    (tmp_path / "bin" / "squeue").write_bytes(b"\x7fELF no program")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(SchedulerDown, match="could not be started"):
        Slurm().jobs(["1"])


# Words as sbatch of 22.05 prints them, with the accounting limit in a line of its own.
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    ("words", "transient", "unclear"),
    [
        (f"QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: {POLICY}", True, False),
        (f"AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: {POLICY}", True, False),
        (f"AssocGrpSubmitJobsLimit\nsbatch: error: Batch job submission failed: {POLICY}", True, False),
        ("Slurm temporarily unable to accept job, sleeping and retrying", True, False),
        ("Batch job submission failed: Resource temporarily unavailable", True, False),
        ("Batch job submission failed: Socket timed out on send/recv operation", True, False),
        (f"QOSMaxWallDurationPerJobLimit\nsbatch: error: Batch job submission failed: {POLICY}", False, False),
        ("Batch job submission failed: Invalid account or account/partition combination specified", False, False),
        ("Batch job submission failed: an unheard-of word of a site's filter", True, True),
    ],
)
def test_refusals_that_pass_those_that_do_not_and_those_that_do_not_say(
    says: Says, tmp_path: Path, words: str, transient: bool, unclear: bool
) -> None:
    says("sbatch", b"", 1, errors=f"sbatch: error: {words}\n".encode())
    with pytest.raises(Refused) as caught:
        Slurm().submit(tmp_path / "job.sh")
    assert (caught.value.transient, caught.value.unclear) == (transient, unclear)


def test_an_id_that_is_another_jobs_by_now_is_not_cancelled(says: Says, tmp_path: Path) -> None:
    says("squeue", QUEUE)
    says("scancel", b"")
    ours, reused = Sent("parsl.htex.block-0.0a1b2c3d", NOW - 2), Sent("parsl.htex.block-1.99887766", NOW - 9000)
    others = Slurm().cancel_ours({"12": ours, "11": reused})
    assert list(others) == ["11"] and "another one now" in others["11"]
    assert calls(tmp_path, "scancel") == ["12"]


def test_what_makes_a_job_ours() -> None:
    asked, sent = Slurm(), Sent("parsl.htex.block-0.0a1b2c3d", at=time.time())
    job = Job("12", "running", "parsl.htex.block-0.0a1b2c3d.1790000000.5")
    assert asked.another(job, sent) == ""
    assert asked.another(Job("12", "running", "parsl.htex.block-0.0a1b2c3d", owner=getpass.getuser()), sent) == ""
    assert "root2's" in asked.another(Job("12", "running", sent.name, owner="root2"), sent)
    assert "called 'other'" in asked.another(Job("12", "running", "other"), sent)
    assert "called 'parsl.htex.block-0.0a1b2c3dx'" in asked.another(Job("12", "running", f"{sent.name}x"), sent)
    assert "before" in asked.another(Job("12", "running", sent.name, submitted_at=sent.at - 3600), sent)
    assert asked.another(Job("12", "running", "site-prefix"), Sent(sent.name, called="site-prefix")) == ""
    # PBS takes no `é` and no space in a name
    assert asked.another(Job("12", "running", "caf__1.0a1b2c3d"), Sent("café 1.0a1b2c3d")) == ""


# What squeue and scontrol of 22.05 said while the processes of a job had got SIGTERM.
@pytest.mark.parametrize(
    ("squeue", "scontrol", "state"),
    [
        ("NODE_FAIL|%d|%d|%d|n1|NodeDown|j", "PreemptTime=None", "node_failed"),  # scontrol update state=DOWN
        ("COMPLETING|%d|%d|%d|n[1-2]|NodeDown|j", "PreemptTime=None", "node_failed"),
        ("COMPLETING|%d|%d|%d|n1|TimeLimit|j", "PreemptTime=None", "timeout"),
        ("COMPLETING|%d|%d|%d|n1|None|j", "PreemptTime=None", "cancelled"),  # scancel
        ("COMPLETING|%d|%d|%d|n1|None|j", "PreemptTime=2026-11-22T12:03:07", "preempted"),
        ("RUNNING|%d|%d|%d|n1|None|j", "PreemptTime=2026-11-22T12:03:07", "preempted"),  # with a GraceTime
        ("RUNNING|%d|%d|%d|n1|None|j", "PreemptTime=None", None),  # kill, scancel --signal
    ],
)
def test_who_ends_a_job_of_slurm(says: Says, squeue: str, scontrol: str, state: str | None) -> None:
    says("squeue", f"12|{squeue % (NOW, NOW + 9, NOW)}\n".encode())
    says("scontrol", f"JobId=12 JobState=X Reason=Y PreemptEligibleTime=Z {scontrol} SuspendTime=None\n".encode())
    assert Slurm().ended_by("12") == state


@pytest.mark.parametrize("printed", [b"123\n250\n", b"250\n123;alpha\n"])
def test_a_number_beside_the_job_id_is_not_taken_for_it(says: Says, tmp_path: Path, printed: bytes) -> None:
    says("sbatch", printed)
    says("qsub", printed.replace(b";alpha", b".vm"))
    for there in (Slurm(), Pbs()):
        with pytest.raises(Refused, match=r"which of the lines .* is the job's id is not known: \d+") as caught:
            there.submit(tmp_path / "job.sh")
        assert caught.value.transient and caught.value.unheard  # it is looked for by its name
