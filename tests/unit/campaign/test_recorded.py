"""A damaged run directory: what is put back, what is said, and that nothing else is lost."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.campaign.answer import read_run
from hpcagent.campaign.decisions import decisions, replays
from hpcagent.campaign.recorded import found_result, replayed
from hpcagent.campaign.state import State
from hpcagent.errors import BadInput
from hpcagent.reports.explain import explain
from hpcagent.reports.report import report
from hpcagent.runs.follow import follow
from hpcagent.store.journal import read_events
from hpcagent.store.rundir import RunDir
from tests.unit.campaign.records_for_tests import edit, forget, in_directories


def campaign(runs: int = 12, **more: Any) -> ha.Campaign:
    options = {"policy": "sobol", "batch_size": 4, "name": "damaged", "confirm": None} | more
    space = {"x": {}, "y": {}}
    return ha.Campaign(ha.apps.synthetic, ha.maximize("value"), space=space, until={"max_runs": runs}, **options)


@cache
def open_here() -> ha.types.Site:
    """One site for all campaigns here: opening one takes longer than their runs."""
    return ha.open_site("threads", private=True)


@pytest.fixture(scope="module", autouse=True)
def _close_site() -> Iterator[None]:
    yield
    open_here().close()
    open_here.cache_clear()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "damaged"
    ha.run(campaign(), site=open_here(), run_dir=folder)
    return folder


@pytest.fixture(scope="module")
def rolling(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rolling") / "damaged"
    ha.run(campaign(mode="rolling"), site=open_here(), run_dir=folder)
    return folder


@pytest.fixture
def folder(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "damaged"))


def lines_of(folder: Path) -> list[bytes]:
    return (folder / "events.jsonl").read_bytes().splitlines(keepends=True)


def write(folder: Path, lines: list[bytes]) -> None:
    (folder / "events.jsonl").write_bytes(b"".join(lines))


def at(lines: list[bytes], kind: str, which: int = 0) -> int:
    return [i for i, line in enumerate(lines) if json.loads(line)["event"] == kind][which]


def outcome(folder: Path) -> dict[str, tuple[int, float, float]]:
    return {
        r.manifest.execution_id: (r.manifest.index, r.metrics["value"], r.started_at)
        for r in read_run(folder).results
    }


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda line: line[: len(line) // 2] + b"\n",
    "zeros": lambda line: b"\0" * (len(line) - 1) + b"\n",
    "wrong bytes": lambda line: line[:80] + b"\xff\xfe" + line[82:],
    "of another form": lambda line: b'{"event":"manifests","at":1.0,"manifests":7}\n',
    "without a key": lambda line: line.replace(b'"app_version"', b'"app_versiom"'),
    "nested": lambda line: b"[" * 100_000 + b"\n",
    "gone": lambda line: b"",
}


def opening(told: list[str]) -> Callable[[ha.types.Event], None]:
    """A watcher that hears what a session says when its folder is open."""
    return lambda event: told.append(event.reason) if event.kind == "opened" and event.reason else None


@pytest.mark.parametrize("how", DAMAGE)
def test_who_only_reads_has_the_runs_of_a_damaged_line_of_manifests(folder, how):
    before, lines = outcome(folder), lines_of(folder)
    line = at(lines, "manifests", 1)
    lines[line] = DAMAGE[how](lines[line])
    write(folder, lines)
    seen = read_run(folder)
    assert outcome(folder) == before
    assert [r.manifest.index for r in seen.results] == list(range(12))
    assert "4 run(s) that were lost there were put back from work/" in str(seen)
    assert (f"line {line + 1}: " in str(seen)) is (how != "gone")


@pytest.mark.parametrize(("how", "which"), [("zeros", 0), ("without a key", 1), ("gone", 2)])
def test_finished_runs_of_a_damaged_line_of_manifests_are_put_back_and_it_is_said(folder, how, which):
    before, lines = outcome(folder), lines_of(folder)
    line = at(lines, "manifests", which)
    lines[line] = DAMAGE[how](lines[line])
    write(folder, lines)
    # Who only reads has everything, and is told.
    seen = read_run(folder)
    assert outcome(folder) == before
    assert [r.manifest.index for r in seen.results] == list(range(12))
    assert "4 run(s) that were lost there were put back from work/" in str(seen)
    if how != "gone":
        assert f"line {line + 1}: " in str(seen)
    # Who goes on repeats nothing, and writes it down, once.
    told: list[str] = []
    result = ha.run(campaign(), site=open_here(), run_dir=folder, watch=opening(told))
    assert outcome(folder) == before and result.node_hours == pytest.approx(seen.node_hours)
    assert "4 run(s) that were lost there were put back" in told[0]
    ha.run(campaign(), site=open_here(), run_dir=folder)
    events = [e for e in read_events(folder / "events.jsonl") if e["event"] == "rebuilt"]
    assert len(events) == 1 and len(events[0]["manifests"]) == 4 and "put back" in events[0]["remarks"][0]
    assert not [e for e in read_events(folder / "events.jsonl") if e["event"] == "results"][12:]
    assert "put back" in report(folder, plots=False).path.read_text()


def test_the_rest_of_a_campaign_with_a_damaged_line_is_as_without(folder):
    ha.run(campaign(20), site=open_here(), run_dir=shutil.copytree(folder, folder.with_name("other")))
    lines = lines_of(folder)
    line = at(lines, "manifests", 1)
    lines[line] = b"\0" * 100 + b"\n"
    write(folder, lines)
    ha.run(campaign(20), site=open_here(), run_dir=folder)
    ours, theirs = outcome(folder), outcome(folder.with_name("other"))
    assert {i: v[:2] for i, v in ours.items()} == {i: v[:2] for i, v in theirs.items()} and len(ours) == 20


def test_a_planned_run_that_had_not_begun_leaves_a_gap_that_another_fills(folder):
    lines = lines_of(folder)
    line = at(lines, "manifests", 1)
    lost = json.loads(lines[line])["manifests"][2]
    # Everything behind the line is missing too, and one of its runs was never begun.
    forget(folder, [lost["execution_id"]])
    write(folder, [*lines[:line], b"\0" * 50 + b"\n"])
    assert "1 run(s) planned there had not begun and are gone; others take their place" in str(read_run(folder))
    result = ha.run(campaign(), site=open_here(), run_dir=folder)
    indices = [r.manifest.index for r in result.results]
    assert len(indices) == len(set(indices)) == 12
    assert len({r.manifest.execution_id for r in result.results}) == 12


@pytest.mark.parametrize(("key", "number"), [("index", 11_111_111_111), ("index", -2), ("batch", 10**12)])
def test_a_position_that_no_run_has_is_damage_and_takes_no_memory(folder, key, number):
    before, lines = outcome(folder), lines_of(folder)
    line = at(lines, "manifests", 1)
    event = json.loads(lines[line])
    event["manifests"][2][key] = number
    lines[line] = json.dumps(event).encode() + b"\n"
    write(folder, lines)
    seen = read_run(folder)
    assert outcome(folder) == before and "no campaign has so many runs" in str(seen) and "gone" not in str(seen)


@pytest.mark.parametrize("kept", [0, 1, 3, 5])
@pytest.mark.parametrize("mode", ["batch", "rolling"])
def test_a_journal_whose_end_is_missing_gets_it_from_the_runs(whole, rolling, tmp_path, mode, kept):
    folder = Path(shutil.copytree(rolling if mode == "rolling" else whole, tmp_path / "damaged"))
    before = outcome(folder)
    write(folder, lines_of(folder)[:kept])
    seen = read_run(folder)
    assert outcome(folder) == before and "events.jsonl does not have were read from work/" in str(seen)
    if (mode, kept) in (("batch", 0), ("batch", 5), ("rolling", 1)):
        ha.run(campaign(mode=mode), site=open_here(), run_dir=folder)
        assert outcome(folder) == before


def test_a_confirmation_is_not_planned_twice(tmp_path):
    folder, confirmed = tmp_path / "damaged", ha.types.Confirm(top=1, replicates=2)
    ha.run(campaign(confirm=confirmed), site=open_here(), run_dir=folder)
    before, lines = outcome(folder), lines_of(folder)
    planned = at(lines, "manifests", -1)
    assert json.loads(lines[planned])["confirm"] is True
    lines[planned] = b"\0\n"
    write(folder, lines)
    ha.run(campaign(confirm=confirmed), site=open_here(), run_dir=folder)
    state = State.replay(read_events(folder / "events.jsonl"))
    assert (state.confirmed, state.confirmed_budget, len(state.manifests)) == (12, 12, 12)
    ha.run(campaign(16, confirm=confirmed), site=open_here(), run_dir=folder)
    after = outcome(folder)
    assert before.items() <= after.items() and len(after) == 16


def test_lines_that_stand_there_twice_count_once(folder):
    before, lines, cost = outcome(folder), lines_of(folder), read_run(folder).node_hours
    write(folder, [line for line in lines for _ in range(2)])
    seen = read_run(folder)
    assert outcome(folder) == before and seen.node_hours == cost and len(seen.results) == 12
    assert f"{len(lines)} line(s) of events.jsonl stand there twice and count once" in str(seen)
    assert not replays(folder)


def test_lines_out_of_order_are_read_in_their_order(folder):
    before, lines = outcome(folder), lines_of(folder)
    write(folder, [lines[0], *reversed(lines[1:])])
    assert outcome(folder) == before
    assert [r.manifest.index for r in ha.run(campaign(), site=open_here(), run_dir=folder).results] == list(
        range(12)
    )


def test_lines_of_another_campaign_are_left_out(folder, tmp_path):
    @ha.app(metrics={"value": "1"}, parameters={"x": ha.Float(0, 1)})
    def other(x: float) -> dict[str, float]:
        return {"value": x}

    ha.run(
        ha.Campaign(other, ha.maximize("value"), policy="sobol", until={"max_runs": 4}),
        site=open_here(),
        run_dir=tmp_path / "other",
    )
    before = outcome(folder)
    write(folder, lines_of(folder) + lines_of(tmp_path / "other"))
    seen = read_run(folder)
    assert outcome(folder) == before and "a run of other 0.1.0 is of another campaign" in str(seen)


def test_what_a_newer_version_wrote_is_read_and_said_once(folder):
    before, lines = outcome(folder), lines_of(folder)
    for kind in ("manifests", "results"):
        for which in (0, 1):
            line = at(lines, kind, which)
            event = json.loads(lines[line]) | {"novelty": 1}
            for row in event[kind]:
                row["colour"] = "red"
                row.setdefault("cost", {})["energy_j"] = 1.0 if kind == "results" else None
                if kind == "manifests":
                    del row["cost"]
            lines[line] = json.dumps(event).encode() + b"\n"
    lines.append(b'{"event":"thought","at":1.0,"what":"new"}\n')
    write(folder, lines)
    text = str(read_run(folder))
    assert outcome(folder) == before
    assert text.count("Result.colour") == text.count("Result.cost.energy_j") == text.count("Manifest.colour") == 1
    ha.run(campaign(), site=open_here(), run_dir=folder)
    assert outcome(folder) == before


@pytest.mark.parametrize(
    "word",
    [
        b"1e999",
        b'"much"',
        b"9" * 5000,
    ],
    ids=["huge", "text", "digits"],
)
def test_a_value_in_the_journal_that_is_no_number_is_taken_from_the_run_itself(folder, word):
    before, lines = outcome(folder), lines_of(folder)
    line = at(lines, "results", 1)
    value = json.dumps(json.loads(lines[line])["results"][0]["metrics"]["value"]).encode()
    lines[line] = lines[line].replace(b'"value":' + value, b'"value":' + word, 1).replace(value, word, 1)
    write(folder, lines)
    assert f"line {line + 1}: " in str(read_run(folder))
    assert outcome(folder) == before
    ha.run(campaign(), site=open_here(), run_dir=folder)
    assert outcome(folder) == before


BAD_RESULTS: dict[str, bytes] = {
    "empty": b"",
    "zeros": b"\0" * 200,
    "a list": b"[]",
    "an empty object": b"{}",
    "cut": b'{"status": "COMPL',
    "no number": b'{"status": "COMPLETED", "metrics": {"value": "x"}}',
    "not finite": b'{"status": "COMPLETED", "metrics": {"value": 1e999}}',
    "a huge number": b'{"status": "COMPLETED", "metrics": {"value": 1' + b"0" * 400 + b"}}",
    "nested": b"[" * 100_000,
    "failed of nothing": b'{"status": "FAILED"}',
    "an odd failure": b'{"status": "FAILED", "failure": "x"}',
    "an odd cost": b'{"status": "COMPLETED", "metrics": {}, "cost": 3}',
    "an odd status": b'{"status": "DONE", "failure": {"kind": "simulation", "name": "A", "message": "b"}}',
    "of another run": b'{"status": "COMPLETED", "metrics": {"value": 1.0}, "workdir": "/elsewhere/other"}',
}


def test_a_damaged_result_file_is_no_result(folder):
    in_directories(folder)
    manifest = read_run(folder).results[0].manifest
    path = folder / "work" / manifest.execution_id / "result.json"
    assert found_result(folder / "work", manifest)[0] is not None
    for how, data in BAD_RESULTS.items():
        path.write_bytes(data)
        result, wrong = found_result(folder / "work", manifest)
        assert result is None and str(path) in wrong, how


@pytest.mark.parametrize("how", ["cut", "of another run"])
def test_a_damaged_result_file_is_told_kept_and_its_run_made_again(folder, how):
    in_directories(folder)
    before, lines = outcome(folder), lines_of(folder)
    line = at(lines, "results", -1)
    lost = [row["execution_id"] for row in json.loads(lines[line])["results"]]
    write(folder, lines[:line] + lines[line + 1 :])
    place = folder / "work" / lost[0]
    (place / "result.json").write_bytes(BAD_RESULTS[how])
    told: list[str] = []
    ha.run(campaign(), site=open_here(), run_dir=folder, watch=lambda e: told.append(e.reason))
    after = outcome(folder)
    assert {i: v[:2] for i, v in after.items()} == {i: v[:2] for i, v in before.items()}
    assert [i for i in after if after[i][2] != before[i][2]] == [lost[0]]
    assert any(str(place / "result.json") in words for words in told)
    assert any(p.read_bytes() == BAD_RESULTS[how] for p in place.glob("attempt-*/result.json*"))


def test_a_result_file_of_a_newer_version_is_taken_and_said(folder):
    in_directories(folder)
    before, lines = outcome(folder), lines_of(folder)
    line = at(lines, "results", -1)
    lost = [row["execution_id"] for row in json.loads(lines[line])["results"]]
    write(folder, lines[:line] + lines[line + 1 :])
    path = folder / "work" / lost[0] / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": "red"}))
    told: list[str] = []
    ha.run(campaign(), site=open_here(), run_dir=folder, watch=lambda e: told.append(e.reason))
    assert outcome(folder) == before and any("Result.colour" in words for words in told)


@pytest.mark.parametrize("how", [*BAD_RESULTS, "not JSON", "no words"])
def test_a_damaged_line_of_the_records_costs_its_run_and_is_told(folder, how):
    before, lines = outcome(folder), lines_of(folder)
    line = at(lines, "results", -1)
    lost = [row["execution_id"] for row in json.loads(lines[line])["results"]]
    write(folder, lines[:line] + lines[line + 1 :])
    bad = BAD_RESULTS.get(how, b"\xff\0")
    start = b'{"event":"ended","execution_id":"%s",' % lost[0].encode() if how != "no words" else b"\0"
    ended = {"event": "ended", "execution_id": lost[0]}
    edit(folder, lambda said: start + b'"result":' + bad + b"}" if ended.items() <= said.items() else said)
    told: list[str] = []
    ha.run(campaign(), site=open_here(), run_dir=folder, watch=lambda e: told.append(e.reason))
    after = outcome(folder)
    assert {i: v[:2] for i, v in after.items()} == {i: v[:2] for i, v in before.items()}
    assert [i for i in after if after[i][2] != before[i][2]] == [lost[0]]
    assert any(re.search(r"work/records\S* is damaged", words) for words in told) is (how != "no words")
    ha.run(campaign(), site=open_here(), run_dir=folder)
    assert outcome(folder) == after


def test_results_on_record_and_in_directories_are_found_alike(folder):
    before, lines = outcome(folder), lines_of(folder)
    write(folder, lines[: at(lines, "results", 0)])
    assert outcome(folder) == before
    in_directories(folder)
    assert outcome(folder) == before


def test_a_key_of_a_newer_version_lets_a_folder_be_read_and_not_gone_on_with(folder):
    app = folder / "app.json"
    app.write_text(json.dumps(json.loads(app.read_text()) | {"colour": "red"}))
    assert "App.colour, which this version does not know" in str(read_run(folder))
    with pytest.raises(BadInput, match=r"app\.json has App\.colour"):
        ha.run(campaign(), site=open_here(), run_dir=folder)


@pytest.mark.parametrize("name", ["app.json", "campaign.toml"])
@pytest.mark.parametrize("text", [b"", b"\0\0\0", b"[1]", b"\xff\xfe"])
def test_a_damaged_campaign_is_one_error_that_names_the_file_and_what_to_do(folder, name, text):
    (folder / name).write_bytes(text)
    with pytest.raises(BadInput, match=rf"{name}.*put it back from a copy"):
        read_run(folder)


def test_explain_replay_and_follow_read_a_damaged_journal(folder):
    lines = lines_of(folder)
    line = at(lines, "manifests", 1)
    lines[line] = b"\0" * 30 + b"\n"
    write(folder, lines)
    assert explain(folder, 0).again and explain(folder, 9).again
    with pytest.raises(BadInput, match="what the policy was asked stood on a damaged line"):
        explain(folder, 5)
    assert [m.index for d in decisions(folder) for m in d.manifests] == [0, 1, 2, 3, 8, 9, 10, 11]
    lines[at(lines[:line], "results")] = b'{"event":"results","at":1.0,"results":3}\n'
    write(folder, lines)
    events = list(follow(folder))
    assert "put back from work" in events[0].reason and events[-1].kind == "left"  # a result is to be recorded
    ha.run(campaign(), site=open_here(), run_dir=folder)
    assert [e.kind for e in follow(folder)] == ["opened", "stopped"]


def without(folder: Path, kind: str, which: int) -> list[str]:
    """Take a line out of the journal; returns the execution ids on it."""
    lines = lines_of(folder)
    event = json.loads(lines.pop(at(lines, kind, which)))
    write(folder, lines)
    return [row["execution_id"] for row in event[kind]]


def test_results_on_a_line_that_is_gone_are_read_and_said_and_resume_says_what_was_lost(folder):
    before = outcome(folder)
    lost = without(folder, "results", 1)
    assert not set(lost) & set(replayed(RunDir(folder), campaign(), look=False).results)
    seen = read_run(folder)
    assert outcome(folder) == before and seen.reason
    assert f"{len(lost)} result(s) that events.jsonl does not have were read from work/" in str(seen)
    text = report(folder, plots=False).path.read_text()
    assert "events.jsonl does not have" in text and "12 runs, 12 completed" in text
    told: list[str] = []
    ha.run(campaign(), site=open_here(), run_dir=folder, watch=opening(told))
    assert f"{len(lost)} of them found in work/records" in told[0]
    assert f"{len(lost)} of them events.jsonl has lost" in told[0]
    assert outcome(folder) == before and "events.jsonl" not in str(read_run(folder))


def test_what_a_journal_cannot_tell_is_not_looked_for_in_each_run_where_it_is_whole(folder, monkeypatch):
    in_directories(folder)
    looked: list[str] = []
    monkeypatch.setattr("hpcagent.apps.finished.final_result", lambda path: looked.append(path.name) or (None, ""))
    assert len(read_run(folder).results) == 12 and not looked
    lost = without(folder, "results", 0)
    assert len(read_run(folder).results) == 12 - len(lost) and sorted(looked) == sorted(lost)
    looked.clear()
    with (folder / ".lock").open() as file:  # a coordinator has it, and is about to record what has ended
        fcntl.flock(file, fcntl.LOCK_EX)
        read_run(folder)
    assert not looked


def test_a_digit_that_was_changed_in_a_manifest_is_not_believed(folder):
    params = {r.manifest.execution_id: r.manifest.params for r in read_run(folder).results}
    before, lines = outcome(folder), lines_of(folder)
    line = at(lines, "manifests", 1)
    event = json.loads(lines[line])
    changed = event["manifests"][2]
    changed["params"]["x"] += 0.25
    lines[line] = json.dumps(event).encode() + b"\n"
    write(folder, lines)
    seen = read_run(folder)
    assert {r.manifest.execution_id: r.manifest.params for r in seen.results} == params
    assert outcome(folder) == before
    assert f"run {changed['execution_id']}: what it says was run is not what this id stands for" in str(seen)
    assert "1 run(s) that were lost there were put back" in str(seen)
    ha.run(campaign(), site=open_here(), run_dir=folder)
    assert outcome(folder) == before
    assert {r.manifest.execution_id: r.manifest.params for r in read_run(folder).results} == params


def test_no_file_of_the_folder_stays_open_after_a_campaign_in_threads(tmp_path):
    ha.run(campaign(4), site=open_here(), run_dir=tmp_path)
    links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert not [path for path in links if str(tmp_path) in str(path)]
