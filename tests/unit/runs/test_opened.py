"""A campaign's folder as one object, its table in every format, and a quick status."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys

import pytest

import hpcagent as ha
from hpcagent.campaign import recorded
from hpcagent.errors import BadInput
from hpcagent.model.contract import Contract, Metric
from hpcagent.model.parameter import Choice, Float, Int
from hpcagent.model.records import Failure, Manifest, Result
from hpcagent.model.space import Space
from hpcagent.reports.explain import explain
from hpcagent.store.columns import columns_of
from hpcagent.store.export import export_columns
from hpcagent.store.frames import to_pandas, to_xarray
from hpcagent.store.metrics_file import MetricsFile, read_table


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opened") / "run"
    campaign = ha.load_campaign(
        "synthetic", changes={"until.max_runs": 12, "policy.name": "sobol", "confirm": None}
    )
    return ha.run(campaign, site="threads", run_dir=folder)


def python(code: str, *words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_an_opened_folder_has_what_the_run_gave(ended):
    found = ha.open_run(ended.run_dir)
    assert found.results == ended.results and found.campaign.name == "synthetic"
    assert found.best == ended.best and found.front == () and found.result.reason == ended.reason
    assert str(found.table(3)) == str(ended.table(3))
    assert str(found.explain(7)) == str(explain(ended.run_dir, 7))
    assert [event.kind for event in found.follow()] == ["opened", "stopped"]
    assert found.replay(policy="random", seeds=1).played
    assert repr(found) == f"CampaignRun({str(ended.run_dir)!r}: synthetic)"
    assert (found.status.runs, found.status.budget, found.status.attended) == (12, 12, False)
    assert found.report(plots=False).path.is_file()
    with pytest.raises(BadInput, match="not the folder of a campaign"):
        ha.open_run(ended.run_dir / "work")


def test_an_opened_folder_is_read_once_when_asked_and_anew_after_refresh(ended, monkeypatch, tmp_path):
    read = []
    real = recorded.replayed
    monkeypatch.setattr(recorded, "replayed", lambda *a, **k: read.append(1) or real(*a, **k))
    found = ha.open_run(ended.run_dir)
    assert not read
    assert len(found.results) == 12 and found.status.runs == 12 and found.best is not None
    assert len(found.to_pandas()) == 12 and len(read) == 1
    assert len(found.refresh().results) == 12 and len(read) == 2


def test_an_opened_folder_is_not_touched_and_shows_what_a_coordinator_adds(tmp_path):
    campaign = ha.load_campaign(
        "synthetic", changes={"until.max_runs": 12, "policy.name": "sobol", "confirm": None}
    )
    with ha.Coordinator(campaign, site="threads", run_dir=tmp_path / "r") as coordinator:
        batches = iter(coordinator)
        next(batches)
        found = ha.open_run(tmp_path / "r")
        first = len(found.results)
        assert found.status.attended and first >= 6 and found.status.reason is None
        list(batches)
        assert len(found.results) == first  # one moment, until it is refreshed
        assert len(found.refresh().results) == 12
    files = sorted(p for p in (tmp_path / "r").rglob("*"))
    before = [(p, p.stat().st_mtime_ns) for p in files]
    found.refresh()
    str(found.status), found.best, found.to_pandas()
    assert [(p, p.stat().st_mtime_ns) for p in sorted((tmp_path / "r").rglob("*"))] == before


def test_status_fits_nothing_and_imports_nothing_that_takes_long(ended):
    code = """
