"""One set of tests over several pytest processes: each takes the next one that no other has taken.

The tests are collected once, and forks of that process run them. Each claims what it runs next with a file in a folder
that they share; so nothing is dealt out beforehand, and none waits while another has work left.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

__all__ = ["CODE", "OUTPUT", "PID", "Claims", "Forks", "register", "together"]

# In the folder of a process: its number, its exit code, and the FIFO that it prints to.
PID, CODE, OUTPUT = "pid", "code", "out"

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
        *("fake_pbs", "the_rig", "the_browser", "lammps", "killed_log", "quad", "gpaw", "pwx"),
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


class Forks:
    """The process that has collected the tests: it runs none, but begins the processes that do, which are forks of it.

    Args:
        asked: A file descriptor from which it reads the folders of those that are to begin, a line each. When nobody
            can ask any more it waits for them, and ends.
    """

    def __init__(self, asked: int) -> None:
        self.asked = asked

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """In a fork pytest goes on as if it were alone; here it does not return."""
        sys.stdout.flush()
        sys.stderr.flush()
        began: dict[int, Path] = {}
        text, may_ask = b"", True
        while may_ask or began:
            if may_ask and select.select([self.asked], [], [], 0.1)[0]:
                data = os.read(self.asked, 4096)
                may_ask = bool(data)
                *lines, text = (text + data).split(b"\n")
                for line in lines:
                    folder = Path(line.decode())
                    child = os.fork()
                    if child == 0:
                        os.close(self.asked)
                        _become(session.config, folder)
                        return
                    began[child] = folder
                    _write(folder / PID, child)
            elif not may_ask:
                time.sleep(0.1)
            while began and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if (folder_of := began.pop(ended[0], None)) is not None:
                    _write(folder_of / CODE, os.waitstatus_to_exitcode(ended[1]))
        os._exit(0)


def _become(config: pytest.Config, folder: Path) -> None:
    """In a fork: print to its own FIFO, and have a cache and temporary files of its own."""
    printed = os.fstat(1)
    out = os.open(folder / OUTPUT, os.O_WRONLY)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers; pytest has copies of 1 and 2 for its captures
        with contextlib.suppress(OSError):
            about = os.fstat(int(name))
            if (about.st_dev, about.st_ino) == (printed.st_dev, printed.st_ino):
                os.dup2(out, int(name), inheritable=os.get_inheritable(int(name)))
    os.close(out)
    config._tmp_path_factory._given_basetemp = folder / "tmp"  # type: ignore[attr-defined]
    config.cache._cachedir = folder / "cache"  # type: ignore[union-attr]


def _write(path: Path, number: int) -> None:
    """Whole or not at all, for who waits for it."""
    part = path.with_suffix(".part")
    part.write_text(str(number))
    part.rename(path)


def register(config: pytest.Config) -> None:
    """What this pytest does for `tests/in_lanes.py`, as its environment says; not for a pytest that a test starts."""
    shared = os.environ.pop("HPCAGENT_TESTS_SHARED", "")
    forks = os.environ.pop("HPCAGENT_TESTS_FORKS", "")
    if shared:
        config.pluginmanager.register(Claims(Path(shared)))
    if forks:
        config.pluginmanager.register(Forks(int(forks)))
