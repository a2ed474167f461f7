"""What an input script says about itself: variables, units, files it reads, logs it writes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from hpcagent.errors import BadInput
from hpcagent.regular import open_regular

__all__ = ["KEEPS_EARLIER_VALUE", "REFERENCE", "Command", "Script", "commands", "nested", "read_script", "written"]

# Variable styles that keep a value set before the script runs (LAMMPS manual, `variable`).
KEEPS_EARLIER_VALUE = ("index", "loop", "world", "universe", "uloop", "string", "getenv")

REFERENCE = re.compile(r"\$\{(\w+)\}|\$(\w)|\bv_(\w+)")
_ALONE = re.compile(r"\$\{(\w+)\}|\$(\w)")

# Which words of a command are files it writes; where one lies beside the script, it is left from a run by hand.
_WRITES = {
    "dump": slice(5, 6),
    "log": slice(1, 2),
    "restart": slice(2, 4),
    "write_coeff": slice(1, 2),
    "write_data": slice(1, 2),
    "write_dump": slice(3, 4),
    "write_restart": slice(1, 2),
}
# Commands that never write to the files they name.
_READS = (
    "angle_coeff", "angle_style", "bond_coeff", "bond_style", "dihedral_coeff", "dihedral_style", "improper_coeff",
    "improper_style", "include", "jump", "molecule", "pair_coeff", "pair_style", "read_data", "read_dump",
    "read_restart", "rerun",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Script:
    """An input script, read once.

    Attributes:
        path: Where it was read from.
        text: Its text, as it will be run.
        used: Names of the variables it refers to.
        defined: Name -> (style, first value) of the variables it defines itself.
        conditional: Names of the variables it defines in an `if` or a `run every`.
        units: Its `units` style (`lj` if it does not say: LAMMPS's own default).
        logs: Files that its `log` commands open.
        files: Files beside the script that it reads, relative to the script's folder.
        only_read: Those of `files` that no command of the script can write to.
        folders: Folders that it writes to, relative to the directory it runs in.
        timesteps: Names of the variables that are, alone, the argument of a `timestep` command.
        atom_style: Its `atom_style` (`atomic` if it does not say: LAMMPS's own default).
        boundary: The three words of its `boundary` command; None where a variable decides.
    """

    path: Path
    text: str
    used: frozenset[str]
    defined: dict[str, tuple[str, str]]
    conditional: frozenset[str]
    units: str
    logs: tuple[str, ...]
    files: tuple[str, ...]
    only_read: tuple[str, ...]
    folders: tuple[str, ...]
    timesteps: frozenset[str]
    atom_style: str = "atomic"
    boundary: tuple[str, str, str] | None = ("p", "p", "p")


def read_script(path: Path) -> Script:
    """Read an input script and the scripts it includes.

    Raises:
        BadInput: The file is missing or is no text.
    """
    text = _read(path)
    found = _Found(path.parent, seen={path.name})
    found.read(text)
    return Script(
        path=path,
        text=text,
        used=frozenset(found.used),
        defined=found.defined,
        conditional=frozenset(found.conditional),
        units=found.units,
        logs=tuple(dict.fromkeys(found.logs)),
        files=tuple(found.files),
        only_read=tuple(name for name, only_read in found.files.items() if only_read),
        folders=tuple(dict.fromkeys(found.folders)),
        timesteps=frozenset(found.timesteps),
        atom_style=found.atom_style,
        boundary=found.boundary,
    )


LARGEST_SCRIPT = 4 << 20
"""Bytes; its text goes into the record of the campaign."""


def _read(path: Path) -> str:
    try:
        with open_regular(path) as file:
            data = file.read(LARGEST_SCRIPT + 1)
        if len(data) > LARGEST_SCRIPT:
            raise BadInput(
                f"{path}: larger than {LARGEST_SCRIPT >> 20} MB; this is no LAMMPS input script. Atoms belong in "
                "a data file that it reads.",
                value=str(path),
            )
        return data.decode().replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise BadInput(f"{path}: no such LAMMPS input script.", value=str(path)) from None
    except IsADirectoryError:
        raise BadInput(f"{path} is a folder; name the input script in it.", value=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read as text: {error}.", value=str(path)) from None


@dataclass(slots=True)
class _Found:
    """What has been seen so far. LAMMPS takes every name from the directory it runs in: that of the script."""

    folder: Path
    seen: set[str]
    used: set[str] = field(default_factory=set)
    defined: dict[str, tuple[str, str]] = field(default_factory=dict)
    conditional: set[str] = field(default_factory=set)
    units: str = "lj"
    logs: list[str] = field(default_factory=list)
    files: dict[str, bool] = field(default_factory=dict)  # name -> only read so far
    written: set[str] = field(default_factory=set)
    folders: list[str] = field(default_factory=list)
    timesteps: set[str] = field(default_factory=set)
    atom_style: str = "atomic"
    boundary: tuple[str, str, str] | None = ("p", "p", "p")

    def read(self, text: str) -> None:
        for line in _lines(text):
            self.used |= {next(filter(None, match)) for match in REFERENCE.findall(line)}
            self.command(_words(line), sure=True)

    def command(self, words: list[str], *, sure: bool) -> None:
        """Take note of one command; `sure` is False for one that an `if` or a `run` may carry out."""
        if not words:
            return
        match words:
            case ["variable", name, style, *rest]:
                if sure:
                    self.defined.setdefault(name, (style, rest[0] if rest else ""))
                else:
                    self.conditional.add(name)
            case ["units", units, *_]:
                self.units = units
            case ["atom_style", style, *_]:
                self.atom_style = style
            case ["boundary", x, y, z, *_]:
                self.boundary = None if "$" in x + y + z else (x, y, z)
            case ["timestep", argument, *_]:
                if alone := _ALONE.fullmatch(argument):
                    self.timesteps.add(alone[1] or alone[2])
            case ["log", name, *_] if name != "none" and "$" not in name:
                self.logs.append(name)
            case ["next", *names]:
                self.used |= set(names)
            case ["if" | "run", *rest]:
                for word in rest:
                    if any(c.isspace() for c in word):
                        self.command(_words(_without_comment(word)), sure=False)
        self.note_files(words)
        if words[0] in ("include", "jump") and len(words) > 1 and self.is_beside(words[1]):
            name = str(Path(words[1]))
            if name not in self.seen:
                self.seen.add(name)
                self.read(_read(self.folder / name))

    def note_files(self, words: list[str]) -> None:
        for word in written(words):
            name, parent = str(Path(word)), Path(word).parent
            self.written.add(name)
            if name in self.files:
                self.files[name] = False
            if "$" not in word and _is_inside(parent) and parent != Path():
                self.folders.append(str(parent))
        for word in words[1:]:
            name = str(Path(word))
            if name not in self.written and self.is_beside(word):
                self.files[name] = self.files.get(name, True) and words[0] in _READS

    def is_beside(self, word: str) -> bool:
        if "$" in word or word.startswith("-") or "\0" in word or len(word) > 255:
            return False
        return _is_inside(Path(word)) and (self.folder / word).is_file()


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a script and where it stands.

    Attributes:
        words: Its words, variables not replaced; never empty.
        first: Index of its first line.
        end: Index of the line after its last one.
    """

    words: list[str]
    first: int
    end: int

    @property
    def name(self) -> str:
        """What it is called."""
        return self.words[0]

    @property
    def last(self) -> int:
        """Index of its last line."""
        return self.end - 1


def commands(text: str) -> list[Command]:
    """The commands of a script by the lines they stand in: continued and triple-quoted lines are one.

    Example:
        >>> [(c.words, c.first, c.end) for c in commands("units lj # reduced\\nrun &\\n  100\\n")]
        [(['units', 'lj'], 0, 1), (['run', '100'], 1, 3)]
    """
    found, pending, first = [], "", 0
    lines = text.splitlines()
    for number, raw in enumerate(lines):
        pending += raw
        quoted = bool(pending.count('"""') % 2)
        going_on = bool(re.search(r"&[ \t]*$", raw)) and number + 1 < len(lines)
        if quoted or going_on:
            pending = f"{pending}\n" if quoted and not going_on else re.sub(r"&[ \t]*$", "", pending)
            continue
        words = _words(_without_comment(pending).strip())
        if words:
            found.append(Command(words, first, number + 1))
        pending, first = "", number + 1
    return found


def nested(words: list[str]) -> list[list[str]]:
    """The commands that an `if` or a `run ... every` holds in its words."""
    if words[0] not in ("if", "run"):
        return []
    inner = [_words(_without_comment(word)) for word in words[1:] if any(c.isspace() for c in word)]
    return [one for one in inner if one]


def _lines(text: str) -> Iterator[str]:
    """Yield each command as one line: continued and triple-quoted lines joined, comments cut."""
    joined = re.sub(r"&[ \t]*\n", "", text)
    pending = ""
    for raw in joined.splitlines():
        pending += raw
        if pending.count('"""') % 2:
            pending += "\n"
            continue
        line, pending = _without_comment(pending).strip(), ""
        if line:
            yield line
    if pending.strip():
        yield pending.strip()


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def written(words: list[str]) -> list[str]:
    """The words of a command that are names of files it writes."""
    if words[0] in _WRITES:
        return words[_WRITES[words[0]]]
    # print "..." file NAME; fix ID group ave/time ... file NAME
    if words[0] == "print" or (words[0] == "fix" and len(words) > 3 and words[3].startswith(("ave/", "print"))):
        return [after for word, after in pairwise(words) if word in ("file", "append")]
    return []


def _is_inside(path: Path) -> bool:
    return not path.is_absolute() and ".." not in path.parts


def _without_comment(line: str) -> str:
    quote = ""
    for i, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char == "#":
            return line[:i]
    return line