import sys
from hpcagent.campaign import recorded
from hpcagent.runs.status import status_of
real, read = recorded.read_events, []
recorded.read_events = lambda path: read.append(path) or real(path)
text = str(status_of(sys.argv[1]))
slow = ('scipy', 'h5py', 'parsl', 'pandas', 'xarray', 'matplotlib', 'rich', 'hpcagent.statistics.gp', 'hpcagent.statistics.density')
print([name for name in slow if name in sys.modules], len(read))
print(text)
"""
    first, *lines = python(code, ended.run_dir).splitlines()
    assert first == "[] 1"
    best = max((r for r in ended.results if r.ok and r["error"] <= 1.0), key=lambda r: r["value"])
    assert lines[1].startswith("12 runs, ") and "stopped: All 12 runs have ended" in "\n".join(lines)
    assert any(line.startswith(f"best run: run {best.manifest.index}: x = ") for line in lines)
    assert any(line.endswith(f"hpcagent status {ended.run_dir} --answer") for line in lines)


def test_status_leaves_the_answer_out_where_it_takes_long_and_gives_it_when_asked(ended, capsys, monkeypatch):
    from hpcagent import cli
    from hpcagent.commands import reading

    def said(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["hpcagent", "status", str(ended.run_dir), *words])
        try:
            cli.main()
        except SystemExit as end:
            assert not end.code
        return capsys.readouterr().out

    assert "\nbest: x = " in said() and "\nbest run: " in said("--no-answer")
    monkeypatch.setattr(reading, "QUICK_RUNS", 11)
    assert "\nbest run: " in said() and "\nbest: x = " in said("--answer")
    assert json.loads(said("--json"))["best"]["params"] == ended.best.params
    brief = json.loads(said("--json", "--no-answer"))
    assert brief["best_run"]["metrics"] and "best" not in brief and brief["states"] == ended.counts


# One table, with everything that may be missing in it.
CONTRACT = Contract(
    name="a",
    space=Space.of(
        x=Float(0, 9, unit="ps"), n=Int(0, 9), fast=Choice(True, False), mixed=Choice("a", 2), speed=Float(0, 1)
    ),
    metrics=(Metric(name="speed", unit="ns/day"),),
)


def row(i: int, **more: object) -> Result:
    params = {"x": i, "n": i, "fast": True, "mixed": 2 if i else "a", "speed": 0.5} | dict(more.pop("params", {}))
    kept = {name: value for name, value in params.items() if value is not None}
    made = Manifest(execution_id=f"id-{i}", app="a", app_version="1", params=kept, index=i, seed=2**53 + i)
    return Result(manifest=made, status="COMPLETED", metrics={"speed": 7.0 * i}, **more)


ROWS = [
    row(0, uncertainty={"speed": 0.5}, bounds={"speed": "above"}),
    row(1, params={"n": None, "fast": None, "mixed": None, "x": None}),
    Result(
        manifest=row(2).manifest,
        status="FAILED",
        failure=Failure(kind="simulation", name="LostAtoms", message="gone."),
    ),
]


def test_the_table_keeps_types_units_names_and_what_is_missing_in_every_format(tmp_path):
    import pandas
    import pyarrow.parquet

    columns = columns_of(ROWS, CONTRACT)
    frame = to_pandas(columns, {"campaign": "c"})
    assert list(frame.columns) == [c.name for c in columns]
    assert frame["params/speed"].tolist() == [0.5] * 3 and frame["metrics/speed"].tolist()[:2] == [0.0, 7.0]
    assert frame["params/n"].dtype == "Int64" and frame["params/n"].tolist()[::2] == [0, 2]
    assert frame["params/n"].isna().tolist() == frame["params/fast"].isna().tolist() == [False, True, False]
    assert frame["seed"].dtype == "int64" and frame["seed"][1] == 2**53 + 1  # no float holds that
    assert frame["params/mixed"].tolist()[::2] == ["a", "2"] and frame["failure"].isna().tolist() == [
        True,
        True,
        False,
    ]
    assert math.isnan(frame["metrics/speed"][2]) and frame["bounds/speed"][0] == "above"
    assert frame.attrs["units"]["params/x"] == "ps" and frame.attrs["units"]["uncertainty/speed"] == "ns/day"

    export_columns(columns, tmp_path / "r.csv", to="csv")
    header, *rows = csv.reader(io.StringIO((tmp_path / "r.csv").read_text()))
    assert [cell.split(" [")[0] for cell in header] == list(frame.columns)
    assert "metrics/speed [ns/day]" in header and rows[1][header.index("params/n")] == ""

    export_columns(columns, tmp_path / "r.parquet", to="parquet")
    table = pyarrow.parquet.read_table(tmp_path / "r.parquet")
    assert table.column_names == list(frame.columns) and table["params/n"].to_pylist() == [0, None, 2]
    assert table.schema.field("metrics/speed").metadata[b"unit"] == b"ns/day"
    again = pandas.read_parquet(tmp_path / "r.parquet")
    assert again["metrics/speed"].tolist()[:2] == [0.0, 7.0] and again["params/n"].isna().tolist()[1]

    runs = to_xarray(columns, {"campaign": "c"})
    assert runs["metrics_speed"].dims == ("index",) and runs["metrics_speed"].attrs["units"] == "ns/day"
    assert runs.sel(index=1)["metrics_speed"].item() == 7.0 and "params_speed" in runs.coords


def test_results_of_nothing_are_a_table_without_rows():
    assert to_pandas(columns_of([], CONTRACT), {}).shape == (0, 21) and to_xarray(
        columns_of([], CONTRACT), {}
    ).sizes == {"index": 0}


def test_without_pandas_one_sentence_says_what_to_install(ended, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BadInput, match=r"needs pandas.*pip install 'hpcagent\[pandas\]'"):
        ended.to_pandas()


def test_a_dash_is_standard_output_and_no_file(ended, tmp_path):
    for to, begins in (("csv", b"execution_id,index,"), ("parquet", b"PAR1")):
        command = [sys.executable, "-m", "hpcagent.cli", "export", str(ended.run_dir), "-o", "-", "--to", to]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True)
        assert done.returncode == 0 and done.stdout.startswith(begins), done.stderr
    assert not list(tmp_path.iterdir())


def test_the_metrics_file_opens_in_xarray_with_dimension_units_dates_and_both_names(tmp_path):
    import h5py
    import numpy
    import xarray

    path = tmp_path / "metrics.h5"
    MetricsFile(path, CONTRACT).update(lambda: ROWS, final=True)
    runs = xarray.open_dataset(path, engine="h5netcdf")
    assert runs.sizes == {"index": 3} and {v.dims for v in runs.variables.values()} == {("index",)}
    assert runs.sel(index=1)["metrics_speed"].item() == 7.0 and runs["metrics_speed"].attrs["units"] == "ns/day"
    assert runs["params_mixed"].values.tolist() == ["a", "", "2"] and runs["failure"].values[2] == "LostAtoms"
    assert "params_speed" in runs.coords and numpy.isnan(runs["params_n"].values).tolist() == [False, True, False]
    assert runs["started_at"].values[0] == numpy.datetime64("1970-01-01")
    xarray.testing.assert_equal(runs, to_xarray(columns_of(ROWS, CONTRACT), {}))
    assert xarray.open_datatree(path, engine="h5netcdf")["metrics/speed"].values[1] == 7.0
    with h5py.File(path) as file:  # a link, no copy; a reader of before meets each column once, by its old name
        assert file["metrics_speed"] == file["metrics/speed"] and file["params/x"].attrs["unit"] == "ps"
        seen = []
        file.visititems(lambda name, item: seen.append(name) if isinstance(item, h5py.Dataset) else None)
    names = {c.name for c in columns_of(ROWS, CONTRACT)}
    assert len(seen) == len(names) and set(seen) == names == set(read_table(path)[0])


def test_flags_and_a_finished_campaign_open_in_xarray(tmp_path, ended):
    import xarray

    MetricsFile(tmp_path / "m.h5", CONTRACT).update(lambda: ROWS[::2], final=True)
    assert xarray.open_dataset(tmp_path / "m.h5", engine="h5netcdf")["params_fast"].values.tolist() == [True, True]
    runs = xarray.open_dataset(ended.run_dir / "metrics.h5", engine="h5netcdf")
    xarray.testing.assert_equal(runs, ended.to_xarray())
