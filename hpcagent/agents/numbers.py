"""Numbers in a text, with the unit that stands behind each and the digits that it was written with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from hpcagent.errors import BadInput
from hpcagent.units import factor, measure

__all__ = ["SMALL_COUNT", "Known", "Said", "numbers_in", "same"]

SMALL_COUNT = 12
"""Whole numbers up to this, without a unit, are words ("two of 3 runs"), and are not looked up."""

_NUMBER = re.compile(
    r"""(?<![\w.,/@#~-])  # not inside a word, a path, a version or an id
        (?P<number>(?>[+-]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?)
            (?:\s*[x×·]\s*10\^?(?P<power>[+-]?\d+))?)
        (?!\.\d|-\w)
        (?P<rest>\s?[A-Za-zÅ°µμ%][\w°µμÅ%/^*·³²⁻¹-]*)?""",
    re.VERBOSE,
)
_RANGE = re.compile(r"(?<=\d)(\s?-\s?)(?=\d)")
_HANDLE = re.compile(
    r"\b(?:[rc]-[\w-]{10,}|t-[\w-]{6,}|artifact:\S+)|\b[0-9a-f]{8}-[0-9a-f-]{20,}|\b(?=\d*[a-f])[0-9a-f]{12,64}\b"
)
_DATE = re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?Z?)?|\b\d\d:\d\d(?::\d\d)?\b")
_ITEM = re.compile(
    r"(?m)^\s*(?:[-*]\s+)?\d+[.)]\s|\b(?:step|steps|turn|item|part|section|figure|table)\s+\d+\b(?!\.\d)"
)
_MINUS = str.maketrans({"−": "-", "–": "-", "‐": "-"})
_POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


@dataclass(frozen=True)
class Said:
    """A number as a text says it.

    Attributes:
        text: As it stands there, with its unit.
        value: In `unit`.
        half: Half a unit of its last digit, in `unit`.
        unit: As `hpcagent.units` knows it; empty: there is none, or it is no unit.
        at: Where it stands in the text, in characters.
    """

    text: str
    value: float
    half: float
    unit: str = ""
    at: int = 0

    @property
    def counts(self) -> bool:
        """Whether it is a small count, which is a word rather than a result."""
        return not self.unit and self.value == int(self.value) and 0 <= self.value <= SMALL_COUNT


@dataclass(frozen=True)
class Known:
    """A number that is known, and from where.

    Attributes:
        value: In `unit`.
        unit: Its unit; empty: not known.
        run: The run or campaign that has it; empty where it is of no run.
        name: What it is there.
    """

    value: float
    unit: str
    run: str
    name: str


def numbers_in(text: str) -> list[Said]:
    """The numbers of a text, in their order; handles, dates, numbers of list items and versions are none.

    Example:
        >>> text = "1. density 0.9918 g/cm³ at 1,000 bar (r-abcdefghijkl)"
        >>> [(one.text, one.value, one.unit) for one in numbers_in(text)]
        [('0.9918 g/cm³', 0.9918, 'g/cm^3'), ('1,000 bar', 1000.0, 'bar')]
    """
    plain = text.translate(_MINUS)
    for pattern in (_HANDLE, _DATE, _ITEM, _RANGE):
        plain = pattern.sub(lambda found: " " * len(found[0]), plain)
    return [_said(found) for found in _NUMBER.finditer(plain)]


def _said(found: re.Match[str]) -> Said:
    digits, power = found["number"], found["power"]
    base = re.split(r"\s*[x×·]", digits)[0].replace(",", "")
    value = Decimal(base)
    shift = int(power) if power else 0
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)  # the pattern has no NaN
    half = 0.5 * 10.0 ** (exponent + shift)
    unit, shown = _unit((found["rest"] or "").strip())
    text = f"{digits}{' ' if shown and (found['rest'] or '').startswith(' ') else ''}{shown}"
    return Said(text, float(value) * 10.0**shift, half, unit, found.start("number"))


def _unit(word: str) -> tuple[str, str]:
    """The unit that a word is, as `hpcagent.units` writes it, and as it stands there; two empty texts if none."""
    for piece in (word, word.rstrip(".-,;:")):
        written = re.sub(r"([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)", lambda found: "^" + found[1].translate(_POWERS), piece)
        written = written.replace("·", "*").replace("ångström", "angstrom")
        if not written or (written in ("a", "A", "e", "h", "m") and piece != word):
            continue
        try:
            measure(written)
        except (BadInput, KeyError, ValueError):
            continue
        return written, piece
    return "", ""


def same(said: Said, known: Known) -> bool:
    """Whether a number is the known one, rounded to the digits that it was written with.

    With units on both sides it is converted; a unit of another kind is another number.

    Example:
        >>> density = Known(0.99183, "g/cm^3", "r-1", "density")
        >>> texts = ("0.992 g/cm^3", "0.993 g/cm^3", "992 kg/m^3", "0.992 K")
        >>> [same(numbers_in(text)[0], density) for text in texts]
        [True, False, True, False]
    """
    value = known.value
    if said.unit and known.unit:
        try:
            value *= factor(known.unit, said.unit)
        except (BadInput, KeyError, ValueError):
            return False
    elif said.unit:
        return False
    return abs(value - said.value) <= said.half * (1 + 1e-6) + 1e-12 * abs(value)
