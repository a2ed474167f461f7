"""Queues of PBS, and the limits that they and the server hold against a user's jobs."""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Callable, Iterator, Mapping

from hpcagent.owners import user_name
from hpcagent.sites.schedulers.answers import Places, Queue
from hpcagent.sites.schedulers.pbs_records import Record, gigabytes, seconds, whole

__all__ = ["places_in", "queue_of"]

_LIMIT = re.compile(r'\[([ugpo]):"?([^="\]]+)"?=(\d+)\]')
_QUEUED, _WAITING, _RUN = "max_queued", "queued_jobs_threshold", "max_run"
_OLD_LIMITS = {"max_queuable": (_QUEUED, "o"), "max_running": (_RUN, "o"), "max_user_run": (_RUN, "u")}
_NO_PROJECT = "_pbs_project_default"


def queue_of(name: str, record: Record, default: str | None, nodes: list[Record]) -> Queue:
    """The queue of a record, with what its nodes have in common."""
    ours = [n for n in nodes if n.get("queue", name) == name and not n.get("resources_available.Qlist")]
    cores, memory, gpus = (_only(ours, f"resources_available.{what}") for what in ("ncpus", "mem", "ngpus"))
    return Queue(
        name,
        default=name == default,
        open=record.get("enabled") == "True" and record.get("started") == "True",
        min_nodes=whole(record.get("resources_min.nodect")),
        max_nodes=whole(record.get("resources_max.nodect")),
        max_walltime_s=seconds(record.get("resources_max.walltime")),
        cores=whole(cores),
        memory_gb=gigabytes(memory),
        gpus=whole(gpus) if ours else None,
        nodes=len(ours) or None,
    )


def _only(nodes: list[Record], key: str) -> str | None:
    """The value that all of them have, if they have one."""
    values = {node.get(key) for node in nodes}
    return values.pop() if len(values) == 1 else None


def places_in(
    queues: Mapping[str, Record],
    server: Record,
    queue: str | None,
    project: str | None,
    *,
    selected: Callable[[list[str]], int],
) -> Places:
    """How many jobs of this user a queue takes, by its limits and those of the server.

    Args:
        queues: All that there are.
        server: With its limits.
        queue: Its name; None: the one where jobs go that name none.
        project: Of the jobs; None: PBS's default.
        selected: Runs a qselect and counts the jobs that it prints.
    """
    queue = queue or server.get("default_queue", "")
    names = {queue, *_routed(queues.get(queue, {}))}
    found = Places()
    for record, of, where in [
        *((queues[n], n, f"queue {n}") for n in sorted(names & queues.keys())),
        (server, None, "server"),
    ]:
        for limit, kind, most, words in _limits_in(record, project or _NO_PROJECT):
            used = _count(limit, kind, record, of, project, selected)
            told = f"{words} of {where}"
            if limit == _RUN:
                found = found.under(running=most, words=told)
            else:
                # Jobs that wait are not all of those that a threshold leaves room for.
                found = found.under(most=most if limit == _QUEUED else None, free=most - used, words=told)
    return found


def _count(
    limit: str,
    kind: str,
    record: Record,
    queue: str | None,
    project: str | None,
    selected: Callable[[list[str]], int],
) -> int:
    """How many jobs a limit counts now."""
    if limit == _RUN:  # more of them wait, and are taken all the same
        return 0
    if kind == "o":
        waiting = re.search(r"Queued:(\d+)", record.get("state_count", ""))
        return int(waiting[1]) if limit == _WAITING and waiting else whole(record.get("total_jobs")) or 0
    words = ["qselect", "-u", user_name(os.getuid())]
    words += ["-q", queue] if queue else []
    words += ["-s", "Q"] if limit == _WAITING else []
    words += ["-P", project] if kind == "p" and project else []
    return selected(words)


def _routed(queue: Record) -> list[str]:
    """Where a routing queue sends its jobs, if that is one queue: the limits there are theirs."""
    to = [name.strip() for name in queue.get("route_destinations", "").split(",") if name.strip()]
    return to if len(to) == 1 else []


def _limits_in(record: Record, project: str) -> Iterator[tuple[str, str, int, str]]:
    """The limits of a queue or of the server that hold for this user's jobs: which, its kind, how many, its words.

    Example:
        >>> list(_limits_in({"max_run": "[u:PBS_GENERIC=2],[o:PBS_ALL=9]"}, ""))
        [('max_run', 'u', 2, 'max_run = [u:PBS_GENERIC=2]'), ('max_run', 'o', 9, 'max_run = [o:PBS_ALL=9]')]
    """
    whose = {"u": user_name(os.getuid()), "g": _group(), "p": project, "o": "PBS_ALL"}
    for limit in (_QUEUED, _WAITING, _RUN):
        told = {(kind, who): int(most) for kind, who, most in _LIMIT.findall(record.get(limit, ""))}
        for kind, who in whose.items():
            name = who if (kind, who) in told else "PBS_GENERIC"  # one of one's own comes first
            if (kind, name) in told:
                yield limit, kind, told[kind, name], f"{limit} = [{kind}:{name}={told[kind, name]}]"
    for old, (limit, kind) in _OLD_LIMITS.items():
        if (most := whole(record.get(old))) is not None:
            yield limit, kind, most, f"{old} = {most}"


def _group() -> str:
    try:  # the first group of the login: this process may be in another now
        return grp.getgrgid(pwd.getpwuid(os.getuid()).pw_gid).gr_name
    except KeyError:
        return ""
