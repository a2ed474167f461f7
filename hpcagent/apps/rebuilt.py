"""A function that came as source (`hpcagent.apps.sourced`), made again where its run is.

Functions are compiled from their source, not run for it: their decorators, defaults and closures came as values.
Classes are made by their statements. Imports only the standard library, for workers do.
"""

from __future__ import annotations
import __future__

import ast
import base64
import collections
import contextlib
import datetime
import decimal
import fractions
import functools
import importlib
import io
import linecache
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Any

from hpcagent.apps.carried import Carried
from hpcagent.errors import AppFailed
from hpcagent.moved import new_name

__all__ = ["FUTURE", "Travelled", "codes_at", "first_line", "rebuilt"]

FUTURE = __future__.annotations.compiler_flag
_SCRIPT = "__main__"


class Travelled(Carried):
    """The function of an order on an endpoint, with the folder of the user's modules that came with it.

    Args:
        function: `"module:name"`, or what `hpcagent.apps.sourced.described` has made.
        folder: Of the modules, which can be imported while the function is made and called; empty: none.
    """

    def __init__(self, function: str | Mapping[str, Any], folder: str) -> None:
        super().__init__(None)
        self._reference = function
        self._folder = folder

    @property
    def folder(self) -> str:
        """Of the modules that came with it; empty: none."""
        return self._folder

    def __reduce__(self) -> Any:  # to the ranks of a run, or into its sandbox
        return Travelled, (self._reference, self._folder)

    def function(self) -> Callable[..., Any]:
        """The function.

        Raises:
            AppFailed: `AppNotImportable`: what it needs is not there.
        """
        if self._function is None:
            with self._importable():
                self._function = self._made()
        function = self._function

        @functools.wraps(function)
        def called(*args: Any, **keywords: Any) -> Any:
            with self._importable():
                return function(*args, **keywords)

        return called

    def _made(self) -> Callable[..., Any]:
        if not isinstance(self._reference, str):
            return rebuilt(self._reference)
        module, _, name = self._reference.partition(":")
        function: Any = importlib.import_module(new_name(module))
        for part in name.split("."):
            function = getattr(function, part)
        plain = getattr(function, "plain_function", None)
        return plain if callable(plain) else function  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def _importable(self) -> Iterator[None]:
        if self._folder:
            sys.path.insert(0, self._folder)
        try:
            yield
        except ImportError as error:
            raise _lacking(error) from error
        except SyntaxError as error:
            raise AppFailed(
                f"Python {platform.python_version()} of the endpoint ({sys.prefix}) cannot read the function's "
                f"source: {error}.",
                kind="infrastructure",
                name="AppNotImportable",
                repair="write it for that version, or let worker_init of the endpoint's template activate a newer "
                "one",
            ) from error
        finally:
            if self._folder and self._folder in sys.path:
                sys.path.remove(self._folder)


def _lacking(error: ImportError) -> AppFailed:
    module = error.name or "?"
    package = module.partition(".")[0]
    return AppFailed(
        f"the app's function needs the module {module!r} ({error}), which Python {platform.python_version()} of "
        f"the endpoint (environment {sys.prefix} on {platform.node()}) does not have as it is needed.",
        kind="infrastructure",
        name="AppNotImportable",
        repair=f"install what provides {package!r} there: add it to `requirements`, or `pip install` it in "
        "`worker_init`, of the endpoint's template; a module of your own travels if it is a .py file that can be "
        "imported here by its name",
    )


def rebuilt(plain: Mapping[str, Any]) -> Callable[..., Any]:
    """The function that was described.

    Raises:
        ImportError: A module that it uses is not there.
        SyntaxError: Its source is for a newer Python.
    """
    return _Rebuilt(plain).function


def first_line(node: Any) -> int:
    """The line on which a statement begins, its decorators included."""
    return min(int(one.lineno) for one in (node, *getattr(node, "decorator_list", ())))


def codes_at(text: str, file: str, future: bool, name: str, line: int) -> list[CodeType]:
    """The codes of functions of this name that begin on this line, in their order."""
    whole = compile(text, file, "exec", FUTURE if future else 0, dont_inherit=True)
    return [code for code in _codes(whole) if code.co_name == name and code.co_firstlineno == line]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


_SIMPLE: dict[str, Callable[[Any], Any]] = {
    "json": lambda said: said,
    "float": float,
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timedelta": lambda said: datetime.timedelta(*said),
    "decimal": decimal.Decimal,
    "fraction": fractions.Fraction,
    "complex": lambda said: complex(*map(float, said)),
    "bytes": base64.b64decode,
    "bytearray": lambda said: bytearray(base64.b64decode(said)),
    "range": lambda said: range(*said),
    "pattern": lambda said: re.compile(*said),
    "path": Path,
    "module": importlib.import_module,
}


