"""`--print-config`: what each client reads, in its own form."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pytest

from hpcagent.errors import BadInput
from hpcagent.mcp.client_config import CLIENTS, OverHttp, OverStdio, config_of

COMMAND = ("/opt/hp c/bin/hpcagent", "mcp", "--workspace", "/scratch/a 'b'/ws")
URL = "http://127.0.0.1:8123/mcp"


def read(client: str, how: OverStdio | OverHttp) -> dict:
    text, _ = config_of(client, how)
    return tomllib.loads(text) if client == "codex" else json.loads(text)


def entry(client: str, how: OverStdio | OverHttp) -> dict:
    key = {"codex": "mcp_servers", "vscode": "servers"}.get(client, "mcpServers")
    return read(client, how)[key]["hpcagent"]


@pytest.mark.parametrize("client", CLIENTS)
def test_over_stdio_each_starts_the_command_by_its_absolute_path(client):
    found = entry(client, OverStdio(COMMAND, {"PATH": "/usr/bin"}))
    assert (found["command"], *found["args"]) == COMMAND
    assert found["env"] == {"PATH": "/usr/bin"}
    assert found.get("type") == ("stdio" if client in ("vscode", "claude-code") else None)


@pytest.mark.parametrize("client", CLIENTS)
def test_through_ssh_the_words_arrive_as_they_are(client):
    found = entry(client, OverStdio(COMMAND, {"PATH": "/usr/bin:/a b"}, ssh="ada@login1.site.org"))
    assert found["command"] == "ssh"
    assert found["args"][-2] == "ada@login1.site.org"
    assert tuple(shlex.split(found["args"][-1])) == ("exec", "env", "PATH=/usr/bin:/a b", *COMMAND)
    assert found.get("env", {}) == {}  # they are of the other machine


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", "ada@", "a@-x", "h;x", "h\nx", "$(x)", "", "a@b@c"])
def test_a_host_is_never_an_option_or_a_command_of_ssh(host):
    how = OverStdio(COMMAND, {}, ssh=host)
    if not host:
        assert entry("cursor", how)["command"] == COMMAND[0]
        return
    with pytest.raises(BadInput, match="USER@HOST"):
        config_of("cursor", how)


HEADERS = {
    "claude-code": "Bearer ${HPCAGENT_MCP_TOKEN}",
    "cursor": "Bearer ${env:HPCAGENT_MCP_TOKEN}",
    "vscode": "Bearer ${input:hpcagent-token}",
    "gemini": "Bearer $HPCAGENT_MCP_TOKEN",
}


@pytest.mark.parametrize("client", HEADERS)
def test_over_http_the_token_stays_out_of_the_file_unless_it_is_asked_for(client):
    found = entry(client, OverHttp(URL))
    assert found["httpUrl" if client == "gemini" else "url"] == URL
    assert found["headers"] == {"Authorization": HEADERS[client]}
    assert found.get("type") == ("http" if client in ("vscode", "claude-code") else None)
    asks = read(client, OverHttp(URL)).get("inputs", [])
    assert [one["id"] for one in asks] == (["hpcagent-token"] if client == "vscode" else [])

    shown = entry(client, OverHttp(URL, "secret"))
    assert shown["headers"] == {"Authorization": "Bearer secret"}
    assert "inputs" not in read(client, OverHttp(URL, "secret"))
    assert "headers" not in entry(client, OverHttp(URL, guarded=False))


def test_codex_takes_the_token_from_the_environment():
    assert entry("codex", OverHttp(URL)) == {"url": URL, "bearer_token_env_var": "HPCAGENT_MCP_TOKEN"}
    assert entry("codex", OverHttp(URL, "secret"))["http_headers"] == {"Authorization": "Bearer secret"}
    assert entry("codex", OverHttp(URL, guarded=False)) == {"url": URL}


def test_what_a_client_cannot_do_is_said():
    with pytest.raises(BadInput, match="Claude Desktop's file has no servers over HTTP"):
        config_of("claude", OverHttp(URL))
    with pytest.raises(BadInput, match="vscode"):
        config_of("vscod", OverHttp(URL))


def test_the_command_prints_what_a_client_can_start(tmp_path, capsys, monkeypatch):
    import typer

    from hpcagent.cli import cli

    monkeypatch.setenv("PATH", "/usr/bin")
    for name in ("PYTHONPATH", "HPCAGENT_ACCOUNT", "HPCAGENT_LAMMPS", "HPCAGENT_SITE_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "workspace.toml").write_text('[people.ada]\nrole = "planner"\n')
    command = typer.main.get_command(cli)
    words = ["mcp", "-w", str(tmp_path)]
    command([*words, "--as", "ada", "--print-config", "cursor"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)["mcpServers"]["hpcagent"]
    assert Path(found["command"]).is_absolute() and found["env"] == {"PATH": "/usr/bin"}
    assert found["args"][-5:] == ["mcp", "--workspace", str(tmp_path), "--as", "ada"]

    command([*words, "--http", "--port", "8123", "--print-config", "cursor"], standalone_mode=False)
    assert not (tmp_path / "mcp-token").exists()
    assert URL in capsys.readouterr().out
    command(
        [*words, "--http", "--port", "8123", "--print-config", "cursor", "--show-token"], standalone_mode=False
    )
    token = (tmp_path / "mcp-token").read_text().strip()
    assert (tmp_path / "mcp-token").stat().st_mode & 0o777 == 0o600 and len(token) == 43
    assert f"Bearer {token}" in capsys.readouterr().out

    for wrong, why in {
        ("--http", "--print-config", "cursor"): "--port",
        ("--port", "8123"): "--http only",
        ("--jwks", "keys.json"): "--issuer only",
        ("--ssh", "ada@x"): "--print-config only",
        ("--http", "--issuer", "https://x.org"): "needs --jwks",
        ("--http", "--issuer", "https://x.org", "--jwks", "k", "--no-token"): "--no-token and --issuer",
        ("--as", "eve", "--print-config", "cursor"): "names ada",
    }.items():
        with pytest.raises(BadInput, match=why):
            command([*words, *wrong], standalone_mode=False)
