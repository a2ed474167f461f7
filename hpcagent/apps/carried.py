"""A function of a script or notebook on its way to a worker, with what it uses of the script.

A worker cannot import the script, so the function travels by value. With it go the script's functions, classes and
constants that it uses, and the names of the modules it imported at its top.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import dis
import functools
import hashlib
import importlib
import inspect
import io
import json
import pickle
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass
from enum import EnumMeta
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MemberDescriptorType, ModuleType
from typing import Any

from hpcagent.apps.modules import FROM_PATH, placed
from hpcagent.errors import AppFailed, BadInput

__all__ = [
    "FORM",
    "Carried",
    "apps_in",
    "carry",
    "code_digest",
    "module_roots",
    "names_in",
    "source_digest",
    "submodules",
]

# How much of the code counts; records of form 0 lack what `_rest` finds.
FORM = 1

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
    return (_Same(value) for value in _used(function).values())


def source_digest(function: Callable[..., Any]) -> str:
    """SHA-256 of the function's own source."""
    return _sha256(_source_of(function))


@dataclass(frozen=True, slots=True)
class _Digest:
    """Of a function: its digest, and the modules of what it was made from."""

    sha256: str
    roots: tuple[str, ...]


@functools.lru_cache(maxsize=64)
def _digest_before(function: _Same, *uses: _Same, with_paths: bool) -> str:
    made: Any = function.value
    return _joined(made, _used(made), _Seen({id(made): 0}, with_paths=with_paths, whole=False))


@functools.lru_cache(maxsize=64)
def _digest(function: _Same, *uses: _Same) -> _Digest:
    made: Any = function.value
    used = _used(made)
    seen = _Seen({id(made): 0})
    digest = _joined(made, used, seen)
    rest = _rest(made, used, seen)
    if rest:
        digest = _sha256(_text([digest, rest]))
    return _Digest(digest, tuple(dict.fromkeys(_roots_of(seen.kept))))


def _joined(made: Callable[..., Any], used: dict[str, Any], seen: _Seen) -> str:
    own = source_digest(made)
    if not used:
        return own
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


def module_roots(function: Callable[..., Any], *, as_before: bool = False) -> tuple[str, ...]:
    """Names of the modules that a function is from or, for one of a script, that it uses by itself.

    Args:
        function: The function.
        as_before: As records of form 0 have it.
    """
    roots = {function.__module__: None, str(function.__globals__.get("__name__")): None}
    used = _used(function)
    if function.__module__ == _SCRIPT:
        roots |= dict.fromkeys(_modules(function, used))
        seen: set[int] = set()
        for made in _unique((function, *_functions_in(tuple(used.values()), seen))):
            roots |= dict.fromkeys(_imports(made.__code__))
        for value in _flat(used.values()):
            roots |= dict.fromkeys(_homes(value))
    if not as_before:
        roots |= dict.fromkeys(_digest(_Same(function), *_uses(function)).roots)
    return tuple(name for name in roots if name and name != _SCRIPT)


def _roots_of(values: Iterable[Any]) -> Iterator[str]:
    """The modules that values of a script are from, and those that its functions among them import."""
    for value in values:
        if isinstance(value, ModuleType):
            file = getattr(value, "__file__", None)
            if file and sys.modules.get(value.__name__) is not value:
                yield placed(value.__name__, file)  # loaded from a path, under a name of its own
        elif isinstance(value, FunctionType) and value.__module__ == _SCRIPT:
            yield str(value.__globals__.get("__name__"))
            yield from _imports(value.__code__)
            yield from _said_modules(value.__code__)
        if isinstance(value, (FunctionType, type, ModuleType)) or type(value).__module__ != "builtins":
            yield from _homes(value)


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
    """Address -> number of what was described already.

    Attributes:
        kept: What was described, in order; kept alive, so that nothing else gets its address. Form 0 did not.
        whole: Not as in form 0.
        with_paths: Whether the places of files count.
    """

    def __init__(self, known: dict[int, int], *, with_paths: bool = False, whole: bool = True) -> None:
        super().__init__(known)
        self.kept: list[Any] = []
        self.whole = whole
        self.with_paths = with_paths

    def keep(self, value: Any) -> None:
        if self.whole:
            self.kept.append(value)


