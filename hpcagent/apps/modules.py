"""The user's own modules that an app's function is made of: their files decide its numbers as its source does.

What is installed (site-packages), the standard library and hpcagent have versions and do not count. Which modules
a file imports is read from its text, nothing is imported for it. A process goes on with what it has imported,
whatever becomes of the file: a module that is loaded counts by the content that it was loaded from, and costs no
look at the file any more. One whose file was edited between its import and the first look is refused.

Imports only the standard library, for workers do.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ModuleSpec
from pathlib import Path
from types import ModuleType

from hpcagent.apps.edited import edited_since_import
from hpcagent.apps.made_with import sha256
from hpcagent.errors import BadInput

__all__ = [
    "FROM_PATH",
    "OtherModule",
    "file_in_tree",
    "is_named",
    "loaded",
    "other_modules",
    "own_modules",
    "placed",
]

_OURS = Path(__file__).resolve().parents[1]
_NEVER = frozenset({"__main__", "__mp_main__", "hpcagent", *sys.stdlib_module_names})
# Name -> the specification by which this process has loaded the module (a reload makes another), and the content.
_contents: dict[str, tuple[ModuleSpec | None, str]] = {}
# Roots (and how they were followed) -> what `own_modules` has found: it is looked for again where one has changed.
_closures: dict[tuple[bool, tuple[str, ...]], dict[str, str]] = {}
_MOST_CLOSURES = 256
# What a file with one module ends with; any other is an archive.
_FILES = frozenset(Path(f"x{end}").suffix for end in (*SOURCE_SUFFIXES, *BYTECODE_SUFFIXES, *EXTENSION_SUFFIXES))
# Name and `sys.path` -> file of modules that are not loaded: they are looked for once.
_places: dict[tuple[str, tuple[str, ...]], Path | None] = {}
# Name -> file of modules that are loaded from a path and that no name leads to.
_placed: dict[str, str] = {}
# Functions of the standard library that load code from a path.
FROM_PATH = frozenset({"spec_from_file_location", "run_path", "SourceFileLoader"})


@dataclass(frozen=True, slots=True)
class OtherModule:
    """A module that is not as it was.

    Attributes:
        name: Of the module.
        path: Its file.
        before: SHA-256 that was recorded.
        now: SHA-256 of what this process has loaded, or would load; empty where `edited` says more.
        stale: Whether this process has loaded another content than the file has now.
        edited: What tells that the file was edited after it was loaded, before anybody had looked at it.
    """

    name: str
    path: str
    before: str
    now: str
    stale: bool = False
    edited: str = ""

    def __str__(self) -> str:
        if self.edited:
            return (
                f"{self.path} (module {self.name}): SHA-256 {self.before[:12]} recorded; it was edited after this "
                f"process had imported it ({self.edited}), so what the process would compute with is not known"
            )
        had = "this process has loaded" if self.stale else "now"
        return f"{self.path} (module {self.name}): SHA-256 {self.before[:12]} recorded, {self.now[:12]} {had}"


def own_modules(roots: Iterable[str], *, as_before: bool = False) -> dict[str, str]:
    """Name -> SHA-256 of the file, of every module of the user's among these and what they import.

    Args:
        roots: Names of modules.
        as_before: As records of form 0 have it (see `hpcagent.apps.described.FORM`): without modules in archives,
            those loaded from a path, names relative to a package, and what is not for type checkers only.

    Raises:
        BadInput: The file of one was edited after this process had imported it.
    """
    roots = tuple(roots)
    known = _closures.get((as_before, roots))
    if known is not None and not other_modules(known):
        return dict(known)
    found: dict[str, str] = {}
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        above = name.rpartition(".")[0]
        if above and name not in _placed:
            waiting.append(above)
        path = _path(name)
        if path is None or (as_before and (name in _placed or path.suffix not in _FILES)):
            continue
        with contextlib.suppress(OSError):
            found[name] = _content(name, path)
            digest = sha256(path) if name not in sys.modules else found[name]
            waiting += _imported(str(path), name, digest, as_before)
    if len(_closures) > _MOST_CLOSURES:
        _closures.clear()
    _closures[as_before, roots] = dict(sorted(found.items()))
    return dict(_closures[as_before, roots])


def placed(name: str, path: str) -> str:
    """Take down where the file of a module is that no name leads to; its name."""
    _placed[name] = str(Path(path).absolute())
    return name


def is_named(name: str) -> bool:
    """Whether a module is found by its name; one that is loaded from a path may be any file.

    Example:
        >>> is_named("json")
        True
    """
    return name not in _placed


def file_in_tree(name: str) -> tuple[Path | None, str]:
    """The file of a module of the user's, and where it would lie below a folder from which it can be imported.

    Empty for a module in an archive, one that is loaded from a path, and one whose file has another name.
    """
    path = _path(name)
    if path is None or name in _placed or path.suffix not in _FILES:
        return path, ""
    *above, last = name.split(".")
    if path.name.partition(".")[0] == "__init__":
        return path, "/".join([*above, last, path.name])
    return path, "/".join([*above, path.name]) if path.name.partition(".")[0] == last else ""


def loaded(modules: Iterable[str]) -> frozenset[str]:
    """Which of these modules this process has imported."""
    return frozenset(name for name in modules if name in sys.modules)


def other_modules(modules: Mapping[str, str]) -> list[OtherModule]:
    """Which of these modules (name -> SHA-256) have another content here; one that is not found tells nothing.

    A module that this process was seen to load takes no call of the file system.
    """
    other = []
    for name, before in modules.items():
        if _known(name) == before:
            continue
        path = _path(name)
        if path is None:
            continue
        try:
            now = _content(name, path)
            if now != before:
                other.append(OtherModule(name, str(path), before, now, stale=sha256(path) == before))
        except _Edited as error:
            other.append(OtherModule(name, str(path), before, "", stale=True, edited=error.why))
        except OSError:
            continue
    return other


def _content(name: str, path: Path) -> str:
    """SHA-256 of what the process has loaded as this module; of the file, where it has not.

    Raises:
        BadInput: The file was edited after the process had loaded it.
        OSError: The file cannot be read.
    """
    known = _known(name)
    if known is not None:
        return known
    module = sys.modules.get(name)
    if module is None:
        return sha256(path)
    why = edited_since_import(module, path)
    if why:
        raise _Edited(
            f"{path} was edited after this process had imported it as module {name} ({why}): runs of this process "
            "and of the next would be computed with different contents. Import it anew: restart the process (in a "
            "notebook, the kernel). If it is said again then, delete the folder __pycache__ beside it; if your "
            "script sets the value itself, make it a parameter or a setting of the app.",
            name=name,
            path=str(path),
            why=why,
        )
    digest = sha256(path)
    _contents[name] = _spec_of(module), digest
    return digest


class _Edited(BadInput):
    """A module is loaded from another content than its file has; `why` says what tells it."""

    why: str


def _known(name: str) -> str | None:
    module, known = sys.modules.get(name), _contents.get(name)
    if module is None or known is None or known[0] is not _spec_of(module):
        return None
    return known[1]


def _spec_of(module: ModuleType) -> ModuleSpec | None:
    return getattr(module, "__spec__", None)


def _path(name: str) -> Path | None:
    """The file of a module of the user's; None for all others."""
    if name in _placed:
        return _of_user(_placed[name])
    top = name.partition(".")[0]
    if top in _NEVER:
        return None
    module = sys.modules.get(name)
    if module is not None:
        spec = _spec_of(module)
        origin = getattr(module, "__file__", None) if spec is None else spec.origin
        return _of_user(origin)
    key = name, tuple(sys.path)
    if key not in _places:
        spec = None
        with contextlib.suppress(Exception):  # a finder of somebody else's
            spec = _found(name)
        _places[key] = None if spec is None else _of_user(spec.origin)
    return _places[key]


