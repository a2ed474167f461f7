"""Files as the choices of a parameter: a structure, a potential, an input. They count by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from hpcagent.errors import BadInput
from hpcagent.model.base import Record
from hpcagent.surroundings import importing_on_a_worker

if TYPE_CHECKING:
    from hpcagent.model.parameter import Parameter

__all__ = ["FileChoice", "check_files", "contents", "file_choices", "with_file_choices", "without_paths"]


class FileChoice(Record):
    """One file that a parameter can take.

    Attributes:
        name: What it is called in points, tables and the run's own directory: the file's name, with as many
            folders before it as tell it from the others.
        sha256: SHA-256 of its content, which decides the execution id.
        path: Where it lay when the parameter was made; where it lies decides nothing.
    """

    name: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    path: str = ""


def file_choices(
    paths: Sequence[object], *, folder: Path | None = None, where: str = ""
) -> tuple[FileChoice, ...]:
    """Read the files that a parameter can take.

    Args:
        paths: The files.
        folder: What relative paths are relative to; the working directory by default.
        where: What is read, for messages.

    Raises:
        BadInput: None is given, one is no file, has no plain name or cannot be read, or two are the same.
    """
    place = f"{where}: " if where else ""
    if not paths:
        raise BadInput(f"{place}a file parameter without files; list at least one.")
    whole = []
    for given in paths:
        if not isinstance(given, (str, Path)) or not str(given):
            raise BadInput(f"{place}{given!r} is no path of a file; give a text or a Path.", value=given)
        whole.append(((folder or Path()) / Path(given).expanduser()).absolute())
    found: dict[str, FileChoice] = {}
    for path, name in zip(whole, _names(whole), strict=True):
        try:
            digest = _digest(path, place)
        except BadInput:
            if not importing_on_a_worker():
                raise
            # A module is imported where its files need not be: the order of the run says what they are.
            digest = hashlib.sha256(f"unknown {path}".encode()).hexdigest()
        if digest in found:
            raise BadInput(
                f"{place}{path} and {found[digest].path} have the same content: one choice would be run twice. "
                "Leave one out.",
                value=str(path),
            )
        found[digest] = FileChoice(name=name, sha256=digest, path=str(path))
    return tuple(found.values())


def with_file_choices(data: Mapping[str, Any], folder: Path, where: str) -> dict[str, Any]:
    """A parameter's table of a TOML in which `files` lists paths, with its files and choices.

    Args:
        data: The table; without `files` it stays as it is.
        folder: Of the TOML: what paths are relative to.
        where: For messages.

    Raises:
        BadInput: As from `file_choices`, or choices are listed as well.
    """
    if not data.get("files"):
        return {key: value for key, value in data.items() if key != "files"}
    if data.get("choices"):
        raise BadInput(f"{where}: the files are the choices; drop the key 'choices'.")
    if not isinstance(data["files"], (list, tuple)):
        raise BadInput(f"{where}: files is a list of paths; got {data['files']!r}.", value=data["files"])
    files = file_choices(data["files"], folder=folder, where=where)
    return {**data, "files": files, "choices": tuple(file.name for file in files)}


def _digest(path: Path, place: str) -> str:
    if not path.exists():
        raise BadInput(f"{place}{path}: no such file.", value=str(path))
    if not path.is_file():
        raise BadInput(f"{place}{path} is no regular file.", value=str(path))
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(f"{place}{path} cannot be read: {error.strerror}.", value=str(path)) from None


def _names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, with as many folders as tell them apart: `fcc/POSCAR` is `fcc_POSCAR`."""
    deepest = max(len(path.parts) for path in paths)
    for parts in range(1, deepest):
        names = ["_".join(path.parts[1:][-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    twice = (
        next(path for i, path in enumerate(paths) if path in paths[:i])
        if len(set(paths)) < len(paths)
        else paths[0]
    )
    raise BadInput(f"{twice} is given twice, or its name cannot be told from another's.", value=str(twice))


def contents(parameters: Iterable[Parameter], params: Mapping[str, Any] | None = None) -> dict[str, str]:
    """SHA-256 of the files of parameters, by `PARAMETER: NAME`; with a point, of those that it takes.

    Example:
        >>> contents([])
        {}
    """
    return {
        f"{p.name}: {file.name}": file.sha256
        for p in parameters
        for file in p.files
        if params is None or params.get(p.name) == file.name
    }


def without_paths(data: Any) -> Any:
    """The plain data of parameters without where their files lie."""
    if isinstance(data, dict):
        return {
            key: [{k: v for k, v in file.items() if k != "path"} for file in value]
            if key == "files" and isinstance(value, list)
            else without_paths(value)
            for key, value in data.items()
        }
    return [without_paths(value) for value in data] if isinstance(data, list) else data


def check_files(parameters: Sequence[Parameter]) -> None:
    """Refuse two parameters with files of one name and different contents: a run has them in one directory.

    Raises:
        BadInput: There are such files.
    """
    known: dict[str, tuple[str, str]] = {}
    for p in parameters:
        for file in p.files:
            other, digest = known.setdefault(file.name, (p.name, file.sha256))
            if digest != file.sha256:
                raise BadInput(
                    f"parameters {other!r} and {p.name!r} both have a file {file.name!r} of different contents; "
                    "a run has its files in one directory: give one another name.",
                    value=file.name,
                )
