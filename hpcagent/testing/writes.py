"""What a piece of a program writes outside of a folder."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Writes"]

# Audit events of Python -> which of their arguments is a path that is written, made or removed.
_EVENTS = {
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# Hooks cannot be taken back: one for the process, which asks who listens.
_listening: list[Writes] = []
_hooked = threading.Event()


class Writes:
    """A context in which writes outside of a folder are noted.

    What Python itself opens for writing, makes, renames or removes is seen while it happens, in all threads of
    this process; what programs and C libraries leave behind is seen in the watched folder. Files that are there no
    more at the end were temporary; bytecode of modules and devices do not count.

    Args:
        outside: The folder in which all may be written.
        watched: A folder that is looked through before and after, e.g. an empty working directory; or None.

    Attributes:
        found: Paths that were written and are still there, or were there and are gone; sorted.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as inside, tempfile.TemporaryDirectory() as other:
        ...     with Writes(outside=inside) as writes:
        ...         for folder in (inside, other):
        ...             _ = Path(folder, "a.txt").write_text("a")
        ...     writes.found == (f"{Path(other).resolve()}/a.txt",)
        True
    """

    def __init__(self, *, outside: str | Path, watched: str | Path | None = None) -> None:
        self.found: tuple[str, ...] = ()
        self._inside = Path(outside).resolve()
        self._watched = watched
        self._seen: dict[str, bool] = {}
        self._listed: dict[str, float] = {}

    def __enter__(self) -> Writes:
        if not _hooked.is_set():
            _hooked.set()
            sys.addaudithook(_heard)
        self._listed = _listing(self._watched)
        _listening.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _listening.remove(self)
        written = {path for path, was_there in self._seen.items() if os.path.lexists(path) or was_there}
        now = _listing(self._watched)
        written |= {path for path in now.keys() | self._listed.keys() if now.get(path) != self._listed.get(path)}
        self.found = tuple(sorted(path for path in written if self._counts(path)))

    def note(self, path: str) -> None:
        """Take in that a path is about to be written or removed."""
        if path not in self._seen:
            self._seen[path] = os.path.lexists(path)

    def _counts(self, path: str) -> bool:
        whole = Path(path)
        place = whole.parent.resolve() / whole.name
        if place == self._inside or place.is_relative_to(self._inside):
            return False
        return not ("__pycache__" in place.parts or path.startswith(("/dev/", "/proc/")))


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if not _listening:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = any(c in mode for c in "wax+") if isinstance(mode, str) else bool((flags or 0) & _WRITING)
        paths = (path,) if writes else ()
    elif event in _EVENTS:
        paths = tuple(arguments[i] for i in _EVENTS[event])
    else:
        return
    for path in paths:
        if isinstance(path, (str, bytes, os.PathLike)):
            for one in list(_listening):
                one.note(str(Path(os.fsdecode(path)).absolute()))


def _listing(folder: str | Path | None) -> dict[str, float]:
    """The files below a folder, with when each was changed."""
    found: dict[str, float] = {}
    for path in () if folder is None else Path(folder).absolute().rglob("*"):
        with contextlib.suppress(OSError):  # gone meanwhile
            found[str(path)] = path.lstat().st_mtime
    return found
