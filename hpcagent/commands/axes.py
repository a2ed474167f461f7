"""Values of parameters as they are written on the command line, `T=100:500:9`, or in a CSV file of points."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput

__all__ = ["axis", "listed_points", "named_values"]

_MOST_VALUES = 100_000
_DIGITS = 10
"""So many digits are enough for most; with more, sums of floats show their last bits (0.30000000000000004)."""
_CLOSE = 1e-6
"""A value may be written this much off its place, in steps between neighbours."""
_HOW = "write NAME=LOW:HIGH:N, NAME=LOW:HIGH:N:log, NAME=V1,V2,V3, or NAME=VALUE for one that is not varied"


def axis(text: str) -> tuple[str, Any]:
    """A parameter, and its values (a list), its range (a dict), or the one value that it is fixed at.

    Example:
        >>> axis("T=100:500:3"), axis("p=1:100:3:log"), axis("style=a,b"), axis("steps=2000")
        (('T', [100, 300, 500]), ('p', [1, 10, 100]), ('style', ['a', 'b']), ('steps', 2000))
    """
    name, equals, of = text.partition("=")
    name, of = name.strip(), of.strip()
    if not equals or not name or not of:
        raise BadInput(f"{text!r}: {_HOW}.", value=text)
    if "," in of:
        return name, [_value(word) for word in of.split(",")]
    if ":" not in of:
        return name, _value(of)
    parts = of.split(":")
    log = parts[-1] == "log"
    numbers = [_value(word) for word in (parts[:-1] if log else parts)]
    if any(isinstance(n, str) for n in numbers) or len(numbers) not in (2, 3):
        raise BadInput(f"{text!r}: {_HOW}.", value=text)
    low, high = numbers[0], numbers[1]
    if not all(_finite(n) for n in (*numbers, high - low)):
        raise BadInput(f"{text!r}: a range is between two finite numbers.", value=text)
    if log and min(low, high) <= 0:
        raise BadInput(f"{text!r}: with log the values are > 0.", value=text)
    if len(numbers) == 2:
        return name, {"low": low, "high": high} | ({"log": True} if log else {})
    return name, _spread(text, low, high, numbers[2], log=log)


def named_values(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """The words of an option NAME=VALUE that may be repeated.

    Example:
        >>> named_values(["skin=1.5"], "--var")
        {'skin': '1.5'}
    """
    pairs = [text.partition("=") for text in given or ()]
    for name, equals, value in pairs:
        if not equals or not name or not value:
            raise BadInput(f"{option} {name}{equals}{value}: write {option} NAME=VALUE.", value=name)
    names = [name for name, _, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"{option} {twice}: is given twice; write it once.", value=twice)
    return {name: value for name, _, value in pairs}


def _spread(text: str, low: float, high: float, n: Any, *, log: bool) -> list[float]:
    """Values from `low` to `high`, each with the fewest digits (10 or more) that keep them apart and in place.

    Example:
        >>> _spread("", 0, 1, 4, log=False), _spread("", 100000000001, 100000000005, 3, log=False)
        ([0.0, 0.3333333333, 0.6666666667, 1.0], [100000000001, 100000000003, 100000000005])
    """
    import numpy as np

    if not isinstance(n, int) or not 2 <= n <= _MOST_VALUES:
        raise BadInput(f"{text!r}: the third number is how many values, 2 to {_MOST_VALUES}.", value=text)
    exact = [float(v) for v in (np.geomspace if log else np.linspace)(float(low), float(high), n)][1:-1]
    apart = min(abs(b - a) for a, b in pairwise([float(low), *exact, float(high)]))
    first, last = min(low, high), max(low, high)
    for digits in range(_DIGITS, 18):
        found = [low, *(float(f"{v:.{digits}g}") for v in exact), high]
        close = all(abs(v - w) <= _CLOSE * apart for v, w in zip(found[1:-1], exact, strict=True))
        if len(set(found)) == n and close and first <= min(found) and max(found) <= last:
            break
    else:
        raise BadInput(f"{text!r}: there are not {n} different numbers in this range; ask for fewer.", value=text)
    whole = all(float(v).is_integer() for v in found) and isinstance(low, int) and isinstance(high, int)
    return [int(v) for v in found] if whole else [float(v) for v in found]


def _value(word: str) -> Any:
    word = word.strip()
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    if not word:
        raise BadInput(f"an empty value; {_HOW}.", value=word)
    return {"true": True, "false": False}.get(word, word)


def _finite(number: Any) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number beyond every float
        return False


def listed_points(path: Path) -> list[dict[str, Any]]:
    """The points of a CSV file, in its order; its first line names the parameters.

    Raises:
        BadInput: It is no regular file, no CSV, or a line does not fit the first.
    """
    if not path.is_file():  # a pipe would be waited for
        raise BadInput(f"{path}: --from takes a CSV file; there is no regular file of that name.", value=str(path))
    try:
        # Excel writes a byte order mark, which would become part of the first name.
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read as CSV: {error}.", value=str(path)) from None
    if len(rows) < 2:
        raise BadInput(
            f"{path} has no point: write names in its first line, then a line for each.", value=str(path)
        )
    names = [name.strip() for name in rows[0][1]]
    twice = [name for name in names if names.count(name) > 1 or not name]
    if twice:
        what = f"names {twice[0]!r} twice" if twice[0] else "has an empty name"
        raise BadInput(f"{path}: its first line {what}; each column is another parameter.", value=twice[0])
    for number, row in rows[1:]:
        if len(row) != len(names):
            raise BadInput(f"{path}, line {number}: it has not as many values as the first line has names.")
    return [dict(zip(names, map(_value, row), strict=True)) for _, row in rows[1:]]
