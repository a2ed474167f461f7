"""Threads are kept whole, go on, and belong to somebody."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys

import pytest

import hpcagent as ha
from hpcagent.agents.threads import FILE, MOST_TURNS, Threads, Turn
from hpcagent.errors import Busy, Damaged, NotPermitted


def turn(n, size=10):
    return Turn(n, f"goal {n}", "x" * size, {"text": f"answer {n}"})


def test_turns_come_back_in_their_order_also_in_another_process(tmp_path):
    kept = Threads(tmp_path, "ada")
    for n in (1, 2):
        kept.add("study", turn(n))
    assert [one.goal for one in Threads(tmp_path, "ada").turns("study")] == ["goal 1", "goal 2"]
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


def test_two_who_add_the_same_turn_lose_nothing(tmp_path):
    kept = Threads(tmp_path, "ada")
    kept.add("study", turn(1))
    with pytest.raises(Busy, match="added by another"):
        kept.add("study", Turn(1, "other", "[]", {}))
    assert [one.goal for one in kept.turns("study")] == ["goal 1"]


def test_a_writer_that_is_killed_leaves_whole_turns(tmp_path):
    Threads(tmp_path, "ada").add("study", turn(1))
    code = (
        "import os, signal, sqlite3, sys\n"
        "base = sqlite3.connect(sys.argv[1])\n"
        "base.execute('BEGIN IMMEDIATE')\n"
        "base.execute(\"INSERT INTO turns VALUES ('study', 2, 0, 'half', '[', '{')\")\n"
        "base.execute('PRAGMA cache_spill = 1')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, os.fspath(tmp_path / FILE)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert [one.goal for one in Threads(tmp_path, "ada").turns("study")] == ["goal 1"]


def test_threads_of_others_are_not_read_and_not_listed(tmp_path):
    Threads(tmp_path, "ada").add("study", turn(1))
    bob = Threads(tmp_path, "bob")
    for call in (lambda: bob.turns("study"), lambda: bob.add("study", turn(2)), lambda: bob.forget("study")):
        with pytest.raises(NotPermitted, match="somebody else"):
            call()
    assert bob.list() == [] and bob.prune(0) == 0
    assert [one["thread"] for one in Threads(tmp_path, "ada").list()] == ["study"]


def test_old_threads_are_removed_and_long_ones_are_told_in_part(tmp_path):
    now = [0.0]
    kept = Threads(tmp_path, "ada", clock=lambda: now[0])
    kept.add("old", turn(1))
    now[0] = 100 * 86400.0
    for n in range(1, MOST_TURNS + 3):
        kept.add("long", turn(n))
    for n in (1, 2):
        kept.add("large", turn(n, 150_000))
    assert kept.prune() == 1 and kept.turns("old") == []
    assert kept.recent("long")[0].n == 3 and len(kept.turns("long")) == MOST_TURNS + 2
    assert [one.n for one in kept.recent("large")] == [2]
    assert kept.forget("long") == MOST_TURNS + 2 and kept.turns("long") == []
    base = sqlite3.connect(tmp_path / FILE)
    assert base.execute("SELECT COUNT(*) FROM turns WHERE thread IN ('old', 'long')").fetchone() == (0,)
    base.close()


@pytest.mark.parametrize("name", ["", "../x", "a b", "x" * 81, "-x", "a\n"])
def test_a_name_that_is_none_is_refused(tmp_path, name):
    with pytest.raises(ha.BadInput, match="no name of a thread"):
        Threads(tmp_path, "ada").turns(name)


def test_a_damaged_file_and_a_link_are_said(tmp_path):
    (tmp_path / FILE).write_bytes(b"no database, whatever it is" * 100)
    with pytest.raises(Damaged, match="is damaged"):
        Threads(tmp_path, "ada").turns("study")
    (tmp_path / FILE).unlink()
    (tmp_path / "other").write_bytes(b"")
    (tmp_path / FILE).symlink_to(tmp_path / "other")
    with pytest.raises(ha.BadInput, match="is a link"):
        Threads(tmp_path, "ada").turns("study")


def test_names_of_new_threads_are_names(tmp_path):
    kept = Threads(tmp_path, "ada")
    for _ in range(50):
        assert kept.turns(kept.new()) == []
