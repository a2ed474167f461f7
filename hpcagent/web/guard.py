"""What stands before the page: requests to this machine, from its own page, with its token. Pure ASGI."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hpcagent.mcp.asgi import is_loopback

__all__ = ["LARGEST_REQUEST", "TOKEN_HEADER", "Guard"]

TOKEN_HEADER = "x-hpcagent-token"
LARGEST_REQUEST = 1 << 20
API = "/api/"
POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
    "style-src-attr 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """Lets through what the page itself asks, and puts the headers on that keep a browser to it.

    The page and its files need no token: nothing of a workspace is in them. The token is in a header of its own,
    not in a cookie: cookies are shared by all ports of a host, whoever serves there.

    Args:
        app: What is guarded.
        token: What requests to the API have to have.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no WebSocket is served, and none is let through unseen
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._refused(scope, headers)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in HEADERS if one[0] not in own)]
            await send(message)

        await (refused or self._app)(scope, receive, with_headers)

    def _refused(self, scope: Scope, headers: Mapping[str, str]) -> Response | None:
        """Why a request is not let through; None where it is."""
        host = _host(headers.get("host", ""))
        if not is_loopback(host):
            # A page of another name that resolves to this machine (DNS rebinding) has that name here.
            return _no(421, f"this page is served to this machine only, not as {host[:100]!r}")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _no(405, "GET, HEAD and POST are served")
        if not scope["path"].startswith(API):
            return None if scope["method"] != "POST" else _no(405, "files are only read")
        if not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode(), self._token):
            return _no(401, "the token is missing or wrong; open the URL that `hpcagent web` has printed")
        return self._refused_post(headers) if scope["method"] == "POST" else None

    @staticmethod
    def _refused_post(headers: Mapping[str, str]) -> Response | None:
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _no(415, "a request that changes something is application/json")
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site is not None and site not in ("same-origin", "none"):
            return _no(403, "the request comes from another page")
        if site is None and origin is not None and not is_loopback(urlsplit(origin).hostname or ""):
            return _no(403, "the request comes from another page")
        length = headers.get("content-length", "")
        if not length.isdecimal():
            return _no(411, "a request says how long it is")
        return _no(413, f"{LARGEST_REQUEST} bytes at most") if int(length) > LARGEST_REQUEST else None


def _host(header: str) -> str:
    """The host without its port: through a tunnel the port is another one."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _no(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status)
