"""What `matching` starts as a process of its own: takes a request as JSON on stdin, writes the answer to stdout.

Started without site-packages, once in each run; so it imports as little as it can.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys

__all__ = ["looked"]


def _text(name: str, most: int, known: dict[str, str | None]) -> str | None:
    if name not in known:
        if not stat.S_ISREG(os.stat(name).st_mode):  # noqa: PTH116
            raise OSError(name)  # a pipe would be waited for without end
        with open(name, "rb") as file:  # noqa: PTH123
            data = file.read(most + 1)
        # Behind the last newline is no line: `^(.*)$` would match there, and nothing in it.
        text = data.decode(errors="replace").replace("\r\n", "\n").removesuffix("\n")
        known[name] = None if len(data) > most else text
    return known[name]


def looked(one: dict[str, str], most: int, known: dict[str, str | None]) -> dict[str, object]:
    """Look for one pattern: a `Wanted` of `matching`; gives a `Found`.

    Args:
        one: What is looked for.
        most: Bytes that a text may have.
        known: Texts that were read already; more are put in.
    """
    nothing: dict[str, object] = {"groups": [], "named": {}, "line": 0, "lines": 0, "count": 0}
    try:
        text = _text(one["file"], most, known)
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
    request = json.load(sys.stdin)
    signal.alarm(int(request["limit_s"]) + 10)  # whoever waits for it may have been killed
    texts: dict[str, str | None] = {}
    sys.stdout.write(json.dumps([looked(one, request["most"], texts) for one in request["wanted"]]))


if __name__ == "__main__":
    _main()
