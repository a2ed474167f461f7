"""The same run with something changed, through the MCP server."""

from __future__ import annotations

import pytest


def test_the_same_with_another_skin_and_fifty_degrees_more(drive, follow):
    async def body(client):
        first = {"kind": "lammps", "params": {"timestep": 2e-3, "skin": 2.0}}
        first = await follow.said(client, "run_job", first)
        second = await follow.said(client, "repeat_run", {"changes": ["skin=1 angstrom"]})
        third = await follow.said(client, "repeat_run", {"changes": ["skin=0.3 nm", "temperature +50 K"]})
        fourth = await follow.said(client, "repeat_run", {"changes": ["timestep /2"], "run_id": first["run_id"]})
        for one in (first, second, third, fourth):
            await client.call_tool("cancel", {"run_id": one["run_id"]})
        return first, second, third, fourth

    first, second, third, fourth = drive(body)
    assert second["since"] == first["run_id"] and second["params"]["skin"] == 1.0
    assert second["units"]["skin"] == "angstrom" and second["changes"] == ["skin=1 angstrom"]
    assert third["since"] == second["run_id"]
    assert third["params"]["skin"] == 3.0 and third["params"]["temperature"] == 130.0
    assert fourth["since"] == first["run_id"]
    assert fourth["params"]["timestep"] == 1e-3 and fourth["params"]["skin"] == 2.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["skin=1"], "the number has no unit"),
        (["skin=1 K"], "cannot be converted"),
        (["skin=90 angstrom"], "outside"),
        (["skn=1 angstrom"], "no parameter"),
        (["make it better"], "is no change"),
        (["skin=1 angstrom", "skin=2 angstrom"], "changed twice"),
    ],
)
def test_a_wrong_change_says_what_is_wrong_and_runs_nothing(drive, follow, workspace, changes, words):
    async def body(client):
        run = await follow.said(client, "run_job", {"kind": "lammps", "params": {"timestep": 2e-3, "skin": 2.0}})
        found = await follow.refused(client, "repeat_run", {"changes": changes})
        await client.call_tool("cancel", {"run_id": run["run_id"]})
        return found

    found = drive(body)
    assert found["refused"]["field"] == "changes" and words in found["error"], found
    assert len(workspace.list()["runs"]) == 1


def test_without_a_run_there_is_nothing_to_repeat(drive, follow):
    found = drive(lambda client: follow.refused(client, "repeat_run", {"changes": ["skin=1 angstrom"]}))
    assert "no run of yours" in found["error"]


def test_a_run_of_somebody_else_is_not_there(drive, follow, workspace):
    rules = 'name = "group"\ndefault_site = "threads"\n[people.ada]\nrole = "planner"\n'
    (workspace.folder.root / "workspace.toml").write_text(rules)
    other = workspace.run("synthetic", {"x": 0.3})
    asked = {"changes": ["x +0.1"], "run_id": other["id"]}
    found = drive(lambda client: follow.refused(client, "repeat_run", asked), as_="ada")
    assert "there is no run" in found["error"]


def test_a_change_names_no_file_of_this_machine(drive, follow, workspace):
    workspace.run("calculate", {"expression": "1 + 1"})
    asked = {"changes": ["expression=/etc/passwd"]}
    found = drive(lambda client: follow.refused(client, "repeat_run", asked))
    assert found["refused"]["field"] == "expression"
