"""What workers have on record of runs that wrote no file, changed by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def edit(folder: Path, change: Callable[[dict[str, Any]], bytes | dict[str, Any] | None]) -> None:
    """Put something else in place of each line in the records of a campaign; None: nothing."""
    for path in (folder / "work" / "records").iterdir():
        lines = []
        for line in path.read_bytes().splitlines():
            now = change(json.loads(line))
            if now is not None:
                lines.append(
                    (json.dumps(now, separators=(",", ":")).encode() if isinstance(now, dict) else now) + b"\n"
                )
        path.write_bytes(b"".join(lines))


def forget(folder: Path, runs: Iterable[str]) -> None:
    """As if these runs had never begun: neither records nor directories."""
    gone = set(runs)
    edit(folder, lambda line: None if line["execution_id"] in gone else line)
    for name in gone:
        shutil.rmtree(folder / "work" / name, ignore_errors=True)


def never_ended(folder: Path, runs: Iterable[str]) -> None:
    """As if these runs had begun and not ended."""
    gone = set(runs)
    edit(folder, lambda line: None if line["event"] == "ended" and line["execution_id"] in gone else line)


def in_directories(folder: Path) -> None:
    """As runs that write files are kept, and as all of them were by earlier versions: each in its own directory."""
    for path in (folder / "work" / "records").iterdir():
        for line in map(json.loads, path.read_text().splitlines()):
            place = folder / "work" / line["execution_id"]
            place.mkdir(exist_ok=True)
            name = "manifest" if line["event"] == "begun" else "result"
            (place / f"{name}.json").write_text(json.dumps(line[name]))
    shutil.rmtree(folder / "work" / "records")
