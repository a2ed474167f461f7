"""Trajectories that ASE wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcagent.errors import AppFailed
from hpcagent.science.lammps.trajectory import open_trajectory
from tests.unit.science.lammps.upstream import upstream


def moving_atoms() -> list[Any]:
    from ase import Atoms

    rng = np.random.default_rng(3)
    frames = []
    for _ in range(4):
        atoms = Atoms("NaCl", positions=rng.uniform(0, 5, (2, 3)), cell=[5, 6, 7], pbc=[True, True, False])
        atoms.set_velocities(rng.normal(size=(2, 3)))
        frames.append(atoms)
    return frames


@pytest.mark.parametrize("name", ["md.traj", "md.xyz"])
def test_frames_of_ase_are_those_that_were_written(tmp_path: Path, name: str) -> None:
    import ase.io
    from ase import units

    frames = moving_atoms()
    ase.io.write(tmp_path / name, frames)
    (tmp_path / "md.json").write_text('{"timestep_fs": 0.5, "frames_every": 10, "ensemble": "nve"}')
    trajectory = open_trajectory(upstream(tmp_path, name, protocol="md.json"))
    for number in (3, 0, 2):
        frame = trajectory.read(number)
        assert frame.positions == pytest.approx(frames[number].positions, abs=1e-7)
        assert frame.pbc == (True, True, False) and frame.species.tolist() == ["Na", "Cl"]
        # ASE's unit of velocity is sqrt(eV/u); an angstrom in a picosecond is 1e-3 angstrom/fs.
        per_fs = frames[number].get_velocities() * units.fs
        assert frame.velocities == pytest.approx(1000 * per_fs, rel=1e-6)
    assert trajectory.times_ps == pytest.approx([0.0, 0.005, 0.01, 0.015])
    trajectory.close()
    (tmp_path / "md.json").unlink()
    with pytest.raises(AppFailed) as failed:
        with open_trajectory(upstream(tmp_path, name)) as trajectory:
            trajectory.times_ps
    assert failed.value.name == "NoTimes"


def test_an_extended_xyz_file_that_was_cut_ends_with_its_last_whole_frame(tmp_path: Path) -> None:
    import ase.io

    ase.io.write(tmp_path / "md.xyz", moving_atoms())
    text = (tmp_path / "md.xyz").read_text()
    (tmp_path / "md.xyz").write_text(text[:-20])
    trajectory = open_trajectory(upstream(tmp_path, "md.xyz"))
    assert len(trajectory) == 3 and "not complete" in trajectory.notes[0]
