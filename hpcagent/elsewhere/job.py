"""One job of a coordinator: its script and ledger are written, and it is submitted."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from hpcagent.campaign.standing import ROLE
from hpcagent.sites.ledger import Ledger
from hpcagent.sites.schedulers.base import Scheduler, SchedulerDown
from hpcagent.sites.schedulers.submission import Refused, Sent
from hpcagent.sites.script_paths import handed_over
from hpcagent.store.files import write_whole
from hpcagent.store.rundir import RunDir

__all__ = ["LOG", "SCRIPT", "submit_job"]

LOG = "coordinator.log"
SCRIPT = "coordinator.sh"


def submit_job(
    folder: RunDir, there: Scheduler, name: str, script: str, *, about: dict[str, Any], after: str | None = None
) -> tuple[str, Sent]:
    """Write script and ledger, submit, and return the job's id and what the scheduler's answers are held against.

    Raises:
        Refused: With the scheduler's words.
        StoreFull: The folder cannot be written; nothing was submitted.
    """
    ledger = Ledger(folder.jobs)
    path = folder.root / SCRIPT
    write_whole(path, script, private=True)
    sent = Sent(name, time.time())
    ledger.submitting(name, there.name, role=ROLE, **about)
    try:
        with handed_over(path) as plain:
            job_id = there.submit(plain, after=after)
    except Refused as refusal:
        heard = _taken_all_the_same(there, name) if refusal.transient else None
        if heard is None:
            if refusal.details.get("unheard") is not True:  # else it may still come: `reap` looks for its name
                ledger.refused(name, str(refusal))
            raise
        job_id = heard
    ledger.submitted(name, job_id)
    with contextlib.suppress(SchedulerDown):  # where it is renamed, `reap` says of it that it may be ours
        if job := there.jobs([job_id]).get(job_id):
            sent = ledger.called(there, job, sent)
    return job_id, sent


def _taken_all_the_same(there: Scheduler, name: str) -> str | None:
    with contextlib.suppress(SchedulerDown):
        for job in there.named(name):
            return job.job_id
    return None