class _Rebuilt:
    """Makes values by their numbers, each once; what refers to itself is there before it is filled."""

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self._plain = plain
        self._values: list[Any] = plain["values"]
        self._made: dict[int, Any] = {}
        self.globals: dict[str, Any] = {"__name__": _SCRIPT, "__builtins__": __builtins__}
        self._files = [self._file(one) for one in plain["files"]]
        for name in plain["imports"]:
            importlib.import_module(name)
        for name, number in sorted(plain["globals"].items(), key=lambda item: self._turn(item[1])):
            self.globals[name] = self.value(number)
        self.function: Callable[..., Any] = self.value(plain["function"])

    def _turn(self, number: int) -> tuple[int, int]:
        """Functions need nothing of others to be made; bodies of classes and decorators may call them."""
        kind, said = self._values[number]
        line = int(said["line"]) if kind == "class" else 0
        last = kind in ("class", "decorated", "object", "member", "partial", "method", "cached")
        later = kind in ("object", "member", "partial", "method", "cached")
        return int(last) + int(later), line

    def _file(self, file: Mapping[str, Any]) -> tuple[str, str, bool]:
        name, text = str(file["name"]), str(file["text"])
        # Tracebacks and `inspect` find the source by the name; without a time it is not looked for on the disk.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        return name, text, bool(file["future"])

    def value(self, number: int) -> Any:
        if number not in self._made:
            kind, said = self._values[number]
            if kind in _SIMPLE:
                self._made[number] = _SIMPLE[kind](said)
            else:
                made = getattr(self, f"_{kind}_", None)
                if made is None:
                    raise ImportError(
                        f"a value of the kind {kind!r:.40} is not known here: install the same hpcagent"
                    )
                self._made.setdefault(number, made(said, number))
        return self._made[number]

    def _several(self, numbers: list[int]) -> list[Any]:
        return [self.value(number) for number in numbers]

    def _list_(self, said: list[int], number: int) -> list[Any]:
        made: list[Any] = []
        self._made[number] = made
        made += self._several(said)
        return made

    def _tuple_(self, said: list[int], _: int) -> tuple[Any, ...]:
        return tuple(self._several(said))

    def _set_(self, said: list[int], _: int) -> set[Any]:
        return set(self._several(said))

    def _frozenset_(self, said: list[int], _: int) -> frozenset[Any]:
        return frozenset(self._several(said))

    def _dict_(self, said: list[list[int]], number: int) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        self._made[number] = made
        made |= {self.value(key): self.value(value) for key, value in said}
        return made

    def _import_(self, said: list[str], _: int) -> Any:
        module, name = said
        found: Any = importlib.import_module(new_name(module))
        for part in name.split("."):
            try:
                found = getattr(found, part)
            except AttributeError:
                raise ImportError(f"cannot import {name!r} from {module!r}", name=module) from None
        return found

    def _array_(self, said: str, _: int) -> Any:
        import numpy as np

        return np.load(io.BytesIO(base64.b64decode(said)), allow_pickle=False)

    def _scalar_(self, said: str, number: int) -> Any:
        return self._array_(said, number)[()]

    def _dtype_(self, said: str, _: int) -> Any:
        import numpy as np

        return np.dtype(said)

    def _partial_(self, said: list[int], _: int) -> Any:
        function, args, keywords = self._several(said)
        return functools.partial(function, *args, **keywords)

    def _method_(self, said: list[Any], _: int) -> Any:
        return getattr(self.value(said[0]), said[1])

    def _cached_(self, said: list[Any], _: int) -> Any:
        return functools.lru_cache(maxsize=said[1], typed=said[2])(self.value(said[0]))

    def _member_(self, said: list[Any], _: int) -> Any:
        return self.value(said[0])[said[1]]

    def _namedtuple_(self, said: list[Any], _: int) -> Any:
        name, fields, defaults = said
        return collections.namedtuple(name, fields, defaults=self.value(defaults), module=_SCRIPT)

    def _object_(self, said: list[int], number: int) -> Any:
        cls, args = self._several(said[:2])
        made = cls.__new__(cls, *args)
        self._made[number] = made
        state = self.value(said[2])
        if hasattr(made, "__setstate__"):
            if state is not None:
                made.__setstate__(state)
            return made
        held, slots = state if isinstance(state, tuple) else (state, None)
        for name, value in {**(held or {}), **(slots or {})}.items():
            object.__setattr__(made, name, value)
        return made

    def _function_(self, said: Mapping[str, Any], number: int) -> FunctionType:
        name, text, future = self._files[said["file"]]
        codes = codes_at(text, name, future, said["code"], said["line"])
        code = codes[said["nth"]]
        cells = {variable: CellType() for variable in code.co_freevars}
        made = FunctionType(code, self.globals, said["name"], None, tuple(cells.values()))
        self._made[number] = made
        made.__qualname__, made.__module__ = said["qualname"], _SCRIPT
        for variable, value in said["free"].items():
            if variable in cells:
                cells[variable].cell_contents = self.value(value)
        made.__defaults__ = tuple(self._several(said["defaults"])) or None
        made.__kwdefaults__ = {k: self.value(v) for k, v in said["keywords"].items()} or None
        for attribute, value in said["attributes"].items():
            setattr(made, attribute, self.value(value))
        return made

    def _class_(self, said: Mapping[str, Any], number: int) -> Any:
        made = self._run(said, lambda node: isinstance(node, ast.ClassDef) and node.lineno == said["line"])
        self._made[number] = made
        for member, value in said["later"].items():
            setattr(made, member, self.value(value))
        return made

    def _decorated_(self, said: Mapping[str, Any], _: int) -> Any:
        return self._run(said, lambda node: isinstance(node, ast.FunctionDef))

    def _run(self, said: Mapping[str, Any], wanted: Callable[[Any], bool]) -> Any:
        """Carry out the statement that defines a name, the names that it uses first."""
        name, text, future = self._files[said["file"]]
        tree = ast.parse(text)
        [node, *_] = [n for n in tree.body if getattr(n, "name", "") == said["name"] and wanted(n)]
        for inner in ast.walk(node):
            used = inner.id if isinstance(inner, ast.Name) else said["name"]
            if used in self._plain["globals"] and used not in (said["name"], *self.globals):
                self.globals[used] = self.value(self._plain["globals"][used])
        code = compile(
            ast.Module([node], type_ignores=[]), name, "exec", FUTURE if future else 0, dont_inherit=True
        )
        exec(code, self.globals)  # the user's own source, on an endpoint that takes it from the user only
        return self.globals[said["name"]]
