"""A function of a script or notebook on its way to a worker, with what it uses of the script.

A worker cannot import the script, so the function travels by value. With it go the script's functions, classes and
constants that it uses, and the names of the modules it imported at its top.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import importlib
import inspect
import io
import json
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from hpcagent.errors import AppFailed, BadInput

__all__ = ["Carried", "apps_in", "carry", "code_digest", "module_roots", "source_digest"]

_SCRIPT = "__main__"
_APPS = "hpcagent.apps.base"
# Containers are looked through for functions (a table of kernels); long ones are data.
_LONG = 100


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
    return _carried(_Same(function), *(_Same(value) for value in _used(function).values()))


@functools.lru_cache(maxsize=16)
def _carried(function: _Same, *uses: _Same) -> Carried:
    return Carried(function.value)  # type: ignore[arg-type]


def code_digest(function: Callable[..., Any], *, with_paths: bool = False) -> str:
    """SHA-256 of the function's source and, for one of a script, of what it uses of the script.

    Args:
        function: The function.
        with_paths: Where the files of an app that it uses lie counts too, as in records of before 0.1.0.
    """
    return _digest(_Same(function), *(_Same(value) for value in _used(function).values()), with_paths=with_paths)


def source_digest(function: Callable[..., Any]) -> str:
    """SHA-256 of the function's own source."""
    return _sha256(_source_of(function))


@functools.lru_cache(maxsize=64)
def _digest(function: _Same, *uses: _Same, with_paths: bool = False) -> str:
    made: Any = function.value
    own = source_digest(made)
    used = _used(made)
    if not used:
        return own
    seen = _Seen({id(made): 0})
    seen.with_paths = with_paths
    return _sha256(_text([own, [[name, _described(used[name], seen)] for name in sorted(used)]]))


# --- what a function uses


def _used(function: Callable[..., Any]) -> dict[str, Any]:
    """Name -> value of the globals and outer variables that a function of a script uses, also through others."""
    found: dict[str, Any] = {}
    if function.__module__ == _SCRIPT:
        _note(function, found, {id(function)})
    return found


def _note(function: Any, found: dict[str, Any], seen: set[int]) -> None:
    variables = [
        (name, function.__globals__[name]) for name in _names(function.__code__) if name in function.__globals__
    ]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            variables.append((f"{function.__qualname__}.{name}", cell.cell_contents))
        except ValueError:  # not set yet
            continue
    for name, value in variables:
        if name.startswith("__") and name.endswith("__"):
            continue
        found[name] = value
        for inner in _functions_in(value, seen):
            _note(inner, found, seen)


def _functions_in(value: Any, seen: set[int]) -> Iterator[Any]:
    """Functions of the script in a value: itself, methods of a class, items of a short container."""
    if isinstance(value, (str, bytes, int, float, ModuleType)) or id(value) in seen:
        return
    seen.add(id(value))
    plain = _wrapped(value)
    if plain is not None:
        yield from _functions_in(plain, seen)
    elif isinstance(value, FunctionType):
        if value.__module__ == _SCRIPT:
            yield value
    elif isinstance(value, type):
        if value.__module__ == _SCRIPT:
            for member in (*value.__bases__, *vars(value).values()):
                yield from _functions_in(member, seen)
    elif isinstance(value, functools.partial):
        yield from _functions_in((value.func, *value.args, *value.keywords.values()), seen)
    elif isinstance(value, property):
        yield from _functions_in((value.fget, value.fset), seen)
    elif isinstance(value, (list, tuple, set, frozenset, dict)) and len(value) <= _LONG:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _functions_in(item, seen)
    elif type(value).__module__ == _SCRIPT:  # an object of one of the script's own classes
        yield from _functions_in(type(value), seen)


