"""Over stdin and stdout: stdout is the protocol's alone, whatever this process or its children print."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
from mcp_types import INVALID_REQUEST, PARSE_ERROR, JSONRPCNotification, jsonrpc_message_adapter
from pydantic import ValidationError

from hpcagent.aside import Aside
from hpcagent.shown import CONTROL, plain

if TYPE_CHECKING:
    from hpcagent.mcp.limits import Limits

__all__ = ["LARGEST_MESSAGE", "TooLong", "Wire", "own_streams", "quiet_logging", "serve_stdio", "unreadable"]

log = logging.getLogger(__name__)

LARGEST_MESSAGE = 4 << 20
"""Bytes of a message; a longer one is answered as one that cannot be read."""
_KEPT = 1 << 10  # bytes of both ends of a longer one, in which its id may be
_PIECE = 1 << 16


@dataclass(frozen=True)
class Wire:
    """The descriptors that stdin and stdout had at the start."""

    reads: int
    writes: int


@contextlib.contextmanager
def own_streams() -> Iterator[Wire]:
    """Keep stdin and stdout for the protocol: descriptor 0 reads nothing, and what is written to 1 goes to stderr.

    To be called before anything else may print: also a library in C, or a child process, writes to descriptor 1.
    """
    sys.stdout.flush()
    wire = Wire(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3), fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    try:
        yield wire
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()  # what was printed goes to stderr, too
        os.dup2(wire.reads, 0)
        os.dup2(wire.writes, 1)
        os.close(wire.writes)  # a thread may still read the other


class _Shown(logging.Formatter):
    """Messages have what clients have sent: it does nothing to a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))


def quiet_logging() -> None:
    """Warnings and errors of the server to stderr; none of what it takes or answers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Shown("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


class _Lines:
    """What the client sends, line by line, read by a thread that nobody has to wait for."""

    def __init__(self, descriptor: int, writer: _Writer) -> None:
        self._descriptor, self._writer = descriptor, writer
        self._send, self._receive = anyio.create_memory_object_stream[str | TooLong](0)
        self._token = anyio.lowlevel.current_token()

    def begin(self) -> None:
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def __aiter__(self) -> _Lines:
        return self

    async def __anext__(self) -> str:
        while True:
            try:
                line = await self._receive.receive()
            except anyio.EndOfStream:
                raise StopAsyncIteration from None
            refused = unreadable(line)
            if refused is None and isinstance(line, str) and line.strip():
                return line
            if refused is not None:  # the SDK would leave the client waiting
                log.warning("a message was not taken: %s", refused["error"]["message"])
                await self._writer.write(json.dumps(refused) + "\n")

    def _read(self) -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.RunFinishedError):
            try:
                for line in _split(self._descriptor):
                    anyio.from_thread.run(self._send.send, line, token=self._token)
            finally:
                anyio.from_thread.run_sync(self._send.close, token=self._token)

    def close(self) -> None:
        self._receive.close()


@dataclass(frozen=True)
class TooLong:
    """A message that was not kept.

    Attributes:
        begin: Its first bytes.
        end: Its last ones.
    """

    begin: bytes
    end: bytes


def _split(descriptor: int) -> Iterator[str | TooLong]:
    """Lines from a descriptor, of which it may take one byte at a time; of one that is too long both ends."""
    held, begin = bytearray(), b""
    while piece := _piece(descriptor):
        *lines, rest = piece.split(b"\n")
        for line in lines:
            held += line
            if begin or len(held) > LARGEST_MESSAGE:
                yield TooLong(begin or bytes(held[:_KEPT]), bytes(held[-_KEPT:]))
            else:
                yield held.decode(errors="replace")
            held, begin = bytearray(), b""
        held += rest
        if len(held) > LARGEST_MESSAGE:
            begin, held = begin or bytes(held[:_KEPT]), held[-_KEPT:]


_ID = r'"id"\s*:\s*("[^"\\]{1,200}"|-?\d{1,18})\s*'
_VERSION = r'"jsonrpc"\s*:\s*"2\.0"\s*'
_ID_FIRST = re.compile(rf"\s*\{{\s*(?:{_VERSION},\s*)?{_ID},")
_ID_LAST = re.compile(rf",\s*{_ID}(?:,\s*{_VERSION})?\}}\s*\Z")


def unreadable(line: str | TooLong) -> dict[str, Any] | None:
    """The answer to a message that cannot be taken; None: it can, or it is an empty line.

    Example:
        >>> unreadable('{"jsonrpc": "2.0", "id": 7, "method": 8}')["id"]
        7
        >>> unreadable('{"jsonrpc": "2.0", "id": 7, "method": "ping"}')
    """
    if isinstance(line, TooLong):
        return _refusal(_at_an_end(line.begin, line.end), PARSE_ERROR, f"it has more than {LARGEST_MESSAGE} bytes")
    if not line.strip():
        return None
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            ends = line[:_KEPT].encode(), line[-_KEPT:].encode()
            found = _loaded(line)
            identity = _id_of(found) if isinstance(found, dict) else _at_an_end(*ends)
            return _refusal(identity, PARSE_ERROR, first["msg"])
        return _refusal(_id_of(_loaded(line)), INVALID_REQUEST, _SHAPE)
    if isinstance(message, JSONRPCNotification) and '"id"' in line:
        found = _loaded(line)
        if isinstance(found, dict) and "id" in found:  # it would be taken for one that wants no answer
            return _refusal(None, INVALID_REQUEST, "an id is a text or a whole number")
    return None


_SHAPE = "it is no JSON-RPC 2.0 request, notification or response; there are no batches"


def _refusal(identity: Any, code: int, why: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "error": {"code": code, "message": f"{why}; nothing was done."}}


def _loaded(line: str) -> Any:
    """What Python can read of it, which is more than the SDK can; None: it cannot."""
    try:
        return json.loads(line, parse_int=lambda digits: int(digits) if len(digits) < 19 else None)
    except (ValueError, RecursionError):
        return None


def _id_of(found: Any) -> str | int | None:
    """The id of what would be a request."""
    identity = found.get("id") if isinstance(found, dict) and "method" in found else None
    if isinstance(identity, bool) or not isinstance(identity, str | int) or CONTROL.search(str(identity)):
        return None
    return identity if len(str(identity)) <= 200 else None


def _at_an_end(begin: bytes, end: bytes) -> str | int | None:
    """The id, where it stands at the begin or at the end of a message: in between it may be something else's."""
    found = _ID_FIRST.match(begin.decode(errors="replace")) or _ID_LAST.search(end.decode(errors="replace"))
    return None if found is None else _loaded(found[1])


