"""LAMMPS in a sandbox: its files are put into the box, and what its contract declares is taken out of it.

The run's own directory has the script and its files, too, as of every run, so that it can be repeated by hand.
"""

from __future__ import annotations

import contextlib
import glob
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from hpcagent.apps.deciding import Deciding
from hpcagent.apps.ending import Finished
from hpcagent.apps.printed import read_tail
from hpcagent.apps.run import Run, note
from hpcagent.apps.sandbox.boxed import FOLDER, Box, box_of
from hpcagent.apps.sandbox.confined import Confined
from hpcagent.apps.sandbox.outputs import taken_out
from hpcagent.apps.sandbox.record import Sandbox
from hpcagent.errors import AppFailed
from hpcagent.regular import open_regular
from hpcagent.science.lammps.restart import SOURCE, Earlier
from hpcagent.science.lammps.restart_file import END, FILES

__all__ = ["fill", "lammps_box", "recover", "take_out"]

_INPUTS = ("in.lammps", "params.vars")
_TAIL = 4000


def lammps_box(run: Run) -> AbstractContextManager[Box | None]:
    """The sandbox of a run, which is gone afterwards; None for a run without one."""
    return nullcontext() if run.settings.get("sandbox") is None else box_of(run)


def fill(box: Box, source: Earlier | None, elsewhere: Iterable[Deciding]) -> None:
    """Put what LAMMPS reads into the box; large files that it only reads stay where they are, and can be read.

    Args:
        box: The sandbox of the run, in whose directory the files are.
        source: What the run goes on from, or None.
        elsewhere: Files that lie somewhere else; of those that the script names by a path none is put there.
    """
    for folder in box.run.settings["folders"]:
        (box.folder / folder).mkdir(parents=True, exist_ok=True)
    for name in _given(box.run):
        path, target = box.run.workdir / name, box.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            _linked(box, name, path.readlink())
        else:
            shutil.copyfile(path, target)
    if source is not None:
        _linked(box, SOURCE, (box.run.workdir / source.file).absolute())
    for one in elsewhere:
        # A script does not decide itself what it may read: only what it has by name from LAMMPS' own folders.
        if not one.name.startswith("/"):
            box.read.append(str(one.path.absolute()))
        elif not any(one.path.is_relative_to(path) for path in box.confined.asked.read):
            note(f"{one.path}, which the script names, is not in its sandbox: add it to `read` of [sandbox]")


def _linked(box: Box, name: str, path: Path) -> None:
    (box.folder / name).symlink_to(path)
    box.read.append(str(path))


def _given(run: Run) -> Iterator[str]:
    """Names of the files in the run's directory that LAMMPS reads."""
    structure = (run.settings.get("structure") or {}).get("file")
    names = (*_INPUTS, *run.settings["paths"], *(run.settings.get("chosen") or ()), structure)
    return (name for name in dict.fromkeys(filter(None, names)) if (run.workdir / name).is_file())


def recover(run: Run) -> None:
    """Take what a further attempt needs out of the boxes of attempts whose worker was lost before it did so.

    Raises:
        AppFailed: `OutputsTooLarge`.
    """
    for attempt in run.workdir.glob("attempt-*"):
        lost = Confined("limits", Sandbox.model_validate(run.settings["sandbox"]), attempt / FOLDER)
        if not lost.work.is_dir():
            continue
        names = [name for name in _declared(run) if not (attempt / name).exists()]
        patterns = [glob.escape(name) for name in names]
        taken_out(lost.work, attempt, patterns, most_bytes=int(1e6 * lost.asked.output_mb))
        lost.remove()


def take_out(box: Box, finished: Finished) -> None:
    """Take the declared files out when LAMMPS has ended, however that was: an attempt may go on from them.

    Raises:
        AppFailed: `SandboxLimit`, `SandboxLost`, `SandboxFailed`, `OutputsTooLarge`.
    """
    run = box.run
    given = tuple(_given(run))
    declared = [name for name in dict.fromkeys(_declared(run)) if name not in _INPUTS]
    for name in declared:
        if name in given:  # the script writes to what it has read
            (run.workdir / name).unlink(missing_ok=True)
    printed = read_tail(run.workdir / "output.txt", _TAIL)
    patterns = [glob.escape(name) for name in declared]
    try:
        box.ended(finished, patterns, given=(*given, SOURCE), errors=printed, whatever=True)
    except AppFailed as error:
        details = {**error.details, "log_tail": _tail(run.workdir / "log.lammps") or printed}
        raise AppFailed(error.message, **details) from None


def _declared(run: Run) -> Iterator[str]:
    """Names of the files that may leave: logs, restart files, artifacts and the dumps that are measured."""
    settings = run.settings
    yield from ("log.lammps", *settings["logs"], *(settings.get("artifacts") or {}).values())
    yield from (settings.get("forces") or {}).values()
    if settings.get("restart"):
        yield from (*FILES, END)


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError), open_regular(log) as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        return file.read().decode(errors="replace")
    return ""
