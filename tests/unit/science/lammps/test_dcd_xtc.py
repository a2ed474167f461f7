"""DCD and XTC against the dump of the same run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcagent.errors import AppFailed
from hpcagent.science.analysis.msd import msd
from hpcagent.science.lammps.frames import Reading
from hpcagent.science.lammps.trajectory import open_trajectory
from tests.unit.science.analysis.trajectories import run_of
from tests.unit.science.lammps.upstream import upstream

LMP = Path(sys.executable).parent / "lmp"


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
