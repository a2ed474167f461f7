"""One word for one state: every door says the same of a run that was given up, and of a campaign with such runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hpcagent as ha
from hpcagent.campaign.answer import read_run
from hpcagent.campaign.coordinator import Coordinator
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.state import State
from hpcagent.cli import cli
from hpcagent.reports.explain import explain
from hpcagent.reports.report import report
from hpcagent.runs.follow import follow
from hpcagent.store.export import export_table
from hpcagent.store.journal import read_events
from hpcagent.store.metrics_file import table_of, units_of
from tests.unit.campaign.states_for_tests import measure

REASON = (
    "All 6 runs have ended, 1 of them failed. 2 runs were given up (2 NoExecutable); resuming runs them again."
)
REPAIRED = "All 6 runs have ended, 1 of them failed."


def campaign() -> Campaign:
    return ha.Campaign(
        measure,
        ha.maximize("y"),
        policy="grid",
        until=ha.until.max_runs(6),
        batch_size=6,
        confirm=None,
        name="states",
    )


@pytest.fixture(scope="module")
def given_up(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A campaign of six runs: three complete, one fails, two are given up; its folder, and what `run` printed."""
    folder = tmp_path_factory.mktemp("states") / "run"
    result = ha.run(campaign(), site="threads", run_dir=folder)
    assert result.reason == REASON
    return folder, str(result)


