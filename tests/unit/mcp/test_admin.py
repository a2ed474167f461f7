"""Approvals, costs, rules and old folders through the MCP server."""

from __future__ import annotations

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult, InputRequiredResult

RULES = """
retention_days = 1

[quota]
node_hours = 5

[[approval]]
app = "synthetic"
because = "a person decides"

[people.ada]
role = "planner"

[people.boss]
role = "admin"
"""
RUN = {"kind": "synthetic", "params": {"timestep": 1e-3, "skin": 3.0}, "walltime_s": 60}
ERAS = ("legacy", "2026-07-28")
YES = ElicitResult(action="accept", content={"approve": True})


@pytest.fixture(autouse=True)
def _rules(workspace):
    with (workspace.folder.root / "workspace.toml").open("a") as file:
        file.write(RULES)


def _person(*answers):
    left, asked = list(answers), []

    async def answer(context, params):
        asked.append(params.message)
        return left.pop(0)

    return answer, asked


def _asked_by_ada(drive):
    async def body(client):
        return await client.call_tool("run_job", RUN)

    refused = drive(body, as_="ada").structured_content["refused"]
    return refused["approval"]


@pytest.mark.parametrize("mode", ERAS)
def test_a_grant_is_confirmed_by_a_person_and_lets_through_once(drive, workspace, mode):
    identity = _asked_by_ada(drive)
    answer, asked = _person(YES)

    async def grant(client):
        shown = (await client.call_tool("list_approvals", {})).structured_content
        done = await client.call_tool("decide_approval", {"approval_id": identity, "grant": True, "note": "fine"})
        return shown, done.structured_content

    shown, done = drive(grant, as_="boss", mode=mode, elicitation_callback=answer)
    assert [one["id"] for one in shown["approvals"]] == [identity] and shown["more"] == 0
    assert done["state"] == "granted" and done["decided_by"] == "boss"
    assert identity in asked[0] and "ada" in asked[0] and "synthetic" in asked[0]
    assert "fine" in workspace.approvals()[0]["note"] and "through" in workspace.approvals()[0]["note"]

    async def run(client):
        return await client.call_tool("run_job", RUN)

    assert not drive(run, as_="ada").is_error
    assert workspace.approvals()[0]["state"] == "used"


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("answer", [ElicitResult(action="decline"), ElicitResult(action="cancel")])
def test_without_the_persons_yes_nothing_is_granted(drive, workspace, mode, answer):
    identity = _asked_by_ada(drive)

    async def body(client):
        return await client.call_tool("decide_approval", {"approval_id": identity, "grant": True})

    assert drive(body, as_="boss", mode=mode, elicitation_callback=_person(answer)[0]).is_error
    nobody = drive(body, as_="boss", mode=mode)
    assert f"hpcagent workspace approve {identity}" in nobody.structured_content["refused"]["do"]
    assert workspace.approvals()[0]["state"] == "pending"


def test_forged_confirmations_grant_nothing(drive, workspace):
    identity = _asked_by_ada(drive)
    arguments = {"approval_id": identity, "grant": True}

    async def body(client):
        def call(responses=None, state=None, **changed):
            return client.session.call_tool(
                "decide_approval",
                arguments | changed,
                input_responses=responses,
                request_state=state,
                allow_input_required=True,
            )

        unasked = await call({"approval": YES})
        with pytest.raises(MCPError):
            await call({"approval": YES}, identity)
        # The state of a denial's arguments, of another approval, of another note: each is of another request.
        for changed in ({"note": "x"}, {"approval_id": "a-other"}):
            with pytest.raises(MCPError):
                await call({"approval": YES}, unasked.request_state, **changed)
        await call({"approval": ElicitResult(action="cancel")}, unasked.request_state)
        return unasked, await call({"approval": YES}, unasked.request_state)

    unasked, replayed = drive(body, as_="boss", mode="2026-07-28", elicitation_callback=_person()[0])
    assert isinstance(unasked, InputRequiredResult) and isinstance(replayed, InputRequiredResult)
    assert workspace.approvals()[0]["state"] == "pending"


def test_to_deny_asks_nobody_and_roles_and_scopes_hold(drive, workspace):
    identity = _asked_by_ada(drive)

    async def body(client):
        return await client.call_tool("decide_approval", {"approval_id": identity, "grant": False})

    assert drive(body, as_="ada").is_error  # a planner decides nothing
    assert workspace.approvals()[0]["state"] == "pending"
    assert drive(body, as_="boss").structured_content["state"] == "denied"

    async def granted(client):
        wrong = [{"approval_id": identity, "grant": "true"}, {"approval_id": identity, "grant": 1}]
        return [await client.call_tool("decide_approval", one) for one in (*wrong, {**wrong[0], "grant": True})]

    results = drive(granted, as_="boss", elicitation_callback=_person()[0])
    assert all(one.is_error for one in results)
    assert "denied" in results[-1].structured_content["error"]


def test_a_planner_grants_nothing_of_their_own(drive, workspace):
    identity = _asked_by_ada(drive)

    async def body(client):
        return await client.call_tool("decide_approval", {"approval_id": identity, "grant": True})

    assert drive(body, as_="ada", mode="legacy", elicitation_callback=_person(YES)[0]).is_error
    assert workspace.approvals()[0]["state"] == "pending"


def test_old_folders_go_only_when_a_person_says_so(drive, workspace):
    async def body(client):
        return [await client.call_tool("expire_runs", {}) for _ in range(2)]

    nobody, asked = _person()
    kept = drive(body, as_="boss", mode="legacy", elicitation_callback=nobody)
    assert not asked and kept[0].structured_content["removed"] == []  # nobody is asked for nothing

    old = workspace.run("oscillator", {"max_steps": 2}, walltime_s=60.0)["id"]
    workspace.wait(old, timeout_s=60)
    rules = workspace.folder.rules
    rules.write_text(rules.read_text().replace("retention_days = 1", "retention_days = 1e-9"))
    assert drive(body, as_="boss")[0].is_error
    answer, asked = _person(ElicitResult(action="decline"), YES)
    no, yes = drive(body, as_="boss", mode="legacy", elicitation_callback=answer)
    assert no.is_error and yes.structured_content["removed"] == [old]
    assert "files of 1 old runs" in asked[0] and "removed after 1e-09 days" in asked[0]


def test_the_workspace_says_who_asks_what_holds_and_what_it_cost(drive, workspace):
    async def body(client):
        card = (await client.call_tool("get_workspace", {"all_sites": True})).structured_content
        return card, (await client.call_tool("get_costs", {})).structured_content

    card, costs = drive(body, as_="ada")
    assert card["caller"]["name"] == "ada" and card["caller"]["role"] == "planner"
    assert "at most 5 node-hours of the workspace" in card["rules"]
    assert any("a person approves what is a run of synthetic" in one for one in card["rules"])
    assert {"threads", "laptop"} <= {one["name"] for one in card["sites"]}
    assert str(workspace.folder.root) not in str(card)
    assert costs["workspace"]["node_hours"] == 0 and "boss" not in costs["people"]
