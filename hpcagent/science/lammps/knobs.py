"""What of an input script is tried for speed, in which range, and what it was as the script came."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hpcagent.errors import BadInput
from hpcagent.model.base import Scalar
from hpcagent.science.lammps.rewritten import GRIDS, OWN, as_rebuild
from hpcagent.science.lammps.settings import SKINS, Settings, plain_style

__all__ = ["UNKNOWN", "Knob", "System", "knobs", "pair_names", "rank_counts", "room_for", "system_of"]


@dataclass(frozen=True, slots=True)
class System:
    """What one short run of the script as it came tells of its system.

    Attributes:
        atoms: How many there are.
        edges: Lengths of the box, in the script's unit of length.
        cutoff: The longest cutoff of its forces, in the same.
        tilted: Whether the box is triclinic.
    """

    atoms: int
    edges: tuple[float, float, float]
    cutoff: float
    tilted: bool = False


UNKNOWN = System(10**9, (math.inf, math.inf, math.inf), 0.0)
"""A system of which nothing is known: what its size limits is not limited."""

_BOX = re.compile(r"(orthogonal|triclinic) box = \(([^)]*)\) to \(([^)]*)\)")
_LIST = re.compile(r"master list distance cutoff = (\S+)")


def system_of(log: str, atoms: int, skin: float) -> System:
    """Read the system from the log of a run.

    Raises:
        BadInput: The log says nothing of a box.
    """
    boxes, lists = _BOX.findall(log), _LIST.findall(log)
    if not boxes:
        raise BadInput("the log of the script as it came says nothing of its box, so no safe range can be told.")
    kind, low, high = boxes[-1]
    edges = tuple(b - a for a, b in zip(map(float, low.split()), map(float, high.split()), strict=False))
    cutoff = float(lists[-1]) - skin if lists else 0.0
    return System(atoms, (edges[0], edges[1], edges[2]), max(cutoff, 0.0), kind == "triclinic")


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting that is tried.

    Attributes:
        setting: What it is, as `rewritten` calls it; also `ranks` and `threads`.
        name: Its variable in the script.
        own: Its value as the script came.
        table: Its `[variables.NAME]` of the contract.
        range: The same in words, and why.
        driven: The variable is the script's own, and decides nothing else.
    """

    setting: str
    name: str
    own: Scalar
    table: dict[str, Any] = field(default_factory=dict)
    range: str = ""
    driven: bool = False

    @property
    def values(self) -> tuple[str, ...]:
        """The words that it may be, where it is a choice."""
        return tuple(map(str, self.table.get("choices", ())))


def rank_counts(cores: int) -> tuple[int, ...]:
    """Numbers of ranks that are tried on so many cores: powers of two, and all of them.

    Example:
        >>> rank_counts(2), rank_counts(48)
        ((1, 2), (1, 2, 4, 8, 16, 32, 48))
    """
    powers = [2**n for n in range(cores.bit_length()) if 2**n <= cores]
    return tuple(dict.fromkeys([*powers, cores]))


def knobs(
    settings: Settings,
    system: System,
    *,
    ranks: Sequence[int],
    cores: int,
    ranks_now: int = 1,
    threads_now: int = 1,
    accelerators: Iterable[str] = ("opt", "omp"),
) -> tuple[Knob, ...]:
    """What is tried.

    Args:
        settings: What was read of the script.
        system: What one run told.
        ranks: Numbers of MPI ranks that may be used.
        cores: Cores of a node.
        ranks_now: On how many ranks the script was run as it came.
        threads_now: And with how many threads.
        accelerators: Those that this LAMMPS has for the script's pair style.
    """
    left = dict(settings.left)
    made = [*_cores(settings, left, tuple(ranks), cores, ranks_now, threads_now, tuple(accelerators))]
    if "newton" not in left:
        own = settings.newton if settings.newton in ("on", "off") else "on"
        made.append(_choice("newton", own, ["on", "off"], "forces across processors are computed once, or twice"))
    made += [*_lists(settings, left, system), *_electrostatics(settings, left, system)]
    taken = {*settings.read.used, *settings.read.defined}
    return tuple(_named(k, settings.driven.get(k.setting), taken) for k in made)


