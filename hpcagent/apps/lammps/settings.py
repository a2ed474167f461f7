"""Which settings of an input script decide how fast it runs, and which of them can be changed safely.

A setting that the script does not name has LAMMPS's own default (manual pages of `neighbor`, `neigh_modify`,
`newton`, `processors`, `suffix`, `kspace_modify`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from hpcagent.apps.lammps.script import Script, _without_comment, _words, read_script
from hpcagent.errors import BadInput

__all__ = [
    "SKINS",
    "Command",
    "Cutoffs",
    "Kspace",
    "Settings",
    "commands",
    "moves",
    "plain_style",
    "read_settings",
]

SKINS = {
    "lj": 0.3, "real": 2.0, "metal": 2.0, "electron": 2.0, "si": 0.001, "cgs": 0.1, "micro": 0.1, "nano": 0.1,
}  # fmt: skip
"""The neighbour skin where the script has no `neighbor`, by `units` style, in its unit of length."""

# Commands after which what runs next is not told by reading from top to bottom, or is no dynamics of one system.
_FLOW = {
    "jump": "it jumps",
    "next": "it loops",
    "clear": "it starts over with another system",
    "quit": "it may quit early",
    "partition": "it runs on partitions",
    "python": "it calls Python",
    "shell": "it calls the shell",
    "rerun": "it reads a trajectory again",
    "temper": "it tempers replicas",
    "temper/grem": "it tempers replicas",
    "temper/npt": "it tempers replicas",
    "neb": "it looks for a path",
    "neb/spin": "it looks for a path",
    "prd": "it runs replicas",
    "tad": "it runs replicas",
    "hyper": "it runs replicas",
    "dynamical_matrix": "it computes a matrix",
    "third_order": "it computes a matrix",
    "fitpod": "it fits a potential",
}
# Where random numbers depend on the order of the atoms in memory, so that no two settings give the same
# trajectory.
_RANDOM_FIXES = (
    "langevin", "gld", "brownian", "gcmc", "atom/swap", "bond/create", "bond/break", "deposit", "evaporate",
    "pour",     "temp/csvr", "temp/csld", "widom", "mc", "sgcmc", "ttm", "srd", "lb/fluid", "qtb", "qbmsst",
    "bond/react", "charge/regulation", "neighbor/swap", "stochastic", "propel", "spin", "precession", "drag",
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
_KSPACE_FIXED = ("mesh", "gewald", "force", "mesh/disp", "gewald/disp", "force/disp/real", "force/disp/kspace",
                 "pressure/scalar", "collective", "cutoff/adjust", "overlap", "minorder")  # fmt: skip
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z")
_ALONE = re.compile(r"\$\{(\w+)\}\Z|\$(\w)\Z|v_(\w+)\Z")


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a script.

    Attributes:
        first: Number of its first line, from 0.
        last: Number of its last line.
        words: Its words; comments are cut.
    """

    first: int
    last: int
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """What it is called."""
        return self.words[0]


def commands(text: str) -> tuple[Command, ...]:
    """The commands of a script with the lines that they stand on.

    Example:
        >>> [c.words for c in commands("units lj  # reduced\\n\\nneighbor 0.3 &\\n  bin\\n")]
        [('units', 'lj'), ('neighbor', '0.3', 'bin')]
    """
    found, pending, first = [], "", 0
    for number, raw in enumerate(text.splitlines()):
        if not pending:
            first = number
        stripped = raw.rstrip(" \t")
        if stripped.endswith("&"):
            pending += stripped[:-1]
            continue
        pending += raw
        if pending.count('"""') % 2:
            pending += "\n"
            continue
        words = _words(_without_comment(pending).strip())
        if words:
            found.append(Command(first, number, tuple(words)))
        pending = ""
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Kspace:
    """The long-range solver of a script.

    Attributes:
        style: Its style, e.g. `pppm`.
        accuracy: Relative accuracy that it is asked for.
        order: Order of the interpolation.
        diff: `ik` or `ad`.
        kept: Words of `kspace_modify` that are not changed.
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
    """

    style: str
    before: tuple[str, ...]
    coulomb: float


