"""The words of a log, as numbers and as text."""

from __future__ import annotations

import re
from typing import overload

__all__ = ["IS_NUMBER", "NUMBER", "as_float", "as_int", "decoded", "names_of", "seconds_of"]

NUMBER = rb"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|[nN][aA][nN]|[iI][nN][fF]|1\.#[A-Z]+)"
IS_NUMBER = re.compile(NUMBER)


@overload
def as_float(text: bytes) -> float | None: ...
@overload
def as_float(text: bytes, otherwise: float) -> float: ...
def as_float(text: bytes, otherwise: float | None = None) -> float | None:
    try:
        return float(text)
    except ValueError:
        return otherwise


def as_int(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def seconds_of(text: bytes) -> float:
    seconds = 0
    for part in text.split(b":"):
        seconds = 60 * seconds + int(part or 0)
    return float(seconds)


def decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def names_of(names: list[bytes]) -> tuple[str, ...]:
    return tuple(decoded(n) for n in names)
