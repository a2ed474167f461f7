"""Whose jobs are ended: those of the ledger's own folder that still are what was submitted. The scheduler is a dict."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from hpcagent.sites.ledger import Ledger, read_ledger
from hpcagent.sites.reap import end_leftovers, reap, told
from hpcagent.sites.schedulers.answers import Allocation, Job, Queue
from hpcagent.sites.schedulers.base import Scheduler


class Dict(Scheduler):
    """A scheduler of which everything is known."""

    name = "slurm"

    def __init__(self, *jobs: Job) -> None:
        super().__init__()
        self.all = {job.job_id: job for job in jobs}

    def jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        return {i: self.all[i] for i in job_ids if i in self.all}

    def named(self, name: str) -> list[Job]:
        return [job for job in self.all.values() if job.name.startswith(name) and not job.over]

    def submit(self, script: Path, *, after: str | None = None) -> str:
        raise NotImplementedError

    def cancel(self, job_ids: Iterable[str]) -> None:
        for i in job_ids:
            self.all[i] = replace(self.all[i], state="cancelled")

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        return None

    def queues(self) -> list[Queue]:
        return []

    def keeps_finished_jobs(self) -> tuple[bool, str]:
        return False, ""

    def version(self) -> str:
        return "dict"

    def states(self) -> list[str]:
        return [job.state for job in self.all.values()]


@pytest.fixture
def left(tmp_path: Path) -> tuple[Path, Dict]:
    """The folder of a killed coordinator whose two jobs wait and run."""
    ledger = Ledger(tmp_path / "run" / "jobs.jsonl")
    for i, name in enumerate(("block-0.aaaa1111", "block-1.bbbb2222")):
        ledger.submitting(name, "slurm", nodes=1)
        ledger.submitted(name, str(7 + i))
    return tmp_path / "run", Dict(
        Job("7", "running", "block-0.aaaa1111.17"), Job("8", "pending", "block-1.bbbb2222")
    )


def test_an_id_that_is_another_jobs_by_now_is_let_be(left: tuple[Path, Dict]) -> None:
    folder, there = left
    there.all["7"] = Job("7", "running", "somebody-elses")  # slurmctld has lost its database, and counts anew
    there.all["8"] = replace(there.all["8"], owner="another")
    done = end_leftovers(folder / "jobs.jsonl", ask=lambda kind: there)
    assert there.states() == ["running", "pending"]
    assert [one.done for one in done] == ["ended", "ended"]
    assert "called 'somebody-elses'" in done[0].words and "another's" in done[1].words
    assert end_leftovers(folder / "jobs.jsonl", ask=lambda kind: there) == []


def test_a_copied_folder_leaves_the_jobs_of_the_original_to_it(left: tuple[Path, Dict]) -> None:
    folder, there = left
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    done = reap(copy, ask=lambda kind: there)
    assert there.states() == ["running", "pending"]
    assert [one.done for one in done] == ["elsewhere"] * 2 and str(folder) in done[0].words
    assert told(done) == [f"2 job(s) in its ledger are let be ({done[0].words})"]
    assert reap(copy, ask=lambda kind: there) == []  # it is written down
    assert [entry.node_hours for entry in read_ledger(copy / "jobs.jsonl")] == [0.0, 0.0]
    assert [one.done for one in reap(folder, ask=lambda kind: there)] == ["cancelled"] * 2


def test_the_copys_own_jobs_are_its_own(left: tuple[Path, Dict]) -> None:
    folder, there = left
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    Ledger(copy / "jobs.jsonl").submitting("block-0.cccc3333", "slurm")
    Ledger(copy / "jobs.jsonl").submitted("block-0.cccc3333", "9")
    there.all["9"] = Job("9", "running", "block-0.cccc3333")
    assert [one.done for one in reap(copy, ask=lambda kind: there)] == ["elsewhere", "elsewhere", "cancelled"]
    assert there.states() == ["running", "pending", "cancelled"]


@pytest.mark.parametrize("how", ["renamed", "through a link", "to another file system"])
def test_a_moved_folder_still_ends_its_own(left: tuple[Path, Dict], how: str) -> None:
    folder, there = left
    moved = folder.with_name("moved")
    if how == "renamed":
        folder.rename(moved)
    elif how == "through a link":
        moved.symlink_to(folder)
    else:  # what `mv` does there
        shutil.copytree(folder, moved)
        shutil.rmtree(folder)
    assert [one.done for one in reap(moved, ask=lambda kind: there)] == ["cancelled"] * 2
    assert there.states() == ["cancelled"] * 2


def test_a_ledger_of_before_is_read_as_it_was(tmp_path: Path) -> None:
    at = time.time()
    (tmp_path / "jobs.jsonl").write_text(
        f'{{"at": {at}, "event": "submitting", "name": "b.1", "scheduler": "slurm", "nodes": 1}}\n'
        f'{{"at": {at}, "event": "submitted", "name": "b.1", "job_id": "7"}}\n'
    )
    there = Dict(Job("7", "running", "b.1.17"))
    assert [one.done for one in reap(tmp_path, ask=lambda kind: there)] == ["cancelled"]
