"""Texts that go into a script, a command line, an environment or a path: checked here, once for each kind.

A newline in the name of a queue would be a line of the job script, a blank another option of sbatch, `../..`
another folder. So what may stand in such a text is its type.
"""

from __future__ import annotations

import re
import shlex
from typing import Annotated

from pydantic import AfterValidator

from hpcagent.errors import BadInput
from hpcagent.shown import CONTROL, plain

__all__ = [
    "LONGEST_LINE",
    "LONGEST_NAME",
    "NOT_SHOWN",
    "UNSEEN",
    "Line",
    "Lines",
    "Name",
    "Shown",
    "Variable",
    "Word",
    "Words",
    "as_name",
    "checked_name",
    "word",
]

LONGEST_LINE = 4096
LONGEST_LINES = 65536
LONGEST_NAME = 200
"""Bytes: file systems take 255, and something is added to names."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# Nothing of what Unicode calls format characters (Cf), or keeps for more of what is drawn as nothing
# (Default_Ignorable_Code_Point), is in a text that a program takes: it is not seen.
_UNSEEN = (
    "\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
UNSEEN = re.compile(f"[{_UNSEEN}]")
"""One character that is not seen: of the category Cf, or without a meaning so far and ignored."""
# Selectors of variants, fillers and the empty Braille cell: letters and marks (some stand in names of Python) that
# are drawn as nothing.
_FILLERS = "\ufe00-\ufe0f\U000e0100-\U000e01ef\u115f\u1160\u3164\uffa0\u034f\u17b4\u17b5\u180b-\u180f\u2800"
NOT_SHOWN = re.compile(f"[{_UNSEEN}{_FILLERS}]|{CONTROL.pattern}")
"""One character that a reader does not see, or that changes how others are read."""
_NOT_IN_LINES = re.compile(f"[\n\t{_UNSEEN}]|{CONTROL.pattern}")
_NOT_IN_NAMES = re.compile(r'[/\\:*?"<>|]')
# Names that Windows keeps for devices, with any ending: a folder that is copied there.
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|\Z)", re.IGNORECASE)


def _refused(text: str, found: re.Match[str], allowed: str) -> BadInput:
    where = f"at position {found.start()} of {_shown(text)}"
    return BadInput(f"the character {found[0]!r} {where} is not allowed; {allowed}.", value=text[:200])


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:77]!r}..."


def line(text: str) -> str:
    """A text of one line.

    Raises:
        BadInput: It has a control character, or is longer than any line of such a kind.
    """
    return _without_control(text, _NOT_IN_LINES, LONGEST_LINE, "write it in one line of visible characters")


def lines(text: str) -> str:
    """A text of several lines: newlines and tabs may be in it.

    Raises:
        BadInput: It has another control character, or is very long.
    """
    allowed = "of control characters, newlines and tabs only may be in it"
    return _without_control(text, CONTROL, LONGEST_LINES, allowed)


def _without_control(text: str, control: re.Pattern[str], longest: int, allowed: str) -> str:
    if len(text) > longest:
        raise BadInput(f"a text of {len(text)} characters, where {longest} are allowed: {text[:40]!r}...")
    found = control.search(text)
    if found is not None:
        raise _refused(text, found, allowed)
    return text


def word(text: str) -> str:
    """One word that is a value: no blank, and no `-` at its beginning, or it would be another option.

    Raises:
        BadInput: It is not.
    """
    line(text)
    found = re.search(r"\s", text)
    if found is not None:
        raise _refused(text, found, "it is one word, and what follows a blank would be another option")
    if text.startswith("-"):
        raise BadInput(f"{_shown(text)} begins with '-', so it would be taken for an option.", value=text)
    return text


def words(text: str) -> str:
    """Words of a command line, each quoted where it has a blank.

    Raises:
        BadInput: They are not one line, or a quote has no end.
    """
    line(text)
    try:
        shlex.split(text)
    except ValueError as error:
        raise BadInput(f"{_shown(text)} cannot be taken apart into words: {error}.", value=text) from None
    return text


def variable(text: str) -> str:
    """The name of an environment variable.

    Raises:
        BadInput: It is none.
    """
    if not _VARIABLE.match(text) or len(text) > LONGEST_NAME:
        raise BadInput(
            f"{_shown(text)} is no name of an environment variable: letters, digits and _, no digit first, at "
            f"most {LONGEST_NAME}.",
            value=text[:200],
        )
    return text


def checked_name(text: str, what: str = "a name") -> str:
    """A name of which a folder or file is made: one part of a path, on every file system.

    Args:
        text: The name.
        what: What it is the name of, for the message.

    Raises:
        BadInput: It leads elsewhere, cannot be a folder's, or is too long.

    Example:
        >>> checked_name("Si 2x2 (PBE)")
        'Si 2x2 (PBE)'
    """
    problem = _problem(text)
    if problem:
        raise BadInput(f"{what} {_shown(text)} {problem}; it names a folder.", value=text[:200])
    return text


def _problem(text: str) -> str:
    if not text.strip():
        return "is empty"
    if len(text.encode("utf-8", "replace")) > LONGEST_NAME:
        return f"has {len(text)} characters; at most {LONGEST_NAME} bytes are allowed"
    found = _NOT_IN_LINES.search(text) or _NOT_IN_NAMES.search(text)
    if found is not None:
        return f"has the character {found[0]!r} in it, which is not allowed"
    if text[0] in ".-" or text[-1] == "." or text != text.strip():
        return "begins with '.' or '-', ends with '.', or has a blank at an end"
    if _DEVICE.match(text):
        return "is the name of a device on some systems"
    return ""


def as_name(text: str) -> str:
    """The nearest allowed name: of what was written down before names were checked.

    Example:
        >>> as_name("groups/../study: 1"), as_name("fine")
        ('groups_.._study_ 1', 'fine')
    """
    if not _problem(text):
        return text
    kept = _NOT_IN_NAMES.sub("_", _NOT_IN_LINES.sub("_", text)).strip(" .-")[: LONGEST_NAME // 4]
    return kept if kept and not _problem(kept) else "unnamed"


Line = Annotated[str, AfterValidator(line)]
"""One line: a command's word, a value in an environment, a path."""
Lines = Annotated[str, AfterValidator(lines)]
"""Several lines, e.g. shell lines of a user."""
Word = Annotated[str, AfterValidator(word)]
"""One word: the value of an option."""
Words = Annotated[str, AfterValidator(words)]
"""Words of a command line; what puts them into a script quotes each."""
Variable = Annotated[str, AfterValidator(variable)]
"""The name of an environment variable."""
Name = Annotated[str, AfterValidator(checked_name)]
"""One part of a path."""
Shown = Annotated[str, AfterValidator(plain)]
"""What a program or a worker said: kept whatever it is, and shown without its control characters."""
