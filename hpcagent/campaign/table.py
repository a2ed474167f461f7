"""Rows of text that print in a terminal and display in a notebook."""

from __future__ import annotations

from dataclasses import dataclass

from hpcagent.html import Rows, table_html
from hpcagent.shown import plain

__all__ = ["Table", "headed"]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; prints as aligned columns, displays as HTML in a notebook."""

    title: str
    header: list[str]
    rows: list[list[str]]

    def __str__(self) -> str:
        # In a cell a newline would be another row.
        lines = [[plain(cell).replace("\n", " ") for cell in line] for line in (self.header, *self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        text = ["  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([self.title, *text])

    def _repr_html_(self) -> str:
        return table_html(Rows(self.title, self.header, self.rows))


def headed(name: str, unit: str) -> str:
    """A column's heading: the name, with its unit unless it is a pure number."""
    return name if unit == "1" else f"{name} ({unit})"
