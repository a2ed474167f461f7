"""Headers over HTTP: what they say has to be what the request says, with or without blanks around it."""

from __future__ import annotations

from typing import Any

import anyio
import httpx2
import pytest

from hpcagent.mcp.callers import Callers
from hpcagent.mcp.http import app_of
from hpcagent.mcp.server import make_server

URL = "http://127.0.0.1:8123/mcp"
MODERN = "2026-07-28"
MISMATCH = -32020
UNKNOWN = -32602
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
}


Request = tuple[str, dict[str, Any], str | None]


@pytest.fixture
def post(workspace):
    """Send requests of 2026-07-28, each with `Mcp-Name` as given; returns status and body of each."""

    async def one(client: httpx2.AsyncClient, method: str, params: dict[str, Any], name: str | None) -> Any:
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": MODERN,
            "Mcp-Method": method,
        } | ({} if name is None else {"Mcp-Name": name})
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META, **params}}
        answer = await client.post(URL, json=body, headers=headers)
        return answer.status_code, answer.json()

    async def all_of(requests: list[Request]) -> list[Any]:
        callers = Callers(workspace.folder.root)
        app = app_of(make_server(callers), URL, guarded=False)
        try:
            async with app.router.lifespan_context(app):
                async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as client:
                    return [await one(client, *request) for request in requests]
        finally:
            callers.close()

    return lambda *requests: anyio.run(all_of, list(requests))


def test_blanks_around_a_header_are_not_of_its_value(post):
    named = {"name": "list_apps", "arguments": {}}
    for status, body in post(*(("tools/call", named, name) for name in ("list_apps", "  list_apps\t "))):
        assert status == 200 and not body["result"]["isError"]


def test_a_header_that_does_not_name_the_task_is_refused(post):
    methods = ("tasks/get", "tasks/update", "tasks/cancel")
    requests = [(method, {"taskId": "r-1"}, name) for method in methods for name in ("r-another", None)]
    for status, body in post(*requests):
        assert (status, body["error"]["code"]) == (400, MISMATCH)


def test_with_a_header_that_names_the_task_it_is_looked_for(post):
    for _, body in post(*(("tasks/get", {"taskId": "r-1"}, name) for name in ("r-1", "=?base64?ci0x?="))):
        assert body["error"]["code"] == UNKNOWN
