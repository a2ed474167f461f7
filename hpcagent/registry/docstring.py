"""A docstring in the style of Google or NumPy: what a function does, takes and returns, with units and ranges."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from itertools import islice

from hpcagent.errors import BadInput
from hpcagent.units import measure

__all__ = ["WALLTIME", "Docstring", "Entry", "known_unit", "read_docstring", "seconds_in", "unit_in"]

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Returns|Return|Yields|Raises|Examples?|Notes?|References?|Attributes|"
    r"Warns|Warnings|See Also):[ \t]*\Z"
)
_ENTRY = re.compile(r"\*{0,2}(?P<name>[A-Za-z_]\w*)[ \t]*(?:\((?P<type>[^)]*)\))?[ \t]*:(?P<text>.*)\Z", re.S)
_ALIKE = {"Arguments": "Args", "Parameters": "Args", "Return": "Returns", "Examples": "Example"}
_NUMBER = r"[-+]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][-+]?\d{1,3})?"
_RANGES = (
    re.compile(rf"\bbetween ({_NUMBER}) and ({_NUMBER})"),
    re.compile(rf"(?<![\w.])({_NUMBER}) to ({_NUMBER})(?![\w.]*\w)"),
    re.compile(rf"\[({_NUMBER}), ?({_NUMBER})\]"),
)
_BEHIND_RANGE = re.compile(rf"(?<![\w.]){_NUMBER} (?:to|and) {_NUMBER} ([^\s,;:()]{{1,40}})")
_RULED = (
    *("Parameters", "Other Parameters", "Returns", "Yields", "Raises", "Warns", "Warnings", "See Also"),
    *("Notes", "References", "Examples", "Attributes"),
)
_IN_BRACKETS = re.compile(r"\[([^\[\]]{1,40})\]")
_IN_WORDS = re.compile(r"\b[Ii]n (\S{1,40})")
MOST_WORDS = 50
WALLTIME = "Walltime:"
"""Begins the line, without indent, that says after which time a run is ended."""
_TIME = re.compile(rf"({_NUMBER}) ?([A-Za-z]{{1,20}})\.?\Z")
_PURE = re.compile(r"\b(dimensionless|unitless|pure number|number of|ratio|fraction|share)\b", re.IGNORECASE)
WORDS = {
    "kelvin": "K",
    "kelvins": "K",
    "second": "s",
    "seconds": "s",
    "milliseconds": "ms",
    "microseconds": "us",
    "nanoseconds": "ns",
    "picoseconds": "ps",
    "femtoseconds": "fs",
    "minute": "min",
    "minutes": "min",
    "hour": "h",
    "hours": "h",
    "days": "day",
    "angstroms": "angstrom",
    "ångström": "angstrom",
    "nanometers": "nm",
    "nanometres": "nm",
    "micrometers": "um",
    "millimeters": "mm",
    "centimeters": "cm",
    "meters": "m",
    "metres": "m",
    "electronvolt": "eV",
    "electronvolts": "eV",
    "joule": "J",
    "joules": "J",
    "pascal": "Pa",
    "pascals": "Pa",
    "bars": "bar",
    "atmospheres": "atm",
    "percent": "%",
    "degrees": "deg",
    "kilograms": "kg",
    "grams": "g",
    "moles": "mol",
    "hertz": "Hz",
    "tesla": "T",
}
"""Units as they are written out, and as the library writes them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a docstring says of one argument or of one returned value.

    Attributes:
        text: In words.
        kind: The type in parentheses; empty if there is none.
    """

    text: str
    kind: str = ""

    @property
    def unit(self) -> str:
        """The unit that it names; empty if it names none."""
        return unit_in(self.text)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The range that it names: `300 to 900`, `between 0 and 1`, `[0, 1]`."""
        for pattern in _RANGES:
            found = pattern.search(self.text)
            if found is not None:
                low, high = float(found[1]), float(found[2])
                return (low, high) if low < high else None
        return None


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring, in parts.

    Attributes:
        summary: Its first paragraph, on one line.
        about: What stands between the summary and the first section.
        args: Name -> what is said of it.
        returns: What is said of the returned value as a whole.
        keys: Of a returned table: key -> what is said of it.
        attributes: Of a class: name -> what is said of it.
        example: Whether it has examples that can be run (`>>>`).
        walltimes: What stands behind `Walltime:`, for each such line.
    """

    summary: str = ""
    about: str = ""
    args: dict[str, Entry] = field(default_factory=dict)
    returns: str = ""
    keys: dict[str, Entry] = field(default_factory=dict)
    attributes: dict[str, Entry] = field(default_factory=dict)
    example: bool = False
    walltimes: tuple[str, ...] = ()


def read_docstring(text: str | None) -> Docstring:
    r"""Read a docstring.

    Example:
        >>> found = read_docstring("Rate.\n\nArgs:\n    t: In K, 300 to 900.\n\nReturns:\n    In 1/s.")
        >>> found.args["t"].unit, found.args["t"].bounds, unit_in(found.returns)
        ('K', (300.0, 900.0), '1/s')
    """
    if not text or not text.strip():
        return Docstring()
    parts: dict[str, list[str]] = {"": []}
    here = ""
    lines, ruled = _without_rules(inspect.cleandoc(text).splitlines())
    walltimes: list[str] = []
    for line in lines:
        if line.startswith(WALLTIME):
            walltimes.append(line.removeprefix(WALLTIME).strip())
            continue
        head = _SECTION.match(line)
        if head is not None:
            here = _ALIKE.get(head[1], head[1])
            parts.setdefault(here, [])
        else:
            parts[here].append(line)
    first, _, rest = "\n".join(parts[""]).strip().partition("\n\n")
    args, keys, attributes = (
        (_ruled_entries if name in ruled else _entries)(parts.get(name, []))
        for name in ("Args", "Returns", "Attributes")
    )
    returned = inspect.cleandoc("\n".join(["", *parts.get("Returns", [])])).strip()
    if "Returns" in ruled:
        returned = _ruled_text(parts["Returns"])
    return Docstring(
        summary=" ".join(first.split()),
        about=rest.split(">>>")[0].strip(),
        args=args,
        returns=" ".join(returned.split()),
        keys=keys,
        attributes=attributes,
        example=">>>" in text,
        walltimes=tuple(walltimes),
    )


def _without_rules(lines: list[str]) -> tuple[list[str], set[str]]:
    """Lines with the headings of NumPy's style as those of Google's, and which sections are in NumPy's style."""
    found: list[str] = []
    ruled: set[str] = set()
    under = False
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if under:
            under = False
            continue
        name, rule = line.rstrip(), below.rstrip()
        if name in _RULED and len(rule) >= 3 and not rule.strip("-"):
            name, under = name.removeprefix("Other "), True
            ruled.add(_ALIKE.get(name, name))
            found.append(f"{name}:")
        else:
            found.append(line)
    return found, ruled


