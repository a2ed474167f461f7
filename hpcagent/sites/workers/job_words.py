"""What a scheduler says of a job, judged and in words: why it waits, how it ended."""

from __future__ import annotations

import re
import time
from typing import Literal

from hpcagent.sites.schedulers.answers import Job
from hpcagent.sites.workers.blocks import CLOCKS_S

__all__ = ["about_end", "about_waiting", "was_past_its_end", "why_waiting"]

_NEVER = re.compile(
    r"Can Never Run|BadConstraints|Partition(TimeLimit|NodeLimit|Config)|Invalid(Account|QOS)"
    r"|DependencyNeverSatisfied|(QOS|Assoc)(Max\w*PerJob|Min)"
)
"""In the reason of a job that waits: it will not run as it was submitted (PBS's comment, Slurm's words)."""
_ORDINARY = re.compile(r"$|None$|Priority|Resources|Not Running: (Insufficient amount|Job would|Not enough)")
"""Reasons for which every job waits at some time."""


def was_past_its_end(job: Job, lost_s: float) -> bool:
    """Whether workers went, `lost_s` ago, as the walltime of their job was over, though it is shown running.

    Example:
        >>> was_past_its_end(Job("7", "running", ends_at=time.time() - 9.0), lost_s=2.0)
        True
        >>> was_past_its_end(Job("7", "ending", ends_at=time.time() - 9.0), lost_s=2.0)
        False
    """
    now = time.time()
    # One that is suspended has time left; of one that is ending Slurm tells when it was ended, by whomever.
    if job.ends_at is None or job.state != "running":
        return False
    return job.ends_at < now and now - lost_s > job.ends_at - CLOCKS_S


def why_waiting(job: Job) -> Literal["never", "unusual", "ordinary"]:
    """What kind of reason a job waits for.

    Example:
        >>> [why_waiting(Job("7", "pending", reason=reason)) for reason in ("Priority", "BadConstraints")]
        ['ordinary', 'never']
    """
    if _NEVER.search(job.reason):
        return "never"
    return "ordinary" if job.state == "pending" and _ORDINARY.match(job.reason) else "unusual"


def about_waiting(job: Job, kind: str, seconds: float) -> str:
    """That a job waits, or can never run, in words."""
    reason = f" ({job.reason})" if job.reason else ""
    if kind == "never":
        return f"job {job.job_id} can never run, says the scheduler{reason}"
    return f"job {job.job_id} {'is held' if job.state == 'held' else 'waits'} since {seconds:.0f} s{reason}"


def about_end(job: Job) -> str:
    """A job's end in words.

    Example:
        >>> about_end(Job("12", "timeout", reason="TimeLimit"))
        'job 12 ended: timeout (TimeLimit)'
    """
    words = [w for w in (job.reason, "" if job.exit_code is None else f"exit code {job.exit_code}") if w]
    what = job.state.replace("_", " ")
    return f"job {job.job_id} ended: {what}" + (f" ({', '.join(words)})" if words else "")