@dataclass(frozen=True)
class Settings:
    """What an input script says of how it is run.

    Attributes:
        read: The script.
        commands: Its commands, in order.
        first: The first command that runs or minimises.
        run: The last `run`: what is measured.
        steps: Its number of steps, where it can be told.
        left: What is not changed here (`neighbor`, `kspace`, `cutoff`, ...), and why.
    """

    read: Script
    commands: tuple[Command, ...]
    first: Command
    run: Command
    steps: int | None
    left: tuple[tuple[str, str], ...]

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

    @cached_property
    def skin(self) -> float | None:
        """The neighbour skin; None where a variable without a plain value decides it."""
        at = self.named("neighbor")
        return SKINS.get(self.units, 0.3) if not at else self.number(at[-1].words[1])

    @property
    def bins(self) -> str:
        """How neighbours are found: `bin`, `nsq` or `multi`."""
        at = self.named("neighbor")
        return at[-1].words[2] if at and len(at[-1].words) > 2 else "bin"

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

    @property
    def grid(self) -> tuple[str, ...]:
        """The `processors` grid that it asks for; `*` is what LAMMPS finds best."""
        at = self.named("processors")
        return tuple(map(self.value, at[-1].words[1:4])) if at else ("*", "*", "*")

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
        for command in self.named("kspace_modify"):
            words = list(map(self.value, command.words[1:]))
            if "order" in words[:-1]:
                order = (
                    int(words[words.index("order") + 1]) if words[words.index("order") + 1].isdigit() else order
                )
            if "diff" in words[:-1]:
                diff = words[words.index("diff") + 1]
            kept.append(tuple(command.words[1:]))
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
        coulomb = self.number(after[0] if after else before[-1])
        if len(before) < words + cuts or len(after) > 1 or coulomb is None:
            return None
        return Cutoffs(at[0].words[1], before, coulomb)

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
    def random_fixes(self) -> tuple[str, ...]:
        """IDs of the random fixes that are still there at the end of the script."""
        gone = {w for c in self.commands if c.name == "unfix" for w in c.words[1:]}
        fixes = {c.words[1] for c in self.commands if c.name == "fix" and len(c.words) > 3}
        return tuple(dict.fromkeys(name for name in self.random if name in fixes and name not in gone))

    def value(self, word: str) -> str:
        """A word with the script's own value in place of a variable, where the script gives it one."""
        alone = _ALONE.match(word)
        if not alone:
            return word
        style, first = self.read.defined.get(alone[1] or alone[2] or alone[3], ("", ""))
        return first if style in ("index", "string") else word

    def number(self, word: str) -> float | None:
        """A word as a number, or None."""
        value = self.value(word)
        return float(value) if _NUMBER.match(value) else None


def moves(command: Command) -> bool:
    """Whether a command runs or minimises, or is an `if` that may."""
    if command.name != "if":
        return command.name in ("run", "minimize")
    inner = [_words(w) for w in command.words[1:] if any(c.isspace() for c in w)]
    return any(words[:1] in (["run"], ["minimize"]) for words in inner)


def read_settings(path: Path) -> Settings:
    """Read what an input script says of how it is run.

    Raises:
        BadInput: It is missing, or is such that a part of it cannot be timed: no `run`, a loop, several systems.
    """
    read = read_script(path)
    found = commands(read.text)
    _refuse_flow(path, found)
    first = next(filter(moves, found), None)
    runs = [c for c in found if c.name == "run"]
    if not runs or first is None:
        inside = [c.words[1] for c in found if c.name == "include" and len(c.words) > 1]
        where = f"; if it is in {', '.join(inside)}, write that file's commands in its place" if inside else ""
        raise BadInput(
            f"{path}: the script has no `run` command of its own, so there is nothing to time{where}.",
            value=str(path),
        )
    late = next((c for c in found if c.first > runs[-1].last and moves(c)), None)
    if late is not None and late.name == "if":
        raise BadInput(
            f"{path}, line {late.first + 1}: after the last `run` of its own the script may run once more inside "
            "an `if`, so what would be timed cannot be told. Put the run that is to be fast last, as a command "
            "of its own.",
            value="if",
        )
    settings = Settings(read, found, first, runs[-1], None, ())
    steps = _steps(path, settings, runs[-1])
    _refuse_missing(path, settings)
    return Settings(read, found, first, runs[-1], steps, _left(settings))


def _refuse_flow(path: Path, found: tuple[Command, ...]) -> None:
    for command in found:
        why = _FLOW.get(command.name)
        if why is not None:
            raise BadInput(
                f"{path}, line {command.first + 1}: {why} (`{' '.join(command.words)[:80]}`), so what would be "
                "timed cannot be told. Give a script that reads from top to bottom and whose last run is what "
                "you want to be fast.",
                value=command.name,
            )
        inner = [w for w in command.words[1:] if any(c.isspace() for c in w)]
        if command.name == "if" and any(_words(w)[0] in _FLOW for w in inner if _words(w)):
            raise BadInput(
                f"{path}, line {command.first + 1}: an `if` may jump or quit, so what would be timed cannot be "
                "told. Give a script that reads from top to bottom.",
                value="if",
            )


