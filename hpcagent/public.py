"""The public names, for methods that hand on to a function of a room above: `result.report()` is `ha.report`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["public"]


def public(name: str) -> Any:  # whatever has this name
    """The public function or class of that name.

    Example:
        >>> public("max_runs").__name__
        'max_runs'
    """
    return getattr(import_module("hpcagent"), name)
