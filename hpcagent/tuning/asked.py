"""What a tuning was asked for, in its folder: so that the same command goes on with it, and no other one does."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput, RunDirLocked
from hpcagent.science.lammps.settings import Settings
from hpcagent.store.files import write_whole
from hpcagent.store.rundir import LOCK, Lock, holder

__all__ = ["digest", "taken"]

ASKED, ANSWER, CAMPAIGN = "asked.json", "tuned.json", "tune.toml"


def digest(settings: Settings) -> str:
    """Of the script and of the files that it reads."""
    total = hashlib.sha256(settings.read.text.encode())
    for file in settings.read.files:
        with (settings.path.absolute().parent / file).open("rb") as one:
            total.update(hashlib.file_digest(one, "sha256").digest())
    return total.hexdigest()


@contextmanager
def taken(folder: Path, asked: Mapping[str, Any]) -> Iterator[Path]:
    """Take a folder for a tuning, or go on with the same one in it; without its campaign nothing is left of it.

    Args:
        folder: Made where it is not there.
        asked: Everything that decides the outcome, as plain data.

    Raises:
        BadInput: There is something else in it, or its tuning has ended.
    """
    folder = folder.absolute()
    asked = json.loads(json.dumps(asked))
    there = folder.is_dir()
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    if folder.exists() and not there:
        _refuse(folder, asked)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder}: cannot be made: {error}.", value=str(folder)) from None
    lock = Lock(folder)
    try:
        lock.acquire()
    except RunDirLocked:
        raise BadInput(
            f"{folder}: another tuning is at it ({holder(folder)[1]}); wait for it, or give another --folder.",
            value=str(folder),
        ) from None
    try:
        if any(path.name != LOCK for path in folder.iterdir()):
            there = True
            _refuse(folder, asked)
        try:
            write_whole(folder / ASKED, json.dumps(asked, indent=1) + "\n")
            yield folder
        except BaseException:
            if not (folder / CAMPAIGN).exists():
                _remove(folder, made, keep=there)
            raise
    finally:
        lock.release()


def _refuse(folder: Path, asked: Mapping[str, Any]) -> None:
    try:
        before = json.loads((folder / ASKED).read_text())
    except (OSError, ValueError):
        raise BadInput(
            f"{folder}: is there already and not empty; give another --folder.", value=str(folder)
        ) from None
    if (folder / ANSWER).exists():
        raise BadInput(
            f"{folder}: was tuned to its end: the answer is in {folder}/tuned.txt. Give another --folder to tune "
            f"again, or `hpcagent run {folder}/{CAMPAIGN} --set until.max_runs=N` for more runs.",
            value=str(folder),
        )
    other = [name for name in asked if before.get(name) != asked[name]]
    if other:
        raise BadInput(
            f"{folder}: a tuning was begun there with another {', '.join(other)}, so it is not gone on with; give "
            "what was given then, or another --folder.",
            value=str(folder),
        )


def _remove(folder: Path, made: list[Path], *, keep: bool) -> None:
    """Remove what was written, and the folders that were made for it."""
    for path in folder.iterdir() if keep else ():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in made[1:]:
            try:
                parent.rmdir()
            except OSError:
                return