def _piece(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _PIECE)
    except OSError:
        return b""  # the terminal or the connection has gone


class _Writer:
    """Where answers go; a client that does not read holds up its own answers only."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._gone = anyio.Event()
        self._turn = anyio.Lock()  # an answer is written in pieces
        self._own = anyio.CapacityLimiter(1)  # what the tools do keeps no answer back

    async def write(self, text: str) -> None:
        async with self._turn:
            left = memoryview(text.encode())
            while left:
                try:
                    written = await anyio.to_thread.run_sync(
                        os.write, self._descriptor, left, abandon_on_cancel=True, limiter=self._own
                    )
                except OSError:
                    self._gone.set()
                    return
                left = left[written:]

    async def flush(self) -> None:
        """Nothing is kept back."""

    async def gone(self) -> None:
        """Wait until the client no longer takes anything."""
        await self._gone.wait()


async def serve(server: Any, wire: Wire) -> None:
    """Serve until the client closes stdin, or SIGTERM, SIGINT or SIGHUP comes."""
    from mcp.server.stdio import stdio_server

    writer = _Writer(wire.writes)
    lines = _Lines(wire.reads, writer)
    low = server._lowlevel_server  # the SDK's own way to run takes no streams

    async def until_told(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async for _ in signals:
                scope.cancel()
                return

    async def until_gone(scope: anyio.CancelScope) -> None:
        await writer.gone()
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(until_told, group.cancel_scope)
        group.start_soon(until_gone, group.cancel_scope)
        lines.begin()
        async with stdio_server(cast(Any, lines), cast(Any, writer)) as (read, write):
            await low.run(read, write, low.create_initialization_options())
        group.cancel_scope.cancel()
    lines.close()


def serve_stdio(folder: Path, *, as_: str, wire: Wire, limits: Limits | None = None) -> None:
    """Serve a workspace to the one client at the other end of stdin and stdout; runs go on when it goes.

    Args:
        folder: The workspace's.
        as_: For whom the client speaks; empty: whoever owns the folder.
        wire: As `own_streams` gave it.
        limits: Of the client.
    """
    from hpcagent.mcp.callers import Callers
    from hpcagent.mcp.server import make_server

    callers = Callers(folder, as_=as_)
    try:
        server = make_server(callers, limits=limits)
        Aside().set()
        anyio.run(serve, server, wire)
    finally:
        callers.close()
