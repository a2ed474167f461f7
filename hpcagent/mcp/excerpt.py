"""A long text in a question to a person: its lines with their numbers, and what of it is not shown."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpcagent.shown import plain

__all__ = ["Excerpt", "excerpt_of", "without_gaps"]

LONGEST_LINE = 160
"""Characters of a line; of a longer one both ends are shown."""
MOST_BLANK = 2
"""Blank lines in a row that are shown as such."""
_GAP = re.compile(r"(?<=\S)[^\S\n]{12,}|[^\S\n]{60,}")


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
