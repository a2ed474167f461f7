"""Looks for patterns in texts, in a process of its own that can be ended: some patterns take years on some texts.

Started as a script, without site-packages: reads a request as JSON on stdin and writes the answer to stdout.
Imports only the standard library.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

__all__ = ["LARGEST", "LIMIT_S", "Found", "Wanted", "found_in"]

LARGEST = 128_000_000
"""Bytes of a text in which a pattern is looked for."""

LIMIT_S = 20.0
"""Seconds for all patterns of a run."""


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
    # Neither the user's site-packages nor PYTHONPATH: it is there in 0.02 s.
    with subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            answer, said = process.communicate(json.dumps(list(wanted)).encode(), timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return None
    if process.returncode != 0:
        raise OSError(f"looking for patterns ended with code {process.returncode}: {said[-500:].decode()}")
    found: list[Found] = json.loads(answer)
    return found


def _text(name: str, known: dict[str, str | None]) -> str | None:
    if name not in known:
        if not stat.S_ISREG(os.stat(name).st_mode):  # noqa: PTH116
            raise OSError(name)  # a pipe would be waited for without end
        with open(name, "rb") as file:  # noqa: PTH123
            data = file.read(LARGEST + 1)
        # Behind the last newline is no line: `^(.*)$` would match there, and nothing in it.
        text = data.decode(errors="replace").replace("\r\n", "\n").removesuffix("\n")
        known[name] = None if len(data) > LARGEST else text
    return known[name]


def _looked(one: Wanted, known: dict[str, str | None]) -> dict[str, Any]:
    nothing = {"groups": [], "named": {}, "line": 0, "lines": 0, "count": 0}
    try:
        text = _text(one["file"], known)
    except OSError:
        return {"problem": "missing", **nothing}
    if text is None:
        return {"problem": "large", **nothing}
    lines = text.count("\n") + bool(text)
    match, count = None, 0
    for this in re.finditer(one["pattern"], text, re.MULTILINE):
        match, count = this, count + 1
        if one["match"] == "first":
            break
    if match is None:
        return {"problem": "", **nothing, "lines": lines}
    return {
        "problem": "",
        "groups": [match[0], *match.groups()],
        "named": match.groupdict(),
        "line": text.count("\n", 0, match.start()) + 1,
        "lines": lines,
        "count": count,
    }


def _main() -> None:
    signal.alarm(int(LIMIT_S) + 10)  # whoever waits for it may have been killed
    texts: dict[str, str | None] = {}
    print(json.dumps([_looked(one, texts) for one in json.load(sys.stdin)]))


if __name__ == "__main__":
    _main()
