"""What a minimisation before the first fix must hold, so that it moves no atom that the script does not move.

A minimisation moves all atoms. What the script leaves out of time integration, or holds by `fix setforce 0 0 0`
or `fix freeze`, is held there, too; a fix that acts on atoms otherwise (walls, springs, bias forces) would have to
act in it as well, and whether it does so rightly cannot be told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["CannotHold", "held", "measures"]

_CONSTRAINS = ("shake", "rattle", "rigid", "poems")
_INTEGRATES = ("bocs", "brownian", "gjf", "msst", "nph", "nphug", "npt", "nve", "nvk", "nvt")
# They act along a run only: on velocities, on the box, on which atoms there are; or they measure.
_ALONG_A_RUN = (
    "ave", "atom/swap", "balance", "bond/break", "bond/create", "bond/swap", "deform", "deposit", "dt/reset",
    "ehex", "electron/stopping", "enforce2d", "gcmc", "halt", "heat", "langevin", "momentum", "move", "numdiff",
    "phonon", "press/berendsen", "press/langevin", "print", "property/atom", "reaxff/bonds", "reaxff/species",
    "recenter", "store", "temp", "thermal/conductivity", "ttm", "tune/kspace", "vector", "viscosity", "viscous",
    "widom",
)  # fmt: skip
_MEASURES = ("ave", "halt", "print", "store", "vector")
_ACCELERATED = re.compile(r"/(?:gpu|intel|kk|kk/device|kk/host|omp|opt)$")
_ZERO = re.compile(r"[-+]?0*\.?0*(?:[eE][-+]?\d+)?|NULL")
_NAME = "hpcagent_held"


class CannotHold(Exception):
    """Why it cannot be told what must be held, without a full stop."""


def measures(words: Sequence[str]) -> bool:
    """Whether a `fix` command only measures or writes, or ends a run."""
    return len(words) > 3 and _is(words[3], _MEASURES)


def held(
    before: Iterable[Sequence[str]], after: Sequence[Sequence[str]], conditional: Sequence[Sequence[str]]
) -> tuple[list[str], list[str], str]:
    """The commands that hold for a minimisation what the script holds, those that free it, and that in words.

    Args:
        before: The words of the commands before the place of the minimisation.
        after: Those after it, with what an `if` or another script holds.
        conditional: Those of them that an `if` holds.

    Raises:
        CannotHold: The script has a fix that would have to act, or groups that cannot be told.
    """
    fixes = [words for words in after if words[0] == "fix" and len(words) > 3]
    still = [words[2] for words in fixes if _holds(words)]
    for words in fixes:
        _check(words)
    moved = _moved(after, conditional)
    groups = [*still, *(() if moved is None else moved)]
    for group in groups:
        _check_group(group, before, after)
    hold: list[str] = []
    free: list[str] = []
    for number, group in enumerate(dict.fromkeys(still), start=1):
        hold.append(f"fix {_NAME}_{number} {group} setforce 0.0 0.0 0.0")
        free.append(f"unfix {_NAME}_{number}")
    if moved is not None:
        union = moved[0] if len(moved) == 1 else f"{_NAME}_not"
        hold += [f"group {union} union {' '.join(moved)}"] if len(moved) > 1 else []
        hold += [f"group {_NAME} subtract all {union}", f"fix {_NAME} {_NAME} setforce 0.0 0.0 0.0"]
        free += [f"unfix {_NAME}", f"group {_NAME} delete"]
        free += [f"group {union} delete"] if len(moved) > 1 else []
    said = [f"what no fix integrates was held, all but {', '.join(moved)}"] if moved is not None else []
    said += [f"{', '.join(dict.fromkeys(still))} was held, as by the script's own fix"] if still else []
    return hold, free, "; ".join(said)


def _is(style: str, known: Sequence[str]) -> bool:
    return any(style == one or style.startswith(f"{one}/") for one in known)


def _integrates(words: Sequence[str]) -> bool:
    style = _ACCELERATED.sub("", words[3])
    return _is(style, _INTEGRATES) and not style.endswith("/noforce")


def _holds(words: Sequence[str]) -> bool:
    """Whether a fix keeps its group where it is, and nothing else."""
    style = _ACCELERATED.sub("", words[3])
    if style == "freeze":
        return True
    # One that holds only some directions, or in a region, is not like it.
    return style == "setforce" and len(words) == 7 and all(_ZERO.fullmatch(w) and w != "NULL" for w in words[4:7])


def _check(words: Sequence[str]) -> None:
    style = words[3]
    if _is(style, _CONSTRAINS):
        raise CannotHold(f"`fix {style}` holds what a minimisation would move")
    if "$" in style or "$" in words[2]:
        raise CannotHold(
            f"the style or the group of `fix {' '.join(words[1:4])}` is a variable: what it holds is not told"
        )
    if not (_integrates(words) or _holds(words) or _is(style, _ALONG_A_RUN) or style.endswith("/noforce")):
        raise CannotHold(
            f"`fix {words[1]} {words[2]} {style}` stands after the place of the minimisation and would not act in "
            "it, so atoms could go where the script does not let them"
        )


def _moved(after: Sequence[Sequence[str]], conditional: Sequence[Sequence[str]]) -> list[str] | None:
    """The groups that the script's runs integrate; None where that is all atoms."""
    now: dict[str, str] = {}
    seen: list[list[str]] = []
    for words in after:
        match words:
            case ["fix", name, group, _, *_]:
                now.pop(name, None)
                if _integrates(words):
                    now[name] = group
            case ["unfix", name, *_]:
                now.pop(name, None)
            case ["run", *_]:
                groups = sorted(set(now.values()))
                seen += [groups] if groups and groups not in seen else []
    if not seen:
        raise CannotHold("none of its runs has a fix that is known to integrate all atoms or a group of them")
    if all("all" in groups for groups in seen):
        return None
    if len(seen) > 1:
        raise CannotHold(
            f"its runs integrate other groups ({' and then '.join(', '.join(one) for one in seen)}), so that what "
            "it holds at its start is not told"
        )
    if any(len(words) > 3 and words[0] == "fix" and _integrates(words) for words in conditional):
        raise CannotHold("an `if` decides what is integrated, so that what it holds at its start is not told")
    return seen[0]


def _check_group(group: str, before: Iterable[Sequence[str]], after: Sequence[Sequence[str]]) -> None:
    if group == "all":
        return
    defined = [words for words in before if words[0] == "group" and words[1:2] == [group]]
    if not defined:
        raise CannotHold(f"the group {group!r} is not defined before the first fix, dump or run: put it before")
    if any({"dynamic", "delete", "clear"} & set(words[2:3]) for words in defined) or any(
        words[0] == "group" and words[1:2] == [group] for words in after
    ):
        raise CannotHold(f"the group {group!r} changes, so that what is held at the start is not told")
