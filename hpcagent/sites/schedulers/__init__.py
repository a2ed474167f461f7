"""Batch schedulers by their own commands: what was submitted, how it stands, how it ended. No Parsl here."""

from hpcagent.sites.schedulers.base import (
    Allocation,
    Job,
    NodeShape,
    Places,
    Queue,
    Refused,
    Scheduler,
    SchedulerDown,
    Sent,
    Unverified,
)
from hpcagent.sites.schedulers.registry import scheduler

__all__ = [
    "Allocation",
    "Job",
    "NodeShape",
    "Places",
    "Queue",
    "Refused",
    "Scheduler",
    "SchedulerDown",
    "Sent",
    "Unverified",
    "scheduler",
]
