"""Events through the MCP server."""

from __future__ import annotations

import anyio

RUN = {"kind": "synthetic", "params": {"timestep": 1e-3, "skin": 3.0}}
PEOPLE = '\n[people.ada]\nrole = "planner"\n\n[people.bob]\nrole = "planner"\n\n[people.eve]\nrole = "viewer"\n'


async def _next(client, subscription):
    with anyio.fail_after(60):
        while True:
            asked = {"subscription_id": subscription, "wait_s": 1.0}
            found = (await client.call_tool("get_notifications", asked)).structured_content["notifications"]
            if found:
                return found


def test_a_run_tells_its_subscriber_until_acknowledged(drive):
    async def body(client):
        asked = {"events": ["on_job_complete"], "where": {"job_type": "synthetic"}}
        made = (await client.call_tool("subscribe_events", asked)).structured_content
        run = (await client.call_tool("run_job", RUN)).structured_content
        mine = made["subscription_id"]
        first, again = await _next(client, mine), await _next(client, mine)
        await client.call_tool("acknowledge_notifications", {"subscription_id": mine, "n": first[-1]["n"]})
        after = (await client.call_tool("get_notifications", {"subscription_id": mine})).structured_content
        ended = (await client.call_tool("unsubscribe_events", {"subscription_id": mine})).structured_content
        gone = await client.call_tool("get_notifications", {"subscription_id": mine})
        return made, run, first, again, after, ended, gone

    made, run, first, again, after, ended, gone = drive(body)
    assert made["status"] == "active" and ended["status"] == "ended" and gone.is_error
    assert first == again and after["notifications"] == []
    assert first[0]["event"] == "on_job_complete" and first[0]["payload"]["job_id"] == run["run_id"]
    assert first[0]["payload"]["timestamp"] and first[0]["payload"]["result_url"]


def test_people_tell_each_other_and_nobody_tells_what_only_the_service_knows(drive, workspace):
    with (workspace.folder.root / "workspace.toml").open("a") as file:
        file.write(PEOPLE)
    kept = {}

    async def subscribe(client):
        asked = {"events": ["on_message", "on_job_complete"]}
        kept["id"] = (await client.call_tool("subscribe_events", asked)).structured_content["subscription_id"]

    async def tell(client):
        told = {"event": "on_message", "payload": {"text": "look"}, "to": ["bob"]}
        forged = {"event": "on_job_complete", "payload": {"job_id": "r-1", "result_url": "x"}, "to": ["*"]}
        control = {**told, "payload": {"text": "look\x1b[31m"}}
        stranger = {**told, "to": ["mallory"]}
        foreign = {"subscription_id": kept["id"]}
        return (
            await client.call_tool("tell_event", told),
            await client.call_tool("tell_event", forged),
            await client.call_tool("tell_event", control),
            await client.call_tool("tell_event", stranger),
            await client.call_tool("get_notifications", foreign),
            await client.call_tool("unsubscribe_events", foreign),
        )

    async def read(client):
        return await _next(client, kept["id"])

    drive(subscribe, as_="bob")
    told, *refused = drive(tell, as_="ada")
    assert told.structured_content["to"] == ["bob"]
    assert all(one.is_error for one in refused)
    found = drive(read, as_="bob")
    assert [one["event"] for one in found] == ["on_message"]
    assert found[0]["payload"]["by"] == "ada"
    assert all(one.is_error for one in drive(tell, as_="eve"))  # a viewer may not write


def test_waiting_is_at_most_a_second(drive):
    async def body(client):
        made = await client.call_tool("subscribe_events", {"events": ["on_message"]})
        asked = {"subscription_id": made.structured_content["subscription_id"]}
        too_long = await client.call_tool("get_notifications", {**asked, "wait_s": 5.0})
        unknown = await client.call_tool("subscribe_events", {"events": ["on_no_such_event"]})
        return too_long, unknown, await client.call_tool("get_notifications", asked)

    too_long, unknown, none = drive(body)
    assert too_long.structured_content["refused"]["field"] == "wait_s"
    assert unknown.is_error and none.structured_content["notifications"] == []
