"""Numbers in a text, with the unit that stands behind each and the digits that it was written with."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal

from hpcagent.errors import BadInput
from hpcagent.units import factor, measure

__all__ = ["SMALL_COUNT", "Known", "Said", "numbers_in", "same"]

SMALL_COUNT = 12
"""Whole numbers up to this, without a unit, are words ("two of 3 runs"), and are not looked up."""

FOREIGN = "?"
"""The unit of a number whose unit is not known here: no number of a run is the same."""

# What has digits and is no number is blanked first; what is left is one, whatever stands around it.
_HANDLE = re.compile(
    r"\b(?:[rc]-[\w-]{10,}|t-[\w-]{6,}|artifact:\S+)|\b[0-9a-f]{8}-[0-9a-f-]{20,}|\b(?=\d*[a-f])[0-9a-f]{12,64}\b"
)
_DATE = re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?Z?)?|\b\d\d:\d\d(?::\d\d)?\b")
_VERSION = re.compile(r"(?<![\w.])v?\d+\.\d+\.\d+[\w.-]*|@\d[\w.-]*|\bv\d+(?:\.\d+)*\b")
_PATH = re.compile(
    r"(?<![\w.])(?:~|\.{1,2})?/(?:[\w.+-]+/)*[\w.+-]+|"
    r"\b(?=[\w/-]*[A-Za-z])[\w-]+(?:/[\w.-]+)*\.[A-Za-z]\w{0,5}\b"
)
_ITEM = re.compile(
    r"(?mi)^\s*(?:[-*]\s+)?\d{1,3}[.)]\s|\b(?:step|steps|turn|item|part|section|figure|table)\s+\d{1,2}\b(?!\.?\d)"
)
_RANGE = re.compile(r"(?<=\d)(\s?-\s?)(?=\d)")
_MARKS = re.compile(r"(?<!\w)_(?=[+-]?\d)|(?<![A-Za-z0-9])[x×](?=\d)")  # of Markdown; `x3.7`
# Said in words: as it is written in signs.
_IN_SIGNS = (
    (re.compile(r"(?i)\bdegrees? (?=Celsius|Fahrenheit)"), ""),
    (re.compile(r"(?<=[A-Za-z%]) per (?=[A-Za-z])"), "/"),
)

_NUMBER = re.compile(
    r"""(?<![A-Za-z0-9_.Å°µμ])(?<![A-Za-z]-)
        (?P<number>(?>[+-]?
            (?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?:[\ '\u00a0\u202f]\d{3})+(?!\d)|\d+,\d+(?![\d.,])|\d+)
            (?:\.\d+)?(?:[eE][+-]?\d+)?)
            (?:\s*[x×·]\s*10\^?(?P<power>[+-]?\d+))?)
        (?!\.\d)
        (?P<rest>(?:[\ \u00a0\u202f]?|-)(?:[€$£¥]|[×A-Za-zÅ°µμ%][\w°µμÅ%/^*·³²⁻¹×-]*))?""",
    re.VERBOSE,
)
_POWER = re.compile(r"(?<![\w.^])(?<![x×·])(?<![x×·] )10(?:\^(-?\d+)|([⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+))")
_MINUS = str.maketrans({"−": "-", "–": "-", "‐": "-"})
_POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")

_PREFIXES = {
    "p": -12,
    "n": -9,
    "u": -6,
    "µ": -6,
    "μ": -6,
    "m": -3,
    "c": -2,
    "h": 2,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
}
_WORDS = {
    **{
        "kelvin": "K",
        "kelvins": "K",
        "seconds": "s",
        "second": "s",
        "percent": "%",
        "minutes": "min",
        "minute": "min",
    },
    **{"femtoseconds": "fs", "picoseconds": "ps", "nanoseconds": "ns", "angstroms": "angstrom", "d": "day"},
    **{"kcal/mole": "kcal/mol", "kJ/mole": "kJ/mol", "times": "1", "x": "1", "×": "1", "fold": "1"},
}
_BOOKED = {f"{one}-hour{s}": f"{one}_hours" for one in ("node", "core") for s in ("", "s")}
_RATIOS = ("x", "×", "fold")
_STRANGE = re.compile(
    r"[€$£¥]|(?:USD|EUR|GBP|CHF|JPY|dollars?|euros?)\b|(?:[kKMGTP]i?)?B\b|(?:kilo|mega|giga|tera)?bytes?\b|"
    r"[kKMGTP]?FLOPS?\b|[µμ]B\b|°|(?:wt|vol|mol|at)\.?%|[A-Za-zÅµμ%][\w.]*[/^·*][\w(]"
)
_FACTOR = re.compile(r"(?i)\b(?:factor|speed-?up|ratio)(?:\s+(?:of|is|was|by))?\s*$")
_COMPARED = re.compile(r"\s+(?:as|the|more|less|\w+er)\b")


@dataclass(frozen=True)
class Said:
    """A number as a text says it.

    Attributes:
        text: As it stands there, with its unit.
        value: In `unit`.
        half: Half a unit of its last digit, in `unit`.
        unit: As `hpcagent.units` knows it; empty: there is none; `FOREIGN`: there is one that is not known.
        at: Where it stands in the text, in characters.
        ratio: Whether it says how many times as much something is.
        booked: `node_hours` or `core_hours`, which are no times.
    """

    text: str
    value: float
    half: float
    unit: str = ""
    at: int = 0
    ratio: bool = False
    booked: str = ""

    @property
    def counts(self) -> bool:
        """Whether it is a small count, which is a word rather than a result."""
        small = self.value == int(self.value) and 0 <= self.value <= SMALL_COUNT
        return not self.unit and not self.ratio and small


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
    """The numbers of a text, in their order; handles, dates, paths, numbers of list items and versions are none.

    Example:
        >>> text = "1. density 0.9918 g/cm³ at 1,000 bar (r-abcdefghijkl), 27 °C"
        >>> [(one.text, one.value, one.unit) for one in numbers_in(text)]
        [('0.9918 g/cm³', 0.9918, 'g/cm^3'), ('1,000 bar', 1000.0, 'bar'), ('27 °C', 300.15, 'K')]
    """
    plain = text.translate(_MINUS)
    for pattern, signs in _IN_SIGNS:
        plain = pattern.sub(signs, plain)
    for pattern in (_HANDLE, _DATE, _VERSION, _PATH, _ITEM, _RANGE, _MARKS):
        plain = pattern.sub(lambda found: " " * len(found[0]), plain)
    plain = _POWER.sub(_as_digits, plain)
    return [_said(found, plain) for found in _NUMBER.finditer(plain)]


def _as_digits(found: re.Match[str]) -> str:
    """A power of ten as a number of the same length."""
    exponent = found[1] or found[2].translate(_POWERS)
    return f"1e{exponent}".ljust(len(found[0]))


def _said(found: re.Match[str], text: str) -> Said:
    digits, power = found["number"], found["power"]
    base = re.split(r"\s*[x×·]", digits)[0]
    if re.fullmatch(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?:[eE].*)?", base):
        base = base.replace(",", "")
    value = Decimal(re.sub(r"[ '\u00a0\u202f]", "", base).replace(",", "."))
    shift = int(power) if power else 0
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)  # the pattern has no NaN
    half = 0.5 * 10.0 ** (exponent + shift)
    rest = found["rest"] or ""
    word = rest.lstrip(" -\u00a0\u202f")
    one = Said(digits, float(value) * 10.0**shift, half, at=found.start("number"))
    one = _with_unit(one, word, behind=text[found.end() :], before=text[: found.start()])
    shown = word if one.unit == FOREIGN or one.booked else one.text
    return replace(one, text=f"{digits}{rest[: len(rest) - len(word)]}{shown}" if shown else digits)


def _with_unit(one: Said, word: str, *, behind: str, before: str) -> Said:
    """With the unit that stands behind it; `text` is the unit as it stands there, or empty."""
    plain = word.rstrip(".-,;:")
    if plain in _BOOKED:
        return replace(one, unit="h", booked=_BOOKED[plain], text=plain)
    if plain in _RATIOS or (plain == "times" and (one.value != int(one.value) or _COMPARED.match(behind))):
        return replace(one, unit="1", ratio=True, text=plain)
    if plain == "times":
        return replace(one, text="")
    if plain.lower() in ("°c", "celsius", "degc", "degrees-celsius"):
        return replace(one, value=one.value + 273.15, unit="K", text=plain)
    if plain.lower() in ("°f", "fahrenheit", "degf"):
        return replace(one, value=(one.value - 32) / 1.8 + 273.15, half=one.half / 1.8, unit="K", text=plain)
    for piece in (word, plain):
        unit = _written(piece)
        if unit and not (unit in ("a", "A", "e", "h", "m") and piece != word):
            return replace(one, unit=unit, text=piece)
    if plain[:1] in _PREFIXES and (unit := _written(plain[1:])) and unit not in ("h", "a", "e", "min", "day", "1"):
        times = 10.0 ** _PREFIXES[plain[0]]
        return replace(one, value=one.value * times, half=one.half * times, unit=unit, text=plain)
    if _STRANGE.match(plain) or re.search(r"[€$£¥]\s?[+-]?$", before):
        return replace(one, unit=FOREIGN, text=plain)
    return replace(one, text="", ratio=_FACTOR.search(before) is not None)


def _written(piece: str) -> str:
    """A unit as `hpcagent.units` writes it; empty: it is none."""
    piece = _WORDS.get(piece, piece)
    written = re.sub(r"([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)", lambda found: "^" + found[1].translate(_POWERS), piece)
    written = written.replace("·", "*").replace("ångström", "angstrom")
    try:
        measure(written)
    except (BadInput, KeyError, ValueError):
        return ""
    return written


def same(said: Said, known: Known) -> bool:
    """Whether a number is the known one, rounded to the digits that it was written with.

    With units on both sides it is converted; a unit of another kind, or that is not known here, is another number.

    Example:
        >>> density = Known(0.99183, "g/cm^3", "r-1", "density")
        >>> texts = ("0.992 g/cm^3", "0.993 g/cm^3", "992 kg/m^3", "0.992 K", "0.992 USD")
        >>> [same(numbers_in(text)[0], density) for text in texts]
        [True, False, True, False, False]
    """
    value = known.value
    if said.unit == FOREIGN or (said.booked and said.booked not in known.name):
        return False
    if said.ratio and known.unit not in ("", "1", "%"):
        return False
    if said.unit in ("step", "steps") and known.unit == "1":
        pass  # a number of steps
    elif said.unit and known.unit:
        try:
            value *= factor(known.unit, said.unit)
        except (BadInput, KeyError, ValueError):
            return False
    elif said.unit and not said.ratio:
        return False
    if said.value == 0 and value != 0:
        return False  # rounded to nothing it could be any small number
    return abs(value - said.value) <= said.half * (1 + 1e-6) + 1e-12 * abs(value)
