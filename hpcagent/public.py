"""The functions of rooms above, for methods that hand on to one: `result.report()` is `reports.report.report`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["public"]


def public(name: str) -> Any:  # whatever has this name
    """The public function or class of that name, of now or before.

    Example:
        >>> public("max_runs").__name__
        'max_runs'
    """
    hpcagent = import_module("hpcagent")
    before = hpcagent._BEFORE.get(name)
    return getattr(hpcagent, name) if before is None else getattr(import_module(before[0]), name)
