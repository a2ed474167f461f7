"""What is a row of a thermo table, what only looks like one, and what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcagent.science.lammps.log import parse_log, read_log
from tests.unit.science.lammps.printed import table_lines

Lammps = Callable[..., Path]
STYLES = ("one", "multi", "yaml")


def _text(path: Path) -> str:
    return path.read_text()


FOREIGN = {
    "words": "864 ave 1e9 x",
    "fewer numbers": "1 2 3",
    "more numbers": "1 2 3 4 5 6 7 8 9",
    "as many numbers": "$(step) $(temp) $(etotal) 1 2 3 4",
    "as many numbers, blank at the end": "$(step) $(temp) $(etotal) 1 2 3 4 ",
    "a pair": "Temp = 3",
    "a yaml row": "  - [1, 2, 3, ]",
    "a banner": "------------ Step              7 ----- CPU =            0 -----",
    "dashes": "---",
    "a header": "   Step          Temp          TotEng ",
    "almost the end": "Loop time of the day",
    "almost an error": "ERRORS are none",
}


@pytest.mark.parametrize("line", STYLES)
@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN.keys())
def test_lines_printed_between_the_rows_are_not_rows(lammps: Lammps, foreign: str, line: str) -> None:
    script = f'fix p all print 7 "{foreign}"\nrun 100\nprint "{foreign}"\nrun 20\n'
    run, second = read_log(lammps(script, line=line)).runs
    clean = read_log(lammps("run 100\n", line=line)).runs[0]
    assert run.columns == clean.columns
    assert run["Step"].tolist() == clean["Step"].tolist()
    np.testing.assert_array_equal(run["TotEng"], clean["TotEng"])
    assert second["Step"].tolist() == [100, 110, 120]


def test_a_perfect_imitation_of_a_row_off_the_thermo_grid_is_refused(lammps: Lammps) -> None:
    columns = " ".join(f"$({name}:%14.8g)" for name in ("temp", "etotal", "pe", "ke", "press", "vol"))
    script = f'fix p all print 7 "$(step:%10.0f)   {columns} "\nrun 100\n'
    run = read_log(lammps(script)).runs[0]
    clean = read_log(lammps("run 100\n")).runs[0]
    np.testing.assert_array_equal(run.data, clean.data)


def test_step_must_rise_even_where_no_thermo_command_was_echoed(lammps: Lammps) -> None:
    text = _text(lammps("run 100\n"))
    rows = table_lines(text)
    spoiled = text.replace(rows[6], rows[6] + "\n" + rows[2]).replace("thermo          10\n", "")
    np.testing.assert_array_equal(parse_log(spoiled).runs[0].data, parse_log(text).runs[0].data)
    late = rows[6].replace("        60 ", "        99 ")
    spoiled = text.replace(rows[6], late + "\n" + rows[6]).replace("thermo          10\n", "")
    assert parse_log(spoiled).runs[0]["Step"].tolist() == list(range(0, 101, 10))


@pytest.mark.parametrize(
    "printed",
    [
        "        55 1 2 3 4 5 6",
        "55 1 2 3 4 5 6 ",
        "             55 1 2 3 4 5 6 ",
        "        55.0 1 2 3 4 5 6 ",
        "1 2 3 4 5 6\n1 2 3 4 5 6 7 8 ",
    ],
)
def test_a_line_laid_out_otherwise_than_the_first_row_is_no_row(lammps: Lammps, printed: str) -> None:
    # No `thermo N` is known here, and 55 would be a step between its neighbours.
    text = _text(lammps("run 100\n")).replace("thermo          10\n", "").replace("thermo 10\n", "")
    row = table_lines(text)[6]
    spoiled = text.replace(row, f"{printed}\n{row}")
    np.testing.assert_array_equal(parse_log(spoiled).runs[0].data, parse_log(text).runs[0].data)


def test_steps_beyond_double_precision_are_harmless() -> None:
    first, second = 2**53 + 2, 2**53 + 4
    log = parse_log(f"   Step          Temp     \n{first:10d}   80 \n{second:10d}   81 \n")
    assert log.runs[0]["step"].tolist() == [float(first), float(second)]


RELAXED = """\
units lj
lattice fcc 1.0
region box block 0 2 0 2 0 2
create_box 1 box
create_atoms 1 box
mass 1 1
pair_style lj/cut 4.0
pair_coeff 1 1 1 1
fix 1 all box/relax iso 0 vmax 0.01
thermo_style custom step pe vol press
thermo_modify line ${line}
thermo 1
minimize 0 1e-12 100 1000
print "E = $(pe:%.10g)"
"""


@pytest.mark.parametrize("line", STYLES)
def test_no_row_is_lost_where_the_last_value_fills_its_column(lammps: Lammps, line: str) -> None:
    path = lammps(RELAXED, head="", line=line)
    (run,) = read_log(path).runs
    said = next(text for text in _text(path).splitlines() if text.startswith("E = "))
    assert run.steps is not None and run["Step"].tolist() == list(range(run.steps + 1))
    assert run["PotEng"][-1] == pytest.approx(float(said[4:]), abs=6e-5), "what LAMMPS itself says of the last row"
    assert abs(run["Press"][-1]) < 1e-4
    assert (run.unread, run.doubts) == (0, ())
    if line == "one":
        ends = {text[-1:] for text in table_lines(_text(path))}
        assert " " in ends and len(ends) > 1, "the log has rows with and without a blank at their end"


def test_a_cut_inside_a_last_value_that_fills_its_column_gives_no_wrong_number(lammps: Lammps) -> None:
    text = _text(lammps(RELAXED, head="", line="one"))
    row = next(line for line in table_lines(text) if not line.endswith(" "))
    before = table_lines(text).index(row)
    end = text.index(row) + len(row)
    assert [len(parse_log(text[:cut]).runs[0]) for cut in (end - 1, end, end + 1)] == [before, before, before + 1]


@pytest.mark.parametrize(
    "change",
    [
        "thermo_modify format float %g",
        "thermo_modify format float %20.12e",
        "thermo_modify format float %-25.3f",
        "thermo_modify format float %12.8g format int %8d",
        "thermo_modify format 1 %-3d format 3 %8.1f",
        'thermo_modify format line "%d %9.3g %g %-18.10g %14.8f %+.3e %g"',
        "thermo_style custom step temp atoms pe nbuild press elapsed dt",
        "thermo_style custom temp step press",
        "thermo_style custom pe",
        "thermo_modify norm yes colname 7 a_name_that_is_wider_than_its_column",
    ],
)
def test_no_format_of_the_thermo_output_loses_a_row(lammps: Lammps, change: str) -> None:
    path = lammps(f"{change}\nvelocity all scale 1e-300\nrun 50\nvelocity all create 1e9 7\nrun 50\n")
    first, second = read_log(path).runs
    assert (len(first), first.doubts) == (6, ())
    assert len(second) >= 1 and second.doubts == ()


def test_numbers_wider_than_their_columns_push_the_others_on() -> None:
    rows = [
        "         0   80            -57.034         4.5         ",
        "        10  -1.2345678e-100 -57.034         4.5         ",
        "        20   80            -1.2345678e-100 4.5         ",
        "        30  -1.2345678e-100-1.2345678e-101-4.5678901e-123",
        "1234567890123  -1.2345678e-10-57.034        -4.5678901e-123",
    ]
    text = "   Step          Temp          PotEng         KinEng    \n" + "\n".join(rows[:3] + rows[4:]) + "\n"
    text = text.replace("e-10-57", "e-10 -57")
    (run,) = parse_log(text).runs
    assert run["Step"].tolist() == [0, 10, 20, 1234567890123]
    assert run["Temp"].tolist() == [80, -1.2345678e-100, 80, -1.2345678e-10]
    glued = parse_log(text.replace(rows[2], rows[2] + "\n" + rows[3])).runs[0]
    assert (len(glued), glued.unread, glued.unread_example) == (4, 1, rows[3].strip())


def test_a_warning_of_two_lines_between_header_and_rows_costs_none(lammps: Lammps) -> None:
    text = _text(lammps(RELAXED, head="", line="one"))
    header = next(line for line in text.splitlines() if line.split()[:1] == ["Step"])
    row = table_lines(text)[3]
    warning = "WARNING: Energy due to 1 extra global DOFs will be included\n (src/src/min.cpp:222)\n"
    spoiled = text.replace(header, warning + header).replace(row, warning + row)
    np.testing.assert_array_equal(parse_log(spoiled).runs[0].data, parse_log(text).runs[0].data)


def test_what_looks_like_a_row_and_is_none_is_said(lammps: Lammps) -> None:
    text = _text(lammps("run 100\n"))
    rows = table_lines(text)
    for spoiled, example in (
        (rows[4][:40] + "WARNING: interleaved", rows[4][:40].strip()),
        (rows[4][:40] + "\0" * 30, rows[4][:40].strip()),
        ("\0" * len(rows[4]), "\0"),
        (rows[4] + " 4.5", rows[4].strip()),
    ):
        run = parse_log(text.replace(rows[4], spoiled)).runs[0]
        assert run["Step"].tolist() == [0, 10, 20, 30, 50, 60, 70, 80, 90, 100]
        assert (run.unread, run.missing) == (1, 1)
        assert run.unread_example.startswith(example)
        assert "1 line of the log" in run.doubts[0] and "1 of the thermo rows" in run.doubts[1]


def test_rows_that_are_not_in_the_log_are_counted(lammps: Lammps) -> None:
    text = _text(lammps("run 100\nrun 7\nthermo 1000\nrun 20\n"))
    assert [run.missing for run in parse_log(text).runs] == [0, 0, 0]
    rows = table_lines(text)
    lost = parse_log(text.replace(rows[2] + "\n", "").replace(rows[7] + "\n", "")).runs[0]
    assert (lost.missing, lost.unread) == (2, 0)
