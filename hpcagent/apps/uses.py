"""What a function of a script uses of the script, and the modules that it needs."""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from hpcagent.apps.modules import FROM_PATH, placed

__all__ = [
    "APPS",
    "LONG",
    "SCRIPT",
    "apps_in",
    "flat",
    "functions_in",
    "global_names",
    "homes_of",
    "imports_of",
    "names_in",
    "roots_of",
    "submodules",
    "unique",
    "used_by",
    "wrapped",
]

SCRIPT = "__main__"
APPS = "hpcagent.apps.base"
# Containers are looked through for functions (a table of kernels); long ones are data.
LONG = 100


def used_by(function: Callable[..., Any]) -> dict[str, Any]:
    """Name -> value of the globals and outer variables that a function of a script uses, also through others."""
    found: dict[str, Any] = {}
    if function.__module__ == SCRIPT:
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
        for inner in functions_in(value, seen):
            _note(inner, found, seen)


def functions_in(value: Any, seen: set[int]) -> Iterator[Any]:
    """Functions of the script in a value: itself, methods of a class, items of a short container."""
    if isinstance(value, (str, bytes, int, float, ModuleType)) or id(value) in seen:
        return
    seen.add(id(value))
    plain = wrapped(value)
    if plain is not None:
        yield from functions_in(plain, seen)
    elif isinstance(value, FunctionType):
        if value.__module__ == SCRIPT:
            yield value
    elif isinstance(value, type):
        if value.__module__ == SCRIPT:
            for member in (*value.__bases__, *vars(value).values()):
                yield from functions_in(member, seen)
    elif isinstance(value, functools.partial):
        yield from functions_in((value.func, *value.args, *value.keywords.values()), seen)
    elif isinstance(value, property):
        yield from functions_in((value.fget, value.fset), seen)
    elif isinstance(value, (list, tuple, set, frozenset, dict)) and len(value) <= LONG:
        for item in value.values() if isinstance(value, dict) else value:
            yield from functions_in(item, seen)
    elif type(value).__module__ == SCRIPT:  # an object of one of the script's own classes
        yield from functions_in(type(value), seen)


def wrapped(value: Any) -> Any:
    """The function in an app, a cached function, a static or class method; None for anything else."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, (FunctionType, type)):
        return None
    if type(value).__module__ == APPS:
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


def roots_of(values: Iterable[Any]) -> Iterator[str]:
    """The modules that values of a script are from, and those that its functions among them import."""
    for value in values:
        if isinstance(value, ModuleType):
            file = getattr(value, "__file__", None)
            if file and sys.modules.get(value.__name__) is not value:
                yield placed(value.__name__, file)  # loaded from a path, under a name of its own
        elif isinstance(value, FunctionType) and value.__module__ == SCRIPT:
            yield str(value.__globals__.get("__name__"))
            yield from imports_of(value.__code__)
            yield from _said_modules(value.__code__)
        if isinstance(value, (FunctionType, type, ModuleType)) or type(value).__module__ != "builtins":
            yield from homes_of(value)


def _said_modules(code: CodeType) -> Iterator[str]:
    """Modules that the code imports by a name, or loads from a path, that is written in it."""
    words = _words(code)
    texts = _texts(code)
    if words & {"import_module", "__import__"}:
        yield from (text for text in texts if all(part.isidentifier() for part in text.split(".")))
    if words & FROM_PATH:
        yield from (placed(text, text) for text in texts if text.endswith(".py"))


def _texts(code: CodeType) -> dict[str, None]:
    """The strings in the code, nested functions included."""
    found = dict.fromkeys(c for c in code.co_consts if isinstance(c, str))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= _texts(inner)
    return found


def unique(values: Iterable[Any]) -> list[Any]:
    return list({id(value): value for value in values}.values())


def homes_of(value: Any) -> Iterator[str]:
    """The modules that a value of a script is from."""
    if isinstance(value, ModuleType):
        yield value.__name__
        return
    plain = wrapped(value)
    for one in (value, plain, *(type(value).__mro__ if not isinstance(value, type) else value.__mro__)):
        module = getattr(one, "__module__", None)
        if isinstance(module, str) and module != "builtins":
            yield module


def flat(values: Iterable[Any]) -> Iterator[Any]:
    """The values, and those in short containers and partial functions among them."""
    for value in values:
        if isinstance(value, (list, tuple, set, frozenset, dict)):
            if len(value) <= LONG:
                yield from flat(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, functools.partial):
            yield from flat((value.func, *value.args, *value.keywords.values()))
        else:
            yield value


@functools.lru_cache(maxsize=256)
def imports_of(code: CodeType) -> tuple[str, ...]:
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
            found |= dict.fromkeys(imports_of(inner))
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
        for value in flat(_named_in(made)):
            inner = value
            if type(value).__module__ == APPS:
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


def global_names(made: FunctionType) -> Iterator[str]:
    """Names of globals that a function looks up, also those it names in a string for `globals()`."""
    names = _names(made.__code__)
    yield from names
    if {"globals", "vars"}.intersection(names):
        yield from (text for text in _texts(made.__code__) if text not in names)


def names_in(function: FunctionType) -> tuple[str, ...]:
    """Names of globals that a function looks up, nested functions included."""
    return tuple(dict.fromkeys(global_names(function)))


def submodules(function: Callable[..., Any], used: dict[str, Any]) -> list[str]:
    """Modules to import beside those the globals hold: `import a.b` gives the name `a`, but needs `a.b`."""
    tops = tuple(f"{value.__name__}." for value in used.values() if isinstance(value, ModuleType))
    if not tops:
        return []
    seen: set[int] = set()
    functions = [inner for value in (function, *used.values()) for inner in functions_in(value, seen)]
    words = {word for made in functions for word in _words(made.__code__)}
    wanted = []
    for name in list(sys.modules):
        top = next((t for t in tops if name.startswith(t)), None)
        if top is not None and words.issuperset(name.removeprefix(top).split(".")):
            wanted.append(name)
    return wanted


def _words(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_words(c) for c in code.co_consts if isinstance(c, CodeType)))
