"""The rig as a fixture: one broker and one service for all tests, endpoints that start when a task comes."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def _package() -> Any:
    """The package beside this file; the folder is not on sys.path."""
    if "loopback" not in sys.modules:
        spec = importlib.util.spec_from_file_location("loopback", HERE / "loopback" / "__init__.py")
        assert spec is not None and spec.loader is not None
        sys.modules["loopback"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["loopback"])
    return sys.modules["loopback"]


@pytest.fixture(scope="session")
def the_rig() -> Iterator[Any]:
    why_not = _package().reason_to_skip()
    if why_not:
        if os.environ.get("CI") == "true":
            pytest.fail(why_not)
        pytest.skip(why_not)
    with _package().Rig() as rig:
        yield rig


@pytest.fixture
def rig(the_rig: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The rig, with this process as its client; a test that leaves a task, a repeated result or a run there fails."""
    the_rig.lend(monkeypatch)
    yield the_rig
    the_rig.take_back()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.globus)
