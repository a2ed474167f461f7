"""Which tests take long: their CPU time with that of their processes, which other work on the machine changes little."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

__all__ = ["LIST", "Times", "function_of", "long_ones"]

LIST = Path(__file__).resolve().parent / "long.txt"
"""The test functions that take long; `make check` is without them. Written by `python tests/in_lanes.py --times`."""

# Seconds of CPU of one test; all that take less are two minutes on two cores.
LONG_S = 0.1


def function_of(nodeid: str) -> str:
    """The name of a test without its parameters.

    Example:
        >>> function_of("tests/unit/test_a.py::TestB::test_c[1-x::y]")
        'tests/unit/test_a.py::TestB::test_c'
    """
    return nodeid.partition("[")[0]


class Times:
    """Writes the CPU seconds of each test of this process into a file of its own in the folder.

    Args:
        folder: Where.
        beside: CPU seconds so far of what tests start by another process than this one.
    """

    def __init__(self, folder: Path, beside: Callable[[], float] = lambda: 0.0) -> None:
        self.folder, self._beside = folder, beside

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = sum(os.times()[:4]) + self._beside()
        done = yield
        with (self.folder / f"{os.getpid()}.times").open("a") as file:
            file.write(f"{sum(os.times()[:4]) + self._beside() - before:.3f} {function_of(item.nodeid)}\n")
        return done


def long_ones(folder: Path) -> list[str]:
    """The functions of which a test took longer than LONG_S on average, in the files of a folder."""
    found: dict[str, list[float]] = defaultdict(list)
    for file in folder.glob("*.times"):
        for line in file.read_text().splitlines():
            seconds, _, name = line.partition(" ")
            found[name].append(float(seconds))
    return sorted(name for name, seconds in found.items() if sum(seconds) / len(seconds) > LONG_S)
