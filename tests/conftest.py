"""Slow tests run last, so that what breaks often breaks early."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest


def pytest_configure() -> None:
    # Started in the background by a script, this process and its children would ignore Ctrl-C, which is tested.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.fixture(autouse=True)
def _path() -> Iterator[None]:
    """The shell's commands put the working directory last: then a package `tests` of another would go before this."""
    before = sys.path.copy()
    yield
    sys.path[:] = before