def _described(value: Any, seen: _Seen) -> Any:
    """A value as plain data that is the same in every process: code by its source, modules by their name."""
    if isinstance(value, (bytes, bytearray)):
        return [type(value).__name__, hashlib.sha256(value).hexdigest()]
    if type(value) in (type(None), bool, int, float, complex, str):
        return repr(value)
    if isinstance(value, ModuleType):
        seen.keep(value)
        return ["module", value.__name__]
    if id(value) in seen:
        return ["seen", seen[id(value)]]
    seen[id(value)] = len(seen)
    seen.keep(value)
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
    inside = _inside(value) if seen.whole else None
    if inside is not None:
        return [type(value).__qualname__, [_described(part, seen) for part in inside]]
    try:
        parts = value.__reduce_ex__(4)
    except Exception:
        if seen.whole and type(value).__module__ == _SCRIPT:  # not sent either, but a thread has it
            return [_described(part, seen) for part in (type(value), getattr(value, "__dict__", None))]
        return [type(value).__qualname__]
    if isinstance(parts, str):
        return [type(value).__qualname__, parts]
    # Function, arguments, state, and iterators over items: what pickle builds the object from.
    return [_described(list(p) if isinstance(p, Iterator) else p, seen) for p in parts]


def _inside(value: Any) -> tuple[Any, ...] | None:
    """What is in something of a class, or of a module of the language, that pickle knows no parts of."""
    if isinstance(value, property):
        return value.fget, value.fset, value.fdel
    if isinstance(value, functools.cached_property):
        return (value.func,)
    if isinstance(value, functools.partialmethod):
        return value.func, value.args, value.keywords
    if isinstance(value, functools.singledispatchmethod):
        return (value.func, value.dispatcher)
    if isinstance(value, MappingProxyType):
        return (dict(value),)
    return None


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


# --- what its own source and the values of its names leave out


def _rest(function: Callable[..., Any], used: dict[str, Any], seen: _Seen) -> list[Any]:
    """What else decides what a function does: decorators, bases, members made elsewhere, defaults, closures.

    Empty where all of it is written in the sources that are described already.
    """
    rest = []
    plain: Any = inspect.unwrap(function)
    if getattr(plain, "__code__", None) is not function.__code__:
        rest.append(["decorated", _source_of(function.__code__), _described(plain, seen)])
    seen.kept.insert(0, function)
    done = 0
    while done < len(seen.kept):
        value = seen.kept[done]
        done += 1
        if isinstance(value, type):
            parts = _parts_of_class(value, used) if value.__module__ == _SCRIPT else iter(())
        elif isinstance(value, FunctionType):
            parts = _parts_of_function(value, used)
        else:
            continue
        rest += [[f"{value.__qualname__}: {name}", _described(part, seen)] for name, part in parts]
    return rest


def _is_plain(value: Any) -> bool:
    return type(value) in (type(None), bool, int, float, complex, str, bytes)


