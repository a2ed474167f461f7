"""Keys of an issuer of tokens (JWKS, RFC 7517), from a file or a URL."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx2
import jwt

from hpcagent.errors import BadInput
from hpcagent.mcp.asgi import is_loopback
from hpcagent.owners import stranger

__all__ = ["ALGORITHMS", "Keys", "require_safe_url"]

log = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "ES256", "EdDSA")
"""Signatures by a private key; with a shared secret (HS256) whoever checks a token could make one, too."""

_FAMILY = {"RS256": ("RSA", None), "ES256": ("EC", "P-256"), "EdDSA": ("OKP", "Ed25519")}
LEAST_RSA_BITS = 2048
LARGEST = 256 << 10
FETCH_S = 10.0
# A key that is not known may be a new one: asked for at most so often, whatever tokens come.
AGAIN_S = 30.0
# A key that was withdrawn is no longer taken after so long, or where its issuer cannot be reached, after STALE_S.
FRESH_S = 3600.0
STALE_S = 86400.0


def require_safe_url(url: str, what: str) -> str:
    """The URL, if others on the way can neither read nor change what goes there.

    Raises:
        BadInput: It is no URL of https, nor one of this machine.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    plain = parts.scheme == "http" and is_loopback(host)
    if not host or port == 0 or parts.username is not None or not (parts.scheme == "https" or plain):
        raise BadInput(f"{what}: {url!r} is no URL of https (http: of this machine only).", value=url)
    return url


class Keys:
    """The public keys of an issuer.

    Args:
        source: A path, or a URL of https.
        now: The clock, in seconds.
    """

    def __init__(self, source: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self._url = source if "://" in source else ""
        if self._url:
            require_safe_url(self._url, "--jwks")
        self._path = Path(source).expanduser().absolute()
        self._now = now
        self._keys: list[dict[str, Any]] = []
        self._read_at = self._tried_at = -STALE_S
        self._turn = anyio.Lock()

    async def load(self) -> None:
        """Get them now.

        Raises:
            BadInput: There are none.
        """
        self._tried_at = self._now()
        text = await self._fetched() if self._url else await anyio.to_thread.run_sync(self._read)
        self._keys = _public_keys(text, self._url or str(self._path))
        self._read_at = self._now()

    async def key(self, kid: str | None, algorithm: str) -> Any:
        """The key of that id for such a signature; without an id the only one that there is; None: none."""
        if self._now() - self._read_at > FRESH_S:
            await self._refresh()
        found = self._found(kid, algorithm)
        if found is None and kid is not None:
            await self._refresh()
            found = self._found(kid, algorithm)
        return found

    async def _refresh(self) -> None:
        async with self._turn:
            if self._now() - self._tried_at < AGAIN_S:
                return
            try:
                await self.load()
            except BadInput as error:
                log.warning("%s", error)
                if self._now() - self._read_at > STALE_S:
                    self._keys = []

    def _found(self, kid: str | None, algorithm: str) -> Any:
        kty, curve = _FAMILY[algorithm]
        fitting = [
            one
            for one in self._keys
            if one["kty"] == kty and one.get("crv") == curve and one.get("alg", algorithm) == algorithm
        ]
        if kid is not None:
            fitting = [one for one in fitting if one.get("kid") == kid]
        if len(fitting) != 1:
            return None
        return jwt.PyJWK(fitting[0], algorithm=algorithm).key

    def _read(self) -> bytes:
        problem = stranger(self._path)
        if problem:
            raise BadInput(f"--jwks: {problem}, and its keys decide who may call.", value=str(self._path))
        try:
            with self._path.open("rb") as file:
                return file.read(LARGEST + 1)
        except OSError as error:
            why = f"--jwks: {self._path} cannot be read: {error.strerror}."
            raise BadInput(why, value=str(self._path)) from None

    async def _fetched(self) -> bytes:
        here = is_loopback(urlsplit(self._url).hostname or "")
        data = bytearray()
        try:
            # A redirect is not followed: it may lead to where https is not.
            with anyio.fail_after(FETCH_S):
                async with (
                    httpx2.AsyncClient(trust_env=not here, follow_redirects=False) as client,
                    client.stream("GET", self._url, headers={"Accept": "application/json"}) as answer,
                ):
                    if answer.status_code != 200:
                        raise BadInput(f"--jwks: {self._url} answers {answer.status_code}.", value=self._url)
                    async for piece in answer.aiter_bytes():
                        data += piece
                        if len(data) > LARGEST:
                            break
        except (httpx2.HTTPError, TimeoutError, OSError) as error:
            why = f"--jwks: {self._url} cannot be fetched: {type(error).__name__}."
            raise BadInput(why, value=self._url) from None
        return bytes(data)


def _public_keys(text: bytes, source: str) -> list[dict[str, Any]]:
    """Keys that check a signature of ALGORITHMS; others are left out."""
    if len(text) > LARGEST:
        raise BadInput(f"--jwks: {source} has more than {LARGEST} bytes.", value=source)
    try:
        keys = json.loads(text)["keys"]
        found = [one for one in keys if _usable(one)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadInput(f'--jwks: {source} is no key set ({{"keys": [...]}}).', value=source) from None
    if not found:
        raise BadInput(f"--jwks: {source} has no key for {', '.join(ALGORITHMS)}.", value=source)
    return found


def _usable(key: dict[str, Any]) -> bool:
    family = key.get("kty"), key.get("crv")
    algorithm = next((one for one, its in _FAMILY.items() if its == family), None)
    if algorithm is None or key.get("use", "sig") != "sig" or key.get("alg", algorithm) != algorithm:
        return False
    try:
        made = jwt.PyJWK(key, algorithm=algorithm).key
    except (jwt.PyJWTError, ValueError):
        return False
    return key["kty"] != "RSA" or bool(made.key_size >= LEAST_RSA_BITS)
