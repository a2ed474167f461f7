"""Which schedulers there are: hpcagent's own, and those that packages offer (`hpcagent.schedulers`)."""

from __future__ import annotations

from hpcagent.errors import BadInput, nearest
from hpcagent.offered import load, offered
from hpcagent.sites.schedulers.base import Scheduler

__all__ = ["BUILT_IN", "is_scheduler", "scheduler", "scheduler_class", "scheduler_kinds"]

BUILT_IN = {
    "slurm": "hpcagent.sites.schedulers.slurm:Slurm",
    "pbs": "hpcagent.sites.schedulers.pbs:Pbs",
    "flux": "hpcagent.sites.schedulers.flux:Flux",
}


def scheduler_kinds() -> tuple[str, ...]:
    """Return the kinds, hpcagent's own first.

    Example:
        >>> scheduler_kinds()[:2]
        ('slurm', 'pbs')
    """
    return tuple(dict.fromkeys((*BUILT_IN, *offered("schedulers"))))


def is_scheduler(kind: str) -> bool:
    """Whether there is a scheduler of that kind; packages are asked for those that are not hpcagent's own."""
    return kind in BUILT_IN or kind in offered("schedulers")


def scheduler_class(kind: str) -> type[Scheduler]:
    """Return the class of that kind.

    Raises:
        BadInput: There is none, or it cannot be loaded.

    Example:
        >>> scheduler_class("slurm").title
        'Slurm'
    """
    if not isinstance(kind, str) or not is_scheduler(kind):
        raise BadInput(f"there is no scheduler {kind!r}; {nearest(str(kind), scheduler_kinds())}", value=kind)
    found = load("schedulers", kind, BUILT_IN)
    if not (isinstance(found, type) and issubclass(found, Scheduler) and found.name == kind):
        raise BadInput(
            f"scheduler {kind!r}: {found!r} is no subclass of hpcagent.sites.schedulers.Scheduler with "
            f"name = {kind!r}.",
            value=kind,
        )
    return found


def scheduler(kind: str, *, timeout_s: float = 30.0) -> Scheduler:
    """Return the scheduler of that kind.

    Args:
        kind: E.g. `slurm`.
        timeout_s: How long one of its commands may take.

    Raises:
        BadInput: There is none of that kind.
    """
    return scheduler_class(kind)(timeout_s=timeout_s)
