"""Which variable of a script decides a setting of speed, and nothing else: then that variable is what is varied.

A variable counts only where every use of it is known: the word of the setting itself, or an `if` that does nothing
but set further settings of speed. One that decides something else too stays as it is; then the line of the setting
is changed, not the variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcagent.science.lammps.script import REFERENCE, Command, nested
from hpcagent.science.lammps.settings import ALONE, Settings

__all__ = ["driven", "switched"]

# What an `if` on such a variable may do.
_OF_SPEED = ("package", "suffix", "neighbor", "neigh_modify", "newton", "processors", "kspace_modify", "print")
# Where the word of a setting may stand: the command, and the keyword before it or its place.
_PLACES: dict[str, tuple[str, str | int]] = {
    "accelerator": ("suffix", 1),
    "newton": ("newton", 1),
    "skin": ("neighbor", 1),
    "bins": ("neighbor", 2),
    "every": ("neigh_modify", "every"),
    "kspace": ("kspace_style", 1),
    "accuracy": ("kspace_style", 2),
    "order": ("kspace_modify", "order"),
    "diff": ("kspace_modify", "diff"),
    "threads": ("package", 2),
}
_ONE_WORD = {"accelerator": 2, "newton": 2}  # so many words has the command, where the setting is all of it


def driven(settings: Settings, included: Sequence[Sequence[Command]]) -> dict[str, str]:
    """Setting -> the variable that decides it alone.

    Args:
        settings: What was read of the script, without this.
        included: The commands of each script that it includes.
    """
    found: dict[str, str] = {}
    for setting in (*_PLACES, "coulomb"):
        words = {name for words in _settings_words(settings, setting) for name in [_variable(words)]}
        if len(words) != 1:
            continue
        name = words.pop()
        if name is not None and _settable(settings, name) and _alone(settings, included, setting, name):
            found[setting] = name
    decided = list(found.values())
    found = {setting: name for setting, name in found.items() if decided.count(name) == 1}
    way = found.get("accelerator")
    if way is not None and not any(words[1:2] == ["omp"] for words in _all(settings, "package")):
        del found["accelerator"]  # `suffix omp` needs a `package omp` before it
    return found


# Setting -> the command that an `if` on a variable may carry out for it.
_SWITCHED = {"accelerator": "suffix", "grid": "processors", "rebuild": "neigh_modify"}


def switched(settings: Settings, included: Sequence[Sequence[Command]]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Setting -> the variable that chooses it, and the words it may be.

    As in `if "${grid} == x" then "processors * 1 1"`.

    Args:
        settings: What was read of the script, without this.
        included: The commands of each script that it includes.
    """
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for setting, command in _SWITCHED.items():
        ifs = [c.words for c in settings.named("if") if any(w[0] == command for w in nested(c.words))]
        if not ifs or settings.named(command) or any(c.name == command for inner in included for c in inner):
            continue
        chosen = [_chosen(words) for words in ifs]
        names = {name for name, _ in chosen}
        name = names.pop() if len(names) == 1 else ""
        if not name or not _settable(settings, name) or not _alone(settings, included, setting, name):
            continue
        inside = [[w for w in nested(words) if w[0] == command] for words in ifs]
        if all(_safe(setting, w, word) for of, (_, word) in zip(inside, chosen, strict=True) for w in of):
            found[setting] = (name, tuple(word for _, word in chosen))
    names_of = [name for name, _ in found.values()]
    return {setting: of for setting, of in found.items() if names_of.count(of[0]) == 1}


def _chosen(words: Sequence[str]) -> tuple[str, str]:
    """Variable and word of `if "${NAME} == WORD" then ...`; empty where it is something else."""
    condition = words[1].split() if len(words) > 2 and words[2] == "then" else []
    if len(condition) != 3 or condition[1] != "==" or {"else", "elif"} & set(words):
        return "", ""
    name = _variable(condition[0]) if condition[0].startswith("$") else None
    return (name or "", condition[2]) if "$" not in condition[2] else ("", "")


def _safe(setting: str, words: Sequence[str], word: str) -> bool:
    """Whether a choice is one that fits any run: no fixed grid, no list that is built unchecked."""
    if setting == "grid":
        return all(w in ("*", "1") for w in words[1:]) and "*" in words[1:]
    if setting == "accelerator":
        return word in ("opt", "omp") and list(words[1:]) == [word]
    return "no" not in words


def _all(settings: Settings, name: str) -> list[list[str]]:
    return [*(c.words for c in settings.named(name)), *settings.inside(name)]


def _settings_words(settings: Settings, setting: str) -> Iterator[str]:
    """The words of a setting, wherever the script has them."""
    if setting == "coulomb":
        if settings.cutoffs is not None:
            yield settings.cutoffs.word
        return
    command, place = _PLACES[setting]
    for words in _all(settings, command):
        at = _at(words, place)
        if at is not None and (setting != "threads" or words[1] == "omp"):
            yield words[at] if len(words) == _ONE_WORD.get(setting, len(words)) else ""


def _at(words: Sequence[str], place: str | int) -> int | None:
    if isinstance(place, int):
        return place if len(words) > place else None
    return words.index(place) + 1 if place in words[:-1] else None


def _variable(word: str) -> str | None:
    alone = ALONE.match(word)
    return (alone[1] or alone[2] or alone[3]) if alone else None


def _settable(settings: Settings, name: str) -> bool:
    """Whether LAMMPS takes another value for it from the command line, and its own one is known."""
    if name in settings.read.conditional:
        return False
    style, first = settings.read.defined.get(name, ("", ""))
    return (style in ("index", "") and name in settings.given) or (style == "index" and "$" not in first)


def _alone(settings: Settings, included: Sequence[Sequence[Command]], setting: str, name: str) -> bool:
    if any(name in _names(c.words) for commands in included for c in commands):
        return False
    return all(_harmless(c.words, setting, name) for c in settings.commands)


def _harmless(words: list[str], setting: str, name: str) -> bool:
    """Whether a command does not use the variable but for its setting, or to say what it is."""
    if words[0] == "variable" and words[1:2] == [name]:
        return words[2:3] == ["index"]  # nor is it deleted or made anew
    if name not in _names(words) and not (words[0] == "next" and name in words):
        return True
    if words[0] == "print":
        return True
    if words[0] == "if":
        inner = nested(words)
        condition, actions = (words[1] if len(words) > 1 else ""), [n for n in inner if n != words[1].split()]
        if name in _names([condition]) and not _only_speed(words):
            return False
        return all(_harmless(one, setting, name) for one in actions)
    place = _PLACES.get(setting)
    if setting == "coulomb":
        return words[0] == "pair_style" and sum(name in _names([w]) for w in words) == 1
    if place is None or words[0] != place[0]:
        return False
    at = _at(words, place[1])
    return at is not None and all(i == at or name not in _names([w]) for i, w in enumerate(words))


def _only_speed(words: list[str]) -> bool:
    """Whether an `if` does nothing but set settings of speed, whatever its condition says."""
    actions = [w for w in words[2:] if w not in ("then", "else", "elif")]
    conditions = {words[i + 1] for i, w in enumerate(words[:-1]) if w == "elif"}
    done = [action.split() for action in actions if action not in conditions]
    return all(words[0] in _OF_SPEED for words in done if words)


def _names(words: Sequence[str]) -> set[str]:
    return {next(filter(None, match)) for word in words for match in REFERENCE.findall(word)}
