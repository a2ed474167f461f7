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

__all__ = ["checked_later", "put_off"]

_OWN = ("parsl", "hpcagent")


def checked_later() -> contextlib.AbstractContextManager[None]:
    """What of Parsl is imported within has its functions checked from the first call by another package on."""
    return _in_place_of(_Typeguard, "typeguard")


def put_off(name: str) -> contextlib.AbstractContextManager[None]:
    """A package that is imported within is loaded when something of it is asked for. For a process that begins."""
    return _in_place_of(_StandIn, name)


@contextlib.contextmanager
def _in_place_of(kind: type[_StandIn], name: str) -> Iterator[None]:
    spec = importlib.util.find_spec(name) if name not in sys.modules else None
    if spec is None:
        yield
        return
    stand_in = kind(name)
    stand_in.__spec__ = spec  # for another thread that meets it
    stand_in.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[name] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]


class _StandIn(ModuleType):
    """What `import` finds meanwhile, and whoever has found it keeps; all that it has is the package's."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._package(), name)

    def _package(self) -> Any:
        if isinstance(sys.modules.get(self.__name__), _StandIn):
            sys.modules.pop(self.__name__, None)
        return importlib.import_module(self.__name__)


class _Typeguard(_StandIn):
    def typechecked(self, target: Any = None, **options: Any) -> Any:
        own = str(getattr(target, "__module__", "")).partition(".")[0] in _OWN
        if own and not options and isinstance(target, FunctionType):
            return self._when_called(target)
        if own and not options and isinstance(target, type) and not _has_properties(target):
            return self._with_methods(target)
        return self._package().typechecked(target, **options)

    def _with_methods(self, made: type) -> type:
        """A class whose own methods are checked."""
        for name, method in list(vars(made).items()):
            own = getattr(method, "__func__", method)
            if isinstance(own, FunctionType) and own.__qualname__ == f"{made.__qualname__}.{name}":
                checked = self._when_called(own)
                setattr(made, name, checked if own is method else type(method)(checked))
        return made

    def _when_called(self, function: FunctionType) -> Callable[..., Any]:
        checked: list[Callable[..., Any]] = []

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            if _caller() in _OWN:
                return function(*args, **named)
            if not checked:
                checked.append(self._package().typechecked(function))
            return checked[0](*args, **named)

        # Parsl prints its objects by the arguments of their __init__, and looks no deeper than this.
        call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return call


def _has_properties(made: type) -> bool:
    return any(isinstance(one, property) for one in vars(made).values())


def _caller() -> str:
    """The package of who has called the function that asks."""
    try:
        return str(sys._getframe(2).f_globals.get("__name__", "")).partition(".")[0]
    except ValueError:  # nobody of Python: a thread that begins with it
        return ""
