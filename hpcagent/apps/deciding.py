"""The files that decide a run's numbers: pseudopotentials, PAW setups, basis sets, models, potentials.

Where an execution id is made, each of them counts by its content (`declared`); where the run is, the content is
looked at again (`used`). An engine declares its files (`Engine.files`), everything else is here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.apps.engines.base import ENGINES, Deciding, Engine, Level
from hpcagent.apps.engines.registry import engine as engine_of
from hpcagent.apps.made_with import sha256
from hpcagent.errors import AppFailed, BadInput
from hpcagent.model.base import canonical_json

if TYPE_CHECKING:
    from hpcagent.apps.run import Run

__all__ = ["declared", "of_level", "places", "used", "with_files"]

# A look at the files that took longer than this is good for so many times what it took: on a file system that
# answers slowly at most a twentieth of the time is spent on looking. The worker looks again, so that an outdated
# look does no harm.
_SLOW_S = 0.02
_GOOD_FOR = 20.0
_LONGEST_S = 5.0
# The function of every app that runs a LAMMPS script.
LAMMPS = "hpcagent.apps.lammps.run:lammps_run"
_NAMED = "keywords "
_MOST_SEEN = 256
# Variables that say where engines look.
_FOLDERS = ("ESPRESSO_PSEUDO", "VASP_PP_PATH", "GPAW_SETUP_PATH", "HOME")
_seen: dict[str, tuple[float, dict[str, str]]] = {}


def declared(
    function: str, params: Mapping[str, Any], settings: Mapping[str, Any], site: Mapping[str, Any] | None
) -> dict[str, str]:
    """The files that decide the numbers of a run with these parameters and settings: name -> SHA-256.

    Empty for an app without an engine; of LAMMPS the potentials that do not lie beside the script. A file that
    cannot be read here (it is on the nodes of a cluster only) is
    not in it; the run then says so.

    Args:
        function: The app's function, by its dotted path: that of LAMMPS has potentials.
        params: Parameters of the run.
        settings: Settings of its app.
        site: What the site says of itself: `apps`, with the environment of each engine.

    Raises:
        BadInput: `keywords` or `basis` name a file by a path that is not absolute.
    """
    if function == LAMMPS:
        from hpcagent.apps.lammps.potentials import elsewhere

        found = {}
        for one in elsewhere(settings, site or {}, params):
            with contextlib.suppress(OSError):
                found[one.name] = sha256(one.path)
        return found
    name = params.get("engine")
    if name not in ENGINES:
        return {}
    level = Level.of(params, settings)
    of_site = ((site or {}).get("apps") or {}).get(name) or {}
    folders = {variable: os.environ.get(variable) for variable in _FOLDERS}
    key = canonical_json([name, level.xc, level.basis, dict(settings), of_site, folders])
    until, known = _seen.get(key, (0.0, {}))
    if time.monotonic() < until:
        return dict(known)
    found, took_s = _looked(level, site or {})
    if took_s > _SLOW_S:
        # Much of it was reading, once; how long a look takes is seen from the next one.
        found, took_s = _looked(level, site or {})
    if took_s > _SLOW_S:
        if len(_seen) > _MOST_SEEN:
            _seen.clear()
        _seen[key] = (time.monotonic() + min(_LONGEST_S, _GOOD_FOR * took_s), found)
    return dict(found)


def _looked(level: Level, site: Mapping[str, Any]) -> tuple[dict[str, str], float]:
    began, found = time.monotonic(), {}
    for one in of_level(engine_of(level.engine), level, site):
        if one.name.startswith(_NAMED) and not one.name.removeprefix(_NAMED).startswith("/"):
            named = one.name.removeprefix(_NAMED)
            raise BadInput(
                f"`keywords` or `basis` name the file {named}: which one that is depends on where the run is, so "
                f"its content cannot be part of the run's execution id; write {one.path.absolute()}, or another "
                "name where the calculation only writes it.",
                value=named,
            )
        with contextlib.suppress(OSError):
            found[one.name] = sha256(one.path)
    return found, time.monotonic() - began


def places(
    params: Mapping[str, Any], settings: Mapping[str, Any], site: Mapping[str, Any], *, function: str = ""
) -> dict[str, str]:
    """Where the files that `declared` gives lie: name -> path."""
    if function == LAMMPS:
        from hpcagent.apps.lammps.potentials import elsewhere

        return {one.name: str(one.path) for one in elsewhere(settings, site, params)}
    if params.get("engine") not in ENGINES:
        return {}
    level = Level.of(params, settings)
    return {one.name: str(one.path) for one in of_level(engine_of(level.engine), level, site)}


def with_files(digest: str, files: Mapping[str, str]) -> str:
    """The digest of an app together with its files; without any, the digest itself."""
    if not files:
        return digest
    return hashlib.sha256(canonical_json([digest, dict(files)]).encode()).hexdigest()


def of_level(engine: Engine, level: Level, site: Mapping[str, Any]) -> tuple[Deciding, ...]:
    """What the engine declares, and every file that `keywords` or `basis` name by a path."""
    named = dict.fromkeys((*_paths(level.options.get("keywords") or {}), *_paths(level.basis, plain=True)))
    own: tuple[Deciding, ...] = ()
    with contextlib.suppress(OSError):  # a folder that cannot be listed: the engine says so, where the run is
        own = engine.files(level, site)
    return (*own, *(Deciding(f"{_NAMED}{path}", Path(path).expanduser()) for path in named))


def _paths(value: Any, *, plain: bool = False) -> Iterator[str]:
    """Paths of files among plain data, absolute or not; without `plain` no words that have neither dot nor slash.

    `pw` is a mode, although a file may be called so; PySCF takes the file of such a name for a basis set.
    """
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _paths(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _paths(one)
    elif isinstance(value, str) and (plain or "/" in value or "." in value):
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            if value and Path(value).expanduser().is_file():
                yield value


def used(
    files: Iterable[Deciding], run: Run, elements: Iterable[str] = ()
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Look again, where the run is, at the files that it uses.

    Args:
        files: What is declared.
        run: The run, with the content its execution id stands for.
        elements: Those of its structure: files of others do not matter.

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
            repair="start the run anew; if the workers see other files than the process that steers, name the "
            "same folder for both (setting pseudo_dir, or `env` in the site profile)",
        )
    unseen = [path for name, (path, _) in found.items() if name not in run.files]
    if unseen:
        said = (
            f"{', '.join(unseen)} could not be read where the run was planned: its content is not part of the "
            "run's execution id, so the same run with another content would be taken for this one"
        )
        return digests, (said,)
    return digests, ()
