"""What a client needs to find the server, in the client's own form. Needs no MCP package."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcagent.errors import BadInput, nearest

__all__ = ["CLIENTS", "TOKEN_VARIABLE", "OverHttp", "OverStdio", "config_of"]

TOKEN_VARIABLE = "HPCAGENT_MCP_TOKEN"
"""Environment variable in which a client is given the token, where it is not written into its file."""
NAME = "hpcagent"

_HOST = re.compile(r"(?:[A-Za-z0-9_.][\w.+-]*@)?[A-Za-z0-9_\[:.][\w.:\[\]-]*")


@dataclass(frozen=True)
class OverStdio:
    """A server that the client starts.

    Attributes:
        command: The program and its arguments; the program by its absolute path.
        env: Environment variables that it needs, also where ssh starts it.
        ssh: USER@HOST where it is started; empty: where the client is.
    """

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ssh: str = ""

    def started(self) -> dict[str, Any]:
        """`command`, `args`, `env` as nearly all clients have them.

        Raises:
            BadInput: `ssh` is no USER@HOST.
        """
        if not self.ssh:
            return {"command": self.command[0], "args": list(self.command[1:]), "env": dict(self.env)}
        if not _HOST.fullmatch(self.ssh):
            raise BadInput(
                f"--ssh {self.ssh!r} is no USER@HOST, nor a host of ssh's configuration.", value=self.ssh
            )
        # -T: no terminal, which would change line ends; BatchMode: nobody could answer a question.
        variables = ["env", *(f"{name}={value}" for name, value in self.env.items())] if self.env else []
        return {
            "command": "ssh",
            "args": ["-T", "-o", "BatchMode=yes", self.ssh, f"exec {shlex.join([*variables, *self.command])}"],
            "env": {},
        }


@dataclass(frozen=True)
class OverHttp:
    """A server that runs already.

    Attributes:
        url: Where.
        token: Written into the file; empty: the client takes it from the environment or asks for it.
        guarded: Whether a token is needed.
    """

    url: str
    token: str = ""
    guarded: bool = True

    def headers(self, elsewhere: str) -> dict[str, str]:
        """The header with the token, or with what the client puts in its place."""
        return {"Authorization": f"Bearer {self.token or elsewhere}"} if self.guarded else {}


Form = Callable[["OverStdio | OverHttp"], str]


@dataclass(frozen=True)
class Client:
    """A client.

    Attributes:
        file: Where its configuration is.
        form: Writes it.
        note: What else to do.
    """

    file: str
    form: Form
    note: str = ""


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False)


def _url(how: OverHttp, elsewhere: str, **first: Any) -> dict[str, Any]:
    headers = how.headers(elsewhere)
    return {**first, "url": how.url, **({"headers": headers} if headers else {})}


def _claude(how: OverStdio | OverHttp) -> str:
    if isinstance(how, OverHttp):
        raise BadInput(
            "Claude Desktop's file has no servers over HTTP: leave --http out (with --ssh, where the server is on "
            "another machine).",
            value=how.url,
        )
    return _json({"mcpServers": {NAME: how.started()}})


def _claude_code(how: OverStdio | OverHttp) -> str:
    # ${VARIABLE} is Claude Code's own.
    entry = (
        {"type": "stdio", **how.started()}
        if isinstance(how, OverStdio)
        else _url(how, f"${{{TOKEN_VARIABLE}}}", type="http")
    )
    return _json({"mcpServers": {NAME: entry}})


def _cursor(how: OverStdio | OverHttp) -> str:
    entry = how.started() if isinstance(how, OverStdio) else _url(how, f"${{env:{TOKEN_VARIABLE}}}")
    return _json({"mcpServers": {NAME: entry}})


def _vscode(how: OverStdio | OverHttp) -> str:
    if isinstance(how, OverStdio):
        return _json({"servers": {NAME: {"type": "stdio", **how.started()}}})
    data: dict[str, Any] = {"servers": {NAME: _url(how, "${input:hpcagent-token}", type="http")}}
    if how.guarded and not how.token:
        asked = {
            "id": "hpcagent-token",
            "type": "promptString",
            "description": "Token of hpcagent",
            "password": True,
        }
        data["inputs"] = [asked]
    return _json(data)


def _gemini(how: OverStdio | OverHttp) -> str:
    if isinstance(how, OverStdio):
        return _json({"mcpServers": {NAME: how.started()}})
    entry = _url(how, f"${TOKEN_VARIABLE}")
    return _json({"mcpServers": {NAME: {"httpUrl": entry.pop("url"), **entry}}})


def _codex(how: OverStdio | OverHttp) -> str:
    # A JSON string is a TOML string, and so is an array of them.
    table = f"[mcp_servers.{NAME}]"
    if isinstance(how, OverStdio):
        found = how.started()
        lines = [table, f"command = {_toml(found['command'])}", f"args = {_toml(found['args'])}"]
        if found["env"]:
            lines += ["", f"[mcp_servers.{NAME}.env]", *(f"{k} = {_toml(v)}" for k, v in found["env"].items())]
        return "\n".join(lines)
    lines = [table, f"url = {_toml(how.url)}"]
    if how.guarded and how.token:
        lines.append(f"http_headers = {{ Authorization = {_toml(f'Bearer {how.token}')} }}")
    elif how.guarded:
        lines.append(f"bearer_token_env_var = {_toml(TOKEN_VARIABLE)}")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


CLIENTS: dict[str, Client] = {
    "claude": Client(
        "claude_desktop_config.json (Settings, Developer, Edit Config)", _claude, "start Claude Desktop again"
    ),
    "claude-code": Client(".mcp.json in the project's folder, or ~/.claude.json", _claude_code),
    "cursor": Client("~/.cursor/mcp.json, or .cursor/mcp.json in the project's folder", _cursor),
    "vscode": Client(".vscode/mcp.json in the project's folder, or `MCP: Open User Configuration`", _vscode),
    "codex": Client("~/.codex/config.toml", _codex),
    "gemini": Client("~/.gemini/settings.json, or .gemini/settings.json in the project's folder", _gemini),
}
"""Clients by the name that `--print-config` has for them."""


def config_of(client: str, how: OverStdio | OverHttp) -> tuple[str, str]:
    """What to write down for a client, and a sentence that says where.

    Raises:
        BadInput: There is no such client, or it cannot reach such a server.

    Example:
        >>> print(config_of("codex", OverHttp("http://127.0.0.1:8000/mcp"))[0])
        [mcp_servers.hpcagent]
        url = "http://127.0.0.1:8000/mcp"
        bearer_token_env_var = "HPCAGENT_MCP_TOKEN"
    """
    if client not in CLIENTS:
        raise BadInput(f"--print-config {client}: {nearest(client, CLIENTS)}", value=client)
    found = CLIENTS[client]
    notes = [f"goes into {found.file}; what is there already stays", *([found.note] if found.note else [])]
    if isinstance(how, OverHttp) and how.guarded and not how.token:
        asked = "it asks for the token" if client == "vscode" else f"set ${TOKEN_VARIABLE} where it is started"
        notes.append(f"{asked}; `hpcagent mcp --show-token` prints the server's own")
    return found.form(how), "; ".join(notes)
