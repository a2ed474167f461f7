"""Looks for patterns in texts, in a process of its own that can be ended: some patterns take years on some texts.

That process is `looking`. Imports only the standard library.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

__all__ = ["LARGEST", "LIMIT_S", "Found", "Wanted", "found_in"]

LARGEST = 128_000_000
"""Bytes of a text in which a pattern is looked for."""

LIMIT_S = 20.0
"""Seconds for all patterns of a run."""

_LOOKING = Path(__file__).with_name("looking.py")


class Wanted(TypedDict):
    """A pattern, where it is looked for, and which of its matches counts."""

    file: str
    pattern: str
    match: Literal["first", "last"]


class Found(TypedDict):
    """A match: its groups (0: the whole), those with names, the line it begins in, and how many there were.

    `problem` says why there is none: `missing` (no such file), `large`; else it is empty, and `count` may be 0.
    `lines` is how many lines the text has.
    """

    problem: str
    groups: list[str | None]
    named: dict[str, str | None]
    line: int
    lines: int
    count: int


def found_in(folder: Path, wanted: Sequence[Wanted], *, limit_s: float = LIMIT_S) -> list[Found] | None:
    """Look for patterns in files of a folder.

    Args:
        folder: Of the run.
        wanted: What is looked for; files are relative to the folder.
        limit_s: For all of them, in seconds.

    Returns:
        What was found, one for each; None if it took longer.
    """
    if not wanted:
        return []
    request = {"wanted": list(wanted), "most": LARGEST, "limit_s": limit_s}
    # Neither site-packages nor PYTHONPATH: it is there in 0.02 s.
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(_LOOKING)],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            answer, said = process.communicate(json.dumps(request).encode(), timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return None
    if process.returncode != 0:
        raise OSError(f"looking for patterns ended with code {process.returncode}: {said[-500:].decode()}")
    found: list[Found] = json.loads(answer)
    return found
