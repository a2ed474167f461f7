"""Tokens of requests over HTTP: this server's own, or an issuer's; who they speak for, and what they allow."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken, TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST
from pydantic import AnyHttpUrl

from hpcagent.errors import HpcAgentError
from hpcagent.gate.rules import Rules
from hpcagent.mcp.callers import ALL_SCOPES, Caller, Callers, Scope
from hpcagent.mcp.jwks import ALGORITHMS, Keys
from hpcagent.mcp.own_token import own_token
from hpcagent.mcp.said import clean_text
from hpcagent.workspace.folder import Folder

__all__ = ["Guard", "JwtVerifier", "OwnVerifier", "caller_of", "program_of", "trace_of"]

log = logging.getLogger(__name__)

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
LONGEST_TOKEN = 16 << 10
LEEWAY_S = 30.0
LATEST_S = 1e11
"""Unix time: beyond it no token ends."""


@dataclass(frozen=True)
class Guard:
    """What checks the tokens of a server.

    Attributes:
        verifier: Checks one.
        issuer: URL of who issues them.
        resource: URL of this server, as tokens name it; empty: it has tokens of its own, and no issuer is told of.
    """

    verifier: TokenVerifier
    issuer: str
    resource: str = ""

    def settings(self) -> AuthSettings:
        """The same for the SDK. Without `runs:read` nothing can be done here, so every token needs it."""
        return AuthSettings(
            issuer_url=AnyHttpUrl(self.issuer),
            resource_server_url=AnyHttpUrl(self.resource) if self.resource else None,
            required_scopes=["runs:read"],
            validate_token_resource=False,  # the verifier checks the audience itself
        )


class OwnVerifier:
    """Takes the one token of this server, which is in the workspace's folder.

    Args:
        folder: The workspace's.
        person: For whom it speaks.
    """

    def __init__(self, folder: Path, person: str) -> None:
        self._digest = hashlib.sha256(own_token(folder).encode()).digest()
        self._person = person

    async def verify_token(self, token: str) -> AccessToken | None:
        """Who it speaks for; None: it is another token."""
        # Digests have one length: not even that of the token is told by the time.
        digest = hashlib.sha256(token.encode(errors="replace")).digest()
        if not hmac.compare_digest(digest, self._digest):
            return None
        return AccessToken(token="", client_id="own", scopes=sorted(ALL_SCOPES), subject=self._person)


class JwtVerifier:
    """Takes tokens that an issuer has signed for this server (RFC 9068).

    Args:
        folder: The workspace's; its people are whom tokens may speak for.
        issuer: Claim `iss`.
        keys: The issuer's.
        audience: Claim `aud`: this server.
        person_claim: The claim that says who it is.
    """

    def __init__(self, folder: Path, *, issuer: str, keys: Keys, audience: str, person_claim: str = "sub") -> None:
        self._people = _People(folder)
        self._issuer, self._keys, self._audience, self._claim = issuer, keys, audience, person_claim

    async def verify_token(self, token: str) -> AccessToken | None:
        """Who it speaks for, `subject` None: somebody who is not known here; None: it is not valid."""
        try:
            claims = await self._claims(token)
            expires_at = _end_of(claims["exp"])
        except jwt.PyJWTError as error:
            log.info("a token was refused: %s", type(error).__name__)
            return None
        except (ValueError, TypeError, OverflowError, RecursionError, AttributeError) as error:
            # Claims and headers are whatever somebody has written; what cannot be read is not valid.
            log.info("a token was refused: %s", type(error).__name__)
            return None
        who = claims.get(self._claim)
        return AccessToken(
            token="",  # nobody needs it any more: it cannot be passed on
            client_id=str(claims.get("client_id") or claims.get("azp") or "")[:200],
            scopes=sorted(_scopes(claims)),
            expires_at=expires_at,
            resource=self._audience,
            subject=self._people.person_of(who) if isinstance(who, str) and who else None,
            claims={"iss": self._issuer},
        )

    async def _claims(self, token: str) -> dict[str, Any]:
        if len(token) > LONGEST_TOKEN:
            raise jwt.DecodeError("too long")
        header = jwt.get_unverified_header(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS or "crit" in header or not (kid is None or isinstance(kid, str)):
            raise jwt.InvalidAlgorithmError("not allowed")
        key = await self._keys.key(kid, algorithm)
        if key is None:
            raise jwt.InvalidKeyError("not known")
        return jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=self._audience,
            issuer=self._issuer,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iss", "aud"]},
        )


def _end_of(exp: object) -> int:
    """When a token ends, in Unix seconds, with the leeway.

    Raises:
        DecodeError: It is no number (RFC 7519, 4.1.4), or none of a time that there is.
    """
    if isinstance(exp, bool) or not isinstance(exp, int | float) or not 0 <= exp <= LATEST_S:
        raise jwt.DecodeError("no time")
    return int(exp + LEEWAY_S)


_WORD = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")


def _scopes(claims: Mapping[str, Any]) -> frozenset[Scope]:
    """The scopes that are known here: `scope` with blanks between them (RFC 8693), or the list `scp`."""
    said = claims.get("scope", claims.get("scp", ""))
    words = said if isinstance(said, list) else _WORD.findall(said) if isinstance(said, str) else []
    return ALL_SCOPES.intersection(one for one in words if isinstance(one, str))


class _People:
    """The people of `workspace.toml`, read again when it was written."""

    def __init__(self, folder: Path) -> None:
        self._folder = Folder(folder)
        self._as_read: tuple[int, int] | None = None
        self._rules: Rules | None = None

    def person_of(self, subject: str) -> str | None:
        try:
            found = self._folder.rules.stat()
            if (found.st_mtime_ns, found.st_size) != self._as_read:
                self._as_read = found.st_mtime_ns, found.st_size
                self._rules = None
                self._rules = self._folder.read_rules()
        except (OSError, HpcAgentError) as error:
            log.warning("nobody is let in: %s", error)
            return None
        return None if self._rules is None else self._rules.person_of(subject)


def caller_of(callers: Callers, ctx: ServerRequestContext[Any, Any], guarded: bool) -> Caller:
    """Who asks: as the token of this very request says, or whom the server was started for.

    Raises:
        MCPError: The server takes tokens, and there is none.
    """
    # A session has a token with each request, and scopes may be others than in the one that began it.
    user = None if ctx.request is None else ctx.request.scope.get("user")
    token = user.access_token if isinstance(user, AuthenticatedUser) else get_access_token()
    if token is not None and token.subject is not None:
        return callers.caller(token.subject, ALL_SCOPES.intersection(token.scopes), program=program_of(ctx))
    if guarded or token is not None:
        raise MCPError(INVALID_REQUEST, "this server needs a token with each request")
    return callers.caller(program=program_of(ctx))


def program_of(ctx: ServerRequestContext[Any, Any]) -> str:
    """Program and version, as the client says them: nobody has checked it."""
    params = ctx.session.client_params
    if params is None:
        return ""
    info = params.client_info
    return clean_text(" ".join(f"{info.name[:80]} {info.version[:40]}".split()))


def trace_of(ctx: ServerRequestContext[Any, Any]) -> str:
    """The id of a request: that of the client's trace (W3C, `traceparent` in `_meta`), else a new one."""
    found = _TRACEPARENT.fullmatch(str((ctx.meta or {}).get("traceparent", "")))
    return found[1] if found else secrets.token_hex(16)
