"""Blocks on a private real Slurm; and that what Parsl's own provider gets wrong there, it still gets wrong.

Where a test of the stock provider fails, Parsl has mended it, and our workaround can go.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parsl.jobs.states import JobState
from parsl.launchers import SimpleLauncher, SrunLauncher
from parsl.providers import SlurmProvider

from hpcagent.errors import StoreFull
from hpcagent.sites.ledger import Ledger, read_ledger
from hpcagent.sites.schedulers.base import SchedulerDown, Unverified
from hpcagent.sites.schedulers.slurm import Slurm
from hpcagent.sites.schedulers.submission import Refused
from hpcagent.sites.workers.slurm_blocks import SlurmBlocks


def blocks(folder: Path, **options: Any) -> SlurmBlocks:
    provider = SlurmBlocks(**{"exclusive": False, "walltime": "00:05:00", "launcher": SimpleLauncher(), **options})
    provider.script_dir = str(folder / "submit_scripts")
    provider.prepare(Slurm(), Ledger(folder / "jobs.jsonl"), poll_s=0.2, site="test", executor="htex")
    return provider


def stock(folder: Path, **options: Any) -> SlurmProvider:
    provider = SlurmProvider(
        **{"exclusive": False, "walltime": "00:05:00", "launcher": SimpleLauncher(), **options}
    )
    provider.script_dir = str(folder)
    return provider


def state_of(provider: SlurmProvider, job_id: str) -> JobState:
    return provider.status([job_id])[0].state


def until(true: Callable[[], bool], within_s: float = 300.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


# --- what Parsl's provider gets wrong


@pytest.mark.parametrize("make", [blocks, stock])
def test_a_job_that_accounting_has_not_heard_of_is_pending(
    make: Any, accounting_cluster: Any, tmp_path: Path
) -> None:
    provider = make(tmp_path, scheduler_options="#SBATCH --hold")
    job_id = provider.submit("true", 1, "block-0")
    seen = state_of(provider, job_id)
    accounting_cluster.cancel_all()
    assert seen == (JobState.COMPLETED if make is stock else JobState.HELD)


@pytest.mark.parametrize("make", [blocks, stock])
def test_a_final_state_stays_over_further_polls(make: Any, accounting_cluster: Any, tmp_path: Path) -> None:
    provider = make(tmp_path)
    job_id = provider.submit("exit 3", 1, "block-0")
    other = provider.submit("exec sleep 300", 1, "block-1")  # without one that is asked about, stock does nothing
    accounting_cluster.wait_for(job_id, "FAILED")
    for each, state in ((job_id, "FAILED"), (other, "RUNNING")):
        until(lambda: state in accounting_cluster.run(f"sacct -X -n -j {each} -o state"))
    seen = [state_of(provider, job_id) for _ in range(3)]
    accounting_cluster.cancel_all()
    assert seen == [JobState.FAILED, *([JobState.COMPLETED if make is stock else JobState.FAILED] * 2)]
    if make is blocks:
        assert provider.status([job_id])[0].exit_code == 3


@pytest.mark.parametrize("make", [blocks, stock])
def test_without_accounting_a_failed_job_has_failed(make: Any, cluster: Any, tmp_path: Path) -> None:
    provider = make(tmp_path)
    failed = provider.submit("exit 3", 1, "block-0")
    gone = provider.submit("exec sleep 300", 1, "block-1")
    cluster.wait_for(gone, "RUNNING")
    assert state_of(provider, gone) == JobState.RUNNING
    cluster.run(f"scancel {gone}")
    cluster.wait_for(gone, "CANCELLED")
    cluster.wait_for(failed, "FAILED")
    seen = [status.state for status in provider.status([failed, gone])]
    assert seen == ([JobState.COMPLETED] * 2 if make is stock else [JobState.FAILED, JobState.CANCELLED])


@pytest.mark.parametrize("make", [blocks, stock])
def test_a_job_that_slurm_has_forgotten_is_over(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, the_cluster: Any
) -> None:
    with type(the_cluster)(nodes=1) as cluster:  # a small one, because this makes Slurm forget everything
        monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
        provider = make(tmp_path)
        job_id = provider.submit("exec sleep 300", 1, "block-0")
        cluster.wait_for(job_id, "RUNNING")
        assert state_of(provider, job_id) == JobState.RUNNING
        cluster.stop_controller()
        cluster.start_controller(forget=True)
        seen = state_of(provider, job_id)
        assert seen == (JobState.RUNNING if make is stock else JobState.FAILED)  # one unknown id: squeue fails
        if make is blocks:
            assert "does not know this job any more" in provider.status([job_id])[0].message


@pytest.mark.parametrize("make", [blocks, stock])
def test_a_job_over_its_memory_is_told_from_one_that_failed(
    make: Any, accounting_cluster: Any, tmp_path: Path
) -> None:
    provider = make(tmp_path, scheduler_options="#SBATCH --mem=60M")
    eat = f"exec {sys.executable} -c 'a = bytearray(300_000_000); import time; time.sleep(300)'"
    job_id = provider.submit(eat, 1, "block-0")
    accounting_cluster.wait_for(job_id, "FAILED", "CANCELLED", "OUT_OF_MEMORY")
    status = provider.status([job_id])[0]
    assert status.message is None if make is stock else "out_of_memory: " in status.message
    if make is blocks:
        assert "exceeded memory limit" in provider.known()[job_id].reason
        (entry,) = read_ledger(tmp_path / "jobs.jsonl")
        assert entry.ended == "out_of_memory"


def test_stock_asks_slurm_when_it_is_made_and_ours_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sacct", "squeue", "sbatch", "scontrol", "sinfo"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/asked\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    provider = blocks(tmp_path)
    provider.script("true")
    assert not (tmp_path / "asked").exists()
    stock(tmp_path)
    assert (tmp_path / "asked").read_text() == "sacct\n"


# --- scripts


def test_the_script_is_parsls_to_the_letter(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        "partition": "debug",
        "nodes_per_block": 2,
        "cores_per_node": 2,
        "mem_per_node": 1,
        "exclusive": True,
        "scheduler_options": "#SBATCH --comment=x\n#SBATCH --hold",
        "worker_init": "module load lammps",
        "launcher": SrunLauncher(),
    }
    ours = blocks(tmp_path, **options)
    drafted = ours.script("worker --port=1", "block-0")
    monkeypatch.setattr(time, "time", lambda: 1.5)
    theirs = stock(tmp_path / "submit_scripts", **options)
    (tmp_path / "submit_scripts").mkdir()
    theirs.submit("worker --port=1", 1, "block-0")
    written = (tmp_path / "submit_scripts" / "block-0.1.5").read_text()
    assert ours.script("worker --port=1", "block-0") == written
    assert drafted.count("\n") == written.count("\n") and ours.resources == {}
    directives = [line for line in written.splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --mem=1g" in directives and "#SBATCH --cpus-per-task=2" in directives
    assert cluster.details(next(iter(theirs.resources)))["NumCPUs"] == "4"
    job_id = ours.submit("worker --port=1", 1, "block-0")
    (script,) = [path for path in (tmp_path / "submit_scripts").iterdir() if path.name.count(".") == 3]
    assert script.read_text().replace(script.name, "block-0.1.5") == written
    assert cluster.details(job_id)["Comment"] == "x"
    cluster.cancel_all()


@pytest.mark.parametrize("name", ["my 100% runs, 'really' #1", 'Müller "東京" $HOME', "back\\slash %j"])
def test_a_folder_with_any_letters_in_its_name_works(cluster: Any, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    provider = blocks(folder)
    job_id = provider.submit("echo printed; echo error >&2", 1, "block-0")
    cluster.wait_for(job_id, "COMPLETED")
    err, out = provider.logs(job_id)
    until(lambda: out.exists() and err.exists())
    assert (out.read_text(), err.read_text()) == ("printed\n", "error\n")
    assert out.parent == folder / "submit_scripts"


# --- the ledger and refusals


def test_every_id_is_in_the_ledger_before_anybody_hears_it(cluster: Any, tmp_path: Path) -> None:
    provider = blocks(tmp_path, scheduler_options="#SBATCH --hold")
    written: list[list[str]] = []
    real = provider.scheduler.submit

    def submit(script: Path, *, after: str | None = None) -> str:
        written.append([f"{entry.name} {entry.job_id}" for entry in read_ledger(tmp_path / "jobs.jsonl")])
        return str(real(script, after=after))

    provider.scheduler.submit = submit
    ids = [provider.submit("true", 1, f"hpcagent.htex.block-{i}") for i in range(2)]
    entries = read_ledger(tmp_path / "jobs.jsonl")
    assert [len(lines) for lines in written] == [1, 2]  # its name is there before it is submitted
    assert written[0][0].endswith(" None")
    assert [entry.job_id for entry in entries] == ids
    assert [entry.about["block"] for entry in entries] == ["0", "1"]
    assert entries[0].about["site"] == "test" and entries[0].scheduler == "slurm"
    provider.end_all()
    assert [entry.ended for entry in read_ledger(tmp_path / "jobs.jsonl")] == ["cancelled"] * 2
    assert cluster.jobs() == {}
    provider.end_all()  # again: nothing to do


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "nope"}, "Invalid partition name specified"),
        ({"mem_per_node": 100}, "Memory specification can not be satisfied"),
    ],
)
def test_a_refusal_has_slurms_words(options: dict[str, Any], words: str, cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=words) as caught:
        blocks(tmp_path, **options).submit("true", 1, "block-0")
    assert not caught.value.transient
    (entry,) = read_ledger(tmp_path / "jobs.jsonl")
    assert entry.ended == "refused" and words in entry.reason


def test_nothing_is_submitted_that_cannot_be_written_down(cluster: Any, tmp_path: Path) -> None:
    provider = blocks(tmp_path)
    (tmp_path / "jobs.jsonl").mkdir()
    with pytest.raises(StoreFull, match=r"jobs\.jsonl cannot be written"):
        provider.submit("true", 1, "block-0")
    assert not (tmp_path / "submit_scripts").exists()


def test_a_job_whose_id_cannot_be_written_down_is_cancelled(cluster: Any, tmp_path: Path) -> None:
    provider = blocks(tmp_path)

    class Full(Ledger):
        def submitted(self, name: str, job_id: str) -> None:
            raise StoreFull("full.")

    provider.ledger = Full(tmp_path / "jobs.jsonl")
    with pytest.raises(StoreFull):
        provider.submit("exec sleep 300", 1, "block-0")
    until(lambda: cluster.jobs() == {})


def sbatch_that(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which("sbatch")
    (folder / "bin").mkdir()
    (folder / "bin" / "sbatch").write_text("#!/bin/bash\n" + body.replace("SBATCH", f"{real}"))
    (folder / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


def test_a_job_that_was_taken_though_sbatch_was_not_answered_is_used(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch_that(tmp_path, 'SBATCH "$@" >/dev/null; echo Socket timed out on send/recv >&2; exit 1', monkeypatch)
    provider = blocks(tmp_path)
    job_id = provider.submit("exec sleep 300", 1, "block-0")
    cluster.wait_for(job_id, "RUNNING")
    assert state_of(provider, job_id) == JobState.RUNNING
    until(provider.logs(job_id)[1].exists)
    (entry,) = read_ledger(tmp_path / "jobs.jsonl")
    assert entry.job_id == job_id and entry.ended is None
    provider.end_all()


def test_a_job_that_turns_up_after_its_submission_was_given_up_is_ended(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = '(sleep 1; SBATCH "$@") >/dev/null 2>&1 & echo Socket timed out on send/recv >&2; exit 1'
    sbatch_that(tmp_path, late, monkeypatch)
    provider = blocks(tmp_path)
    with pytest.raises(Refused, match="Socket timed out") as caught:
        provider.submit("exec sleep 300", 1, "block-0")
    assert caught.value.transient
    (entry,) = read_ledger(tmp_path / "jobs.jsonl")
    assert entry.ended is None and entry.job_id is None  # who knows
    until(lambda: [job.state for job in provider.look().values()] == ["cancelled"])
    (entry,) = read_ledger(tmp_path / "jobs.jsonl")
    assert entry.ended == "cancelled" and cluster.jobs() == {}


# --- slurmctld comes and goes


def test_while_slurmctld_is_down_nothing_changes_and_a_cancellation_waits(cluster: Any, tmp_path: Path) -> None:
    provider = blocks(tmp_path)
    job_id = provider.submit("exec sleep 300", 1, "block-0")
    cluster.wait_for(job_id, "RUNNING")
    assert state_of(provider, job_id) == JobState.RUNNING
    cluster.stop_controller()
    provider.scheduler.timeout_s = 1.0
    assert state_of(provider, job_id) == JobState.RUNNING
    assert "did not answer" in provider.down
    assert provider.cancel([job_id]) == [False]
    with pytest.raises(Unverified, match="not seen to be gone within 2 s"):
        provider.end_all(within_s=2)
    assert [entry.ended for entry in read_ledger(tmp_path / "jobs.jsonl")] == [None]  # for `hpcagent reap`
    cluster.start_controller()
    provider.scheduler.timeout_s = 30.0
    assert state_of(provider, job_id) == JobState.RUNNING and provider.down is None
    until(lambda: state_of(provider, job_id) == JobState.CANCELLED)


def test_jobs_can_be_submitted_while_others_are_looked_at(cluster: Any, tmp_path: Path) -> None:
    provider = blocks(tmp_path, scheduler_options="#SBATCH --hold")
    stop = threading.Event()
    failures: list[BaseException] = []

    def look() -> None:
        try:
            while not stop.is_set():
                provider.look()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    with contextlib.ExitStack() as then:
        then.callback(thread.join)
        then.callback(stop.set)
        ids = [provider.submit("true", 1, f"block-{i}") for i in range(20)]
    assert failures == [] and set(provider.known()) == set(ids)
    assert provider.status_polling_interval == 0.2
    provider.end_all()


def test_a_job_that_was_never_seen_is_pending_for_a_while_only(tmp_path: Path) -> None:
    class Blind(Slurm):
        def submit(self, script: Path, *, after: str | None = None) -> str:
            return "7"

        def jobs(self, job_ids: Any) -> dict[str, Any]:
            return {}

    provider = blocks(tmp_path)
    provider.scheduler = Blind()
    job_id = provider.submit("true", 1, "block-0")
    assert state_of(provider, job_id) == JobState.PENDING
    provider._submitted[job_id] -= 1000
    assert state_of(provider, job_id) == JobState.FAILED


def test_a_site_without_slurm_refuses_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = blocks(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="sbatch is not on this machine's PATH"):
        provider.submit("true", 1, "block-0")
    with pytest.raises(SchedulerDown):
        provider.scheduler.named("x")
