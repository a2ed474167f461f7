"""A file is opened as what it is, or it is said why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcagent.apps.printed import reading
from hpcagent.errors import AppFailed
from hpcagent.science.lammps.frames import Reading
from hpcagent.science.lammps.trajectory import open_trajectory
from tests.unit.science.lammps.upstream import upstream


def test_what_is_no_trajectory_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    cases = {
        "BadTrajectory": upstream(tmp_path, "a.txt"),
        "MissingFile": upstream(tmp_path, "b.txt"),
        "NoTrajectory": {"workdir": str(tmp_path), "artifacts": {"log": "x"}},
    }
    for name, run in cases.items():
        with pytest.raises(AppFailed) as failed:
            open_trajectory(run)
        assert failed.value.name == name


def test_a_frame_without_end_is_refused_and_not_read_into_memory(tmp_path: Path) -> None:
    head = "ITEM: TIMESTEP\n0\nITEM: NUMBER OF ATOMS\n1\nITEM: BOX BOUNDS pp pp pp\n0 1\n0 1\n0 1\nITEM: ATOMS id x y z\n"
    later = head.replace("TIMESTEP\n0", "TIMESTEP\n10")
    (tmp_path / "a.dump").write_text(f"{head}{'1 0.5 0.5 0.5' * 1000}\n{later}1 0.5 0.5 0.5\n")
    (tmp_path / "a.xyz").write_text("1\n" + "x" * 2_000_000)
    with reading({"max_read_mb": 0.005}), pytest.raises(AppFailed, match=r"frame 0 has more than the 0\.005 MB"):
        open_trajectory(upstream(tmp_path, "a.dump"), Reading(units="metal", timestep=0.001)).read(0)
    with pytest.raises(AppFailed, match="a line in frame 1 has more than 1,048,576 bytes"):
        open_trajectory(upstream(tmp_path, "a.xyz"))
