"""Where a program's output has a metric: for `ha.executable(metrics={...})`."""

from __future__ import annotations

from hpcagent.apps.executable.record import from_array, from_column, from_json, from_regex

__all__ = ["from_array", "from_column", "from_json", "from_regex"]
