"""How a job of PBS stands and how it ended, by what qstat tells of it."""

from __future__ import annotations

import re

from hpcagent.sites.schedulers.answers import Job, State
from hpcagent.sites.schedulers.pbs_records import Record, parts, seconds, unix_time, whole

__all__ = ["job_of"]

_STATES: dict[str, State] = {
    "Q": "pending",
    "T": "pending",  # on its way to another queue
    "W": "pending",  # for its time, or for its files
    "M": "pending",  # moved to another server, where it may well run: not ended
    "H": "held",
    "S": "held",
    "U": "held",  # suspended, as S: has nodes, and does nothing
    "R": "running",
    "B": "running",  # an array, some of whose members have begun
    "E": "ending",
}
_ENDED = ("F", "X", "C")
_KILLED = {-26: "vmem", -27: "mem", -28: "cput", -29: "walltime"}  # by PBS: Exit_status
_NODE_FAILED = {
    -4: "its node was started again",
    -5: "its node was started again",
    -6: "its node was started again",
    -14: "one of its nodes failed",
    -20: "one of its nodes could not join it",
}
"""By Exit_status of a job: JOB_EXEC_INITABT, INITRST, INITRMG, RERUN_SIS_FAIL and JOINJOB."""
_EXCEEDED = re.compile(r"exceeded resource (\w+)")


def job_of(job_id: str, record: Record) -> Job:
    """How the job of a record stands."""
    letter = record.get("job_state", "")
    over = letter in _ENDED
    status = whole(record.get("Exit_status"))
    state, reason = _ending(record, status) if over else (_STATES.get(letter, "pending"), _waits_for(record))
    if not over and letter not in _STATES:
        reason = f"PBS shows the state {letter!r}. {reason}".strip()
    started = unix_time(record.get("stime"))
    walltime = seconds(record.get("Resource_List.walltime"))
    until = started + walltime if started is not None and walltime is not None else None
    return Job(
        job_id,
        state,
        name=record.get("Job_Name", ""),
        reason=reason,
        exit_code=_exit_code(state, status) if over else None,
        hosts=tuple(dict.fromkeys(part.partition("/")[0] for part in parts(record.get("exec_host", "")))),
        started_at=started,
        ends_at=_ended_at(record, started) if over else until,
        owner=record.get("Job_Owner", "").partition("@")[0],
        submitted_at=unix_time(record.get("ctime")),
    )


def _waits_for(record: Record) -> str:
    """PBS's comment; of a job that is held without one, why."""
    comment = record.get("comment", "")
    if record.get("job_state") != "H" or comment:
        return comment
    after = re.findall(r"(?:^|,)(?:after|on)\w*:([^,]+)", record.get("depend", ""))
    if after:
        ids = [job.partition("@")[0] for jobs in after for job in jobs.split(":")]
        return f"waits for job {', '.join(ids)}"
    holds = {"u": "by its user", "o": "by an operator", "s": "by the system"}
    whose = [words for letter, words in holds.items() if letter in record.get("Hold_Types", "")]
    return f"held {' and '.join(whose)}" if whose else ""


def _ended_at(record: Record, started: float | None) -> float | None:
    """When a job's end was told to the server, which is when it gave its nodes back; Unix time, in seconds.

    Not its start and its walltime: limits are enforced late, by 2 to 15 s and more.
    """
    obit = unix_time(record.get("obittime"))
    if obit is not None:
        return obit
    if (at := whole(record.get("history_timestamp"))) is not None:
        return float(at)
    used = seconds(record.get("resources_used.walltime"))
    return started + used if started is not None and used is not None else unix_time(record.get("mtime"))


def _ending(record: Record, status: int | None) -> tuple[State, str]:
    """How a job ended: by comment and substate, because its Exit_status may be 0 after a qdel."""
    comment = record.get("comment", "")
    if status in _NODE_FAILED:
        return "node_failed", f"{_NODE_FAILED[status]} (Exit_status {status}). {comment}".strip()
    exceeded = _EXCEEDED.search(comment)
    what = exceeded[1] if exceeded else _KILLED.get(status or 0, "")
    if what in ("walltime", "cput"):
        return "timeout", comment or f"its {what} was over"
    if what.endswith("mem") or re.search(r"\boom|out of memory|mem(ory)? limit", comment, re.IGNORECASE):
        return "out_of_memory", comment or f"it needed more {what} than it asked for"
    if "preempt" in comment.lower():
        return "preempted", comment
    if record.get("substate") == "91" or re.search(r"and terminated\b", comment):
        return "cancelled", comment
    if status is None:
        # e.g. one whose dependency can no longer come true
        return "failed", f"it ended without having run. {comment}".strip()
    if status == 0 and record.get("substate") != "93":
        return "completed", comment
    if status < 0:
        return "failed", f"PBS could not run it (Exit_status {status}). {comment}".strip()
    return "failed", comment


def _exit_code(state: State, status: int | None) -> int | None:
    if status is None or status < 0:
        return None  # negative: PBS's own, not the script's
    if status == 0 and state != "completed":
        return None  # seen after qdel, whatever the script did
    return 256 - status if status > 256 else status
