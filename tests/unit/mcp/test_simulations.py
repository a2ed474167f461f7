"""The simple simulation through the MCP server."""

from __future__ import annotations

import anyio
import pytest


async def _ended(client, name):
    with anyio.fail_after(60):
        while True:
            found = (await client.call_tool("simulation_get_results", {"name": name})).structured_content
            if found["simulation_status"] not in ("pending", "running"):
                return found
            await anyio.sleep(0.02)


def test_with_defaults_it_runs_and_is_found_by_name_and_by_run_id(drive):
    async def body(client):
        begun = (await client.call_tool("simulation_run", {})).structured_content
        ended = await _ended(client, "default_simulation")
        return begun, ended, await _ended(client, begun["run_id"])

    begun, ended, by_id = drive(body)
    assert begun["status"] == "success" and begun["config"]["max_steps"] == 1000
    assert isinstance(begun["config"]["seed"], int)
    assert ended == by_id and ended["simulation_status"] == "completed" and ended["steps_completed"] == 1000
    assert all(one["unit"] for one in ended["results"].values())


def test_the_same_seed_and_params_give_the_same(drive):
    async def body(client):
        arguments = {"max_steps": 50, "seed": 7, "params": {"temperature": 200.0}}
        found = []
        for name in ("a", "b"):
            await client.call_tool("simulation_run", {**arguments, "name": name})
            found.append((await _ended(client, name))["results"])
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


def test_an_unknown_name_is_an_error_and_a_failed_step_is_told(drive):
    async def body(client):
        unknown = await client.call_tool("simulation_get_results", {"name": "nobody"})
        wild = {"timestep": 10.0, "spring": 1000.0, "mass": 1.0}
        await client.call_tool("simulation_run", {"name": "wild", "params": wild})
        return unknown, await _ended(client, "wild")

    unknown, wild = drive(body)
    assert unknown.is_error and "nobody" in unknown.structured_content["error"]
    if wild["status"] == "error":
        assert "step" in wild["error"]
