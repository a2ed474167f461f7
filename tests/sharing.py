"""One set of tests over several pytest processes: each takes the next one that no other has taken.

All processes collect the same tests in the same order, and claim each one with a file in a folder that they share; so
nothing is dealt out beforehand, and none waits while another has work left.
"""

from __future__ import annotations

import hashlib
import os
from itertools import pairwise
from pathlib import Path

import pytest

__all__ = ["Claims", "together"]

# Fixtures of a session that each process may have for itself: they start in seconds, or hardly cost anything.
OWN = frozenset(
    {
        *(
            "tmp_path_factory",
            "pytestconfig",
            "record_testsuite_property",
            "the_cluster",
            "the_accounting_cluster",
        ),
        *("fake_pbs", "the_rig", "lammps", "killed_log", "quad", "gpaw", "pwx"),
    }
)


def together(item: pytest.Item) -> str:
    """What one process runs: a test, or all that share a fixture which is made once (for a module, a class, a session)."""
    made: dict[str, str] = {}
    for name, definitions in getattr(item, "_fixtureinfo").name2fixturedefs.items():  # noqa: B009 - private to pytest
        if definitions and name not in OWN:
            made[definitions[-1].scope] = name
    if "session" in made or "package" in made:
        return made.get("session") or made["package"]
    if "module" in made:
        return item.nodeid.partition("::")[0]
    if "class" in made:
        return item.nodeid.rpartition("::")[0]
    return item.nodeid


class Claims:
    """What this process may run; `mine` claims it, and stays with its answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, bool] = {}

    def mine(self, item: pytest.Item) -> bool:
        """Whether this process runs the test: nobody else has it, nor one that goes with it."""
        key = together(item)
        if key not in self._known:
            self._known[key] = self._claim(hashlib.sha256(key.encode()).hexdigest())
        return self._known[key]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """pytest's own loop, over what is ours."""
        if session.testsfailed or session.config.option.collectonly:
            return None  # what could not be collected ends it; pytest says so
        for item, following in pairwise([*session.items, None]):
            assert item is not None
            if not self.mine(item):
                continue
            # Which test of ours comes next is open, unless it goes with this one: then all but the session's fixtures end.
            stays = following is not None and together(following) == together(item)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following if stays else session)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
        return True

    def _claim(self, name: str) -> bool:
        try:
            os.close(os.open(self.folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        return True
