"""How a running script is stopped: by a file that LAMMPS itself looks for, where the script allows that.

`fix halt` with `error soft` ends the run at a step, as if it had been that long: its `Loop time` is in the log,
the commands after it (`write_data`, `print`) are carried out, further runs are passed over. It computes nothing:
the numbers are those of the run without it. The file has another name in every attempt, and LAMMPS writes into its
log that this fix has ended the run: so one that somebody else ends is not taken for whole.
"""

from __future__ import annotations

import re
import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path

from hpcagent.regular import read_regular
from hpcagent.science.lammps.growing import MARK

__all__ = ["Watchable", "ended_by_us", "ends_by_itself", "new_stop_file", "watchable"]

EVERY = 50
"""Steps between two looks for it: opening a file that is not there takes microseconds."""

_OWN = "hpcagent_stop"
_ENDED_BY_US = re.compile(rf"^Fix halt condition for fix-id {_OWN} met", re.MULTILINE)
_ENDS_BY_ITSELF = re.compile(
    rf"^\s*fix\s+(?!{_OWN}\s)\S+\s+\S+\s+halt\s|^\s*timer\s.*\btimeout\s|[\"'](?:fix\s+\S+\s+\S+\s+halt|timer)\s",
    re.MULTILINE,
)
_RUNS = re.compile(r"(?<![\w/.-])run\s+[\w$({]")
_JUMPS = ("jump", "label", "next")
# A box is there where one of these was carried out; `thermo_modify` wants one.
_BOX_COMMANDS = ("fix", "velocity", "thermo_modify", "pair_coeff", "mass")


@dataclass(frozen=True, slots=True)
class Watchable:
    """A script that can be watched.

    Attributes:
        text: The script, with what watching needs.
        stop_file: Where this file is, LAMMPS ends the run.
        known: Whether it is known which of its runs is measured, before it has ended.
        halts: Whether it looks for the file; by a signal otherwise.
        why: Why not, where one of the two is False; a clause.
    """

    text: str
    known: bool
    halts: bool
    why: str = ""
    stop_file: str = ""


def new_stop_file() -> str:
    """A name that nobody guesses, for the file that ends a run."""
    return f"stop.{secrets.token_hex(8)}"


def ended_by_us(log: str) -> bool:
    """Whether a log says that the fix of `watchable` has ended its run.

    Example:
        >>> ended_by_us("Fix halt condition for fix-id hpcagent_stop met on step 100 with value 1\\n")
        True
    """
    return _ENDED_BY_US.search(log) is not None


def ends_by_itself(text: str) -> bool:
    """Whether a script, or the log that repeats it, has a means of its own to end a run before its last step.

    Example:
        >>> ends_by_itself("fix cold all halt 10 v_t < 5.0 error soft"), ends_by_itself("timer timeout 0:10:00")
        (True, True)
    """
    return _ENDS_BY_ITSELF.search(text) is not None


def watchable(
    text: str, *, production: int, ranks: int, folder: Path | None = None, stop_file: str = ""
) -> Watchable:
    """The script with a mark before the run that is measured, and with a `fix halt` where that is safe.

    Args:
        text: The script.
        production: The contract's key of that name.
        ranks: MPI ranks; all of them must see the file at the same step.
        folder: Where the scripts are that it includes.
        stop_file: Name of the file that it looks for; not given: a new one.

    Returns:
        The script as it came, where the run cannot be told.
    """
    if _OWN in text or MARK in text:
        return Watchable(text, False, False, f"it has a name of its own with {_OWN!r} in it")
    if production != -1:
        return Watchable(
            text, False, False, f"its last run is not the one that is measured (production = {production})"
        )
    lines = text.splitlines(keepends=True)
    commands = _commands(lines)
    at = _last_with_a_run(commands, folder)
    if at is None:
        return Watchable(text, False, False, "no command of it has a run in it")
    if any(_jumps(words) for _, words in commands[at:]) or _jumps_away(commands):
        return Watchable(
            text, False, False, "the run that is measured is in a loop, or another one may be jumped to"
        )
    first, words = commands[at]
    before, after = lines[:first], lines[first:]
    if words[0] != "run":
        added = [f"{MARK}\n"]
        if any(w[0] in _BOX_COMMANDS for _, w in commands[:at]):
            added.append("thermo_modify flush yes\n")
        why = f"the run that is measured is inside `{words[0]}`"
        if words[0] == "include" and _runs_in(words, folder) != 1:
            return Watchable(text, False, False, f"{why} {' '.join(words[1:2])}, with others")
        if words[0] == "if" and not _one_in_each_branch(words):
            return Watchable(text, False, False, f"{why}, with others")
        return Watchable("".join([*before, *added, *after]), True, False, why)
    if "pre" in words and "no" in words[words.index("pre") + 1 :][:1]:
        return Watchable(text, False, False, "the run that is measured goes on from another one with `pre no`")
    stop_file = stop_file or new_stop_file()
    added = [*_halt(ranks, stop_file), "thermo_modify flush yes\n", f"{MARK}\n"]
    return Watchable("".join([*before, *added, *after]), True, True, stop_file=stop_file)


