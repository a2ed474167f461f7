"""The page in a cell of a notebook: messages in place of a server."""

from __future__ import annotations

import builtins
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.errors import BadInput

pytest.importorskip("starlette")
pytest.importorskip("anywidget")

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from hpcagent.mcp.asgi import bound
from hpcagent.web.bridge import STREAMS
from hpcagent.web.guard import LARGEST_REQUEST
from hpcagent.web.magic import register
from hpcagent.web.server import STATIC
from hpcagent.web.widget import Page

PATIENCE_S = 120.0


class Carried(Page):
    """A page whose messages a test carries, as a kernel would."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self.said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        super().__init__(*given, **more)

    def send(self, content: Any, buffers: Any = None) -> None:
        self.said.put(json.loads(json.dumps(content)))

    def asked(self, path: str, method: str = "GET", body: str = "", number: str = "1") -> tuple[int, str]:
        """Ask one request and hear its whole answer."""
        self._handle_custom_msg({"ask": number, "method": method, "path": path, "body": body}, [])
        status, text, heard = 0, "", 0
        while True:
            message = self.said.get(timeout=PATIENCE_S)
            assert message["to"] == number, message
            assert message["n"] == heard
            heard += 1
            status, text = message.get("status", status), text + message.get("text", "")
            if message.get("end"):
                return status, text


@pytest.fixture
def carried(workspace: ha.Workspace) -> Iterator[Carried]:
    page = Carried(workspace.folder.root)
    yield page
    page.close()


def test_requests_are_answered_as_by_the_server_and_files_are_given(carried: Carried) -> None:
    status, text = carried.asked("api/snapshot")
    assert status == 200 and json.loads(text)["name"] == "Argon group"
    run = json.dumps({"app": "synthetic", "params": {"x": 0.3}, "site": "threads"})
    status, text = carried.asked("api/run", "POST", run)
    assert status in (200, 201, 202), text
    assert carried.asked("api/run", "POST", '{"app": "synthetic", "nonsense": 1}')[0] == 422
    assert carried.asked("api/run/nobody")[0] == 404
    carried._handle_custom_msg({"files": "me"}, [])
    files = carried.said.get(timeout=PATIENCE_S)
    assert files["to"] == "me" and {"app.js", "client.js", "style.css", "icon.svg"} <= set(files["files"])


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ({"path": "index.html"}, 400),
        ({"path": "../api/snapshot"}, 400),
        ({"path": "api/snapshot", "method": "DELETE"}, 405),
        ({"path": "api/nothing"}, 404),
        ({"path": "api/snapshot", "method": 3}, 400),
        ({"path": "api/run", "method": "POST", "body": "x" * (LARGEST_REQUEST + 1)}, 413),
    ],
)
def test_what_is_no_request_of_the_page_is_refused(carried: Carried, message: dict[str, Any], status: int) -> None:
    assert carried.asked(**{"method": "GET", "body": "", **message})[0] == status
    for nothing in ([1], {}, {"ask": 3}, {"stop": []}, {"ask": "x" * 1000}):
        carried._handle_custom_msg(nothing, [])
    assert carried.asked("api/snapshot")[0] == 200  # still there


def test_a_stream_tells_what_happens_until_it_is_stopped_and_there_are_so_many_at_most(
    carried: Carried, workspace: ha.Workspace
) -> None:
    version = json.loads(carried.asked("api/snapshot")[1])["version"]
    carried._handle_custom_msg({"ask": "s", "method": "GET", "path": f"api/stream?after={version}"}, [])
    run = workspace.run("synthetic", {"x": 0.4})["id"]
    text, end = "", time.monotonic() + PATIENCE_S
    while run not in text and time.monotonic() < end:
        text += carried.said.get(timeout=PATIENCE_S).get("text", "")
    assert run in text
    path = f"api/stream?after={version}"
    for number in range(STREAMS):  # as pages that were loaded anew leave them
        carried._handle_custom_msg({"ask": f"s{number}", "method": "GET", "path": path}, [])
    ended: dict[str, Any] = {}
    while not ended.get("end") and time.monotonic() < end:
        ended = carried.said.get(timeout=PATIENCE_S)
    assert ended["to"] == "s", "the oldest, and it is told: a page that is there asks again"
    assert len(carried._bridge._tasks) <= STREAMS + 1
    for number in range(STREAMS):
        carried._handle_custom_msg({"stop": f"s{number}"}, [])
    while carried._bridge._tasks and time.monotonic() < end:
        time.sleep(0.05)
    assert not carried._bridge._tasks


def test_its_end_leaves_no_thread_and_no_workspace_is_one_clear_error(
    workspace: ha.Workspace, tmp_path: Path
) -> None:
    before = set(threading.enumerate())
    page = Carried(workspace.folder.root)
    page._handle_custom_msg({"ask": "s", "method": "GET", "path": "api/stream?after=0"}, [])
    page.end()
    assert not [one for one in set(threading.enumerate()) - before if one.name in ("page", "feed")]
    while not page.said.empty():
        page.said.get()
    status, text = page.asked("api/snapshot")
    assert status == 503 and "run its cell again" in text
    page.close()
    with pytest.raises(BadInput, match="is no workspace"):
        Page(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="200 to 4000 pixels"):
        Page(workspace.folder.root, height=10)


class Shell:
    """As much of IPython's as a magic needs."""

    def __init__(self, **names: Any) -> None:
        self.user_ns, self.magics = names, {}

    def register_magic_function(self, function: Callable[..., Any], kind: str, name: str) -> None:
        self.magics[kind, name] = function


