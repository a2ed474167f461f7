"""Tiers of the sandbox: limits without bubblewrap on the PATH, and bubblewrap where the machine has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcagent.apps.sandbox.tiers import tiers


@pytest.fixture(scope="session")
def path_without_bubblewrap(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH on which no bwrap is, and all else: where it lies among others, a folder of links to these."""
    folders = []
    for folder in map(Path, os.environ["PATH"].split(":")):
        if (folder / "bwrap").exists():
            links = tmp_path_factory.mktemp("bin")
            for program in folder.iterdir():
                if program.name != "bwrap":
                    (links / program.name).symlink_to(program)
            folder = links
        folders.append(str(folder))
    return ":".join(folders)


@pytest.fixture
def without_bubblewrap(path_without_bubblewrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without bubblewrap."""
    monkeypatch.setenv("PATH", path_without_bubblewrap)


@pytest.fixture
def with_bubblewrap() -> None:
    """Skips where bubblewrap does not work."""
    state = tiers()[1]
    if not state.available:
        pytest.skip(state.why)


@pytest.fixture(params=["limits", "bubblewrap"])
def tier(request: pytest.FixtureRequest) -> str:
    """Both tiers, one after the other."""
    request.getfixturevalue("without_bubblewrap" if request.param == "limits" else "with_bubblewrap")
    return str(request.param)
