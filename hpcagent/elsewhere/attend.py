"""The coordinator in one job of a chain, which hands over to a next one until the campaign has stopped.

A chain: each job submits its successor when it begins, to start after its end, however that comes about. So a job
that is killed with its node breaks nothing. A successor is cancelled when the campaign has stopped, when somebody
ends the running job (SIGTERM, unless the scheduler says that the node, a preemption or the time has ended it), and
when a job brought no new result: what does not get anywhere is not repeated.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcagent.campaign.coordinator import Coordinator
from hpcagent.campaign.events import Event
from hpcagent.campaign.loading import load_run
from hpcagent.campaign.standing import ROLE
from hpcagent.campaign.where import SITE
from hpcagent.elsewhere.job import LOG, SCRIPT, submit_job
from hpcagent.errors import AllocationEnded, BadInput, HpcAgentError, RunDirGone, StoreFull
from hpcagent.sites.block import Block, block_of
from hpcagent.sites.ledger import ELSEWHERE, Ledger, read_ledger
from hpcagent.sites.profile import Profile
from hpcagent.sites.profiles import find_profile
from hpcagent.sites.schedulers.answers import Allocation, Job
from hpcagent.sites.schedulers.base import Scheduler, SchedulerDown
from hpcagent.sites.schedulers.present import own_job
from hpcagent.sites.schedulers.registry import scheduler
from hpcagent.sites.schedulers.submission import LONGEST_PAUSE_S, Refused, Sent, pause_s
from hpcagent.store.files import open_plain
from hpcagent.store.journal import read_events
from hpcagent.store.rundir import RunDir

__all__ = ["attend", "main"]

_QUICK_S = 5.0
"""So long a command of the scheduler may take while this job is being ended; Slurm gives it 30 s as a rule."""
_LAST_S = 10.0
"""The end of a job, in which none is submitted any more."""
_NOT_BY_HAND = ("node_failed", "preempted", "timeout")
"""What ends a job without anybody having wanted that: the next one goes on."""
_NAME = re.compile(r"hpcagent\.coordinator-(\d+)\.[0-9a-f]{8}")


class _Chain:
    """The job that this process is in, and the one that comes after it."""

    def __init__(
        self,
        folder: RunDir,
        there: Scheduler,
        allocation: Allocation,
        name: str,
        most: int,
        say: Callable[[str], None],
    ) -> None:
        found = _NAME.fullmatch(name)
        if found is None:
            raise BadInput(f"{name!r} is not the name of a coordinator's job.", value=name)
        self.folder, self.there, self.allocation, self.name, self.say = folder, there, allocation, name, say
        self.number, self.most = int(found[1]), most
        self.block: Block | None = None  # what is to have a place beside this job
        self._told_place = False
        self.successor: tuple[str, str] | None = None  # name, job id
        self._sent = Sent(name)  # the successor, as it was submitted
        self.refused = self.progress = self.wanted = False
        self._tries, self._try_after = 0, 0.0
        self.about = next((e.about or {} for e in read_ledger(folder.jobs) if e.name == name), {})

    def settle(self) -> None:
        """Write down how the jobs before this one ended: of the last one also if it did so, before its end."""
        entries = [e for e in read_ledger(self.folder.jobs) if (e.about or {}).get("role") == ROLE]
        ran = [e for e in entries if e.name != self.name and e.ended not in ("refused", ELSEWHERE)]
        before = {e.job_id: e for e in ran if e.job_id and (e.ended is None or e is ran[-1])}
        before.pop(self.allocation.job_id, None)
        try:
            seen, _ = self.there.ours({job_id: entry.sent for job_id, entry in before.items()})
        except SchedulerDown:
            return
        for job_id, entry in before.items():
            job = seen.get(job_id)
            if entry.ended is None:
                job = job or Job(job_id, "failed", reason="the scheduler does not know this job any more")
            elif job is not None and job.over:  # its own word on why says more, but it ended some seconds later
                state: Any = entry.ended
                job = replace(job, state=state, reason=entry.reason)
            if job is not None and job.over:
                Ledger(self.folder.jobs).ended(entry.name, job)

    def hand_over(self, *, at_its_end: bool = False) -> None:
        """Submit the successor, unless that was done or refused, or there have been enough.

        Where there is no room for it yet, call again: every call may be another try.

        Args:
            at_its_end: There are no blocks any more for which a place has to be left.
        """
        self.wanted = True
        if self.successor is not None or self.refused or time.monotonic() < self._try_after:
            return
        if self.number >= self.most:
            self.refused = True
            self.say(f"this is the last of at most {self.most} job(s)")
            return
        if not at_its_end and self._needs_last_place():
            self._try_after = time.monotonic() + LONGEST_PAUSE_S
            return
        token = self.name.removeprefix("hpcagent.")
        following = token.replace(f"-{self.number}.", f"-{self.number + 1}.")
        script = (self.folder.root / SCRIPT).read_text().replace(token, following)
        name = f"hpcagent.{following}"
        about = {k: v for k, v in self.about.items() if k in ("site", "executor", "nodes", "walltime_s")}
        try:
            job_id, self._sent = submit_job(
                self.folder, self.there, name, script, about=about, after=self.allocation.job_id
            )
        except (Refused, SchedulerDown) as error:
            passes = isinstance(error, SchedulerDown) or (error.transient and not error.details.get("unclear"))
            self._tries += 1
            if self._tries == 1 or not passes:
                again = "as soon as there is room" if passes else "when this one ends"
                self.say(f"the next job was not taken now ({error}); it is submitted {again}")
            self.refused = not passes
            self._try_after = time.monotonic() + pause_s(self._tries)
            return
        self.successor = name, job_id
        self.say(f"job {job_id} goes on when this one ends")

    def _needs_last_place(self) -> bool:
        """Whether the successor, which waits, would have the place of a block, as far as the scheduler tells."""
        from hpcagent.sites.block import project_of

        if self.block is None:
            return False
        try:
            places = self.there.places(self.block.queue, project=project_of(self.block))
        except SchedulerDown:
            return False
        if places.free is None or places.free > 1:
            return False
        if not self._told_place:
            self._told_place = True
            limits = "; ".join(places.words)
            self.say(f"the next job waits to be submitted: until there is room its place is a block's ({limits})")
        return True

    def progressed(self) -> None:
        """A new result has come."""
        self.progress = True
        self.hand_over()

    def go_on(self, until: float) -> bool:
        """See that a successor is there; False if there is none, or none is wanted.

        Args:
            until: So long it is tried where there is no room for it: Unix time, in seconds.
        """
        if not self.progress:
            self.say("this job brought no new result, so none follows it")
            self.call_off()
            return False
        self.refused, self._tries, self._try_after = False, 0, 0.0
        while self.successor is None and self.number < self.most:
            self.hand_over(at_its_end=True)
            if self.successor is not None or self.refused or time.time() > until:
                break
            time.sleep(1.0)
        return self.successor is not None

    def ended_by_nobody(self) -> Any:
        """The state (see `State`) in which this job is being ended, where nobody has wanted that; else None."""
        quick = scheduler(self.there.name, timeout_s=min(_QUICK_S, self.there.timeout_s))
        with contextlib.suppress(SchedulerDown):
            state = quick.ended_by(self.allocation.job_id)
            return state if state in _NOT_BY_HAND else None
        return None

    def call_off(self) -> None:
        """Cancel the successor."""
        if self.successor is None:
            return
        (name, job_id), self.successor = self.successor, None
        try:
            others = self.there.cancel_ours({job_id: self._sent})
        except SchedulerDown as error:
            self.say(f"job {job_id} could not be cancelled ({error}); `hpcagent reap {self.folder.root}` does")
            return
        if others:  # its entry stays open
            self.say(
                f"job {job_id}, which would have gone on, was not cancelled: {others[job_id]}. `hpcagent reap "
                f"{self.folder.root}` looks again"
            )
            return
        self.say(f"job {job_id}, which would have gone on, is cancelled")
        with contextlib.suppress(StoreFull):
            gone = Job(job_id, "cancelled", reason="no longer needed", ends_at=time.time())
            Ledger(self.folder.jobs).ended(name, gone)

    def end(self, state: Any, reason: str) -> None:
        """Write down that this job has done what it could."""
        with contextlib.suppress(StoreFull):
            began, now = _began(self.allocation), time.time()
            job = Job(self.allocation.job_id, state, reason=reason, started_at=began, ends_at=now)
            Ledger(self.folder.jobs).ended(self.name, job, told=False)  # it runs until its script has ended


def attend(
    run_dir: str | Path,
    *,
    name: str,
    most_jobs: int,
    inside: bool = False,
    watch: Callable[[Event], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> bool:
    """Be the coordinator in one job of a chain; the job's script calls this.

    Args:
        run_dir: The campaign's folder, as `submit` left it.
        name: Of this job.
        most_jobs: Jobs that may follow one another.
        inside: The job's nodes do the runs.
        watch: Called with every `Event`.
        say: Called with a sentence on the chain.

    Returns:
        True if the campaign has stopped, False if another job goes on.

    Raises:
        AllocationEnded: The time is over, and no job goes on.
        KeyboardInterrupt: Somebody ended the job; none goes on.
        HpcAgentError: As from `Coordinator`. The successor stays if this job had new results.
    """
    folder = RunDir(run_dir)
    profile = find_profile(folder.root / SITE)
    there = scheduler(profile.kind, timeout_s=profile.cmd_timeout_s)
    allocation = there.allocation(os.environ)
    if allocation is None:
        raise BadInput(f"This process is in no {profile.kind} job; `hpcagent submit {folder.root}` makes one.")
    chain = _Chain(folder, there, allocation, name, most_jobs, say)
    label = str(chain.about.get("executor", ""))
    chain.block = block_of(profile, label) if not inside and label in profile.executors else None
    chain.settle()
    hopeful = chain.number == 1 or _last_session_had_results(folder)

    def seen(event: Event) -> None:
        if watch is not None:
            watch(event)
        if event.kind == "finished":
            chain.progressed()
        elif chain.wanted:
            chain.hand_over()

    ends_at = _ends_at(allocation, profile)
    clock = _Clock(ends_at - profile.margin_s)
    ended_by: Any = None
    try:
        with Coordinator(load_run(folder.root), site=profile, run_dir=folder.root, watch=seen, inside=inside) as c:
            if hopeful:
                chain.hand_over()
            else:
                say("the last job brought no new result: the next one is submitted with the first new result")
            try:
                if not inside:
                    clock.start()
                for _ in c:
                    pass
            except KeyboardInterrupt:
                if not clock.rang:
                    # Before the workers are ended, which takes longer than the scheduler may wait.
                    ended_by = chain.ended_by_nobody()
                    if ended_by is None or chain.successor is None:
                        chain.call_off()
                        ended_by = None
                    else:
                        say(f"this job is being ended ({ended_by}); job {chain.successor[1]} goes on")
                raise
            finally:
                clock.stop()
    except (AllocationEnded, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) and not clock.rang:
            chain.end(ended_by or "cancelled", "ended from outside")
            if ended_by is not None:
                return False
            raise
        gone_on = chain.go_on(ends_at - min(_LAST_S, profile.margin_s / 2))
        chain.end("completed", "its time was over")
        if gone_on:
            return False
        raise AllocationEnded(
            f"the time of the coordinator's job is over, and no other one goes on; everything finished is kept in "
            f"{folder.root}. `hpcagent submit {folder.root}` goes on.",
            run_dir=str(folder.root),
        ) from None
    except BaseException as error:
        if isinstance(error, (BadInput, RunDirGone)) or not chain.progress:
            chain.call_off()
        chain.end("failed", str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise
    chain.call_off()
    chain.end("completed", "the campaign has stopped")
    return True


def _last_session_had_results(folder: RunDir) -> bool:
    found = False
    for event in read_events(folder.events):
        kind = event.get("event")
        found = kind == "results" or (found and kind != "session")
    return found


def _ends_at(allocation: Allocation, profile: Profile) -> float:
    if allocation.ends_at is not None:
        return allocation.ends_at
    return _began(allocation) + min(block_of(profile, label).walltime_s for label in profile.executors)


def _began(allocation: Allocation) -> float:
    """When this job began, Unix time in seconds."""
    if allocation.started_at is not None:
        return allocation.started_at
    return float(os.environ.get("HPCAGENT_JOB_STARTED") or time.time())


class _Clock:
    """Sends this process SIGTERM in time before its job ends."""

    def __init__(self, at: float) -> None:
        self.rang = False
        self._timer = threading.Timer(max(0.0, at - time.time()), self._ring)
        self._timer.daemon = True

    def start(self) -> None:
        self._timer.start()

    def _ring(self) -> None:
        self.rang = True
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(self) -> None:
        self._timer.cancel()


def main() -> None:
    """Run in a job, started by `coordinator.sh`: RUN_DIR NAME MOST_JOBS [--inside]."""
    from hpcagent.campaign.answer import read_run
    from hpcagent.campaign.view import Lines
    from hpcagent.reports.report import report

    run_dir, name, most_jobs, *rest = sys.argv[1:]
    _print_to(Path(run_dir) / LOG)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        job = own_job(os.environ) or "?"
    except SchedulerDown as error:
        job = f"? ({error})"
    say(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {name} is job {job} on {socket.gethostname()}")
    code = 0
    try:
        stopped = attend(
            run_dir,
            name=name,
            most_jobs=int(most_jobs),
            inside="--inside" in rest,
            watch=Lines(load_run(run_dir)),
            say=say,
        )
        if stopped:
            print(read_run(run_dir), flush=True)
            print(f"report: {report(run_dir)}", flush=True)
        else:
            say("this job ends; the next one goes on")
    except KeyboardInterrupt:
        say(f"ended from outside; no job goes on. `hpcagent submit {run_dir}` does")
        code = 130
    except HpcAgentError as error:
        say(f"error: {error}")
        code = error.exit_code
    except Exception:
        traceback.print_exc()
        code = 1
    sys.exit(code)


def _print_to(log: Path) -> None:
    """Everything to the log beside the campaign; what the job itself prints is in `coordinator/`."""
    with contextlib.suppress(OSError):
        descriptor = open_plain(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
