"""Places for values in the words of a command (`{n}`) and in the text of an input file (`${n}`).

A value is put in once and never looked at again: what is in it cannot be another place, another word or another
line. Names are checked when the app is made, values where the run is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.errors import AppFailed, BadInput, nearest
from hpcagent.regular import open_regular

__all__ = [
    "FROM_RUN",
    "LARGEST_TEMPLATE",
    "Piece",
    "check_name",
    "filled",
    "missing",
    "names",
    "pieces",
    "plain_word",
    "read_template",
    "text_filled",
]

FROM_RUN = {
    "seed": "a random number of the run's own, 1 to 2147483647; the same when the run is done again",
    "ranks": "MPI ranks in all",
    "threads": "threads of each rank",
}
"""What a run itself has to give beside parameters and constants."""

LARGEST_TEMPLATE = 4 << 20
"""Bytes."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Digits, width and kind as of C's printf and Python; nothing that fills with other characters.
_FORMAT = re.compile(r"[+]?0?\d{0,3}(\.\d{1,3})?[deEfgGxX]?")
# As the choices of a parameter: nothing in it starts a command, ends a text in quotes or leaves a folder.
_PLAIN = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_+./-]*\Z")
_IN_WORD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_IN_TEXT = re.compile(r"\$\$\{|\$\{([^{}\n]*)\}|\$\{")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word or text: `text` as it stands, or the place of a value.

    Attributes:
        text: What stands there; of a place empty.
        name: Of the value; empty for a text.
        form: How a number is written, as in `{x:.3f}`; empty: with all its digits.
    """

    text: str = ""
    name: str = ""
    form: str = ""


def pieces(word: str, where: str, *, template: bool = False) -> list[Piece]:
    """Take a word of a command, or the text of a template, apart.

    Args:
        word: With places `{name}` or `{name:.3f}`, and `{{`, `}}` for braces; of a template `${name}`, and `$${`
            for `${`.
        where: What it is, for messages.
        template: Whether it is a template.

    Raises:
        BadInput: A brace without its partner, or what stands between is no name and form.

    Example:
        >>> [p.name or p.text for p in pieces("--size={n}", "command")]
        ['--size=', 'n']
        >>> [p.name or p.text for p in pieces("n = ${n}, $HOME\\n", "model.in", template=True)]
        ['n = ', 'n', ', $HOME\\n']
    """
    found, end = [], 0
    for match in (_IN_TEXT if template else _IN_WORD).finditer(word):
        if match.start() > end:
            found.append(Piece(word[end : match.start()]))
        end = match.end()
        inside = match[1]
        if inside is not None:
            found.append(_place(inside, match[0], where))
        elif match[0] in ("{{", "}}", "$${"):
            found.append(Piece(match[0][1:]))
        else:
            twice = "$${" if template else match[0] * 2
            raise BadInput(
                f"{where}: {match[0]!r} in {_around(word, match.start())} has no partner; write {twice!r} where "
                "it means itself.",
                value=match[0],
            )
    if end < len(word):
        found.append(Piece(word[end:]))
    return found


def _place(inside: str, whole: str, where: str) -> Piece:
    name, colon, form = inside.partition(":")
    if not _NAME.fullmatch(name) or (colon and not (form and _FORMAT.fullmatch(form))):
        raise BadInput(
            f"{where}: {whole!r} is no place for a value; write a name in it, or a name and how the number is "
            f"written, as in {'$' * whole.startswith('$')}{{x:.3f}} (d, e, f, g or x).",
            value=whole,
        )
    return Piece(name=name, form=form)


def _around(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    begin, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    shown = text[begin : len(text) if end < 0 else end].strip()[:80]
    return repr(shown) if "\n" not in text else f"line {line} ({shown!r})"


def check_name(name: str, known: Mapping[str, Any], where: str, *, template: bool = False) -> None:
    """Refuse the name of a value that a run does not have.

    Raises:
        BadInput: It is neither a parameter, nor a constant, nor given by the run.
    """
    if name in known:
        return
    itself = f"$${{{name}}}" if template else f"{{{{{name}}}}}"
    raise BadInput(
        f"{where}: {name!r} is neither a parameter nor a constant; {nearest(name, known)} Add it to them, or "
        f"write {itself} where the braces mean themselves.",
        value=name,
    )


def filled(word: str, values: Mapping[str, Any], *, option: bool = True) -> str:
    """A word with its values put in: one word, whatever they are.

    Args:
        word: As it was checked by `pieces`.
        values: Name -> number, word or text.
        option: Whether a program may take a word that begins with `-` for an option of its own.

    Raises:
        AppFailed: `BadParameter`.

    Example:
        >>> filled("{n}", {"n": "a b; rm *"}), filled("--x={x:.2f}", {"x": 2 / 3})
        ('a b; rm *', '--x=0.67')
    """
    parts = pieces(word, "command")
    text = "".join(p.text or _written(p, values[p.name]) for p in parts)
    first = values[parts[0].name] if parts and parts[0].name else None
    if option and isinstance(first, str) and text.startswith("-"):
        raise _bad(parts[0].name, first, "would be taken for an option of the program; write --name={...} instead")
    if "\0" in text:
        raise _bad(word, text, "has a null character in it")
    return text


def missing(word: str, values: Mapping[str, Any]) -> bool:
    """Whether a word has a place for a value that the run does not have: its parameter does not apply.

    Example:
        >>> missing("--levels={levels}", {"solver": "cg"})
        True
    """
    return any(name not in values for name in names(pieces(word, "command")))


def plain_word(text: str) -> bool:
    """Whether a text may stand in an input file: nothing in it means something to a program.

    Example:
        >>> plain_word("pbe-sol"), plain_word("a b"), plain_word("../x")
        (True, False, False)
    """
    return _PLAIN.match(text) is not None and ".." not in text


def text_filled(parts: list[Piece], values: Mapping[str, Any]) -> str:
    """The text of a template with its values put in; texts among them are plain words.

    Lines with a value that the run does not have, since its parameter does not apply, are left out.

    Raises:
        AppFailed: `BadParameter`.
    """
    for part in parts:
        value = values.get(part.name)
        if isinstance(value, str) and not plain_word(value):
            raise _bad(part.name, value, "is no plain word, so it is not written into an input file")
    if all(part.name in values for part in parts if part.name):
        return "".join(part.text or _written(part, values[part.name]) for part in parts)
    lines: list[list[str]] = [[]]
    absent: set[int] = set()
    for part in parts:
        if part.name and part.name not in values:
            absent.add(len(lines) - 1)
        texts = [_written(part, values[part.name])] if part.name in values else part.text.splitlines(keepends=True)
        for text in texts:
            lines[-1].append(text)
            if text.endswith("\n"):
                lines.append([])
    return "".join("".join(line) for n, line in enumerate(lines) if n not in absent)


def _written(piece: Piece, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _bad(piece.name, value, "is no finite number and no text")
    if not piece.form:
        return repr(value)
    whole = piece.form[-1] in "dxX"
    return format(int(value) if whole else float(value) if piece.form[-1].isalpha() else value, piece.form)


def _bad(name: str, value: object, why: str) -> AppFailed:
    return AppFailed(f"{name}={value!r:.100} {why}.", kind="contract", name="BadParameter")


def read_template(path: Path) -> str:
    """The text of a template; every byte that is no place for a value stays as it is.

    Raises:
        BadInput: It cannot be read, is no UTF-8 or too large.
    """
    try:
        with open_regular(path) as file:
            data = file.read(LARGEST_TEMPLATE + 1)
        if len(data) > LARGEST_TEMPLATE:
            raise BadInput(
                f"{path}: larger than {LARGEST_TEMPLATE >> 20} MB; a template is an input file. Let it name the "
                "large one, and list that under links.",
                value=str(path),
            )
        return data.decode()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}.", value=str(path)) from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: the template is no text in UTF-8: {error}.", value=str(path)) from None


def names(parts: list[Piece]) -> Iterator[str]:
    """The names of the values that parts have places for."""
    return (part.name for part in parts if part.name)
