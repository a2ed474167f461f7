"""Stop a campaign that runs elsewhere: in another shell, in the background, in a job of its own."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.campaign.recorded import snapshot
from hpcagent.campaign.standing import ROLE, standing
from hpcagent.campaign.where import going_on
from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.owners import require_own
from hpcagent.sites.ledger import Entry
from hpcagent.sites.reap import reap
from hpcagent.sites.schedulers.base import Scheduler
from hpcagent.sites.schedulers.registry import scheduler
from hpcagent.store.rundir import Holder, RunDir, holder

__all__ = ["Stopping", "end_coordinator", "stop_run"]

_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Stopping:
    """What became of it.

    Attributes:
        folder: The campaign's.
        stopped: Whether somebody was at it, or a job waited for it, who is gone now.
        coordinator: Who that was; None where nobody was, or it was not written down.
        jobs: Ids of the coordinator's own jobs that were cancelled.
        left: Jobs that could not be seen gone, in words.
        finished: Runs that have finished.
        words: What there is to say: a line each.
    """

    folder: Path
    stopped: bool
    coordinator: Holder | None
    jobs: tuple[str, ...]
    left: tuple[str, ...]
    finished: int
    words: tuple[str, ...]

    def data(self) -> dict[str, Any]:
        """As plain data."""
        who = self.coordinator
        return {
            "folder": str(self.folder),
            "stopped": self.stopped,
            "coordinator": None if who is None else {"host": who.host, "pid": who.pid, "since": who.since},
            "jobs": list(self.jobs),
            "left": list(self.left),
            "finished": self.finished,
        }

    def __str__(self) -> str:
        return "\n".join(self.words)


def stop_run(
    run_dir: str | Path, *, within_s: float = 60.0, ask: Callable[[str], Scheduler] = scheduler
) -> Stopping:
    """Ask the coordinator of a campaign to stop, as Ctrl-C would, and wait until it has; harmless where none runs.

    What has finished is kept. A process of this machine is sent SIGTERM once it is seen to hold this folder's
    lock; a coordinator in a job, and those that wait to follow it, have their jobs cancelled, if they are seen to
    be ours.

    Args:
        run_dir: The campaign's folder.
        within_s: How long to wait for its end, in seconds.
        ask: Makes the scheduler of a kind.

    Raises:
        BadInput: The coordinator is this process, is on another machine, or cannot be seen to be one: what to do.
        TimeoutError: It is not gone by then; it was asked.

    Example:
        >>> import tempfile
        >>> from hpcagent.runs.run import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=folder, progress=False)
        ...     stop_run(folder).stopped
        False
    """
    folder = RunDir(run_dir)
    folder.require()
    require_own(folder.root, folder.jobs, what="the processes and jobs it names")
    root, deadline = folder.root, time.monotonic() + within_s
    now = standing(root)
    ours = [e for e in now.jobs if (e.about or {}).get("role") == ROLE]
    if not now.attended and not ours:
        return _told(folder, None, (), ask, attended=False)
    cancelled = _cancel(ours, within_s, ask)
    held, who = holder(root)
    here = who is not None and who.host == socket.gethostname() and _holds(who.pid, root)
    if held and (here or not cancelled):
        end_coordinator(root, who)
    while holder(root)[0]:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"the coordinator of {root} was asked to stop and has not ended within {within_s:g} s; it may be "
                f"cancelling its jobs: `hpcagent status {root}`"
            )
        time.sleep(_LOOK_S)
    return _told(folder, now.coordinator if now.attended else None, cancelled, ask, attended=True)


def _cancel(jobs: list[Entry], within_s: float, ask: Callable[[str], Scheduler]) -> tuple[str, ...]:
    """Cancel the coordinator's own jobs, the one that runs and those that wait to follow it."""
    cancelled: list[str] = []
    for kind in dict.fromkeys(e.scheduler for e in jobs):
        sent = {e.job_id: e.sent for e in jobs if e.scheduler == kind and e.job_id is not None}
        there = ask(kind)
        alive = {i: sent[i] for i, job in there.ours(sent)[0].items() if not job.over}
        there.cancel_and_see(alive, within_s=within_s)
        cancelled += alive
    return tuple(cancelled)


def end_coordinator(root: Path, who: Holder | None) -> None:
    """Send SIGTERM to the process that has a folder's lock, and to no other one that has its number by now.

    Raises:
        BadInput: It is this process, is on another machine, or does not hold the lock, as far as can be seen.
    """
    if who is None:
        raise BadInput(f"which process is at {root} is not recorded; stop it where it was started.")
    if who.host != socket.gethostname():
        raise BadInput(
            f"the coordinator of {root} is {who}, and this is {socket.gethostname()}: stop it there, "
            f"`ssh {who.host} hpcagent stop {root.absolute()}`.",
            value=who.host,
        )
    if who.pid == os.getpid():
        raise BadInput("the coordinator is in this process: leave its `with`, or call its close().")
    try:
        process = os.pidfd_open(who.pid)  # whatever gets this number later, this leads to the one that has it now
    except ProcessLookupError:
        return
    except OSError as error:
        raise BadInput(f"process {who.pid} cannot be looked at: {error.strerror}.", value=who.pid) from None
    try:
        if not _holds(who.pid, root):
            raise BadInput(
                f"process {who.pid}, which {root / '.lock'} names, does not have that file open, or belongs to "
                "another user or container: it is not ended. Stop the coordinator where it was started.",
                value=who.pid,
            )
        signal.pidfd_send_signal(process, signal.SIGTERM)
    except ProcessLookupError:
        return
    finally:
        os.close(process)


def _holds(pid: int, root: Path) -> bool:
    """Whether a process has a folder's lock file open, see proc(5), /proc/PID/fd."""
    try:
        lock = (root / ".lock").stat()
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for descriptor in descriptors:
        try:
            found = descriptor.stat()
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == (lock.st_dev, lock.st_ino):
            return True
    return False


def _told(
    folder: RunDir,
    who: Holder | None,
    jobs: tuple[str, ...],
    ask: Callable[[str], Scheduler],
    *,
    attended: bool,
) -> Stopping:
    """What became of it; jobs that the coordinator left are ended, as `reap` does."""
    root, left, words = folder.root, [], []
    if attended:
        try:
            left = [f"{job.job_id or job.name}: {job.words}" for job in reap(root, ask=ask) if job.done == "left"]
        except HpcAgentError as error:
            left = [str(error)]
    read = snapshot(root)
    finished = read.state.finished
    if not attended:
        words.append(f"no coordinator is at {root}, as far as this machine can tell; nothing was stopped")
    elif who is not None:
        words.append(f"stopped: {who}; {finished} finished run(s) are kept")
    else:
        words.append(f"stopped; {finished} finished run(s) are kept")
    words += [f"its job {job} was cancelled" for job in jobs]
    words += [f"not seen gone: {one}; `hpcagent reap {root}` tries again" for one in left]
    if read.reason is not None:
        words.append(f"it had ended: {read.state.why_stopped(read.reason)}")
    else:
        words.append(f"it goes on with {going_on(read.campaign, root)}")
    return Stopping(root, attended, who, jobs, tuple(left), finished, tuple(words))
