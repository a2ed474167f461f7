"""What the tests of several sciences have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hpcagent.apps.run import Outcome, Run


@pytest.fixture
def no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines compute in this process, one after another: most of their time in processes of their own is for imports.

    For calculators that do not crash; the processes have tests of their own (tests/unit/science/engines/test_isolated.py).
    """
    turn = threading.Lock()

    def called(function: Callable[..., Outcome], run: Run, params: Mapping[str, Any]) -> Outcome:
        with turn:
            return function(run=run, **params)

    monkeypatch.setattr("hpcagent.science.engines.isolated.in_child", called)