def _named(knob: Knob, variable: str | None, taken: Container[str]) -> Knob:
    """The knob by the script's own variable, or by one that the script does not have."""
    if variable is not None:
        words = f"{knob.range.partition(':')[0]} (its variable {variable}):{knob.range.partition(':')[2]}"
        return replace(knob, name=variable, range=words, driven=True)
    return replace(knob, name=knob.setting if knob.setting not in taken else f"tune_{knob.setting}")


def _choice(setting: str, own: Scalar, values: Iterable[Scalar], why: str) -> Knob:
    choices = list(dict.fromkeys([own, *values]))
    words = ", ".join(map(str, choices))
    return Knob(setting, setting, own, {"choices": choices, "default": own, "description": why}, f"{words}: {why}")


def _float(setting: str, own: float, low: float, high: float, unit: str, why: str) -> Knob:
    table = {"low": low, "high": high, "log": True, "unit": unit, "default": own, "description": why}
    return Knob(
        setting,
        setting,
        own,
        table,
        f"{low:.3g} to {high:.3g} {'' if unit == '1' else unit}".rstrip() + f": {why}",
    )


def _cores(
    settings: Settings,
    left: dict[str, str],
    ranks: tuple[int, ...],
    cores: int,
    ranks_now: int,
    threads_now: int,
    accelerators: tuple[str, ...],
) -> list[Knob]:
    made = [_choice("ranks", ranks_now, sorted(ranks), f"MPI ranks on a node of {cores} cores")]
    ways: tuple[str, ...] = () if "accelerator" in left else accelerators
    own = _of_switch(settings, "accelerator") or (settings.suffix if settings.suffix in ("opt", "omp") else "off")
    ways = tuple(way for way in ways if way in settings.choices.get("accelerator", ways))
    if ways:
        made.append(
            _choice("accelerator", own, ["off", *ways], "LAMMPS's other code for the same forces (suffix)")
        )
    if "omp" in ways and "threads" not in left:
        made.append(
            _choice(
                "threads", threads_now, rank_counts(cores), "OpenMP threads of each rank; more than one with omp"
            )
        )
    if max(ranks) > 1 and "processors" not in left:
        cuts = [name for name in GRIDS if len(name) == 1 or max(ranks) > 3]
        if settings.dimension == 2:
            cuts = [name for name in cuts if "z" not in name]  # LAMMPS wants one rank along z
        cuts = list(settings.choices.get("grid", cuts))
        way = _of_switch(settings, "grid") or "auto"
        made.append(_choice("grid", way, [way, *cuts], f"along which edges the box is cut; {way}: LAMMPS's own"))
    return made


# In these multiples of the script's own skin, or of LAMMPS's default, the best one is looked for.
_SKIN_LOW, _SKIN_HIGH = 0.3, 2.5
_REBUILDS = ((1, 0), (1, 5), (1, 10), (5, 10), (10, 20), (20, 20))
_EVERY = (1, 2, 5, 10, 20)
_FEW_ATOMS = 1000


def _lists(settings: Settings, left: dict[str, str], system: System) -> list[Knob]:
    made = []
    if "neighbor" not in left and settings.skin is not None and settings.skin > 0:
        own, default = settings.skin, SKINS.get(settings.units, 0.3)
        low, high = _SKIN_LOW * min(own, default), _SKIN_HIGH * max(own, default)
        why = "distance beyond the cutoff up to which neighbours are listed"
        half = min(system.edges) / 2 - system.cutoff
        if system.cutoff > 0 and own < half < high:
            high, why = half, f"{why}; cutoff and skin reach half of the box"
        elif 0 < 0.6 * system.cutoff < high and own <= 0.6 * system.cutoff:
            high = 0.6 * system.cutoff
        made.append(_float("skin", own, low, high, _length(settings), why))
        if system.atoms <= _FEW_ATOMS and settings.bins in ("bin", "nsq"):
            made.append(
                _choice("bins", settings.bins, ["bin", "nsq"], "how neighbours are found; so few may go by pairs")
            )
    if "neigh_modify" not in left:
        words = [as_rebuild(*way) for way in _REBUILDS]
        rule = settings.rebuild
        own_word = as_rebuild(int(rule["every"]), int(rule["delay"])) if _whole(rule) and settings.checked else OWN
        why = "when the list may be built anew, looking first whether an atom has moved by half of the skin"
        if "rebuild" in settings.choices:
            made.append(_choice("rebuild", _of_switch(settings, "rebuild"), settings.choices["rebuild"], why))
        elif "every" in settings.driven and settings.checked and rule["delay"] == "0" and rule["every"].isdigit():
            made.append(
                _choice("every", int(rule["every"]), _EVERY, "steps between looks whether an atom has moved")
            )
        else:
            made.append(_choice("rebuild", OWN, [w for w in words if w != own_word], why))
    return made


