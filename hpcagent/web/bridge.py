"""The page without a server: its requests come as messages, and the same application answers them."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hpcagent.web.guard import LARGEST_REQUEST, TOKEN_HEADER

__all__ = ["Bridge"]

MOST = 64
"""Requests that are answered at once."""
STREAMS = 8
"""Streams that go on; one more ends the oldest: of a page that was loaded anew nobody says that it is gone."""
LONGEST_ID = 100
END_S = 10.0
API = "/api/"
STREAM = "api/stream"


class Bridge:
    """Answers the requests of pages, whose messages somebody carries, in a thread of its own.

    A page asks `{"ask": ID, "method": "GET", "path": "api/snapshot", "body": TEXT}`, and hears messages with
    `"to": ID`: a `"text"`, `"n"` that counts them (they may be lost on their way), in the first a `"status"`, in
    the last `"end": True`. `{"stop": ID}` ends what goes on.

    Args:
        app: The page's, behind its guard (`page_app`).
        token: The one that the guard wants: whoever can send messages is let in.
        tell: Carries a message to the page; called in the thread of the bridge.

    Raises:
        HpcAgentError: The application does not start, as where the workspace does not answer.
    """

    def __init__(self, app: ASGIApp, token: str, tell: Callable[[dict[str, Any]], None]) -> None:
        self._app, self._token, self._tell = app, token, tell
        self._tasks: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self._streams: dict[str, None] = {}  # the oldest first
        self._failed: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._begun, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="page", daemon=True)
        self._thread.start()
        try:
            self._begun.wait()
        except BaseException:  # an interrupt
            self.close()
            raise
        if self._failed is not None:
            raise self._failed

    def heard(self, message: Mapping[str, Any]) -> None:
        """Take a message of a page; from any thread. What is no request is left out."""
        asked = message.get("ask")
        try:
            self._loop.call_soon_threadsafe(self._take, dict(message))
        except RuntimeError:  # it has ended
            if isinstance(asked, str):
                self._refused(asked, 503, "this page has ended; run its cell again")

    def close(self) -> None:
        """End what is being answered, and the thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(END_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
        except BaseException as error:
            self._failed = error
        finally:
            self._begun.set()
            self._loop.close()

    async def _live(self) -> None:
        async with _alive(self._app):
            self._begun.set()
            await self._over.wait()
            going = [task for task, _ in self._tasks.values()]
            for task in going:
                task.cancel()
            await asyncio.gather(*going, return_exceptions=True)

    def _take(self, message: dict[str, Any]) -> None:
        stop, asked = message.get("stop"), message.get("ask")
        if isinstance(stop, str) and stop in self._tasks:
            self._tasks[stop][1].set()
        if not isinstance(asked, str) or len(asked) > LONGEST_ID or asked in self._tasks:
            return
        if len(self._tasks) >= MOST:
            self._refused(asked, 503, f"{MOST} requests are being answered; try again")
            return
        if str(message.get("path", "")).startswith(STREAM):
            self._streams[asked] = None
            for oldest in list(self._streams)[:-STREAMS]:
                del self._streams[oldest]
                self._tasks[oldest][1].set()
        gone = asyncio.Event()
        task = self._loop.create_task(self._answer(asked, message, gone))
        self._tasks[asked] = task, gone
        task.add_done_callback(lambda _: self._ended(asked))

    def _ended(self, asked: str) -> None:
        self._tasks.pop(asked, None)
        self._streams.pop(asked, None)

    def _refused(self, asked: str, status: int, why: str) -> None:
        self._tell({"to": asked, "n": 0, "status": status, "text": json.dumps({"error": why}), "end": True})

    async def _answer(self, asked: str, message: dict[str, Any], gone: asyncio.Event) -> None:
        method, path, body = (message.get(name, "") for name in ("method", "path", "body"))
        if not all(isinstance(one, str) for one in (method, path, body)) or not f"/{path}".startswith(API):
            self._refused(asked, 400, "this is no request of the page")
            return
        data = body.encode(errors="replace")
        if len(data) > LARGEST_REQUEST:
            self._refused(asked, 413, f"{LARGEST_REQUEST} bytes at most")
            return
        parts = [{"type": "http.request", "body": data, "more_body": False}]
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        first: dict[str, Any] = {}
        n, over = 0, False

        def tell(text: str, *, end: bool) -> None:
            nonlocal n, over
            if not over and (text or end or n == 0):
                self._tell({"to": asked, "n": n, **(first if n == 0 else {}), "text": text, "end": end})
                n, over = n + 1, end

        async def receive() -> Message:
            if parts:
                return parts.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(part: Message) -> None:
            if part["type"] == "http.response.start":
                first["status"] = part["status"]
            elif part["type"] == "http.response.body" and not gone.is_set():
                more = part.get("more_body", False)
                tell(decode(part.get("body", b""), not more), end=not more)

        try:
            await self._app(self._scope(method, path, data), receive, send)
        except Exception as error:  # as a server does: the others are answered all the same
            first.setdefault("status", 500)
            tell(json.dumps({"error": f"the page failed: {type(error).__name__}"}), end=True)
        finally:
            first.setdefault("status", 503)
            tell("", end=True)  # also of a stream that was ended here: a page that is there asks again

    def _scope(self, method: str, path: str, data: bytes) -> Scope:
        there, _, query = path.partition("?")
        headers = {"host": "127.0.0.1", TOKEN_HEADER: self._token}
        if method == "POST":
            headers |= {"content-type": "application/json", "content-length": str(len(data))}
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(f"/{there}"),
            "raw_path": f"/{there}".encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
        }


@contextlib.asynccontextmanager
async def _alive(app: ASGIApp) -> AsyncIterator[None]:
    """The application between its start and its end, as a server has it (ASGI's lifespan)."""
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[Message] = asyncio.Queue()
    heard: asyncio.Queue[Message] = asyncio.Queue()
    life = loop.create_task(_whole(app, told.get, heard.put))

    async def step(word: str) -> None:
        await told.put({"type": f"lifespan.{word}"})
        said = loop.create_task(heard.get())
        await asyncio.wait({said, life}, return_when=asyncio.FIRST_COMPLETED)
        if not said.done() or said.result()["type"].endswith(".failed"):
            said.cancel()
            await life  # raises what it was
            raise RuntimeError(f"the page ended at its {word}")

    await step("startup")
    try:
        yield
    finally:
        await step("shutdown")
        await life


async def _whole(app: ASGIApp, receive: Receive, send: Send) -> None:
    await app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)
