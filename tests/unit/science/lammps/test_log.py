"""The log parser on logs that LAMMPS wrote, cut, interleaved and spoiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcagent.science.lammps.log import _Reader, parse_log, read_log
from hpcagent.science.lammps.log_records import Log
from tests.unit.science.lammps.printed import table_lines

Lammps = Callable[..., Path]
STYLES = ("one", "multi", "yaml")
# 10 steps apart over 100 steps, both ends included.
ROWS = 11


def _text(path: Path) -> str:
    return path.read_text()


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
    row = table_lines(text)[4]
    cut = text.index(row) + len(row)
    assert len(parse_log(text[: cut + 1]).runs[0]) == 5, "with its newline"
    assert len(parse_log(text[:cut]).runs[0]) == 5, "the blank after the last number shows it to be whole"
    assert len(parse_log(text[: cut - len(row) // 2]).runs[0]) == 4
    assert len(parse_log(text[:cut].rstrip()[:-1]).runs[0]) == 4, "the last number lacks a digit"


def test_a_log_killed_before_the_first_row_has_an_empty_run(lammps: Lammps) -> None:
    text = _text(lammps("run 100\n"))
    log = parse_log(text[: text.index(table_lines(text)[0])])
    assert [run.data.shape for run in log.runs] == [(0, 7)]
    assert not log.runs[0].complete and not log.finished


def test_a_killed_process_leaves_the_rows_it_wrote(killed_log: Path) -> None:
    log = read_log(killed_log)
    (run,) = log.runs
    lines = table_lines(_text(killed_log))
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


def test_text_after_the_table_that_looks_like_rows_is_left_alone(lammps: Lammps) -> None:
    text = _text(lammps("run 100\n"))
    row = table_lines(text)[3]
    log = parse_log(text + f"{row}\n864 ave 1e9 x\nStep Temp\n0 80\n10 90\n")
    assert [len(run) for run in log.runs] == [ROWS]


def test_a_header_repeated_inside_a_run_does_not_split_it(lammps: Lammps) -> None:
    text = _text(lammps("run 100\n"))
    header = next(line for line in text.splitlines() if line.split()[:1] == ["Step"])
    row = table_lines(text)[5]
    log = parse_log(text.replace(row, header + "\n" + row))
    assert [len(run) for run in log.runs] == [ROWS]


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
    row = table_lines(data.decode())[4].encode()
    log = parse_log(data.replace(row, b"\0" * len(row)))
    assert log.runs[0]["Step"].tolist() == [0, 10, 20, 30, 50, 60, 70, 80, 90, 100]


def test_warnings_are_collected_and_do_not_break_rows(lammps: Lammps) -> None:
    text = _text(lammps("run 100\n"))
    row = table_lines(text)[5]
    spoiled = text.replace(row, f"WARNING: Too hot (src/a.cpp:1)\n{row}\nWARNING on proc 1: Too cold")
    log = parse_log(spoiled)
    assert log.warnings == ("Too hot (src/a.cpp:1)", "Too cold")
    assert len(log.runs[0]) == ROWS


@pytest.mark.parametrize(
    "text", ["", "\n", "Step", "Step\n", "---\n", "keywords:\n", "Loop time of\n", "\0\0", "=\n"]
)
def test_nonsense_gives_no_rows(text: str) -> None:
    log = parse_log(text)
    assert isinstance(log, Log)
    assert sum(len(run) for run in log.runs) == 0


def test_log_and_text_give_the_same(lammps: Lammps) -> None:
    path = lammps("run 100\n")
    np.testing.assert_array_equal(read_log(path).runs[0].data, parse_log(_text(path)).runs[0].data)


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
