"""Names that have moved: they are found at their old places too, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["moved"]


def moved(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module from which names have moved.

    Args:
        module: Its name.
        names: Name -> module that has it now.

    Example:
        >>> look = moved("hpcagent.old", {"max_runs": "hpcagent.policies.stop"})
        >>> with warnings.catch_warnings(record=True) as told:
        ...     warnings.simplefilter("always")
        ...     look("max_runs").__name__, str(told[0].message)
        ('max_runs', 'hpcagent.old.max_runs is hpcagent.policies.stop.max_runs now')
    """

    def found(name: str) -> Any:  # whatever has this name
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is {names[name]}.{name} now", DeprecationWarning, stacklevel=2)
        return getattr(import_module(names[name]), name)

    return found
