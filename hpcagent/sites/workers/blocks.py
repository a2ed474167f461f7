"""Parsl's batch providers, made to keep their word. See `slurm_blocks.py`, `pbs_blocks.py` and `own_blocks.py`.

A provider here writes scripts and submits them, as Parsl's does. How jobs stand is asked of
`hpcagent.sites.schedulers`, and remembered: the first final state of a job stays.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from parsl.jobs.states import JobState, JobStatus
from parsl.providers.errors import ExecutionProviderException, SubmitException

from hpcagent.errors import StoreFull
from hpcagent.sites.ledger import Ledger
from hpcagent.sites.schedulers.answers import Job, State
from hpcagent.sites.schedulers.base import Scheduler, SchedulerDown, Unverified
from hpcagent.sites.schedulers.submission import Refused, Sent
from hpcagent.sites.script_paths import handed_over
from hpcagent.store.files import open_own

__all__ = ["CLOCKS_S", "NEVER_SEEN_GRACE_S", "BatchBlocks", "ScriptedBlocks"]

NEVER_SEEN_GRACE_S = 120.0
"""A job that was submitted but that the scheduler has not shown yet is pending for this long. Parsl calls it
completed at once: measured, a new job is not in Slurm's accounting for 2 s and more."""
CLOCKS_S = 5.0
"""So far the clocks of two machines may be apart."""

_PARSL: dict[State, JobState] = {
    "pending": JobState.PENDING,
    "held": JobState.HELD,
    "running": JobState.RUNNING,
    "ending": JobState.RUNNING,
    "completed": JobState.COMPLETED,
    "failed": JobState.FAILED,
    "cancelled": JobState.CANCELLED,
    "timeout": JobState.TIMEOUT,
    "out_of_memory": JobState.FAILED,
    "node_failed": JobState.FAILED,
    "preempted": JobState.TIMEOUT,
}


