"""What an input script says about itself: variables, units, files it reads, logs it writes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcagent.errors import BadInput

__all__ = ["Script", "read_script"]

# Variable styles that keep a value set before the script runs (LAMMPS manual, `variable`).
KEEPS_EARLIER_VALUE = ("index", "loop", "world", "universe", "uloop", "string", "getenv")

_REFERENCE = re.compile(r"\$\{(\w+)\}|\$(\w)|\bv_(\w+)")


@dataclass(frozen=True, slots=True)
class Script:
    """An input script, read once.

    Attributes:
        path: Where it was read from.
        text: Its text, as it will be run.
        used: Names of the variables it refers to.
        defined: Name -> (style, first value) of the variables it defines itself.
        units: Its `units` style (`lj` if it does not say: LAMMPS's own default).
        logs: Files that its `log` commands open.
        files: Files beside the script that it reads, relative to the script's folder.
    """

    path: Path
    text: str
    used: frozenset[str]
    defined: dict[str, tuple[str, str]]
    units: str
    logs: tuple[str, ...]
    files: tuple[str, ...]


def read_script(path: Path) -> Script:
    """Read an input script and the scripts it includes.

    Raises:
        BadInput: The file is missing or is no text.
    """
    text = _read(path)
    used: set[str] = set()
    defined: dict[str, tuple[str, str]] = {}
    units = "lj"
    logs: list[str] = []
    files: list[str] = []
    for words, line in _commands(path, text, files, seen={path}):
        used |= {next(filter(None, match)) for match in _REFERENCE.findall(line)}
        if words[0] == "variable" and len(words) >= 3:
            defined.setdefault(words[1], (words[2], words[3] if len(words) > 3 else ""))
        elif words[0] == "units" and len(words) > 1:
            units = words[1]
        elif words[0] == "log" and len(words) > 1 and words[1] != "none" and "$" not in words[1]:
            logs.append(words[1])
        elif words[0] == "next":
            used |= set(words[1:])
    return Script(
        path=path,
        text=text,
        used=frozenset(used),
        defined=defined,
        units=units,
        logs=tuple(dict.fromkeys(logs)),
        files=tuple(dict.fromkeys(files)),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        raise BadInput(f"{path}: no such LAMMPS input script.", value=str(path)) from None
    except IsADirectoryError:
        raise BadInput(f"{path} is a folder; name the input script in it.", value=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read as text: {error}.", value=str(path)) from None


def _commands(
    path: Path, text: str, files: list[str], *, seen: set[Path]
) -> Iterator[tuple[list[str], str]]:
    """Yield (words, line) of each command, continued lines joined, comments cut, includes followed."""
    joined = re.sub(r"&[ \t]*\n", " ", text)
    for raw in joined.splitlines():
        line = _without_comment(raw).strip()
        if not line:
            continue
        try:
            words = shlex.split(line)
        except ValueError:
            words = line.split()
        if not words:
            continue
        for word in words[1:]:
            if _is_file_beside(path.parent, word):
                files.append(word)
        yield words, line
        if words[0] == "include" and len(words) > 1:
            included = path.parent / words[1]
            if included.is_file() and included not in seen:
                seen.add(included)
                yield from _commands(included, _read(included), files, seen=seen)


def _is_file_beside(folder: Path, word: str) -> bool:
    if "$" in word or word.startswith("-") or "\0" in word or len(word) > 255:
        return False
    relative = Path(word)
    if relative.is_absolute() or ".." in relative.parts:
        return False
    return (folder / relative).is_file()


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
