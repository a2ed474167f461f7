"""The tiers: limits without bubblewrap on the PATH, and bubblewrap where the machine has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcagent.apps.sandbox.tiers import tiers


@pytest.fixture
def without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH on which no bwrap is, and all else."""
    kept = [one for one in os.environ["PATH"].split(":") if not (Path(one) / "bwrap").exists()]
    if not any((Path(one) / "sh").exists() for one in kept):
        pytest.skip("bwrap lies beside the shell")
    monkeypatch.setenv("PATH", ":".join(kept))


@pytest.fixture
def with_bubblewrap() -> None:
    """Skips where bubblewrap does not work."""
    state = tiers()[1]
    if not state.available:
        pytest.skip(state.why)
