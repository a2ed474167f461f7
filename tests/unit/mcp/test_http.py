"""The server over HTTP: a process of its own on loopback, as clients and as attackers reach it.

Most are forks of the process of tests/warm.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from hpcagent.elsewhere import detach
from hpcagent.errors import BadInput
from hpcagent.mcp.http import serve_http
from hpcagent.mcp.own_token import own_token

pytestmark = pytest.mark.slow

MAIN = "from hpcagent.cli import main; main()"
POINT = {"kind": "synthetic", "params": {"timestep": 1e-3, "skin": 3.0}}
MODERN = "2026-07-28"


@contextlib.contextmanager
def serving(
    root: Path, *words: str, before: str = "", own: bool = False
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server of a workspace, and its URL; `own`: in a process that is no fork."""
    words = ("mcp", "--workspace", str(root), "--http", *words)
    if own:
        command = [sys.executable, "-c", f"{before}\n{MAIN}", *words]
    else:
        command = detach.started.command(*words, before=before)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as made:
        try:
            line = made.stdout.readline()
            found = re.search(r"http\S+/mcp", line)
            assert found, line + made.stderr.read()
            yield found[0], made
        finally:
            made.terminate()
            made.wait(60)


@pytest.fixture
def served(workspace) -> Iterator[str]:
    with serving(workspace.folder.root) as (url, _):
        yield url