def _of_switch(settings: Settings, setting: str) -> str:
    """The word of a setting that an `if` on a variable chooses, as the script came; empty where none does."""
    return settings.value(f"${{{settings.driven[setting]}}}") if setting in settings.choices else ""


def _whole(rule: dict[str, str]) -> bool:
    return rule["every"].isdigit() and rule["delay"].isdigit()


def _length(settings: Settings) -> str:
    return {"lj": "sigma", "real": "angstrom", "metal": "angstrom", "electron": "bohr", "si": "m", "cgs": "cm",
            "micro": "um", "nano": "nm"}.get(settings.units, "1")  # fmt: skip


_EWALD_UP_TO = 3000


def _electrostatics(settings: Settings, left: dict[str, str], system: System) -> list[Knob]:
    kspace = settings.kspace
    if kspace is None or "kspace" in left:
        return []
    a = kspace.accuracy
    made = [
        _float("accuracy", a, a / 4, a * 8, "1", "what kspace is asked for; the error of the forces is measured"),
    ]
    if kspace.style in ("pppm", "ewald"):
        solvers = ["pppm", "ewald"] if system.atoms <= _EWALD_UP_TO else ["pppm"]
        if len({kspace.style, *solvers}) > 1:
            made.append(_choice("kspace", kspace.style, solvers, "the solver of the long-range part"))
    if kspace.style.startswith("pppm") or len(made) > 1:
        made.append(_choice("order", kspace.order, [4, 5, 6, 7], "order of the interpolation to the mesh"))
        if not system.tilted:
            made.append(_choice("diff", kspace.diff, ["ik", "ad"], "how the mesh gives forces: 4 or 2 transforms"))
    cutoffs = settings.cutoffs
    if cutoffs is not None and "cutoff" not in left:
        own = cutoffs.coulomb
        high = min(1.4 * own, max(own, min(system.edges) / 2))
        made.append(
            _float("coulomb", own, 0.6 * own, max(high, own * 1.001), _length(settings),
                   "where the real-space part ends; other forces keep their cutoffs")
        )  # fmt: skip
    return made


def room_for(settings: Settings, system: System, made: Iterable[Knob]) -> int | None:
    """Neighbours of one atom that there has to be room for at the largest skin; None where the script has it.

    LAMMPS keeps room for 2000 (`neigh_modify one`); the mean of the system is doubled, as densities vary.
    """
    skin = next((k.table["high"] for k in made if k.setting == "skin"), None)
    given = settings.rebuild["one"]
    volume = math.prod(system.edges)
    if skin is None or not given.isdigit() or volume <= 0:
        return None
    grown = max((k.table["high"] - float(k.own) for k in made if k.setting == "coulomb"), default=0.0)
    reach = system.cutoff + skin + max(grown, 0.0)
    mean = system.atoms / volume * 4 / 3 * math.pi * reach**3
    needed = 1000 * math.ceil(2 * mean / 1000)
    return needed if needed > int(given) else None


def pair_names(settings: Settings) -> tuple[str, ...]:
    """The pair styles of a script, without accelerators."""
    words = [w for c in settings.named("pair_style") for w in c.words[1:]]
    styles = [plain_style(settings.value(w)) for w in words]
    return tuple(w for w in styles if not re.match(r"[\d.+$-]", w) and not w.startswith("hybrid"))
