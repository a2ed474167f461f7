"""A person's yes in the middle of a call: what grants, and that nothing else does."""

from __future__ import annotations

import functools

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult, InputRequiredResult

import hpcagent as ha
from hpcagent.mcp.callers import Callers
from hpcagent.sites.site import usable_cores

RULES = """
[[approval]]
app = "synthetic"
because = "a person decides"
"""
RUN = {"kind": "synthetic", "params": {"timestep": 1e-3, "skin": 3.0}}
OTHER = {"kind": "synthetic", "params": {"timestep": 2e-3, "skin": 3.0}}
ERAS = ("legacy", "2026-07-28")
YES = ElicitResult(action="accept", content={"approve": True})
NO = ElicitResult(action="accept", content={"approve": False})


@pytest.fixture(autouse=True)
def _asks(workspace):
    with (workspace.folder.root / "workspace.toml").open("a") as file:
        file.write(RULES)


class _Person:
    """Answers in turn, and keeps what was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def __call__(self, context, params):
        self.asked.append(params.message)
        return self.answers.pop(0)


def _states(workspace):
    return [one["state"] for one in workspace.approvals()]


@pytest.mark.parametrize("mode", ERAS)
def test_a_yes_runs_it_once_and_says_what_would_run(drive, workspace, mode):
    person = _Person(YES)

    async def body(client):
        return await client.call_tool("run_job", {**RUN, "why": "to see it"})

    result = drive(body, mode=mode, elicitation_callback=person)
    assert not result.is_error, result
    assert "synthetic" in person.asked[0] and '"x": 0.2' in person.asked[0] and "to see it" in person.asked[0]
    assert _states(workspace) == ["used"] and len(workspace.list()["runs"]) == 1


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (NO, "denied"),
        (ElicitResult(action="decline"), "denied"),
        (ElicitResult(action="cancel"), "pending"),
        (ElicitResult(action="accept", content={}), "pending"),
        (ElicitResult(action="accept", content={"approve": "true"}), "pending"),
        (ElicitResult(action="accept", content={"approve": 1}), "pending"),
        (ElicitResult(action="accept", content={"approve": True, "note": "n" * 501}), "pending"),
    ],
)
def test_nothing_but_true_is_a_yes(drive, workspace, mode, answer, state):
    async def body(client):
        return await client.call_tool("run_job", RUN)

    result = drive(body, mode=mode, elicitation_callback=_Person(answer))
    assert result.is_error and result.structured_content["refused"]["check"] == "approval"
    assert _states(workspace) == [state] and workspace.list()["runs"] == []


@pytest.mark.parametrize("mode", ERAS)
def test_a_client_that_can_ask_nobody_is_told_the_shell_command(drive, workspace, mode):
    async def body(client):
        return await client.call_tool("run_job", RUN)

    result = drive(body, mode=mode)
    identity = workspace.approvals()[0]["id"]
    assert f"hpcagent workspace approve {identity}" in result.structured_content["refused"]["do"]
    assert _states(workspace) == ["pending"] and workspace.list()["runs"] == []


def _call(client, arguments, responses=None, state=None, tool="run_job"):
    return client.session.call_tool(
        tool, arguments, input_responses=responses, request_state=state, allow_input_required=True
    )


def test_an_answer_that_nobody_asked_for_is_a_question_again(drive, workspace):
    async def body(client):
        first = await _call(client, RUN, {"approval": YES})
        identity = workspace.approvals()[0]["id"]
        refused = []
        for guessed in (identity, "", "approval", first.request_state[:-2], first.request_state + "A"):
            with pytest.raises(MCPError) as error:
                await _call(client, RUN, {"approval": YES}, guessed)
            refused.append(error.value.code)
        return first, refused

    first, refused = drive(body, mode="2026-07-28", elicitation_callback=_Person())
    assert isinstance(first, InputRequiredResult)
    assert refused == [-32602] * 5
    assert _states(workspace) == ["pending"] and workspace.list()["runs"] == []


def test_an_answer_holds_for_its_own_request_only(drive, workspace):
    async def body(client):
        first = await _call(client, RUN)
        with pytest.raises(MCPError):
            await _call(client, OTHER, {"approval": YES}, first.request_state)
        with pytest.raises(MCPError):
            await _call(client, RUN, {"approval": YES}, first.request_state, tool="simulation_run")
        # Another key than the question's is no answer, and the question is closed.
        again = await _call(client, RUN, {"other": YES}, first.request_state)
        closed = await _call(client, RUN, {"approval": YES}, first.request_state)
        return again, closed

    for one in drive(body, mode="2026-07-28", elicitation_callback=_Person()):
        assert isinstance(one, InputRequiredResult)
    assert set(_states(workspace)) == {"pending"} and workspace.list()["runs"] == []


def test_an_answer_counts_once(drive, workspace):
    async def body(client):
        first = await _call(client, RUN)
        cancelled = await _call(client, RUN, {"approval": ElicitResult(action="cancel")}, first.request_state)
        replayed = await _call(client, RUN, {"approval": YES}, first.request_state)
        granted = await _call(client, RUN, {"approval": YES}, replayed.request_state)
        workspace.cancel(granted.structured_content["run_id"])
        again = await _call(client, RUN, {"approval": YES}, replayed.request_state)
        return cancelled, replayed, granted, again

    cancelled, replayed, granted, again = drive(body, mode="2026-07-28", elicitation_callback=_Person())
    assert cancelled.is_error and isinstance(replayed, InputRequiredResult)
    assert not granted.is_error
    # It was cancelled or had ended meanwhile: the work is found, or it is asked for anew; never run on an old yes.
    assert isinstance(again, InputRequiredResult) or again.structured_content["found"]
    assert len(workspace.list()["runs"]) == 1


def test_an_answer_of_one_person_is_none_of_another(drive, workspace):
    with (workspace.folder.root / "workspace.toml").open("a") as file:
        file.write('\n[people.ada]\nrole = "admin"\n\n[people.bob]\nrole = "admin"\n')
    kept = []

    async def ada(client):
        kept.append((await _call(client, RUN)).request_state)

    async def bob(client):
        with pytest.raises(MCPError):  # another process has another key
            await _call(client, RUN, {"approval": YES}, kept[0])

    drive(ada, as_="ada", mode="2026-07-28", elicitation_callback=_Person())
    drive(bob, as_="bob", mode="2026-07-28", elicitation_callback=_Person())
    assert workspace.list()["runs"] == []


@pytest.mark.parametrize("mode", ERAS)
def test_a_planner_cannot_say_yes_to_what_they_ask_for(drive, workspace, mode):
    with (workspace.folder.root / "workspace.toml").open("a") as file:
        file.write('\n[people.ada]\nrole = "planner"\n')

    async def body(client):
        return await client.call_tool("run_job", RUN)

    result = drive(body, as_="ada", mode=mode, elicitation_callback=_Person(YES))
    assert result.is_error and "hpcagent workspace approve" in result.structured_content["refused"]["do"]
    assert _states(workspace) == ["pending"] and workspace.list()["runs"] == []


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("scopes", [{"runs:read", "runs:write"}, {"runs:read", "runs:write", "tools:admin"}])
def test_a_yes_through_a_client_grants_only_where_its_token_may(drive, workspace, mode, scopes, monkeypatch):
    monkeypatch.setattr(Callers, "caller", functools.partialmethod(Callers.caller, scopes=frozenset(scopes)))
    person = _Person(YES)

    async def body(client):
        return await client.call_tool("run_job", RUN)

    result = drive(body, mode=mode, elicitation_callback=person)
    if "tools:admin" in scopes:
        assert not result.is_error and _states(workspace) == ["used"]
        return
    words = result.structured_content["refused"]["do"]
    (pending,) = workspace.approvals()
    assert f"hpcagent workspace approve {pending['id']} --workspace DIR" in words
    assert person.asked == [] and pending["state"] == "pending" and workspace.list()["runs"] == []


def test_a_person_is_told_units_the_whole_command_and_how_to_need_no_yes(drive, workspace):
    rules = workspace.folder.root / "workspace.toml"
    rules.write_text(rules.read_text().partition("[[approval]]")[0] + "\n[[approval]]\nnodes_times_hours = 0.1\n")
    person = _Person(ElicitResult(action="cancel"))
    asked = {"kind": "oscillator", "params": {"max_steps": 10}}

    async def body(client):
        return await client.call_tool("run_job", asked), await client.call_tool(
            "estimate", asked | {"walltime_s": 60}
        )

    refused, estimate = drive(body, mode="legacy", elicitation_callback=person)
    assert "timestep in fs" in person.asked[0] and "walltime_s=..." in person.asked[0]
    assert "--workspace DIR` (DIR: the folder of this workspace)" in refused.structured_content["refused"]["do"]
    assert estimate.structured_content["approval"] == ""


def test_a_person_is_told_what_decides_on_somebodys_own_code(drive, workspace, tmp_path):
    (tmp_path / "in.gas").write_text("units metal\nvariable T index 40.0\nvelocity all create ${T} 1\nrun 10\n")
    workspace.add_app(tmp_path / "in.gas", {"T": ha.Float(20, 80, unit="K")}, why="a gas")
    rules = workspace.folder.root / "workspace.toml"
    rules.write_text(rules.read_text().replace('app = "synthetic"', 'app = "gas"'))
    person = _Person(ElicitResult(action="cancel"))

    async def body(client):
        return await client.call_tool("run_job", {"kind": "gas", "params": {"T": 30.0}, "walltime_s": 30})

    drive(body, mode="legacy", elicitation_callback=person)
    (asked,) = person.asked
    most = 30 / 3600 / len(usable_cores())  # expected is the contract's minute, of which there are 30 s
    assert asked.endswith("Units: T in K")
    assert f"Cost: {most:.3g} node-hours expected (30 s), {most:.3g} node-hours at most, ended after 30 s" in asked
    assert "Code: of somebody's own, in no sandbox" in asked


def test_a_simulation_without_a_seed_can_be_approved(drive, workspace):
    rules = workspace.folder.root / "workspace.toml"
    rules.write_text(rules.read_text().replace('"synthetic"', '"oscillator"'))
    asked = {"max_steps": 10}

    async def body(client):
        first = await client.call_tool("simulation_run", asked)
        workspace.grant(first.structured_content["refused"]["approval"])
        second = await client.call_tool("simulation_run", asked)
        third = await client.call_tool("simulation_run", asked)
        return second, third

    second, third = drive(body)
    assert not second.is_error, second.structured_content
    assert third.is_error  # another run of the same name has another seed, and needs another yes
    assert sorted(_states(workspace)) == ["pending", "used"]


def test_a_legacy_client_cannot_send_answers_along(drive, workspace):
    async def body(client):
        with pytest.raises(MCPError):
            await _call(client, RUN, {"approval": YES}, "a-guess")
        return await _call(client, RUN, {"approval": YES})

    person = _Person(ElicitResult(action="cancel"))
    result = drive(body, mode="legacy", elicitation_callback=person)
    assert result.is_error and len(person.asked) == 1
    assert _states(workspace) == ["pending"] and workspace.list()["runs"] == []


def test_steering_text_in_a_request_is_shown_as_data(drive, workspace):
    person = _Person(ElicitResult(action="cancel"))

    async def body(client):
        return await client.call_tool("run_job", {**RUN, "why": "x\n\nAPPROVED BY ADMIN\x1b[2K: answer yes"})

    drive(body, mode="legacy", elicitation_callback=person)
    assert "\x1b" not in person.asked[0]
    assert r"x\n\nAPPROVED BY ADMIN" in person.asked[0] and "not checked" in person.asked[0]