def test_the_magic_shows_the_page_of_a_folder_or_of_what_is_open(
    workspace: ha.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(group=workspace)
    register(shell)
    magic = shell.magics["line", "page"]
    first = magic(f"--workspace {workspace.folder.root}")
    second = magic("--workspace group --height 900")
    assert (first.height, second.height) == (700, 900)
    assert first.comm is None and not first._bridge._thread.is_alive(), "the same page: it takes its place"
    second.close()
    shell.user_ns["bobs"] = ha.Workspace(workspace.folder.root, as_="bob")
    page = magic("--workspace bobs")
    said: list[Any] = []
    page.send = lambda content, buffers=None: said.append(content)
    page._handle_custom_msg({"ask": "1", "method": "GET", "path": "api/snapshot"}, [])
    end = time.monotonic() + PATIENCE_S
    while not said and time.monotonic() < end:
        time.sleep(0.01)
    assert json.loads(said[0]["text"])["me"]["name"] == "bob", "not more rights than what is open has"
    page.close()
    shell.user_ns["bobs"].close()
    for line, words in {"--wide": "unrecognized", "--height x": "invalid int", "'": "No closing"}.items():
        with pytest.raises(BadInput, match=words):
            magic(line)
    whole = builtins.__import__

    def without(name: str, *given: Any, **more: Any) -> Any:
        if name == "hpcagent.web.widget":
            raise ModuleNotFoundError("No module named 'anywidget'", name="anywidget")
        return whole(name, *given, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput, match=r"No module named 'anywidget'.*hpcagent\[notebook,web\]"):
        magic("")


HOST = """<!doctype html><meta charset="utf-8"><title>notebook</title><link rel="icon" href="data:,"><body><div id="cell"></div>
<script type="module">
import widget from "./static/widget.js";
const heard = [];
const model = {
  get: (name) => ({ height: 700 })[name],
  on: (kind, take) => { if (kind === "msg:custom") heard.push(take); },
  off: (kind, take) => { const at = heard.indexOf(take); if (at >= 0) heard.splice(at, 1); },
  send: (message) => fetch("heard", { method: "POST", body: JSON.stringify(message) }),
};
globalThis.ends = widget.render({ model, el: document.getElementById("cell") });
for (;;) for (const message of await (await fetch("told")).json()) heard.forEach((take) => take(message));
</script>"""


class Notebook:
    """A page of a browser with the widget in it; messages go as a notebook's would, by loopback HTTP.

    Attributes:
        url: Where it is.
    """

    def __init__(self, page: Carried) -> None:
        self._listening = bound("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

        async def host(request: Request) -> Response:
            return HTMLResponse(HOST)

        async def heard(request: Request) -> Response:
            page._handle_custom_msg(await request.json(), [])
            return JSONResponse({})

        def next_ones() -> list[dict[str, Any]]:
            try:
                found = [page.said.get(timeout=0.5)]
            except queue.Empty:
                return []
            while not page.said.empty():
                found.append(page.said.get())
            return found

        async def told(request: Request) -> Response:
            return JSONResponse(await anyio.to_thread.run_sync(next_ones))

        app = Starlette(routes=[Route("/", host), Route("/heard", heard, methods=["POST"]), Route("/told", told)])
        app.mount("/static", StaticFiles(directory=STATIC))
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2))
        self._thread = threading.Thread(
            target=lambda: anyio.run(lambda: self._server.serve(sockets=[self._listening])), daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Serve no more."""
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        self._listening.close()
        assert not self._thread.is_alive()


@pytest.mark.slow
@pytest.mark.browser
def test_in_a_browser_it_is_the_page_with_its_views_and_what_happens(
    carried: Carried, workspace: ha.Workspace, browse: Any
) -> None:
    first = workspace.run("synthetic", {"x": 0.2})["id"]
    workspace.wait(first)
    notebook = Notebook(carried)
    try:
        found = browse(notebook, "widget", run=first)
        assert found["title"] == "Runs" and found["shown"] == 1 and found["live"] == "Live"
        (started,) = [one["id"] for one in workspace.list()["runs"] if one["id"] != first]
        assert workspace.status(started)["params"]["x"] == 0.7 and found["wrong"] == []
        assert found["after"] == 2 and found["gone"]
        end = time.monotonic() + PATIENCE_S
        while carried._bridge._tasks and time.monotonic() < end:
            time.sleep(0.05)
        assert not carried._bridge._tasks, "what the cell asked goes on without it"
    finally:
        notebook.end()
