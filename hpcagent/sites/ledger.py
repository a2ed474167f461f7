"""jobs.jsonl: every job that was submitted, from before its submission to its verified end.

A job whose end is not written here may still run, whatever became of the process that submitted it;
`hpcagent reap` ends those, and only those.

Every job's line names the folder that it was written in. So a copy of a folder knows that the jobs are not its
own, as long as the other one is there; a folder that was moved keeps them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcagent.errors import StoreError, StoreFull
from hpcagent.sites.schedulers.answers import Job
from hpcagent.sites.schedulers.base import Scheduler
from hpcagent.sites.schedulers.submission import Sent
from hpcagent.store.files import open_plain

__all__ = ["ELSEWHERE", "TASK_EVENTS", "Entry", "Ledger", "read_ledger", "read_lines", "same_file"]

ELSEWHERE = "elsewhere"
"""The end, in this ledger, of a job of another folder, of which this one is a copy."""

TASK_EVENTS = frozenset({"root", "tasks", "tasks_sent", "tasks_cancelling", "tasks_ended"})
"""Lines on the tasks of an endpoint, which are no jobs: many in a line, and read by themselves."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A job as the ledger knows it.

    Attributes:
        name: The job's name, unique; known before the job id is.
        scheduler: Its kind, e.g. `slurm`.
        job_id: The scheduler's id; None if the submission was begun and never reported.
        about: `site`, `executor`, `block`, `nodes`, `walltime_s`, `script`, `stderr`, `host`, `pid`, ...
        submitted_at: Unix time, in seconds.
        ended: The final state (`completed`, `timeout`, ...), `refused`, `elsewhere` (another folder looks after
            it, of which this one is a copy), or None while it may still run.
        reason: The scheduler's words on the end.
        exit_code: Of the job script, where known.
        started_at: Unix time, in seconds; None if it never ran, or where that is not known.
        ended_at: Unix time, in seconds, at the latest; None while it may still run.
        called: What the scheduler calls it, where that is not `name`.
        exact: Whether the scheduler told when it ended; None in a ledger of before this was written down.
    """

    name: str
    scheduler: str
    job_id: str | None = None
    about: dict[str, Any] | None = None
    submitted_at: float = 0.0
    ended: str | None = None
    reason: str = ""
    exit_code: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    called: str = ""
    exact: bool | None = None

    @property
    def sent(self) -> Sent:
        """What the scheduler's answer on its id is compared with."""
        return Sent(self.name, self.submitted_at, self.called)

    @property
    def node_hours(self) -> float:
        """Nodes x time from its start to its end; 0 for a job that did not run, or has no end yet."""
        started = self.started_at
        if started is None and not self.exact and self.ended not in ("cancelled", "refused", ELSEWHERE):
            started = self.submitted_at  # it ran, from nobody knows when
        if started is None or self.ended_at is None:
            return 0.0
        return int((self.about or {}).get("nodes", 1)) * max(0.0, self.ended_at - started) / 3600

    @property
    def estimated(self) -> bool:
        """Whether `node_hours` is an estimate: the scheduler could not tell how the job ended, or when."""
        return self.ended not in (None, "refused", ELSEWHERE) and self.exact is False


