"""A text of one or several functions, by its syntax tree only: nothing of it is imported or run.

What the checks say is no wall: the sandbox is. They tell whoever registers what is missing, and whoever approves
what to look at.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.model.base import Record
from hpcagent.model.texts import UNSEEN
from hpcagent.registry.annotations import name_of
from hpcagent.registry.findings import Finding
from hpcagent.registry.names import LONGEST_TOOL_NAME
from hpcagent.registry.signature import Signature, Table, read_signature, table_of
from hpcagent.shown import CONTROL

__all__ = ["LARGEST", "Parsed", "ToolText", "importable", "parse_text"]

LARGEST = 100_000
"""Bytes of a text."""
_MOST_TOOLS = 20
_DECORATORS = (
    "dataclass",
    "dataclasses.dataclass",
    "lru_cache",
    "functools.lru_cache",
    "cache",
    "functools.cache",
)
_BASES = ("TypedDict", "typing.TypedDict", "NamedTuple", "typing.NamedTuple")
_TRICKS = (
    "__import__",
    "exec",
    "eval",
    "compile",
    "globals",
    "locals",
    "vars",
    "setattr",
    "delattr",
    "breakpoint",
)
_INTROSPECTION = (
    "__class__",
    "__subclasses__",
    "__bases__",
    "__mro__",
    "__globals__",
    "__builtins__",
    "__code__",
    "__dict__",
    "__loader__",
    "__import__",
)
_REACHING = {
    "asyncio": "the network, and programs",
    "ctypes": "memory and libraries",
    "ftplib": "the network",
    "http": "the network",
    "httpx": "the network",
    "importlib": "any module",
    "multiprocessing": "other processes",
    "os": "files, processes and the environment",
    "pickle": "code in data",
    "pty": "programs",
    "requests": "the network",
    "shutil": "files",
    "signal": "other processes",
    "smtplib": "the network",
    "socket": "the network",
    "ssl": "the network",
    "subprocess": "programs",
    "urllib": "the network",
}


class ToolText(Record):
    """One function of a text, as a tool of its own.

    Attributes:
        signature: What it takes and gives.
        text: The whole of its file: the function, and what it uses of the text.
        tests: Names of the functions `test_*` that use it.
    """

    signature: Signature
    text: str
    tests: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The function's name."""
        return self.signature.name


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a text has.

    Attributes:
        tools: Its public functions; those that cannot be read are not among them.
        findings: What was found in it.
    """

    tools: tuple[ToolText, ...]
    findings: tuple[Finding, ...]


def parse_text(text: str) -> Parsed:
    """Read a text of functions, and check it.

    Each public function becomes a tool; `_private` ones, constants, classes and imports go along with those that
    use them, and `test_*` are its tests.

    Args:
        text: Python.

    Example:
        >>> found = parse_text("print('now')")
        >>> [(one.rule, one.line, one.severity) for one in found.findings]
        [('top-level', 1, 'error'), ('no-function', 0, 'error')]
    """
    if len(text.encode(errors="replace")) > LARGEST:
        says = f"the text has more than {LARGEST} bytes; data goes into a file, as an argument of type Path"
        return Parsed((), (Finding(rule="size", says=says),))
    unseen = _unseen(text)
    try:
        tree = ast.parse(text)
        nested = max((_depth(one) for one in tree.body), default=0)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 0
        said = getattr(error, "msg", None) or type(error).__name__
        return Parsed((), (*unseen, Finding(rule="syntax", line=line, says=f"this is no Python: {said}")))
    if nested > 150:
        return Parsed((), (Finding(rule="syntax", says="it is nested too deeply to be read"),))
    try:
        whole = _Whole(text, tree)
    except (RecursionError, OverflowError, ValueError) as error:  # e.g. a number of so many digits
        return Parsed((), (*unseen, Finding(rule="syntax", says=f"it cannot be read: {error}")))
    return Parsed(tuple(whole.tools), (*unseen, *whole.findings))


def _depth(node: ast.AST) -> int:
    """How deep a tree is."""
    depth, level = 0, [node]
    while level:
        depth, level = depth + 1, [child for one in level for child in ast.iter_child_nodes(one)]
    return depth


def _unseen(text: str) -> Iterator[Finding]:
    """Characters that are not seen, or turn the direction of writing: what a person reads is not what runs."""
    for number, line in enumerate(text.split("\n"), 1):
        for character in line:
            if UNSEEN.match(character) or CONTROL.match(character):
                says = f"the character U+{ord(character):04X} is not seen by whoever reads the text; remove it"
                yield Finding(rule="hidden", line=number, says=says, words=f"U+{ord(character):04X}")
                break


class _Whole:
    """A text whose tree was made."""

    def __init__(self, text: str, tree: ast.Module) -> None:
        self.lines = [f"{one}\n" for one in text.split("\n")]
        self.text, self.tree = text, tree
        self.findings: list[Finding] = []
        self.constants: dict[str, Any] = {}
        self.tables: dict[str, Table] = {}
        self.functions: list[ast.FunctionDef] = []
        self.defines: list[tuple[frozenset[str], ast.stmt]] = []
        for node in tree.body:
            self._statement(node)
        self._tricks()
        self.tools = list(self._tools())

    def say(self, rule: str, node: ast.AST, says: str, *, severity: Any = "error", words: str = "") -> None:
        """One more finding."""
        line = getattr(node, "lineno", 0)
        self.findings.append(Finding(rule=rule, line=line, says=says, severity=severity, words=words))

    # -- what stands at the top ---------------------------------------------------------------

    def _statement(self, node: ast.stmt) -> None:
        names: set[str] = set()
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = self._import(node)
        elif isinstance(node, ast.FunctionDef):
            names = {node.name}
            self._function(node)
        elif isinstance(node, ast.ClassDef):
            names = {node.name}
            self._class(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names = self._constant(node)
        elif isinstance(node, ast.AsyncFunctionDef):
            self.say("async", node, f"{node.name} is async; a tool is a plain function")
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            self._effect(node)
        self.defines.append((frozenset(names), node))

    def _effect(self, node: ast.stmt) -> None:
        self.say(
            "top-level",
            node,
            f"`{ast.unparse(node).splitlines()[0][:60]}` would be done whenever the text is loaded; at its top "
            "stand imports, functions, classes of plain data and literals: move it into a function",
        )

    def _import(self, node: ast.Import | ast.ImportFrom) -> set[str]:
        if isinstance(node, ast.ImportFrom) and (node.level or not node.module):
            self.say("import", node, "a relative import leads nowhere: a tool is one text")
            return set()
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
        for module in modules:
            self._module(node, module.partition(".")[0])
        if any(one.name == "*" for one in node.names):
            self.say("import", node, "import * hides which names come from where; name them")
        return {(one.asname or one.name).partition(".")[0] for one in node.names}

    def _module(self, node: ast.stmt, top: str) -> None:
        if not importable(top):
            says = f"there is no package {top} in this environment; have it installed, or do without it"
            self.say("import", node, says)
        elif top in _REACHING:
            says = f"{top} reaches {_REACHING[top]}: the sandbox keeps it from what is outside"
            self.say("reaches", node, says, severity="warning", words=top)

    def _function(self, node: ast.FunctionDef) -> None:
        for one in node.decorator_list:
            called = one.func if isinstance(one, ast.Call) else one
            if name_of(called) not in _DECORATORS:
                self.say(
                    "top-level", one, f"the decorator {ast.unparse(one):.60} runs when the text is loaded; drop it"
                )
        if getattr(node, "type_params", None):
            self.say("type", node, f"{node.name} has type parameters; a tool has types that are known")
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None and _does_something(default):
                self.say(
                    "top-level",
                    default,
                    f"the default {ast.unparse(default):.60} is worked out when the text is loaded: no literal",
                )
        for one in _annotations(node):
            for call in ast.walk(one):
                if isinstance(call, ast.Call) and _does_something(
                    call, but=("Field", "Interval", "Ge", "Gt", "Le", "Lt")
                ):
                    self.say(
                        "top-level",
                        call,
                        f"the annotation {ast.unparse(call):.60} is worked out when the text is loaded",
                    )
        self.functions.append(node)

    def _class(self, node: ast.ClassDef) -> None:
        bases = [name_of(one) for one in node.bases]
        decorators = [name_of(one.func if isinstance(one, ast.Call) else one) for one in node.decorator_list]
        data = any(one in _BASES for one in bases) or any(one.endswith("dataclass") for one in decorators)
        known = all(one in _BASES for one in bases) and all(one in _DECORATORS[:2] for one in decorators)
        plain = all(
            (isinstance(one, ast.AnnAssign) and (one.value is None or not _does_something(one.value)))
            or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            or isinstance(one, ast.Pass)
            for one in node.body
        )
        if not (data and known and plain) or (node.keywords and not all(k.arg == "total" for k in node.keywords)):
            self.say(
                "top-level",
                node,
                f"the class {node.name} is no class of plain data: a TypedDict or dataclass with fields only",
            )
            return
        self.tables[node.name] = table_of(node)

    def _constant(self, node: ast.Assign | ast.AnnAssign) -> set[str]:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [one.id for one in targets if isinstance(one, ast.Name)]
        try:
            if len(names) < len(targets) or node.value is None:
                raise ValueError
            value = ast.literal_eval(node.value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            self._effect(node)
            return set(names)
        self.constants |= dict.fromkeys(names, value)
        return set(names)

    # -- what stands anywhere -----------------------------------------------------------------

    def _tricks(self) -> None:
        """Ways around what can be read here; the sandbox holds them, and a person should look at them."""
        top = {id(one) for one in self.tree.body}
        for node in ast.walk(self.tree):
            words = ""
            if isinstance(node, ast.Name) and node.id in _TRICKS:
                words = node.id
            elif isinstance(node, ast.Attribute) and node.attr in _INTROSPECTION:
                words = node.attr
            elif isinstance(node, ast.Call) and name_of(node.func) in ("getattr", "hasattr"):
                second = node.args[1] if len(node.args) > 1 else None
                literal = isinstance(second, ast.Constant) and isinstance(second.value, str)
                if not literal or (isinstance(second, ast.Constant) and str(second.value).startswith("__")):
                    words = ast.unparse(node)[:60]
            elif isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in top:
                modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [n.name for n in node.names]
                for module in modules:
                    self._module(node, module.partition(".")[0])
            if words:
                self.say(
                    "dynamic",
                    node,
                    f"`{words}` can do what cannot be read here; look at what it does",
                    severity="warning",
                    words=words,
                )

    # -- the tools ----------------------------------------------------------------------------

    def _tools(self) -> Iterator[ToolText]:
        public = [one for one in self.functions if not one.name.startswith(("_", "test_"))]
        tests = [one for one in self.functions if one.name.startswith("test_")]
        if not public:
            self.findings.append(
                Finding(
                    rule="no-function", says="the text has no function whose name does not begin with _ or test_"
                )
            )
        if len(public) > _MOST_TOOLS:
            self.say(
                "no-function",
                public[_MOST_TOOLS],
                f"the text has {len(public)} functions; at most {_MOST_TOOLS} are taken at once",
            )
        for test in tests:
            self._plain_test(test)
        seen: set[str] = set()
        for names, node in self.defines:
            twice = names & seen if isinstance(node, ast.FunctionDef | ast.ClassDef) else set()
            if twice:
                self.say(
                    "name", node, f"{min(twice)} is defined twice; the second would take the place of the first"
                )
            seen |= names
        for node in public[:_MOST_TOOLS]:
            if not node.name.isascii() or len(node.name) > LONGEST_TOOL_NAME:
                self.say(
                    "name",
                    node,
                    f"{node.name[:80]!r}: a name has at most {LONGEST_TOOL_NAME} letters, digits and _ of ASCII",
                )
                continue
            signature, findings = read_signature(node, self.tables, self.constants)
            self.findings += findings
            mine = [one for one in tests if node.name in _names_in(one)]
            whole = self.text if len(public) == 1 else self._part([node, *mine])
            yield ToolText(signature=signature, text=whole, tests=tuple(one.name for one in mine))

    def _plain_test(self, node: ast.FunctionDef) -> None:
        """A test is called without arguments: there are no fixtures."""
        args = node.args
        plain = [*args.posonlyargs, *args.args]
        needed = plain[: len(plain) - len(args.defaults)]
        needed += [one for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
        if needed:
            self.say(
                "test",
                node,
                f"{node.name} takes {', '.join(one.arg for one in needed)}: tests are plain functions, called "
                "without arguments, and there are no fixtures of pytest; files go into the current folder",
            )

    def _part(self, wanted: list[ast.FunctionDef]) -> str:
        """The statements of the text that some functions need, as they stand there."""
        kept = {id(one) for one in wanted}
        unseen: list[ast.stmt] = list(wanted)
        while unseen:
            used = _names_in(unseen.pop())
            for names, node in self.defines:
                if names & used and id(node) not in kept:
                    kept.add(id(node))
                    unseen.append(node)
        future = [n for _, n in self.defines if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
        kept |= {id(one) for one in future}
        parts = []
        before: ast.stmt | None = None
        for _, node in self.defines:
            if id(node) in kept:
                imports = isinstance(node, ast.Import | ast.ImportFrom)
                again = isinstance(before, ast.Import | ast.ImportFrom)
                gap = "" if before is None or (imports and again) else "\n" if imports or again else "\n\n"
                parts.append(gap + self._lines_of(node))
                before = node
        return "".join(parts)

    def _lines_of(self, node: ast.stmt) -> str:
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
        # Comments right above belong to it.
        while first > 1 and self.lines[first - 2].startswith("#"):
            first -= 1
        text = "".join(self.lines[first - 1 : node.end_lineno])
        return text if text.endswith("\n") else f"{text}\n"


def _names_in(node: ast.AST) -> set[str]:
    """Names that a statement uses, also in annotations that stand in quotes."""
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value.isidentifier():
            found.add(one.value)
    return found


def _annotations(node: ast.FunctionDef) -> list[ast.expr]:
    args = node.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    found = [one.annotation for one in every if one is not None and one.annotation is not None]
    return [*found, *([node.returns] if node.returns is not None else [])]


def _does_something(node: ast.expr, but: tuple[str, ...] = ()) -> bool:
    """Whether an expression may do more than name a value."""
    for one in ast.walk(node):
        if isinstance(one, ast.Call) and name_of(one.func).rpartition(".")[2] not in but:
            return True
        doing = (
            ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr | ast.Lambda | ast.comprehension | ast.Attribute
        )
        if isinstance(one, doing) and not (isinstance(one, ast.Attribute) and but):
            return True
    return False


def importable(module: str) -> bool:
    """Whether a package of that name is in this environment; it is looked for, not imported.

    Args:
        module: The top name: `scipy` of `scipy.optimize`.

    Example:
        >>> importable("math"), importable("numpy"), importable("nothing_of_that_name")
        (True, True, False)
    """
    if module in sys.stdlib_module_names:
        return True
    if not module.isidentifier():
        return False
    # Not the folder that this process happens to be in, nor PYTHONPATH: a tool's own process has neither.
    mine = {"", ".", str(Path.cwd()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    path = [one for one in sys.path if one not in mine]
    found: Mapping[str, Any] | Any = importlib.machinery.PathFinder.find_spec(module, path)
    return found is not None
