"""Files that burst, lines without end, headers that lie: refused in little memory and time."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcagent.apps.bounded import LONGEST_LINE, read_csv, read_fields, require_lines, require_size
from hpcagent.apps.printed import reading
from hpcagent.apps.structures import given, structure_of
from hpcagent.errors import AppFailed, BadInput
from hpcagent.science.analysis.averages import read_table
from hpcagent.science.lammps.dump import last_frame_of_dump
from hpcagent.science.lammps.frames import Reading
from hpcagent.science.lammps.script import LARGEST_SCRIPT, read_script
from hpcagent.science.lammps.trajectory import open_trajectory

PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
FRAME = b"""ITEM: TIMESTEP
%d
ITEM: NUMBER OF ATOMS
2
ITEM: BOX BOUNDS pp pp pp
0 10
0 10
0 10
ITEM: ATOMS id type x y z
1 1 1.0 2.0 3.0
2 1 4.0 5.0 6.0
"""


def bomb(path: Path, *, begin: bytes = b"", of: bytes = b"0", mb: int = 1000) -> Path:
    """A packed file of many members: 10 MB each, packed once."""
    pack = PACKED[path.suffix]
    member = pack((of * (10_000_000 // len(of) + 1))[:10_000_000])
    with path.open("wb") as file:
        file.write(pack(begin))
        for _ in range(mb // 10):
            file.write(member)
    return path


def sparse(path: Path, size: int, begin: bytes = b"") -> Path:
    """A file of so many bytes that takes no room on the disk."""
    path.write_bytes(begin)
    os.truncate(path, size)
    return path


def upstream(path: Path, kind: str = "trajectory") -> dict[str, object]:
    return {"workdir": str(path.parent), "artifacts": {kind: path.name}}


def read_all(path: Path) -> int:
    with open_trajectory(upstream(path), Reading(units="metal", timestep=0.001)) as trajectory:
        return sum(len(frame.positions) for frame in trajectory.frames())


CHILD = """
import json, os, resource, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_bounded import *
import ase.io, h5py, numpy
from hpcagent.errors import HpcAgentError
from hpcagent.apps.printed import reading