class Ledger:
    """The writer of a jobs.jsonl. Every line is on the disk before the method returns.

    Args:
        path: The file; made with the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def submitting(self, name: str, scheduler: str, **about: Any) -> None:
        """Write that a job of this name is about to be submitted.

        Raises:
            StoreFull: It cannot be written; the job must not be submitted then.
        """
        self.write(
            {
                "event": "submitting",
                "name": name,
                "scheduler": scheduler,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "folder": os.path.realpath(self.path.parent),
                **about,
            }
        )

    def submitted(self, name: str, job_id: str) -> None:
        """Write the id that the scheduler gave the job."""
        self.write({"event": "submitted", "name": name, "job_id": job_id})

    def called(self, there: Scheduler, job: Job, sent: Sent) -> Sent:
        """Note, once, what the scheduler calls a job that was just submitted: a filter of the site may rename it.

        Args:
            there: The scheduler.
            job: As it shows it.
            sent: As it was submitted.

        Returns:
            What its later answers are to be compared with.
        """
        known = there.first_seen(job, sent)
        if known != sent:
            with contextlib.suppress(StoreFull):  # it is known here all the same
                self.write({"event": "called", "name": sent.name, "called": known.called})
        return known

    def elsewhere(self, name: str, words: str) -> None:
        """Write that a job is another folder's, of which this one is a copy."""
        self.write({"event": "ended", "name": name, "state": ELSEWHERE, "reason": words, "ended_at": time.time()})

    def refused(self, name: str, words: str) -> None:
        """Write that the scheduler did not take the job."""
        self.write({"event": "refused", "name": name, "reason": words})

    def ended(self, name: str, job: Job, *, told: bool = True) -> None:
        """Write how a job ended; not `told`: its time is a guess, because the scheduler has not seen its end."""
        self.write(
            {
                "event": "ended",
                "name": name,
                "job_id": job.job_id,
                "state": job.state,
                "reason": job.reason,
                "exit_code": job.exit_code,
                "started_at": job.started_at,
                "ended_at": min(time.time(), job.ends_at or math.inf),
                "exact": told and job.ends_at is not None,
            }
        )

    def write(self, line: dict[str, Any]) -> None:
        """Append a line, with the time; on the disk before it returns.

        Raises:
            StoreFull: It cannot be written.
        """
        text = (json.dumps({"at": time.time(), **line}) + "\n").encode()
        with self._lock:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = open_plain(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
                try:
                    size = os.fstat(descriptor).st_size
                    if size and os.pread(descriptor, 1, size - 1) != b"\n":
                        text = b"\n" + text  # after a line that a killed writer or a full disk left torn
                    if os.write(descriptor, text) != len(text):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise StoreFull(
                    f"{self.path} cannot be written ({error.strerror}); a job that is not written down there "
                    "could be left running unseen.",
                    path=str(self.path),
                ) from error


def read_ledger(path: Path) -> list[Entry]:
    """Return the jobs of a jobs.jsonl in the order of their submission; none if there is no such file.

    A torn or damaged line is skipped: what a job's later lines say stands. A job that another folder looks after
    has ended here: `elsewhere`.
    """
    jobs = _read(path)
    originals = _originals(path, (job for job in jobs.values() if job.ended is None))
    return [
        job
        if job.ended is not None
        or (original := _folder(job)) not in originals
        or job.name not in originals[original]
        else replace(job, ended=ELSEWHERE, reason=f"a job of {original}, of which {path.parent} is a copy")
        for job in jobs.values()
    ]


def damage(path: Path) -> str:
    """What could not be read of a jobs.jsonl, and what that may mean: a sentence without full stop, or empty."""
    wrong: list[int] = []
    _read(path, wrong)
    if not wrong:
        return ""
    some = ", ".join(map(str, wrong[:5])) + (", ..." if len(wrong) > 5 else "")
    return (
        f"{len(wrong)} line(s) of jobs.jsonl cannot be read (line {some}): a job that only they tell of may still "
        "run, unseen from here; look for it with squeue or qstat"
    )


def _read(path: Path, wrong: list[int] | None = None) -> dict[str, Entry]:
    """The jobs of a ledger; `wrong` takes the numbers of the lines that cannot be read."""
    jobs: dict[str, Entry] = {}
    for number, line in read_lines(path):
        try:
            if line is None:
                raise ValueError("it is no JSON object")
            _note(jobs, line)
        except (KeyError, TypeError, ValueError, AttributeError):
            if wrong is not None:
                wrong.append(number)
    return jobs


def _time(given: Any) -> float | None:
    """A time of the ledger; `ValueError` or `TypeError` where it is none."""
    if given is not None and not math.isfinite(given):
        raise ValueError(f"{given} is no time")
    return given  # type: ignore[no-any-return]  # a number, as `isfinite` takes it


def _folder(job: Entry) -> str:
    """The folder whose job it is; empty in a ledger of before this was written down."""
    return str((job.about or {}).get("folder", ""))


def _originals(path: Path, jobs: Iterable[Entry]) -> dict[str, frozenset[str]]:
    """The other folders whose jobs these are and which are still there, and the names of all their jobs."""
    here = os.path.realpath(path.parent)
    found: dict[str, frozenset[str]] = {}
    for folder in dict.fromkeys(map(_folder, jobs)):
        other = Path(folder, path.name)
        if folder and folder != here and not same_file(other, path):
            with contextlib.suppress(OSError, StoreError):  # it was moved here, or is out of sight
                found[folder] = frozenset(_read(other))
    return found


def same_file(one: Path, other: Path) -> bool:
    """Whether both are one file; by inode alone, for two mounts of one file system may be two devices."""
    try:
        first, second = one.stat(), other.stat()
        return (first.st_ino, one.parent.stat().st_ino) == (second.st_ino, other.parent.stat().st_ino)
    except OSError:
        return False


def _note(jobs: dict[str, Entry], line: dict[str, Any]) -> None:
    if line["event"] in TASK_EVENTS:  # read by sites/endpoint/tasks.py
        return
    event, name = line["event"], str(line["name"])
    if event == "submitting":
        about = {k: v for k, v in line.items() if k not in ("event", "name", "scheduler", "at")}
        int(about.get("nodes", 1))
        jobs[name] = Entry(name, str(line["scheduler"]), about=about, submitted_at=float(line["at"]))
    elif event == "submitted":
        jobs[name] = replace(jobs[name], job_id=str(line["job_id"]))
    elif event == "called":
        jobs[name] = replace(jobs[name], called=str(line["called"]))
    elif event == "refused":
        jobs[name] = replace(jobs[name], ended="refused", reason=str(line["reason"]))
    elif event == "ended":
        jobs[name] = replace(
            jobs[name],
            ended=str(line["state"]),
            reason=str(line.get("reason", "")),
            exit_code=line.get("exit_code"),
            started_at=_time(line.get("started_at")),
            ended_at=_time(line.get("ended_at")),
            exact=line.get("exact"),
            job_id=jobs[name].job_id or line.get("job_id"),
        )


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Number and object of each line that has something; None for one that is no JSON object.

    Raises:
        StoreError: The file is there and cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read: {error.strerror}; which jobs the campaign has left is not known without it.",
            path=str(path),
        ) from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            data = None
        yield number, data if isinstance(data, dict) else None
