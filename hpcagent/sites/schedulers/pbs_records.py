"""What PBS prints of jobs, queues, servers and nodes, as JSON or as text, and how its values are written."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = [
    "Record",
    "from_json",
    "from_text",
    "gigabytes",
    "parts",
    "same_jobs",
    "seconds",
    "unix_time",
    "whole",
]

_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"

Record = dict[str, str]
"""What qstat told of one thing, flat: `Resource_List.walltime`. R emits numbers where M emits strings."""


def same_jobs(key: str, wanted: list[str]) -> Iterator[str]:
    """The wanted ids that mean the job of this key; both may be without the end of the server's name."""
    if key in wanted:
        yield key
        return
    for job_id in wanted:
        if key.partition(".")[0] == job_id.partition(".")[0] and (
            job_id.startswith(key) or key.startswith(job_id)
        ):
            yield job_id


def from_json(text: str, kind: str) -> dict[str, Record]:
    """Read what a command prints with -F json; a ValueError where that is no JSON, or not an object."""
    data = json.loads(text, strict=False)  # line ends and tabs of environment values may be in it as they are
    things = data.get(kind, {}) if isinstance(data, dict) else None
    if not isinstance(things, dict):
        raise ValueError(f"no {kind}")
    return {str(key): _flat(value) for key, value in things.items() if isinstance(value, dict)}


def _flat(record: Mapping[str, Any]) -> Record:
    flat: Record = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat.update((f"{key}.{inner}", str(v)) for inner, v in value.items())
        else:
            flat[key] = str(value)
    return flat


def from_text(text: str) -> dict[str, Record]:
    """Read what `qstat -f` prints without -F: a headed paragraph each, long lines go on after a tab."""
    records: dict[str, Record] = {}
    record: Record = {}
    for line in text.replace("\n\t", "").splitlines():
        if heading := re.match(r"(Job Id|Queue|Server): (\S+)", line):
            record = records.setdefault(heading[2], {})
        elif field := re.match(r"    (\S+) = (.*)", line):
            record.setdefault(field[1], field[2])  # a value with line ends could fake a later field
    return records


def parts(text: str) -> list[str]:
    """What is joined by `+`."""
    return [part for part in text.split("+") if part]


def whole(text: str | None) -> int | None:
    """The whole number; None where there is none."""
    try:
        return None if text is None else int(float(text))
    except ValueError:
        return None


def gigabytes(text: str | None) -> float | None:
    """GB of a size such as `16gb`, which PBS counts in steps of 1024."""
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", text or "", re.IGNORECASE)
    if found is None:
        return None
    return round(int(found[1]) * 1024.0 ** " kmgt".index(found[2].lower() or " ") / 1e9, 3)


def seconds(text: str | None) -> float | None:
    """`HH:MM:SS`, `D:HH:MM:SS` or plain seconds.

    Example:
        >>> seconds("01:30:00"), seconds("30")
        (5400.0, 30.0)
    """
    try:
        numbers = [float(part) for part in (text or "").split(":")]
    except ValueError:
        return None
    return sum(number * unit for number, unit in zip(reversed(numbers), (1, 60, 3600, 86400), strict=False))


def unix_time(text: str | None) -> float | None:
    """Unix time of `Fri Nov 20 17:22:18 2026`, in this machine's time zone; strptime would ask the locale."""
    found = re.fullmatch(rf"\w+ +({_MONTHS}) +(\d+) (\d+):(\d+):(\d+) (\d+)", text or "")
    if found is None:
        return None
    day, hour, minute, second, year = (int(found[i]) for i in range(2, 7))
    return time.mktime((year, _MONTHS.index(found[1]) // 4 + 1, day, hour, minute, second, 0, 0, -1))
