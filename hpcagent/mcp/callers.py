"""Who calls: the person a request speaks for, what its token allows, and their connection to the workspace."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hpcagent.errors import HpcAgentError, NotPermitted
from hpcagent.gate.rules import Right
from hpcagent.workspace.client import Workspace

__all__ = ["ALL_SCOPES", "Caller", "Callers", "Scope", "caller_now", "calling", "person_now", "root_now"]

log = logging.getLogger(__name__)

Scope = Literal["runs:read", "runs:write", "tools:admin"]
ALL_SCOPES: frozenset[Scope] = frozenset({"runs:read", "runs:write", "tools:admin"})


@dataclass(frozen=True)
class Caller:
    """Whoever a request speaks for.

    Attributes:
        person: A person of `workspace.toml`; empty: whoever owns the folder.
        scopes: What the token allows; without a token all.
        workspace: The workspace in that person's name.
        program: Program and version, as the client says them.
    """

    person: str
    scopes: frozenset[Scope]
    workspace: Workspace = field(compare=False)
    program: str = ""

    def rights(self) -> frozenset[Right]:
        """What the person's role may do, as `workspace.toml` says it now; nothing while it cannot be read."""
        try:
            return frozenset(self.workspace.rights().may)
        except HpcAgentError as error:
            log.warning("no rights are known: %s", error.message)
            return frozenset()

    def require(self, scope: Scope) -> None:
        """Refuse what the token does not allow.

        Raises:
            NotPermitted: The scope is not among its scopes.
        """
        if scope not in self.scopes:
            raise NotPermitted(
                f"this needs the scope {scope}; the token has {', '.join(sorted(self.scopes)) or 'none'}. "
                "Ask whoever issues tokens for one with it."
            )


_NOW: ContextVar[Caller] = ContextVar("caller")


def caller_now() -> Caller:
    """The caller of the request that is answered at this moment."""
    return _NOW.get()


def person_now() -> str:
    """The person whose request is answered at this moment; empty: nobody's."""
    caller = _NOW.get(None)
    return "" if caller is None else caller.person


def root_now() -> str:
    """The folder of the workspace that is asked at this moment; empty: none."""
    caller = _NOW.get(None)
    return "" if caller is None else str(caller.workspace.folder.root)


@contextmanager
def calling(caller: Caller) -> Iterator[None]:
    """Answer a request of this caller."""
    token = _NOW.set(caller)
    try:
        yield
    finally:
        _NOW.reset(token)


class Callers:
    """The callers of one server, each with connections of their own to the workspace.

    Args:
        folder: The workspace's folder.
        as_: Who is spoken for where no token says it.
    """

    MOST = 256  # persons times programs that are kept; beyond it the oldest are connected anew

    def __init__(self, folder: Path, *, as_: str = "") -> None:
        self.folder, self.as_ = folder, as_
        self._turn = threading.Lock()
        self._known: dict[tuple[str, frozenset[Scope], str], Caller] = {}
        self._before_closing: list[Callable[[], None]] = []

    def caller(
        self, person: str | None = None, scopes: frozenset[Scope] = ALL_SCOPES, *, program: str = ""
    ) -> Caller:
        """The caller of that name and those scopes; without a name the one whom the server was started for."""
        who = self.as_ if person is None else person
        key = (who, scopes, program)
        with self._turn:
            found = self._known.get(key)
            if found is None:
                workspace = Workspace(self.folder, as_=who, client=program or "mcp")
                found = self._known[key] = Caller(who, scopes, workspace, program)
                while len(self._known) > self.MOST:
                    self._known.pop(next(iter(self._known)))
        return found

    def at_close(self, function: Callable[[], None]) -> None:
        """Have something done before the connections are closed: to end what uses them."""
        self._before_closing.append(function)

    def close(self) -> None:
        """Close all connections; runs go on."""
        while self._before_closing:
            self._before_closing.pop()()
        with self._turn:
            for caller in self._known.values():
                caller.workspace.close(everywhere=True)
            self._known.clear()