class BatchBlocks:
    """What the providers for Slurm and PBS have in common; mixed in before Parsl's class.

    `prepare` must be called before the first submission.
    """

    scheduler: Scheduler
    ledger: Ledger
    poll_s = 15.0
    grace_s = NEVER_SEEN_GRACE_S
    """Until a job that is not shown yet counts as gone."""
    word_within_s = 15.0
    """So long after its processes have died the scheduler may still show a job running."""
    cancelling_tells = False
    """Whether to end a job that has lost its workers is what tells that its node is dead."""
    resources: dict[Any, dict[str, Any]]  # Parsl's: by job id
    script_dir: str | None  # Parsl's

    def prepare(self, scheduler: Scheduler, ledger: Ledger, *, poll_s: float, **about: Any) -> None:
        """Say which scheduler is asked, how often, and where jobs are written down.

        Args:
            scheduler: Answers how jobs stand.
            ledger: Where every job is written before it is submitted.
            poll_s: Seconds between two queries.
            about: What the ledger keeps of each job: `site`, `executor`, `nodes`, `walltime_s`.
        """
        self.scheduler, self.ledger, self.poll_s = scheduler, ledger, poll_s
        self._about = about
        self._jobs: dict[str, Job] = {}
        self._sent: dict[str, Sent] = {}
        self._submitted: dict[str, float] = {}
        self._unheard: dict[str, float] = {}
        self._to_cancel: set[str] = set()
        self._cancelled: set[str] = set()  # by us
        self._asking = threading.Lock()
        self._submitting = threading.Lock()
        self._closed = False
        self.down: str | None = None
        self.unended: str | None = None

    @property
    def status_polling_interval(self) -> float:
        """Seconds between two queries. Parsl's is a constant of a minute."""
        return self.poll_s

    def submit(self, command: str, tasks_per_node: int, job_name: str = "hpcagent") -> str:
        """Write the script, write the job into the ledger, submit; Parsl calls this. Returns the job id.

        Raises:
            Refused: The scheduler did not take it; with its words.
            StoreFull: The ledger cannot be written; nothing was submitted, or what was is cancelled.
        """
        # At the end of the site no job may come up behind the back of `end_all`.
        with self._submitting:
            if self._closed:
                raise Refused("The site is being closed; no job is submitted any more.")
            return self._submit_one(command, tasks_per_node, job_name)

    def _submit_one(self, command: str, tasks_per_node: int, job_name: str) -> str:
        # Unique, so that a job whose id was never heard (sbatch timed out) can be found by its name.
        name, at = f"{job_name}.{uuid.uuid4().hex[:8]}", time.time()
        self.ledger.submitting(name, self.scheduler.name, **self._about, block=job_name.rpartition("-")[2])
        try:
            job_id = str(self._submit(command, tasks_per_node, name))
        except Refused as refusal:
            found = self._found_after(refusal, name)
            if found is None:
                raise
            job_id = found
        except (ExecutionProviderException, OSError) as error:  # the script could not be written, or the like
            self.ledger.refused(name, str(error))
            raise Refused(str(error)) from error
        try:
            self.ledger.submitted(name, job_id)
        except StoreFull:
            self._begin(Sent(name, at), job_id)
            with contextlib.suppress(SchedulerDown):  # its name is in the ledger, and `end_all` tries again
                self._cancel([job_id])
            raise
        self._begin(Sent(name, at), job_id)
        return job_id

    def _begin(self, sent: Sent, job_id: str) -> None:
        name = sent.name
        self._sent[job_id] = sent
        self._submitted[job_id] = time.monotonic()
        self._jobs[job_id] = Job(job_id, "pending", name)  # last: others read it without a lock

    def _found_after(self, refusal: Refused, name: str) -> str | None:
        """The id of a job that was taken although its submission failed; None if it was not, or nobody knows."""
        if not refusal.transient or refusal.details.get("unheard") is False:
            self.ledger.refused(name, str(refusal))
            return None
        try:
            found = self._found(name)
        except SchedulerDown:
            self._unheard[name] = time.monotonic()  # its line in the ledger stays open
            return None
        if found is None and refusal.details.get("unheard") is not False:
            self._unheard[name] = time.monotonic()
        elif found is None:
            self.ledger.refused(name, str(refusal))
        return found

    def _found(self, name: str) -> str | None:
        """The id of the job of that name, if it waits or runs.

        Raises:
            SchedulerDown: It did not answer.
        """
        found = self.scheduler.named(name)
        return found[0].job_id if found else None

    def _submit(self, command: str, tasks_per_node: int, name: str) -> str:
        """Parsl's submission, with `scheduler.submit` in place of its command."""
        raise NotImplementedError

    def known(self) -> dict[str, Job]:
        """Return how all jobs stood when they were last looked at."""
        return dict(self._jobs)

    def look(self) -> dict[str, Job]:
        """Ask how the jobs stand that have not ended, and return how all of them stand."""
        with self._asking:
            open_ids = [job_id for job_id, job in list(self._jobs.items()) if not job.over]
            try:
                seen, others = self._ours(open_ids)
            except SchedulerDown as error:
                self.down = str(error)  # nothing new is known: nothing changes
                return self.known()
            self.down = None
            for job_id in open_ids:
                self._take(job_id, seen.get(job_id), others.get(job_id, ""))
            self._end_more()
            return self.known()

    def _end_more(self) -> None:
        """End what could not be ended before, apart from how jobs stand: a job may not be to be ended at all."""
        try:
            self._end_unheard()
            if self._to_cancel:
                self._to_cancel -= {job_id for job_id in self._to_cancel if self._is_over(job_id)}
                self._cancel(self._to_cancel)
                self._to_cancel.clear()
        except SchedulerDown as error:
            self.unended = str(error)
        else:
            self.unended = None

    def _is_over(self, job_id: str) -> bool:
        return job_id in self._jobs and self._jobs[job_id].over

    def _ours(self, job_ids: Sequence[str]) -> tuple[dict[str, Job], dict[str, str]]:
        """How these jobs stand; of ids that are other jobs' by now, why they are not ours.

        Raises:
            SchedulerDown: It did not answer.
        """
        if not job_ids:
            return {}, {}
        seen = self.scheduler.jobs(job_ids)
        for job_id, job in seen.items():
            if job_id in self._submitted:  # it has not been seen before
                self._sent[job_id] = self.ledger.called(self.scheduler, job, self._sent[job_id])
        others = {j: words for j, job in seen.items() if (words := self.scheduler.another(job, self._sent[j]))}
        return {job_id: job for job_id, job in seen.items() if job_id not in others}, others

    def _cancel(self, job_ids: Collection[str]) -> None:
        """Ask to end jobs, those that still are ours.

        Raises:
            SchedulerDown: It did not answer.
        """
        self._ours([job_id for job_id in job_ids if job_id in self._submitted])  # for their names
        sent = {job_id: self._sent[job_id] for job_id in job_ids if job_id in self._sent}
        if sent:
            self.scheduler.cancel_ours(sent)

    def _take(self, job_id: str, job: Job | None, another: str = "") -> None:
        before = self._jobs[job_id]
        if before.over:
            return  # the first final state stays
        if job is None:
            unseen = before.state == "pending" and not before.reason and job_id in self._submitted
            if unseen and not another and time.monotonic() - self._submitted[job_id] < self.grace_s:
                return
            job = self._vanished(before, another)
        else:
            self._submitted.pop(job_id, None)  # it has been seen
        if job.over:
            job = self._judged(job if job.started_at is not None else replace(job, started_at=before.started_at))
            # Should the disk be full, its end stays open in the ledger, and `reap` finds it ended.
            with contextlib.suppress(StoreFull):
                self.ledger.ended(self._sent[job_id].name, job)
        self._jobs[job_id] = job

    def _vanished(self, before: Job, another: str) -> Job:
        """How a job ended that the scheduler does not know any more, as far as that can be told."""
        over_by_then = before.ends_at is not None and time.time() > before.ends_at - CLOCKS_S
        before = replace(before, ends_at=None)  # what it was allowed is not when it ended
        if before.job_id in self._cancelled:
            return replace(before, state="cancelled", reason="cancelled by hpcagent")
        with contextlib.suppress(SchedulerDown):  # should it be there all the same, nobody would look after it
            self._cancel([before.job_id])
        known, words = self.scheduler.keeps_finished_jobs()
        why = "the scheduler does not know this job any more" + (f" ({another})" if another else "")
        reason = why if known else f"{why}; {words.partition(':')[0]}"
        if over_by_then:
            return replace(before, state="timeout", reason=f"{reason}; its walltime was over by then")
        return replace(before, state="failed", reason=reason)

    def _judged(self, job: Job) -> Job:
        """Say more of how a job ended than the scheduler does, e.g. from what it printed."""
        return job

    def _end_unheard(self) -> None:
        """End jobs that were taken after their submission seemed to have failed: nobody waits for them.

        Raises:
            SchedulerDown: It did not answer.
        """
        for name, since in list(self._unheard.items()):
            job_id = self._found(name)
            if job_id is not None:
                self._begin(Sent(name), job_id)
                self._cancel([job_id])
                self._cancelled.add(job_id)
                with contextlib.suppress(StoreFull):  # its name is there
                    self.ledger.submitted(name, job_id)
            elif time.monotonic() - since > NEVER_SEEN_GRACE_S:
                with contextlib.suppress(StoreFull):
                    self.ledger.refused(name, "not answered, and never seen by the scheduler")
            else:
                continue
            del self._unheard[name]

    def _status(self) -> None:
        """Parsl's hook: update `resources`."""
        for job_id, job in self.look().items():
            if job_id in self.resources:
                about = self.resources[job_id]
                about["status"] = JobStatus(
                    _PARSL[job.state],
                    message=f"{job.state}: {job.reason}" if job.reason else job.state,
                    exit_code=job.exit_code,
                    stdout_path=about.get("job_stdout_path"),
                    stderr_path=about.get("job_stderr_path"),
                )

    def logs(self, job_id: str) -> tuple[Path, Path]:
        """Return the files with what a block printed: errors, output."""
        about = self.resources[job_id]
        return Path(about["job_stderr_path"]), Path(about["job_stdout_path"])

    def cancel(self, job_ids: Sequence[str]) -> list[bool]:
        """Cancel blocks; Parsl's and ours call this. Their end is seen by the next `look`.

        False for one whose scheduler does not answer; it is cancelled as soon as it does.
        """
        known = self.known()  # without one that another thread is just submitting
        open_ids = [job_id for job_id in job_ids if job_id not in known or not known[job_id].over]
        self._cancelled.update(open_ids)
        try:
            self._cancel(open_ids)
        except SchedulerDown as error:
            self.unended = str(error)  # whether it is there at all, the next look tells
            self._to_cancel.update(open_ids)
            return [job_id not in open_ids for job_id in job_ids]
        return [True for _ in job_ids]

    def end_all(self, *, within_s: float = 60.0) -> None:
        """Cancel every block that has not ended and see it gone.

        Raises:
            Unverified: Some could not be seen gone; they stay open in the ledger, for `hpcagent reap`.
        """
        self._closed = True
        with self._submitting:  # one that is under way
            pass
        words = ""
        try:
            self._end_unheard()
        except SchedulerDown as error:
            words = str(error)
        left = [job_id for job_id, job in list(self._jobs.items()) if not job.over]
        self._cancelled.update(left)
        with contextlib.suppress(SchedulerDown):
            self._ours([job_id for job_id in left if job_id in self._submitted])  # for their names
        try:
            ended = self.scheduler.cancel_and_see({j: self._sent[j] for j in left}, within_s=within_s)
        except Unverified as error:
            self._take_all(error.details.get("ended", {}))
            raise
        self._take_all(ended)
        if words and self._unheard:
            raise Unverified(f"{', '.join(self._unheard)}: whether they were submitted is not known ({words}).")

    def _take_all(self, ended: dict[str, Job]) -> None:
        with self._asking:
            for job_id, job in ended.items():
                self._take(job_id, job)


