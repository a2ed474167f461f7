"""Every error hpcagent raises on purpose.

    HpcAgentError
    ├── BadInput            something a person wrote is wrong: a file, a key, a value (exit code 2)
    │   └── NotThere        what was asked for by its name is not there, or not for the caller
    ├── NotPermitted        a role may not do that with a resource (exit code 2)
    ├── NoSite              an app was called with neither a site nor a Parsl configuration open
    ├── SiteFailed          the site could not start, or stopped working
    │   ├── BlockLost       a job of the site ended under the runs in it; says how (walltime, memory, node, …)
    │   ├── Refused         the scheduler did not take a job
    │   ├── SchedulerDown   the scheduler does not answer
    │   └── Unverified      cancelled jobs were not seen to be gone
    ├── StoreError          the run directory cannot be used
    │   ├── RunDirLocked    another coordinator has it
    │   ├── RunDirChanged   it belongs to another campaign
    │   │   └── InputsChanged   code or files have another content than its runs were computed with
    │   ├── RunDirGone      it was deleted, moved or written by somebody else under its coordinator
    │   ├── StoreFull       the disk, the quota or the permissions refuse a write
    │   ├── Stale           a context was written by somebody else since it was read
    │   ├── Busy            another process holds a context's lock for too long
    │   ├── Damaged         a line of a journal is not as it was written
    │   └── ContentChanged  what is stored is not what its checksum was taken of
    ├── SourceFailed        a database does not answer, or not by its protocol
    ├── FetchFailed         a file of a run did not come from the endpoint where it lies
    ├── BudgetSpent         a script asks for more runs than the campaign's budget has room for
    ├── Interrupted         Ctrl-C, SIGTERM or SIGHUP stopped the campaign
    │   └── AllocationEnded the job it ran inside of has no time left (exit code 75); resume goes on
    └── AppFailed           raised by an app on a worker; becomes a `Failure` in the Result

A run that fails is not an exception: it comes back as a `Result` whose `failure` says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from hpcagent.shown import plain

__all__ = [
    "AllocationEnded",
    "AppFailed",
    "BadInput",
    "BlockLost",
    "BudgetSpent",
    "Busy",
    "ContentChanged",
    "Damaged",
    "FetchFailed",
    "HpcAgentError",
    "InputsChanged",
    "Interrupted",
    "NoSite",
    "NotPermitted",
    "NotThere",
    "RunDirChanged",
    "RunDirGone",
    "RunDirLocked",
    "SiteFailed",
    "SourceFailed",
    "Stale",
    "StoreError",
    "StoreFull",
    "in_brief",
    "nearest",
]


# Of a message, log tails included; what was given may have been megabytes.
_LONGEST_MESSAGE = 20_000


class HpcAgentError(Exception):
    """Base of every error raised on purpose; the message is a full sentence.

    Keyword arguments become attributes, so a program can read what a person reads. Every subclass
    survives pickling (workers send errors back).

    Args:
        message: What is wrong, which value, what is allowed, where, what to do next.
        details: Values named in the message, kept as attributes.

    Example:
        >>> error = BadInput("skin=-1 angstrom is outside [0.3, 6].", value=-1)
        >>> error.value
        -1
    """

    exit_code = 1

    def __init__(self, message: str, **details: Any) -> None:
        # It ends in a terminal, a record or a page, and quotes what came from anywhere.
        message = plain(_shortened(message))
        super().__init__(message)
        self.message = message
        self.details = details

    def __getattr__(self, name: str) -> Any:
        details = self.__dict__.get("details", {})
        if name in details:
            return details[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.details)

    def __str__(self) -> str:
        return self.message


def _shortened(message: str) -> str:
    if len(message) <= _LONGEST_MESSAGE:
        return message
    half = _LONGEST_MESSAGE // 2
    return f"{message[:half]} ... ({len(message) - 2 * half} characters left out) ... {message[-half:]}"


def _rebuild(cls: type[HpcAgentError], message: str, details: dict[str, Any]) -> HpcAgentError:
    return cls(message, **details)


class BadInput(HpcAgentError, ValueError):
    """Something a person wrote is wrong. Nothing was started or changed."""

    exit_code = 2


class NotThere(BadInput):
    """What was asked for by its name or id is not there, or the caller may not see it. Nothing was changed."""


class NoSite(HpcAgentError):
    """An app was called, but neither a site of ours nor a Parsl configuration is open."""

    exit_code = 2


class NotPermitted(HpcAgentError):
    """The caller's role does not have the permission for this on a resource. Nothing was changed.

    Args:
        message: Who, as what, wanted what, and which roles may.
        action: What was wanted.
        resource: Name of the resource.
    """

    exit_code = 2


class SiteFailed(HpcAgentError):
    """The site could not start its workers, or lost them for good."""


class BlockLost(SiteFailed):
    """The job a run was in has ended, or its node is lost. Says nothing against the run itself.

    Args:
        message: What became of the job, in the scheduler's words.
        name: `BlockTimeout`, `BlockOutOfMemory`, `NodeFailed`, `BlockCancelled`, `BlockPreempted`,
            `BlockFailed` or `ManagerLost`.
        log_tail: Last lines of what the job printed.
    """

    def __init__(self, message: str, *, name: str = "BlockFailed", log_tail: str = "", **details: Any) -> None:
        super().__init__(message, name=name, log_tail=log_tail, **details)


class StoreError(HpcAgentError):
    """The run directory cannot be used as it is."""


class RunDirLocked(StoreError):
    """Another live coordinator is using the run directory."""


class RunDirChanged(StoreError):
    """The run directory was written by another campaign than the one given."""

    exit_code = 2


class InputsChanged(RunDirChanged):
    """The code or files that the runs were computed with have another content now; nothing was mixed.

    Args:
        message: Which, both digests, what was computed with the old one, and what to do.
        changed: A clause for each.
    """


class RunDirGone(StoreError):
    """The run directory was deleted, moved, replaced or written by somebody else while its coordinator ran."""


class StoreFull(StoreError):
    """A record could not be written: disk full, quota, or a read-only folder."""


class Stale(StoreError):
    """A context was written since it was read: nothing of this write was done.

    Args:
        message: Which, both versions, and what to do.
        version: The version that it has now.
    """

    def __init__(self, message: str, *, version: int = 0, **details: Any) -> None:
        super().__init__(message, version=version, **details)


class Busy(StoreError):
    """Another process holds the lock of a journal for longer than is waited for; nothing was written."""


class Damaged(StoreError):
    """A line of a journal is not as it was written; what comes after it is not believed.

    Args:
        message: The file, the line, what is wrong with it, and what to do.
        version: The last version before the damage.
    """

    def __init__(self, message: str, *, version: int = 0, **details: Any) -> None:
        super().__init__(message, version=version, **details)


class ContentChanged(StoreError):
    """What a resource holds is not what was written through it: somebody has changed or removed it by hand."""


class SourceFailed(HpcAgentError):
    """A database of materials or a language model does not answer, refuses, or answers what cannot be used.

    Args:
        message: Which, what it was asked, what came.
        source: Its address.
    """


class FetchFailed(HpcAgentError):
    """A file of a run did not come from the endpoint where it lies. What came of it is kept and gone on with.

    Args:
        message: Which, why, and what to do.
        name: `FileChanged`, or the endpoint's name of the error, where there is one.
    """

    def __init__(self, message: str, *, name: str = "", **details: Any) -> None:
        super().__init__(message, name=name, **details)


class BudgetSpent(HpcAgentError):
    """More runs were asked for than the campaign's budget has room for; none of them was begun.

    Args:
        message: How many, what is left, and how to give more.
        room: Runs that there is room for; None where node-hours are the limit.
    """


class Interrupted(HpcAgentError):
    """The campaign was stopped from outside (Ctrl-C, SIGTERM, SIGHUP); everything finished is kept."""

    exit_code = 130

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback: nothing is wrong."""
        return [self.message]