def answer(path, call, most):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    with reading({{"max_read_mb": most}}):
        try:
            eval(call, globals() | {{"path": Path(path)}})
            said = "nothing"
        except HpcAgentError as error:
            said = error.details.get("name") or type(error).__name__
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    print(said, used, time.process_time() - began, flush=True)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        answer(*json.loads(line))
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("died", flush=True)
"""


@pytest.fixture(scope="module")
def in_child():
    """What a reader says in a process of its own, the memory in MB that it needs, and its CPU time in s.

    They are forks of one that has imported what it needs and has read nothing yet.
    """
    code = CHILD.format(tests=str(Path(__file__).parent))
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def asked(path: Path, call: str, most: float) -> tuple[str, float, float]:
            process.stdin.write(json.dumps([str(path), call, most]) + "\n")
            process.stdin.flush()
            said, used, spent = process.stdout.readline().split()
            return said, float(used), float(spent)

        yield asked


TEXTS = {"zeros": b"\0", "spaces": b" ", "digits": b"1", "newlines": b"\n"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "ending"), [("zeros", ".gz"), ("digits", ".bz2"), ("newlines", ".xz"), ("spaces", ".gz")]
)
def test_a_structure_that_bursts_is_refused_in_little_memory(in_child, text, ending, tmp_path):
    path = bomb(tmp_path / f"a.xyz{ending}", begin=b"1\n\n", of=TEXTS[text])
    said, used, spent = in_child(path, "given(path)", 50)
    assert said == "BadInput" and used < 100 and spent < 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "text"),
    [
        (b"", "digits"),
        (b"1000000000\n\n", "newlines"),
        (FRAME % 0, "spaces"),
        (FRAME % 0, "newlines"),
        (b"ITEM: TIMESTEP\n0\nITEM: ATOMS", "zeros"),
    ],
)
def test_a_trajectory_that_bursts_is_refused_in_little_memory(in_child, text, begin, tmp_path):
    path = bomb(tmp_path / "a.dump.gz", begin=begin, of=TEXTS[text], mb=500)
    said, used, spent = in_child(path, "read_all(path)", 50)
    assert said in ("BadTrajectory", "FileTooLarge", "TooFewFrames") and used < 300 and spent < 15


@pytest.mark.parametrize(
    ("name", "begin", "call", "most"),
    [
        ("a.xyz", b"1\n", "given(path)", 2000),
        ("a.xyz", b"1\n", "structure_of(upstream(path, 'structure'))", 2000),
        pytest.param("a.dump", FRAME % 0, "read_all(path)", 50, marks=pytest.mark.slow),
        ("a.extxyz", b"2\n", "read_all(path)", 2000),
        ("thermo.csv", b"time_ps\n", "read_table(upstream(path, 'thermo'))", 2000),
        ("md.json", b"{", "read_fields(path)", 2000),
        ("in.lammps", b"units metal\n", "read_script(path)", 2000),
    ],
)
def test_a_line_of_a_gigabyte_is_refused_in_little_memory(in_child, name, begin, call, most, tmp_path):
    path = sparse(tmp_path / name, 1_000_000_000, begin)
    said, used, spent = in_child(path, call, most)
    assert said != "nothing" and used < 110 and spent < 5


def test_legitimate_packed_dumps_larger_than_what_may_be_in_memory_are_read(tmp_path):
    path = tmp_path / "long.dump.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for step in range(2000):
            file.write(FRAME % step)
    with reading({"max_read_mb": 0.05}):  # the file has 0.3 MB, the index of its frames 0.03
        assert read_all(path) == 4000
        assert last_frame_of_dump(path) == FRAME % 1999


def test_a_cut_packed_trajectory_is_one_clear_error(tmp_path):
    path = tmp_path / "cut.dump.gz"
    path.write_bytes(gzip.compress(os.urandom(10) + FRAME % 0)[:-20])
    with pytest.raises(AppFailed, match=r"cannot be unpacked|is no trajectory") as caught:
        read_all(path)
    assert caught.value.details["name"] == "BadTrajectory"


@pytest.mark.parametrize("length", [LONGEST_LINE, LONGEST_LINE + 1])
@pytest.mark.parametrize("before", [0, 7, LONGEST_LINE - 3, 2 * LONGEST_LINE])
def test_a_line_may_have_so_many_bytes_and_no_more(length, before, tmp_path):
    text = b"x" * 10 + b"\n" + (b"y\n" * before)[:before].ljust(before, b"\n") + b"\n" + b"z" * length + b"\nend\n"
    path = tmp_path / "a.txt"
    path.write_bytes(text)
    if length <= LONGEST_LINE:
        require_lines(text, path)
        require_size(path)
        return
    for check in (lambda: require_lines(text, path), lambda: require_size(path)):
        with pytest.raises(AppFailed, match="a line of more than 1,048,576 bytes"):
            check()


def test_what_is_counted_is_what_comes_out_of_a_packed_file(tmp_path):
    for ending, pack in PACKED.items():
        path = tmp_path / f"a.xyz{ending}"
        path.write_bytes(pack(b"1\n\nH 0 0 0\n"))
        assert len(given(path).fields["structure"]) > 0
        with reading({"max_read_mb": 1e-5}):  # 10 bytes
            (tmp_path / f"b.xyz{ending}").write_bytes(pack(b"1\n\nHe 0 0 0" + b" " * 100 + b"\n"))
            with pytest.raises(BadInput, match="max_read_mb"):
                given(tmp_path / f"b.xyz{ending}")


def test_an_hdf5_file_that_says_it_has_terabytes_is_refused(tmp_path):
    import h5py

    for name, shape, chunks in (("atoms", (2, 10**11, 3), (1, 1000, 3)), ("frames", (10**12, 2, 3), (1000, 2, 3))):
        path = tmp_path / f"{name}.h5"
        with h5py.File(path, "w") as file:
            value = file.create_dataset("particles/all/position/value", shape, "f4", chunks=chunks)
            value.attrs["unit"] = "Angstrom"
        assert path.stat().st_size < 100_000
        with pytest.raises(AppFailed, match="may be read into memory") as caught:
            read_all(path)
        assert caught.value.details["name"] == "FileTooLarge"


@pytest.mark.parametrize(
    ("frames", "length", "shape"),
    [(10**15, None, None), (1, 10**15, None), (1, None, [10**12, 3]), (-1, None, None)],
)
def test_a_traj_that_lies_about_its_size_is_refused(frames, length, shape, tmp_path):
    """Each number is written as ASE's own format has it, with one that cannot be."""
    path = tmp_path / "a.traj"
    text = json.dumps({"version": 1, "positions.": {"ndarray": [shape or [1, 3], "float64", 48]}}).encode()
    at = 48 + 24
    head = b"- of Ulm" + b"ASE-Trajectory".ljust(16) + struct.pack("<3q", 3, frames, at + 8 + len(text))
    body = np.zeros(3).tobytes() + struct.pack("<q", length or len(text)) + text + struct.pack("<q", at)
    path.write_bytes(head + body)
    with pytest.raises(AppFailed) as caught:
        read_all(path)
    assert caught.value.details["name"] == ("FileTooLarge" if shape else "BadTrajectory")


def test_numbers_of_a_header_with_thousands_of_digits_are_one_clear_error(tmp_path):
    path = tmp_path / "a.xyz"
    path.write_bytes(b"9" * 5000 + b"\n")
    with pytest.raises(AppFailed, match="should begin"):
        read_all(path)


def test_a_table_is_read_in_the_memory_of_its_numbers(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n3,\n4\n5,6\n")
    table = read_csv(path)
    assert table.header == ["a", "b"] and table.uneven == 1
    np.testing.assert_array_equal(table.data, [[1, 2], [3, np.nan], [5, 6]])
    path.write_text('a,b\n"' + "x" * 200_000 + '",2\n')
    with pytest.raises(ValueError, match="field larger"):
        read_csv(path)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.dump")
    with pytest.raises((AppFailed, OSError)):
        read_all(tmp_path / "a.dump")


def test_names_that_the_children_use():
    assert callable(structure_of) and callable(read_table) and callable(read_fields) and callable(read_script)
    assert LARGEST_SCRIPT < 1_000_000_000
