"""What the thermo output of an input script holds, as far as the script says it, and what a metric needs of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from hpcagent.science.lammps.script import Command, commands, nested
from hpcagent.science.lammps.thermo_columns import canonical

__all__ = ["columns_of", "lacking", "remedy"]

# What LAMMPS prints of itself (manual, `thermo_style`); the volume where the box changes.
_STYLES = {
    "one": ("step", "temp", "epair", "emol", "etotal", "press", "vol"),
    "multi": ("step", "cpu", "etotal", "ke", "temp", "pe", "ebond", "eangle", "edihed", "eimp", "evdwl", "ecoul",
              "elong", "press", "vol"),
}  # fmt: skip
_DEFAULT = "one"
_RUNS = ("run", "minimize", "rerun")
# Commands by which something else than the script may set the output.
_ELSEWHERE = ("include", "python", "plugin", "shell")
_ENERGY = (("econserve",), ("etotal",), ("pe", "ke"))
# Beginning of a metric's name -> sets of columns of which one is enough.
_NEEDS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "temperature": (("temp",),),
    "pressure": (("press",),),
    "density": (("density",),),
    "potential_energy_": (("pe",),),
    "kinetic_energy_": (("ke",),),
    "total_energy_": (("etotal",),),
    "energy_fluctuation": _ENERGY,
    "drift_": _ENERGY,
    "rms_ppm": _ENERGY,
}


def columns_of(text: str) -> frozenset[str] | None:
    """The thermo keywords that a script prints in any of its runs; None where that cannot be told from its text.

    Args:
        text: The script.

    Example:
        >>> sorted(columns_of("thermo_style custom step temp v_own\\nrun 1\\n"))
        ['step', 'temp', 'v_own']
        >>> "press" in columns_of("run 1\\n"), columns_of("include in.more\\nrun 1\\n")
        (True, None)
    """
    found = commands(text)
    if any(_hidden(command) for command in found):
        return None
    styles = [c.words[1:] for c in found if c.name == "thermo_style"]
    before = takewhile(lambda c: c.name != "thermo_style", found)
    if not styles or any(c.name == "clear" for c in found) or any(c.name in _RUNS for c in before):
        styles.append([_DEFAULT])
    columns: set[str] = set()
    for style, *given in styles:
        if style == "custom":
            columns |= {canonical(word) for word in given}
        elif style in _STYLES:
            columns |= set(_STYLES[style])
        else:  # one that is not known here
            return None
    return frozenset(columns)


def _hidden(command: Command) -> bool:
    words = command.words
    if "$" in command.name or command.name in _ELSEWHERE or (command.name == "jump" and words[1:2] != ["SELF"]):
        return True
    if any(one[0] in ("thermo_style", "thermo_modify", *_ELSEWHERE) for one in nested(words)):
        return True
    if command.name == "thermo_modify":
        return "colname" in words  # headers of the script's own
    return command.name == "thermo_style" and (len(words) < 2 or any("$" in word for word in words))


def lacking(settings: Mapping[str, Any], metrics: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The metrics that no run of a script can have, because no thermo output of it has their column.

    Args:
        settings: Those of the app: `script` and `columns`.
        metrics: Names.

    Returns:
        Metric -> thermo keywords to add; none where it cannot be told.
    """
    printed = columns_of(settings["script"])
    if printed is None:
        return {}
    starred = any("*" in column for column in printed)  # columns whose names only LAMMPS knows
    found = {}
    for metric in metrics:
        needs = _needs(settings, metric)
        own = any("_" in column for some in needs for column in some)
        if needs and not any(set(some) <= printed for some in needs) and not (starred and own):
            found[metric] = needs[-1] if len(needs[-1]) == 1 else needs[1]
    return found


def _needs(settings: Mapping[str, Any], metric: str) -> Sequence[tuple[str, ...]]:
    column = (settings.get("columns") or {}).get(metric)
    if column is not None:
        return ((canonical(column["column"]),),)
    return next((needs for begins, needs in _NEEDS.items() if metric.startswith(begins)), ())


def remedy(settings: Mapping[str, Any], metrics: Iterable[str]) -> str:
    """What to put into the script so that its runs have these metrics, in a sentence; empty where it is not known.

    Example:
        >>> remedy({"script": "run 1"}, ["density"])
        'Print it: `thermo_style custom step temp density press ...`, before the run that is measured.'
    """
    wanted = [needs[0] for metric in metrics if (needs := _needs(settings, metric))]
    words = list(dict.fromkeys(word for some in wanted for word in some))
    if not words:
        return ""
    line = " ".join(dict.fromkeys(("step", "temp", *words, "press")))
    return f"Print it: `thermo_style custom {line} ...`, before the run that is measured."
