"""A function of a script or notebook as JSON: its source, and the values of what it uses.

Where pickled code needs the same version of Python, source does not. Only the statements of the script that define
what is used are sent. What has no source and is no plain value is refused by its name.
"""

from __future__ import annotations

import ast
import base64
import copyreg
import datetime
import decimal
import enum
import fractions
import functools
import io
import linecache
import math
import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from hpcagent.apps.rebuilt import FUTURE, codes_at, first_line
from hpcagent.apps.uses import names_in, submodules
from hpcagent.errors import BadInput

__all__ = ["described"]

_SCRIPT = "__main__"
_CELLS = ("<ipython-input", "ipykernel_", "<stdin>", "<python-input")
_TEXTS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    datetime.datetime: ("datetime", datetime.datetime.isoformat),
    datetime.date: ("date", datetime.date.isoformat),
    datetime.time: ("time", datetime.time.isoformat),
    datetime.timedelta: ("timedelta", lambda v: [v.days, v.seconds, v.microseconds]),
    decimal.Decimal: ("decimal", str),
    fractions.Fraction: ("fraction", str),
    complex: ("complex", lambda v: [repr(v.real), repr(v.imag)]),
    bytes: ("bytes", lambda v: base64.b64encode(v).decode()),
    bytearray: ("bytearray", lambda v: base64.b64encode(v).decode()),
    range: ("range", lambda v: [v.start, v.stop, v.step]),
    re.Pattern: ("pattern", lambda v: [v.pattern, v.flags]),
}


def described(function: Callable[..., Any]) -> dict[str, Any]:
    """A function of a script as plain data; `hpcagent.apps.rebuilt.rebuilt` makes the function of it.

    Raises:
        BadInput: Something that it uses has no source and is no plain value: what, and what to do.
    """
    return _Described(function).plain


