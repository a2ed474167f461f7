"""A function of a script or notebook on its way to a worker, with what it uses of the script.

A worker cannot import the script, so the function travels by value. With it go the script's functions, classes and
constants that it uses, and the names of the modules it imported at its top.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from hpcagent.apps.described import Seen, described, plain_text, rest_of, sha256_of, source_of
from hpcagent.apps.uses import (
    SCRIPT,
    flat,
    functions_in,
    homes_of,
    imports_of,
    roots_of,
    submodules,
    unique,
    used_by,
)
from hpcagent.errors import AppFailed, BadInput
from hpcagent.moved import moved

__all__ = ["Carried", "carry", "code_digest", "module_roots", "source_digest"]


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """Equal to the same object only; keeps it alive, so that no other gets its address."""

    value: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class Carried:
    """A function that pickles by value, together with what it uses of its script."""

    def __init__(self, function: Callable[..., Any] | None, packed: bytes | None = None) -> None:
        self._function = function
        self._packed = packed

    def __reduce__(self) -> tuple[type[Carried], tuple[None, bytes]]:
        if self._packed is None:
            assert self._function is not None
            self._packed = _pack(self._function)
        return Carried, (None, self._packed)

    def function(self) -> Callable[..., Any]:
        """The function itself.

        Raises:
            AppFailed: The worker lacks a module that the function uses.
        """
        if self._function is None:
            assert self._packed is not None
            self._function = _unpack(self._packed)
        return self._function


def carry(function: Callable[..., Any]) -> Carried:
    """The function, ready to be sent; the same object as long as nothing it uses was defined anew."""
    return _carried(_Same(function), *(_Same(value) for value in used_by(function).values()))


@functools.lru_cache(maxsize=16)
def _carried(function: _Same, *uses: _Same) -> Carried:
    return Carried(function.value)  # type: ignore[arg-type]


def code_digest(function: Callable[..., Any], *, as_before: bool = False, with_paths: bool = False) -> str:
    """SHA-256 of the function's source and, for one of a script, of what it uses of the script.

    Args:
        function: The function.
        as_before: As records of form 0 have it: without decorators, base classes and the like.
        with_paths: Where the files of an app that it uses lie counts too, as in records of before 0.1.0.
    """
    if as_before or with_paths:
        return _digest_before(_Same(function), *_uses(function), with_paths=with_paths)
    return _digest(_Same(function), *_uses(function)).sha256


def _uses(function: Callable[..., Any]) -> Iterator[_Same]:
    return (_Same(value) for value in used_by(function).values())


def source_digest(function: Callable[..., Any]) -> str:
    """SHA-256 of the function's own source."""
    return sha256_of(source_of(function))


@dataclass(frozen=True, slots=True)
class _Digest:
    """Of a function: its digest, and the modules of what it was made from."""

    sha256: str
    roots: tuple[str, ...]


@functools.lru_cache(maxsize=64)
def _digest_before(function: _Same, *uses: _Same, with_paths: bool) -> str:
    made: Any = function.value
    return _joined(made, used_by(made), Seen({id(made): 0}, with_paths=with_paths, whole=False))


@functools.lru_cache(maxsize=64)
def _digest(function: _Same, *uses: _Same) -> _Digest:
    made: Any = function.value
    used = used_by(made)
    seen = Seen({id(made): 0})
    digest = _joined(made, used, seen)
    rest = rest_of(made, used, seen)
    if rest:
        digest = sha256_of(plain_text([digest, rest]))
    return _Digest(digest, tuple(dict.fromkeys(roots_of(seen.kept))))


def _joined(made: Callable[..., Any], used: dict[str, Any], seen: Seen) -> str:
    own = source_digest(made)
    if not used:
        return own
    return sha256_of(plain_text([own, [[name, described(used[name], seen)] for name in sorted(used)]]))


def module_roots(function: Callable[..., Any], *, as_before: bool = False) -> tuple[str, ...]:
    """Names of the modules that a function is from or, for one of a script, that it uses by itself.

    Args:
        function: The function.
        as_before: As records of form 0 have it.
    """
    roots = {function.__module__: None, str(function.__globals__.get("__name__")): None}
    used = used_by(function)
    if function.__module__ == SCRIPT:
        roots |= dict.fromkeys(submodules(function, used))
        seen: set[int] = set()
        for made in unique((function, *functions_in(tuple(used.values()), seen))):
            roots |= dict.fromkeys(imports_of(made.__code__))
        for value in flat(used.values()):
            roots |= dict.fromkeys(homes_of(value))
    if not as_before:
        roots |= dict.fromkeys(_digest(_Same(function), *_uses(function)).roots)
    return tuple(name for name in roots if name and name != SCRIPT)


def _pack(function: Callable[..., Any]) -> bytes:
    used = used_by(function)
    # Of a module that can be imported, workers have the globals themselves.
    by_value = function.__module__ == SCRIPT
    try:
        packed = _dumped(function, recurse=by_value)
    except Exception as error:
        raise _cannot_be_sent(function, used, error) from error
    return pickle.dumps((submodules(function, used), packed), protocol=pickle.HIGHEST_PROTOCOL)


def _dumped(value: Any, *, recurse: bool) -> bytes:
    import dill  # type: ignore[import-untyped]  # comes with Parsl

    buffer = io.BytesIO()
    pickler = dill.Pickler(buffer, recurse=recurse)
    # Dill would send all that is in a module outside of site-packages, e.g. of an editable installation.
    pickler.reducer_override = _module_by_name
    pickler.dump(value)
    return buffer.getvalue()


def _module_by_name(value: Any) -> Any:
    if isinstance(value, ModuleType) and value.__name__ != SCRIPT and sys.modules.get(value.__name__) is value:
        return importlib.import_module, (value.__name__,)
    return NotImplemented


def _cannot_be_sent(function: Callable[..., Any], used: dict[str, Any], error: Exception) -> BadInput:
    # The thing itself before the functions that use it.
    for name, value in sorted(used.items(), key=lambda item: any(True for _ in functions_in(item[1], set()))):
        try:
            _dumped(value, recurse=True)
        except Exception as why:
            return BadInput(
                f"the app's function {function.__qualname__}() uses {name!r} of its script, a "
                f"{type(value).__name__}, which cannot be sent to a worker ({why}); make it inside the function, "
                "or put the function into a module that workers can import.",
                value=name,
            )
    return BadInput(
        f"the app's function {function.__qualname__}() cannot be sent to a worker ({error}); put it into a module "
        "that workers can import.",
        value=function.__qualname__,
    )


@functools.lru_cache(maxsize=8)
def _unpack(packed: bytes) -> Callable[..., Any]:
    import dill

    modules, body = pickle.loads(packed)
    try:
        for name in modules:
            importlib.import_module(name)
        function: Callable[..., Any] = dill.loads(body)
    except ImportError as error:
        raise AppFailed(
            f"the worker cannot import what the app's function uses ({error}); install it where the workers run, "
            "or put the functions it needs into the script.",
            kind="infrastructure",
            name="AppNotImportable",
        ) from error
    return function


__getattr__ = moved(
    __name__,
    {"FORM": "hpcagent.apps.described"} | dict.fromkeys(("apps_in", "names_in"), "hpcagent.apps.uses"),
)
