"""Names of what may be asked of the service: light, for clients, which do not import what answers."""

from __future__ import annotations

__all__ = ["CHANGES", "READS", "SERVED"]

SERVED = 3
"""Exit code where another process serves the workspace."""

CHANGES = frozenset(
    {
        "accept_agent",
        "acknowledge",
        "add_agent",
        "add_app",
        "assign_tool",
        "bayesian_optimize",
        "cancel",
        "catalyst",
        "decide",
        "decide_tool",
        "expire",
        "extend",
        "invoke",
        "modified",
        "register_tool",
        "remove_agent",
        "remove_app",
        "remove_tool",
        "repeat",
        "run",
        "simulation_run",
        "start",
        "stop",
        "subscribe",
        "tell",
        "unsubscribe",
    }
)
"""Calls that change something: a request has a key, by which it is known when it is sent again."""

READS = frozenset(
    {
        "answer",
        "apps",
        "approvals",
        "artifacts",
        "ask_later",
        "campaign",
        "campaign_run",
        "campaign_runs",
        "catalyst_state",
        "changes",
        "costs",
        "counters",
        "describe",
        "estimate",
        "estimate_campaign",
        "estimate_catalyst",
        "estimate_extension",
        "estimate_repeat",
        "fetch",
        "get_answer",
        "get_tool",
        "invocation",
        "jobs",
        "list",
        "list_agents",
        "list_tools",
        "notifications",
        "packed_tool",
        "recommend",
        "rules",
        "simulation_get_results",
        "status",
        "wait",
        "whoami",
    }
)
"""Calls that change nothing, or the same thing however often they are sent (`ask_later`); they have no key."""
