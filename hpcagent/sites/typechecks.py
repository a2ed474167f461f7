"""Parsl checks the types of what its functions are given; here the checks are made ready when they are needed.

typeguard parses and compiles each function anew for its checks: 0.4 s of the 0.6 s that Parsl takes to load. What
Parsl and hpcagent call themselves has no need of them (mypy has seen it); whoever else calls is checked as before.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["checked_later"]

_OWN = ("parsl", "hpcagent")


@contextlib.contextmanager
def checked_later() -> Iterator[None]:
    """What is imported within has its functions checked from the first call by another package on."""
    if "typeguard" in sys.modules or importlib.util.find_spec("typeguard") is None:
        yield
        return
    stand_in = _StandIn("typeguard")
    sys.modules["typeguard"] = stand_in
    try:
        yield
    finally:
        if sys.modules.get("typeguard") is stand_in:
            del sys.modules["typeguard"]


class _StandIn(ModuleType):
    """What `import typeguard` finds meanwhile; all but `typechecked` is from typeguard itself."""

    @staticmethod
    def typechecked(target: Any = None, **options: Any) -> Any:
        if isinstance(target, FunctionType) and not options:
            return _when_called(target)
        if (
            isinstance(target, type)
            and not options
            and not any(isinstance(v, property) for v in vars(target).values())
        ):
            return _with_methods(target)
        return _typeguard().typechecked(target, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_typeguard(), name)


def _typeguard() -> Any:
    if isinstance(sys.modules.get("typeguard"), _StandIn):
        del sys.modules["typeguard"]
    return importlib.import_module("typeguard")


def _with_methods(made: type) -> type:
    """A class whose own methods are checked."""
    for name, method in list(vars(made).items()):
        own = getattr(method, "__func__", method)
        if isinstance(own, FunctionType) and own.__qualname__ == f"{made.__qualname__}.{name}":
            checked = _when_called(own)
            setattr(made, name, checked if own is method else type(method)(checked))
    return made


def _when_called(function: FunctionType) -> Callable[..., Any]:
    checked: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        if caller.partition(".")[0] in _OWN:
            return function(*args, **named)
        if not checked:
            checked.append(_typeguard().typechecked(function))
        return checked[0](*args, **named)

    # Parsl prints its objects by the arguments of their __init__, and looks no deeper than this.
    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return call
