"""What the MCP server costs: calls in memory, over stdio and over loopback HTTP, many polls at once, a push.

Beside each call, in turn, one of a tool that does nothing, by a server of the SDK alone: what is less than that cannot be
had on this machine.

python benchmarks/mcp_server.py [--calls 300] [--polls 1000]
"""

from __future__ import annotations

import argparse
import contextlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer

import hpcagent as ha
from hpcagent.mcp.callers import Callers
from hpcagent.mcp.own_token import own_token
from hpcagent.mcp.server import make_server

COMMAND = [sys.executable, "-c", "from hpcagent.cli import main; main()", "mcp", "--workspace"]


@contextlib.asynccontextmanager
async def in_memory(root: Path) -> AsyncIterator[Client]:
    callers = Callers(root)
    try:
        async with Client(make_server(callers)) as client:
            yield client
    finally:
        callers.close()


@contextlib.asynccontextmanager
async def by_stdio(root: Path) -> AsyncIterator[Client]:
    first, *rest = [*COMMAND, str(root)]
    async with Client(stdio_client(StdioServerParameters(command=first, args=rest))) as client:
        yield client


@contextlib.asynccontextmanager
async def by_http(root: Path, most: int = 20) -> AsyncIterator[Client]:
    with subprocess.Popen([*COMMAND, str(root), "--http"], stdout=subprocess.PIPE, text=True) as made:
        try:
            assert made.stdout is not None
            found = re.search(r"http\S+/mcp", made.stdout.readline())
            assert found is not None
            headers = {"Authorization": f"Bearer {own_token(root)}"}
            limits = httpx2.Limits(max_connections=most, max_keepalive_connections=most)
            made_http = httpx2.AsyncClient(headers=headers, trust_env=False, timeout=120, limits=limits)
            async with made_http as http, Client(streamable_http_client(found[0], http_client=http)) as client:
                yield client
        finally:
            made.terminate()


BARE = """
import sys
from mcp.server.mcpserver import MCPServer
server = MCPServer("bare", log_level="WARNING")
@server.tool()
def nothing(run_id: str) -> dict[str, str]:
    return {"run_id": run_id}
server.run(sys.argv[1], **({"port": int(sys.argv[2])} if len(sys.argv) > 2 else {}))
"""


@contextlib.asynccontextmanager
async def bare_in_memory() -> AsyncIterator[Client]:
    server: MCPServer[Any] = MCPServer("bare", log_level="WARNING")

    @server.tool()
    def nothing(run_id: str) -> dict[str, str]:
        return {"run_id": run_id}

    async with Client(server) as client:
        yield client


@contextlib.asynccontextmanager
async def bare_by_stdio() -> AsyncIterator[Client]:
    words = StdioServerParameters(command=sys.executable, args=["-c", BARE, "stdio"])
    async with Client(stdio_client(words)) as client:
        yield client


@contextlib.asynccontextmanager
async def bare_by_http() -> AsyncIterator[Client]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with subprocess.Popen([sys.executable, "-c", BARE, "streamable-http", str(port)]) as made:
        try:
            while True:  # until it listens
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                await anyio.sleep(0.05)
            async with (
                httpx2.AsyncClient(trust_env=False, timeout=120) as http,
                Client(streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)) as client,
            ):
                yield client
        finally:
            made.terminate()


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return dict(result.structured_content or {})


def said(what: str, took: list[float]) -> None:
    ms = sorted(1e3 * one for one in took)
    print(
        f"{what:46s} median {statistics.median(ms):7.2f} ms   95 %: {ms[int(0.95 * len(ms))]:7.2f} ms", flush=True
    )


async def calls(client: Client, bare: Client, where: str, number: int, first: int) -> None:
    """Calls one after the other, each after the run before it has ended."""
    run = (await call(client, "run_job", kind="oscillator", params={"max_steps": 10}, seed=first))["run_id"]
    await ended(client, run)
    polls, runs, nothings = [], [], []
    for i in range(number):
        began = time.perf_counter()
        await call(bare, "nothing", run_id=run)
        nothings.append(time.perf_counter() - began)
        began = time.perf_counter()
        await call(client, "get_status", run_id=run)
        polls.append(time.perf_counter() - began)
        began = time.perf_counter()
        new = await call(client, "run_job", kind="oscillator", params={"max_steps": 10}, seed=first + i + 1)
        runs.append(time.perf_counter() - began)
        await ended(client, new["run_id"])
    said(f"nothing, by the SDK alone, {where}", nothings)
    said(f"get_status, {where}", polls)
    said(f"run_job, {where}", runs)


async def ended(client: Client, run: str) -> None:
    while (await call(client, "get_status", run_id=run))["phase"] == "pending":
        await anyio.sleep(0.005)


async def many(client: Client, polls: int) -> None:
    """So many polls at once; each must be answered."""
    run = (await call(client, "run_job", kind="oscillator", params={"max_steps": 10}, seed=1))["run_id"]
    await ended(client, run)
    began = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(polls):
            group.start_soon(lambda: call(client, "get_status", run_id=run))
    took = time.perf_counter() - began
    print(
        f"{polls} polls at once over HTTP, no error              {took:7.2f} s   {polls / took:7.0f} /s",
        flush=True,
    )


async def push(client: Client, root: Path, number: int) -> None:
    """From the time at which a result stands in the journal to the client's notice."""
    took = []
    for i in range(number):
        asked = {"kind": "oscillator", "params": {"max_steps": 2_000_000}, "seed": 10_000 + i}
        run = await call(client, "run_job", **asked)
        async with client.listen(resource_subscriptions=[run["uri"]]) as told:
            notices = aiter(told)
            while True:
                await anext(notices)
                heard = time.time()
                status = await call(client, "get_status", run_id=run["run_id"], lines=0)
                if status["phase"] != "pending":
                    took.append(heard - status["ended_at"])
                    break
    said("a finished run: from its record to the notice", took)


async def main(number: int, polls: int) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        workspace = ha.Workspace(Path(folder) / "ws", create=True)
        root = workspace.folder.root
        (root / "workspace.toml").write_text('name = "bench"\ndefault_site = "threads"\n')
        try:
            async with in_memory(root) as client, bare_in_memory() as bare:
                await calls(client, bare, "in memory", number, 100_000)
                await push(client, root, 20)
            async with by_stdio(root) as client, bare_by_stdio() as bare:
                await calls(client, bare, "stdio", number, 200_000)
            async with by_http(root) as client, bare_by_http() as bare:
                await calls(client, bare, "loopback HTTP", number, 300_000)
                await many(client, polls)
        finally:
            workspace.end(runs=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--polls", type=int, default=1000)
    given = parser.parse_args()
    anyio.run(main, given.calls, given.polls)
