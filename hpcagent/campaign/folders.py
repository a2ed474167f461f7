"""The folders of campaigns below another one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hpcagent.errors import BadInput

__all__ = ["DEPTH", "find_campaigns"]


DEPTH = 4
"""So many folders below the one that is named are looked into."""


def find_campaigns(folder: str | Path, *, depth: int = DEPTH, unread: list[Path] | None = None) -> Iterator[Path]:
    """Yield the folders of campaigns in a folder and below it.

    Args:
        folder: Where to look.
        depth: How many folders below it.
        unread: Takes the folders that cannot be read.

    Raises:
        BadInput: There is no such folder.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise BadInput(
            f"There is no folder {root}; name the one that your campaigns' folders are in.", value=str(root)
        )
    level = [root]
    for left in range(depth, -1, -1):
        below: list[Path] = []
        for path in level:
            try:
                inner, names = _look(path)
            except OSError:
                if unread is not None:
                    unread.append(path)
                continue
            if "events.jsonl" in names or {"campaign.toml", "app.json"} <= names:
                yield path
            elif left:
                below += inner
        level = below


def _look(path: Path) -> tuple[list[Path], set[str]]:
    """The folders in a folder, but those that are hidden or links, and the names of what else is there."""
    inner, names = [], set()
    with os.scandir(path) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                names.add(entry.name)
            elif not entry.name.startswith("."):
                inner.append(path / entry.name)
    return inner, names
