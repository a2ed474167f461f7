"""Who may be the coordinator of a folder, as far as the scheduler tells."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hpcagent.elsewhere import attend, submit
from hpcagent.elsewhere.submit import _refuse_second
from hpcagent.errors import BadInput
from hpcagent.sites.ledger import Ledger
from hpcagent.sites.schedulers.answers import Job
from hpcagent.sites.schedulers.slurm import Slurm
from hpcagent.store.rundir import RunDir


def test_scripts_of_queued_jobs_find_what_they_call() -> None:
    assert submit.main is attend.main


def test_a_copy_may_be_submitted_while_the_original_has_its_coordinator(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "run" / "jobs.jsonl")
    ledger.submitting("hpcagent.coordinator-1.0a1b2c3d", "slurm", role="coordinator")
    ledger.submitted("hpcagent.coordinator-1.0a1b2c3d", "70")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    there: Any = Slurm()
    there.jobs = lambda ids: {i: Job("70", "running", "hpcagent.coordinator-1.0a1b2c3d.17") for i in ids}
    with pytest.raises(BadInput, match=r"Job 70 .running. is the coordinator"):
        _refuse_second(RunDir(tmp_path / "run"), there)
    _refuse_second(RunDir(tmp_path / "copy"), there)
    there.jobs = lambda ids: {i: Job("70", "running", "somebody-elses") for i in ids}
    _refuse_second(RunDir(tmp_path / "run"), there)
