"""A campaign to be read, by its folder or by an archive of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcagent.runs.unpacked import Unpacked

__all__ = ["is_archive", "opened_folder"]


def is_archive(path: str | Path) -> bool:
    """Whether this names a file, and so an archive, and no folder."""
    return Path(path).expanduser().is_file()


@contextmanager
def opened_folder(path: Path) -> Iterator[tuple[Path, Unpacked | None]]:
    """The folder to read: that one, or of an archive its records for the time being."""
    if not is_archive(path):
        yield path, None
        return
    from hpcagent.runs.unpacked import Unpacked

    unpacked = Unpacked(path)
    try:
        yield unpacked.folder, unpacked
    finally:
        unpacked.close()
