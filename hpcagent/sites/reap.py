"""End the jobs that a campaign left behind: those, and only those, that its jobs.jsonl names."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcagent.errors import BadInput
from hpcagent.sites.ledger import ELSEWHERE, Entry, Ledger, read_ledger
from hpcagent.sites.schedulers.answers import Job
from hpcagent.sites.schedulers.base import Scheduler, SchedulerDown, Unverified
from hpcagent.sites.schedulers.registry import scheduler
from hpcagent.sites.schedulers.submission import Sent
from hpcagent.store.rundir import Lock, RunDir

__all__ = ["Reaped", "end_leftovers", "reap", "told"]

_HEARD_LATE_S = 20.0
"""A submission that was cut off may still reach the scheduler for so long."""


@dataclass(frozen=True, slots=True)
class Reaped:
    """What became of a job that had no end in the ledger.

    Attributes:
        name: The job's name.
        job_id: The scheduler's id; None if the scheduler never had the job, or could not be asked.
        done: `cancelled`: it waited or ran, and is gone. `ended`: it had ended before. `never`: no id of it was
            recorded and no job that waits or runs has its name: most often it was never submitted. `left`: it
            could not be seen gone; the ledger keeps it. `elsewhere`: it is another folder's, of which this one is
            a copy, and was let be.
        state: How it ended, e.g. `cancelled`, `timeout`; empty if `never`, `left` or `elsewhere`.
        words: The scheduler's words, or why it is left.
    """

    name: str
    job_id: str | None
    done: Literal["cancelled", "ended", "never", "left", "elsewhere"]
    state: str = ""
    words: str = ""


def reap(
    run_dir: str | Path, *, within_s: float = 60.0, ask: Callable[[str], Scheduler] = scheduler
) -> list[Reaped]:
    """Cancel the jobs of a run directory that have no end, and see them gone. Safe to call again.

    Args:
        run_dir: The campaign's folder.
        within_s: How long to wait until they are gone.
        ask: Makes the scheduler of a kind.

    Returns:
        What was done, for each job that had no end in the ledger; empty if there was none.

    Raises:
        BadInput: There is no such folder.
        RunDirLocked: A live coordinator has the folder; it ends its jobs itself.
    """
    root = Path(run_dir).expanduser()
    if not root.is_dir():
        raise BadInput(f"There is no folder {root}; name the one that `hpcagent run` wrote.", value=str(root))
    # The jobs it names are cancelled as this user's.
    RunDir(root).require_own()
    path = RunDir(root).jobs
    lock = Lock(root, passing=True)
    lock.acquire()
    try:
        done = end_leftovers(path, within_s=within_s, ask=ask, coordinators=True)
        return [*done, *_end_tasks(path, within_s)]
    finally:
        lock.release()


def _end_tasks(ledger: Path, within_s: float) -> list[Reaped]:
    """Cancel the tasks on endpoints, as `end_leftovers` does with jobs."""
    from hpcagent.sites.endpoint.tasks import may_run, read_tasks

    if not may_run(read_tasks(ledger, copies=False)):
        return []
    from hpcagent.sites.endpoint.reaping import end_tasks

    return [
        Reaped(task.key, task.task_id or None, done, "" if done in ("left", "elsewhere") else done, words)
        for task, done, words in end_tasks(ledger, within_s=within_s)
    ]


def end_leftovers(
    ledger: Path,
    *,
    within_s: float = 60.0,
    ask: Callable[[str], Scheduler] = scheduler,
    coordinators: bool = False,
) -> list[Reaped]:
    """Do as `reap` does, for a caller that holds the lock. Never raises for what a scheduler says.

    Args:
        ledger: The jobs.jsonl.
        within_s: How long to wait until they are gone.
        ask: Makes the scheduler of a kind.
        coordinators: Also end jobs that `hpcagent submit` made for the coordinator itself: those that wait to go
            on with the campaign. The job that this process is in is never touched.

    Raises:
        StoreFull: The ends cannot be written; the jobs are gone all the same.
    """
    entries, writer = read_ledger(ledger), Ledger(ledger)
    done = _let_be(entries, writer)
    open_entries = [
        entry
        for entry in entries
        if entry.ended is None and (coordinators or (entry.about or {}).get("role") != "coordinator")
    ]
    for kind in dict.fromkeys(entry.scheduler for entry in open_entries):
        of_kind = [entry for entry in open_entries if entry.scheduler == kind]
        try:
            there = ask(kind)
            here = there.inside(os.environ)
            others = [entry for entry in of_kind if entry.job_id is None or entry.job_id != here]
            if others:
                done += _end(others, there, writer, time.monotonic() + within_s)
        except (SchedulerDown, BadInput) as error:
            done += [Reaped(entry.name, entry.job_id, "left", words=str(error)) for entry in of_kind]
    order = {entry.name: i for i, entry in enumerate(entries)}
    return sorted(done, key=lambda one: order[one.name])


def told(done: Sequence[Reaped]) -> list[str]:
    """Say what `end_leftovers` has done, for somebody who resumes: a clause for each kind.

    Example:
        >>> told([Reaped("a", "1", "cancelled", "cancelled"), Reaped("b", "2", "left", words="slurmctld is away")])
        ['1 job(s) that the last coordinator left were cancelled', '1 could not be seen gone (slurmctld is away)']
    """
    kinds = {kind: [one for one in done if one.done == kind] for kind in ("left", "elsewhere")}
    ended = len(done) - sum(map(len, kinds.values()))
    words = [f"{ended} job(s) that the last coordinator left were cancelled"] if ended else []
    if left := kinds["left"]:
        words.append(f"{len(left)} could not be seen gone ({left[0].words})")
    if others := kinds["elsewhere"]:
        words.append(f"{len(others)} job(s) in its ledger are let be ({others[0].words})")
    return words


def _let_be(entries: Sequence[Entry], writer: Ledger) -> list[Reaped]:
    """Settle, once, the jobs of the folder of which this one is a copy: they are not touched."""
    done = []
    for entry in entries:
        if entry.ended == ELSEWHERE and entry.ended_at is None:  # not written yet
            writer.elsewhere(entry.name, entry.reason)
            done.append(Reaped(entry.name, entry.job_id, "elsewhere", words=entry.reason))
    return done


def _end(entries: Sequence[Entry], there: Scheduler, writer: Ledger, deadline: float) -> list[Reaped]:
    """End jobs of one scheduler.

    Raises:
        SchedulerDown: It did not answer.
    """
    done, sent = _heard(entries, there, writer, deadline)
    before, others = there.ours(sent)
    try:
        ended = there.cancel_and_see(
            {job_id: sent[job_id] for job_id in sent if job_id in before and not before[job_id].over},
            within_s=max(1.0, deadline - time.monotonic()),
        )
        words = ""
    except Unverified as error:
        ended, words = error.details["ended"], str(error)
    renamed = {job_id for job_id, job in there.jobs(others).items() if there.may_be(job, sent[job_id])}
    for job_id, name in {job_id: one.name for job_id, one in sent.items()}.items():
        if job_id in renamed:
            why = f"{others[job_id]}; it was submitted when ours was, so a filter of the site may have renamed it"
            done.append(Reaped(name, job_id, "left", words=f"{why}. If it is ours, {there.ends_by} {job_id}"))
            continue
        was_over = job_id not in before or before[job_id].over
        why = "the scheduler does not know this job any more"
        unknown = Job(job_id, "failed", name, reason=f"{why}: {others[job_id]}" if job_id in others else why)
        job = before.get(job_id, unknown) if was_over else ended.get(job_id)
        if job is None:
            done.append(Reaped(name, job_id, "left", words=words))
            continue
        writer.ended(name, job)
        done.append(Reaped(name, job_id, "ended" if was_over else "cancelled", job.state, job.reason))
    return done


def _heard(
    entries: Sequence[Entry], there: Scheduler, writer: Ledger, deadline: float
) -> tuple[list[Reaped], dict[str, Sent]]:
    """Find the jobs whose id was never written. Returns what is settled, and the others by job id.

    Raises:
        SchedulerDown: It did not answer.
    """
    sent = {entry.job_id: entry.sent for entry in entries if entry.job_id is not None}
    silent = {entry.name: entry.submitted_at for entry in entries if entry.job_id is None}
    done: list[Reaped] = []
    while silent:
        for name, at in list(silent.items()):
            found = there.named(name)
            for job in found:
                writer.submitted(name, job.job_id)
                sent[job.job_id] = Sent(name, at, job.name)
            if not found and time.time() - at < _HEARD_LATE_S:
                if time.monotonic() < deadline:
                    continue
                done.append(Reaped(name, None, "left", words="whether it was submitted is not known yet"))
            elif not found:
                words = "no id was recorded, and no waiting or running job has its name"
                writer.refused(name, words)
                done.append(Reaped(name, None, "never", words=words))
            del silent[name]
        if silent:
            time.sleep(0.5)
    return done, sent
