"""The tools, by what they are about."""

from __future__ import annotations

from hpcagent.mcp.tools import (
    admin,
    again,
    campaigns,
    catalysts,
    enquiries,
    events,
    registry,
    runs,
    simulations,
    slurm,
)

__all__ = ["MODULES"]

MODULES = (runs, again, campaigns, enquiries, simulations, slurm, catalysts, events, registry, admin)