def _steps(path: Path, settings: Settings, run: Command) -> int | None:
    words = run.words
    if len(words) < 2:
        raise BadInput(f"{path}, line {run.first + 1}: `run` names no number of steps.", value="run")
    for keyword in ("every", "upto"):
        if keyword in words[2:]:
            raise BadInput(
                f"{path}, line {run.first + 1}: `run ... {keyword}` cannot be made shorter without changing what "
                "it does; write a plain `run N`.",
                value=keyword,
            )
    pairs = list(pairwise(words[2:]))
    if ("post", "no") in pairs or ("pre", "no") in pairs:
        raise BadInput(
            f"{path}, line {run.first + 1}: with `pre no` or `post no` LAMMPS times no run of its own; drop the "
            "keyword from the run that is to be timed.",
            value="run",
        )
    number = settings.number(words[1])
    if number is not None and number < 1:
        raise BadInput(
            f"{path}, line {run.first + 1}: the last run makes {number:g} steps, so there is nothing to time. Put "
            "the run that is to be fast last.",
            value=number,
        )
    return None if number is None else int(number)


_READ = {"read_data": 1, "read_restart": 1, "include": 1, "molecule": 2, "read_dump": 1}


def _refuse_missing(path: Path, settings: Settings) -> None:
    for command in settings.commands:
        at = _READ.get(command.name)
        if at is None or len(command.words) <= at:
            continue
        word = settings.value(command.words[at])
        if "$" in word or "*" in word or word in settings.read.files:
            continue
        file = Path(word) if Path(word).is_absolute() else path.parent / word
        if not file.is_file():
            raise BadInput(
                f"{path}, line {command.first + 1}: `{command.name}` needs the file {word!r}, which is not there "
                f"({file}). Put it beside the script.",
                value=word,
            )


def _left(settings: Settings) -> tuple[tuple[str, str], ...]:
    """What is left as it is, and why."""
    said = []
    inside = {
        _words(w)[0] for c in settings.commands if c.name == "if" for w in c.words[1:] if any(map(str.isspace, w))
    }
    included = [c.words[1] for c in settings.commands if c.name == "include" and len(c.words) > 1]
    if included:
        said.append((f"include {', '.join(included)}", "only the script itself is changed"))
    setting = {
        "kspace_style": "kspace",
        "kspace_modify": "kspace",
        "suffix": "accelerator",
        "pair_style": "cutoff",
    }
    for name in ("neighbor", "neigh_modify", "newton", "processors", "suffix", "kspace_style", "pair_style"):
        if name in inside:
            said.append((setting.get(name, name), f"an `if` of the script decides `{name}`"))
    accelerated = {w for c in settings.named("suffix") for w in c.words[1:]} - {"off", "on", "opt", "omp"}
    packages = {c.words[1] for c in settings.named("package") if len(c.words) > 1} - {"omp"}
    if accelerated or packages or len(settings.named("suffix")) > 1:
        what = ", ".join(sorted(accelerated | packages)) or "several `suffix` commands"
        said.append(("accelerator", f"the script has {what}"))
    if settings.named("run_style"):
        said.append(("run_style", "it changes how the motion is integrated"))
    if settings.skin is None:
        said.append(("neighbor", "its skin is a variable without a plain value"))
    if len(settings.named("processors")) > 1 or any(word != "*" for word in settings.grid):
        said.append(("processors", f"the script asks for the grid {' '.join(settings.grid)}"))
    elif any(len(c.words) > 4 for c in settings.named("processors")):
        said.append(("processors", "the script says how ranks are laid out"))
    said += _left_of_kspace(settings)
    return tuple(said)


def _left_of_kspace(settings: Settings) -> list[tuple[str, str]]:
    styles = settings.named("kspace_style")
    if not styles or styles[-1].words[1:2] == ("none",):
        return []
    if settings.kspace is None:
        return [("kspace", "its accuracy is a variable without a plain value")]
    if len(styles) > 1:
        return [("kspace", "the script has several `kspace_style` commands")]
    kspace = settings.kspace
    fixed = sorted({word for words in kspace.kept for word in words if word in _KSPACE_FIXED})
    if fixed:
        return [("kspace", f"`kspace_modify` sets {', '.join(fixed)} by hand")]
    if not kspace.style.startswith(("pppm", "ewald")) or "disp" in kspace.style:
        return [("kspace", f"of the solvers only pppm and ewald are varied, not {kspace.style}")]
    if any(c.name == "fix" and len(c.words) > 3 and c.words[3] == "tune/kspace" for c in settings.commands):
        return [("kspace", "`fix tune/kspace` changes it during the run")]
    if settings.cutoffs is None:
        pairs = settings.named("pair_style")
        style = pairs[-1].words[1] if pairs and len(pairs[-1].words) > 1 else "(none)"
        return [("cutoff", f"of pair_style {style} it is not known how to change the Coulomb cutoff alone")]
    return []


def plain_style(style: str) -> str:
    """A style without its accelerator."""
    return next((style.removesuffix(end) for end in _ACCELERATED if style.endswith(end)), style)