def call(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    return done.exit_code, done.stdout


def test_the_answer_counts_them_apart_and_says_that_resuming_runs_them_again(given_up):
    folder, printed = given_up
    result = read_run(folder)
    assert result.counts == {"completed": 3, "failed": 1, "given up": 2}
    assert sorted(r.manifest.params["x"] for r in result.given_up) == [1, 4]
    assert result.reason == REASON and result.exit_code == 4
    assert "6 runs, 3 completed, 1 failed, 2 given up, " in printed
    assert "\nfailed: 1 Exploded\ngiven up: 2 NoExecutable\n" in printed and f"\nstopped: {REASON}\n" in printed


def test_status_says_what_run_has_said(given_up):
    folder, printed = given_up
    code, text = call("status", folder)
    assert code == 0 and text.startswith(printed) and "not finished" not in text
    data = json.loads(call("status", folder, "--json")[1])
    assert data["reason"] == REASON and data["states"] == {"completed": 3, "failed": 1, "given up": 2}


def test_following_it_ends_with_the_same_reason_and_exit_code(given_up):
    folder, printed = given_up
    events = list(follow(folder))
    assert [e.kind for e in events] == ["opened", "stopped"]
    assert events[0].reason.startswith("6 of 6 run(s) so far, 3 completed, 1 failed, 2 given up, ")
    assert (events[0].runs, events[0].running) == (6, 0) and events[1].reason == REASON
    code, text = call("status", folder, "--follow")
    assert code == 4 and printed in text


def test_the_report_and_the_tables_have_the_same_words(given_up, tmp_path):
    folder, _ = given_up
    text = report(folder, plots=False).path.read_text()
    assert "- 6 runs, 3 completed, 1 failed, 2 given up, " in text and f"- stopped: {REASON}\n" in text
    assert "| NoExecutable | infrastructure | 2 | given up |" in text
    assert "| Exploded | simulation | 1 | failed |" in text
    assert text.count("| given up: NoExecutable |") == 2 and text.count("| failed: Exploded |") == 1
    results = read_run(folder).results
    contract = measure.contract
    export_table(table_of(results, contract), units_of(results, contract), tmp_path / "a.csv", to="csv")
    header, *rows = [line.split(",") for line in (tmp_path / "a.csv").read_text().splitlines()]
    states = [row[header.index("state")] for row in rows]
    assert sorted(states) == ["completed"] * 3 + ["failed"] + ["given up"] * 2


def test_explain_says_what_became_of_each(given_up):
    folder, _ = given_up
    found = {explain(folder, n).params["x"]: explain(folder, n) for n in range(6)}
    assert [found[x].state for x in range(6)] == [
        "completed",
        "given up",
        "completed",
        "failed",
        "given up",
        "completed",
    ]
    assert found[1].outcome == "given up: NoExecutable (infrastructure): no program."
    assert any("resuming runs it again" in note for note in found[1].notes)
    assert found[3].outcome == "failed: Exploded (simulation): x=3 fails."


def test_resuming_runs_those_again_and_only_those(tmp_path):
    folder = tmp_path / "run"
    heard = []
    assert ha.run(campaign(), site="threads", run_dir=folder).reason == REASON
    assert ha.run(campaign(), site="threads", run_dir=folder).reason == REASON  # the machine is as it was
    (folder / "repaired").touch()
    result = ha.run(campaign(), site="threads", run_dir=folder, watch=heard.append)
    opened = next(event for event in heard if event.kind == "opened")
    assert "resumed with 4 finished run(s); 2 that were given up are run again" in opened.reason
    assert opened.runs == 4 and heard[-1].runs == 6
    assert result.reason == read_run(folder).reason == REPAIRED and result.exit_code == 0
    assert result.counts == {"completed": 5, "failed": 1}
    assert call("status", folder, "--follow")[0] == 0
    runs = [len(e["results"]) for e in read_events(folder / "events.jsonl") if e["event"] == "results"]
    assert sum(runs) == 6 + 2 + 2


def test_run_and_resume_end_with_exit_code_4(tmp_path):
    folder, path = tmp_path / "run", tmp_path / "states.toml"
    path.write_text(campaign().toml())
    words = ("--site", "threads", "--no-plots")
    code, text = call("run", path, *words, "--run-dir", folder)
    assert code == 4 and f"stopped: {REASON}" in text
    assert call("resume", folder, *words)[0] == 4
    (folder / "repaired").touch()
    assert call("resume", folder, *words)[0] == 0


def test_a_run_without_a_result_is_running_while_somebody_is_at_it_and_waits_otherwise(tmp_path):
    folder = tmp_path / "run"
    (folder / "repaired").parent.mkdir()
    with Coordinator(campaign(), site="threads", run_dir=folder) as coordinator:
        planner, state = coordinator._session.planner, coordinator._session.state
        planned = planner.next_batch()
        assert len(planned) == 6 and state.ended == 0
        assert read_run(folder).counts == {"running": 6}
        assert explain(folder, 0).outcome == "running: no result yet"
        assert next(iter(follow(folder))).running == 6
    found = read_run(folder)
    assert found.counts == {"waiting": 6} and found.reason is None
    assert explain(folder, 0).outcome == "waiting: no result yet"
    assert "not finished; it goes on with" in call("status", folder)[1]
    assert next(iter(follow(folder))).running == 0


def test_what_the_cap_left_no_room_for_was_given_up_too():
    state = State()
    manifest = measure.manifest({"x": 0}, index=0, batch=0)
    state.apply({"event": "manifests", "manifests": [manifest.model_dump(mode="json")], "at": 1.0})
    stop = {"event": "stop", "reason": "the cap of 1 node-hours is reached.", "at": 2.0}
    state.apply(stop)
    assert not state.over() and state.ended == 0  # nobody said so: its result is lost
    state.apply(stop | {"not_started": [manifest.execution_id]})
    assert state.over()
    assert state.why_stopped(state.stopped) == (
        "the cap of 1 node-hours is reached. 1 run was given up (1 not started); resuming runs it again."
    )
    assert state.states() == {manifest.execution_id: "given up"} and state.ended == 1


def test_a_folder_of_before_that_was_opened_again_after_its_end_has_stopped(tmp_path):
    """Earlier versions wrote the same stop once only, so a session may be the last event."""
    folder = tmp_path / "run"
    (folder / "repaired").parent.mkdir()
    (folder / "repaired").touch()
    ha.run(campaign(), site="threads", run_dir=folder)
    events = folder / "events.jsonl"
    session = next(line for line in events.read_text().splitlines() if json.loads(line)["event"] == "session")
    with events.open("a") as file:
        file.write(session + "\n")
    assert read_run(folder).reason == REPAIRED
    assert [e.kind for e in follow(folder)] == ["opened", "stopped"]
