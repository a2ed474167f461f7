"""Modules of others that are imported when they are first used: numpy, which reading a record does not need."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, TypeGuard

__all__ = ["Later", "is_numpy"]


class Later:
    """A module that is imported when something of it is first asked for.

    What was asked for stays here, so that the next use costs what an attribute of a module costs.

    Args:
        name: The module's.

    Example:
        >>> maths = Later("cmath")
        >>> maths.sqrt(4.0)
        (2+0j)
    """

    def __init__(self, name: str) -> None:
        self.__dict__["__name__"] = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # what doctest and inspect ask of every object
            raise AttributeError(attribute)
        found = getattr(import_module(self.__dict__["__name__"]), attribute)
        self.__dict__[attribute] = found
        return found


def is_numpy(value: object, *kinds: str) -> TypeGuard[Any]:
    """Whether a value is of one of these types of numpy; while that is not imported, none is.

    Example:
        >>> is_numpy(1.0, "floating", "integer")
        False
    """
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, tuple(getattr(numpy, kind) for kind in kinds))
