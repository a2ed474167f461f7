"""The files by which an engine computes: pseudopotentials, PAW setups, basis sets, models.

See `hpcagent.apps.hooks`. An engine declares its files (`Engine.files`); those that `keywords` or `basis` name
by a path are found here.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.deciding import NAMED, Deciding, kept
from hpcagent.apps.made_with import sha256
from hpcagent.errors import BadInput
from hpcagent.model.base import canonical_json
from hpcagent.science.engines.base import ENGINES, Engine, Level
from hpcagent.science.engines.registry import engine as engine_of

__all__ = ["declared", "of_level", "places"]

# In a campaign (`deciding.keeping`) a look at the files that took longer than this is good for so many times what
# it took: on a file system that answers slowly at most a twentieth of the time is spent on looking. The worker
# looks again, so that an outdated look does no harm.
_SLOW_S = 0.02
_GOOD_FOR = 20.0
_LONGEST_S = 5.0
_MOST_SEEN = 256
# Variables that say where engines look.
_FOLDERS = ("ESPRESSO_PSEUDO", "VASP_PP_PATH", "GPAW_SETUP_PATH", "HOME")


def declared(params: Mapping[str, Any], settings: Mapping[str, Any], site: Mapping[str, Any]) -> dict[str, str]:
    """The files that decide the numbers of a run: name -> SHA-256, of those that can be read here.

    Raises:
        BadInput: `keywords` or `basis` name a file by a path that is not absolute.
    """
    name = params.get("engine")
    if name not in ENGINES:
        return {}
    level = Level.of(params, settings)
    looks = kept()
    if looks is None:
        return _looked(level, site)[0]
    of_site = (site.get("apps") or {}).get(name) or {}
    folders = {variable: os.environ.get(variable) for variable in _FOLDERS}
    key = canonical_json([name, level.xc, level.basis, dict(settings), of_site, folders])
    until, known = looks.get(key, (0.0, {}))
    if time.monotonic() < until:
        return dict(known)
    found, took_s = _looked(level, site)
    if took_s > _SLOW_S:
        # Much of it was reading, once; how long a look takes is seen from the next one.
        found, took_s = _looked(level, site)
    if took_s > _SLOW_S:
        if len(looks) > _MOST_SEEN:
            looks.clear()
        looks[key] = (time.monotonic() + min(_LONGEST_S, _GOOD_FOR * took_s), found)
    return dict(found)


def _looked(level: Level, site: Mapping[str, Any]) -> tuple[dict[str, str], float]:
    began, found = time.monotonic(), {}
    for one in of_level(engine_of(level.engine), level, site):
        if one.name.startswith(NAMED) and not one.name.removeprefix(NAMED).startswith("/"):
            named = one.name.removeprefix(NAMED)
            raise BadInput(
                f"`keywords` or `basis` name the file {named}: which one that is depends on where the run is, so "
                f"its content cannot be part of the run's execution id; write {one.path.absolute()}, or another "
                "name where the calculation only writes it.",
                value=named,
            )
        with contextlib.suppress(OSError):
            found[one.name] = sha256(one.path)
    return found, time.monotonic() - began


def places(params: Mapping[str, Any], settings: Mapping[str, Any], site: Mapping[str, Any]) -> dict[str, str]:
    """Where the files that `declared` gives lie: name -> path."""
    if params.get("engine") not in ENGINES:
        return {}
    level = Level.of(params, settings)
    return {one.name: str(one.path) for one in of_level(engine_of(level.engine), level, site)}


def of_level(engine: Engine, level: Level, site: Mapping[str, Any]) -> tuple[Deciding, ...]:
    """What the engine declares, and every file that `keywords` or `basis` name by a path."""
    named = dict.fromkeys((*_paths(level.options.get("keywords") or {}), *_paths(level.basis, plain=True)))
    own: tuple[Deciding, ...] = ()
    with contextlib.suppress(OSError):  # a folder that cannot be listed: the engine says so, where the run is
        own = engine.files(level, site)
    return (*own, *(Deciding(f"{NAMED}{path}", Path(path).expanduser()) for path in named))


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