def _wrapped(value: Any) -> Any:
    """The function in an app, a cached function, a static or class method; None for anything else."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, (FunctionType, type)):
        return None
    if type(value).__module__ == _APPS:
        return value.plain_function
    inner = getattr(value, "__dict__", {}).get("__wrapped__")
    return inner if isinstance(inner, FunctionType) else None


@functools.lru_cache(maxsize=256)
def _names(code: CodeType) -> tuple[str, ...]:
    """Names that the code looks up outside of itself, nested functions included."""
    names = {i.argval: None for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names |= dict.fromkeys(_names(inner))
    return tuple(names)


def module_roots(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the modules that a function is from or, for one of a script, that it uses by itself."""
    roots = {function.__module__: None, str(function.__globals__.get("__name__")): None}
    used = _used(function)
    if function.__module__ == _SCRIPT:
        roots |= dict.fromkeys(_modules(function, used))
        seen: set[int] = set()
        for made in _unique((function, *_functions_in(tuple(used.values()), seen))):
            roots |= dict.fromkeys(_imports(made.__code__))
        for value in _flat(used.values()):
            roots |= dict.fromkeys(_homes(value))
    return tuple(name for name in roots if name and name != _SCRIPT)


def _unique(values: Iterable[Any]) -> list[Any]:
    return list({id(value): value for value in values}.values())


def _homes(value: Any) -> Iterator[str]:
    """The modules that a value of a script is from."""
    if isinstance(value, ModuleType):
        yield value.__name__
        return
    plain = _wrapped(value)
    for one in (value, plain, *(type(value).__mro__ if not isinstance(value, type) else value.__mro__)):
        module = getattr(one, "__module__", None)
        if isinstance(module, str) and module != "builtins":
            yield module


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    """The values, and those in short containers and partial functions among them."""
    for value in values:
        if isinstance(value, (list, tuple, set, frozenset, dict)):
            if len(value) <= _LONG:
                yield from _flat(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, functools.partial):
            yield from _flat((value.func, *value.args, *value.keywords.values()))
        else:
            yield value


@functools.lru_cache(maxsize=256)
def _imports(code: CodeType) -> tuple[str, ...]:
    """Modules that the code imports itself, nested functions included; a name of a package may be one, too."""
    found: dict[str, None] = {}
    last = ""
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            last = step.argval
            found[last] = None
        elif step.opname == "IMPORT_FROM":
            found[f"{last}.{step.argval}"] = None
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= dict.fromkeys(_imports(inner))
    return tuple(found)


