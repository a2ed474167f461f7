"""The coordinator's job and the one after it: when it is submitted, when it is called off. The scheduler is a script."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcagent.elsewhere import attend as module
from hpcagent.elsewhere import job as job_module
from hpcagent.elsewhere.attend import _Chain
from hpcagent.elsewhere.job import SCRIPT, submit_job
from hpcagent.elsewhere.submit import _refuse_second
from hpcagent.errors import BadInput
from hpcagent.sites.ledger import Ledger, read_ledger
from hpcagent.sites.reap import end_leftovers
from hpcagent.sites.schedulers.answers import Allocation, Job, State
from hpcagent.sites.schedulers.base import SchedulerDown
from hpcagent.sites.schedulers.slurm import Slurm
from hpcagent.sites.schedulers.submission import Refused
from hpcagent.store.rundir import RunDir

FULL = Refused("Slurm did not take it: AssocMaxSubmitJobLimit", transient=True, unheard=False)


class Slow(Slurm):
    """A scheduler whose answers to submissions stand in a list; `renames` is its site's filter of names."""

    def __init__(self) -> None:
        super().__init__(timeout_s=60.0)
        self.answers: list[str | Exception] = []
        self.cancelled: list[str] = []
        self.state: State | Exception | None = None
        self.renames = "{}"
        self.taken: dict[str, Job] = {}
        self.away = False

    def submit(self, script: Path, *, after: str | None = None) -> str:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        name = script.read_text().partition("--job-name=")[2].strip()
        self.taken[answer] = Job(answer, "pending", self.renames.format(name), submitted_at=time.time())
        return answer

    def jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        if self.away:
            raise SchedulerDown("away")
        return {i: self.taken[i] for i in job_ids if i in self.taken}

    def named(self, name: str) -> list[Job]:
        return [job for job in self.taken.values() if name in job.name]

    def cancel(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self.cancelled.append(job_id)
            self.taken[job_id] = replace(self.taken[job_id], state="cancelled")

    def ended_by(self, job_id: str) -> State | None:
        if isinstance(self.state, Exception):
            raise self.state
        return self.state


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(job_module, "time", clock)
    return clock


@pytest.fixture
def chain(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / SCRIPT).write_text("#SBATCH --job-name=hpcagent.coordinator-1.0a1b2c3d\n")
    there = Slow()
    monkeypatch.setattr(module, "scheduler", lambda kind, timeout_s: there)
    said: list[str] = []
    allocation = Allocation("70", (), None)
    made: Any = _Chain(RunDir(tmp_path), there, allocation, "hpcagent.coordinator-1.0a1b2c3d", 20, said.append)
    made.said = said
    return made


def test_a_successor_for_which_there_is_no_room_is_tried_for_as_long_as_the_job_runs(
    chain: Any, clock: Clock
) -> None:
    chain.there.answers = [FULL] * 9 + ["71"]
    for _ in range(3600):
        chain.hand_over()
        clock.now += 1
    assert chain.successor == ("hpcagent.coordinator-2.0a1b2c3d", "71")
    assert len([line for line in chain.said if "not taken now" in line]) == 1
    entries = read_ledger(chain.folder.jobs)
    assert {e.name for e in entries if e.ended is None} == {"hpcagent.coordinator-2.0a1b2c3d"}


def test_the_last_job_of_a_chain_cannot_know_its_own_end_and_says_that_its_hours_are_an_estimate(
    chain: Any, clock: Clock
) -> None:
    Ledger(chain.folder.jobs).submitting(chain.name, "slurm")
    chain.end("completed", "the campaign has stopped")
    (entry,) = read_ledger(chain.folder.jobs)
    assert entry.ended == "completed" and entry.estimated


def test_it_is_also_tried_until_the_jobs_very_end(chain: Any, clock: Clock) -> None:
    chain.progress = True
    chain.there.answers = [FULL, FULL, "71"]
    assert chain.go_on(clock.now + 50) and clock.now < 1050
    chain.successor = None
    chain.there.taken.clear()
    chain.there.answers = [FULL] * 20
    assert not chain.go_on(clock.now + 50) and clock.now >= 1050


def test_one_that_is_refused_for_good_is_tried_once_more_at_the_end(chain: Any, clock: Clock) -> None:
    chain.progress = True
    chain.there.answers = [Refused("Slurm did not take it: Invalid account")] * 2
    for _ in range(100):
        chain.hand_over()
        clock.now += 10
    assert len(chain.there.answers) == 1 and not chain.go_on(clock.now + 50) and not chain.there.answers


@pytest.mark.parametrize(
    ("state", "goes_on"),
    [("node_failed", True), ("preempted", True), ("timeout", True), ("cancelled", False), (None, False),
     (SchedulerDown("away"), False)],
)  # fmt: skip
def test_who_ends_the_job_decides_whether_the_next_one_goes_on(chain: Any, state: Any, goes_on: bool) -> None:
    chain.there.state = state
    assert (chain.ended_by_nobody() is not None) is goes_on


# ---- a filter of the site renames jobs


@pytest.mark.parametrize("renames", ["{}", "acct7_{}", "{}-acct7", "a name of the site's own"])
def test_a_successor_is_called_off_whatever_the_site_calls_it(chain: Any, renames: str) -> None:
    there = chain.there
    there.answers, there.renames = ["71"], renames
    chain.hand_over()
    with pytest.raises(BadInput, match=r"Job 71 .pending. is the coordinator"):
        _refuse_second(chain.folder, there)
    chain.call_off()
    assert there.cancelled == ["71"] and "is cancelled" in chain.said[-1]
    assert [e.ended for e in read_ledger(chain.folder.jobs)] == ["cancelled"]


@pytest.mark.parametrize("renames", ["{}", "acct7_{}", "a name of the site's own"])
def test_the_first_job_is_reaped_whatever_the_site_calls_it(chain: Any, renames: str) -> None:
    there = chain.there
    there.answers, there.renames = ["70"], renames
    submit_job(chain.folder, there, chain.name, (chain.folder.root / SCRIPT).read_text(), about={})
    (one,) = end_leftovers(chain.folder.jobs, ask=lambda kind: there, coordinators=True)
    assert (one.done, there.cancelled) == ("cancelled", ["70"])


def test_one_whose_new_name_was_not_learnt_is_left_open_and_said_to_be(chain: Any) -> None:
    there = chain.there
    there.answers, there.renames, there.away = ["71"], "a name of the site's own", True
    chain.hand_over()
    there.away = False
    chain.call_off()
    assert (
        there.cancelled == [] and 'was not cancelled: job 71 is another one now, called "a name' in chain.said[-1]
    )
    (one,) = end_leftovers(chain.folder.jobs, ask=lambda kind: there, coordinators=True)
    assert one.done == "left" and "scancel 71" in one.words and there.cancelled == []
    assert [e.ended for e in read_ledger(chain.folder.jobs)] == [None]
    there.taken["71"] = replace(there.taken["71"], state="completed")
    assert [one.done for one in end_leftovers(chain.folder.jobs, ask=lambda kind: there, coordinators=True)] == [
        "ended"
    ]
