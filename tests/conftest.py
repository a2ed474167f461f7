"""Slow tests run last, so that what breaks often breaks early."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

from hpcagent import beside


def pytest_configure() -> None:
    # Started in the background by a script, this process and its children would ignore Ctrl-C, which is tested.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.fixture(autouse=True)
def _path() -> Iterator[None]:
    """The shell's commands put the working directory last, here and for workers: another `tests` would go before ours."""
    folder, lists = beside._Folder, (sys.path, sys.path_hooks, sys.meta_path)
    before = [one.copy() for one in lists]
    state = folder.path, folder.guarded, folder.problem
    yield
    for one, was in zip(lists, before, strict=True):
        one[:] = was
    folder.path, folder.guarded, folder.problem = state
