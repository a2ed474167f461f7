"""Who is let through: this machine, with the token, from the page itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.web.guard import TOKEN_HEADER, Guard
from hpcagent.web.server import serve_page

MAIN = "from hpcagent.cli import main; main()"


def test_the_page_needs_no_token_and_its_api_does(page):
    bare = {TOKEN_HEADER: ""}
    found = page.client.get("/", headers=bare)
    assert found.status_code == 200
    assert '<script type="module" src="app.js">' in found.text
    assert page.client.get("/app.js", headers=bare).headers["content-type"].startswith("text/javascript")
    assert page.client.get("/api/snapshot", headers=bare).status_code == 401
    assert page.client.get("/api/snapshot", headers={TOKEN_HEADER: "x" * 43}).status_code == 401
    assert page.client.get("/api/snapshot", headers={TOKEN_HEADER: "ä".encode()}).status_code == 401
    assert page.client.get("/api/snapshot").status_code == 200
    assert (
        page.client.get("/api/snapshot", headers=bare | {"cookie": f"{TOKEN_HEADER}={'t' * 43}"}).status_code
        == 401
    )


def test_files_beside_the_page_are_not_served(page):
    for path in ("/nothing.js", "/..%2fserver.py", "/%2e%2e/server.py", "/uPlot.LICENSE.txt.bak"):
        assert page.client.get(path).status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "0.0.0.0"])
def test_a_foreign_host_is_refused(page, host):
    assert page.client.get("/api/snapshot", headers={"host": host}).status_code == 421
    assert page.client.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost:9999", "127.0.0.1", "[::1]:80"])
def test_this_machine_by_another_port_is_let_through(page, host):
    assert page.client.get("/api/snapshot", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"content-length": "2000000"}, 413),
    ],
)
def test_a_post_of_another_page_is_refused(page, headers, status):
    headers = {"content-type": "application/json"} | headers
    if "content-length" in headers:
        assert page.client.post("/api/run", content=b"x" * 2_000_000, headers=headers).status_code == status
        return
    assert page.client.post("/api/run", content=b"{}", headers=headers).status_code == status


def test_what_a_browser_must_not_do_is_said(page):
    for path in ("/", "/api/snapshot", "/nothing"):
        headers = page.client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "script-src 'self';" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers


def test_other_methods_and_websockets_are_refused(page):
    assert page.client.put("/api/run", json={}).status_code == 405
    assert page.client.post("/", json={}).status_code == 405
    sent: list[Any] = []

    async def main() -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        async def never(*_: Any) -> None:
            raise AssertionError("it was let through")

        await Guard(never, "t")({"type": "websocket", "path": "/", "headers": []}, never, send)

    asyncio.run(main())
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
def test_it_does_not_listen_to_other_machines(workspace: ha.Workspace, host: str):
    with pytest.raises(ha.BadInput, match="reached from other machines"):
        serve_page(workspace.folder.root, host=host)


def test_the_command_prints_the_url_with_the_token_and_ends_by_a_signal(workspace: ha.Workspace):
    words = [sys.executable, "-c", MAIN, "web", "--workspace", str(workspace.folder.root)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        line = served.stdout.readline()
        token = (workspace.folder.root / "mcp-token").read_text().strip()
        assert f"/#token={token}" in line
        served.terminate()
        assert served.wait(30) == 0


def test_the_command_refuses_a_person_that_nobody_knows(workspace: ha.Workspace):
    words = [sys.executable, "-c", MAIN, "web", "--workspace", str(workspace.folder.root), "--as", "eve"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert "workspace.toml names ada, bob" in ended.stderr
