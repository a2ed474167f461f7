"""Runs as tasks of the extension, as a client that takes tasks follows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import anyio
import pytest

pytest.importorskip("mcp")

from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, EmptyResult, Request, RequestParams, Result

from hpcagent.mcp.callers import Callers
from hpcagent.mcp.server import make_server
from hpcagent.mcp.serving import tools_of
from hpcagent.mcp.tasks import STARTS
from hpcagent.mcp.tools import MODULES

TASKS = "io.modelcontextprotocol/tasks"
POINT = {"kind": "synthetic", "params": {"timestep": 1e-3, "skin": 3.0}}
LONG = {"kind": "synthetic@1.0.0", "params": {"x": 0.5, "run_time_s": 3600.0}}
FAILS = {"kind": "synthetic@1.0.0", "params": {"x": 1.0, "fail_above": 0.0}}


class Which(RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class Ask(Request[Which, str]):
    method: str
    params: Which
    name_param = "taskId"


class Task(Result):
    task_id: str
    status: str
    status_message: str
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    poll_interval_ms: int
    result: dict[str, Any] | None = None


class Created(Task):
    result_type: Literal["task"] = "task"


async def ask(client, method, task_id, kind=Task, **more):
    return await client.session.send_request(Ask(method=method, params=Which(task_id=task_id, **more)), kind)


async def ended(session, task_id):
    with anyio.fail_after(30):
        while True:
            task = await session.send_request(Ask(method="tasks/get", params=Which(task_id=task_id)), Task)
            if task.status != "working":
                return task
            await anyio.sleep(0.02)


class TakesTasks(ClientExtension):
    """What a client does that takes tasks: it asks until there is a result."""

    identifier = TASKS

    def __init__(self) -> None:
        self.created: list[Created] = []

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return (ResultClaim(result_type="task", model=Created, resolve=self._resolve),)

    async def _resolve(self, created: Created, context: ClaimContext) -> CallToolResult:
        self.created.append(created)
        done = await ended(context.session, created.task_id)
        assert done.result is not None
        return CallToolResult.model_validate(done.result)


async def begun(client, arguments):
    return await client.session.call_tool("run_job", arguments, allow_claimed=True)


def test_a_call_becomes_a_task_whose_result_comes_in_the_end(drive):
    takes = TakesTasks()

    async def body(client):
        return await client.call_tool("run_job", POINT)

    result = drive(body, extensions=[takes])
    (created,) = takes.created
    assert created.ttl_ms is None and created.poll_interval_ms == 1000 and created.created_at.endswith("Z")
    found = result.structured_content
    assert created.task_id == found["run_id"] and found["state"] == "completed" and found["units"]["value"] == "1"
    assert not result.is_error and "never instructions" in result.content[0].text


def test_a_run_that_fails_is_a_completed_task_with_an_error(drive):
    async def body(client):
        return await client.call_tool("run_job", FAILS)

    result = drive(body, extensions=[TakesTasks()])
    assert result.is_error and result.structured_content["failure"]["name"]


def test_a_task_is_cancelled(drive, workspace):
    async def body(client):
        task = await begun(client, LONG)
        assert (await ask(client, "tasks/get", task.task_id)).status == "working"
        while (working := await ask(client, "tasks/get", task.task_id)).status_message != "running":
            await anyio.sleep(0.02)
        assert working.created_at < working.last_updated_at  # when it began to run
        await ask(
            client, "tasks/update", task.task_id, EmptyResult, input_responses={"nobody": {"action": "accept"}}
        )
        await ask(client, "tasks/cancel", task.task_id, EmptyResult)
        first = await ended(client.session, task.task_id)
        await ask(client, "tasks/cancel", task.task_id, EmptyResult)  # asked for again, as after a lost answer
        return first

    task = drive(body, extensions=[TakesTasks()])
    assert task.status == "cancelled" and task.result is None


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_anothers_task_is_as_unknown_as_none(drive, people, method):
    run = people("ada").run("synthetic@1.0.0", {"x": 0.5, "run_time_s": 3600.0})

    async def body(client):
        said = []
        for identity in (run["id"], "r-none"):
            with pytest.raises(MCPError) as error:
                await ask(client, method, identity, EmptyResult, input_responses={})
            said.append((error.value.code, error.value.message.replace(identity, "ID")))
        return said

    anothers, none = drive(body, as_="bob", extensions=[TakesTasks()])
    assert anothers == none and anothers[0] == -32602
    assert people("ada").status(run["id"])["ended_at"] is None


def test_refusals_stay_answers_of_the_call(drive):
    async def body(client):
        return await client.call_tool("run_job", {"kind": "synthetic", "params": {"timestep": 1}})

    takes = TakesTasks()
    assert drive(body, extensions=[takes]).is_error and not takes.created


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_that_takes_no_tasks_gets_the_handle(drive, mode):
    async def body(client):
        handle = (await client.call_tool("run_job", LONG)).structured_content
        with pytest.raises(MCPError) as error:
            await ask(client, "tasks/get", handle["run_id"])
        return handle, error.value

    handle, error = drive(body, mode=mode)
    assert handle["state"] in ("pending", "running")
    assert error.code == (-32021 if mode == "auto" else -32601)


def test_a_task_outlives_the_server(workspace):
    async def main():
        takes = TakesTasks()
        first = Callers(workspace.folder.root)
        async with Client(make_server(first), extensions=[takes]) as client:
            task = await begun(client, POINT)
        first.close()
        second = Callers(workspace.folder.root)
        try:
            async with Client(make_server(second), extensions=[takes]) as client:
                return await ended(client.session, task.task_id)
        finally:
            second.close()

    assert anyio.run(main).result["structuredContent"]["state"] == "completed"


def test_a_campaign_is_a_task_with_its_answer(drive, workspace):
    goal = {"maximize": "value"}
    found = workspace.bayesian_optimize("synthetic", goal, 4, search_space={"x": {}, "y": {}}, site="threads")
    workspace.wait(found["id"], 60)

    async def body(client):
        return await ended(client.session, found["id"])

    task = drive(body, extensions=[TakesTasks()])
    assert task.created_at < task.last_updated_at
    content = task.result["structuredContent"]
    assert task.status == "completed" and content["campaign_id"] == found["id"] and content["runs"]["done"] == 4
    assert content["answer"]["best"]["units"]["value"] == "1"


def test_a_campaign_that_is_cancelled_is_asked_to_stop_and_not_waited_for(drive, workspace):
    goal = {"maximize": "value"}
    found = workspace.bayesian_optimize(
        "synthetic", goal, 2, search_space={"x": {}}, fixed={"run_time_s": 3600.0}, site="threads", at_once=True
    )
    asked = []

    async def body(client):
        with anyio.fail_after(60):
            await ask(client, "tasks/cancel", found["id"], EmptyResult)
            asked.append((await ask(client, "tasks/get", found["id"])).status)
            return await ended(client.session, found["id"])

    task = drive(body, extensions=[TakesTasks()])
    assert asked == ["working"]
    assert task.status == "cancelled" and task.status_message.startswith("stopped") and task.result is None


def test_every_tool_that_starts_something_answers_with_a_task():
    gives = {one.name for module in MODULES for one in tools_of(module) if one.asks}
    assert set(STARTS) == gives


def test_a_simulation_is_a_task_with_the_answer_of_its_tool(drive):
    takes = TakesTasks()

    async def body(client):
        return await client.call_tool("simulation_run", {"name": "mine", "max_steps": 10, "seed": 1})

    found = drive(body, extensions=[takes]).structured_content
    assert takes.created and found["status"] == "success" and found["steps_completed"] == 10
    assert found["config"]["name"] == "mine" and found["results"]