class _Described:
    """What is described so far: values by their number, the globals, and the statements of the files."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.named = getattr(function, "__qualname__", str(function))
        self.values: list[Any] = []
        self.globals: dict[str, int] = {}
        self.files: dict[str, dict[str, Any]] = {}
        self._trees: dict[str, ast.Module] = {}
        self._known: dict[int, int] = {}
        self._kept: list[Any] = []
        self._uses: dict[str, Any] = {}
        wanted = self.value(function, "the app's function")
        self.plain = {
            "form": 1,
            "name": self.named,
            "files": [{"name": name, **of} for name, of in self.files.items()],
            "values": self.values,
            "globals": self.globals,
            "imports": submodules(function, self._uses),
            "function": wanted,
        }

    # ---- values

    def value(self, value: Any, name: str) -> int:
        """The number of a value; `name` is what a person knows it by."""
        if id(value) in self._known:
            return self._known[id(value)]
        self._kept.append(value)  # or another might get its address
        number = self._known[id(value)] = len(self.values)
        self.values.append(None)
        self.values[number] = self._said(value, name)
        return number

    def _said(self, value: Any, name: str) -> list[Any]:
        if value is None or type(value) in (bool, int, str):
            return ["json", value]
        if type(value) is float:
            return ["json", value] if math.isfinite(value) else ["float", repr(value)]
        if type(value) in (list, tuple, set, frozenset):
            return [type(value).__name__, [self.value(one, name) for one in value]]
        if type(value) is dict:
            return ["dict", [[self.value(k, name), self.value(v, name)] for k, v in value.items()]]
        if type(value) in _TEXTS:
            kind, said = _TEXTS[type(value)]
            return [kind, said(value)]
        if isinstance(value, pathlib.PurePath):
            return ["path", str(value)]
        if isinstance(value, ModuleType):
            return self._module(value, name)
        return self._of_class(value, name)

    def _module(self, value: ModuleType, name: str) -> list[Any]:
        if sys.modules.get(value.__name__) is not value or value.__name__ == _SCRIPT:
            raise self._refused(name, value, "a module that no name leads to; import it by its name")
        return ["module", value.__name__]

    def _of_class(self, value: Any, name: str) -> list[Any]:
        if isinstance(value, FunctionType) and value.__module__ == _SCRIPT:
            return self._function(value, name)
        by_name = _found_by_name(value)
        if by_name is not None:
            return ["import", list(by_name)]
        if isinstance(value, type) and value.__module__ == _SCRIPT:
            return self._class(value, name)
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords)
            return ["partial", [self.value(part, name) for part in parts]]
        if isinstance(value, MethodType):
            return ["method", [self.value(value.__self__, name), value.__func__.__name__]]
        if isinstance(value, functools._lru_cache_wrapper):
            how = value.cache_parameters()
            return ["cached", [self.value(value.__wrapped__, name), how["maxsize"], how["typed"]]]
        if isinstance(value, enum.Enum):
            return ["member", [self.value(type(value), name), value.name]]
        if type(value).__module__.partition(".")[0] == "numpy":
            return self._numpy(value, name)
        if type(value).__module__ == _SCRIPT:
            return self._object(value, name)
        return self._decorated(value, name)

    def _numpy(self, value: Any, name: str) -> list[Any]:
        import numpy as np

        if isinstance(value, np.dtype):
            return ["dtype", value.str]
        if type(value) is not np.ndarray and not isinstance(value, np.generic):
            return self._decorated(value, name)
        file = io.BytesIO()
        try:
            np.save(file, value, allow_pickle=False)
        except ValueError:
            raise self._refused(name, value, "an array of Python objects; make one of numbers") from None
        kind = "array" if type(value) is np.ndarray else "scalar"
        return [kind, base64.b64encode(file.getvalue()).decode()]

    def _object(self, value: Any, name: str) -> list[Any]:
        """An object of a class of the script: what it is made from, and what it holds."""
        try:
            made, arguments, state, *rest = (*value.__reduce_ex__(2), None, None, None)[:5]
        except Exception as error:
            raise self._refused(
                name, value, f"which cannot be copied ({error}); make it in the function"
            ) from None
        if made is not vars(copyreg)["__newobj__"] or any(one is not None for one in rest):
            raise self._refused(name, value, "made in a way of its own; make it inside the function")
        cls, *given = arguments
        return ["object", [self.value(cls, name), self.value(tuple(given), name), self.value(state, name)]]

    # ---- functions

    def _function(self, made: FunctionType, name: str) -> list[Any]:
        file = made.__code__.co_filename
        if not self._is_of_script(made):
            return self._decorated(made, name)
        place = self._place(made.__code__, name)
        self._use(names_in(made), made.__globals__)
        cells = zip(made.__code__.co_freevars, made.__closure__ or (), strict=True)
        free = {}
        for variable, cell in cells:
            try:
                content = cell.cell_contents
            except ValueError:  # not set yet
                continue
            free[variable] = self.value(content, f"{variable} of {made.__qualname__}()")
        keywords = made.__kwdefaults__ or {}
        where = f"a default of {made.__qualname__}()"
        attributes = {k: v for k, v in vars(made).items() if k != "__isabstractmethod__"}
        return [
            "function",
            {
                "file": self._number(file),
                "name": made.__name__,
                "qualname": made.__qualname__,
                **place,
                "free": free,
                "defaults": [self.value(one, where) for one in made.__defaults__ or ()],
                "keywords": {k: self.value(v, where) for k, v in keywords.items()},
                "attributes": {k: self.value(v, f"{made.__qualname__}.{k}") for k, v in attributes.items()},
            },
        ]

    def _is_of_script(self, made: FunctionType) -> bool:
        """Whether its code is of the script: a decorator of a package says so of a function of its own."""
        return made.__globals__.get("__name__") == _SCRIPT

    def _place(self, code: CodeType, name: str) -> dict[str, Any]:
        """Where in its file the code is; the statement around it is sent."""
        tree = self._tree(code.co_filename, name)
        line = code.co_firstlineno
        around = [node for node in tree.body if first_line(node) <= line <= (node.end_lineno or 0)]
        future = bool(code.co_flags & FUTURE)
        # Of the whole file: what is imported at its top decides how calls of it are compiled.
        whole = "".join(linecache.getlines(code.co_filename))
        found = codes_at(whole, code.co_filename, future, code.co_name, line)
        nth = next((i for i, one in enumerate(found) if _same_code(one, code)), None)
        if nth is None:
            raise self._refused(
                name,
                code.co_name,
                f"whose source is not (any more) as it is in {code.co_filename}, line {line}; if the file was "
                "edited since the script began, start it again",
            )
        self._send(code.co_filename, around, future)
        return {"code": code.co_name, "line": line, "nth": nth}

    def _decorated(self, value: Any, name: str) -> list[Any]:
        """What a decorator of somebody else has made of a function of the script: it is decorated again there."""
        inner = getattr(value, "plain_function", None) or getattr(value, "__wrapped__", None)
        code = getattr(inner, "__code__", None)
        if isinstance(code, CodeType) and getattr(inner, "__module__", "") == _SCRIPT:
            tree = self._tree(code.co_filename, name)
            for node in tree.body:
                is_its = isinstance(node, ast.FunctionDef) and node.decorator_list and node.name == name
                if is_its and first_line(node) == code.co_firstlineno:
                    self._send(code.co_filename, [node], bool(code.co_flags & FUTURE))
                    self._use(_names_of(node), getattr(inner, "__globals__", {}))
                    return ["decorated", {"file": self._number(code.co_filename), "name": name}]
        raise self._refused(
            name, value, "which is no plain value, and of which there is no source; make it inside the function"
        )

    # ---- classes

    def _class(self, made: type, name: str) -> list[Any]:
        if "_field_defaults" in vars(made) and made.__bases__ == (tuple,):
            said = self._class_node(made)
            if said is None:
                fields = list(made._fields)  # type: ignore[attr-defined]  # a named tuple
                defaults = self.value(tuple(made._field_defaults.values()), name)  # type: ignore[attr-defined]
                return ["namedtuple", [made.__name__, fields, defaults]]
        said = self._class_node(made)
        if said is None or "<locals>" in made.__qualname__ or "." in made.__qualname__:
            raise self._refused(name, made, "a class of which there is no source at the top of the script")
        file, node, future = said
        self._send(file, [node], future)
        namespace = self._globals_of(made)
        self._use(_names_of(node), namespace)
        bound = set(_bound_in(node))
        later = {
            member: self.value(value, f"{made.__qualname__}.{member}")
            for member, value in vars(made).items()
            if member not in bound and isinstance(value, FunctionType) and _is_set_later(value, made)
        }
        return ["class", {"file": self._number(file), "name": made.__name__, "line": node.lineno, "later": later}]

    def _class_node(self, made: type) -> tuple[str, ast.ClassDef, bool] | None:
        """File and statement of a class at the top of the script; the last one of this name."""
        for file, future in self._files_of(made):
            with_name = [
                node
                for node in self._tree(file, made.__name__).body
                if isinstance(node, ast.ClassDef) and node.name == made.__name__
            ]
            line = vars(made).get("__firstlineno__")  # since Python 3.13
            fitting = [node for node in with_name if line is None or first_line(node) == line]
            if fitting:
                return file, fitting[-1], future
        return None

    def _files_of(self, made: type) -> Iterator[tuple[str, bool]]:
        for member in vars(made).values():
            code = getattr(member, "__code__", None)
            own = getattr(member, "__qualname__", "").startswith(f"{made.__qualname__}.")
            if own and isinstance(code, CodeType) and linecache.getlines(code.co_filename):
                yield code.co_filename, bool(code.co_flags & FUTURE)
        main = getattr(sys.modules.get(_SCRIPT), "__file__", None)
        # Cells of a notebook, the last one first; then the script.
        cells = [name for name in linecache.cache if any(cell in name for cell in _CELLS)]
        for file in (*reversed(cells), *([main] if main else ())):
            if linecache.getlines(file):
                yield file, _has_future(self._tree(file, made.__name__))

    def _globals_of(self, made: type) -> dict[str, Any]:
        for member in vars(made).values():
            if isinstance(member, FunctionType) and member.__module__ == _SCRIPT and self._is_of_script(member):
                return member.__globals__
        return vars(sys.modules[_SCRIPT])

    # ---- what is used

    def _use(self, names: Iterator[str] | tuple[str, ...], namespace: dict[str, Any]) -> None:
        for name in names:
            if name in namespace and not (name.startswith("__") and name.endswith("__")):
                value = namespace[name]
                if name in self._uses and self._uses[name] is value:
                    continue
                self._uses[name] = value
                self.globals[name] = self.value(value, name)

    def _number(self, file: str) -> int:
        return list(self.files).index(file)

    def _tree(self, file: str, name: str) -> ast.Module:
        if file not in self._trees:
            lines = linecache.getlines(file)
            if not lines:
                raise self._refused(
                    name, file, "and there is no source of it; write it into a file, or a notebook"
                )
            try:
                self._trees[file] = ast.parse("".join(lines))
            except SyntaxError as error:
                raise self._refused(name, file, f"which is no Python any more ({error})") from None
        return self._trees[file]

    def _send(self, file: str, nodes: list[Any], future: bool) -> None:
        of = self.files.setdefault(file, {"text": "", "future": future, "lines": []})
        of["lines"] = sorted({*map(tuple, of["lines"]), *((first_line(n), n.end_lineno) for n in nodes)})
        lines = linecache.getlines(file)
        kept = {line for first, last in of["lines"] for line in range(first, last + 1)}
        last = max(kept)
        of["text"] = "".join(text if i in kept else "\n" for i, text in enumerate(lines[:last], start=1))

    def _refused(self, name: str, value: Any, why: str) -> BadInput:
        kind = value if isinstance(value, str) else f"an object of type {type(value).__name__}"
        return BadInput(
            f"the app's function {self.named}() uses {name!r} ({kind}), {why}, or put the function into a module "
            "beside the script: only source and plain values (numbers, texts, lists, dicts, NumPy arrays, "
            "functions and classes of the script) travel to an endpoint.",
            value=name,
        )


def _found_by_name(value: Any) -> tuple[str, str] | None:
    """Module and name by which a function, class or other named thing is found, if it is one."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == _SCRIPT:
        found = getattr(value, "__self__", None)  # a function of a module written in C
        if not isinstance(found, ModuleType) or not isinstance(name, str):
            return None
        module = found.__name__
    at: Any = sys.modules.get(module)
    for part in name.split("."):
        at = getattr(at, part, None)
    return (module, name) if at is value else None


