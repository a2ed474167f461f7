"""Trajectories as LAMMPS, ASE and MDAnalysis write them, read here and by their own readers."""

from __future__ import annotations

import gzip
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from hpcagent.apps.printed import reading
from hpcagent.errors import AppFailed
from hpcagent.science.analysis.msd import msd
from hpcagent.science.lammps.trajectory import Reading, open_trajectory
from tests.unit.science.analysis.trajectories import run_of

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


def upstream(folder: Path, trajectory: str, **artifacts: str) -> dict[str, Any]:
    return {"status": "COMPLETED", "workdir": str(folder), "artifacts": {"trajectory": trajectory, **artifacts}}


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
    from hpcagent.science.lammps import trajectory as module

    path = runs["metal"] / "plain.dump"
    text = path.read_bytes()
    true = [i for i in range(len(text)) if text.startswith(b"ITEM: TIMESTEP", i)]
    for size in (1, 63, 64, 65, 66, 1000, 1777):
        monkeypatch.setattr(module, "_CHUNK", size)
        offsets, steps = module._dump_index(path)
        assert offsets.tolist() == true and steps.tolist() == [0, 5, 10, 15, 20]


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


def test_a_general_triclinic_box_keeps_its_orientation(tmp_path: Path) -> None:
    # As LAMMPS writes it with `dump_modify triclinic/general yes`.
    (tmp_path / "a.dump").write_text(
        "ITEM: UNITS\nmetal\nITEM: TIMESTEP\n0\nITEM: NUMBER OF ATOMS\n1\n"
        "ITEM: BOX BOUNDS abc origin pp pp ff\n0 4 0 1\n5 0 0 2\n0 0 6 3\nITEM: ATOMS id xs ys zs\n1 0.5 0.5 0.5\n"
    )
    frame = open_trajectory(upstream(tmp_path, "a.dump")).read(0)
    assert frame.cell.tolist() == [[0, 4, 0], [5, 0, 0], [0, 0, 6]] and frame.pbc == (True, True, False)
    assert frame.positions == pytest.approx(np.array([[3.5, 4.0, 6.0]]))


def leg(first: int, steps: int, timestep: float, every: int = 10) -> str:
    rows = "".join(f"{step:10d}   100            \n" for step in range(first, first + steps + 1, every))
    return f"timestep {timestep}\nrun {steps}\n      Step          Temp     \n{rows}Loop time of 1 on 1 procs for {steps} steps with 2 atoms\n"


@pytest.mark.parametrize(
    ("legs", "first", "last", "expected"),
    [
        ([(0, 100, 1.0), (100, 100, 2.0)], 100, 200, 2.0),
        ([(0, 100, 1.0), (100, 100, 2.0)], 0, 100, 1.0),
        ([(0, 100, 1.0), (100, 100, 2.0)], 50, 200, None),
        ([(0, 100, 1.0), (100, 100, 2.0), (200, 100, 2.0)], 100, 300, 2.0),
        ([(0, 100, 1.0), (0, 100, 2.0)], 0, 100, 2.0),  # counted anew
        ([(0, 100, 1.0), (0, 100, 2.0)], 0, 200, None),
        ([(0, 100, 1.0)], 70, 70, 1.0),
    ],
)
def test_the_timestep_is_that_of_the_runs_that_made_the_frames(
    legs: list[tuple[int, int, float]], first: int, last: int, expected: float | None
) -> None:
    from hpcagent.science.lammps.log import parse_log
    from hpcagent.science.lammps.trajectory import _timestep_of_log

    text = "units real\nthermo_style custom step temp\nthermo 10\n" + "".join(leg(*each) for each in legs)
    log = parse_log(text)
    assert [r.timestep for r in log.runs] == [each[2] for each in legs]
    assert _timestep_of_log(log, first, last) == expected


BINARY = """units {units}
lattice fcc 5.3
region b prism 0 4 0 4 0 4 {tilt}
create_box 1 b
create_atoms 1 box
mass 1 39.948
pair_style lj/cut 7.5
pair_coeff 1 1 {eps} 3.405
velocity all create 100 1234
fix 1 all npt temp 80 80 {damp} iso 0 0 {pdamp}
timestep {dt}
dump 1 all custom 20 a.dump id element x y z
dump_modify 1 sort id element Ar format float %.10g
dump 2 all dcd 20 a.dcd
dump 3 all xtc 20 a.xtc
run 400
run 400
"""


