"""What records show in a notebook: one card each, from the same facts as their short `repr`.

Everything is escaped here, whoever wrote it. There is no script and nothing is loaded; colours are those of the
page, so that a dark theme stays dark; long tables scroll in their own box.

A class with a method `_card` that returns a `Card` gets both forms from `Displayed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from hpcagent.shown import plain

__all__ = ["Card", "Displayed", "Rows", "escaped", "shortened", "table_html"]

LONGEST_REPR = 300
"""Characters of a `repr`."""
LONGEST_CELL, LONGEST_FACT = 400, 3000
"""Characters of a cell of a table, and of a fact."""
MOST_ROWS = 200
"""Rows of a table in a page."""

_LINE = "1px solid rgba(128,128,128,0.35)"
_CELL = f"padding:2px 10px 2px 0;text-align:left;vertical-align:top;border-bottom:{_LINE};background:transparent"
_NUMBER = _CELL.replace("text-align:left", "text-align:right")
_DIM = "opacity:0.7"


def escaped(value: object, *, most: int = LONGEST_CELL) -> str:
    """Text of anybody as HTML: no markup, no control characters, not endless.

    Example:
        >>> escaped("<b>bold</b> & 'quoted'")
        '&lt;b&gt;bold&lt;/b&gt; &amp; &#x27;quoted&#x27;'
    """
    return escape(plain(shortened(str(value), most)))


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters, the end left out.

    Example:
        >>> shortened("a long text", 8)
        'a lon...'
    """
    return text if len(text) <= most else f"{text[: most - 3]}..."


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: a title, headings, and rows of cells, all text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]


def table_html(rows: Rows, *, most: int = MOST_ROWS) -> str:
    """A table that scrolls in its own box; columns of numbers are aligned to the right.

    Example:
        >>> "<th" in table_html(Rows("", ["x (ps)"], [["1.5"]]))
        True
    """
    shown = [[str(cell) for cell in row] for row in rows.rows[:most]]
    right = [
        any(row[i] for row in shown) and all(_is_number(row[i]) for row in shown if i < len(row))
        for i in range(len(rows.header))
    ]
    style = [_NUMBER if number else _CELL for number in right]
    head = "".join(f'<th style="{s};{_DIM}">{escaped(h)}</th>' for h, s in zip(rows.header, style, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td style="{s}">{escaped(c)}</td>' for c, s in zip(row, style, strict=False)) + "</tr>"
        for row in shown
    )
    left_out = len(rows.rows) - len(shown)
    more = f'<div style="{_DIM}">and {left_out} more</div>' if left_out > 0 else ""
    title = f'<div style="margin-top:6px;{_DIM}">{escaped(rows.title)}</div>' if rows.title else ""
    return (
        f'{title}<div style="overflow:auto;max-height:26em;max-width:100%">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )


def _is_number(text: str) -> bool:
    try:
        float(text.partition("±")[0].strip() or "nan")
    except ValueError:
        return text in ("", "-")
    return True


@dataclass(frozen=True, slots=True)
class Card:
    """What is worth knowing of a record at first sight.

    Attributes:
        kind: Of the record, e.g. `Result`.
        title: Which one it is.
        facts: (name, text) of each; those with an empty text are left out.
        tables: Shown below them.
        folded: (summary, table) of what is opened by a click.
        brief: What stands in the `repr` in place of the facts.
    """

    kind: str
    title: str
    facts: Iterable[tuple[str, object]] = ()
    tables: Sequence[Rows] = ()
    folded: Sequence[tuple[str, Rows]] = ()
    brief: str | None = None

    def __str__(self) -> str:
        facts = "; ".join(f"{name}: {text}" for name, text in self.facts if str(text))
        said = facts if self.brief is None else self.brief
        whole = f"{self.title}: {said}" if self.title and said else self.title or said
        return f"<{self.kind} {plain(shortened(' '.join(whole.split()), LONGEST_REPR))}>"

    def html(self) -> str:
        """The card as a piece of a page."""
        rows = "".join(
            f'<tr><td style="{_CELL};{_DIM};white-space:nowrap">{escaped(name)}</td>'
            f'<td style="{_CELL};white-space:pre-wrap">{escaped(text, most=LONGEST_FACT)}</td></tr>'
            for name, text in self.facts
            if str(text)
        )
        facts = (
            f'<table style="border-collapse:collapse;margin:2px 0;font-size:inherit"><tbody>{rows}</tbody></table>'
            if rows
            else ""
        )
        tables = "".join(table_html(table) for table in self.tables)
        folded = "".join(
            f'<details style="margin-top:6px"><summary style="cursor:pointer;{_DIM}">{escaped(summary)}</summary>'
            f"{table_html(table)}</details>"
            for summary, table in self.folded
            if table.rows
        )
        head = f'<span style="{_DIM}">{escaped(self.kind)}</span> <b>{escaped(self.title)}</b>'
        return f'<div style="max-width:100%;margin:4px 0">{head}{facts}{tables}{folded}</div>'


class Displayed:
    """Gives a class that says what is on its `_card` a short `repr` and a display in notebooks."""

    __slots__ = ()

    def _card(self) -> Any:  # a Card
        raise NotImplementedError

    def __repr__(self) -> str:
        return str(self._card())

    def __str__(self) -> str:
        return str(self._card())

    def _repr_html_(self) -> str:
        html: str = self._card().html()
        return html
