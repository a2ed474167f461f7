"""The files that a run's parameters choose: kept in the campaign's folder, checked and placed where the run is.

Imports only the standard library at the top, for workers do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.apps.made_with import OtherFile, sha256
from hpcagent.errors import AppFailed, BadInput

if TYPE_CHECKING:
    from hpcagent.apps.run import Run
    from hpcagent.model.files import FileChoice
    from hpcagent.model.space import Space

__all__ = ["FILES", "changed_choices", "chosen", "keep", "kept_at", "placed"]

FILES = "files"
"""Folder of a campaign in which its files are: `files/SHA256/NAME`."""

_COPY_BELOW = 1 << 20
_OURS = ("hpcagent.apps.lammps.", "hpcagent.apps.executable.")


def kept_at(folder: Path, file: FileChoice) -> Path:
    """Where a campaign has its own copy of a file."""
    return folder / FILES / file.sha256 / file.name


def keep(folder: Path, space: Space) -> None:
    """Copy the files of a space into a campaign's folder, once each: what is there is not touched.

    Raises:
        BadInput: A file is gone, or has another content than when the parameter was made.
        StoreFull: The folder cannot be written.
    """
    for parameter in space.parameters:
        for file in parameter.files:
            _keep(folder, file)


def _keep(folder: Path, file: FileChoice) -> Path:
    from hpcagent.store.files import make_folder, refusing_clearly

    target = kept_at(folder, file)
    with contextlib.suppress(OSError):
        if sha256(target) == file.sha256:
            return target
    now = _now(file)
    if now != file.sha256:
        raise BadInput(
            f"{OtherFile(file.name, file.path, file.sha256, now)}, and {folder} has no copy of it. Put the old "
            "content back.",
            value=file.path,
        )
    with refusing_clearly(target):
        make_folder(target.parent)
        part = target.with_name(f"{target.name}.{os.getpid()}.part")
        shutil.copyfile(file.path, part)
        if sha256(part) != file.sha256:
            part.unlink()
            raise BadInput(f"{file.path} was edited while it was copied; try again.", value=file.path)
        part.chmod(0o644)
        part.replace(target)
    return target


def _now(file: FileChoice) -> str:
    try:
        return sha256(file.path) if file.path else ""
    except OSError:
        return ""


def changed_choices(recorded: Space, given: Space) -> list[str]:
    """A clause for each file that has another content now than when the campaign began.

    A file that is gone does not count: the campaign has its own copy.

    Args:
        recorded: The parameters as the campaign's folder has them.
        given: Those that are to go on.
    """
    found = []
    for parameter in recorded.parameters:
        now = {file.name: file for file in given[parameter.name].files} if parameter.name in given else {}
        for file in parameter.files:
            ours = now.get(file.name, file)
            content = ours.sha256 if ours.sha256 != file.sha256 else _now(ours)
            if content not in ("", file.sha256):
                found.append(str(OtherFile(file.name, ours.path, file.sha256, content)))
    return found


def chosen(space: Space, params: Mapping[str, Any], folder: Path) -> dict[str, dict[str, str]]:
    """The files that a point chooses, for its order: parameter -> name, SHA-256 and where the copy of it is."""
    found = {}
    for parameter in space.choosing:
        for file in parameter.files:
            if params.get(parameter.name) == file.name:
                path = _keep(folder, file).absolute()
                found[parameter.name] = {"name": file.name, "sha256": file.sha256, "path": str(path)}
    return found


def placed(order: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """The parameters of a run, its files checked and put into its own directory by their names.

    A function gets the path of its file. A program, which is started there, gets the name: a plain word.

    Raises:
        AppFailed: `FilesChanged`: the content is not the one that the execution id stands for.
    """
    params = dict(order["manifest"]["params"])
    by_name = str(order["function"]).startswith(_OURS)
    for parameter, file in (order.get("chosen") or {}).items():
        target = run.workdir / file["name"]
        _place(Path(file["path"]), target, file)
        if not by_name:
            params[parameter] = target
    return params


def _place(source: Path, target: Path, file: Mapping[str, str]) -> None:
    try:
        now = sha256(source)
        if now == file["sha256"]:
            if source.stat().st_size < _COPY_BELOW:
                shutil.copyfile(source, target)
                now = sha256(target)
            else:
                target.symlink_to(source)
    except FileNotFoundError:
        now = ""
    if now != file["sha256"]:
        raise AppFailed(
            f"{OtherFile(file['name'], str(source), file['sha256'], now)}: not computed, as the run stands for "
            "the content that is recorded.",
            kind="infrastructure",
            name="FilesChanged",
            repair="put the old content back and resume, or start a new campaign in another folder",
        )
