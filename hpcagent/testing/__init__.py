"""Contract suites for people who write their own policy, app, engine, stop condition, site or scheduler.

They need pytest, and are imported when they are named.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_WHERE = {
    "AppContract": "app_suite",
    "EngineContract": "engine_suite",
    "PolicyContract": "policy_suite",
    "SchedulerContract": "scheduler_suite",
    "SiteContract": "site_suite",
    "StopContract": "stop_suite",
}

__all__ = [
    "AppContract",
    "EngineContract",
    "PolicyContract",
    "SchedulerContract",
    "SiteContract",
    "StopContract",
]

if TYPE_CHECKING:
    from hpcagent.testing.app_suite import AppContract as AppContract
    from hpcagent.testing.engine_suite import EngineContract as EngineContract
    from hpcagent.testing.policy_suite import PolicyContract as PolicyContract
    from hpcagent.testing.scheduler_suite import SchedulerContract as SchedulerContract
    from hpcagent.testing.site_suite import SiteContract as SiteContract
    from hpcagent.testing.stop_suite import StopContract as StopContract


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(import_module(f"hpcagent.testing.{_WHERE[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'hpcagent.testing' has no attribute {name!r}")
