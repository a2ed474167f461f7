"""The tools, by what they are about."""

from __future__ import annotations

from hpcagent.mcp.tools import admin, catalysts, events, runs, simulations, slurm

__all__ = ["MODULES"]

MODULES = (runs, simulations, slurm, catalysts, events, admin)
