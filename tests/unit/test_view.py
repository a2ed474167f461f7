"""What a person sees while a campaign runs."""

from __future__ import annotations

import io
import json

from rich.console import Console

import hpcagent as ha
from hpcagent.campaign.events import Event
from hpcagent.campaign.loading import load_campaign
from hpcagent.campaign.view import EACH_BATCH, JsonLines, Lines, Live
from hpcagent.model.records import Cost, Failure, Manifest, Result

CAMPAIGN = load_campaign("synthetic")


def result(i: int, *, failed: bool = False) -> Result:
    params = CAMPAIGN.complete({"x": 0.1 + 0.01 * i, "y": 0.4, "style": "plain"})
    manifest = Manifest(execution_id=f"id-{i}", app="synthetic", app_version="1.0.0", params=params, index=i)
    if failed:
        failure = Failure(kind="simulation", name="SyntheticCrash", message="gone.")
        return Result(manifest=manifest, status="FAILED", failure=failure)
    metrics = {"value": 10.0 + i, "error": 0.5}
    return Result(manifest=manifest, status="COMPLETED", metrics=metrics, cost=Cost(wall_s=1, node_hours=0.5))


EVENTS = [
    Event("opened", reason="new", budget=36),
    Event("finished", results=(result(0), result(1), result(2, failed=True)), runs=3, running=3, budget=36),
    Event("batch", results=(result(0), result(1), result(2, failed=True)), runs=3, running=3, budget=36),
    Event("stopped", reason="enough.", runs=3, budget=36),
]


def test_lines_tell_each_batch_with_best_failures_and_what_is_left():
    stream = io.StringIO()
    view = Lines(CAMPAIGN, stream)
    for event in EVENTS:
        view(event)
    first, batch, last = stream.getvalue().splitlines()
    assert first == "synthetic: new" and last == "stopped: enough."
    assert "3/36 runs; 3 running; failed: 1 SyntheticCrash; best single run: value 11" in batch
    # Half a node-hour for each of two completed of three runs, 33 to go.
    assert "11 node-hours left" in batch


def test_json_lines_can_be_read_by_a_program():
    stream = io.StringIO()
    view = JsonLines(CAMPAIGN, stream)
    for event in EVENTS:
        view(event)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["opened", "finished", "batch", "stopped"]
    assert lines[1]["results"][2]["failure"]["name"] == "SyntheticCrash"


def test_the_live_view_has_a_bar_a_summary_and_the_latest_runs_each_on_lines_of_their_own():
    stream = io.StringIO()
    view = Live(CAMPAIGN, Console(file=stream, force_terminal=True, width=120, color_system=None))
    for event in EVENTS:
        view(event)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert any(line.endswith("━" * 10) for line in lines)
    assert any(line.lstrip().startswith("3/36 runs") for line in lines)
    assert any("SyntheticCrash" in line and "0.12" in line for line in lines)


def test_a_view_whose_reader_has_gone_is_silent():
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    view = Lines(load_campaign("synthetic"), Gone())
    for event in EVENTS:
        view(event)


def test_the_best_so_far_is_that_of_earlier_sessions_too():
    stream = io.StringIO()
    view = Lines(CAMPAIGN, stream)
    view(Event("opened", reason="resumed", results=(result(9),), runs=1, budget=36))
    view(Event("finished", results=(result(0),), runs=2, budget=36))
    view(Event("batch", results=(result(0),), runs=2, budget=36))
    assert "best single run: value 19" in stream.getvalue().splitlines()[-1]


def test_many_quick_batches_do_not_fill_a_log():
    stream = io.StringIO()
    view = Lines(CAMPAIGN, stream)
    for i in range(200):
        view(Event("batch", results=(result(0),), runs=i + 1))
    view(Event("stopped", reason="enough.", runs=200))
    lines = stream.getvalue().splitlines()
    assert len(lines) == EACH_BATCH + 2  # the last one, and why it stopped
    assert "200 runs" in lines[-2] and lines[-1] == "stopped: enough."


def test_run_tells_how_it_goes_unless_told_not_to_or_watched(tmp_path, capsys):
    short = load_campaign("synthetic", changes={"until.max_runs": 4, "confirm.top": 0})
    ran = ha.run(short, site="threads", run_dir=tmp_path / "a", report=True)
    out, err = capsys.readouterr()
    first, second, *_, last = err.splitlines()
    assert out == "" and first.startswith("synthetic: starting threads: ") and second.startswith("synthetic: new")
    assert (
        last.startswith(f"report: {tmp_path}/a/report/report.html (open this first)")
        and (tmp_path / "a/report/report.md").is_file()
    )
    written = ran.report(plots=False)
    assert written.path == tmp_path / "a/report/report.md" and written.plots == ()
    seen = []
    ha.run(short, site="threads", run_dir=tmp_path / "b", progress=False)
    ha.run(short, site="threads", run_dir=tmp_path / "c", watch=seen.append)
    assert capsys.readouterr() == ("", "")
    assert [event.kind for event in seen][:2] == ["starting", "opened"] and seen[-1].kind == "stopped"
    assert not (tmp_path / "b/report").exists()
