"""Which lines of a thermo table are its rows, and how many rows are missing.

How a row is told from a printed line with the same number of numbers, in the one-line style:

- LAMMPS prints a row by one format for each column, so the first column ends, and each other column begins or
  ends, at one distance from the column before it, or directly after one that is wider than its format. Blanks at
  the end say nothing: there are some only where the last value is shorter than its format.
- Step grows within a run, stays within first step + number of steps, and between the first and the last row
  lies on the grid of the echoed `thermo N`.

A printed line that imitates all of these cannot be told from a row by anybody. A line that looks like a row and
is refused is counted in `Run.unread`; rows that `thermo N` promises and that are not there, in `Run.missing`.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["SIMILAR", "Layout", "Positions", "gaps", "true_steps"]

_Array = NDArray[np.float64]


_POWERS = 10.0 ** np.arange(1, 19)


Positions = NDArray[np.intp]
SIMILAR = re.compile(rb"[ \t]*(\d+)[ \t]+[-+]?\.?\d")


@dataclass(frozen=True, slots=True)
class Layout:
    """How the first row of a table is laid out.

    Attributes:
        width: Where the number of its first column ends, if that is an integer; None otherwise.
        leading: Whether there are blanks before it: it is aligned to the right.
        anchors: (n, 3) where each number begins, begins with its sign (positive ones have a blank for it in
            LAMMPS's own format), and ends.
    """

    width: int | None
    leading: bool
    anchors: Positions

    @classmethod
    def of(cls, row: bytes, *, integer: bool) -> Layout:
        numbers = [(m.start(), m.start() - (m[0][:1] not in b"+-"), m.end()) for m in re.finditer(rb"\S+", row)]
        anchors = np.array(numbers, dtype=np.intp)
        return cls(numbers[0][2] if integer else None, numbers[0][0] > 0, anchors)

    def similar(self, line: bytes) -> bool:
        """Whether a line that is no row begins like one, or holds what no text file holds."""
        if b"\0" in line:
            return True
        if self.width is None or not self.leading:
            return False
        found = SIMILAR.match(line)
        return found is not None and found.end(1) == max(self.width, len(found[1]))

    def fits(self, chunk: bytes, leading: _Array, starts: Positions, ends: Positions) -> NDArray[np.bool_]:
        """Which lines are laid out so.

        Args:
            chunk: Lines of n numbers each.
            leading: (n_rows,) first column.
            starts: (n_rows, n) where each number begins.
            ends: (n_rows,) where each line ends.
        """
        text = np.frombuffer(chunk, np.uint8)
        lines = np.concatenate(([0], ends[:-1] + 1))
        keep = np.ones(ends.size, dtype=np.bool_)
        if self.width is not None:
            digits = np.searchsorted(_POWERS, leading, side="right") + 1
            after = starts[:, 0] + digits
            keep &= after - lines == (np.maximum(self.width, digits) if self.leading else digits)
            keep &= text[np.minimum(after, text.size - 1)] <= 32
        # Where the last number begins shows in one stroke that all columns before it are as wide as usual.
        last = starts[:, -1]
        usual = last - lines - (text[last] != _MINUS) == self.anchors[-1, 1]
        doubtful = np.flatnonzero(~usual & keep)
        if doubtful.size and starts.shape[1] > 1:
            keep[doubtful] = self._spaced(_anchors(text, starts[doubtful], lines[doubtful]))
        return keep

    def _spaced(self, anchors: Positions) -> NDArray[np.bool_]:
        """Which rows have their columns at the distances of the first row, or pushed on by one too wide.

        Args:
            anchors: (n_rows, n, 3).
        """
        # (..., n - 1, 3, 3): any anchor of a column against any of the one before it.
        apart = anchors[:, 1:, :, None] - anchors[:, :-1, None, :]
        usual = self.anchors[1:, :, None] - self.anchors[:-1, None, :]
        same = (apart == usual).any(axis=(2, 3))
        # What follows directly on the number before it, one blank between, in the first row: that number may have
        # been too wide, or its format has no width; the distance says nothing.
        free = usual[:, :2, 2].min(axis=1) <= 1
        pushed = (apart[:, :, :2, 2].min(axis=2) <= 1) & (
            (apart[:, :, 1, 1] > usual[:, 1, 1]) | (apart[:, :, 2, 2] > usual[:, 2, 2])
        )
        fits: NDArray[np.bool_] = (same | free | pushed).all(axis=1)
        return fits


_PLUS, _MINUS = b"+-"


def _anchors(text: NDArray[np.uint8], starts: Positions, lines: Positions) -> Positions:
    """Where numbers begin, begin with their sign, and end, from the start of their line: (n_rows, n, 3)."""
    blank = np.flatnonzero(text <= 32)
    stops = blank[np.searchsorted(blank, starts)]
    first = text[starts]
    signed = starts - ((first != _MINUS) & (first != _PLUS))
    return np.stack([starts, signed, stops], axis=-1) - lines[:, None, None]


def gaps(step: _Array, every: int, steps: int) -> int:
    """How many multiples of `every` between the first and the last step of a run are not among its rows.

    The last row is not counted: a run that is stopped (`fix halt`, `timer timeout`) does not always print it.
    """
    if not step.size:
        return 0
    first = int(step[0])
    promised = (first + steps - 1) // every - first // every
    return max(0, promised - int(((step > first) & (step < first + steps)).sum()))


def true_steps(step: _Array, every: int | None, steps: int | None) -> NDArray[np.intp]:
    """Indices of the rows whose Step a run can have printed.

    Args:
        step: (n_rows,) Step column.
        every: The `thermo` interval, if known.
        steps: Number of steps of the run, if known.
    """
    n = len(step)
    if n == 0:
        return np.arange(0)
    good = np.isfinite(step)
    number = np.where(good, step, -1.0)
    first = number[0]
    good &= number == np.floor(number)
    good[1:] &= number[1:] > first
    if steps is not None:
        good &= number <= first + steps
    if every:
        exempt = number == first + steps if steps is not None else np.arange(n) == n - 1
        exempt[0] = True
        good &= (number % every == 0) | exempt
    kept = np.flatnonzero(good)
    if (np.diff(number[kept]) > 0).all():
        return kept
    return kept[_longest_rise(number[kept])]


def _longest_rise(values: _Array) -> list[int]:
    """Indices of the longest strictly rising subsequence: what is left when the fewest rows are refused."""
    tails: list[float] = []
    holders: list[int] = []
    before: list[int] = []
    for index, value in enumerate(values.tolist()):
        place = bisect.bisect_left(tails, value)
        before.append(holders[place - 1] if place else -1)
        if place == len(tails):
            tails.append(value)
            holders.append(index)
        else:
            tails[place], holders[place] = value, index
    chain, at = [], holders[-1]
    while at >= 0:
        chain.append(at)
        at = before[at]
    return chain[::-1]
