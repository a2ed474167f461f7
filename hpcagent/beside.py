"""Modules of the working directory: found last of all, and only those that no other user wrote.

The folder goes to the end of `sys.path`, so that nothing of the standard library or of the installed packages is
taken from it, and it has a finder of its own that looks at the owner of a file before the file is run.
`$PYTHONPATH` would put it first; so child processes get it from `told()` by `as_told()`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import ModuleType

from hpcagent.owners import TRUST, own_link, stranger

__all__ = ["ModuleRefused", "as_told", "told", "use_modules_of"]


class ModuleRefused(ModuleNotFoundError):
    """A module lies in the working directory, but another user may decide what is in it."""


class _Folder:
    """The working directory of this process, or of the one that started it.

    Attributes:
        path: The folder; empty if there is none.
        guarded: It, and the folders of packages that were found in it.
        problem: Why none of its modules are used; empty if they are.
    """

    path = ""
    guarded: set[str] = set()
    problem = ""


def use_modules_of(folder: str) -> str:
    """Let this process import the modules of a folder, after all others.

    Args:
        folder: Absolute.

    Returns:
        Why none of them are used, in words: others may write the folder. Empty if they are.
    """
    _Folder.path = folder
    _Folder.guarded = {folder}
    _Folder.problem = stranger(Path(folder))
    by_hand = [Path(entry).absolute() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if Path(folder) not in by_hand:
        # `python -m` puts it first.
        sys.path[:] = [entry for entry in sys.path if Path(entry).absolute() != Path(folder)]
        if not _Folder.problem:
            sys.path.append(folder)
    sys.path_hooks[:] = [_finder, *(hook for hook in sys.path_hooks if hook is not _finder)]
    sys.path_importer_cache.pop(folder, None)
    sys.meta_path[:] = [*(finder for finder in sys.meta_path if finder is not _Unused), _Unused]
    return _Folder.problem


def told() -> list[str]:
    """What a child process is told, to find the modules that this one finds: see `as_told`."""
    return [_Folder.path, os.environ.get(TRUST, "")] if _Folder.path else []


def as_told(words: Sequence[str]) -> None:
    """Use the modules of the folder that the process used which started this one.

    Args:
        words: What `told` gave there.
    """
    if words:
        folder, trust = words
        if trust:
            os.environ[TRUST] = trust
        use_modules_of(folder)


class _Source(SourceFileLoader):
    """Takes compiled code of one's own only: it is run in place of the source."""

    def get_data(self, path: str | os.PathLike[str]) -> bytes:
        if str(path).endswith(tuple(BYTECODE_SUFFIXES)) and _problem(str(path)):
            raise OSError(f"{path} is not one's own")  # the import system then reads the source
        return super().get_data(str(path))


_LOADERS = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (_Source, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)


class _Finder(FileFinder):
    """Finds modules as Python does in a folder, and refuses those of others."""

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """How a module would be loaded.

        Raises:
            ModuleRefused: Another user wrote it, or may.
        """
        spec = super().find_spec(fullname, target)
        if spec is None:
            return None
        if spec.origin is not None:
            problem = _problem(spec.origin)
            if problem:
                raise _refused(fullname, problem)
        _Folder.guarded.update(spec.submodule_search_locations or ())
        return spec


def _finder(path: str) -> _Finder:
    if path not in _Folder.guarded:
        raise ImportError(path)  # so a path hook says that it is not for it
    return _Finder(path, *_LOADERS)


class _Unused:
    """Is asked last, for a module that nobody has found: whether it lies in the folder that is not used."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None.

        Raises:
            ModuleRefused: It does.
        """
        if path is None and _Folder.problem:
            finder = FileFinder(_Folder.path, *_LOADERS)
            spec = finder.find_spec(fullname)
            if spec is not None and spec.origin is not None:
                raise _refused(fullname, _Folder.problem)
        return None


def _refused(name: str, problem: str) -> ModuleRefused:
    return ModuleRefused(
        f"the module {name!r} of the working directory is not used, because it would be run as you: {problem}",
        name=name,
    )


def _problem(path: str) -> str:
    """Why a file should not be run; a link of another user may lead to what was not meant to be."""
    with contextlib.suppress(OSError):
        if Path(path).is_symlink() and not own_link(Path(path)):
            return f"{path} is a link of another user"
    return stranger(Path(path))