def _found(name: str) -> ModuleSpec | None:
    """How a module would be loaded, without importing it or what it is in."""
    module = sys.modules.get(name)
    if module is not None:
        return _spec_of(module)
    above = name.rpartition(".")[0]
    places = None
    if above:
        of_package = _found(above)
        if of_package is None or of_package.submodule_search_locations is None:
            return None
        places = list(of_package.submodule_search_locations)
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, places) if find is not None else None
        if spec is not None:
            return spec  # type: ignore[no-any-return]  # a finder may be anything
    return None


@lru_cache(maxsize=4096)
def _of_user(origin: str | None) -> Path | None:
    if origin is None:
        return None
    path = Path(origin)
    if not path.is_absolute() or {"site-packages", "dist-packages"}.intersection(path.parts):
        return None
    if any(path.is_relative_to(folder) for folder in (_OURS, *_installed())):
        return None
    # A module in an archive counts by the whole archive.
    return next((file for file in (path, *path.parents) if file.is_file()), None)


@lru_cache(maxsize=1)
def _installed() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple({Path(paths[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")})


@lru_cache(maxsize=1024)
def _imported(path: str, name: str, digest: str, as_before: bool) -> tuple[str, ...]:
    """Names that the file of the module `name` imports, as far as they are written in it; by its content."""
    text, is_package = _text_of(path, name)
    if text is None:
        return ()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()  # what imports it says so
    package = name if is_package else name.rpartition(".")[0]
    return tuple(dict.fromkeys(_names(tree, name, package, as_before=as_before)))


def _text_of(path: str, name: str) -> tuple[str | bytes | None, bool]:
    """The text of a module, None where it has none; and whether it is a package."""
    if path.endswith(".py"):
        try:
            return Path(path).read_bytes(), Path(path).name == "__init__.py"
        except OSError:
            return None, False
    spec = None
    with contextlib.suppress(Exception):  # a finder or loader of somebody else's
        spec = _found(name)
        get_source = getattr(spec and spec.loader, "get_source", None)
        if spec is not None and get_source is not None:
            return get_source(name), spec.submodule_search_locations is not None
    return None, False


def _names(tree: ast.Module, name: str, package: str, *, as_before: bool) -> Iterator[str]:
    for node in _nodes_before(tree) if as_before else _nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            yield base
            # What is taken from a package may be a module of it.
            yield from (f"{base}.{alias.name}" for alias in node.names if base and alias.name != "*")
        elif isinstance(node, ast.Call):
            if _called(node.func) in ("import_module", "__import__"):
                yield from _literal_names(node, name, package, as_before=as_before)
            elif _called(node.func) in FROM_PATH and not as_before:
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                yield from (placed(text, text) for text in map(_text, given) if text.endswith(".py"))


def _literal_names(call: ast.Call, name: str, package: str, *, as_before: bool) -> Iterator[str]:
    given = [*call.args, *(k.value for k in call.keywords if k.arg in ("name", "package"))]
    wanted = _text(given[0]) if given else ""
    if not wanted.startswith(".") or as_before:
        if wanted and (call.args or not as_before):
            yield wanted
        return
    of = given[1] if len(given) > 1 else None
    above = _text(of) or {"__name__": name}.get(getattr(of, "id", ""), package)
    with contextlib.suppress(ImportError):  # beyond the top: what imports it says so
        yield importlib.util.resolve_name(wanted, above)


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A node and every one in it, without what only type checkers read."""
    yield node
    inside: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.If):
        test = node.test
        if _called(test) == "TYPE_CHECKING":
            inside = node.orelse
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inside = node.body if _called(test.operand) == "TYPE_CHECKING" else inside
    for inner in inside:
        yield from _nodes(inner)


def _nodes_before(tree: ast.AST) -> Iterator[ast.AST]:
    """As `_nodes` in records of form 0: whatever is said of TYPE_CHECKING, the body is left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield other
                yield from _nodes_before(other)
            continue
        yield node
        yield from _nodes_before(node)


def _base(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    above = parts[: len(parts) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _called(function: ast.expr) -> str:
    """The name, or last part of a dotted name, that an expression is."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
