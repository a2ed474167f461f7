"""Whether what this process has imported as a module is still what the module's file says.

Python keeps no copy of the source that it has imported. So what the file says now is compiled (nothing of it is
run) and held against the functions, the constants and the defaults that the process has, and against the compiled
copy in `__pycache__` that the import has left. Lines and comments do not count: they change no number.

Imports only the standard library, for workers do.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import marshal
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

__all__ = ["edited_since_import"]

# The clock of a file server is not that of this machine: so much older a file has to be than the process.
_CLOCKS_S = 60.0


def edited_since_import(module: ModuleType, path: Path) -> str:
    """What tells that a module was imported from another content than its file has now; empty: nothing does.

    A file that is older than the process was not edited. What another loader has made of it (a test runner, an
    import hook) cannot be compared.

    Args:
        module: As the process has it.
        path: Its file.

    Raises:
        OSError: The file cannot be read.
    """
    spec = getattr(module, "__spec__", None)
    if spec is None or type(spec.loader) is not SourceFileLoader:
        return ""
    found = path.stat()
    if max(found.st_mtime, found.st_ctime) < _began_at() - _CLOCKS_S:
        return ""
    source = path.read_bytes()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's code; whoever imports it has seen them
            code = compile(source, str(path), "exec", dont_inherit=True)
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return "what is in it now is no Python"
    return (
        _other_function(module, path, code)
        or _other_constant(tree, vars(module))
        or _other_compiled(spec.cached, found, code)
    )


@functools.lru_cache(maxsize=1)
def _began_at() -> float:
    """When this process began, Unix time in seconds; before all files where the system does not tell."""
    try:
        # Field 22, clock ticks since boot (proc(5)); the program's name, in brackets, may have spaces.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return float("-inf")


# --- functions


def _other_function(module: ModuleType, path: Path, code: CodeType) -> str:
    there: dict[str, list[CodeType]] = {}
    for one in _codes(code):
        there.setdefault(one.co_qualname, []).append(one)
    for function in _functions(vars(module), module.__name__, set()):
        live = function.__code__
        # One that is not in the file any more was left by a reload; what is made at run time has no file.
        now = there.get(live.co_qualname, []) if live.co_filename == str(path) else []
        if now and not any(_same(live, one) for one in now):
            return f"its function {live.co_qualname} is another there"
    return ""


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


def _functions(names: Mapping[str, Any], module: str, seen: set[int]) -> Iterator[FunctionType]:
    """The functions in a module or class, methods included; what is decorated, as far as it tells its function."""
    for value in list(names.values()):
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type):
            if value.__module__ == module:
                yield from _functions(vars(value), module, seen)
            continue
        yield from _plain(value)


def _plain(value: Any) -> list[FunctionType]:
    if isinstance(value, property):
        return [f for f in (value.fget, value.fset, value.fdel) if isinstance(f, FunctionType)]
    for _ in range(100):  # decorators of decorators, but no circle
        inner = getattr(value, "__dict__", {}).get("__wrapped__")
        if inner is None and isinstance(value, (staticmethod, classmethod)):
            inner = value.__func__
        if inner is None and type(value).__module__ == "hpcagent.apps.base":
            inner = value.plain_function
        if inner is None:
            break
        value = inner
    return [value] if isinstance(value, FunctionType) else []


def _same(one: object, other: object) -> bool:
    """Whether two codes, or two constants of codes, do the same, whatever their lines."""
    if type(one) is not type(other):
        return False
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        return _of_code(one) == _of_code(other) and _same(one.co_consts, other.co_consts)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    # By its text a NaN is equal to itself, and 0.0 is not -0.0; a set has no order.
    return one == other if isinstance(one, frozenset) else repr(one) == repr(other)


def _of_code(code: CodeType) -> tuple[Any, ...]:
    names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    takes = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return (*names, *takes, code.co_code, code.co_exceptiontable)


# --- constants and defaults


def _other_constant(tree: ast.Module, live: Mapping[str, Any], where: str = "") -> str:
    """The first constant or default written in the file of which the process has another one.

    Only what is set once, and is of the same kind in the process: `cache = None` is there to be set.
    """
    return _other_in(tree.body, live, _set_once(tree), where)


def _other_in(body: list[ast.stmt], live: Mapping[str, Any], once: frozenset[str], where: str) -> str:
    for node in body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if len(targets) != 1 or not isinstance(targets[0], ast.Name) or targets[0].id not in once:
                continue
            name = targets[0].id
            if name in live and node.value is not None and _differs(node.value, live[name]):
                return f"{where}{name} is {live[name]!r} in this process and {ast.unparse(node.value)} there"
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in once:
            for function in _plain(live.get(node.name)):
                name = _other_default(node, function)
                if name:
                    return f"the default {name} of {where}{node.name} is another there"
        elif isinstance(node, ast.ClassDef) and node.name in once and isinstance(live.get(node.name), type):
            other = _other_in(node.body, vars(live[node.name]), once, f"{where}{node.name}.")
            if other:
                return other
    return ""


def _other_default(node: ast.FunctionDef | ast.AsyncFunctionDef, function: FunctionType) -> str:
    if function.__name__ != node.name:
        return ""
    given = node.args.defaults
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)][-len(given) :] if given else []
    has = function.__defaults__ or ()
    pairs = list(zip(names, given, has, strict=True)) if len(given) == len(has) else []
    by_name = function.__kwdefaults__ or {}
    for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        if default is not None and argument.arg in by_name:
            pairs.append((argument.arg, default, by_name[argument.arg]))
    return next((name for name, written, value in pairs if _differs(written, value)), "")


def _differs(written: ast.expr, value: object) -> bool:
    try:
        now = ast.literal_eval(written)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    numbers = (int, float, complex)
    if isinstance(now, numbers) and isinstance(value, numbers) and bool not in (type(now), type(value)):
        return type(now) is not type(value) or repr(now) != repr(value)
    return type(now) is type(value) and isinstance(now, (bool, str, bytes, tuple)) and repr(now) != repr(value)


def _set_once(tree: ast.Module) -> frozenset[str]:
    """Names that are set in one place of the file only, and that nobody else can have set."""
    times: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            times[node.id] += 1
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            times[node.name] += 1
        elif isinstance(node, ast.Global):
            times.update(dict.fromkeys(node.names, 2))
        elif isinstance(node, ast.alias):
            if node.name == "*":
                return frozenset()
            times[node.asname or node.name.partition(".")[0]] += 1
    return frozenset(name for name, n in times.items() if n == 1)


# --- the compiled copy


def _other_compiled(cached: str | None, found: os.stat_result, code: CodeType) -> str:
    """An import compares size and time and writes the copy anew: one of another time is of before an edit."""
    if cached is None or sys.dont_write_bytecode or not os.access(Path(cached).parent, os.W_OK):
        return ""
    try:
        data = Path(cached).read_bytes()
    except OSError:
        return ""
    # Magic number, flags (0: by time and size), time in seconds and size (PEP 552).
    flags, modified, size = (int.from_bytes(data[i : i + 4], "little") for i in (4, 8, 12))
    if data[:4] != importlib.util.MAGIC_NUMBER or flags:
        return ""
    if (modified, size) == (int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF):
        return ""
    try:
        before = marshal.loads(data[16:])
    except (ValueError, EOFError, TypeError):
        return ""
    return "" if _same(before, code) else "the copy that was compiled when it was imported is of another content"
