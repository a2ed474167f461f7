"""Whether a run that is going on has its cores: processor time of its processes here, against wall time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["CpuUse"]

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class CpuUse:
    """Follows the processes that work in a directory, on this machine.

    Args:
        folder: The run's directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = os.path.realpath(folder)
        self._first: dict[int, float] = {}
        self._began = self._looked = 0.0
        self._last: dict[int, float] = {}

    def look(self) -> None:
        """Take the processor times of now."""
        found = {pid: cpu for pid in self._last if (cpu := _cpu_s(pid)) is not None}
        if not found:
            self._first = found = {
                pid: cpu for pid in _working_in(self._folder) if (cpu := _cpu_s(pid)) is not None
            }
            self._began = time.monotonic()
        self._last, self._looked = found, time.monotonic()

    def percent(self) -> float | None:
        """CPU use of a process since the first look, in %; of several the mean. None: not known.

        Those that hardly work (a launcher, a shell) do not count.
        """
        wall = self._looked - self._began
        used = [cpu - self._first[pid] for pid, cpu in self._last.items() if pid in self._first]
        if wall <= 0 or not used or max(used) < 10 * _TICK_S:
            return None
        working = [u for u in used if u > 0.1 * max(used)]
        return 100.0 * sum(working) / len(working) / wall


def _working_in(folder: str) -> Iterator[int]:
    try:
        names = os.listdir("/proc")  # noqa: PTH208  (a path for each process would cost more than the look)
    except OSError:
        return
    for name in names:
        try:
            if name.isdigit() and os.readlink(f"/proc/{name}/cwd") == folder:  # noqa: PTH115
                yield int(name)
        except OSError:
            continue


def _cpu_s(pid: int) -> float | None:
    """User and system time of a process, in seconds."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_S
    except (OSError, ValueError, IndexError):
        return None
