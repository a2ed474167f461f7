"""Streams of notices: `subscriptions/listen` of today's clients, `resources/subscribe` of those of 2025."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import Any

from mcp.server import NotificationOptions
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver.exceptions import ResourceError
from mcp.server.mcpserver.server import require_client_extension
from mcp.server.subscriptions import (
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    EmptyResult,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.mcp.callers import Caller, caller_now
from hpcagent.mcp.notices import Notices
from hpcagent.mcp.routes import matched
from hpcagent.mcp.said import clean_text
from hpcagent.mcp.threads import in_thread
from hpcagent.mcp.watching import Watch

__all__ = ["MOST_URIS", "TASKS", "may_hear", "serve_streams"]

log = logging.getLogger(__name__)

MOST_URIS = 1000
"""So many resources may one stream, or one session, ask for."""
TASKS = "io.modelcontextprotocol/tasks"
_LISTS: dict[str, ServerEvent] = {
    "tools/list": ToolsListChanged(),
    "prompts/list": PromptsListChanged(),
    "resources/list": ResourcesListChanged(),
}
_OLD = "hpcagent notices"


def may_hear(caller: Caller, uri: str) -> bool:
    """Whether a caller may be told of changes of a resource: where it is a run's, the run is one that they see.

    Raises:
        NotPermitted: The token does not allow it.
        HpcAgentError: The workspace does not answer.
    """
    try:
        found = matched(uri)
    except ResourceError:
        return False
    if found is None:
        return True  # no resource of the workspace: of the server itself, the same for all
    caller.require("runs:read")
    identity = found[1].get("run_id") or found[1].get("campaign_id")
    if identity is None:
        return True  # an event of it is told to whom it concerns only
    try:
        caller.workspace.status(identity, lines=0)
    except BadInput:
        return False
    return True


def _heard(caller: Caller, uris: Iterable[str]) -> list[str]:
    return [uri for uri in dict.fromkeys(uris) if may_hear(caller, uri)]


async def _asked(function: Any, *args: Any) -> Any:
    """Call what asks the workspace; its errors are the protocol's.

    Raises:
        MCPError: It does not answer, or the token does not allow it.
    """
    try:
        return await in_thread(function, *args)
    except BadInput as error:
        raise MCPError(INVALID_PARAMS, clean_text(error.message)) from None
    except HpcAgentError as error:
        raise MCPError(INTERNAL_ERROR, clean_text(error.message)) from None


def _bounded(many: int) -> None:
    if many > MOST_URIS:
        raise MCPError(INVALID_PARAMS, f"{many} resources are asked for; {MOST_URIS} at most in one stream.")


def serve_streams(server: Any, notices: Notices) -> None:
    """Serve both kinds of streams.

    Args:
        server: The SDK's low-level server.
        notices: What they are told.
    """
    listen = ListenHandler(notices)
    old = _OldClients(notices)

    async def gated(
        ctx: ServerRequestContext[Any, Any], params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        return await _listened(listen, notices, ctx, params)

    server.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, gated)
    server.add_request_handler("resources/subscribe", SubscribeRequestParams, old.subscribe)
    server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, old.unsubscribe)
    server.middleware.append(old.lists)
    _say_that_lists_change(server)


def _say_that_lists_change(server: Any) -> None:
    """Clients of 2025 are told in the handshake that lists may change."""
    plain = server.create_initialization_options
    options = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)

    def create(notification_options: NotificationOptions | None = None, *more: Any, **named: Any) -> Any:
        return plain(notification_options or options, *more, **named)

    server.create_initialization_options = create


# -- since 2026-07-28 ---------------------------------------------------------------------------


async def _listened(
    listen: ListenHandler,
    notices: Notices,
    ctx: ServerRequestContext[Any, Any],
    params: SubscriptionsListenRequestParams,
) -> SubscriptionsListenResult:
    """One stream: what its caller may not see is left out of what is promised, and never comes."""
    caller, wanted = caller_now(), params.notifications
    if (wanted.model_extra or {}).get("taskIds"):
        require_client_extension(ctx, TASKS)
    asked = wanted.resource_subscriptions or []
    _bounded(len(asked))
    uris = await _asked(_heard, caller, asked)
    if wanted.resources_list_changed:
        await _asked(caller.require, "runs:read")
    narrowed = wanted.model_copy(update={"resource_subscriptions": uris or None})
    params = params.model_copy(update={"notifications": narrowed})
    # What happens between the promise and the first look would be lost: the workspace is asked first.
    watch: Watch = await _asked(notices.attend, caller, uris)
    try:
        return await listen(ctx, params)
    finally:
        notices.leave(watch, uris)


# -- before ---------------------------------------------------------------------------------------


class _OldClients:
    """Sessions of clients that subscribe resource by resource, and hear of lists that they have read."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices

    async def subscribe(self, ctx: ServerRequestContext[Any, Any], params: SubscribeRequestParams) -> EmptyResult:
        """Tell this session when a resource has changed."""
        caller, uri = caller_now(), str(params.uri)
        if not _connection(ctx).has_standalone_channel:
            raise MCPError(
                INVALID_REQUEST, "this connection has no session that could be told; ask again instead."
            )
        if not await _asked(may_hear, caller, uri):
            raise MCPError(INVALID_PARAMS, f"there is no resource {clean_text(uri, 200)}", data={"uri": uri})
        session = self._session(ctx)
        _bounded(len(session.uris) + 1)
        await session.hear(uri)
        return EmptyResult()

    async def unsubscribe(
        self, ctx: ServerRequestContext[Any, Any], params: UnsubscribeRequestParams
    ) -> EmptyResult:
        """Tell it no more."""
        self._session(ctx).forget(str(params.uri))
        return EmptyResult()

    async def lists(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """A middleware: who has read a list is told when it changes."""
        event = _LISTS.get(ctx.method)
        old = ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS
        if event is not None and old and _connection(ctx).has_standalone_channel:
            session = self._session(ctx)
            session.lists.add(event)
            if not isinstance(event, PromptsListChanged) and "runs:read" in caller_now().scopes:
                try:
                    await session.hear("")
                except MCPError as error:
                    log.warning("a session is told of no changes: %s", error.error.message)
        return await call_next(ctx)

    def _session(self, ctx: ServerRequestContext[Any, Any]) -> _OldSession:
        connection = _connection(ctx)
        found = connection.state.get(_OLD)
        if found is None:
            found = connection.state[_OLD] = _OldSession(connection, self._notices, caller_now())
            connection.exit_stack.callback(found.end)
        assert isinstance(found, _OldSession)
        if found.person != caller_now().person:
            raise MCPError(INVALID_REQUEST, "this session is somebody else's; begin one of your own.")
        return found


def _connection(ctx: ServerRequestContext[Any, Any]) -> Connection:
    """What outlives a request: the SDK has no other way to it."""
    return ctx.session._connection


class _OldSession:
    """A session: what it hears, and a task that tells it, so that a slow client holds up nobody else."""

    def __init__(self, connection: Connection, notices: Notices, caller: Caller) -> None:
        self.uris: set[str] = set()
        self.lists: set[ServerEvent] = set()
        self._connection, self._notices, self._caller = connection, notices, caller
        self.person = caller.person
        self._watches: dict[str, Watch] = {}
        self._pending: dict[ServerEvent, None] = {}
        self._some = asyncio.Event()
        self._unsubscribe = notices.subscribe(self._take)
        self._task = asyncio.get_running_loop().create_task(self._tell())

    async def hear(self, uri: str) -> None:
        """Have changes of a resource told; of none, but of the list of resources, for an empty address."""
        if uri in self._watches:
            return
        watch = await _asked(self._notices.attend, self._caller, [uri])
        if uri in self._watches or self._task.done():  # asked for twice at once, or the session has ended
            self._notices.leave(watch, [uri])
            return
        self._watches[uri] = watch
        self.uris.add(uri)

    def forget(self, uri: str) -> None:
        """Tell of that resource no more."""
        self.uris.discard(uri)
        watch = self._watches.pop(uri, None)
        if watch is not None:
            self._notices.leave(watch, [uri])

    def end(self) -> None:
        """The session has ended."""
        self._unsubscribe()
        self._task.cancel()
        for uri in list(self._watches):
            self.forget(uri)

    def _take(self, event: ServerEvent) -> None:
        wanted = event.uri in self.uris if isinstance(event, ResourceUpdated) else event in self.lists
        if wanted:
            self._pending[event] = None  # told twice before it was heard, it is the same
            self._some.set()

    async def _tell(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await self._some.wait()
                self._some.clear()
                while self._pending:
                    event = next(iter(self._pending))
                    del self._pending[event]
                    await self._send(event)

    async def _send(self, event: ServerEvent) -> None:
        if isinstance(event, ResourceUpdated):
            await self._connection.send_resource_updated(event.uri)
        elif isinstance(event, ToolsListChanged):
            await self._connection.send_tool_list_changed()
        elif isinstance(event, PromptsListChanged):
            await self._connection.send_prompt_list_changed()
        else:
            await self._connection.send_resource_list_changed()
