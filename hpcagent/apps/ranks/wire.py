"""What a driver and its rank processes say to each other: frames over TCP. Standard library only.

A frame is its length (four bytes), a byte that says what it is, and the content: JSON, or a pickle, which only a
rank reads, from the driver that has started it. Whoever connects shows the launch's secret first.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import pickle
import secrets
import socket
import struct
from typing import Any

__all__ = ["ADDRESS", "LARGEST", "SECRET", "Wire", "answered", "challenge", "connected", "newcomer"]

ADDRESS = "HPCAGENT_RANKS"
"""Environment variable of a rank process: `host:port` of its driver."""
SECRET = "HPCAGENT_RANKS_SECRET"
"""Environment variable of a rank process: the secret of its launch."""

LARGEST = 1 << 30
"""Bytes of the largest frame; before somebody has shown the secret, `_FIRST`."""
_FIRST = 4096
_HEAD = struct.Struct(">IB")
_JSON, _PICKLE = 0, 1
_NONCE = 32


class Wire:
    """One end of a connection.

    Args:
        sock: The connected socket. Of one that does not block, `send` keeps what does not go yet for `flush`.
        most: Largest frame that is taken, in bytes.
    """

    def __init__(self, sock: socket.socket, *, most: int = LARGEST) -> None:
        self.sock, self.most = sock, most
        self._buffer = bytearray()
        self._unsent = bytearray()

    def fileno(self) -> int:
        """For selectors."""
        return self.sock.fileno()

    def send(self, message: dict[str, Any], *, pickled: bool = False) -> None:
        """Send a message: whole on a socket that blocks, else as far as it goes.

        Raises:
            OSError: The other end is gone.
        """
        body = pickle.dumps(message) if pickled else json.dumps(message).encode()
        frame = _HEAD.pack(len(body), _PICKLE if pickled else _JSON) + body
        if self.sock.getblocking():
            self.sock.sendall(frame)
            return
        self._unsent += frame
        self.flush()

    @property
    def unsent(self) -> int:
        """Bytes that the other end had no room for yet."""
        return len(self._unsent)

    def flush(self) -> None:
        """Send what waits, as far as it goes.

        Raises:
            OSError: The other end is gone.
        """
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self.sock.send(self._unsent)]

    def read(self, *, trusted: bool = False) -> list[dict[str, Any]]:
        """Take what has come; where nothing has, a socket that blocks waits for it.

        Args:
            trusted: Whether the other end is the driver that has started this process: its pickles are read.

        Returns:
            The messages that are whole by now.

        Raises:
            EOFError: The other end is gone, or sent what is no message, whatever it is.
            OSError: Likewise.
        """
        try:
            piece = self.sock.recv(1 << 16)
        except BlockingIOError:
            return []
        if not piece:
            raise EOFError("the connection was closed")
        self._buffer += piece
        found = []
        while len(self._buffer) >= _HEAD.size:
            length, kind = _HEAD.unpack_from(self._buffer)
            if length > self.most or kind not in (_JSON, _PICKLE) or (kind == _PICKLE and not trusted):
                raise EOFError("no message of a rank")
            end = _HEAD.size + length
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            try:
                message = pickle.loads(body) if kind == _PICKLE else json.loads(body)
            except Exception as error:  # nested too deep (RecursionError), a pickle of what is not there, ...
                raise EOFError(f"no message of a rank: {error!r}") from error
            if not isinstance(message, dict):
                raise EOFError("no message of a rank")
            found.append(message)
        return found

    def close(self) -> None:
        """Close it; harmless twice."""
        self.sock.close()


def challenge(sock: socket.socket) -> bytes:
    """Greet whoever has connected with random bytes, to be answered with the secret."""
    nonce = secrets.token_bytes(_NONCE)
    sock.sendall(nonce)
    return nonce


def answered(nonce: bytes, secret: str, said: object) -> bool:
    """Whether an answer to a challenge shows the secret."""
    # Of text beyond ASCII nothing is compared: that raises, as half of a surrogate pair does when it is encoded.
    return isinstance(said, str) and said.isascii() and hmac.compare_digest(said, _proof(nonce, secret))


def _proof(nonce: bytes, secret: str) -> str:
    return hmac.new(secret.encode(), nonce, hashlib.sha256).hexdigest()


def connected(address: str, secret: str, hello: dict[str, Any], *, timeout_s: float = 60.0) -> Wire:
    """Connect to the driver, answer its challenge and say who this is.

    Args:
        address: `host:port`; several with commas between them, of which the first that answers is taken.
        secret: That of the launch.
        hello: What is said beside the proof.

    Raises:
        OSError: Nobody answers there.
    """
    error: OSError | None = None
    for one in address.split(","):
        host, _, port = one.rpartition(":")
        try:
            sock = socket.create_connection((host, int(port)), timeout=timeout_s)
        except OSError as failed:
            error = failed
            continue
        nonce = b""
        while len(nonce) < _NONCE:
            piece = sock.recv(_NONCE - len(nonce))
            if not piece:
                raise ConnectionResetError("the driver has closed the connection")
            nonce += piece
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = Wire(sock)
        wire.send({**hello, "proof": _proof(nonce, secret)})
        return wire
    raise error or OSError(f"no address in {address!r}")


def newcomer(sock: socket.socket) -> Wire:
    """The driver's end of a connection that has not shown the secret yet; it never blocks the driver."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Wire(sock, most=_FIRST)
