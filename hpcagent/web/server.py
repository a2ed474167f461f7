"""The page as an ASGI application, and served on this machine's own address."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from hpcagent.errors import BadInput
from hpcagent.mcp.asgi import Patient, Trimmed, bound, is_loopback, serve_app
from hpcagent.mcp.own_token import own_token
from hpcagent.web.api import routes
from hpcagent.web.chat import Chat
from hpcagent.web.feed import Feed
from hpcagent.web.guard import Guard
from hpcagent.workspace.client import Workspace

__all__ = ["page_app", "serve_page"]

STATIC = Path(__file__).parent / "static"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
THREADS = 40


def page_app(workspace: Workspace, token: str, *, model: Any = "") -> ASGIApp:
    """The page of a workspace, behind its guard.

    Args:
        workspace: In the name of whom the page is for.
        token: What requests have to have.
        model: Of the chat: `PROVIDER:MODEL`, or a model of pydantic-ai; by default as the environment says.
    """
    feed = Feed(workspace)
    chat = Chat(workspace, feed, model=model)

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        await anyio.to_thread.run_sync(feed.begin)
        try:
            yield
        finally:
            await anyio.to_thread.run_sync(chat.close)
            await anyio.to_thread.run_sync(feed.close)

    files = {path.name: path for path in STATIC.iterdir() if path.suffix in KINDS}

    async def file(request: Request) -> Response:
        found = files.get(request.path_params.get("name") or "index.html")
        if found is None:
            return JSONResponse({"error": "there is no such file"}, 404)
        return FileResponse(found, media_type=KINDS[found.suffix])

    pages = [Route("/", file), Route("/{name}", file)]
    app = Starlette(routes=[*routes(workspace, feed, chat), *pages], lifespan=life)
    return Trimmed(Patient(Guard(app, token)))


def serve_page(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    as_: str = "",
    begun: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the page of a workspace until SIGTERM, Ctrl-C or SIGHUP; runs go on.

    Args:
        folder: The workspace's.
        host: An address of this machine that only this machine reaches.
        port: 0: a free one.
        as_: Somebody of `workspace.toml` to speak for.
        begun: Is called with the URL, the token in it, once a browser can open it.

    Raises:
        BadInput: The address is reached from other machines, or is in use.
    """
    if not is_loopback(host):
        raise BadInput(
            f"--host {host} is reached from other machines, and the page is for one person: leave it out, and use "
            "an ssh tunnel (docs/howto/web.md).",
            value=host,
        )
    token = own_token(folder)
    workspace = Workspace(folder, as_=as_, client="hpcagent web")
    workspace.whoami()  # what keeps the workspace from answering is said here
    listening = bound(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listening.getsockname()[1]}/#token={token}"
    try:
        anyio.run(serve_app, page_app(workspace, token), listening, lambda: begun(url))
    finally:
        listening.close()
        workspace.close(everywhere=True)
