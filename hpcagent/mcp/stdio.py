"""Over stdin and stdout: stdout is the protocol's alone, whatever this process or its children print."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
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

from hpcagent.shown import plain

if TYPE_CHECKING:
    from hpcagent.mcp.limits import Limits

__all__ = ["LARGEST_MESSAGE", "Wire", "own_streams", "quiet_logging", "serve_stdio"]

LARGEST_MESSAGE = 4 << 20
"""Bytes of a message; a longer one is answered as one that cannot be read."""
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

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._send, self._receive = anyio.create_memory_object_stream[str](0)
        self._token = anyio.lowlevel.current_token()

    def begin(self) -> None:
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def __aiter__(self) -> _Lines:
        return self

    async def __anext__(self) -> str:
        try:
            return await self._receive.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    def _read(self) -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.RunFinishedError):
            try:
                for line in _split(self._descriptor):
                    anyio.from_thread.run(self._send.send, line, token=self._token)
            finally:
                anyio.from_thread.run_sync(self._send.close, token=self._token)

    def close(self) -> None:
        self._receive.close()


def _split(descriptor: int) -> Iterator[str]:
    """Lines from a descriptor, of which it may take one byte at a time; too long a line is an empty one."""
    held, skipped = bytearray(), False
    while piece := _piece(descriptor):
        *lines, rest = piece.split(b"\n")
        for line in lines:
            held += line
            text = "" if skipped or len(held) > LARGEST_MESSAGE else held.decode(errors="replace")
            held, skipped = bytearray(), False
            yield text
        held += rest
        if len(held) > LARGEST_MESSAGE:
            held, skipped = bytearray(), True


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
        self._own = anyio.CapacityLimiter(1)  # what the tools do keeps no answer back

    async def write(self, text: str) -> None:
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

    lines, writer = _Lines(wire.reads), _Writer(wire.writes)
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
        anyio.run(serve, make_server(callers, limits=limits), wire)
    finally:
        callers.close()
