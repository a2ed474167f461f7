"""Shared contexts of agents: versioned documents with a memory of calls, events with subscribers, and triggers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_WHERE = {
    "Change": "hpcagent.contexts.calls",
    "again": "hpcagent.contexts.calls",
    "new_call": "hpcagent.contexts.calls",
    "recalled": "hpcagent.contexts.calls",
    "Contexts": "hpcagent.contexts.contexts",
    "refer": "hpcagent.contexts.contexts",
    "Events": "hpcagent.contexts.events",
    "Trigger": "hpcagent.contexts.triggers",
    "Triggers": "hpcagent.contexts.triggers",
    "load_triggers": "hpcagent.contexts.triggers",
    "add_job": "hpcagent.contexts.document",
    "change_job": "hpcagent.contexts.document",
    "drop": "hpcagent.contexts.document",
    "give_result": "hpcagent.contexts.document",
    "put": "hpcagent.contexts.document",
    "put_agent": "hpcagent.contexts.document",
    "record_call": "hpcagent.contexts.document",
}

__all__ = sorted(_WHERE)

if TYPE_CHECKING:
    from hpcagent.contexts.calls import Change as Change
    from hpcagent.contexts.calls import again as again
    from hpcagent.contexts.calls import new_call as new_call
    from hpcagent.contexts.calls import recalled as recalled
    from hpcagent.contexts.contexts import Contexts as Contexts
    from hpcagent.contexts.contexts import refer as refer
    from hpcagent.contexts.document import add_job as add_job
    from hpcagent.contexts.document import change_job as change_job
    from hpcagent.contexts.document import drop as drop
    from hpcagent.contexts.document import give_result as give_result
    from hpcagent.contexts.document import put as put
    from hpcagent.contexts.document import put_agent as put_agent
    from hpcagent.contexts.document import record_call as record_call
    from hpcagent.contexts.events import Events as Events
    from hpcagent.contexts.triggers import Trigger as Trigger
    from hpcagent.contexts.triggers import Triggers as Triggers
    from hpcagent.contexts.triggers import load_triggers as load_triggers


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'hpcagent.contexts' has no attribute {name!r}")
