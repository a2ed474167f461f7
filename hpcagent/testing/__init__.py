"""Contract suites for people who write their own policy, app or site. Needs pytest."""

from __future__ import annotations

from hpcagent.testing.policy_suite import PolicyContract
from hpcagent.testing.scheduler_suite import SchedulerContract

__all__ = ["PolicyContract", "SchedulerContract"]