def with_token(root: Path, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {own_token(root)}", **more}


def prepared(url: str, headers: dict[str, str], method: str, params: dict[str, Any]) -> dict[str, Any]:
    """A request of the 2026 protocol, as httpx2 takes it."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": meta, **params}}
    plain = {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": method,
    }
    return {"url": url, "headers": plain | headers, "content": json.dumps(body)}


def post(url: str, headers: dict[str, str] | None = None, **more: Any) -> httpx2.Response:
    """A request that is well formed unless `headers` and `more` say otherwise."""
    request = prepared(url, headers or {}, "tools/list", {}) | more
    return httpx2.post(**request, trust_env=False, timeout=60)


@contextlib.asynccontextmanager
async def client_of(url: str, headers: dict[str, str], mode: str = "auto"):
    async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            yield client


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_of_either_protocol_runs_something(served, workspace, mode, follow):
    async def body():
        async with client_of(served, with_token(workspace.folder.root), mode) as client:
            begun = (await client.call_tool("run_job", POINT)).structured_content
            return await follow.run(client, begun["run_id"])

    assert anyio.run(body)["metrics"]["value"] > 0


WHO = [
    ({}, 200),
    ({"Host": "localhost:9"}, 200),  # through a tunnel
    ({"Origin": "http://localhost:3000"}, 200),
    ({"Host": "evil.example"}, 421),
    ({"Host": "127.0.0.1.evil.example"}, 421),
    ({"Host": "localhost.evil.example:80"}, 421),
    ({"Origin": "https://evil.example"}, 403),
    ({"Origin": "http://localhost.evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Authorization": ""}, 401),
    ({"Authorization": "Bearer"}, 401),
    ({"Authorization": "Bearer wrong"}, 401),
    ({"Authorization": "Bearer " + "x" * 43}, 401),
    ({"Authorization": "Basic dXNlcjpwYXNz"}, 401),
    ({"Content-Type": "text/plain"}, 400),
    ({"Accept": "text/html"}, 406),
]


def test_who_is_let_in(served, workspace):
    for headers, status in WHO:
        answer = post(served, with_token(workspace.folder.root) | headers)
        assert answer.status_code == status, (headers, answer.text)
        if status == 401:
            assert answer.headers["WWW-Authenticate"].startswith("Bearer ")


def test_the_token_is_the_owners_alone_and_in_no_output(workspace):
    root = workspace.folder.root
    with serving(root, own=True) as (url, process):
        path = root / "mcp-token"
        token = path.read_text().strip()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and len(token) == 43
        assert post(url, with_token(root)).status_code == 200
        assert post(url, {"Authorization": f"Bearer {token}x"}).status_code == 401
        assert post(f"{url}?token={token}").status_code == 401
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 0 and token not in out + errors and "Traceback" not in errors, errors
    with serving(root) as (url, _):
        assert post(url, {"Authorization": f"Bearer {token}"}).status_code == 200  # also after a restart


def test_a_token_file_that_others_may_read_or_have_put_there_is_refused(tmp_path):
    (tmp_path / "mcp-token").write_text("x" * 43)
    (tmp_path / "mcp-token").chmod(0o640)
    with pytest.raises(BadInput, match="mode 640"):
        own_token(tmp_path)
    (tmp_path / "mcp-token").chmod(0o600)
    (tmp_path / "mcp-token").write_text("short")
    with pytest.raises(BadInput, match="no token in it"):
        own_token(tmp_path)
    (tmp_path / "mcp-token").rename(tmp_path / "other")
    (tmp_path / "mcp-token").symlink_to("other")
    with pytest.raises(BadInput, match="symbolic link"):
        own_token(tmp_path)


def test_without_a_token_every_user_may_call_and_that_is_said(workspace):
    with serving(workspace.folder.root, "--no-token") as (url, process):
        assert post(url).status_code == 200
        assert post(url, {"Host": "evil.example"}).status_code == 421
        process.terminate()
        assert "every user of this machine may call" in process.stderr.read()
    assert not (workspace.folder.root / "mcp-token").exists()


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({}, "--issuer and --jwks"),
        ({"token": False}, "--issuer and --jwks"),
        ({"resource_url": "https://x.org/mcp"}, "--issuer and --jwks"),
    ],
)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_it_listens_elsewhere_only_with_tokens_of_an_issuer(workspace, host, how, why):
    with pytest.raises(BadInput, match=why):
        serve_http(workspace.folder.root, host=host, **how)


def test_a_port_that_is_taken_is_one_clear_error(workspace):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(BadInput, match="in use"):
            serve_http(workspace.folder.root, port=taken.getsockname()[1])


def test_a_request_that_is_too_large_is_refused_before_it_is_read(served, workspace):
    headers = with_token(workspace.folder.root)
    assert post(served, headers, content="x" * (5 << 20)).status_code == 413
    pieces = (b"[" * 65536 for _ in range(100))
    assert post(served, headers, content=pieces).status_code == 413
    assert post(served, headers, content="[" * 100_000).status_code == 400
    assert post(served, headers, content='{"id": ' + "9" * 100_000 + "}").status_code == 400
    assert post(served, headers).status_code == 200


def test_headers_are_not_split_or_doubled(served, workspace):
    token = own_token(workspace.folder.root)
    host, port = "127.0.0.1", int(served.rpartition(":")[2].partition("/")[0])
    rest = (
        f"Host: {host}:{port}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
    )

    def raw(text: str) -> str:
        with socket.create_connection((host, port), timeout=60) as one:
            one.sendall(text.encode("latin-1"))
            return one.makefile("rb").readline().decode()

    body = "Content-Length: 2\r\n\r\n{}"
    ok = f"POST /mcp HTTP/1.1\r\n{rest}Authorization: Bearer {token}\r\n{body}"
    assert " 400 " in raw(ok)  # let in, and no request
    split = raw(f"POST /mcp HTTP/1.1\r\n{rest}X-Other: a\nAuthorization: Bearer {token[:-1]}\r\n{body}")
    assert " 401 " in split or " 400 " in split  # one of uvicorn's two parsers takes such an end of line
    assert " 400 " in raw(f"POST /mcp HTTP/1.1\r\n{rest}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}")
    assert " 400 " in raw(f"POST /mcp HTTP/1.1\r\n{rest}Bad Header: x\r\n{body}")
    assert " 404 " in raw(f"POST /../etc/passwd HTTP/1.1\r\n{rest}{body}")
    answer = post(served, {"Authorization": f"Bearer {token}", "Mcp-Method": "tools/call"})
    assert answer.status_code == 400 and "\r" not in str(answer.headers)


def test_no_session_is_open_to_another_or_beyond_their_number(workspace):
    fewer = "import hpcagent.mcp.http as h; h.SESSIONS = 2"
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    content = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
    old = with_token(workspace.folder.root, **{"MCP-Protocol-Version": "2025-06-18"})
    with serving(workspace.folder.root, before=fewer) as (url, _):
        opened = [post(url, old, content=content) for _ in range(3)]
        assert [one.status_code for one in opened] == [200, 200, 503]
        session = opened[0].headers["mcp-session-id"]
        assert re.fullmatch(r"[0-9a-f]{32}", session)
        listing = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}})
        assert post(url, old | {"Mcp-Session-Id": session}, content=listing).status_code == 200
        assert post(url, old | {"Mcp-Session-Id": "0" * 32}, content=listing).status_code == 404
        no_token = {k: v for k, v in old.items() if k != "Authorization"} | {"Mcp-Session-Id": session}
        assert post(url, no_token, content=listing).status_code == 401


@pytest.mark.parametrize("parser", ["httptools", "h11"])
def test_a_slow_client_and_one_that_goes_are_cut_off_and_hold_nothing(workspace, parser):
    impatient = "import sys, hpcagent.mcp.asgi as h; h.PATIENCE_S = 0.5"
    if parser == "h11":
        impatient += "; sys.modules['httptools'] = None"
    root = workspace.folder.root
    with serving(root, before=impatient, own=True) as (url, process):
        host, port = "127.0.0.1", int(url.rpartition(":")[2].partition("/")[0])
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Accept: application/json, text/event-stream\r\nAuthorization: {with_token(root)['Authorization']}\r\n"
        )

        def threads() -> int:
            return len(os.listdir(f"/proc/{process.pid}/task"))  # noqa: PTH208

        def open_files() -> int:
            return len(os.listdir(f"/proc/{process.pid}/fd"))  # noqa: PTH208

        assert post(url, with_token(root)).status_code == 200
        before = open_files()
        halves = ["", "POST /mcp HTT", head, head + "Content-Length: 100\r\n\r\n{"]
        slow = []
        for half in halves * 25:
            one = socket.create_connection((host, port), timeout=60)
            one.sendall(half.encode())
            slow.append(one)
        assert post(url, with_token(root)).status_code == 200
        answers = [one.makefile("rb").readline() for one in slow]  # until the server has closed it
        assert set(answers) <= {b"", b"HTTP/1.1 408 Request Timeout\r\n"}, set(answers)
        assert answers.count(b"HTTP/1.1 408 Request Timeout\r\n") == 25
        for one in slow:
            one.close()
        for _ in range(50):  # they ask, and go without taking the answer
            with socket.create_connection((host, port), timeout=60) as one:
                one.sendall((head + "Content-Length: 2\r\n\r\n{}").encode())
        assert post(url, with_token(root)).status_code == 200
        wait_until(lambda: open_files() <= before + 2)
        assert threads() < 60


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_subscription_that_its_client_has_left_is_given_back(workspace):
    params = {"notifications": {"toolsListChanged": True}}
    with serving(workspace.folder.root) as (url, _), contextlib.ExitStack() as stack:
        headers = with_token(workspace.folder.root)
        client = stack.enter_context(httpx2.Client(trust_env=False, timeout=60))

        def listen() -> int:
            """Open one; 0: it was refused."""
            request = prepared(url, headers, "subscriptions/listen", params)
            answer = stack.enter_context(client.stream("POST", **request))
            return int(answer.headers["content-type"].startswith("text/event-stream"))

        assert [listen() for _ in range(33)] == [1] * 32 + [0]
        stack.pop_all().close()  # all of them go
        stack.enter_context(client := httpx2.Client(trust_env=False, timeout=60))
        wait_until(lambda: listen() == 1)


@pytest.mark.parametrize(("mode", "polls"), [("auto", 1000), ("legacy", 200)])
def test_a_thousand_polls_at_once_come_without_an_error(served, workspace, mode, polls):
    async def body():
        answers = []
        async with client_of(served, with_token(workspace.folder.root), mode) as client:
            begun = (await client.call_tool("run_job", POINT)).structured_content

            async def poll() -> None:
                answers.append(await client.call_tool("get_status", {"run_id": begun["run_id"]}))

            async with anyio.create_task_group() as group:
                for _ in range(polls):
                    group.start_soon(poll)
        return begun["run_id"], answers

    run_id, answers = anyio.run(body)
    assert len(answers) == polls and not any(one.is_error for one in answers)
    assert {one.structured_content["run_id"] for one in answers} == {run_id}


def test_too_many_are_told_when_to_come_back(workspace):
    with serving(workspace.folder.root, "--burst", "20", "--per-s", "0.1") as (url, _):

        async def body():
            async with client_of(url, with_token(workspace.folder.root), "legacy") as client:
                return [await client.call_tool("list_apps", {}) for _ in range(25)]

        answers = anyio.run(body)
        refused = [one for one in answers if one.is_error]
        assert 0 < len(refused) < 25 and not answers[0].is_error
        assert refused[0].structured_content["refused"]["field"] == "retry_after_s"
        answer = post(url, with_token(workspace.folder.root)).json()
        assert answer["error"]["data"]["retry_after_s"] >= 1
