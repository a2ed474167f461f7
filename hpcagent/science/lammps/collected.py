"""What a run that goes on from a restart file collects anew, so that it is not of the whole run.

Thermo rows of the parts are joined; a fix that averages or counts begins at the restart file, as LAMMPS writes no
state of it there, and dumps and files of fixes hold the steps from there on (LAMMPS manual, `read_restart`; which
fixes these are says `Unused restart file global fix info` in a log, or does not).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from hpcagent.regular import read_regular
from hpcagent.science.lammps.script import commands, nested

__all__ = ["begun_anew", "not_of_the_whole"]

_AVERAGES = ("ave/", "vector")
_GOES_ON = ("ave/correlate/long",)  # it has its state in the restart file
# Their values are sums since they were defined; those of thermostats such as temp/csvr go on by the restart file.
_COUNTS = ("langevin", "thermal/conductivity", "viscosity")
_REFERENCE = re.compile(r"(?<!\w)[cfv]_\w+|\$\{(\w+)\}|\$([A-Za-z])(?!\w)")


class _Collects(NamedTuple):
    """A fix that begins anew."""

    said: str  # how it is called
    of_all: bool  # whether its value is of all steps so far
    listed: bool  # whether it is there for what it collects


class _Collected(NamedTuple):
    fixes: Mapping[str, _Collects]
    dumps: tuple[str, ...]
    behind: Mapping[str, frozenset[str]]  # f_ID, c_ID or v_NAME -> the names that it is made of


def begun_anew(settings: Mapping[str, Any], step: int) -> list[str]:
    """The notes of a run that went on at a step: which fixes, dumps and metrics know nothing of what came before.

    Args:
        settings: Of the app: the script, what it includes, and the columns that are metrics.
        step: The step of the restart file.
    """
    found = _found(settings)
    # A thermostat's sum of heat is worth a word only where it is a metric.
    parts = [f"fix {one.said}" for one in found.fixes.values() if one.listed]
    parts += [f"dump {one}" for one in found.dumps]
    notes = []
    if parts:
        notes.append(
            f"of the added part only, as LAMMPS begins them anew at step {step}: {', '.join(parts)}; what came "
            "before is in the files of what it goes on from"
        )
    anew = not_of_the_whole(settings)
    for name, said in anew.items():
        column, how = settings["columns"][name]["column"], settings["columns"][name]["reduce"]
        notes.append(
            f"{name} ({how} of {column}) is not of the whole run: it comes from {said}, which knows nothing of "
            f"what was before step {step}"
        )
    return notes


def not_of_the_whole(settings: Mapping[str, Any]) -> dict[str, str]:
    """The metrics from thermo columns that a longer run would give of its added part only -> the fix of each.

    Args:
        settings: Of the app.
    """
    if not settings.get("columns"):
        return {}
    found = _found(settings)
    anew = {}
    for name, how in settings["columns"].items():
        for fix in sorted(_leads_to(how["column"], found.behind)):
            one = found.fixes.get(fix)
            # The rows of short averages are joined like any others; the last one may be the average of all.
            if one is not None and how["reduce"] != "first" and (one.of_all or how["reduce"] == "last"):
                anew[name] = f"fix {one.said}"
                break
    return anew


def _leads_to(column: str, behind: Mapping[str, frozenset[str]]) -> set[str]:
    open_, seen = set(_references(column)), set[str]()
    while open_:
        name = open_.pop()
        seen.add(name)
        open_ |= behind.get(name, frozenset()) - seen
    return seen


def _references(text: str) -> Iterator[str]:
    for match in _REFERENCE.finditer(text):
        variable = match[1] or match[2]
        yield f"v_{variable}" if variable else match[0]


def _found(settings: Mapping[str, Any]) -> _Collected:
    return _read(settings["script"], tuple(sorted(settings.get("paths", {}).items())))


@lru_cache(maxsize=8)
def _read(script: str, paths: tuple[tuple[str, str], ...]) -> _Collected:
    fixes: dict[str, _Collects] = {}
    dumps: list[str] = []
    behind: dict[str, frozenset[str]] = {}
    for words in _all(script, dict(paths)):
        match words:
            case ["variable", name, _, *rest]:
                behind[f"v_{name}"] = behind.get(f"v_{name}", frozenset()) | {*_references(" ".join(rest))}
            case ["compute", name, _, *rest]:
                behind[f"c_{name}"] = frozenset(_references(" ".join(rest)))
            case ["fix", name, _, style, *rest]:
                behind[f"f_{name}"] = frozenset(_references(" ".join(rest)))
                if (one := _collects(name, style, rest)) is not None:
                    fixes[f"f_{name}"] = one
            case ["dump", name, _, _, _, file, *_]:
                dumps.append(f"{name} ({file})")
    return _Collected(fixes, tuple(dict.fromkeys(dumps)), behind)


def _collects(name: str, style: str, rest: Sequence[str]) -> _Collects | None:
    file = next((after for word, after in pairwise(rest) if word in ("file", "append")), "")
    said = f"{name} ({', '.join(filter(None, (style, file)))})"
    if style in _GOES_ON:
        return None
    if style.startswith(_AVERAGES):
        over = {after for word, after in pairwise(rest) if word == "ave"}
        return _Collects(said, style == "vector" or bool(over & {"running", "window"}), True)
    if style in _COUNTS:
        return _Collects(said, True, False)
    return _Collects(said, False, True) if style == "print" and file else None


def _all(script: str, paths: Mapping[str, str]) -> Iterator[list[str]]:
    """The words of all commands, also of those that an `if` or an included script holds."""
    for command in commands(script):
        yield command.words
        yield from nested(command.words)
        if command.words[0] in ("include", "jump") and len(command.words) > 1:
            path = paths.get(str(Path(command.words[1])))
            try:
                text = "" if path is None else read_regular(path).decode(errors="replace")
            except OSError:  # the run itself says so
                continue
            for inner in commands(text):
                yield inner.words
                yield from nested(inner.words)
