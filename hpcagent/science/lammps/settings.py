"""Which settings of an input script decide how fast it runs.

A setting that the script does not name has LAMMPS's own default (manual pages of `neighbor`, `neigh_modify`,
`newton`, `processors`, `suffix`, `package`, `kspace_modify`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod
from pathlib import Path

from hpcagent.science.lammps.script import Command, Script, nested

__all__ = ["ALONE", "SKINS", "Cutoffs", "Kspace", "Settings", "is_number", "plain_style"]

SKINS = {
    "lj": 0.3, "real": 2.0, "metal": 2.0, "electron": 2.0, "si": 0.001, "cgs": 0.1, "micro": 0.1, "nano": 0.1,
}  # fmt: skip
"""The neighbour skin where the script has no `neighbor`, by `units` style, in its unit of length."""

# Where random numbers depend on the order of the atoms in memory, so that no two settings give the same
# trajectory.
_RANDOM_FIXES = (
    "langevin", "gld", "brownian", "gcmc", "atom/swap", "bond/create", "bond/break", "deposit", "evaporate",
    "pour",     "temp/csvr", "temp/csld", "widom", "mc", "sgcmc", "ttm", "srd", "lb/fluid", "qtb", "qbmsst",
    "bond/react", "charge/regulation", "neighbor/swap", "stochastic", "propel", "spin", "precession", "drag",
)  # fmt: skip
# Fixes that keep the energy: those that move atoms, and those that only look or hold a length.
_MOVING = (
    "nve", "nve/sphere", "nve/asphere", "nve/body", "rigid", "rigid/nve", "rigid/small", "rigid/nve/small",
)  # fmt: skip
_LOOKING = (
    "ave/atom", "ave/chunk", "ave/correlate", "ave/grid", "ave/histo", "ave/time", "halt", "print", "rattle",
    "shake", "store/force", "store/state", "vector",
)  # fmt: skip
_RANDOM_PAIRS = ("dpd", "edpd", "mdpd", "tdpd", "brownian", "lubricateU", "sdpd", "local/density/random")
# Pair styles with long-range Coulomb: how many cutoffs stand before the Coulomb cutoff, and words before those.
_COULOMB = {
    "lj/cut/coul/long": (0, 1),
    "buck/coul/long": (0, 1),
    "born/coul/long": (0, 1),
    "lj/class2/coul/long": (0, 1),
    "lj/charmm/coul/long": (0, 2),
    "lj/charmmfsw/coul/long": (0, 2),
    "lj/cut/tip4p/long": (5, 1),
    "coul/long": (0, 0),
}
_ACCELERATED = ("/omp", "/opt", "/gpu", "/kk", "/intel", "/kk/host", "/kk/device")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z")
ALONE = re.compile(r"\$\{(\w+)\}\Z|\$(\w)\Z|v_(\w+)\Z")
"""A word that is a variable and nothing else."""


def is_number(word: str) -> bool:
    """Whether a word is a plain number.

    Example:
        >>> is_number("1e-4"), is_number("${skin}")
        (True, False)
    """
    return _NUMBER.match(word) is not None


@dataclass(frozen=True, slots=True)
class Kspace:
    """The long-range solver of a script.

    Attributes:
        style: Its style, e.g. `pppm`.
        accuracy: Relative accuracy that it is asked for.
        order: Order of the interpolation.
        diff: `ik` or `ad`.
        kept: Words of `kspace_modify`, those in an `if` too.
    """

    style: str
    accuracy: float
    order: int = 5
    diff: str = "ik"
    kept: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """The cutoffs of a pair style with long-range Coulomb, in the script's unit of length.

    Attributes:
        style: The pair style.
        before: Its words before the Coulomb cutoff; those of the other cutoffs are among them.
        coulomb: The Coulomb cutoff.
        word: The script's word for it; empty where it is that of another cutoff.
    """

    style: str
    before: tuple[str, ...]
    coulomb: float
    word: str = ""


@dataclass(frozen=True)
class Settings:
    """What an input script says of how it is run.

    Attributes:
        read: The script.
        commands: Its commands, in order.
        first: The first command that runs or minimises.
        run: The last `run`: what is measured.
        given: Variables that it is given on the command line (`-var`).
        steps: The number of steps of `run`, where it can be told.
        left: What is not changed here (`neighbor`, `kspace`, `cutoff`, ...), and why.
        driven: Setting -> the variable of the script that decides it, and nothing else.
        choices: Setting -> its words, where an `if` on that variable chooses among them.
    """

    read: Script
    commands: tuple[Command, ...]
    first: Command
    run: Command
    given: Mapping[str, str] = field(default_factory=dict)
    steps: int | None = None
    left: tuple[tuple[str, str], ...] = ()
    driven: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Where the script was read from."""
        return self.read.path

    @property
    def units(self) -> str:
        """Its `units` style."""
        return self.read.units

    def named(self, name: str) -> tuple[Command, ...]:
        """Its commands of a name, before the measured run."""
        return tuple(c for c in self.commands if c.name == name and c.first <= self.run.first)

    def inside(self, name: str) -> tuple[list[str], ...]:
        """The words of the commands of a name that stand in an `if` before the measured run."""
        return tuple(words for c in self.named("if") for words in nested(c.words) if words[0] == name)

    @cached_property
    def skin(self) -> float | None:
        """The neighbour skin; None where a variable without a plain value decides it."""
        at = self.named("neighbor")
        return SKINS.get(self.units, 0.3) if not at else self.number(at[-1].words[1])

    @property
    def bins(self) -> str:
        """How neighbours are found: `bin`, `nsq` or `multi`."""
        at = self.named("neighbor")
        return self.value(at[-1].words[2]) if at and len(at[-1].words) > 2 else "bin"

    @cached_property
    def rebuild(self) -> dict[str, str]:
        """The keywords of `neigh_modify`, LAMMPS's defaults where the script has none."""
        found = {"every": "1", "delay": "0", "check": "yes", "one": "2000", "page": "100000"}
        for command in self.named("neigh_modify"):
            words = command.words[1:]
            for key, value in pairwise(words):
                if key in found:
                    found[key] = self.value(value)
        return found

    @property
    def checked(self) -> bool:
        """Whether atoms are looked at before the list is kept, so that LAMMPS counts dangerous builds."""
        return self.rebuild["check"] == "yes"

    @property
    def newton(self) -> str:
        """Newton's third law for pairs across processors: `on` or `off`."""
        at = self.named("newton")
        return self.value(at[-1].words[1]) if at and len(at[-1].words) > 1 else "on"

    @property
    def suffix(self) -> str:
        """The accelerator that the script itself asks for."""
        at = [c for c in self.named("suffix") if len(c.words) > 1]
        return self.value(at[-1].words[-1]) if at else "off"

    @cached_property
    def threads(self) -> int | None:
        """OpenMP threads that the script asks for itself (`package omp N`); None: as many as it is run with."""
        asked = [c.words for c in self.named("package")]
        asked += self.inside("package") if self.suffix == "omp" else ()
        counts = [self.number(words[2]) for words in asked if words[1:2] == ["omp"] and len(words) > 2]
        return next((int(n) for n in reversed(counts) if n is not None and n > 0), None)

    @property
    def dimension(self) -> int:
        """2 or 3."""
        at = self.named("dimension")
        return 2 if at and self.value(at[-1].words[1]) == "2" else 3

    @property
    def grid(self) -> tuple[str, ...]:
        """The `processors` grid that it asks for; `*` is what LAMMPS finds best."""
        at = self.named("processors")
        return tuple(map(self.value, at[-1].words[1:4])) if at else ("*", "*", "*")

    @property
    def grid_of(self) -> int:
        """The product of the numbers of its `processors` grid: what a number of ranks is a multiple of."""
        return prod(int(word) for word in self.grid if word.isdigit())

    def fits(self, ranks: int) -> bool:
        """Whether its `processors` grid takes so many ranks; where a number of it cannot be told, it may."""
        known = [word for word in self.grid if word.isdigit()]
        if len(known) == len(self.grid):
            return ranks == self.grid_of
        return self.grid_of > 0 and ranks % self.grid_of == 0

    @cached_property
    def kspace(self) -> Kspace | None:
        """The long-range solver, where its settings can be told."""
        styles = [c for c in self.named("kspace_style") if len(c.words) > 1 and c.words[1] != "none"]
        if not styles or len(styles[-1].words) < 3:
            return None
        accuracy = self.number(styles[-1].words[2])
        if accuracy is None or accuracy <= 0:
            return None
        order, diff, kept = 5, "ik", []
        for given in (*(c.words for c in self.named("kspace_modify")), *self.inside("kspace_modify")):
            words = list(map(self.value, given[1:]))
            if "order" in words[:-1]:
                after = words[words.index("order") + 1]
                order = int(after) if after.isdigit() else order
            if "diff" in words[:-1]:
                diff = words[words.index("diff") + 1]
            kept.append(tuple(given[1:]))
        return Kspace(plain_style(self.value(styles[-1].words[1])), accuracy, order, diff, tuple(kept))

    @cached_property
    def cutoffs(self) -> Cutoffs | None:
        """The cutoffs of the pair style, where its Coulomb cutoff can be changed alone."""
        at = self.named("pair_style")
        if len(at) != 1 or len(at[0].words) < 3:
            return None
        style = plain_style(at[0].words[1])
        if style not in _COULOMB:
            return None
        words, cuts = _COULOMB[style]
        given = at[0].words[2:]
        before, after = given[: words + cuts], given[words + cuts :]
        if len(before) < words + cuts or len(after) > 1 or not (before or after):
            return None
        coulomb = self.number(after[0] if after else before[-1])
        if coulomb is None:
            return None
        return Cutoffs(at[0].words[1], tuple(before), coulomb, after[0] if after else "")

    @cached_property
    def random(self) -> tuple[str, ...]:
        """IDs of the fixes, or the pair style, whose random numbers make trajectories incomparable."""
        fixes = [c for c in self.commands if c.name == "fix" and len(c.words) > 3]
        found = [c.words[1] for c in fixes if plain_style(c.words[3]).startswith(_RANDOM_FIXES)]
        pairs = [
            w for c in self.named("pair_style") for w in c.words[1:] if plain_style(w).startswith(_RANDOM_PAIRS)
        ]
        return (*found, *pairs)

    @cached_property
    def constant_energy(self) -> bool:
        """Whether the measured run keeps the energy with which it begins; False where that cannot be told."""
        if self.named("include") or self.inside("fix") or self.inside("unfix"):
            return False
        there: dict[str, str] = {}
        for command in self.commands:
            if command.first >= self.run.first:
                break
            if command.name == "fix" and len(command.words) > 3:
                there[command.words[1]] = plain_style(self.value(command.words[3]))
            for name in command.words[1:] if command.name == "unfix" else ():
                there.pop(name, None)
        styles = set(there.values())
        random_pair = any(name not in there for name in self.random if plain_style(name).startswith(_RANDOM_PAIRS))
        return bool(styles & {*_MOVING}) and styles <= {*_MOVING, *_LOOKING} and not random_pair

    @cached_property
    def random_fixes(self) -> tuple[str, ...]:
        """IDs of the random fixes that are still there at the end of the script."""
        gone = {w for c in self.commands if c.name == "unfix" for w in c.words[1:]}
        fixes = {c.words[1] for c in self.commands if c.name == "fix" and len(c.words) > 3}
        return tuple(dict.fromkeys(name for name in self.random if name in fixes and name not in gone))

    def value(self, word: str) -> str:
        """A word with the plain value of a variable in its place, where it is one that has one value only."""
        alone = ALONE.match(word)
        if not alone:
            return word
        name = alone[1] or alone[2] or alone[3]
        if name in self.given:
            return self.given[name]
        style, first = self.read.defined.get(name, ("", ""))
        if name in self.read.conditional or "$" in first:
            return word
        if style == "index":  # the first definition counts, later ones change nothing
            return first
        again = sum(c.name == "variable" and c.words[1:2] == [name] for c in self.commands) > 1
        known = style == "string" or (style == "equal" and is_number(first))
        return first if known and not again else word

    def number(self, word: str) -> float | None:
        """A word as a number, or None."""
        value = self.value(word)
        return float(value) if is_number(value) else None


def plain_style(style: str) -> str:
    """A style without its accelerator."""
    return next((style.removesuffix(end) for end in _ACCELERATED if style.endswith(end)), style)
