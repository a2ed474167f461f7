"""What has changed in a workspace since the last look, and a campaign's runs as a table."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.workspace.campaign_table import CampaignTable, columns_of

RULES = (
    'name = "group"\ndefault_site = "threads"\n[people.ada]\nrole = "planner"\n[people.bob]\nrole = "planner"\n'
)


@pytest.fixture
def workspace(tmp_path: Path):
    made = ha.Workspace(tmp_path / "ws", create=True)
    (made.folder.root / "workspace.toml").write_text(RULES)
    yield made
    made.end(runs=True)


def test_changes_come_once_and_a_run_that_goes_on_comes_again(workspace: ha.Workspace):
    run = workspace.run("synthetic", {"x": 0.3, "run_time_s": 0.5})
    first = workspace.changes(timeout_s=10)
    assert [row["id"] for row in first["rows"]] == [run["id"]]
    workspace.wait(run["id"], 60)
    seen, after = [], first["after"]
    while "completed" not in seen:
        found = workspace.changes(after, timeout_s=10)
        seen += [row["state"] for row in found["rows"]]
        after = found["after"]
    assert workspace.changes(after) == {"rows": [], "after": after, "more": False, "anew": False}
    assert workspace.changes("now") == workspace.changes(after)


def test_changes_come_a_page_at_a_time(workspace: ha.Workspace):
    ids = [workspace.run("synthetic", {"x": x})["id"] for x in (0.1, 0.2, 0.3)]
    for identity in ids:
        workspace.wait(identity, 60)
    first = workspace.changes(most=2)
    second = workspace.changes(first["after"], most=2)
    assert (len(first["rows"]), first["more"], len(second["rows"]), second["more"]) == (2, True, 1, False)
    assert {row["id"] for row in first["rows"] + second["rows"]} == set(ids)


def test_a_cursor_of_another_service_begins_anew(workspace: ha.Workspace):
    run = workspace.run("synthetic", {"x": 0.3})
    workspace.wait(run["id"], 60)
    after = workspace.changes()["after"]
    workspace.end()
    found = workspace.changes(after)
    assert found["anew"]
    assert [row["id"] for row in found["rows"]] == [run["id"]]


def test_a_change_of_somebody_else_is_not_told(workspace: ha.Workspace):
    ada = ha.Workspace(workspace.folder.root, as_="ada")
    bob = ha.Workspace(workspace.folder.root, as_="bob")
    after = bob.changes()["after"]
    ada.wait(ada.run("synthetic", {"x": 0.4})["id"], 60)
    assert bob.changes(after)["rows"] == []
    assert bob.jobs() == []


def test_who_waits_is_told_at_once(workspace: ha.Workspace):
    after = workspace.changes()["after"]
    other = ha.Workspace(workspace.folder.root)
    told: list[dict] = []
    waiting = threading.Thread(target=lambda: told.append(other.changes(after, timeout_s=60)))
    waiting.start()
    run = workspace.run("synthetic", {"x": 0.5})
    waiting.join(30)
    assert told[0]["rows"][0]["id"] == run["id"]


def test_a_campaigns_runs_are_a_table_with_units(workspace: ha.Workspace):
    begun = workspace.start("synthetic", changes={"until.max_runs": 6})
    workspace.wait(begun["id"], 120)
    found = workspace.campaign_runs(begun["id"], most=4)
    rest = workspace.campaign_runs(begun["id"], found["after"])
    assert found["more"] and not rest["more"]
    assert rest["about"] is None
    indices = found["runs"]["index"] + rest["runs"]["index"]
    assert sorted(indices) == [*range(6)]
    assert found["totals"]["done"] == 6
    about = found["about"]
    assert about["goals"] == [{"metric": "value", "direction": "maximize", "sign": 1.0}]
    assert about["limits"] == [{"metric": "error", "text": "error <= 1"}]
    errors, keeps = found["runs"]["metrics"]["error"], found["runs"]["keeps"]
    assert [None if e is None else e <= 1 for e in errors] == keeps
    assert {p["name"]: p["unit"] for p in about["parameters"]}["x"] == "1"
    one = workspace.campaign_run(begun["id"], found["runs"]["id"][0])
    assert one["params"]["x"] == found["runs"]["params"]["x"][0]
    assert one["units"] == {"value": "1", "error": "1"} or one["failure"]["name"] == "SyntheticCrash"
    with pytest.raises(ha.BadInput, match="has no run"):
        workspace.campaign_run(begun["id"], "../../x")


def line(index: int, **more: object) -> str:
    fields = {"execution_id": f"e{index}", "index": index, "role": "suggested", "batch": 0, "params": {"x": index}}
    return json.dumps({"event": "manifests", "manifests": [{**fields, **more}]}) + "\n"


def test_a_damaged_line_costs_only_itself_and_numbers_are_finite(tmp_path: Path):
    journal = tmp_path / "events.jsonl"
    result = {
        "execution_id": "e1",
        "status": "COMPLETED",
        "cost": {"wall_s": 1.0},
        "metrics": {"a": 1.0, "b": "x"},
    }
    journal.write_text(
        line(0) + "{nonsense\n" + line(1) + line(2, params=3) + '{"event":"results","results":[]}\n'
    )
    table = CampaignTable(tmp_path)
    table.look()
    assert list(table.rows) == ["e0", "e1"]
    with journal.open("a") as file:
        file.write(json.dumps({"event": "results", "results": [result, {"execution_id": "unknown"}]}) + "\n")
    table.look()
    rows, upto, more = table.since(2, 10)
    assert [row["id"] for row in rows] == ["e1"]
    assert columns_of(rows, going=True)["metrics"] == {"a": [1.0]}
    assert (upto, more) == (3, False)
