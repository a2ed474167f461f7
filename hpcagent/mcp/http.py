"""Over streamable HTTP: on this machine's own address, or elsewhere behind tokens of an issuer."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hpcagent.errors import BadInput
from hpcagent.mcp.asgi import Patient, Trimmed, bound, is_loopback, serve_app
from hpcagent.mcp.callers import Callers
from hpcagent.mcp.jwks import Keys, require_safe_url
from hpcagent.mcp.limits import Limits
from hpcagent.mcp.server import make_server
from hpcagent.mcp.sessions import bound_sessions
from hpcagent.mcp.tokens import Guard, JwtVerifier, OwnVerifier

__all__ = ["PATH", "Issuer", "app_of", "guard_of", "serve_http"]

log = logging.getLogger(__name__)

PATH = "/mcp"
LARGEST_REQUEST = 4 << 20
SESSIONS = 2000
SESSION_IDLE_S = 1800.0


class Issuer:
    """Who issues the tokens that are taken.

    Args:
        issuer: Its URL, the claim `iss`.
        jwks: Path or URL of its keys.
        audience: The claim `aud`; empty: the server's URL.
        person_claim: The claim that says who it is.
    """

    def __init__(self, issuer: str, jwks: str, *, audience: str = "", person_claim: str = "sub") -> None:
        self.issuer = require_safe_url(issuer, "--issuer")
        self.keys = Keys(jwks)
        self.audience, self.person_claim = audience, person_claim


def guard_of(
    folder: Path, url: str, *, as_: str = "", issuer: Issuer | None = None, token: bool = True
) -> Guard | None:
    """What checks tokens: those of the issuer, else the server's own one; None: nobody needs one.

    Args:
        folder: The workspace's.
        url: This server's, as its clients name it.
        as_: For whom the server's own token speaks.
        issuer: Who issues tokens.
        token: Whether one is needed where there is no issuer.
    """
    if issuer is not None:
        verifier = JwtVerifier(
            folder,
            issuer=issuer.issuer,
            keys=issuer.keys,
            audience=issuer.audience or url,
            person_claim=issuer.person_claim,
        )
        return Guard(verifier, issuer.issuer, url)
    return Guard(OwnVerifier(folder, as_), url) if token else None


def app_of(server: MCPServer[Any], url: str, *, guarded: bool) -> Starlette:
    """The server as an ASGI application that takes requests to this machine, or to `url`, from no foreign page.

    Args:
        server: The server.
        url: Its URL.
        guarded: Whether tokens are checked.
    """
    parts = urlsplit(url)
    names = ["127.0.0.1", "localhost", "[::1]"]
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=LARGEST_REQUEST,
        session_idle_timeout=SESSION_IDLE_S,
        max_sessions=SESSIONS,
        transport_security=TransportSecuritySettings(
            # Any port: through a tunnel it is another one at the client's end.
            allowed_hosts=[*(f"{name}:*" for name in names), *names, parts.netloc],
            allowed_origins=[
                *(f"http://{name}:*" for name in names),
                *(f"http://{name}" for name in names),
                f"{parts.scheme}://{parts.netloc}",
            ],
        ),
    )
    if guarded:
        app.user_middleware.append(Middleware(_Known))  # inside of the SDK's, which say whose token it is
    bound_sessions(app, server.session_manager)
    app.user_middleware.insert(0, Middleware(_Whole))
    app.user_middleware.insert(0, Middleware(Trimmed))
    app.user_middleware.insert(0, Middleware(Patient))
    return app


_AUTHORITY = r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::\d{0,5})?"
_HOST = re.compile(_AUTHORITY)
_ORIGIN = re.compile(rf"null|[A-Za-z][A-Za-z0-9+.-]{{0,40}}://{_AUTHORITY}")


class _Whole:
    """Refuses a Host or Origin that is none: the SDK looks at how they begin, where any port is allowed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for name, form, code in ((b"host", _HOST, 421), (b"origin", _ORIGIN, 403)):
                said = [value.decode("latin-1") for key, value in scope["headers"] if key == name]
                if len(said) > 1 or any(form.fullmatch(value) is None for value in said):
                    answer = PlainTextResponse(f"Invalid {name.decode().title()} header", code)
                    await answer(scope, receive, send)
                    return
        await self._app(scope, receive, send)


class _Known:
    """Refuses a token of somebody whom the workspace does not know, and ends what outlives its token."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        user = scope.get("user")
        if not isinstance(user, AuthenticatedUser):
            await self._app(scope, receive, send)  # it is refused there
            return
        token = user.access_token
        if token.subject is None:
            why = "the token is of nobody whom workspace.toml names"
            answer = JSONResponse({"error": "access_denied", "error_description": why}, 403)
            answer.headers["WWW-Authenticate"] = f'Bearer error="access_denied", error_description="{why}"'
            await answer(scope, receive, send)
            return
        left_s = None if token.expires_at is None else max(0.0, token.expires_at - time.time())
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        with anyio.move_on_after(left_s) as time_left:
            await self._app(scope, receive, watched)
        if time_left.cancelled_caught and begun:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif time_left.cancelled_caught:
            await JSONResponse({"error": "invalid_token"}, 401)(scope, receive, send)


def serve_http(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    as_: str = "",
    issuer: Issuer | None = None,
    resource_url: str = "",
    token: bool = True,
    limits: Limits | None = None,
    begun: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a workspace until SIGTERM, Ctrl-C or SIGHUP; runs go on.

    Args:
        folder: The workspace's.
        host: Where it listens.
        port: 0: a free one.
        as_: Whom callers speak for that have no token of an issuer.
        issuer: Who issues tokens.
        resource_url: The URL that clients and tokens name, where it is another than where it listens.
        token: Whether the server's own token is needed where there is no issuer.
        limits: Of each caller.
        begun: Is called with the URL once clients can connect.

    Raises:
        BadInput: It would listen to other machines without checking tokens, or in clear.
    """
    if not is_loopback(host):
        _require_tokens(host, issuer, resource_url)
    if resource_url:
        require_safe_url(resource_url, "--resource-url")
    listening = bound(host, port)
    callers = Callers(folder, as_=as_)
    try:
        shown = f"[{host}]" if ":" in host else host
        url = resource_url or f"http://{shown}:{listening.getsockname()[1]}{PATH}"
        guard = guard_of(folder, url, as_=as_, issuer=issuer, token=token)
        app = app_of(make_server(callers, guard=guard, limits=limits), url, guarded=guard is not None)

        async def main() -> None:
            if issuer is not None:
                await issuer.keys.load()
            await serve_app(app, listening, lambda: begun(url))

        anyio.run(main)
    finally:
        listening.close()
        callers.close()


def _require_tokens(host: str, issuer: Issuer | None, resource_url: str) -> None:
    if issuer is None:
        raise BadInput(
            f"--host {host} is reached from other machines: it needs --issuer and --jwks, which say whose tokens "
            "are taken. Without: leave --host out, and use an ssh tunnel (docs/howto/mcp.md).",
            value=host,
        )
    if not resource_url.startswith("https://"):
        raise BadInput(
            f"--host {host} is reached from other machines, and tokens would go there in clear: put a proxy with "
            "TLS in front, and name its URL (https://...) by --resource-url.",
            value=resource_url,
        )
