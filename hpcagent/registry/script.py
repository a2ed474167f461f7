"""Runs a script that a model has written, in the sandbox that this was started in. Standard library only.

    python -I script.py shell|python < {"lines": ..., "file": ...}

`values.json` has the numbers, `made/` the files that the script has written and a copy of what it printed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

VALUES = "values.json"
MADE = "made"
PRINTED = "printed.txt"
LARGEST = 2_000_000
NO_NUMBER = "the script ended well, but has left no finite number in `result`: end it with `result = ...`"
# What the script left in `result` is written down by the process that ran it, the last thing that it does.
_CALLING = """
import json, sys
code, path, file = sys.argv[1:]
sys.argv = [path]
with open(path, encoding="utf-8") as source:
    text = source.read()
space = {"__name__": "__main__", "FILE": file}
exec(compile(text, "script", "exec"), space)
value = space.get("result")
value = value.item() if hasattr(value, "item") else value
with open(code, "w") as answer:
    json.dump(value if isinstance(value, (int, float)) and not isinstance(value, bool) else None, answer)
"""


def text_of(given: Any) -> str:
    """The script: a text as it is, or the lines of a JSON list."""
    text = str(given)
    if text.lstrip().startswith("["):
        try:
            lines = json.loads(text)
        except ValueError:
            return text
        if isinstance(lines, list) and all(isinstance(one, str) for one in lines):
            return "\n".join(lines)
    return text


def done(words: list[str], folder: Path, more: dict[str, str]) -> tuple[int, bytes]:
    """The exit code of a command, and what it printed."""
    env = dict(os.environ) | more
    found = subprocess.run(
        words, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return found.returncode, found.stdout


def main() -> int:
    """Run it, and say how it ended."""
    kind, asked = sys.argv[1], json.load(sys.stdin)
    made = Path(MADE)
    made.mkdir()
    file = str(asked.get("file") or "")
    text = text_of(asked["lines"])
    answer = Path("answer.json").absolute()
    if kind == "shell":
        words = ["/bin/sh", "-c", text]
    else:
        script = Path("script.py.txt").absolute()
        script.write_text(text + "\n")
        words = [sys.executable, "-I", "-c", _CALLING, str(answer), str(script), file]
    code, printed = done(words, made, {"FILE": file})
    (made / PRINTED).unlink(missing_ok=True)
    (made / PRINTED).write_bytes(printed[-LARGEST:])
    sys.stdout.buffer.write(printed[-LARGEST:])
    sys.stdout.flush()
    if kind == "shell":
        Path(VALUES).write_text(json.dumps({"exit_code": code if code >= 0 else 128 - code}))
        return 0
    if code:
        return code if code > 0 else 128 - code
    value = None
    if answer.is_file() and not answer.is_symlink():
        try:
            value = json.loads(answer.read_text())
        except ValueError:
            value = None
    if not isinstance(value, (int, float)) or value != value or abs(value) == float("inf"):
        print(NO_NUMBER)
        return 1
    Path(VALUES).write_text(json.dumps({"result": value}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
