"""A run that is longer than a finished one: the files that it goes on from, as they were when that one ended.

It has them in `attempt-0/`: the restart file of the end, and the logs of all that this was continued from.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcagent.apps.made_with import sha256
from hpcagent.errors import AppFailed
from hpcagent.science.lammps.restart import CONTINUED, origin_of
from hpcagent.science.lammps.restart_file import END, restart_step

__all__ = ["Ends", "changed", "ends_of", "gone", "other_end", "taken_over"]

Ends = Mapping[str, Sequence[Any]]
"""Files that a longer run goes on from: path in its directory -> bytes and SHA-256; see `Result.ends_with`."""


def ends_of(folder: Path, logs: list[str]) -> dict[str, tuple[int, str]]:
    """The files that a longer run would go on from, as they are now: path in the directory -> bytes and SHA-256.

    Args:
        folder: Directory of the run.
        logs: Names of further logs that the script opens.

    Raises:
        AppFailed: `RestartGone`: an attempt that it was continued from is not there.
        OSError: One cannot be read.
    """
    return {name: ((folder / name).stat().st_size, sha256(folder / name)) for name in _needed(folder, logs)}


def other_end(folder: Path, logs: list[str], ends: Ends) -> str:
    """What a longer run would go on from that is not as it was when the run ended, in a clause; empty: nothing.

    Args:
        folder: The run's directory, or a copy of these files.
        logs: Names of further logs that the script opens.
        ends: As they were when the run ended; empty where its record is older than that.
    """
    if not ends:
        return ""
    try:
        found = list(_needed(folder, logs))
        for name in dict.fromkeys((*ends, *found)):
            if name not in ends:
                return f"{name} was not there when the run ended"
            path = folder / name
            if not path.is_file():
                return f"{name} is not there, or no file"
            size, digest = ends[name]
            now = path.stat().st_size
            if now != size:
                return f"{name} has {now} bytes, and had {size} when the run ended"
            other = sha256(path)
            if other != digest:
                return f"{name} has SHA-256 {other[:12]}, and had {str(digest)[:12]} when the run ended"
    except AppFailed as error:
        return error.message.rstrip(".")
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    return ""


def taken_over(source: Path, workdir: Path, logs: list[str], ends: Ends | None = None) -> None:
    """Put what a run goes on from into its directory as `attempt-0/`: restart file of the end, and logs.

    By hard links where that is possible: nothing of a finished run is written again, and it may be removed later.
    Each attempt looks whether they are as they were when that run ended.

    Args:
        source: Directory of the finished run that is extended.
        workdir: The new run's own directory.
        logs: Names of further logs that the script opens.
        ends: As these files were when that run ended; None or empty where its record is older than that.

    Raises:
        AppFailed: `RestartGone`, `RestartChanged`.
    """
    target = workdir / "attempt-0"
    if target.is_dir():
        words = other_end(target, logs, ends or {})
        if words:
            raise changed(target, words)
        return
    if restart_step(source / END) is None:
        raise gone(source, f"it has no whole {END}")
    part = workdir / "attempt-0.part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir()
        for name in _needed(source, logs):
            _same(source / name, part / name)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise gone(source, str(error)) from None
    words = other_end(part, logs, ends or {})
    if words:
        shutil.rmtree(part, ignore_errors=True)
        raise changed(source, words)
    part.rename(target)


def gone(source: Path, why: str) -> AppFailed:
    """The failure of a run whose beginning is not there any more."""
    return AppFailed(
        f"the files of the run that it goes on from are gone or damaged ({source}: {why}).",
        kind="infrastructure",
        name="RestartGone",
        repair="run a replicate instead; the earlier result stays on record as it is",
    )


def changed(source: Path, why: str) -> AppFailed:
    """The failure of a run whose beginning is another than when the run that it extends has ended."""
    return AppFailed(
        f"the files of the run that it goes on from are not those that it ended with ({source}: {why}).",
        kind="infrastructure",
        name="RestartChanged",
        repair="put the files back as they were, or run a replicate instead; the earlier result stays on record",
    )


def _needed(source: Path, logs: list[str]) -> Iterator[str]:
    """Paths in a run's directory: its restart file, its logs, those of what it was continued from and extends."""
    yield END
    base = at = source
    seen = {at}
    while True:
        for name in ("log.lammps", *logs, CONTINUED):
            if (at / name).is_file():
                yield (at / name).relative_to(source).as_posix()
        try:
            origin = origin_of(at)
        except ValueError as error:
            raise gone(source, f"{CONTINUED}: {error}") from None
        if origin is None:
            return
        number, _ = origin
        at = base / f"attempt-{number}"
        if at in seen or not at.is_dir():
            raise gone(source, f"attempt-{number} is not there")
        seen.add(at)
        if number == 0:
            base = at


def _same(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