class AllocationEnded(Interrupted):
    """The campaign runs inside a job whose time is over; everything finished is kept, the next job goes on."""

    exit_code = 75


class AppFailed(HpcAgentError):
    """Raised by an app on a worker to say in a typed way why a run has no result.

    Args:
        message: A full sentence.
        kind: One of `infrastructure`, `simulation`, `contract`, `cancelled`.
        name: The typed name, e.g. `LostAtoms`.
        log_tail: Last lines of the program's output.
        repair: What would probably help, in words.
        reached: Metrics that hold although the run failed, e.g. the steps that were completed before.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "simulation",
        name: str = "AppFailed",
        log_tail: str = "",
        repair: str | None = None,
        **details: Any,
    ) -> None:
        if reached := details.pop("reached", None):
            details["reached"] = {metric: float(value) for metric, value in reached.items()}
        super().__init__(message, kind=kind, name=name, log_tail=log_tail, repair=repair, **details)


def in_brief(value: object, most: int = 80) -> str:
    """A value that was given, for a message: not longer than that, whatever it is.

    Example:
        >>> in_brief("a" * 500, 12), in_brief(10**5000)
        ("'aaaaaaaa...", 'a number of more than 4300 digits')
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more digits
        text = "a number of more than 4300 digits"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def nearest(word: str, known: Iterable[str]) -> str:
    """A clause naming the known word most like `word`, or all known words if none is close.

    Example:
        >>> nearest("timstep", ["timestep", "skin"])
        "did you mean 'timestep'?"
        >>> nearest("x", ["timestep", "skin"])
        'known: skin, timestep.'
    """
    known = sorted(known)
    close = get_close_matches(word, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(known)}." if known else "none are known."