def _parts_of_function(made: FunctionType, used: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a function reads beside its arguments, unless it is among what is used, or written in its source."""
    cells = zip(made.__code__.co_freevars, made.__closure__ or (), strict=True)
    ours = made.__module__ == _SCRIPT
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # not set yet
            value = cell.cell_contents
            known = ours and _is_in(used, f"{made.__qualname__}.{name}", value)
            if not known and (ours or _of_script(value)):
                yield f"outer {name}", value
    if not ours:
        return  # its module counts as a whole
    for name in _global_names(made):
        if name in made.__globals__ and not (name.startswith("__") and name.endswith("__")):
            value = made.__globals__[name]
            if not _is_in(used, name, value):
                yield f"global {name}", value
    defaults = [*(made.__defaults__ or ()), *(made.__kwdefaults__ or {}).values()]
    if defaults and not _written(defaults, _default_nodes(made)):
        yield "defaults", defaults
    for name, value in vars(made).items():
        # What is wrapped is a variable of the wrapper, as a rule.
        of_wrapper = name == "__wrapped__" and any(_is_in(used, key, value) for key in used)
        if not of_wrapper and name != "__isabstractmethod__":
            yield f"attribute {name}", value


def _is_in(used: dict[str, Any], name: str, value: Any) -> bool:
    return name in used and used[name] is value


def _of_script(value: Any) -> bool:
    """Whether a value that a function of a module holds may be of the script: code, its objects, plain data."""
    if isinstance(value, (FunctionType, type)) or _wrapped(value) is not None:
        return True
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        items = value.values() if isinstance(value, dict) else value
        return len(value) <= _LONG and all(_of_script(item) for item in items)
    return _is_plain(value) or isinstance(value, functools.partial) or type(value).__module__ == _SCRIPT


def _global_names(made: FunctionType) -> Iterator[str]:
    """Names of globals that a function looks up, also those it names in a string for `globals()`."""
    names = _names(made.__code__)
    yield from names
    if {"globals", "vars"}.intersection(names):
        yield from (text for text in _texts(made.__code__) if text not in names)


def _parts_of_class(made: type, used: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Bases, metaclass and members of a class of the script, unless they are written in its source."""
    yield from (("base", base) for base in made.__bases__ if base.__module__ == _SCRIPT)
    if type(made).__module__ == _SCRIPT:
        yield "metaclass", type(made)
    text, first = _lines_of(made)
    nodes = _assigned(text)
    for name, value in _members(made):
        functions = _functions_of(value)
        if functions and all(_is_own(one.__code__, name, nodes, text, first) for one in functions):
            for one in functions:
                yield from ((f"{name} {part}", inner) for part, inner in _parts_of_function(one, used))
        elif not (name in nodes and _written([value], [nodes[name]])):
            yield name, value


def _functions_of(member: Any) -> list[FunctionType]:
    """The plain functions that a member of a class is: a method, a property; empty for anything else."""
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    made = _inside(member) if isinstance(member, (property, functools.cached_property)) else (member,)
    functions = [one for one in made or () if one is not None]
    return functions if all(isinstance(one, FunctionType) for one in functions) else []


def _is_own(code: CodeType, name: str, nodes: dict[str, Any], text: str, first: int) -> bool:
    """Whether a function is written in the source of its class, under this name."""
    if code.co_name != name and name not in nodes:
        return False
    own, _ = _lines_of(code)
    return not text or (first <= code.co_firstlineno < first + text.count("\n") + 1 and own in text)


# What classes get from `abc`, `typing` and named tuples, and where the methods that dataclasses make are from.
_MADE = frozenset({"_abc_impl", "_is_protocol", "_is_runtime_protocol"})
_MADE_OF_TUPLES = frozenset({"_fields", "_field_defaults", "_make", "_replace", "_asdict"})
_MAKERS = frozenset({"<string>", dataclasses.__file__})


def _members(made: type) -> Iterator[tuple[str, Any]]:
    """The members of a class, and the defaults of its fields, without what the language has made."""
    has_text = bool(_lines_of(made)[0])
    is_tuple = issubclass(made, tuple) and "_field_defaults" in vars(made)
    for name, value in vars(made).items():
        if name in _MADE or isinstance(value, MemberDescriptorType):
            continue
        if is_tuple and (name in _MADE_OF_TUPLES or name in vars(made)["_fields"]):
            continue
        if isinstance(made, EnumMeta) and (name.startswith("_") or name in made.__members__):
            continue
        functions = _functions_of(value)
        if any(has_text and one.__code__.co_filename in _MAKERS for one in functions):
            continue
        is_special = name.startswith("__") and name.endswith("__")
        if not is_special or any(one.__module__ == _SCRIPT for one in functions):
            yield name, value
    if isinstance(made, EnumMeta):
        yield from ((name, made.__members__[name].value) for name in made.__members__)
    if is_tuple:
        yield from vars(made)["_field_defaults"].items()
    for name, field in vars(made).get("__dataclass_fields__", {}).items():
        # Of a class with slots the default is not among the members.
        if field.default is not MISSING and isinstance(vars(made).get(name, ()), (tuple, MemberDescriptorType)):
            yield name, field.default
        if field.default_factory is not MISSING and field.default_factory not in (list, dict, set, tuple):
            yield f"{name}()", field.default_factory


def _lines_of(made: Any) -> tuple[str, int]:
    """The source and its first line; empty where there is none."""
    try:
        lines, first = inspect.getsourcelines(made)
    except (OSError, TypeError):
        return "", 0
    return "".join(lines), first


def _assigned(text: str) -> dict[str, ast.expr | None]:
    """Name -> what a class assigns to it in its body."""
    try:
        [body] = ast.parse(textwrap.dedent(text)).body
    except (SyntaxError, ValueError):
        return {}
    found: dict[str, ast.expr | None] = {}
    for node in getattr(body, "body", ()):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {t.id: node.value for t in targets if isinstance(t, ast.Name)}
    return found


def _default_nodes(made: FunctionType) -> list[ast.expr | None]:
    try:
        [node] = ast.parse(textwrap.dedent(_source_of(made.__code__))).body
    except (SyntaxError, ValueError):
        return []
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    return [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]


def _written(values: list[Any], nodes: list[ast.expr | None]) -> bool:
    """Whether the values are what literals in the source say."""
    try:
        return repr(values) == repr([ast.literal_eval(node or "") for node in nodes])
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False


def names_in(function: FunctionType) -> tuple[str, ...]:
    """Names of globals that a function looks up, nested functions included."""
    return tuple(dict.fromkeys(_global_names(function)))


def submodules(function: Callable[..., Any], used: dict[str, Any]) -> list[str]:
    """Modules to import beside those among the values used: `import a.b` gives the name `a`, but needs `a.b`."""
    return _modules(function, used)


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