def apps_in(function: Callable[..., Any]) -> dict[str, Any]:
    """Name -> app, of the apps that a function of an importable module finds by name, also through others there.

    Those of hpcagent as they come along are left out: they have a version.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    waiting = [function]
    while waiting:
        made = waiting.pop()
        if id(made) in seen:
            continue
        seen.add(id(made))
        for value in _flat(_named_in(made)):
            inner = value
            if type(value).__module__ == _APPS:
                found[value.name] = value
                inner = value.plain_function
            if isinstance(inner, FunctionType) and inner.__module__.partition(".")[0] in _tops(function):
                waiting.append(inner)
    return found


def _tops(function: Callable[..., Any]) -> tuple[str, ...]:
    return (function.__module__.partition(".")[0],)


def _named_in(function: Callable[..., Any]) -> Iterator[Any]:
    """Values of the names that a function looks up: its globals, outer variables, and attributes of modules."""
    words = _words(function.__code__)
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            if not value.__name__.startswith("hpcagent"):
                yield from (vars(value)[word] for word in words if word in vars(value))
        elif value is not None:
            yield value
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not set yet
            yield cell.cell_contents


# --- its digest


class _Seen(dict[int, int]):
    """Address -> number of what was described already; and whether the places of files count."""

    with_paths = False


def _described(value: Any, seen: _Seen) -> Any:
    """A value as plain data that is the same in every process: code by its source, modules by their name."""
    if isinstance(value, (bytes, bytearray)):
        return [type(value).__name__, hashlib.sha256(value).hexdigest()]
    if type(value) in (type(None), bool, int, float, complex, str):
        return repr(value)
    if isinstance(value, ModuleType):
        return ["module", value.__name__]
    if id(value) in seen:
        return ["seen", seen[id(value)]]
    seen[id(value)] = len(seen)
    plain = _wrapped(value)
    if plain is not None:
        return [type(value).__name__, _described(plain, seen), *_of_app(value, seen)]
    if isinstance(value, (FunctionType, BuiltinFunctionType, type)):
        # Of the code: `getsource` of a function that was decorated gives the inner one.
        source = _source_of(getattr(value, "__code__", value)) if value.__module__ == _SCRIPT else ""
        return [f"{value.__module__}.{value.__qualname__}", source]
    if isinstance(value, (list, tuple)) and type(value).__module__ == "builtins":
        return [type(value).__name__, [_described(item, seen) for item in value]]
    if isinstance(value, (set, frozenset)):
        return [type(value).__name__, sorted(_text(_described(item, seen)) for item in value)]
    if isinstance(value, dict) and type(value) is dict:
        return ["dict", [[_described(k, seen), _described(v, seen)] for k, v in value.items()]]
    try:
        parts = value.__reduce_ex__(4)
    except Exception:
        return [type(value).__qualname__]  # cannot be sent either
    if isinstance(parts, str):
        return [type(value).__qualname__, parts]
    # Function, arguments, state, and iterators over items: what pickle builds the object from.
    return [_described(list(p) if isinstance(p, Iterator) else p, seen) for p in parts]


def _of_app(value: Any, seen: _Seen) -> list[Any]:
    """What an app is beside its function; where its files lie does not decide what they say."""
    if type(value).__module__ != _APPS:
        return []
    left_out = () if seen.with_paths else ("paths",)
    return [value.contract.version, {k: v for k, v in value.settings.items() if k not in left_out}]


def _source_of(made: Any) -> str:
    try:
        return inspect.getsource(made)
    except (OSError, TypeError):
        if isinstance(made, type):
            members = {n: _source_of(m) for n, m in vars(made).items() if isinstance(m, FunctionType)}
            return _text(members)
        code = getattr(made, "__code__", made)
        return _code_text(code) if isinstance(code, CodeType) else ""


def _code_text(code: CodeType) -> str:
    if not any(isinstance(c, CodeType) for c in code.co_consts):
        return repr((code.co_code, code.co_consts))
    # The repr of code has its address, which is another in every process.
    return repr((code.co_code, [_code_text(c) if isinstance(c, CodeType) else c for c in code.co_consts]))


def _text(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# --- on the wire


def _pack(function: Callable[..., Any]) -> bytes:
    used = _used(function)
    # Of a module that can be imported, workers have the globals themselves.
    by_value = function.__module__ == _SCRIPT
    try:
        packed = _dumped(function, recurse=by_value)
    except Exception as error:
        raise _cannot_be_sent(function, used, error) from error
    return pickle.dumps((_modules(function, used), packed), protocol=pickle.HIGHEST_PROTOCOL)


def _dumped(value: Any, *, recurse: bool) -> bytes:
    import dill  # type: ignore[import-untyped]  # comes with Parsl

    buffer = io.BytesIO()
    pickler = dill.Pickler(buffer, recurse=recurse)
    # Dill would send all that is in a module outside of site-packages, e.g. of an editable installation.
    pickler.reducer_override = _module_by_name
    pickler.dump(value)
    return buffer.getvalue()


def _module_by_name(value: Any) -> Any:
    if isinstance(value, ModuleType) and value.__name__ != _SCRIPT and sys.modules.get(value.__name__) is value:
        return importlib.import_module, (value.__name__,)
    return NotImplemented


def _modules(function: Callable[..., Any], used: dict[str, Any]) -> list[str]:
    """Modules to import beside those the globals hold: `import a.b` gives the name `a`, but needs `a.b`."""
    tops = tuple(f"{value.__name__}." for value in used.values() if isinstance(value, ModuleType))
    if not tops:
        return []
    seen: set[int] = set()
    functions = [inner for value in (function, *used.values()) for inner in _functions_in(value, seen)]
    words = {word for made in functions for word in _words(made.__code__)}
    wanted = []
    for name in list(sys.modules):
        top = next((t for t in tops if name.startswith(t)), None)
        if top is not None and words.issuperset(name.removeprefix(top).split(".")):
            wanted.append(name)
    return wanted


def _words(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_words(c) for c in code.co_consts if isinstance(c, CodeType)))


def _cannot_be_sent(function: Callable[..., Any], used: dict[str, Any], error: Exception) -> BadInput:
    # The thing itself before the functions that use it.
    for name, value in sorted(used.items(), key=lambda item: any(True for _ in _functions_in(item[1], set()))):
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