def _names_of(node: ast.AST) -> tuple[str, ...]:
    return tuple(dict.fromkeys(inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)))


def _bound_in(node: ast.ClassDef) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield inner.name
        elif isinstance(inner, ast.Name):
            yield inner.id


def _is_set_later(value: FunctionType, made: type) -> bool:
    """Whether a function was put into the class after its body: none that the language has made."""
    return value.__module__ == _SCRIPT and not value.__qualname__.startswith(f"{made.__qualname__}.")


def _has_future(tree: ast.Module) -> bool:
    found = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__")
    return any(alias.name == "annotations" for node in found for alias in node.names)


def _same_code(one: CodeType, other: CodeType) -> bool:
    """Whether two codes of this Python do the same; where they lie in a file does not matter."""
    if one.co_code != other.co_code or one.co_names != other.co_names or one.co_varnames != other.co_varnames:
        return False
    if one.co_freevars != other.co_freevars or len(one.co_consts) != len(other.co_consts):
        return False
    pairs = zip(one.co_consts, other.co_consts, strict=True)
    return all(_same_code(a, b) if _are_codes(a, b) else repr(a) == repr(b) for a, b in pairs)


def _are_codes(one: Any, other: Any) -> bool:
    return isinstance(one, CodeType) and isinstance(other, CodeType)