def _ruled_entries(lines: list[str]) -> dict[str, Entry]:
    """The entries of a section in NumPy's style: `name : type`, or several names, and indented text below."""
    found: dict[str, Entry] = {}
    for head, text in _ruled_heads(lines):
        names, colon, kind = head.partition(":")
        for name in names.split(","):
            name = name.strip().lstrip("*")
            if name.isidentifier() and (colon or text):
                found[name] = Entry(text, kind.partition(",")[0].strip())
    return found


def _ruled_text(lines: list[str]) -> str:
    """What such a section says as a whole, without types; a line with nothing below it is text."""
    said = []
    for head, text in _ruled_heads(lines):
        name, colon, _ = head.partition(" : ")
        said.append(f"{name}: {text}" if colon and text else text or head)
    return " ".join(said)


def _ruled_heads(lines: list[str]) -> list[tuple[str, str]]:
    heads: list[str] = []
    texts: list[list[str]] = []
    for line in lines:
        if line[:1].isspace() and heads:
            texts[-1].append(line.strip())
        elif line.strip():
            heads.append(line.strip())
            texts.append([])
    return [(head, " ".join(text).strip()) for head, text in zip(heads, texts, strict=True)]


def _entries(lines: list[str]) -> dict[str, Entry]:
    """The entries of a section; what is indented more goes on with the one above."""
    text = inspect.cleandoc("\n".join(["", *lines]))
    whole: list[str] = []
    for line in text.splitlines():
        if line[:1].isspace() and whole:
            whole[-1] += f" {line.strip()}"
        elif line.strip():
            whole.append(line.strip())
    found = {}
    for one in whole:
        entry = _ENTRY.match(one)
        if entry is not None:
            found[entry["name"]] = Entry(entry["text"].strip(), (entry["type"] or "").strip())
    return found


def seconds_in(text: str) -> float | None:
    """The time that a text states, in seconds; None: it is no positive number with a unit of time.

    Example:
        >>> seconds_in("20 min"), seconds_in("1.5 hours."), seconds_in("20"), seconds_in("3 K")
        (1200.0, 5400.0, None, None)
    """
    found = _TIME.match(text.strip())
    if found is None:
        return None
    named = WORDS.get(found[2].lower(), found[2])
    if not known_unit(named):
        return None
    scale, dimension = measure(named)
    value = float(found[1]) * scale
    return value if dimension == {"s": 1} and value > 0 else None


def known_unit(unit: str) -> bool:
    """Whether the library can convert a unit."""
    if not unit:
        return False
    try:
        measure(unit)
    except BadInput:
        return False
    return True


def unit_in(text: str) -> str:
    """The unit that a text names, in brackets or in words; empty if it names none.

    Example:
        >>> unit_in("Temperature [K], 300 to 900."), unit_in("In kelvin."), unit_in("A ratio."), unit_in("Warm.")
        ('K', 'K', '1', '')
    """
    brackets = [one.strip() for one in _first(_IN_BRACKETS, text)]
    for one in brackets:
        found = _as_unit(one)
        if found:
            return found
    for word in _first(_IN_WORDS, text):
        found = _as_unit(word.rstrip(".,;:)"))
        if found:
            return found
    for word in _first(_BEHIND_RANGE, text):
        found = _as_unit(word.rstrip("."))
        if found:
            return found
    if _PURE.search(text):
        return "1"
    # In brackets it is meant as a unit, also one that nobody can convert.
    return next((one for one in brackets if re.fullmatch(r"[A-Za-z%][\w/^*. -]{0,30}", one)), "")


def _first(pattern: re.Pattern[str], text: str) -> list[str]:
    """The first words that a pattern finds: each is looked up among all units, which takes 0.4 ms."""
    return [one[1] for one in islice(pattern.finditer(text), MOST_WORDS)]


def _as_unit(word: str) -> str:
    if word in ("-", "1", "none"):
        return "1"
    named = WORDS.get(word.lower(), word)
    return named if known_unit(named) and not named.isdigit() else ""
