"""H5MD as MDAnalysis writes it, and with what it passes over."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from hpcagent.science.lammps.frames import Reading
from hpcagent.science.lammps.trajectory import open_trajectory
from tests.unit.science.lammps.upstream import upstream


def test_h5md_as_mdanalysis_writes_it(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import MDAnalysis

    rng = np.random.default_rng(1)
    positions = rng.uniform(0, 10, (3, 5, 3)).astype(np.float32)
    velocities = rng.normal(size=(3, 5, 3)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe = MDAnalysis.Universe.empty(5, trajectory=True, velocities=True)
        units = {"lengthunit": "nm", "timeunit": "ps", "velocityunit": "nm/ps"}
        with MDAnalysis.Writer(str(tmp_path / "md.h5md"), n_atoms=5, **units) as writer:
            for i in range(3):
                universe.atoms.positions = positions[i]
                universe.atoms.velocities = velocities[i]
                universe.trajectory.ts.dimensions = [10, 11, 12, 90, 90, 90]
                universe.trajectory.ts.time = 0.5 * i
                universe.trajectory.ts.frame = i
                writer.write(universe)
    trajectory = open_trajectory(upstream(tmp_path, "md.h5md"), Reading(species="Ar"))
    assert trajectory.times_ps == pytest.approx([0.0, 0.5, 1.0])
    frame = trajectory.read(2)
    assert frame.positions == pytest.approx(positions[2], rel=1e-6) and frame.velocities == pytest.approx(
        velocities[2]
    )
    assert frame.cell == pytest.approx(np.diag([10.0, 11.0, 12.0])) and frame.pbc == (True, True, True)


def test_h5md_with_images_species_and_ids(tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "md.h5", "w") as file:
        group = file.create_group("particles/all")
        group["position/value"] = np.array([[[1.0, 0, 0], [0.2, 0, 0]]])
        group["position/value"].attrs["unit"] = "nm"
        group["position/step"] = np.array([7])
        group["position/time"] = np.array([7.0])
        group["position/time"].attrs["unit"] = "fs"
        group["image/value"] = np.array([[[0, 0, 0], [1, 0, 0]]])
        group["id/value"] = np.array([[2, 1]])
        kinds = h5py.enum_dtype({"Na": 0, "Cl": 1}, basetype="i")
        group.create_dataset("species", data=np.array([0, 1]), dtype=kinds)
        group.create_group("box").attrs["boundary"] = np.array([b"periodic"] * 3)
        group["box/edges"] = np.array([2.0, 2.0, 2.0])
    frame = open_trajectory(upstream(tmp_path, "md.h5")).read(0)
    assert frame.positions == pytest.approx(np.array([[22.0, 0, 0], [10.0, 0, 0]]))
    assert frame.species.tolist() == ["Cl", "Na"] and frame.time_ps == pytest.approx(0.007)
    assert frame.unwrapped and frame.step == 7 and frame.volume == pytest.approx(8000.0)
