"""A submission: what was sent, which id came back, and how a refusal is told and waited out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcagent.errors import SiteFailed

__all__ = ["LONGEST_PAUSE_S", "Refused", "Sent", "only_id", "pause_s"]

LONGEST_PAUSE_S = 120.0
"""Between two tries of a submission for which there is no room yet."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A job as it was submitted: what is known of an id is held against it, for ids come again.

    They do after the highest one, and when a scheduler has lost its database.

    Attributes:
        name: The job's name, unique.
        at: Not submitted before; Unix time, in seconds.
        called: What the scheduler called it when it was first seen, where a filter of the site renames jobs.
    """

    name: str
    at: float = 0.0
    called: str = ""


class Refused(SiteFailed):
    """The scheduler did not take a job. The message ends with its own words.

    Attributes:
        transient: The same submission may be taken later (a limit of jobs per user, a scheduler restarting).
        unclear: Whether it passes is not known from the words: only some tries are worth it. A refusal that is
            transient and not unclear is waited out.
        unheard: The job may have been taken all the same; None where the scheduler's class does not say.
    """

    def __init__(
        self,
        message: str,
        *,
        transient: bool = False,
        unclear: bool = False,
        unheard: bool | None = None,
        log_tail: str = "",
    ) -> None:
        super().__init__(message, transient=transient, unclear=unclear, unheard=unheard, log_tail=log_tail)


def only_id(found: Sequence[str], taken: str) -> str:
    """Return the job id among the lines that a submission has printed.

    A site's wrapper may print numbers of its own (what is left of an account). Another number taken for the id
    would leave the job without anybody who ends it, so that then the scheduler is asked for it by its name.

    Args:
        found: The lines that look like an id, each once; at least one.
        taken: What took the job, for the message.

    Raises:
        Refused: There are several; `unheard` is true.
    """
    if len(found) == 1:
        return found[0]
    raise Refused(
        f"{taken}, and which of the lines that it printed is the job's id is not known: {', '.join(found)} (does "
        "a wrapper print a number of its own?). The job is looked for by its name.",
        transient=True,
        unheard=True,
    )


def pause_s(tries: int) -> float:
    """Seconds until a submission that was refused so often in a row is tried again.

    Example:
        >>> [pause_s(tries) for tries in (1, 2, 3, 7, 8, 5000)]
        [1.0, 2.0, 4.0, 64.0, 120.0, 120.0]
    """
    return min(LONGEST_PAUSE_S, 2.0 ** min(tries - 1, 10))
