"""The simple simulation through the MCP server."""

from __future__ import annotations

import pytest


def _over(found):
    return found["simulation_status"] not in ("pending", "running")


def test_with_defaults_it_runs_and_is_found_by_name_and_by_run_id(drive, follow):
    async def body(client):
        begun = (await client.call_tool("simulation_run", {})).structured_content
        ended = await follow.until(client, "simulation_get_results", {"name": "default_simulation"}, _over)
        return begun, ended, await follow.until(client, "simulation_get_results", {"name": begun["run_id"]}, _over)

    begun, ended, by_id = drive(body)
    assert begun["status"] == "success" and begun["config"]["max_steps"] == 1000
    assert isinstance(begun["config"]["seed"], int)
    assert ended == by_id and ended["simulation_status"] == "completed" and ended["steps_completed"] == 1000
    assert all(one["unit"] for one in ended["results"].values())


def test_the_same_seed_and_params_give_the_same(drive, follow):
    async def body(client):
        arguments = {"max_steps": 50, "seed": 7, "params": {"temperature": 200.0}}
        found = []
        for name in ("a", "b"):
            await client.call_tool("simulation_run", {**arguments, "name": name})
            found.append((await follow.until(client, "simulation_get_results", {"name": name}, _over))["results"])
        return found

    one, two = drive(body)
    assert one == two and one


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": 2.5}, "max_steps"),
        ({"max_steps": True}, "max_steps"),
        ({"max_steps": 10**12}, "max_steps"),
        ({"name": ""}, "name"),
        ({"name": " \n"}, "name"),
        ({"seed": -1}, "seed"),
        ({"params": {"mass": "heavy"}}, "params.mass"),
        ({"params": {"mass": -1.0}}, "mass"),
        ({"params": {"no_such": 1.0}}, "no_such"),
        ({"params": {"max_steps": 5.0}}, "params"),
        ({"steps": 5}, "steps"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_runs(drive, workspace, arguments, field):
    async def body(client):
        return await client.call_tool("simulation_run", arguments)

    result = drive(body)
    assert result.is_error and result.structured_content["error"]
    assert result.structured_content["refused"]["field"] == field
    assert workspace.list()["runs"] == []


def test_an_unknown_name_is_an_error_and_a_failed_step_is_told(drive, follow):
    async def body(client):
        unknown = await client.call_tool("simulation_get_results", {"name": "nobody"})
        wild = {"timestep": 10.0, "spring": 1000.0, "mass": 1.0}
        await client.call_tool("simulation_run", {"name": "wild", "params": wild})
        return unknown, await follow.until(client, "simulation_get_results", {"name": "wild"}, _over)

    unknown, wild = drive(body)
    assert unknown.is_error and "nobody" in unknown.structured_content["error"]
    if wild["status"] == "error":
        assert "step" in wild["error"]
