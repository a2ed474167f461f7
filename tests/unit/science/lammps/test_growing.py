"""A log that grows gives the same rows as the finished log, however it is cut into pieces."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcagent.science.lammps import growing
from hpcagent.science.lammps.growing import MARK, Growing
from hpcagent.science.lammps.legs import legs
from hpcagent.science.lammps.log import parse_log
from hpcagent.science.lammps.log_records import Run

Lammps = Callable[..., Path]

BEFORE = "run 50\n"


def grown(log: bytes, folder: Path, *, largest: int = 700, seed: int = 1) -> Growing:
    """A log that was read while it was written, in pieces of up to `largest` bytes."""
    choose, path = random.Random(seed), folder / "log.lammps"
    path.write_bytes(b"")
    reading, at = Growing(folder), 0
    with path.open("ab", buffering=0) as file:
        while at < len(log):
            size = choose.randint(1, largest)
            file.write(log[at : at + size])
            at += size
            reading.read()
    return reading


@pytest.mark.parametrize("style", ["yaml", "one", "multi"])
@pytest.mark.parametrize("run", ["run 300\n", "run 300 every 100 NULL\n"])
def test_the_rows_are_those_of_the_finished_log(lammps: Lammps, tmp_path: Path, style: str, run: str) -> None:
    log = lammps(f"{BEFORE}{MARK}\n{run}", line=style).read_bytes()
    *before, whole = legs(parse_log(log).runs)
    reading = grown(log, tmp_path)
    production = reading.production()
    assert production is not None and production.columns == whole.columns
    assert np.array_equal(production.data, whole.data)
    assert (reading.length, reading.upto, reading.ended) == (300, False, True)
    assert [r.steps for r in reading.before] == [r.steps for r in before] == [50]
    assert (production.units, production.timestep, production.every) == ("metal", 0.002, 10)
    assert production.n_atoms_start == 32


def test_a_run_after_the_measured_one_is_another_run(lammps: Lammps, tmp_path: Path) -> None:
    log = lammps(f"{BEFORE}{MARK}\nrun 100\nrun 100\n").read_bytes()
    production = grown(log, tmp_path).production()
    assert production is not None and production["Step"][[0, -1]].tolist() == [50, 150]


def test_with_upto_the_length_is_a_step(lammps: Lammps, tmp_path: Path) -> None:
    reading = grown(lammps(f"{BEFORE}{MARK}\nrun 200 upto\n").read_bytes(), tmp_path)
    assert (reading.length, reading.upto) == (200, True)


def test_without_the_mark_there_is_no_measured_run_but_the_newest_one(lammps: Lammps, tmp_path: Path) -> None:
    reading = grown(lammps(f"{BEFORE}run 100\n").read_bytes(), tmp_path)
    current = reading.current()
    assert reading.production() is None
    assert isinstance(current, Run) and current["Step"][-1] == 150


def test_a_log_that_the_script_opens_is_followed(tmp_path: Path, lammps: Lammps) -> None:
    log = lammps(f"{BEFORE}log other.log\n{MARK}\nrun 100\n")
    reading = Growing(log.parent, ["other.log"])
    for _ in range(3):
        reading.read()
    production = reading.production()
    assert production is not None and production["Step"][-1] == 150


def test_of_more_rows_than_are_kept_the_newest_stays(
    lammps: Lammps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "MOST_ROWS", 12)
    log = lammps(f"{BEFORE}{MARK}\nrun 300\n", line="yaml").read_bytes()
    reading = grown(log, tmp_path, largest=300)
    production = reading.production()
    assert reading.full and production is not None and len(production) == 12
    assert production["Step"][-1] == 350


def test_no_more_than_what_is_new_is_read(lammps: Lammps, tmp_path: Path) -> None:
    log = lammps(f"{BEFORE}{MARK}\nrun 300\n", line="yaml").read_bytes()
    reading = grown(log, tmp_path)
    assert not reading.read()
    assert len(reading._head) + len(reading._text) < len(log) / 2  # the rows are numbers by now