class ScriptedBlocks(BatchBlocks):
    """Providers whose whole job script is `script`: what is asked for is in it, nothing on a command line."""

    def script(self, command: str, job_name: str = "hpcagent", *, tasks_per_node: int = 1) -> str:
        """Return the job script for a command, as `submit` would write it."""
        raise NotImplementedError

    def job_name(self, name: str) -> str:
        """A name as the scheduler takes it, and gives it back."""
        return name

    def _outputs(self, job_name: str) -> tuple[Path, Path]:
        path = Path(self.script_dir or ".") / job_name
        return path.with_name(f"{path.name}.stdout"), path.with_name(f"{path.name}.stderr")

    def _submit(self, command: str, tasks_per_node: int, name: str) -> str:
        self.script_dir = str(Path(self.script_dir or ".").absolute())  # a job may start elsewhere: in $HOME
        path = Path(self.script_dir) / name
        try:
            # PBS needs the folder when the job ends, or the job stays "exiting" for as long as it is missing.
            path.parent.mkdir(parents=True, exist_ok=True)
            with open_own(path, private=True) as file:  # the environment in it may have secrets
                file.write(self.script(command, name, tasks_per_node=tasks_per_node).encode())
        except OSError as error:
            raise SubmitException(name, f"{path} cannot be written: {error.strerror}") from error
        with handed_over(path) as script:
            return self._entered(self.scheduler.submit(script), name)

    def _found(self, name: str) -> str | None:
        job_id = super()._found(self.job_name(name))
        return None if job_id is None else self._entered(job_id, name)

    def _entered(self, job_id: str, name: str) -> str:
        """Enter a job where Parsl looks for it."""
        out, err = self._outputs(name)
        self.resources[job_id] = {
            "job_id": job_id,
            "status": JobStatus(JobState.PENDING),
            "job_stdout_path": str(out),
            "job_stderr_path": str(err),
        }
        return job_id
