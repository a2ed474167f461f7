"""Dumps as LAMMPS writes them."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcagent.errors import AppFailed
from hpcagent.science.lammps.frames import Reading
from hpcagent.science.lammps.trajectory import open_trajectory
from tests.unit.science.lammps.upstream import upstream

LMP = Path(sys.executable).parent / "lmp"

SCRIPT = """
units {units}
atom_style atomic
lattice custom {a} a1 3 0 0 a2 0.6 3 0 a3 -0.3 -0.4 3 basis 0 0 0 basis 0.5 0.5 0 basis 0.5 0 0.5 basis 0 0.5 0.5
region box prism -0.4 2.6 -0.2 2.8 0.1 3.1 0.6 -0.3 -0.4 units lattice
create_box 2 box
create_atoms 1 box
displace_atoms all move 7 -9 5 units box
set type 1 type/ratio 2 0.5 5
mass 1 39.948
mass 2 83.798
pair_style lj/cut {cut}
pair_coeff * * {epsilon} 3.4
velocity all create 90 4928459 mom yes
timestep {step}
fix 1 all nve
dump plain all custom 5 plain.dump vx y x z id vy vz type
dump unwrapped all custom 5 unwrapped.dump id element xu yu zu
dump_modify unwrapped element Ar Kr sort id
dump scaled all custom 5 scaled.dump id type xs ys zs ix iy iz
dump both all custom 5 scaled_unwrapped.dump id type xsu ysu zsu mass
dump said all custom 5 said.dump id type x y z
dump_modify said units yes time yes
thermo 5
run 20
"""
METAL = {"units": "metal", "a": 1.9, "cut": 5.0, "epsilon": 0.0104, "step": 0.002}
REAL = {"units": "real", "a": 1.9, "cut": 5.0, "epsilon": 0.239, "step": 2.0}


def lammps(folder: Path, **values: Any) -> None:
    (folder / "in.lmp").write_text(SCRIPT.format(**values))
    words = [str(LMP), "-in", "in.lmp", "-log", "log.lammps", "-screen", "none"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    if not LMP.exists():
        pytest.skip("no LAMMPS in this environment")
    folders = {}
    for name, values in (("metal", METAL), ("real", REAL)):
        folders[name] = tmp_path_factory.mktemp(name)
        lammps(folders[name], **values)
    return folders


def test_every_way_lammps_writes_positions_gives_the_same_atoms(runs: dict[str, Path]) -> None:
    folder = runs["metal"]
    read = {
        name: list(open_trajectory(upstream(folder, f"{name}.dump", log="log.lammps")).frames())
        for name in ("plain", "unwrapped", "scaled", "scaled_unwrapped")
    }
    for frames in zip(*read.values(), strict=True):
        inverse = np.linalg.inv(frames[0].cell)
        for frame in frames:
            assert np.allclose(frame.cell, frames[0].cell)
            apart = (frame.positions - frames[1].positions) @ inverse
            # xs has five digits.
            assert np.abs(apart - np.rint(apart)).max() < 1e-4
        assert np.abs(frames[2].positions - frames[1].positions).max() < 1e-3  # images taken into account
        assert frames[1].unwrapped and frames[2].unwrapped and frames[3].unwrapped and not frames[0].unwrapped
    assert [f.step for f in read["plain"]] == [0, 5, 10, 15, 20]
    assert [f.time_ps for f in read["plain"]] == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04])
    assert set(read["unwrapped"][0].species) == {"Ar", "Kr"}
    assert read["scaled_unwrapped"][0].masses[:3] == pytest.approx(read["unwrapped"][0].masses[:3], rel=1e-3)


def test_a_tilted_cell_is_the_one_that_ase_reads(runs: dict[str, Path]) -> None:
    import ase.io

    atoms = ase.io.read(runs["metal"] / "plain.dump", index=2, format="lammps-dump-text")
    frame = open_trajectory(upstream(runs["metal"], "plain.dump", log="log.lammps")).read(2)
    assert np.allclose(frame.cell, atoms.cell[:])
    apart = (frame.positions - atoms.positions) @ np.linalg.inv(frame.cell)
    apart -= apart[0]  # ASE may keep the origin of the box
    assert np.abs(apart - np.rint(apart)).max() < 1e-6
    assert frame.volume == pytest.approx(atoms.get_volume())
    lengths = atoms.cell.reciprocal().lengths()
    assert frame.heights == pytest.approx(1 / lengths)


def test_velocities_and_times_of_metal_and_real_are_in_the_same_units(runs: dict[str, Path]) -> None:
    metal, real = (open_trajectory(upstream(runs[n], "plain.dump", log="log.lammps")) for n in ("metal", "real"))
    # The same lattice, temperature and random numbers: LAMMPS draws the same velocities in either unit.
    assert metal.read(0).velocities == pytest.approx(real.read(0).velocities, rel=1e-4, abs=1e-5)
    assert metal.times_ps == pytest.approx(real.times_ps)
    masses = np.where(metal.read(0).species == "1", 39.948, 83.798)
    kinetic = 10 * (masses @ (metal.read(0).velocities ** 2).sum(axis=1))
    assert kinetic / (3 * len(masses) - 3) / 8.314462618 == pytest.approx(90.0, rel=1e-3)


def test_a_dump_that_says_its_units_and_times_needs_no_log(runs: dict[str, Path]) -> None:
    trajectory = open_trajectory(upstream(runs["real"], "said.dump"))
    assert trajectory.times_ps == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04])
    with pytest.raises(AppFailed) as failed:
        open_trajectory(upstream(runs["real"], "plain.dump"))
    assert failed.value.name == "NoUnits"
    trajectory = open_trajectory(upstream(runs["real"], "plain.dump"), Reading(units="real"))
    assert len(trajectory) == 5
    with pytest.raises(AppFailed) as failed:
        trajectory.times_ps
    assert failed.value.name == "NoTimes" and "timestep" in failed.value.repair


def test_the_user_may_say_what_the_run_does_not(runs: dict[str, Path]) -> None:
    reading = Reading(units="real", timestep=0.004, species="Ar Kr")
    trajectory = open_trajectory(upstream(runs["real"], "plain.dump"), reading)
    assert trajectory.times_ps[-1] == pytest.approx(0.08)
    assert set(trajectory.read(0).species) == {"Ar", "Kr"}
    with pytest.raises(AppFailed, match="type 2"):
        open_trajectory(upstream(runs["real"], "plain.dump"), Reading(units="real", species="Ar")).read(0)


def test_frames_are_read_in_any_order(runs: dict[str, Path]) -> None:
    trajectory = open_trajectory(upstream(runs["metal"], "plain.dump", log="log.lammps"))
    forward = [frame.positions for frame in trajectory.frames()]
    backward = [frame.positions for frame in trajectory.frames([4, 3, 2, 1, 0])]
    assert all(np.array_equal(a, b) for a, b in zip(forward, backward[::-1], strict=True))


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.98, 0.9999])
def test_a_last_frame_that_was_cut_is_left_out_with_a_note(
    runs: dict[str, Path], tmp_path: Path, share: float
) -> None:
    text = (runs["metal"] / "plain.dump").read_bytes()
    last = text.rindex(b"ITEM: TIMESTEP")
    (tmp_path / "cut.dump").write_bytes(text[: last + int(share * (len(text) - last))])
    trajectory = open_trajectory(upstream(tmp_path, "cut.dump"), Reading(units="metal"))
    assert trajectory.steps.tolist() == [0, 5, 10, 15]
    assert share < 0.1 or "step 20" in trajectory.notes[0]


def test_nothing_but_a_cut_frame_is_too_few_frames(runs: dict[str, Path], tmp_path: Path) -> None:
    text = (runs["metal"] / "plain.dump").read_bytes()
    for size in (0, 5, 300):
        (tmp_path / "cut.dump").write_bytes(text[:size])
        with pytest.raises(AppFailed) as failed:
            open_trajectory(upstream(tmp_path, "cut.dump"), Reading(units="metal"))
        assert failed.value.name == "TooFewFrames"


def test_a_dump_in_gzip_and_one_continued_after_a_restart(runs: dict[str, Path], tmp_path: Path) -> None:
    text = (runs["metal"] / "plain.dump").read_bytes()
    middle = text.index(b"ITEM: TIMESTEP\n10\n")
    with gzip.open(tmp_path / "again.dump.gz", "wb") as file:
        file.write(text + text[middle:])
    trajectory = open_trajectory(upstream(tmp_path, "again.dump.gz"), Reading(units="metal"))
    assert trajectory.steps.tolist() == [0, 5, 10, 15, 20]
    assert "3 frames" in trajectory.notes[0]
    plain = open_trajectory(upstream(runs["metal"], "plain.dump"), Reading(units="metal"))
    assert np.array_equal(trajectory.read(3).positions, plain.read(3).positions)


def test_a_frame_is_found_wherever_the_pieces_of_the_file_end(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcagent.science.lammps import dump as module

    path = runs["metal"] / "plain.dump"
    text = path.read_bytes()
    true = [i for i in range(len(text)) if text.startswith(b"ITEM: TIMESTEP", i)]
    for size in (1, 63, 64, 65, 66, 1000, 1777):
        monkeypatch.setattr(module, "_CHUNK", size)
        offsets, steps = module._dump_index(path)
        assert offsets.tolist() == true and steps.tolist() == [0, 5, 10, 15, 20]


def test_a_dump_in_reduced_units_is_refused(tmp_path: Path) -> None:
    header = "ITEM: UNITS\nlj\nITEM: TIMESTEP\n0\nITEM: NUMBER OF ATOMS\n1\nITEM: BOX BOUNDS pp pp pp\n"
    (tmp_path / "a.dump").write_text(header + "0 1\n0 1\n0 1\nITEM: ATOMS id x y z\n1 0 0 0\n")
    with pytest.raises(AppFailed) as failed:
        open_trajectory(upstream(tmp_path, "a.dump"))
    assert failed.value.name == "ReducedUnits"


def test_a_broken_line_within_is_a_bad_trajectory(runs: dict[str, Path], tmp_path: Path) -> None:
    text = (runs["metal"] / "plain.dump").read_text()
    middle = text.index("ITEM: TIMESTEP\n10\n")
    lines = text[:middle].splitlines(keepends=True)
    (tmp_path / "broken.dump").write_text("".join(lines[:-1]) + text[middle:])
    trajectory = open_trajectory(upstream(tmp_path, "broken.dump"), Reading(units="metal"))
    with pytest.raises(AppFailed, match="rows for") as failed:
        list(trajectory.frames())
    assert failed.value.name == "BadTrajectory"


def test_a_general_triclinic_box_keeps_its_orientation(tmp_path: Path) -> None:
    # As LAMMPS writes it with `dump_modify triclinic/general yes`.
    (tmp_path / "a.dump").write_text(
        "ITEM: UNITS\nmetal\nITEM: TIMESTEP\n0\nITEM: NUMBER OF ATOMS\n1\n"
        "ITEM: BOX BOUNDS abc origin pp pp ff\n0 4 0 1\n5 0 0 2\n0 0 6 3\nITEM: ATOMS id xs ys zs\n1 0.5 0.5 0.5\n"
    )
    frame = open_trajectory(upstream(tmp_path, "a.dump")).read(0)
    assert frame.cell.tolist() == [[0, 4, 0], [5, 0, 0], [0, 0, 6]] and frame.pbc == (True, True, False)
    assert frame.positions == pytest.approx(np.array([[3.5, 4.0, 6.0]]))
