"""Modules of others that are imported when they are first used: numpy, which reading a record does not need.

Packages, too, of which a submodule is needed and not what their `__init__` loads (`defer`, `defer_when_imported`).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeGuard, cast

__all__ = ["HEAVY", "Later", "defer", "defer_when_imported", "is_numpy"]

HEAVY = ("ase.dft", "ase.md", "ase.optimize", "ase.spacegroup")
"""Packages of which `import ase.io` takes submodules, and whose `__init__` loads most of SciPy: half a second."""


class Later:
    """A module that is imported when something of it is first asked for.

    What was asked for stays here, so that the next use costs what an attribute of a module costs.

    Args:
        name: The module's.

    Example:
        >>> maths = Later("cmath")
        >>> maths.sqrt(4.0)
        (2+0j)
    """

    def __init__(self, name: str) -> None:
        self.__dict__["__name__"] = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # what doctest and inspect ask of every object
            raise AttributeError(attribute)
        found = getattr(import_module(self.__dict__["__name__"]), attribute)
        self.__dict__[attribute] = found
        return found


def is_numpy(value: object, *kinds: str) -> TypeGuard[Any]:
    """Whether a value is of one of these types of numpy; while that is not imported, none is.

    Example:
        >>> is_numpy(1.0, "floating", "integer")
        False
    """
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, tuple(getattr(numpy, kind) for kind in kinds))


# Packages whose `__init__` goes on.
_RUNNING: list[ModuleType] = []

# Where attributes of deferred packages are, which are had from there without the package.
_FOUND: dict[str, tuple[str, str]] = {}

_bootstrap: Any = importlib._bootstrap


@contextlib.contextmanager
def _importing(name: str) -> Iterator[None]:
    """Hold the lock that Python has for the import of a module: where two threads wait for each other, it is seen.

    Then what there is of the module has to do, as where two modules import each other.
    """
    lock = _bootstrap._get_module_lock(name)
    try:
        lock.acquire()
    except _bootstrap._DeadlockError:
        yield
        return
    try:
        yield
    finally:
        lock.release()


class _Deferred(ModuleType):
    """A package whose `__init__` runs when an attribute is first asked for; its submodules load without."""

    def __getattr__(self, name: str) -> Any:  # whatever the package has
        if name.startswith("__") and name not in ("__all__", "__author__", "__version__"):
            raise AttributeError(name)
        if (where := _FOUND.get(f"{self.__name__}.{name}")) is not None:
            return attrgetter(where[1])(importlib.import_module(where[0]))
        if importlib.util.find_spec(f"{self.__name__}.{name}") is not None:
            return importlib.import_module(f"{self.__name__}.{name}")
        spec = self.__spec__
        assert spec is not None and spec.loader is not None  # set by defer
        with _importing(self.__name__):  # another thread that asks meanwhile waits for the whole package
            if name not in self.__dict__ and type(self) is not ModuleType and self not in _RUNNING:
                _RUNNING.append(self)
                try:
                    spec.loader.exec_module(self)
                finally:
                    _RUNNING.remove(self)
                self.__class__ = ModuleType  # type: ignore[assignment]  # from here on an ordinary module
        try:
            return self.__dict__[name]
        except KeyError:  # the package has none, or asks for it while it begins
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None


def defer(*packages: str, where: Mapping[str, tuple[str, str]] | None = None) -> None:
    """Make packages importable without running their `__init__` until it is needed.

    Args:
        packages: Names, parents first. One that is imported already is left alone.
        where: Of attributes, e.g. `parsl.__version__`: the module that they are had from, and the name
                there, which may have dots.
    """
    _FOUND.update(where or {})
    for name in packages:
        spec = importlib.util.find_spec(name) if name not in sys.modules else None
        if spec is None or spec.submodule_search_locations is None:
            continue
        module = _Deferred(name)
        module.__spec__ = spec
        module.__path__ = list(spec.submodule_search_locations)
        module.__file__ = spec.origin
        module.__package__ = name
        sys.modules[name] = module


class _Second:
    """A package's loader that does nothing the first time, when the package is imported."""

    def __init__(self, loader: Any) -> None:
        self._loader, self._imported = loader, False

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Deferred(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if self._imported:
            self._loader.exec_module(module)
        self._imported = True

    def __getattr__(self, name: str) -> Any:  # what else loaders are asked for: source, data, ...
        return getattr(self._loader, name)


class _Finder:
    """Finds some packages in the usual way, for `_Second` to load."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in self.names else None
        if spec is not None and spec.loader is not None and spec.submodule_search_locations is not None:
            spec.loader = cast(Any, _Second(spec.loader))
        return spec


_FINDER = _Finder()


def defer_when_imported(*packages: str) -> None:
    """`defer` when somebody imports them: their parents are not imported for it.

    For processes of our own; a user's script imports as ever.

    Args:
        packages: Names of packages inside others. One that is imported already stays as it is.
    """
    _FINDER.names.update(packages)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
