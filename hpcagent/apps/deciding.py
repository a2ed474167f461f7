"""The files that decide a run's numbers: pseudopotentials, PAW setups, basis sets, models, potentials.

Where an execution id is made, each of them counts by its content (`declared`); where the run is, the content is
looked at again (`used`). Which files those are is known to the room of the app (`hpcagent.apps.hooks`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.apps.hooks import files_of
from hpcagent.apps.made_with import sha256
from hpcagent.errors import AppFailed
from hpcagent.model.base import canonical_json

if TYPE_CHECKING:
    from hpcagent.apps.run import Run

__all__ = ["NAMED", "Deciding", "Looks", "declared", "keeping", "kept", "places", "told_by", "used", "with_files"]

Looks = dict[str, tuple[float, dict[str, str]]]
"""What was looked at -> until when that is good, and what was found."""

_kept: ContextVar[Looks | None] = ContextVar("looks at files", default=None)

_REPAIR = (
    "start the run anew; if the workers see other files than the process that steers, name the same folder for "
    "both (setting pseudo_dir, or `env` in the site profile)"
)

NAMED = "keywords "
"""Stands before the name of a file that `keywords` or `basis` name by a path."""


@dataclass(frozen=True, slots=True)
class Deciding:
    """A file whose content decides numbers.

    Attributes:
        name: What it is to the engine, the same wherever the file lies: `Si`, `checkpoint`.
        path: Where it is.
        element: The element it is for; empty: every structure uses it.
    """

    name: str
    path: Path
    element: str = ""


@contextlib.contextmanager
def keeping(looks: Looks) -> Iterator[None]:
    """Let a look at files that took long be good for a while, in this block.

    For a campaign, which makes manifest after manifest. Everywhere else each one looks anew: a person may have
    changed a file a moment ago.

    Args:
        looks: Those of the campaign so far; filled.
    """
    token = _kept.set(looks)
    try:
        yield
    finally:
        _kept.reset(token)


def kept() -> Looks | None:
    """The looks of the campaign in whose block this is, or None: look anew."""
    return _kept.get()


def declared(
    function: str, params: Mapping[str, Any], settings: Mapping[str, Any], site: Mapping[str, Any] | None
) -> dict[str, str]:
    """The files that decide the numbers of a run with these parameters and settings: name -> SHA-256.

    Empty for an app without an engine; of LAMMPS the potentials that do not lie beside the script, of a program
    the files that its parameters name (`reads`). A file that cannot be read here (it is on the nodes of a cluster
    only) is not in it; the run then says so.

    Args:
        function: The app's function, by its dotted path: that of LAMMPS has potentials.
        params: Parameters of the run.
        settings: Settings of its app.
        site: What the site says of itself: `apps`, with the environment of each engine.

    Raises:
        BadInput: `keywords` or `basis` name a file by a path that is not absolute.
    """
    room = files_of(function, params)
    return {} if room is None else room.declared(params, settings, site or {})


def places(
    params: Mapping[str, Any], settings: Mapping[str, Any], site: Mapping[str, Any], *, function: str = ""
) -> dict[str, str]:
    """Where the files that `declared` gives lie: name -> path."""
    room = files_of(function, params)
    return {} if room is None else room.places(params, settings, site)


def told_by(variable: str, app: str, site: Mapping[str, Any]) -> str:
    """What a variable of the app's environment in the profile says, or else that of this process; empty: nothing.

    Args:
        variable: Names a folder of files that decide, or several.
        app: Whose table of the profile it is.
        site: The site.
    """
    env = ((site.get("apps") or {}).get(app) or {}).get("env") or {}
    return str(env.get(variable) or os.environ.get(variable) or "")


def with_files(digest: str, files: Mapping[str, str]) -> str:
    """The digest of an app together with its files; without any, the digest itself."""
    if not files:
        return digest
    return hashlib.sha256(canonical_json([digest, dict(files)]).encode()).hexdigest()


def used(
    files: Iterable[Deciding], run: Run, elements: Iterable[str] = (), *, repair: str = _REPAIR
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Look again, where the run is, at the files that it uses.

    Args:
        files: What is declared.
        run: The run, with the content its execution id stands for.
        elements: Those of its structure: files of others do not matter.
        repair: What helps where one has another content.

    Returns:
        Path -> SHA-256, and what has to be said of them.

    Raises:
        AppFailed: `FilesChanged`: another content than that of the run's execution id.
    """
    there = set(elements)
    wanted = [one for one in files if not one.element or one.element in there]
    found = {}
    for one in wanted:
        with contextlib.suppress(OSError):  # what is not there the engine misses itself, with better words
            found[one.name] = (str(one.path), sha256(one.path))
    digests = dict(found.values())
    if run.files is None:
        return digests, ()
    other = [path for name, (path, digest) in found.items() if run.files.get(name, digest) != digest]
    if other:
        raise AppFailed(
            f"{', '.join(other)}: another content than the file had when the run was planned, for which its "
            "execution id stands.",
            kind="infrastructure",
            name="FilesChanged",
            repair=repair,
        )
    unseen = [path for name, (path, _) in found.items() if name not in run.files]
    if unseen:
        said = (
            f"{', '.join(unseen)} could not be read where the run was planned: its content is not part of the "
            "run's execution id, so the same run with another content would be taken for this one"
        )
        return digests, (said,)
    return digests, ()
