"""Sessions of clients of 2025: each keeps memory here, so there are only so many of one person."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

__all__ = ["MOST_OF_ONE", "NEVER_CALLED_S", "bound_sessions"]

MOST_OF_ONE = 64
"""Sessions of one person that are open at a time."""
NEVER_CALLED_S = 120.0
"""A session in which nothing was asked for is ended after so many seconds without a request."""
# A client shakes hands by two requests: `initialize`, and that it is done.
_OF_HANDSHAKE = 2


class _TooManySessions(Exception):
    """Somebody has as many sessions as anybody may."""


def bound_sessions(app: Starlette, manager: Any) -> None:
    """Refuse a person's session beyond `MOST_OF_ONE`, and end those soon that are never used.

    Where no issuer says who somebody is, everybody is the same person: for them the bound of the server is enough.

    Args:
        app: The server's application.
        manager: The SDK's, which has no bound of this kind.
    """
    admit = manager._admit_session

    def bounded(requestor: Any) -> Any:
        if requestor is not None and requestor["issuer"] is not None:
            owners = list(manager._session_owners.values())
            if sum(owner["subject"] == requestor["subject"] for owner in owners) >= MOST_OF_ONE:
                raise _TooManySessions
        transport = admit(requestor)
        if transport is not None:
            _end_soon(transport)
        return transport

    manager._admit_session = bounded
    app.add_exception_handler(_TooManySessions, _refused)


def _end_soon(transport: Any) -> None:
    """End it soon, until something is asked for in it."""
    usual_s, handle, come = transport._idle_timeout, transport.handle_request, 0
    transport._idle_timeout = min(NEVER_CALLED_S, usual_s)

    async def counted(*request: Any) -> None:
        nonlocal come
        come += 1
        if come > _OF_HANDSHAKE:
            transport._idle_timeout = usual_s
        await handle(*request)

    transport.handle_request = counted


async def _refused(request: Request, error: Exception) -> Response:
    words = (
        f"you have {MOST_OF_ONE} open sessions, as many as anybody may; end one (DELETE with its Mcp-Session-Id), "
        f"or wait: one in which nothing is asked for ends after {NEVER_CALLED_S:g} s"
    )
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": -32005, "message": words}}
    return JSONResponse(body, 503, {"Retry-After": f"{NEVER_CALLED_S:g}"})