def _halt(ranks: int, stop_file: str) -> list[str]:
    if ranks == 1:
        value = [f"variable {_OWN} equal is_file({stop_file})\n"]
    else:
        # Each rank looks by itself: one that sees it a look before the others would leave them waiting for it.
        value = [
            f"variable {_OWN}_seen atom is_file({stop_file})\n",
            f"compute {_OWN} all reduce max v_{_OWN}_seen\n",
            f"variable {_OWN} equal c_{_OWN}\n",
        ]
    return [*value, f"fix {_OWN} all halt {EVERY} v_{_OWN} > 0.5 error soft message yes\n"]


def _commands(lines: list[str]) -> list[tuple[int, list[str]]]:
    """Index of the first line and the words of each command, continued and triple-quoted lines joined."""
    found: list[tuple[int, list[str]]] = []
    pending, first = "", 0
    for number, line in enumerate(lines):
        if not pending:
            first = number
        bare = line.rstrip()
        if bare.endswith("&"):
            pending += bare[:-1] + " "
            continue
        pending += line
        if pending.count('"""') % 2:
            continue
        words = _words(pending)
        pending = ""
        if words:
            found.append((first, words))
    return found


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line.replace('"""', '"'), comments=True)
    except ValueError:
        return line.partition("#")[0].split()


def _last_with_a_run(commands: list[tuple[int, list[str]]], folder: Path | None) -> int | None:
    for index in range(len(commands) - 1, -1, -1):
        words = commands[index][1]
        if words[0] == "run" and words[1:2] != ["0"]:
            return index
        if words[0] == "if" and any(_RUNS.search(word) for word in words[1:]):
            return index
        if words[0] == "include" and _runs_in(words, folder) != 0:
            return index
    return None


def _runs_in(words: list[str], folder: Path | None) -> int | None:
    """Plain `run` commands of an included script; None: it is not known, or it has others than these."""
    name = words[1] if len(words) > 1 else ""
    if folder is None or not name or "$" in name:
        return None
    try:
        text = read_regular(folder / name).decode(errors="replace")
    except OSError:
        return None
    commands = _commands(text.splitlines(keepends=True))
    carried = any(w[0] in ("if", "include", *_JUMPS) for _, w in commands)
    runs = sum(w[0] == "run" for _, w in commands)
    if carried and (runs or re.search(r"\b(run|include|jump)\b", text)):
        return None
    return runs


def _one_in_each_branch(words: list[str]) -> bool:
    """Whether each branch of an `if` has one run at most."""
    runs = 0
    for word in words[1:]:
        if word in ("then", "elif", "else"):
            runs = 0
        elif _RUNS.search(word):
            runs += 1
            if runs > 1:
                return False
    return True


def _jumps(words: list[str]) -> bool:
    return words[0] in _JUMPS or any(re.search(r"\bjump\b", word) for word in words[1:])


def _jumps_away(commands: list[tuple[int, list[str]]]) -> bool:
    """Whether a `jump` goes to another script, or one of that has one back."""
    for _, words in commands:
        for word in [" ".join(words), *words[1:]]:
            found = re.match(r"\s*jump\s+(\S+)", word)
            if found is not None and found[1] != "SELF":
                return True
    return False
