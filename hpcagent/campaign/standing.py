"""Who is at a campaign now, and how its jobs stand: asked from outside, quickly, without touching it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from hpcagent.errors import HpcAgentError
from hpcagent.sites.endpoint.tasks import Task, open_tasks
from hpcagent.sites.ledger import Entry, read_ledger
from hpcagent.sites.schedulers.answers import Job
from hpcagent.sites.schedulers.registry import scheduler
from hpcagent.store.rundir import Holder, RunDir, holder

__all__ = ["PATIENCE_S", "ROLE", "Standing", "job_words", "standing"]

ROLE = "coordinator"
"""What a job of a coordinator is called in the ledger."""
PATIENCE_S = 10.0
"""So long a scheduler is waited for, in seconds, when it is only to be looked at."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Who is at a campaign now.

    Attributes:
        attended: Whether a coordinator has the folder.
        coordinator: The one that has it, or had it last; None if it was never written down.
        jobs: Jobs without an end in the ledger.
        states: Job id -> what the scheduler says of it, as far as it was asked and answered.
        tasks: Tasks on endpoints without an end in the ledger.
    """

    attended: bool
    coordinator: Holder | None
    jobs: tuple[Entry, ...]
    states: Mapping[str, Job] = field(default_factory=dict)
    tasks: tuple[Task, ...] = ()

    def __str__(self) -> str:
        if self.attended:
            lines = [f"a coordinator is at it ({self.coordinator or 'its process is not recorded'})"]
        else:
            last = f"; the last was {self.coordinator}" if self.coordinator else ""
            lines = [f"no coordinator is at it, as far as this machine can tell{last}"]
        lines += [f"job {job_words(entry, self.states.get(entry.job_id or ''))}" for entry in self.jobs]
        for endpoint_id, tasks in groupby(self.tasks, key=lambda task: task.endpoint_id):
            found = list(tasks)
            asked = sum(task.cancelling for task in found)
            words = f"{len(found)} task(s) on the endpoint {endpoint_id} ({found[0].site}): no end recorded yet"
            lines.append(words + (f"; the end of {asked} was asked for" if asked else ""))
        return "\n".join(lines)


def standing(run_dir: str | Path) -> Standing:
    """Say who is at a campaign, and how its open jobs stand. Changes nothing.

    Raises:
        BadInput: The folder is not that of a campaign.

    Example:
        >>> import tempfile
        >>> from hpcagent.runs.run import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=folder)
        ...     standing(folder).attended
        False
    """
    folder = RunDir(run_dir)
    folder.require()
    held, who = holder(folder.root)
    jobs = tuple(e for e in read_ledger(folder.jobs) if e.ended is None)
    states: dict[str, Job] = {}
    for kind in {entry.scheduler for entry in jobs}:
        with contextlib.suppress(HpcAgentError):  # no scheduler here, or none that answers
            sent = {e.job_id: e.sent for e in jobs if e.scheduler == kind and e.job_id is not None}
            states |= scheduler(kind, timeout_s=PATIENCE_S).ours(sent)[0]
    tasks = sorted(open_tasks(folder.jobs), key=lambda task: task.endpoint_id)
    return Standing(held, who, jobs, states, tuple(tasks))


def job_words(entry: Entry, now: Job | None = None) -> str:
    """A job of the ledger in brief, and how it stands now where that is known."""
    about = entry.about or {}
    nodes = about.get("nodes")
    words = [
        "the coordinator's own" if about.get("role") == ROLE else f"of the executor {about.get('executor', '?')}"
    ]
    if nodes:
        words.append(f"{nodes} node{'s' if nodes != 1 else ''}")
    if entry.ended:
        words.append(entry.ended + (f" ({entry.reason})" if entry.reason else ""))
    elif now is not None:
        words.append(f"{now.state} ({now.reason})" if now.reason else now.state)
        if now.hosts:
            words.append(f"on {', '.join(now.hosts)}")
    else:
        words.append("no end recorded yet")
    return f"{entry.job_id or entry.name}: {', '.join(words)}"
