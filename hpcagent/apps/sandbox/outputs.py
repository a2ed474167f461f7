"""What leaves a sandbox: declared outputs that are regular files of a bounded size; nothing else."""

from __future__ import annotations

import fnmatch
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcagent.errors import AppFailed

__all__ = ["Left", "taken_out"]

_MOST_NAMED = 50
_MOST_SEEN = 100_000


@dataclass(frozen=True, slots=True)
class Left:
    """What was in the folder of a sandbox when the program had ended.

    Attributes:
        taken: Declared files that were copied out, by name.
        not_declared: Names of others, at most 50.
        refused: Declared ones that are no plain files: name -> what they are.
        more: How many others there were that `not_declared` does not name.
    """

    taken: tuple[str, ...]
    not_declared: tuple[str, ...]
    refused: dict[str, str]
    more: int = 0

    def said(self) -> str:
        """What was not taken, in a sentence; empty where that is nothing."""
        parts = [f"{name} is {what}" for name, what in sorted(self.refused.items())]
        if self.not_declared:
            more = f" and {self.more:,} more" if self.more else ""
            verb = "is" if len(self.not_declared) == 1 else "are"
            parts.append(f"{', '.join(self.not_declared)}{more} {verb} no declared output")
        return f"not taken out of the sandbox: {'; '.join(parts)}" if parts else ""


def taken_out(
    source: Path, target: Path, declared: Sequence[str], *, given: Iterable[str] = (), most_bytes: int
) -> Left:
    """Copy the declared outputs of a program that has ended out of its folder.

    Args:
        source: The folder; no process may be at it any longer.
        target: Where they go, under their names.
        declared: Names or patterns (`*.xyz`, `out/*.json`; `*` matches no `/`) relative to `source`.
        given: Names of files that were put there for it; they are no outputs unless declared.
        most_bytes: Of all of them together.

    Raises:
        AppFailed: `OutputsTooLarge`.
    """
    inputs = set(given)
    taken: list[tuple[str, int]] = []
    others: list[str] = []
    refused: dict[str, str] = {}
    for name, what, size in _files(source):
        if not any(_matches(name, pattern) for pattern in declared):
            if name not in inputs:
                others.append(name)
        elif what:
            refused[name] = what
        else:
            taken.append((name, size))
    total = sum(size for _, size in taken)
    if total > most_bytes:
        raise AppFailed(
            f"the declared outputs have {total / 1e6:.4g} MB, and {most_bytes / 1e6:.4g} MB may leave it.",
            kind="simulation",
            name="OutputsTooLarge",
            repair="raise output_mb of [sandbox], or let the program write less",
        )
    for name, size in taken:
        _copy(source, target, name, size)
    named = tuple(sorted(others)[:_MOST_NAMED])
    return Left(tuple(sorted(name for name, _ in taken)), named, refused, len(others) - len(named))


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _files(folder: Path) -> list[tuple[str, str, int]]:
    """(name, what it is where it is no plain file, bytes) of all that is in a folder; links are not followed."""
    found: list[tuple[str, str, int]] = []
    unseen = [folder]
    while unseen and len(found) < _MOST_SEEN:
        here = unseen.pop()
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except PermissionError:
            here.chmod(0o700)
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        for entry in entries:
            about = entry.stat(follow_symlinks=False)
            name = str(Path(entry.path).relative_to(folder))
            if stat.S_ISDIR(about.st_mode):
                unseen.append(Path(entry.path))
                continue
            found.append((name, _kind(about), about.st_size))
    return found


def _kind(about: os.stat_result) -> str:
    mode = about.st_mode
    if stat.S_ISLNK(mode):
        return "a link"
    if not stat.S_ISREG(mode):
        return "a device, a socket or a pipe"
    # Another name of a file elsewhere: its content need not be the program's own.
    return "a second name of another file" if about.st_nlink > 1 else ""


def _copy(source: Path, target: Path, name: str, size: int) -> None:
    path = source / name
    out = target / name
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        path.chmod(0o600)
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as reading, out.open("xb") as writing:
        shutil.copyfileobj(reading, writing)
        if writing.tell() != size:
            raise OSError(f"{path} has changed while it was copied")
