"""What LAMMPS says after a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpcagent.science.lammps.log import read_log

Lammps = Callable[..., Path]


def test_unchecked_dangerous_builds_are_unknown_not_zero(lammps: Lammps) -> None:
    checked, unchecked = read_log(lammps("run 20\nneigh_modify check no\nrun 20\n")).runs
    assert checked.dangerous_builds == 0
    assert unchecked.dangerous_builds is None
    assert unchecked.neighbor_builds == 20


def test_full_timers_add_a_column_that_is_not_taken_for_the_share(lammps: Lammps) -> None:
    run = read_log(lammps("timer full\nrun 100\n")).runs[0]
    assert sum(row.percent for row in run.timing.values()) == pytest.approx(100, abs=0.1)
