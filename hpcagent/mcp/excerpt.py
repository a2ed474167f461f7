"""Long texts and parameters in a question to a person: what is shown of them, and what is not."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcagent.shown import plain

__all__ = ["Excerpt", "excerpt_of", "params_in_words", "without_gaps"]

LONGEST_LINE = 160
"""Characters of a line; of a longer one both ends are shown."""
MOST_BLANK = 2
"""Blank lines in a row that are shown as such."""
LEAST_OF_LONG, MOST_OF_LONG = 120, 600
"""Characters of a long parameter at least and at most."""
MARK_OF_LONG = 120
"""What says that not all of it is shown."""
_GAP = re.compile(r"(?<=\S)[^\S\n]{12,}|[^\S\n]{60,}")
_BLANKS = re.compile(r"[^\S\n]{12,}")
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n){3,}")


@dataclass(frozen=True)
class Excerpt:
    """What is shown of a text.

    Attributes:
        shown: Its lines, each behind its number: what stands without one is not of the text.
        lines: Lines of the whole.
        hidden: How many of them are not shown; blank ones that are counted are.
        cut: How many of those that are shown are not shown whole.
    """

    shown: str
    lines: int
    hidden: int
    cut: int


def excerpt_of(text: str, most: int) -> Excerpt:
    r"""Head and tail of a text, with blank lines in a row counted, so that nothing can be pushed out of sight.

    Args:
        text: The text.
        most: Characters at most, but for one line of each end.

    Example:
        >>> print(excerpt_of("a = 1\n" + 9999 * "\n" + "b = 2", 100).shown)
            1  a = 1
               [9999 blank lines]
        10001  b = 2
        >>> excerpt_of("\n".join(f"x = {n}" for n in range(100)), 100).hidden
        94
    """
    every = plain(text).removesuffix("\n").split("\n")
    width = max(5, len(str(len(every))))
    parts = _parts(every, width)
    head, tail = len(parts), 0
    if sum(len(one.shown) + 1 for one in parts) > most:
        head = _fitting([one.shown for one in parts], most * 3 // 5)
        tail = _fitting([one.shown for one in reversed(parts[head:])], most * 2 // 5)
    above, between, below = parts[:head], parts[head : len(parts) - tail], parts[len(parts) - tail :]
    hidden = sum(one.lines for one in between)
    if hidden:
        first = 1 + sum(one.lines for one in above)
        above = [*above, _Part(f"{'':{width}}  [lines {first} to {first + hidden - 1} are NOT SHOWN]", 0)]
    parts = [*above, *below]
    return Excerpt("\n".join(one.shown for one in parts), len(every), hidden, sum(one.cut for one in parts))


@dataclass(frozen=True)
class _Part:
    """A line as it is shown, or blank ones in a row: how many lines that is, and whether it is not the whole."""

    shown: str
    lines: int = 1
    cut: bool = False


def _parts(every: list[str], width: int) -> list[_Part]:
    parts: list[_Part] = []
    at = 0
    while at < len(every):
        blank = at
        while blank < len(every) and not every[blank].strip():
            blank += 1
        if blank - at > MOST_BLANK:
            parts.append(_Part(f"{'':{width}}  [{blank - at} blank lines]", blank - at))
            at = blank
            continue
        line = without_gaps(every[at])
        cut = len(line) > LONGEST_LINE
        if cut:
            half = LONGEST_LINE // 2
            line = f"{line[:half]} [{len(line) - 2 * half} CHARACTERS NOT SHOWN] {line[-half:]}"
        parts.append(_Part(f"{at + 1:>{width}}  {line}".rstrip(), cut=cut))
        at += 1
    return parts


def _fitting(lines: list[str], most: int) -> int:
    """How many of these lines have so many characters; one at least, where there is one."""
    room, n = most, 0
    for one in lines:
        room -= len(one) + 1
        if room < 0 and n:
            break
        n += 1
    return n


def without_gaps(line: str) -> str:
    """A line with long runs of blanks in it counted: what stands behind them is seen.

    Example:
        >>> without_gaps("x = 1" + 300 * " " + "; evil()")
        'x = 1 [300 BLANKS] ; evil()'
    """
    return _GAP.sub(lambda found: f" [{len(found[0])} BLANKS] ", line)


def params_in_words(params: Mapping[str, Any], most: int = 1800) -> str:
    """Each parameter and its value: short ones whole, of long ones both ends and the SHA-256 of the whole.

    Args:
        params: The parameters.
        most: Characters at most, but for the last one; how many are not shown is said.

    Example:
        >>> params_in_words({"skin": 2.0, "lines": "echo ok" + 5000 * " " + "rm -rf data"})
        '"lines": "echo ok [5000 BLANKS] rm -rf data" (5018 characters), "skin": 2.0'
    """
    values = {name: _in_json(params[name]) for name in sorted(params)}
    long = sum(len(value) > LEAST_OF_LONG for value in values.values())
    room = most - sum(len(name) + 6 for name in values) - long * MARK_OF_LONG
    each = min(MOST_OF_LONG, max(LEAST_OF_LONG, _share(map(len, values.values()), room)))
    whole = all(len(value) <= each for value in values.values())
    said: list[str] = []
    for name, value in values.items():
        if sum(map(len, said)) > most - LEAST_OF_LONG:
            said.append(f"and {len(values) - len(said)} more that are NOT SHOWN")
            whole = False
            break
        said.append(f"{plain(json.dumps(name))}: {_both_ends(params[name], value, each)}")
    words = ", ".join(said) or "none"
    return words if whole else f"{words}; `hpcagent workspace approvals` shows all of it"


def _in_json(given: Any) -> str:
    """A value as JSON, with the blanks in a row of a text counted."""
    if isinstance(given, str):
        given = _BLANK_LINES.sub(lambda gap: f"\n[{gap[0].count(chr(10)) - 1} BLANK LINES]\n", given)
        given = _BLANKS.sub(lambda gap: f" [{len(gap[0])} BLANKS] ", given)
    return plain(json.dumps(given, ensure_ascii=True, sort_keys=True))


def _share(lengths: Iterable[int], room: int) -> int:
    """What each may have at most of some room: those that need less leave the rest to the others."""
    left = sorted(lengths)
    while left and left[0] <= room // len(left):
        room -= left.pop(0)
    return room // len(left) if left else MOST_OF_LONG


def _both_ends(given: Any, shown: str, most: int) -> str:
    """A value in brief: how it begins and ends, how long the whole is, and its SHA-256."""
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=True, sort_keys=True)
    if len(shown) <= most:
        return shown if len(text) <= most else f"{shown} ({len(text)} characters)"
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    begin, end = shown[: most * 3 // 5], shown[-(most * 2 // 5) :]
    return f"{begin}... [NOT ALL SHOWN: {len(text)} characters, SHA-256 {digest}] ...{end}"
