"""Repairs of a LAMMPS run that failed: the same script, changed in one named and bounded way.

`minimize` brings the atoms to a minimum of the energy before the dynamics begin, `half_timestep` halves what each
`timestep` command sets, `larger_page` gives the neighbour lists more room. What a script does not allow is said
when the campaign is read (`refused`), and the worker makes the script by the same functions (`repaired`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpcagent.apps.run import Run
from hpcagent.science.lammps.restart import NONE, earlier
from hpcagent.science.lammps.script import Command, commands, nested
from hpcagent.units import STYLES

__all__ = ["REPAIRS", "Repaired", "attempt_before", "refused", "repaired", "studied"]

_MOVED_TOO_FAR = ("minimize", "half_timestep")
REPAIRS: dict[str, tuple[str, ...]] = {
    "LostAtoms": _MOVED_TOO_FAR,
    "NonNumeric": _MOVED_TOO_FAR,
    "BlownUp": _MOVED_TOO_FAR,
    "EnergyNonsense": ("half_timestep",),
    "NeighborListOverflow": ("larger_page",),
}
"""Failure -> the repairs that may help. A constraint (SHAKE) or an error that is not known has none: what would
help depends on the reason, and a changed script could hide it."""

_SAID = {
    "minimize": "it began from a minimum of the energy and not as the script says: what depends on the start (the "
    "total energy, the temperature that it settles at) compares with runs that were repaired alike",
    "half_timestep": "as many steps of half the length: the time simulated is half as long, and speed and energy "
    "conservation are those of the smaller timestep",
    "larger_page": "only memory is spent on it: what is measured stays comparable",
}

_STEPS = ("run", "minimize", "rerun", "neb", "neb/spin", "temper", "tad", "prd", "hyper", "dynamical_matrix")
# What must stand before the energy can be minimised.
_BUILDS = (
    "angle_coeff", "angle_style", "atom_style", "bond_coeff", "bond_style", "boundary", "change_box",
    "create_atoms", "create_bonds", "create_box", "delete_atoms", "delete_bonds", "dielectric",
    "dihedral_coeff", "dihedral_style", "dimension", "displace_atoms", "improper_coeff", "improper_style",
    "kspace_modify", "kspace_style", "mass", "newton", "pair_coeff", "pair_modify", "pair_style",
    "read_data", "read_dump", "read_restart", "replicate", "set", "special_bonds", "units",
)  # fmt: skip
_BEGINS = (*_STEPS, "fix", "dump")
_HOLD = ("shake", "rattle", "rigid")
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_ALONE = re.compile(r"\$\{(\w+)\}|\$([A-Za-z])")
_PRODUCT = re.compile(rf"\$\(({_NUMBER})\*v_(\w+)\)")
_FORMULA = re.compile(r"\$\((.*?)(?::%\S*)?\)")
_NESTED_TIMESTEP = re.compile(
    r"""(?P<quote>["'])(?P<head>\s*timestep\s+)(?P<value>[^"'\s]+)(?P<tail>\s*)(?P=quote)"""
)
_FORCE, _ITERATIONS = "1.0e-6", 1000
# LAMMPS's defaults of `neigh_modify`; a page holds at least ten of the longest lists.
_ONE, _PAGE, _LARGER = 2000, 100_000, 4


class _Refused(Exception):
    """Why a script cannot be changed so, without a full stop."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """A script that a repair has changed.

    Attributes:
        settings: The app's settings with it.
        changed: What was changed, in words.
        note: What that means for the comparison with other runs.
    """

    settings: dict[str, Any]
    changed: str
    note: str


def refused(repair: str, settings: Mapping[str, Any]) -> str:
    """Why this repair cannot be made of an app's script, without a full stop; empty where it can.

    Args:
        repair: Its name.
        settings: The app's settings: the script, and the paths of what it includes.
    """
    try:
        _changed(repair, settings)
    except _Refused as why:
        return str(why)
    return ""


def repaired(
    repair: str, settings: Mapping[str, Any], times: int, params: Mapping[str, Any] | None = None
) -> Repaired | None:
    """The settings of the next try; None where the repair was made before and would change nothing more.

    Args:
        repair: Its name.
        settings: The app's settings as the script came, or as earlier repairs of another name left it.
        times: The how many-th repair of this name it is.
        params: The run's parameters, for the words that say what was changed.
    """
    if repair == "minimize" and times > 1:
        return None
    try:
        script, changed = _changed(repair, settings, params or {})
    except _Refused:  # another repair has changed what the campaign's check saw
        return None
    # A restart file is of the run as it was: with another timestep or start there is no going on from it.
    return Repaired({**settings, "script": script, "anew": True}, changed, _SAID[repair])


def attempt_before(run: Run) -> Path | None:
    """The folder of what a run goes on from: the run that it extends, or an attempt of its own; None: none."""
    if not run.settings.get("restart"):
        return None
    if run.extends is not None:
        return Path(run.extends["workdir"])
    source, _ = earlier(run.workdir, run.settings["logs"])
    return None if source is None else run.workdir / f"attempt-{source.attempt}"


def studied(settings: Mapping[str, Any], repair: str, varied: Iterable[str]) -> list[str]:
    """The varied variables that a repair would change.

    Only `half_timestep` changes what a variable sets; a timestep may depend on it through other variables.
    """
    wanted = set(varied)
    found = _all(commands(settings["script"]), settings)
    if repair == "half_timestep":
        arguments = [word for c in found if c[:1] == ["timestep"] for word in c[1:2]]
    elif repair == "larger_page":
        arguments = [after for c in found for _, after in _room(c)]
    else:
        return []
    depends: dict[str, set[str]] = {}
    for words in found:
        if words[0] == "variable" and len(words) > 3 and words[1] not in wanted:
            depends.setdefault(words[1], set()).update(_names(" ".join(words[3:])))
    open_, seen = {name for argument in arguments for name in _names(argument)}, set[str]()
    while open_:
        name = open_.pop()
        if name not in seen:
            seen.add(name)
            open_ |= depends.get(name, set())
    return sorted(seen & wanted)


def _names(text: str) -> set[str]:
    return {next(filter(None, m)) for m in re.findall(r"\$\{(\w+)\}|\$([A-Za-z])\b|\bv_(\w+)", text)}


def _changed(
    repair: str, settings: Mapping[str, Any], params: Mapping[str, Any] = MappingProxyType({})
) -> tuple[str, str]:
    if repair == "half_timestep":
        return _halved(settings, params)
    return {"minimize": _minimized, "larger_page": _enlarged}[repair](settings)


def _all(found: Sequence[Command], settings: Mapping[str, Any]) -> list[list[str]]:
    """The words of all commands: also those that an `if` holds, or an included script."""
    return [words for command in found for words in (command.words, *_inside(command, settings))]


def _inside(command: Command, settings: Mapping[str, Any]) -> Iterator[list[str]]:
    yield from nested(command.words)
    if command.words[0] in ("include", "jump") and len(command.words) > 1:
        path = settings.get("paths", {}).get(str(Path(command.words[1])))
        if path is None:
            return
        try:
            text = Path(path).read_text(errors="replace")
        except OSError:  # refused elsewhere, with the name of the file
            return
        for inner in commands(text):
            yield inner.words
            yield from nested(inner.words)


def _no_jump(found: Sequence[Command], what: str) -> None:
    if any(words[0] == "jump" for c in found for words in (c.words, *nested(c.words))):
        raise _Refused(f"the script has `jump`: {what} would be repeated with its loop")


# ---- half the timestep


def _halved(settings: Mapping[str, Any], params: Mapping[str, Any]) -> tuple[str, str]:
    text = settings["script"]
    found = commands(text)
    values = {**_numbers(found), **params}
    lines = text.splitlines(keepends=True)
    said = []
    for command in reversed(found):
        words = command.words
        if words[0] == "timestep" and len(words) > 1:
            new = _half(words[1])
            said.append(_from_to(words[1], new, values))
            lines[command.first : command.end] = [f"timestep {new}\n"]
            continue
        if words[0] in ("include", "jump") and any(w[:1] == ["timestep"] for w in _inside(command, settings)):
            raise _Refused(f"the timestep is set in {words[1]!r}, which the script includes: set it in the script")
        if not any(inner[:1] == ["timestep"] for inner in nested(words)):
            continue
        whole = "".join(lines[command.first : command.end])
        given = sum(inner[:1] == ["timestep"] for inner in nested(words))
        new_text, count = _NESTED_TIMESTEP.subn(
            lambda m: f"{m['quote']}{m['head']}{_half(m['value'])}{m['tail']}{m['quote']}", whole
        )
        if count != given:
            raise _Refused("a `timestep` stands inside of another command in a way that cannot be rewritten")
        nested_in = [(m["value"], _half(m["value"])) for m in _NESTED_TIMESTEP.finditer(whole)]
        said += [_from_to(old, halved, values) for old, halved in reversed(nested_in)]
        lines[command.first : command.end] = [new_text]
    if any(c.words[0] == "fix" and c.words[3:4] == ["dt/reset"] for c in found):
        raise _Refused("`fix dt/reset` chooses the timestep by itself")
    if not said:
        raise _Refused("the script has no `timestep` command")
    units = settings.get("units", "lj")
    unit = f" {STYLES[units].time}" if units in STYLES else ""
    return "".join(lines), f"timestep from {', '.join(reversed(said))}{unit}"


def _numbers(found: Sequence[Command]) -> dict[str, float]:
    """The variables that the script gives one plain number."""
    given: dict[str, set[str]] = {}
    for words in (c.words for c in found):
        if words[0] == "variable" and len(words) > 3:
            given.setdefault(words[1], set()).add(" ".join(words[3:]))
    once = {name: next(iter(texts)) for name, texts in given.items() if len(texts) == 1}
    return {name: float(text) for name, text in once.items() if re.fullmatch(_NUMBER, text)}


def _from_to(old: str, new: str, values: Mapping[str, Any]) -> str:
    """Both arguments of `timestep` as numbers, where they can be told, else as they stand in the script."""
    before, after = _value(old, values), _value(new, values)
    return f"{old} to {new}" if before is None or after is None else f"{before:.6g} to {after:.6g}"


def _value(argument: str, values: Mapping[str, Any]) -> float | None:
    """A number, a variable, or a multiple of one; what a larger formula gives only LAMMPS knows."""
    if re.fullmatch(_NUMBER, argument):
        return float(argument)
    alone = _ALONE.fullmatch(argument)
    times, name = (1.0, alone[1] or alone[2]) if alone else (0.0, "")
    if product := _PRODUCT.fullmatch(argument):
        times, name = float(product[1]), product[2]
    value = values.get(name)
    return times * value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _half(argument: str) -> str:
    if re.fullmatch(_NUMBER, argument):
        return repr(0.5 * float(argument))
    if alone := _ALONE.fullmatch(argument):
        return f"$(0.5*v_{alone[1] or alone[2]})"
    if formula := _FORMULA.fullmatch(argument):
        if formula[1].startswith("0.5*"):
            return f"$({0.25}*{formula[1].removeprefix('0.5*')})"
        return f"$(0.5*({formula[1]}))"
    raise _Refused(f"`timestep {argument}` is neither a number, a variable nor a formula")


# ---- minimise first


def _minimized(settings: Mapping[str, Any]) -> tuple[str, str]:
    text = settings["script"]
    found = commands(text)
    _no_jump(found, "the minimisation")
    everything = _all(found, settings)
    if any(words[0] == "minimize" for words in everything):
        raise _Refused("the script minimises already")
    for words in everything:
        if words[0] == "fix" and len(words) > 3 and words[3].partition("/")[0] in _HOLD:
            raise _Refused(f"`fix {words[3]}` holds what a minimisation would move")
    begins = [i for i, c in enumerate(found) if any(w[0] in _BEGINS for w in (c.words, *_inside(c, settings)))]
    if not begins:
        raise _Refused("the script makes no run")
    number = begins[0]
    late = [words[0] for words in _all(found[number:], settings) if words[0] in _BUILDS]
    if late:
        raise _Refused(
            f"`{late[0]}` stands after the first fix, dump or run, so there is no place where all is set up and "
            "nothing has begun: put it before"
        )
    minimize = [f"minimize 0.0 {_FORCE} {_ITERATIONS} {10 * _ITERATIONS}", "reset_timestep 0 time 0.0"]
    if settings.get("restart"):
        variable = settings["restart"]["variable"]
        inner = " ".join(f'"{one}"' for one in minimize)
        minimize = [f'if "${{{variable}}} == {NONE}" then {inner}']
    lines = text.splitlines(keepends=True)
    first = found[number].first
    lines[first:first] = [f"{line}\n" for line in ("min_style cg", *minimize)]
    return "".join(lines), f"minimised first (to a force of {_FORCE}, at most {_ITERATIONS} iterations)"


# ---- larger pages


def _enlarged(settings: Mapping[str, Any]) -> tuple[str, str]:
    text = settings["script"]
    found = commands(text)
    lines = text.splitlines(keepends=True)
    one, page = _ONE, _PAGE
    own = [c for c in found if c.words[0] == "neigh_modify" and any(_room(c.words))]
    for command in found:
        if any(_room(words) for words in _inside(command, settings)):
            raise _Refused("a `neigh_modify one` or `page` stands inside of another command or file")
    given: set[str] = set()
    for words in (c.words for c in own):
        for at, value in _room(words):
            if not value.isdecimal():
                raise _Refused(f"`neigh_modify {words[at - 1]} {value}` is no plain number")
            given.add(words[at - 1])
            one = int(value) if words[at - 1] == "one" else one
            page = int(value) if words[at - 1] == "page" else page
    new = {"one": _LARGER * one, "page": max(_LARGER * page, 10 * _LARGER * one)}
    for command in reversed(own):
        words = list(command.words)
        for at, _ in _room(words):
            words[at] = str(new[words[at - 1]])
        if command is own[-1]:
            words += [word for name in new if name not in given for word in (name, str(new[name]))]
        lines[command.first : command.end] = [" ".join(words) + "\n"]
    if not own:
        lines[:0] = [f"neigh_modify one {new['one']} page {new['page']}\n"]
    return "".join(lines), f"neigh_modify one from {one} to {new['one']}, page from {page} to {new['page']}"


def _room(words: Sequence[str]) -> list[tuple[int, str]]:
    """Where in a `neigh_modify` the values of `one` and `page` stand."""
    if not words or words[0] != "neigh_modify":
        return []
    return [(i + 1, words[i + 1]) for i in range(1, len(words) - 1) if words[i] in ("one", "page")]
