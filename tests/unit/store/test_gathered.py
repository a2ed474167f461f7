"""The metrics of many runs in one HDF5 file: gathered, or written by all ranks where h5py was built with MPI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcagent.store import gathered
from hpcagent.store.gathered import open_gathered, read_gathered

PROGRAM = """
import importlib.util, json, sys

spec = importlib.util.spec_from_file_location("gathered", sys.argv[1])
gathered = importlib.util.module_from_spec(spec)
sys.modules["gathered"] = gathered
spec.loader.exec_module(gathered)
from mpi4py import MPI

comm = MPI.COMM_WORLD
file = gathered.open_gathered(sys.argv[2], {"energy": "eV", "speed": "1"}, 5, comm, ids=[f"run-{i}" for i in range(5)])
for index in range(comm.rank, 4, comm.size):  # nobody has the last one
    file.put(index, {"energy": index + 0.5} if index == 2 else {"energy": index + 0.5, "speed": 1e300 * comm.rank})
file.close()
assert "hpcagent" not in sys.modules or "--with" in sys.argv
if comm.rank == 0:
    print(json.dumps([comm.size, file.parallel]))
"""


def run(tmp_path: Path, *words: str, env: dict[str, str] | None = None) -> list[object]:
    (tmp_path / "program.py").write_text(PROGRAM)
    end = ["program.py", str(gathered.__file__), str(tmp_path / "metrics.h5"), "--with"]
    done = subprocess.run(
        [*words, *end], cwd=tmp_path, env=os.environ | (env or {}), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    said: list[object] = json.loads(done.stdout)
    return said


def check(path: Path) -> None:
    columns = read_gathered(path)
    assert columns["done"].tolist() == [True, True, True, True, False]
    assert columns["execution_id"].tolist() == [f"run-{i}" for i in range(5)]
    np.testing.assert_array_equal(columns["energy"], [0.5, 1.5, 2.5, 3.5, np.nan])
    np.testing.assert_array_equal(columns["speed"], [0.0, 1e300, np.nan, 1e300, np.nan])
    with h5py.File(path) as file:
        assert file["metrics/energy"].attrs["unit"] == "eV"
    assert not path.with_name("metrics.h5.part").exists()


def test_two_ranks_gather_their_rows(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    hydra = Path(sys.prefix) / "bin" / "mpiexec.hydra"
    if not hydra.exists():
        pytest.skip("MPICH is not installed")
    said = run(tmp_path, str(hydra), "-launcher", "fork", "-n", "2", sys.executable)
    assert said == [2, bool(h5py.get_config().mpi)]
    check(tmp_path / "metrics.h5")


@pytest.mark.mpi
def test_two_ranks_of_open_mpi_write_in_parallel_with_the_systems_h5py(tmp_path: Path) -> None:
    python, mpirun = Path("/usr/bin/python3"), Path("/usr/bin/mpirun.openmpi")
    if not (python.exists() and mpirun.exists()):
        pytest.skip("no Open MPI of the system")
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PYTHONPATH": ""}
    words = f"{mpirun} --mca plm isolated --mca ras ^slurm,tm --host localhost:2 -np 2 {python}".split()
    # Asked under mpirun: where both are installed, Debian's h5py is the serial one outside of it.
    asked = [*words, "-c", "import h5py, mpi4py, sys; sys.exit(not h5py.get_config().mpi)"]
    if subprocess.run(asked, env=os.environ | env, capture_output=True, timeout=120, check=False).returncode:
        pytest.skip("no h5py of the system that was built with MPI")
    assert run(tmp_path, *words, env=env) == [2, True]
    check(tmp_path / "metrics.h5")


def test_a_process_alone_may_write_now_and_then(tmp_path: Path) -> None:
    path = tmp_path / "metrics.h5"
    file = gathered.GatheredFile(path, {"energy": ""}, 2, None, ())
    file.write()
    assert not read_gathered(path)["done"].any()
    file.put(1, {"energy": -2.0})
    file.close()
    assert read_gathered(path)["energy"].tolist()[1] == -2.0 and "execution_id" not in read_gathered(path)


def test_what_is_no_run_or_metric_of_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics.h5"
    for names in (["a/b"], [""], ["."]):
        with pytest.raises(ValueError, match="cannot be the name"):
            open_gathered(path, names, 1)
    with pytest.raises(ValueError, match="not negative"):
        open_gathered(path, ["a"], -1)
    with pytest.raises(ValueError, match="1 ids for 2 runs"):
        open_gathered(path, ["a"], 2, ids=["x"])
    file = open_gathered(path, ["a"], 1)
    with pytest.raises(ValueError, match="no run 1"):
        file.put(1, {})
    with pytest.raises(ValueError, match="'b' was not named"):
        file.put(0, {"b": 1.0})


def test_a_file_that_cannot_be_written_is_an_error_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "metrics.h5"
    open_gathered(path, ["a"], 1).close()
    before = path.read_bytes()
    file = open_gathered(path, ["a"], 1)
    file.put(0, {"a": 1.0})
    (tmp_path / "metrics.h5.part").mkdir()
    with pytest.raises(OSError, match=r"metrics\.h5\.part"):
        file.close()
    assert path.read_bytes() == before
