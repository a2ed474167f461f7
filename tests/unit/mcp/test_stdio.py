"""`hpcagent mcp` over stdin and stdout: a process of its own, driven by the SDK's client.

Most are forks of the process of tests/warm.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from hpcagent.elsewhere import detach

pytestmark = pytest.mark.slow

MAIN = "from hpcagent.cli import main; main()"
POINT = {"kind": "synthetic", "params": {"timestep": 1e-3, "skin": 3.0}}

# A tool of the server as an app of somebody's own: it prints in every way that there is.
NOISY = """\
    import ctypes, os, subprocess, sys
    from hpcagent.mcp.tools import runs
    quiet = runs.AppList
    def noisy(*args, **more):
        print("printed")
        sys.stdout.write("written\\n")
        sys.stdout.flush()
        os.write(1, b"by descriptor\\n")
        libc = ctypes.CDLL(None)
        libc.puts(b"by a C library")
        libc.fflush(None)
        subprocess.run(["echo", "by a child"], check=True)
        assert sys.stdin.read() == ""
        return quiet(*args, **more)
    runs.AppList = noisy
"""


def command(*words: str, before: str = "", own: bool = False) -> list[str]:
    """The server's; `own`: no fork."""
    if not own:
        return detach.started.command("mcp", *words, before=textwrap.dedent(before))
    return [sys.executable, "-c", f"{textwrap.dedent(before)}\n{MAIN}", "mcp", *words]


def parameters(workspace, *words: str, before: str = "") -> StdioServerParameters:
    first, *rest = command("--workspace", str(workspace.folder.root), *words, before=before)
    return StdioServerParameters(command=first, args=rest, env=dict(os.environ))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_whatever_is_printed_stdout_is_the_protocols_alone(workspace, tmp_path, mode):
    errors = tmp_path / "stderr"

    async def body():
        with errors.open("w") as to, anyio.fail_after(60):
            async with Client(stdio_client(parameters(workspace, before=NOISY), errlog=to), mode=mode) as client:
                first = await client.call_tool("list_apps", {})
                begun = await client.call_tool("run_job", POINT)
                return first, begun

    first, begun = anyio.run(body)
    assert first.structured_content["apps"] and begun.structured_content["run_id"]
    said = errors.read_text()
    for words in ("printed", "written", "by descriptor", "by a C library", "by a child"):
        assert f"{words}\n" in said, said


@contextlib.contextmanager
def begun(workspace, *, own: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """The server, with which a client of the 2025 protocol has shaken hands."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command("--workspace", str(workspace.folder.root), own=own), **pipes) as made:
        try:
            shake_hands(made)
            yield made
        finally:
            made.kill()


@pytest.fixture
def process(workspace) -> Iterator[subprocess.Popen[bytes]]:
    with begun(workspace) as made:
        yield made


def ask(process: subprocess.Popen[bytes], method: str, n: int, params: dict | None = None) -> dict:
    """One request of the 2025 protocol, and its answer."""
    line = json.dumps({"jsonrpc": "2.0", "id": n, "method": method, "params": params or {}})
    process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    assert answer["id"] == n, answer
    return answer


def shake_hands(process: subprocess.Popen[bytes]) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    assert "result" in ask(process, "initialize", 1, hello)
    process.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
    process.stdin.flush()


def test_it_ends_when_the_client_closes_stdin_and_the_run_goes_on(process, workspace):
    begun = ask(process, "tools/call", 2, {"name": "run_job", "arguments": POINT})["result"]["structuredContent"]
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and out == b"" and b"Traceback" not in errors, errors
    assert workspace.wait(begun["run_id"], 60)["state"] == "completed"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_cleanly_while_stdin_is_open(workspace, number):
    with begun(workspace, own=number == signal.SIGTERM) as process:
        assert "result" in ask(process, "tools/call", 2, {"name": "list_apps", "arguments": {}})
        process.send_signal(number)
        assert process.wait(timeout=60) == 0
        assert b"Traceback" not in process.stderr.read() and process.stdout.read() == b""
    assert workspace.about()["pid"]  # the service is a process of its own


def test_a_client_that_no_longer_reads_ends_it(process, workspace):
    process.stdout.close()
    process.stdin.write(b'{"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}\n')
    process.stdin.flush()
    assert process.wait(timeout=60) == 0
    assert b"Traceback" not in process.stderr.read()


def _request(n: object, params: str = "{}", method: str = '"tools/list"') -> bytes:
    return f'{{"method": {method}, "params": {params}, "jsonrpc": "2.0", "id": {n}}}\n'.encode()


NO_MESSAGES = [
    (b"no json\n", None, -32700),
    (b"[" * 100_000 + b"\n", None, -32700),
    (b"\xff\xfe\n", None, -32700),
    (_request(7, '{"a": "\\ud800"}'), 7, -32700),
    (_request(7, '{"a": ' + "[" * 300 + "]" * 300 + "}"), 7, -32700),
    (_request(7, '{"a": ' + "[" * 9000 + "]" * 9000 + "}"), 7, -32700),
    (_request(7, '{"a": ' + "9" * 5000 + "}"), 7, -32700),
    (_request('"seven"', '{"a": "' + "a" * (5 << 20) + '"}'), "seven", -32700),
    (b'{"jsonrpc": "2.0", "id": 7, "method": "' + b"a" * (5 << 20) + b'"}\n', 7, -32700),
    (b'{"jsonrpc": "2.0", "id": ' + b"9" * (5 << 20) + b"}\n", None, -32700),
    (_request(7, method="8"), 7, -32600),
    (_request(7.5), None, -32600),
    (b"[" + _request(7)[:-1] + b"]\n", None, -32600),
]


def test_what_is_no_message_has_an_answer_and_ends_nothing(process):
    for n, (line, identity, code) in enumerate(NO_MESSAGES):
        process.stdin.write(b"\n" + line)
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        assert (n, answer["id"], answer["error"]["code"]) == (n, identity, code)
    assert "result" in ask(process, "tools/list", 2)
    process.stdin.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr.read().count(b"a message was not taken") == len(NO_MESSAGES)


def test_somebody_who_is_not_known_is_one_clear_error(workspace):
    done = subprocess.run(
        command("--workspace", str(workspace.folder.root), "--as", "eve", own=True),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "error: --as eve: workspace.toml names nobody.\n"


def test_without_the_extra_one_error_says_how_to_install_it(workspace):
    without = "import sys; sys.modules['mcp'] = None"
    for words in ((), ("--http",)):
        done = subprocess.run(
            command("--workspace", str(workspace.folder.root), *words, before=without, own=True),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert "pip install 'hpcagent[mcp]'" in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_command_line_starts_without_the_servers_packages():
    code = """
import sys
from hpcagent import cli
import hpcagent.commands.mcp
print([m for m in ("mcp", "mcp_types", "anyio", "starlette", "uvicorn", "jwt", "httpx2") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
