"""Repairs of a LAMMPS run that failed: the same script, changed in one named and bounded way.

`minimize` brings the atoms to a minimum of the energy before the dynamics begin, `half_timestep` halves what each
`timestep` command sets, `larger_page` gives the neighbour lists more room. What a script does not allow is said
when the campaign is read (`refused`), and the worker makes the script by the same functions (`repaired`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpcagent.apps.run import Run
from hpcagent.regular import read_regular
from hpcagent.science.lammps.formulas import DEFAULT_TIMESTEP, Variables, immediate
from hpcagent.science.lammps.held import CannotHold, held, measures
from hpcagent.science.lammps.restart import earlier
from hpcagent.science.lammps.restart_script import NONE
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

_FROM_A_MINIMUM = (
    "it began from a minimum of the energy and not as the script says: what depends on the start (the total "
    "energy, the temperature that it settles at) compares with runs that were repaired alike"
)
_MEMORY = "only memory is spent on it: what is measured stays comparable"

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
# Computes that measure from where the atoms are when they are defined.
_REMEMBERS = ("displace/atom", "msd", "msd/chunk", "msd/nongauss", "hma")
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_ALONE = re.compile(r"\$\{(\w+)\}|\$([A-Za-z])")
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


@dataclass(frozen=True, slots=True)
class _Change:
    """A script as a repair leaves it, what it changes, and what that means."""

    script: str
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
        made = _changed(repair, settings, params or {})
    except _Refused:  # another repair has changed what the campaign's check saw
        return None
    # A restart file is of the run as it was: with another timestep or start there is no going on from it.
    return Repaired({**settings, "script": made.script, "anew": True}, made.changed, made.note)


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
) -> _Change:
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
            text = read_regular(path).decode(errors="replace")
        except OSError:  # refused elsewhere, with the name of the file
            return
        for inner in commands(text):
            yield inner.words
            yield from nested(inner.words)


def _no_jump(found: Sequence[Command], what: str) -> None:
    if any(words[0] == "jump" for c in found for words in (c.words, *nested(c.words))):
        raise _Refused(f"the script has `jump`: {what} would be repeated with its loop")


# ---- half the timestep


def _halved(settings: Mapping[str, Any], params: Mapping[str, Any]) -> _Change:
    text = settings["script"]
    found = commands(text)
    lines = text.splitlines(keepends=True)
    given = False
    for command in reversed(found):
        words = command.words
        if words[0] == "timestep" and len(words) > 1:
            given = True
            lines[command.first : command.end] = [f"timestep {_half(words[1])}\n"]
            continue
        if words[0] in ("include", "jump") and any(w[:1] == ["timestep"] for w in _inside(command, settings)):
            raise _Refused(f"the timestep is set in {words[1]!r}, which the script includes: set it in the script")
        inside = sum(inner[:1] == ["timestep"] for inner in nested(words))
        if not inside:
            continue
        given = True
        new_text, count = _NESTED_TIMESTEP.subn(
            lambda m: f"{m['quote']}{m['head']}{_half(m['value'])}{m['tail']}{m['quote']}",
            "".join(lines[command.first : command.end]),
        )
        if count != inside:
            raise _Refused("a `timestep` stands inside of another command in a way that cannot be rewritten")
        lines[command.first : command.end] = [new_text]
    if any(c.words[0] == "fix" and c.words[3:4] == ["dt/reset"] for c in found):
        raise _Refused("`fix dt/reset` chooses the timestep by itself")
    if not given:
        raise _Refused("the script has no `timestep` command")
    units = settings.get("units", "lj")
    follows = _Follows(params, DEFAULT_TIMESTEP.get(units))
    for command in found:
        follows.take(command, settings)
    return follows.change("".join(lines), f" {STYLES[units].time}" if units in STYLES else "")


# Commands in which `dt` only says or measures something, whatever it is.
_TELLS = ("print", "log", "echo", "shell", "label", "jump", "next", "include", "variable", "timestep")
_MEASURES = ("restart", "thermo", "thermo_style", "thermo_modify", "dump", "dump_modify", "compute")


class _Follows:
    """A script before and after its timesteps are halved, command by command: what else that changes.

    Args:
        given: Values of variables that are set before it runs.
        dt: LAMMPS's own timestep, which is in force before the first `timestep`.
    """

    def __init__(self, given: Mapping[str, Any], dt: float | None) -> None:
        self._old, self._new = Variables(given, dt), Variables(given, dt)
        self._timesteps: list[str] = []
        self._runs: list[str] = []
        self._times: list[tuple[float | None, float | None]] = []
        self._same_steps = False
        self._others: list[str] = []
        self._acting: dict[str, None] = {}
        self._written: dict[str, None] = {}

    def take(self, command: Command, settings: Mapping[str, Any]) -> None:
        """Take the next command, and those that it holds.

        Raises:
            _Refused: What the command does depends on the timestep in a way that cannot be told.
        """
        self._one(command.words, sure=True)
        inner = list(_inside(command, settings))
        sure = command.words[0] in ("include", "jump")
        for words in inner:
            self._one(words, sure=sure)
        if not sure and any(words[0] == "timestep" for words in inner):
            self._old.dt = self._new.dt = None  # the one or the other

    def _one(self, words: Sequence[str], *, sure: bool) -> None:
        match words:
            case ["timestep", value, *_]:
                half = _half(value)
                old, new = self._old.value(value), self._new.value(half)
                self._timesteps.append(_from_to(old, new) or f"{value} to {half}")
                self._old.dt, self._new.dt = old, new
            case ["variable", _, _, _, *_]:
                self._old.define(words, sure=sure)
                self._new.define(words, sure=sure)
            case ["run", steps, *more]:
                self._run(steps, more)
                self._changes(["run", *(word for word in more if not any(c.isspace() for c in word))])
            case ["if", condition, *more]:
                after = [b for a, b in pairwise(more) if a == "elif"]
                for one in (condition, *after):
                    if self._changed(one):
                        raise _Refused(f"`if` decides by `dt` ({one}), so half of it may be another script")
            case [name, *_] if name not in _TELLS:
                self._changes(words)

    def _changed(self, text: str) -> list[tuple[str, float | None, float | None]]:
        """What LAMMPS puts into a text that is another now, with its values; None where they are not known."""
        found: list[tuple[str, float | None, float | None]] = []
        for one in immediate(text):
            old, new = self._old.value(one), self._new.value(one)
            if old is None or new is None:
                halved = self._old.dt is None or self._old.dt != self._new.dt
                if halved and self._old.follows_dt(one):
                    found.append((one, None, None))
            elif old != new:
                found.append((one, old, new))
        return found

    def _run(self, steps: str, more: Sequence[str]) -> None:
        if not self._changed(steps):
            self._same_steps |= steps != "0"
            return
        old, new = self._old.value(steps), self._new.value(steps)
        if old is None or new is None:
            raise _Refused(f"`run {steps}` follows `dt` in a way that only LAMMPS can work out")
        upto = "upto" in more or self._old.dt is None or self._new.dt is None
        before, after = self._old.dt or 0.0, self._new.dt or 0.0
        self._runs.append(f"run from {old:.10g} to {new:.10g} steps{' in all' if 'upto' in more else ''}")
        self._times.append((None, None) if upto else (old * before, new * after))

    def _changes(self, words: Sequence[str]) -> None:
        text, name = " ".join(words[1:]), _called(words)
        written = words[0] in _MEASURES or (words[0] == "fix" and measures(words))
        for one, old, new in self._changed(text):
            if old is None or new is None:
                raise _Refused(f"`{name}` follows `dt` ({one}) in a way that only LAMMPS can work out")
            self._others.append(f"{name} {one} from {old:.6g} to {new:.6g}")
            (self._written if written else self._acting)[name] = None
        if written:
            return
        for one in re.findall(r"(?<!\w)v_\w+", text):
            if self._old.follows_dt(one) and not self._old.only_as_time(one):
                raise _Refused(f"`{name}` follows `dt` by {one} while it runs: what half of it does is not known")

    def change(self, script: str, unit: str) -> _Change:
        """What all of it has changed."""
        told = [f"timestep from {', '.join(self._timesteps)}{unit}", *self._runs, *self._others]
        if not self._runs:
            said = ["as many steps of half the length: the time simulated is half as long"]
        else:
            said = [f"steps of half the length, and their number follows `dt` in the script: {self._time(unit)}"]
            said += ["where it is a plain number, the time is half as long"] if self._same_steps else []
        if self._acting:
            said.append(
                f"`dt` stands in other commands as well ({', '.join(self._acting)}), which changed with it: "
                "another time of a thermostat or barostat is other physics, not the same at a smaller timestep"
            )
        if self._written:
            said.append(f"how often is measured or written follows `dt`, too ({', '.join(self._written)})")
        said.append("speed and energy conservation are those of the smaller timestep")
        return _Change(script, ", ".join(told), "; ".join(said))

    def _time(self, unit: str) -> str:
        if any(old is None or new is None for old, new in self._times):
            return "there are more of them"
        told = [
            f"{new:.6g}{unit} as before"
            if math.isclose(old, new, rel_tol=1e-6)
            else f"{new:.6g}{unit}, not {old:.6g}"
            for old, new in self._times
            if old is not None and new is not None
        ]
        return f"the time simulated there is {', '.join(told)}"


def _called(words: Sequence[str]) -> str:
    """A command for a message: its name, of a fix also its ID and style."""
    return f"fix {words[1]} ({words[3]})" if words[0] == "fix" and len(words) > 3 else words[0]


def _from_to(old: float | None, new: float | None) -> str:
    return "" if old is None or new is None else f"{old:.6g} to {new:.6g}"


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


_STEP, _TIME = "hpcagent_step", "hpcagent_time"


def _minimized(settings: Mapping[str, Any]) -> _Change:
    text = settings["script"]
    found = commands(text)
    _no_jump(found, "the minimisation")
    if any(words[0] == "minimize" for words in _all(found, settings)):
        raise _Refused("the script minimises already")
    number = _place(found, settings)
    before, after = _all(found[:number], settings), _all(found[number:], settings)
    late = [words[0] for words in after if words[0] in _BUILDS or _excludes(words)]
    if late:
        raise _Refused(
            f"`{late[0]}` stands after the first fix, dump, run or compute of displacements, so there is no place "
            "where all is set up and nothing has begun: put it before"
        )
    conditional = [words for command in found[number:] for words in nested(command.words)]
    try:
        hold, free, of_what = held(before, after, conditional)
    except CannotHold as why:
        raise _Refused(str(why)) from None
    minimize = [
        # The length of `run N upto`, and what is written at which step, are the script's own.
        f"variable {_STEP} string $(step:%.0f)",
        f"variable {_TIME} string $(time:%.17g)",
        *hold,
        f"minimize 0.0 {_FORCE} {_ITERATIONS} {10 * _ITERATIONS}",
        *free,
        f"reset_timestep ${{{_STEP}}} time ${{{_TIME}}}",
    ]
    if settings.get("restart"):
        variable = settings["restart"]["variable"]
        inner = " ".join(f'"{one}"' for one in minimize)
        minimize = [f'if "${{{variable}}} == {NONE}" then {inner}']
    lines = text.splitlines(keepends=True)
    first = found[number].first
    lines[first:first] = [f"{line}\n" for line in ("min_style cg", *minimize)]
    said = f"minimised first (to a force of {_FORCE}, at most {_ITERATIONS} iterations"
    return _Change("".join(lines), f"{said}{f'; {of_what}' if of_what else ''})", _FROM_A_MINIMUM)


def _place(found: Sequence[Command], settings: Mapping[str, Any]) -> int:
    """The first command that begins something: atoms may be moved before it."""
    for number, command in enumerate(found):
        for words in (command.words, *_inside(command, settings)):
            if words[0] in _BEGINS or (words[0] == "compute" and words[3:4] and words[3] in _REMEMBERS):
                return number
    raise _Refused("the script makes no run")


def _excludes(words: Sequence[str]) -> bool:
    return words[0] == "neigh_modify" and "exclude" in words


# ---- larger pages


def _enlarged(settings: Mapping[str, Any]) -> _Change:
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
    changed = f"neigh_modify one from {one} to {new['one']}, page from {page} to {new['page']}"
    return _Change("".join(lines), changed, _MEMORY)


def _room(words: Sequence[str]) -> list[tuple[int, str]]:
    """Where in a `neigh_modify` the values of `one` and `page` stand."""
    if not words or words[0] != "neigh_modify":
        return []
    return [(i + 1, words[i + 1]) for i in range(1, len(words) - 1) if words[i] in ("one", "page")]
