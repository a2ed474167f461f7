"""The log parser on logs that LAMMPS wrote, cut, interleaved and spoiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcagent.science.lammps.log import Log, _Reader, canonical, parse_log, read_log

Lammps = Callable[..., Path]
STYLES = ("one", "multi", "yaml")
# Logs that LAMMPS (22 Jul 2025) wrote with `-partition`.
LOGS = Path(__file__).parent / "logs"
# 10 steps apart over 100 steps, both ends included.
ROWS = 11


def _text(path: Path) -> str:
    return path.read_text()


def _table(text: str) -> list[str]:
    """Lines between the one-line header and `Loop time`."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split()[:1] == ["Step"])
    end = next((i for i, line in enumerate(lines) if line.startswith("Loop time")), len(lines))
    return lines[start + 1 : end]


def test_a_plain_run_is_read_with_everything_lammps_says(lammps: Lammps) -> None:
    log = read_log(lammps("run 100\n"))
    (run,) = log.runs
    assert log.version is not None and "20" in log.version
    assert (log.units, log.error, log.error_line, log.warnings) == ("metal", None, None, ())
    assert log.finished and log.total_wall_s is not None
    assert run.columns == ("Step", "Temp", "TotEng", "PotEng", "KinEng", "Press", "Volume")
    assert run.data.shape == (ROWS, 7)
    assert run["Step"].tolist() == list(range(0, 101, 10))
    assert (run.complete, run.kind, run.steps, run.n_atoms, run.procs, run.threads) == (True, "run", 100, 32, 1, 1)
    assert run.timestep == 0.002
    assert run.normalized is False
    assert set(run.performance) >= {"ns/day", "hours/ns", "timesteps/s"}
    assert run.performance["timesteps/s"] == pytest.approx(100 / run.loop_time_s, rel=1e-3)
    assert set(run.timing) >= {"Pair", "Neigh", "Comm", "Output", "Modify", "Other"}
    assert run.timing["Other"].min_s is None and run.timing["Other"].avg_s is not None
    assert sum(row.percent for row in run.timing.values()) == pytest.approx(100, abs=0.1)
    assert run.dangerous_builds == 0
    assert run.neighbor_builds is not None
    assert run.neighbors_per_atom is not None


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


def test_several_runs_are_kept_apart_with_pre_no_post_no_and_run_zero(lammps: Lammps) -> None:
    log = read_log(
        lammps("run 100\nrun 30 post no\nrun 20 pre no\nrun 0\nrun 0 pre no post no\nminimize 0 0 20 99\n")
    )
    assert [len(run) for run in log.runs] == [11, 4, 3, 1, 1, 3]
    assert [run.steps for run in log.runs] == [100, 30, 20, 0, 0, 20]
    assert [run.kind for run in log.runs] == ["run"] * 5 + ["minimize"]
    assert log.runs[2]["Step"].tolist() == [130, 140, 150]
    assert log.runs[1].cpu_use_percent is None and log.runs[1].neighbor_builds is None
    assert log.runs[1].performance == {} and log.runs[2].performance
    assert all(run.complete for run in log.runs)


def test_each_leg_of_run_every_is_a_run(lammps: Lammps) -> None:
    log = read_log(lammps("run 50 every 20 \"print '60 1 2 3 4 5 6'\"\n"))
    assert [run["Step"].tolist() for run in log.runs] == [[0, 10, 20], [20, 30, 40], [40, 50]]
    assert {run.kind for run in log.runs} == {"run"}


def test_a_new_thermo_style_between_runs_changes_the_columns(lammps: Lammps) -> None:
    script = (
        "compute c all temp\nvariable x equal temp\nfix f all ave/time 1 5 10 c_c\ncompute p all pressure c\n"
        "run 10\nthermo_style custom step c_c v_x f_f c_p[1] cpu\nrun 20\n"
    )
    first, second = read_log(lammps(script)).runs
    assert first.columns[1] == "Temp"
    assert second.columns == ("Step", "c_c", "v_x", "f_f", "c_p[1]", "CPU")
    assert second["c_c"].tolist() == second["v_x"].tolist()
    assert second.unit("c_p[1]") is None


def test_column_names_with_blanks_keep_their_columns(lammps: Lammps) -> None:
    script = 'thermo_style custom step temp pe\nthermo_modify colname 2 "My Temp"\nrun 20\n'
    run = read_log(lammps(script)).runs[0]
    assert run.columns == ("Step", "My Temp", "PotEng")
    assert run["My Temp"][0] == 80