@pytest.mark.skipif(not LMP.exists(), reason="no LAMMPS in this environment")
@pytest.mark.parametrize(
    "kind",
    [
        {"units": "real", "tilt": "0 0 0", "eps": 0.238, "dt": 2, "damp": 100, "pdamp": 1000},
        {"units": "metal", "tilt": "1 0.5 -1", "eps": 0.0103, "dt": 0.002, "damp": 0.1, "pdamp": 1},
    ],
)
def test_dcd_and_xtc_are_the_dump_of_the_same_run(tmp_path: Path, kind: dict[str, object]) -> None:
    pytest.importorskip("MDAnalysis")
    (tmp_path / "in.lmp").write_text(BINARY.format(**kind))
    words = [str(LMP), "-in", "in.lmp", "-log", "log.lammps", "-screen", "none"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=120)

    def opened(name: str):
        before = upstream(tmp_path, name, log="log.lammps")
        return open_trajectory(before, Reading(species="Ar"))

    with opened("a.dump") as dump_, opened("a.dcd") as dcd, opened("a.xtc") as xtc:
        for file, near in ((dcd, 2e-5), (xtc, 0.006)):
            assert len(file) == len(dump_) == 41
            assert file.steps.tolist() == dump_.steps.tolist()
            assert file.times_ps == pytest.approx(0.002 * file.steps)
            for number in (0, 7, 40, 3):
                ours, theirs = file.read(number), dump_.read(number)
                assert np.abs(ours.positions - theirs.positions).max() < near
                assert ours.cell == pytest.approx(theirs.cell, abs=1e-4)
                assert ours.pbc == (True, True, True) and set(ours.species) == {"Ar"}
                assert ours.masses is not None and ours.masses[0] == pytest.approx(39.948, abs=1e-3)
    moved = {
        name: msd.plain_function(
            run=run_of(tmp_path, upstream(tmp_path, name, log="log.lammps")),
            **{"fit_start": 0.0, "fit_end": 0.0, "a": "", "viscosity": 0.0, "temperature": 0.0, "ranks": 1},
            **{"discard": 0.0, "every": 1, "timestep": 0.0, "units": "auto", "species": "Ar"},
        ).metrics["msd_at_end"]
        for name in ("a.dump", "a.dcd", "a.xtc")
    }
    assert moved["a.dcd"] == pytest.approx(moved["a.dump"], rel=1e-4)
    assert moved["a.xtc"] == pytest.approx(moved["a.dump"], rel=0.01, abs=1e-3)


def test_what_a_dcd_does_not_say_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libdcd = pytest.importorskip("MDAnalysis.lib.formats.libdcd")
    positions = np.random.default_rng(1).uniform(0, 10, (4, 3, 3)).astype(np.float32)
    for name, remarks in (("lammps.dcd", "Written by LAMMPS"), ("namd.dcd", "by NAMD")):
        with libdcd.DCDFile(str(tmp_path / name), "w") as file:
            # 1 / 0.0488882129 units of AKMA time are 1 ps.
            file.write_header(remarks, 3, 100, 10, 1 / 0.0488882129, 1)
            for frame in positions:
                file.write(frame, [10.0, 90.0, 11.0, 90.0, 90.0, 12.0])
    with open_trajectory(upstream(tmp_path, "namd.dcd"), Reading()) as namd:
        assert namd.times_ps == pytest.approx([100, 110, 120, 130], rel=1e-5)
        assert namd.read(2).positions == pytest.approx(positions[2])
        assert np.diag(namd.read(0).cell) == pytest.approx([10, 11, 12])
    with pytest.raises(AppFailed) as failed:
        open_trajectory(upstream(tmp_path, "lammps.dcd"), Reading())
    assert failed.value.name == "NoUnits"
    with open_trajectory(upstream(tmp_path, "lammps.dcd"), Reading(units="metal", species="H O H")) as known:
        assert known.read(1).species.tolist() == ["H", "O", "H"]
        with pytest.raises(AppFailed, match="one timestep") as failed:
            _ = known.times_ps
    with pytest.raises(AppFailed, match="one element for all"):
        open_trajectory(upstream(tmp_path, "lammps.dcd"), Reading(units="metal", species="H O"))
    whole = (tmp_path / "namd.dcd").read_bytes()
    (tmp_path / "cut.dcd").write_bytes(whole[:-20])
    with open_trajectory(upstream(tmp_path, "cut.dcd"), Reading()) as cut:
        assert len(cut) == 3
    monkeypatch.setitem(sys.modules, "MDAnalysis.lib.formats.libdcd", None)
    with pytest.raises(AppFailed, match="not installed") as failed:
        open_trajectory(upstream(tmp_path, "namd.dcd"), Reading())
    assert (failed.value.name, failed.value.repair) == ("NoEngine", "pip install 'hpcagent[trajectories]'")


def test_a_frame_without_end_is_refused_and_not_read_into_memory(tmp_path: Path) -> None:
    head = "ITEM: TIMESTEP\n0\nITEM: NUMBER OF ATOMS\n1\nITEM: BOX BOUNDS pp pp pp\n0 1\n0 1\n0 1\nITEM: ATOMS id x y z\n"
    later = head.replace("TIMESTEP\n0", "TIMESTEP\n10")
    (tmp_path / "a.dump").write_text(f"{head}{'1 0.5 0.5 0.5' * 1000}\n{later}1 0.5 0.5 0.5\n")
    (tmp_path / "a.xyz").write_text("1\n" + "x" * 2_000_000)
    with reading({"max_read_mb": 0.005}), pytest.raises(AppFailed, match=r"frame 0 has more than the 0\.005 MB"):
        open_trajectory(upstream(tmp_path, "a.dump"), Reading(units="metal", timestep=0.001)).read(0)
    with pytest.raises(AppFailed, match="a line in frame 1 has more than 1,048,576 bytes"):
        open_trajectory(upstream(tmp_path, "a.xyz"))
