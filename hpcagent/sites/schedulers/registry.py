"""Which schedulers there are."""

from __future__ import annotations

from importlib import import_module

from hpcagent.errors import BadInput
from hpcagent.sites.schedulers.base import Scheduler

__all__ = ["scheduler"]

_KNOWN = {"slurm": "Slurm", "pbs": "Pbs"}


def scheduler(kind: str, *, timeout_s: float = 30.0) -> Scheduler:
    """Return the scheduler of that kind.

    Args:
        kind: `slurm` or `pbs`.
        timeout_s: How long one of its commands may take.

    Raises:
        BadInput: There is none of that kind.
    """
    if kind not in _KNOWN:
        raise BadInput(f"there is no scheduler {kind!r}; known are {' and '.join(_KNOWN)}.", value=kind)
    made: Scheduler = getattr(import_module(f"hpcagent.sites.schedulers.{kind}"), _KNOWN[kind])(
        timeout_s=timeout_s
    )
    return made
