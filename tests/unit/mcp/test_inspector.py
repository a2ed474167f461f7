"""The inspector's command line, a client by others, over stdin and stdout and over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.elsewhere import detach

pytestmark = pytest.mark.slow

POINT = {"kind": "synthetic", "params": {"timestep": 1e-3, "skin": 3.0}}
OUT_OF_BOUNDS = {"kind": "synthetic", "params": {"timestep": 1.0, "skin": 3.0}}
SAYS_IS_ERROR = 5  # exit code of the inspector


def hpcagent_mcp(workspace: ha.Workspace, *words: str) -> list[str]:
    """The command as a fork of the process of tests/warm.py; the inspector starts the server by itself."""
    return detach.started.command("mcp", "--workspace", str(workspace.folder.root), *words)


def config(workspace: ha.Workspace, folder: Path, *words: str) -> Path:
    """What `--print-config` writes, as a file of the client."""
    file = folder / "mcp.json"
    file.write_text(
        subprocess.run(
            hpcagent_mcp(workspace, "--print-config", *words), stdout=subprocess.PIPE, check=True, timeout=60
        ).stdout.decode()
    )
    return file


@contextmanager
def over_http(workspace: ha.Workspace) -> Iterator[str]:
    """A server with its own token; the port."""
    with subprocess.Popen(hpcagent_mcp(workspace, "--http"), stdout=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            line = served.stdout.readline()
            yield line.partition("127.0.0.1:")[2].partition("/")[0]
        finally:
            served.terminate()
        assert served.wait(30) == 0


@pytest.fixture
def inspect(node: Callable[[str], list[str]], tmp_path: Path) -> Callable[..., tuple[int, Any, str]]:
    """Calls a method of the server of a client's file; returns exit code, result and stderr."""

    def run(file: Path, method: str, *words: str) -> tuple[int, Any, str]:
        told = ["--config", str(file), "--server", "hpcagent", "--method", method, "--format", "json", "--quiet"]
        told += ["--connect-timeout", "120000"]
        ended = subprocess.run(
            [*node("mcp-inspector"), "--cli", *told, *words],
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path)},
        )
        assert ended.stdout, ended.stderr
        return ended.returncode, json.loads(ended.stdout)["result"], ended.stderr

    return run


def call(name: str, arguments: dict[str, Any]) -> list[str]:
    return ["--tool-name", name, "--tool-args-json", json.dumps(arguments)]


def test_over_stdio_the_schemas_are_portable_and_a_run_is_started(workspace, tmp_path, inspect):
    file = config(workspace, tmp_path, "claude")
    code, found, said = inspect(file, "tools/list", "--strict")
    assert (code, said) == (0, "")
    assert {"run_job", "get_status"} <= {one["name"] for one in found["tools"]}
    code, found, _ = inspect(file, "tools/call", *call("run_job", POINT))
    assert code == 0
    assert workspace.status(found["structuredContent"]["run_id"])["app"] == "synthetic"


def test_over_http_a_run_is_followed_a_refusal_is_read_and_lists_come(workspace, tmp_path, inspect):
    run = workspace.run("synthetic", {"x": 0.2, "y": 0.4})["id"]
    workspace.wait(run, timeout_s=60)
    with over_http(workspace) as port:
        file = config(workspace, tmp_path, "claude-code", "--http", "--port", port, "--show-token")
        code, found, _ = inspect(file, "tools/call", *call("get_status", {"run_id": run}))
        assert (code, found["structuredContent"]["phase"]) == (0, "finished")
        modern = ("--protocol-era", "modern")
        code, found, _ = inspect(file, "tools/call", *call("run_job", OUT_OF_BOUNDS), *modern)
        assert (code, found["structuredContent"]["refused"]["field"]) == (SAYS_IS_ERROR, "params.timestep")
        code, found, _ = inspect(file, "resources/list", *modern)
        assert code == 0 and f"run://{run}" in {one["uri"] for one in found["resources"]}
        code, found, _ = inspect(file, "prompts/list", *modern)
        assert code == 0 and found["prompts"] and all(one["description"] for one in found["prompts"])
