"""Files of JSON lines that one process writes while another reads them. Standard library only.

A line that could not be written whole (a full disk) is written anew, behind a newline of its own: what came of
it is a damaged line, which a reader passes over, and neither it nor the next one is lost.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Lines", "new_lines"]


class Lines:
    """Appends to a file of lines.

    Args:
        path: It is made where it is not there.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o664)
        self._due: deque[bytes] = deque()
        self._torn = False

    def add(self, line: Mapping[str, Any]) -> bool:
        """Append a line; False where it has to wait for room: it then stands before the next one."""
        self._due.append(json.dumps(line).encode() + b"\n")
        return self.flush()

    def flush(self) -> bool:
        """Write what has to wait; whether nothing has to any more."""
        while self._due:
            text = b"\n" + self._due[0] if self._torn else self._due[0]
            try:
                written = os.write(self._file, text)
            except OSError:
                return False
            if written < len(text):
                self._torn = True
                return False
            self._torn = False
            self._due.popleft()
        return True

    def close(self) -> None:
        """Write what has to wait, if there is room now, and close the file."""
        self.flush()
        os.close(self._file)


def new_lines(path: Path, at: int) -> tuple[list[dict[str, Any]], int]:
    """What has come to a file of lines; a damaged line is passed over, one that is not whole yet is read later.

    Args:
        path: It need not be there yet.
        at: Bytes of it that were read before.

    Returns:
        The new lines, and the bytes that were read by now.

    Raises:
        OSError: It is there and cannot be read.
    """
    try:
        if path.stat().st_size <= at:
            return [], at
        with path.open("rb") as file:
            file.seek(at)
            text = file.read()
    except FileNotFoundError:
        return [], at
    whole = text[: text.rfind(b"\n") + 1]
    found = []
    for line in whole.splitlines():
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict):
            found.append(said)
    return found, at + len(whole)
