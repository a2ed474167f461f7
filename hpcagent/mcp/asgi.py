"""An ASGI application on an address of this machine: served until it is told to end, patient only so long."""

from __future__ import annotations

import contextlib
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import uvicorn
from anyio.abc import TaskStatus
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hpcagent.aside import Aside
from hpcagent.errors import BadInput

__all__ = ["Patient", "Trimmed", "bound", "is_loopback", "serve_app"]

CONNECTIONS = 4000
# A client that sends or takes nothing for so long is cut off.
PATIENCE_S = 30.0
ENDS_WITHIN_S = 3


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, reached from this machine only.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
        (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens; with port 0 on a free one.

    Raises:
        BadInput: There is no such address here, or it is in use.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, proto)
    except OSError as error:
        raise BadInput(f"--host {host}: {error.strerror or error}.", value=host) from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(1024)
    except OSError as error:
        made.close()
        raise BadInput(f"{host}, port {port}: {error.strerror}; name another, or none.", value=port) from None
    return made


class Trimmed:
    """Takes blanks around the values of headers away (RFC 9110, 5.5): one of uvicorn's two parsers leaves them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}
        await self._app(scope, receive, send)


class _TooSlow(Exception):
    """A client has sent or taken nothing for too long."""


class Patient:
    """Cuts off a client that does not send its request, or does not take its answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        until = anyio.current_time() + PATIENCE_S
        complete = answered = False

        async def patient_receive() -> Message:
            nonlocal complete
            if complete:
                return await receive()  # it waits for the client to go
            with _within(until - anyio.current_time()):
                message = await receive()
            complete = not message.get("more_body", False)
            return message

        async def patient_send(message: Message) -> None:
            nonlocal answered
            answered = True
            with _within(PATIENCE_S):
                await send(message)

        slow = False
        try:
            await self._app(scope, patient_receive, patient_send)
        except* _TooSlow:
            slow = True
        if slow and not answered:
            words = f"The request has not come within {PATIENCE_S:g} s"
            await PlainTextResponse(words, 408, {"Connection": "close"})(scope, receive, send)
        # Where an answer had begun, uvicorn closes the connection, as it is not complete.


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    try:
        with anyio.fail_after(max(0.0, seconds)):
            yield
    except TimeoutError:
        raise _TooSlow from None


def _impatient() -> type[Any]:
    """uvicorn's protocol, which waits for the head of a request without end, with an end."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class Impatient(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
        _late: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._late is not None:
                self._late.cancel()
            super().connection_lost(exc)

        def _wait(self) -> None:
            if self._late is None:
                self._late = self.loop.call_later(PATIENCE_S, self._look, self.cycle)

        def _look(self, before: Any) -> None:
            self._late = None
            cycle = self.cycle
            if cycle is before and (cycle is None or cycle.response_complete):
                self.transport.close()

    return Impatient


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which end the process by the signal once more."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_app(app: ASGIApp, listening: socket.socket, begun: Callable[[], None]) -> None:
    """Serve an application until SIGTERM, Ctrl-C or SIGHUP.

    Args:
        app: The application.
        listening: Of `bound`.
        begun: Is called once clients can connect.
    """
    config = uvicorn.Config(
        app,
        http=_impatient(),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=int(
            PATIENCE_S
        ),  # as clients' own 5 s it would be a race: a request into a connection that closes
        timeout_graceful_shutdown=ENDS_WITHIN_S,
    )
    server = _Server(config)

    async def until_told(*, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            async for _ in signals:
                server.should_exit = True

    async with anyio.create_task_group() as group:
        await group.start(until_told)
        Aside().set()
        begun()
        await server.serve(sockets=[listening])
        group.cancel_scope.cancel()
