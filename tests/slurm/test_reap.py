"""What a killed coordinator left in the queue is found by its ledger, ended, and seen to be gone."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from hpcagent.errors import BadInput, RunDirLocked
from hpcagent.sites import reap as module
from hpcagent.sites.ledger import Ledger, read_ledger
from hpcagent.sites.reap import end_leftovers, reap
from hpcagent.store.rundir import Lock
from tests.warm import Script

SUBMITTER = """
import os, signal, sys
from pathlib import Path
from parsl.launchers import SimpleLauncher
from hpcagent.sites.ledger import Ledger
from hpcagent.sites.schedulers.slurm import Slurm
from hpcagent.sites.workers.slurm_blocks import SlurmBlocks

root = Path(sys.argv[1])
provider = SlurmBlocks(exclusive=False, walltime="00:05:00", launcher=SimpleLauncher())
provider.script_dir = str(root / "submit_scripts")
provider.prepare(Slurm(), Ledger(root / "jobs.jsonl"), poll_s=0.2)
provider.submit("exec sleep 300", 1, "hpcagent.htex.block-0")
provider.submit("exit 3", 1, "hpcagent.htex.block-1")
if sys.argv[2] == "heard":
    provider.ledger.submitted = lambda name, job_id: os.kill(os.getpid(), signal.SIGKILL)
else:
    provider.scheduler.submit = lambda script: os.kill(os.getpid(), signal.SIGKILL)
provider.submit("exec sleep 300", 1, "hpcagent.htex.block-2")
"""


def killed_submitter(root: Path, when: str) -> None:
    """A coordinator that is killed between the submission of its third job and its note of the id, or before."""
    root.mkdir()
    script = root.with_name("submitter.py")
    script.write_text(SUBMITTER)
    with Script([script, root, when], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        said, _ = process.communicate()
    assert process.returncode == -9, said


def test_reap_ends_what_a_killed_submitter_left_and_nothing_else(cluster: Any, tmp_path: Path) -> None:
    root = tmp_path / "run"
    killed_submitter(root, "heard")
    other = cluster.run("sbatch --parsable -J hpcagent.htex.block-0 -o /dev/null --wrap 'exec sleep 300'")
    before = read_ledger(root / "jobs.jsonl")
    assert [entry.job_id is None for entry in before] == [False, False, True]
    cluster.wait_for(before[1].job_id, "FAILED")
    done = reap(root)
    assert [(one.done, one.state) for one in done] == [
        ("cancelled", "cancelled"),
        ("ended", "failed"),
        ("cancelled", "cancelled"),  # found by its name
    ]
    assert set(cluster.jobs()) == {other}
    after = read_ledger(root / "jobs.jsonl")
    assert [entry.ended for entry in after] == ["cancelled", "failed", "cancelled"]
    assert after[1].exit_code == 3 and after[2].job_id == done[2].job_id is not None
    assert reap(root) == []
    cluster.cancel_all()


def test_a_copy_leaves_the_jobs_alone_and_a_moved_folder_ends_them(cluster: Any, tmp_path: Path) -> None:
    root = tmp_path / "run"
    killed_submitter(root, "heard")
    before = set(cluster.jobs())
    shutil.copytree(root, tmp_path / "copy")
    assert {one.done for one in reap(tmp_path / "copy")} == {"elsewhere"}
    assert len(before & set(cluster.jobs())) >= 2  # one of the three ends by itself
    root.rename(tmp_path / "moved")
    assert {one.done for one in reap(tmp_path / "moved")} <= {"cancelled", "ended"} and cluster.jobs() == {}


def test_a_job_that_was_never_submitted_is_settled(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "run"
    killed_submitter(root, "before")
    monkeypatch.setattr(module, "_HEARD_LATE_S", 0.0)
    done = end_leftovers(root / "jobs.jsonl")
    assert [one.done for one in done][::2] == ["cancelled", "never"]
    assert read_ledger(root / "jobs.jsonl")[2].ended == "refused"


def test_a_submission_that_was_cut_off_just_now_is_waited_for(cluster: Any, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "jobs.jsonl")
    ledger.submitting("block-0.abc", "slurm")
    late = subprocess.Popen(
        ["bash", "-c", "sleep 1; exec sbatch -J block-0.abc.17 -o /dev/null --wrap 'sleep 300'"]
    )
    (one,) = end_leftovers(ledger.path)
    late.wait()
    assert (one.done, one.state) == ("cancelled", "cancelled") and cluster.jobs() == {}
    ledger.submitting("block-1.abc", "slurm")
    (one,) = end_leftovers(ledger.path, within_s=0.1)  # nobody knows yet
    assert one.done == "left" and read_ledger(ledger.path)[1].ended is None


def test_a_folder_with_a_live_coordinator_is_left_alone(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    lock.acquire()
    with pytest.raises(RunDirLocked, match="in use by another coordinator"):
        reap(tmp_path)
    lock.release()
    assert reap(tmp_path) == []
    with pytest.raises(BadInput, match="There is no folder"):
        reap(tmp_path / "nowhere")


def test_jobs_stay_in_the_ledger_while_slurm_does_not_answer(cluster: Any, tmp_path: Path) -> None:
    root = tmp_path / "run"
    killed_submitter(root, "heard")
    cluster.stop_controller()
    begun = time.monotonic()
    done = reap(root, within_s=1)
    assert [one.done for one in done] == ["left"] * 3 and "Unable to contact" in done[0].words
    assert time.monotonic() - begun < 60
    cluster.start_controller()
    assert "left" not in [one.done for one in reap(root)]
    assert cluster.jobs() == {}


def test_a_job_that_slurm_has_forgotten_is_not_running(cluster: Any, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "jobs.jsonl")
    ledger.submitting("block-0.abc", "slurm")
    ledger.submitted("block-0.abc", "999999")
    (one,) = end_leftovers(ledger.path)
    assert one.done == "ended" and "does not know this job any more" in one.words
    assert end_leftovers(ledger.path) == []
