"""Runs through the MCP server, as a client calls it."""

from __future__ import annotations

import json

import pytest

POINT = {"kind": "synthetic", "params": {"timestep": 1e-3, "skin": 3.0}}


def test_a_run_is_started_followed_and_found_again(drive, follow):
    async def body(client):
        begun = (await client.call_tool("run_job", POINT)).structured_content
        status = await follow.run(client, begun["run_id"])
        again = (await client.call_tool("run_job", POINT)).structured_content
        return begun, status, again

    begun, status, again = drive(body)
    assert begun["state"] == "pending" and not begun["found"] and begun["uri"] == f"run://{begun['run_id']}"
    assert status["state"] == "completed" and status["units"]["value"] == "1"
    assert again["run_id"] == begun["run_id"] and again["found"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"kind": "synthetic", "params": {"timestep": 1e-3}}, "params.skin"),
        ({"kind": "lammps", "params": {"timestep": 6e-3, "skin": 2}}, "params.timestep"),
        ({"kind": "lammps", "params": {"timestep": 1e-3, "skin": 0.5}}, "params.skin"),
        ({"kind": "lammps", "params": {"timestep": 1e-3, "skin": 2, "dt": 1}}, "params.dt"),
        ({"kind": "lammps", "params": {"timestep": True, "skin": 2}}, "params.timestep"),
        ({"kind": "synthetic", "params": {"x": 9}, "site": "threads"}, "params.timestep"),
        ({**POINT, "dry_run": True}, "dry_run"),
        ({"kind": "oscillator", "params": {"mass": -1}}, "mass"),
        ({"kind": "no_such_app", "params": {}}, "app"),
    ],
)
def test_wrong_arguments_name_the_field_and_run_nothing(drive, workspace, arguments, field):
    async def body(client):
        return await client.call_tool("run_job", arguments)

    result = drive(body)
    assert result.is_error
    assert result.structured_content["refused"]["field"] == field
    assert result.content[0].text == result.structured_content["error"]
    assert workspace.list()["runs"] == []


def test_every_tool_says_what_it_does_takes_and_gives(drive):
    async def body(client):
        return (await client.list_tools()).tools

    for tool in drive(body):
        assert tool.description and tool.annotations is not None and tool.output_schema, tool.name
        assert tool.input_schema["additionalProperties"] is False, tool.name
        for name, one in tool.input_schema["properties"].items():
            assert one.get("description"), (tool.name, name)
        assert not {"anyOf", "oneOf", "allOf"} & set(tool.input_schema), (
            tool.name
        )  # some models refuse these at the top
        json.dumps(tool.output_schema)


def test_an_estimate_checks_what_a_run_checks_and_takes_what_it_takes(drive, follow):
    async def body(client):
        wrong = {"kind": "query_materials_database", "params": {"source": "/etc/hostname"}}
        refused = [await follow.refused(client, tool, wrong) for tool in ("estimate", "run_job")]
        assert refused[0]["refused"]["field"] == refused[1]["refused"]["field"] == "source"
        code = {"kind": "lj_argon", "params": {}, "settings": {"script": "shell id"}}
        assert "may be code" in str(await follow.refused(client, "estimate", code))
        made = await follow.said(client, "run_job", {"kind": "build_crystal", "params": {"name": "Cu"}})
        arguments = {"run_id": made["run_id"]}
        await follow.until(client, "get_status", arguments, lambda s: s["phase"] == "finished")
        whole = {"kind": "dft_energy", "params": {"engine": "emt"}, "inputs": [made["run_id"]]}
        assert (await follow.said(client, "estimate", whole | {"resources": {"memory_gb": 1.0}}))["wall_s"] > 0

    drive(body)
