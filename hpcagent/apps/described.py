"""A function and what it uses as plain data, of which the digest is made: the same in every process."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING
from enum import EnumMeta
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MemberDescriptorType, ModuleType
from typing import Any

from hpcagent.apps.uses import APPS, LONG, SCRIPT, global_names, wrapped

__all__ = ["FORM", "Seen", "described", "plain_text", "rest_of", "sha256_of", "source_of"]

# How much of the code counts; records of form 0 lack what `rest_of` finds.
FORM = 1

# What classes get from `abc`, `typing` and named tuples, and where the methods that dataclasses make are from.
_MADE = frozenset({"_abc_impl", "_is_protocol", "_is_runtime_protocol"})
_MADE_OF_TUPLES = frozenset({"_fields", "_field_defaults", "_make", "_replace", "_asdict"})
_MAKERS = frozenset({"<string>", dataclasses.__file__})


class Seen(dict[int, int]):
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


def described(value: Any, seen: Seen) -> Any:
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
    plain = wrapped(value)
    if plain is not None:
        return [type(value).__name__, described(plain, seen), *_of_app(value, seen)]
    if isinstance(value, (FunctionType, BuiltinFunctionType, type)):
        # Of the code: `getsource` of a function that was decorated gives the inner one.
        source = source_of(getattr(value, "__code__", value)) if value.__module__ == SCRIPT else ""
        return [f"{value.__module__}.{value.__qualname__}", source]
    if isinstance(value, (list, tuple)) and type(value).__module__ == "builtins":
        return [type(value).__name__, [described(item, seen) for item in value]]
    if isinstance(value, (set, frozenset)):
        return [type(value).__name__, sorted(plain_text(described(item, seen)) for item in value)]
    if isinstance(value, dict) and type(value) is dict:
        return ["dict", [[described(k, seen), described(v, seen)] for k, v in value.items()]]
    inside = _inside(value) if seen.whole else None
    if inside is not None:
        return [type(value).__qualname__, [described(part, seen) for part in inside]]
    try:
        parts = value.__reduce_ex__(4)
    except Exception:
        if seen.whole and type(value).__module__ == SCRIPT:  # not sent either, but a thread has it
            return [described(part, seen) for part in (type(value), getattr(value, "__dict__", None))]
        return [type(value).__qualname__]
    if isinstance(parts, str):
        return [type(value).__qualname__, parts]
    # Function, arguments, state, and iterators over items: what pickle builds the object from.
    return [described(list(p) if isinstance(p, Iterator) else p, seen) for p in parts]


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


def _of_app(value: Any, seen: Seen) -> list[Any]:
    """What an app is beside its function; where its files lie does not decide what they say."""
    if type(value).__module__ != APPS:
        return []
    left_out = () if seen.with_paths else ("paths",)
    return [value.contract.version, {k: v for k, v in value.settings.items() if k not in left_out}]


def source_of(made: Any) -> str:
    try:
        return inspect.getsource(made)
    except (OSError, TypeError):
        if isinstance(made, type):
            members = {n: source_of(m) for n, m in vars(made).items() if isinstance(m, FunctionType)}
            return plain_text(members)
        code = getattr(made, "__code__", made)
        return _code_text(code) if isinstance(code, CodeType) else ""


def _code_text(code: CodeType) -> str:
    if not any(isinstance(c, CodeType) for c in code.co_consts):
        return repr((code.co_code, code.co_consts))
    # The repr of code has its address, which is another in every process.
    return repr((code.co_code, [_code_text(c) if isinstance(c, CodeType) else c for c in code.co_consts]))


def plain_text(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def rest_of(function: Callable[..., Any], used: dict[str, Any], seen: Seen) -> list[Any]:
    """What else decides what a function does: decorators, bases, members made elsewhere, defaults, closures.

    Empty where all of it is written in the sources that are described already.
    """
    rest = []
    plain: Any = inspect.unwrap(function)
    if getattr(plain, "__code__", None) is not function.__code__:
        rest.append(["decorated", source_of(function.__code__), described(plain, seen)])
    seen.kept.insert(0, function)
    done = 0
    while done < len(seen.kept):
        value = seen.kept[done]
        done += 1
        if isinstance(value, type):
            parts = _parts_of_class(value, used) if value.__module__ == SCRIPT else iter(())
        elif isinstance(value, FunctionType):
            parts = _parts_of_function(value, used)
        else:
            continue
        rest += [[f"{value.__qualname__}: {name}", described(part, seen)] for name, part in parts]
    return rest


def _is_plain(value: Any) -> bool:
    return type(value) in (type(None), bool, int, float, complex, str, bytes)


def _parts_of_function(made: FunctionType, used: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a function reads beside its arguments, unless it is among what is used, or written in its source."""
    cells = zip(made.__code__.co_freevars, made.__closure__ or (), strict=True)
    ours = made.__module__ == SCRIPT
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # not set yet
            value = cell.cell_contents
            known = ours and _is_in(used, f"{made.__qualname__}.{name}", value)
            if not known and (ours or _of_script(value)):
                yield f"outer {name}", value
    if not ours:
        return  # its module counts as a whole
    for name in global_names(made):
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
    if isinstance(value, (FunctionType, type)) or wrapped(value) is not None:
        return True
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        items = value.values() if isinstance(value, dict) else value
        return len(value) <= LONG and all(_of_script(item) for item in items)
    return _is_plain(value) or isinstance(value, functools.partial) or type(value).__module__ == SCRIPT


def _parts_of_class(made: type, used: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Bases, metaclass and members of a class of the script, unless they are written in its source."""
    yield from (("base", base) for base in made.__bases__ if base.__module__ == SCRIPT)
    if type(made).__module__ == SCRIPT:
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
        if not is_special or any(one.__module__ == SCRIPT for one in functions):
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
        [node] = ast.parse(textwrap.dedent(source_of(made.__code__))).body
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
