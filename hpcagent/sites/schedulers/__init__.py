"""Batch schedulers by their own commands: what was submitted, how it stands, how it ended. No Parsl here."""

from hpcagent.sites.schedulers.answers import Allocation, Job, NodeShape, Places, Queue
from hpcagent.sites.schedulers.base import Scheduler, SchedulerDown, Unverified
from hpcagent.sites.schedulers.registry import scheduler
from hpcagent.sites.schedulers.submission import Refused, Sent

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
