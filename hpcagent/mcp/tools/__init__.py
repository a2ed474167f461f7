"""The tools, by what they are about."""

from __future__ import annotations

from hpcagent.mcp.tools import again, campaigns, enquiries, runs

__all__ = ["MODULES"]

MODULES = (runs, again, campaigns, enquiries)
