"""The words of a log, as numbers and as text."""

from __future__ import annotations

import re
from typing import overload

__all__ = ["A_NUMBER", "NUMBER", "as_float", "as_int", "decoded", "names_of", "seconds_of"]

NUMBER = rb"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|[nN][aA][nN]|[iI][nN][fF]|1\.#[A-Z]+)"
A_NUMBER = re.compile(NUMBER)


@overload
def as_float(text: bytes) -> float | None: ...
@overload
def as_float(text: bytes, otherwise: float) -> float: ...
def as_float(text: bytes, otherwise: float | None = None) -> float | None:
    """A number, or `otherwise` where it is none."""
    try:
        return float(text)
    except ValueError:
        return otherwise


def as_int(text: bytes | None) -> int | None:
    """A number of digits alone, or None."""
    return int(text) if text is not None and text.isdigit() else None


def seconds_of(text: bytes) -> float:
    """Seconds of `h:mm:ss`, as of `Total wall time`."""
    seconds = 0
    for part in text.split(b":"):
        seconds = 60 * seconds + int(part or 0)
    return float(seconds)


def decoded(text: bytes) -> str:
    """Bytes of a log as text; what is no UTF-8 is shown as such."""
    return text.decode("utf-8", "replace")


def names_of(names: list[bytes]) -> tuple[str, ...]:
    """Names of columns as texts."""
    return tuple(decoded(n) for n in names)
