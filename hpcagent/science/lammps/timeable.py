"""Whether it can be told what of an input script is timed: its last run, read from top to bottom."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from hpcagent.errors import BadInput
from hpcagent.science.lammps.driven import driven, switched
from hpcagent.science.lammps.script import Command, Script, commands, nested, read_script
from hpcagent.science.lammps.settings import Settings
from hpcagent.science.lammps.untouched import untouched

__all__ = ["moves", "read_settings"]

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
_MOVES = ("run", "minimize")


def moves(command: Command) -> bool:
    """Whether a command runs or minimises, or is an `if` that may."""
    if command.name != "if":
        return command.name in _MOVES
    return any(words[0] in _MOVES for words in nested(command.words))


def read_settings(path: Path, given: Mapping[str, str] | None = None) -> Settings:
    """Read what an input script says of how it is run.

    Args:
        path: The script.
        given: Variables that it is given on the command line.

    Raises:
        BadInput: It is missing, or is such that a part of it cannot be timed: no `run`, a loop, several systems.
    """
    read = read_script(path)
    found = tuple(commands(read.text))
    included = _included(path, read)
    for file, inner in {path: found, **included}.items():
        _refuse_flow(file, inner)
    first = next(filter(moves, found), None)
    runs = [c for c in found if c.name == "run"]
    if not runs or first is None:
        names = ", ".join(file.name for file in included)
        where = f"; if it is in {names}, write that file's commands in its place" if included else ""
        raise BadInput(
            f"{path}: the script has no `run` command of its own, so there is nothing to time{where}.",
            value=str(path),
        )
    _refuse_runs_elsewhere(path, found, included)
    _refuse_later(path, [c for c in found if c.first > runs[-1].last and moves(c)])
    settings = Settings(read, found, first, runs[-1], {k: str(v) for k, v in (given or {}).items()})
    _refuse_missing(path, settings)
    elsewhere = tuple(included.values())
    switches = switched(settings, elsewhere)
    decided = {{"grid": "processors", "rebuild": "neigh_modify"}.get(name, name) for name in switches}
    left = untouched(settings, {file.name: found for file, found in included.items()})
    return Settings(
        read,
        found,
        first,
        runs[-1],
        settings.given,
        steps=_steps(path, settings, runs[-1]),
        left=tuple((what, why) for what, why in left if what not in decided or not why.startswith("an `if`")),
        driven=driven(settings, elsewhere) | {name: variable for name, (variable, _) in switches.items()},
        choices={name: words for name, (_, words) in switches.items()},
    )


def _included(path: Path, read: Script) -> dict[Path, tuple[Command, ...]]:
    """The scripts that are included, by their files; those whose name is a variable are not known."""
    found: dict[Path, tuple[Command, ...]] = {}
    waiting = [read.text]
    while waiting:
        for command in commands(waiting.pop()):
            for words in (command.words, *nested(command.words)):
                file = path.parent / words[1] if words[0] == "include" and len(words) > 1 else None
                if file is not None and file.is_file() and file not in found and file != path:
                    text = file.read_text(errors="replace")
                    found[file] = tuple(commands(text))
                    waiting.append(text)
    return found


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
        if any(words[0] in _FLOW for words in nested(command.words)):
            raise BadInput(
                f"{path}, line {command.first + 1}: an `{command.name}` may jump, quit or call other programs, "
                "so what would be timed cannot be told. Give a script that reads from top to bottom.",
                value=command.name,
            )


def _refuse_runs_elsewhere(
    path: Path, found: tuple[Command, ...], included: Mapping[Path, tuple[Command, ...]]
) -> None:
    for file, inner in included.items():
        if any(map(moves, inner)):
            raise BadInput(
                f"{path}: {file.name}, which it includes, runs or minimises, so which run is timed cannot be "
                "told; write that file's commands in place of the `include`.",
                value=file.name,
            )
    for command in found:
        for words in (command.words, *nested(command.words)):
            if words[0] == "include" and len(words) > 1 and "$" in words[1]:
                raise BadInput(
                    f"{path}, line {command.first + 1}: a variable decides which script is included ({words[1]}), "
                    "so what is in it is not known; write its name.",
                    value=words[1],
                )


def _refuse_later(path: Path, late: list[Command]) -> None:
    for command in late:
        if command.name == "if":
            raise BadInput(
                f"{path}, line {command.first + 1}: after the last `run` of its own the script may run once more "
                "inside an `if`, so what would be timed cannot be told. Put the run that is to be fast last, as a "
                "command of its own.",
                value="if",
            )
        raise BadInput(
            f"{path}, line {command.first + 1}: after its last `run` the script minimises, so what would be timed "
            "cannot be told. Give a script that ends with the run that is to be fast.",
            value=command.name,
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
