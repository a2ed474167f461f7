"""Files that parameters of a program name, and which it reads (`reads`): their content decides its numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.deciding import Deciding, used
from hpcagent.apps.made_with import sha256
from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed

__all__ = ["Read", "digests", "named", "read_by"]

_REPAIR = (
    "put the old content back, or ask for the run anew, with the file as it is now; if the workers see other "
    "files than the process that steers, name one that both see"
)


def named(params: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Path]:
    """Parameter -> file, of those that name one; not those that choose one, which a run has in its own directory.

    Example:
        >>> named({"table": "/data/a.csv", "other": "", "x": 1.0}, {"reads": ["table", "other"]})
        {'table': PosixPath('/data/a.csv')}
    """
    own = settings.get("chosen", ())
    given = {name: params.get(name) for name in settings.get("reads", ())}
    return {name: Path(str(v)).absolute() for name, v in given.items() if v not in (None, "") and v not in own}


def digests(params: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, str]:
    """Parameter -> SHA-256 of the file that it names, of those that can be read here."""
    found = {}
    for name, path in named(params, settings).items():
        with contextlib.suppress(OSError):
            found[name] = sha256(path)
    return found


class Read:
    """The files that a run reads: with the content for which its execution id stands, before and after.

    Args:
        run: The run.
        files: Parameter -> file.

    Attributes:
        files: Path -> SHA-256.
        notes: What has to be said of them.

    Raises:
        AppFailed: `MissingFile`, `FilesChanged`.
    """

    def __init__(self, run: Run, files: Mapping[str, Path]) -> None:
        for name, path in files.items():
            if not path.is_file():
                raise AppFailed(f"{name}: {path}: no such file.", kind="contract", name="MissingFile")
        self._run, self._named = run, [Deciding(name, path) for name, path in files.items()]
        self.files, self.notes = used(self._named, run, repair=_REPAIR)

    @property
    def paths(self) -> list[str]:
        """What a program in a sandbox or container is shown."""
        return [str(one.path) for one in self._named]

    def look_again(self) -> None:
        """Once the program has ended: it has read what was looked at.

        Raises:
            AppFailed: `FilesChanged`.
        """
        now, _ = used(self._named, self._run, repair=_REPAIR)
        other = [path for path, digest in self.files.items() if now.get(path, digest) != digest]
        if other:
            raise AppFailed(
                f"{', '.join(other)}: edited while the run went: which content was used is not known.",
                kind="infrastructure",
                name="FilesChanged",
                repair=_REPAIR,
            )


def read_by(run: Run, params: Mapping[str, Any]) -> Read:
    """The files that a run reads, looked at.

    Raises:
        AppFailed: `MissingFile`, or `FilesChanged`: another content than that of the run's execution id.
    """
    return Read(run, named(params, run.settings))