@pytest.mark.parametrize("line", STYLES)
def test_a_log_cut_anywhere_gives_true_rows_and_never_raises(lammps: Lammps, line: str) -> None:
    data = lammps("run 100\nrun 30\n", line=line).read_bytes()
    whole = parse_log(data)
    # Beside every end of a line, and at every fifth byte: within each word and number somewhere.
    ends = {at + beside for at, byte in enumerate(data) if byte == 10 for beside in (-1, 0, 1, 2)}
    for cut in sorted(ends | set(range(0, len(data), 5))):
        log = parse_log(data[:cut])
        assert len(log.runs) <= 2
        for run, true in zip(log.runs, whole.runs, strict=False):
            if len(run):
                assert run.columns == true.columns
                np.testing.assert_array_equal(run.data, true.data[: len(run)])
            assert not run.complete or len(run) == len(true)


def test_a_cut_loses_no_finished_row(lammps: Lammps) -> None:
    text = _text(lammps("run 100\n"))
    row = _table(text)[4]
    cut = text.index(row) + len(row)
    assert len(parse_log(text[: cut + 1]).runs[0]) == 5, "with its newline"
    assert len(parse_log(text[:cut]).runs[0]) == 5, "the blank after the last number shows it to be whole"
    assert len(parse_log(text[: cut - len(row) // 2]).runs[0]) == 4
    assert len(parse_log(text[:cut].rstrip()[:-1]).runs[0]) == 4, "the last number lacks a digit"


def test_a_log_killed_before_the_first_row_has_an_empty_run(lammps: Lammps) -> None:
    text = _text(lammps("run 100\n"))
    log = parse_log(text[: text.index(_table(text)[0])])
    assert [run.data.shape for run in log.runs] == [(0, 7)]
    assert not log.runs[0].complete and not log.finished


def test_a_killed_process_leaves_the_rows_it_wrote(killed_log: Path) -> None:
    log = read_log(killed_log)
    (run,) = log.runs
    lines = _table(_text(killed_log))
    finished = len([line for line in lines if len(line.split()) == 7 and line.endswith(" ")])
    assert len(run) == finished > 50
    assert run["Step"].tolist() == list(range(finished))
    assert not run.complete and run.steps is None and run.loop_time_s is None
    assert not log.finished and log.error is None


def test_lost_atoms_end_the_run_with_its_error(lammps: Lammps) -> None:
    log = read_log(lammps("run 100\n", dt=1))
    assert log.error is not None and log.error.startswith("Lost atoms: original 32")
    assert [len(run) for run in log.runs] == [1]
    assert not log.runs[0].complete


def test_an_error_names_the_line_of_the_script(lammps: Lammps) -> None:
    log = read_log(lammps("run 10\nnonsense 5\n"))
    assert log.error is not None and log.error.startswith("Unknown command: nonsense 5")
    assert log.error_line == "nonsense 5"
    assert log.runs[0].complete


def test_error_on_one_processor_is_an_error_too() -> None:
    assert (
        parse_log("ERROR on proc 3: Neighbor list overflow\nLast command: run 10\n").error
        == "Neighbor list overflow"
    )
    assert parse_log("ERROR on proc 3: x\nLast command: run 10\n").error_line == "run 10"


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
    rows = _table(text)
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
    row = _table(text)[6]
    spoiled = text.replace(row, f"{printed}\n{row}")
    np.testing.assert_array_equal(parse_log(spoiled).runs[0].data, parse_log(text).runs[0].data)


def test_text_after_the_table_that_looks_like_rows_is_left_alone(lammps: Lammps) -> None:
    text = _text(lammps("run 100\n"))
    row = _table(text)[3]
    log = parse_log(text + f"{row}\n864 ave 1e9 x\nStep Temp\n0 80\n10 90\n")
    assert [len(run) for run in log.runs] == [ROWS]


def test_a_header_repeated_inside_a_run_does_not_split_it(lammps: Lammps) -> None:
    text = _text(lammps("run 100\n"))
    header = next(line for line in text.splitlines() if line.split()[:1] == ["Step"])
    row = _table(text)[5]
    log = parse_log(text.replace(row, header + "\n" + row))
    assert [len(run) for run in log.runs] == [ROWS]


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


def test_windows_newlines_and_invalid_bytes_change_nothing(lammps: Lammps) -> None:
    data = lammps("run 100\n", line="multi").read_bytes()
    clean = parse_log(data)
    windows = parse_log(data.replace(b"\n", b"\r\n"))
    np.testing.assert_array_equal(windows.runs[0].data, clean.runs[0].data)
    one = lammps("run 100\n").read_bytes()
    spoiled = parse_log(
        one.replace(b"\n        50 ", b"\n\xff\xfe\x00 # caf\xe9\n        50 ").replace(b"units", b"# \xff\nunits")
    )
    assert len(spoiled.runs[0]) == ROWS
    assert spoiled.runs[0].timestep == 0.002


def test_zero_bytes_where_a_file_system_lost_a_page_cost_only_their_rows(lammps: Lammps) -> None:
    data = lammps("run 100\n").read_bytes()
    row = _table(data.decode())[4].encode()
    log = parse_log(data.replace(row, b"\0" * len(row)))
    assert log.runs[0]["Step"].tolist() == [0, 10, 20, 30, 50, 60, 70, 80, 90, 100]


def test_steps_beyond_double_precision_are_harmless() -> None:
    first, second = 2**53 + 2, 2**53 + 4
    log = parse_log(f"   Step          Temp     \n{first:10d}   80 \n{second:10d}   81 \n")
    assert log.runs[0]["step"].tolist() == [float(first), float(second)]


def test_warnings_are_collected_and_do_not_break_rows(lammps: Lammps) -> None:
    text = _text(lammps("run 100\n"))
    row = _table(text)[5]
    spoiled = text.replace(row, f"WARNING: Too hot (src/a.cpp:1)\n{row}\nWARNING on proc 1: Too cold")
    log = parse_log(spoiled)
    assert log.warnings == ("Too hot (src/a.cpp:1)", "Too cold")
    assert len(log.runs[0]) == ROWS


@pytest.mark.parametrize(
    ("script", "timestep"),
    [
        ("run 10\n", 0.002),
        ("timestep $(0.001*3)\nrun 10\n", 0.003),
        ('variable n equal 10\nif "$n > 0" then "timestep 0.004" "run $n"\n', 0.004),
        ("timestep &\n 0.001 # ps, not 0.5\nrun 10\n", 0.001),
        ("print 'timestep 7'\nrun 10\n", 0.002),
    ],
)
def test_the_timestep_is_the_one_in_force_when_the_run_started(
    lammps: Lammps, script: str, timestep: float
) -> None:
    run = read_log(lammps(script + "timestep 0.005\n")).runs[0]
    assert run.timestep == pytest.approx(timestep)


def test_defaults_of_the_style_serve_where_nothing_is_echoed(lammps: Lammps) -> None:
    lj = (
        "lattice fcc 0.8442\nregion box block 0 2 0 2 0 2\ncreate_box 1 box\ncreate_atoms 1 box\nmass 1 1.0\n"
        "velocity all create 1.44 87287\npair_style lj/cut 1.5\npair_coeff 1 1 1.0 1.0\nfix 1 all nve\n"
        "thermo 10\nrun 50\n"
    )
    log = read_log(lammps(lj, head=""))
    assert (log.units, log.runs[0].timestep, log.runs[0].normalized) == ("lj", 0.005, True)
    assert log.runs[0].unit("TotEng") == "epsilon/atom"
    assert "tau/day" in log.runs[0].performance


def test_after_a_restart_units_and_timestep_are_not_guessed(lammps: Lammps) -> None:
    script = (
        "run 10\nwrite_restart a.restart\nclear\nread_restart a.restart\npair_coeff 1 1 0.0103 3.405\n"
        "fix 1 all nve\nrun 10\nrun 10 post no\n"
    )
    first, *later = read_log(lammps(script)).runs
    assert (first.units, first.timestep) == ("metal", 0.002)
    for run in later:
        assert (run.units, run.timestep, run.normalized) == (None, None, None)


def test_screen_output_says_units_and_timestep_in_its_setup_lines(lammps: Lammps) -> None:
    log = read_log(lammps("run 20\ntimestep 0.004\nrun 10\n", screen=True))
    assert [run.timestep for run in log.runs] == [0.002, 0.004]
    assert {run.units for run in log.runs} == {"metal"}
    assert [run.kind for run in log.runs] == ["run", "run"]


def test_a_changing_timestep_is_no_timestep(lammps: Lammps) -> None:
    script = "fix d all dt/reset 5 0.0005 0.002 0.001\nrun 10\nunfix d\ntimestep 0.001\nrun 10\n"
    assert [run.timestep for run in read_log(lammps(script)).runs] == [None, 0.001]


def test_unchecked_dangerous_builds_are_unknown_not_zero(lammps: Lammps) -> None:
    checked, unchecked = read_log(lammps("run 20\nneigh_modify check no\nrun 20\n")).runs
    assert checked.dangerous_builds == 0
    assert unchecked.dangerous_builds is None
    assert unchecked.neighbor_builds == 20


def test_full_timers_add_a_column_that_is_not_taken_for_the_share(lammps: Lammps) -> None:
    run = read_log(lammps("timer full\nrun 100\n")).runs[0]
    assert sum(row.percent for row in run.timing.values()) == pytest.approx(100, abs=0.1)


def test_norm_follows_thermo_modify_and_is_lost_with_a_new_style(lammps: Lammps) -> None:
    script = "thermo_modify norm yes\nrun 10\nthermo_style custom step temp pe\nrun 10\n"
    yes, no = read_log(lammps(script)).runs
    assert (yes.normalized, no.normalized) == (True, False)
    assert (yes.unit("pe"), no.unit("pe"), no.unit("temp")) == ("eV/atom", "eV", "K")
    assert yes["TotEng"][0] == pytest.approx(no["pe"][-1] / 32, rel=0.5)


def test_columns_are_found_under_every_usual_name(lammps: Lammps) -> None:
    run = read_log(lammps("run 100\n")).runs[0]
    for name in ("TotEng", "etotal", "Etot", "E_tot", "Etotal", "toteng"):
        assert name in run
        np.testing.assert_array_equal(run[name], run.data[:, 2])
    assert canonical("v_TEMP") == "v_TEMP"
    assert "density" not in run
    with pytest.raises(KeyError, match="no thermo column 'density'; it has Step, Temp"):
        run["density"]
    with pytest.raises(KeyError):
        run.unit("density")
    assert (run.unit("press"), run.unit("vol"), run.unit("step")) == ("bar", "angstrom^3", "1")


@pytest.mark.parametrize(
    "text", ["", "\n", "Step", "Step\n", "---\n", "keywords:\n", "Loop time of\n", "\0\0", "=\n"]
)
def test_nonsense_gives_no_rows(text: str) -> None:
    log = parse_log(text)
    assert isinstance(log, Log)
    assert sum(len(run) for run in log.runs) == 0


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


def test_log_and_text_give_the_same(lammps: Lammps) -> None:
    path = lammps("run 100\n")
    np.testing.assert_array_equal(read_log(path).runs[0].data, parse_log(_text(path)).runs[0].data)


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
        ends = {text[-1:] for text in _table(_text(path))}
        assert " " in ends and len(ends) > 1, "the log has rows with and without a blank at their end"


def test_a_cut_inside_a_last_value_that_fills_its_column_gives_no_wrong_number(lammps: Lammps) -> None:
    text = _text(lammps(RELAXED, head="", line="one"))
    row = next(line for line in _table(text) if not line.endswith(" "))
    before = _table(text).index(row)
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
    row = _table(text)[3]
    warning = "WARNING: Energy due to 1 extra global DOFs will be included\n (src/src/min.cpp:222)\n"
    spoiled = text.replace(header, warning + header).replace(row, warning + row)
    np.testing.assert_array_equal(parse_log(spoiled).runs[0].data, parse_log(text).runs[0].data)


def test_what_looks_like_a_row_and_is_none_is_said(lammps: Lammps) -> None:
    text = _text(lammps("run 100\n"))
    rows = _table(text)
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
    rows = _table(text)
    lost = parse_log(text.replace(rows[2] + "\n", "").replace(rows[7] + "\n", "")).runs[0]
    assert (lost.missing, lost.unread) == (2, 0)


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


class _Counting(bytes):
    """Bytes that count how many of them are looked at."""

    looked_at = 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        got = super().__getitem__(index)
        _Counting.looked_at += 1 if isinstance(got, int) else len(got)
        return got

    def find(self, what, start=0, stop=None):  # type: ignore[no-untyped-def]
        stop = len(self) if stop is None else min(stop, len(self))
        at = super().find(what, start, stop)
        _Counting.looked_at += (stop if at < 0 else at) - max(start, 0)
        return at


def _looked_at(text: str) -> float:
    """How often each byte of a log is looked at."""
    _Counting.looked_at = 0
    _Reader(_Counting(text.encode())).read()
    return _Counting.looked_at / len(text)


def test_reading_takes_time_in_proportion_to_the_log_however_many_runs_it_holds(lammps: Lammps) -> None:
    text = _text(lammps("run 100\n"))
    once, table = text[: text.index("run 100")], text[text.index("run 100") : text.index("Total wall time")]
    few, many = (once + table * n for n in (50, 400))
    assert len(parse_log(many).runs) == 400
    # Eight times the runs, and as much work for each byte; it was 5 times as much.
    assert _looked_at(many) < 1.1 * _looked_at(few) < 40
