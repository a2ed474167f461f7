"""Thermo tables in every style."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcagent.science.lammps.log import parse_log, read_log

Lammps = Callable[..., Path]
STYLES = ("one", "multi", "yaml")
# Logs that LAMMPS (22 Jul 2025) wrote with `-partition`.
LOGS = Path(__file__).parent / "logs"
# 10 steps apart over 100 steps, both ends included.
ROWS = 11


@pytest.mark.parametrize("line", STYLES)
@pytest.mark.parametrize("style", ["custom step temp etotal pe ke press vol", "one", "multi"])
def test_every_thermo_style_gives_the_same_rows(lammps: Lammps, style: str, line: str) -> None:
    run = read_log(lammps("run 100\n", style=style, line=line)).runs[0]
    exact = read_log(lammps("run 100\n", line="yaml")).runs[0]
    assert len(run) == ROWS
    # `thermo_style multi` has no Step field; its banner is printed with `line multi` only.
    if "Step" in run or style != "multi":
        assert run["Step"].tolist() == exact["Step"].tolist()
    for column in ("Temp", "TotEng", "Press") if "TotEng" in run else ("Temp", "Press"):
        # Multi prints four decimals, one-line eight digits.
        assert run[column] == pytest.approx(exact[column], rel=1e-7, abs=6e-5)


def test_thermo_style_yaml_is_read(lammps: Lammps) -> None:
    run = read_log(lammps("run 100\n", style="yaml", line="yaml")).runs[0]
    assert len(run) == ROWS
    assert run.columns[:4] == ("Step", "Temp", "KinEng", "PotEng")


def test_column_names_with_blanks_keep_their_columns(lammps: Lammps) -> None:
    script = 'thermo_style custom step temp pe\nthermo_modify colname 2 "My Temp"\nrun 20\n'
    run = read_log(lammps(script)).runs[0]
    assert run.columns == ("Step", "My Temp", "PotEng")
    assert run["My Temp"][0] == 80


@pytest.mark.parametrize("line", STYLES)
def test_nan_and_infinity_stay_in_their_rows(lammps: Lammps, line: str) -> None:
    # Two atoms at one place have no finite energy; without an integrator they stay there.
    script = "unfix 1\ncreate_atoms 1 single 0 0 0\nmass 1 39.948\nrun 100\n"
    run = read_log(lammps(script, line=line)).runs[0]
    assert len(run) == ROWS
    assert not np.isfinite(run["pe"]).any() and not np.isfinite(run["etotal"]).any()
    assert np.isfinite(run["vol"]).all()


def test_nan_as_windows_prints_it() -> None:
    text = "run 20\n   Step          Temp     \n         0   80 \n        10  -1.#IND \n        20   1.#INF \n"
    assert parse_log(text).runs[0]["temp"].tolist() == pytest.approx([80, np.nan, np.inf], nan_ok=True)


def test_a_long_table_is_read_across_the_pieces_it_is_cut_into() -> None:
    rows = 60_000
    body = "".join(f"{10 * i:10d}   {i * 0.5:<14.8g} {-i:<14.8g} \n" for i in range(rows))
    text = f"thermo 10\nrun 9\n   Step          Temp          PotEng     \n{body}ERROR: it broke\n0 1 2 \n"
    log = parse_log(text.replace("\n    400000 ", "\nhere 1\n1 2\n    400000 "))
    assert len(text) > 2 * (1 << 20)
    (run,) = log.runs
    assert len(run) == rows
    assert run["Temp"].tolist() == [i * 0.5 for i in range(rows)]
    assert log.error == "it broke"


def test_both_tables_of_a_nudged_elastic_band_are_read() -> None:
    climb, after = read_log(LOGS / "log.neb").runs
    assert (climb.kind, after.kind) == ("neb", "neb")
    assert (climb["Step"].tolist(), after["Step"].tolist()) == ([0, 10, 20], [20, 30, 40])
    # The barrier is the highest replica against the first: PE2 - PE1.
    assert after["EBF"][-1] == pytest.approx(after["PE2"][-1] - after["PE1"][-1], abs=1e-7)


def test_rows_of_a_parallel_replica_run_may_repeat_a_step() -> None:
    (run,) = read_log(LOGS / "log.prd").runs
    assert (run.kind, run.complete, run.steps) == ("prd", True, 600)
    assert len(run) == 6 + 15
    # Nine times no event since step 0, then one in every 50 steps.
    assert run["Step"].tolist() == [0] * 9 + list(range(50, 601, 50))
    assert run.doubts == ()


def test_the_status_of_a_temperature_accelerated_run_is_a_word() -> None:
    text = (
        "Running on 3 partitions of processors\nStep CPU N M Status Barrier Margin t_lo delt_lo\n"
        "1000 0.000 0 0 E  0.000 0.000 0.000 0.000\n1150 0.931 0 0 DF 2.957 0.000 0.000 17626.822\n"
        "1150 2.853 0 1 D  0.510 0.049 0.000 1251.400\n"
    )
    (run,) = parse_log(text).runs
    assert run.kind == "tad" and run["Barrier"].tolist() == [0.0, 2.957, 0.510]
    assert np.isnan(run["Status"]).all()
