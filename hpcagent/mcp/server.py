"""The server as the SDK runs it: tools, resources, prompts, notifications, for whoever calls."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult, Completion, InputRequiredResult, Resource, ResourceTemplate
from mcp_types import Tool as ListedTool

import hpcagent
from hpcagent.mcp import resources, routes, tools
from hpcagent.mcp.callers import Callers, caller_now, calling
from hpcagent.mcp.limits import Limits
from hpcagent.mcp.listed import arguments_of, completed, listed
from hpcagent.mcp.notices import Notices
from hpcagent.mcp.pages import INSTRUCTIONS
from hpcagent.mcp.prompts import add_prompts
from hpcagent.mcp.routes import campaign_uri
from hpcagent.mcp.said import DATA, NOTE
from hpcagent.mcp.serving import Tool, as_sdk_tool, tools_of
from hpcagent.mcp.streams import serve_streams
from hpcagent.mcp.tasks import Tasks
from hpcagent.mcp.threads import in_thread
from hpcagent.mcp.tokens import Guard, caller_of, trace_of
from hpcagent.workspace.connection import traced

__all__ = ["INSTRUCTIONS", "HpcServer", "make_server"]


ELAPSED, TRACE = "hpcagent/elapsed_ms", "hpcagent/trace"
"""Keys of `_meta` of the answer of a tool: how long it took here, in ms, and its id in the journal."""


class HpcServer(MCPServer[Any]):
    """The SDK's server, with lists and resources that depend on who asks.

    Args:
        served: Its tools.
        more: As `MCPServer`.
    """

    def __init__(self, *, served: Iterable[Tool], **more: Any) -> None:
        self._served = {one.name: one for one in served}
        super().__init__(**more)

    async def list_tools(self) -> list[ListedTool]:
        """Tools that the caller's token and role allow."""
        caller = caller_now()
        rights = await in_thread(caller.rights)
        every = await super().list_tools()
        hidden = {name for name, one in self._served.items() if not one.is_for(caller.scopes, rights)}
        return [one for one in every if one.name not in hidden]

    async def list_resources(self) -> list[Resource]:
        """Resources that there are for the caller."""
        return [*await in_thread(listed, caller_now()), *await super().list_resources()]

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """Addresses with variables."""
        return [*routes.templates(), *await super().list_resource_templates()]

    async def read_resource(
        self, uri: Any, context: Context[Any, Any] | None = None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        """Read a resource in the caller's name."""
        found = await in_thread(
            resources.read, caller_now(), str(uri), waits=str(uri).startswith(campaign_uri(""))
        )
        if found is None:
            return await super().read_resource(uri, context)
        return [
            ReadResourceContents(content=found.data, mime_type=found.mime, meta={NOTE: DATA, **(found.meta or {})})
        ]


def make_server(callers: Callers, *, guard: Guard | None = None, limits: Limits | None = None) -> MCPServer[Any]:
    """The server of a workspace.

    Args:
        callers: Who may call, and the workspace.
        guard: Checks the tokens of requests over HTTP; None: there are none.
        limits: Of each caller.
    """
    served = [one for module in tools.MODULES for one in tools_of(module)]
    notices = Notices()
    server = HpcServer(
        name="hpcagent",
        title="hpcagent",
        description="Run jobs, follow them and steer campaigns of simulations on clusters.",
        instructions=INSTRUCTIONS,
        version=hpcagent.__version__,
        tools=[as_sdk_tool(one) for one in served],
        served=served,
        subscriptions=notices,
        extensions=[Tasks()],
        log_level="WARNING",
        token_verifier=None if guard is None else guard.verifier,
        auth=None if guard is None else guard.settings(),
    )
    server.middleware.append(_as_caller(callers, guard is not None, limits or Limits()))
    serve_streams(server._lowlevel_server, notices)
    callers.at_close(notices.close)
    _complete(server)
    add_prompts(server)
    return server


def _complete(server: MCPServer[Any]) -> None:
    """Serve completion of addresses; `add_prompts` completes arguments of prompts."""

    async def complete(ref: Any, argument: Any, context: Any) -> Completion:
        found: Completion = await in_thread(
            completed, caller_now(), argument.name, argument.value, arguments_of(context)
        )
        return found

    decorate: Any = server.completion  # without annotations in the SDK
    decorate()(complete)


def _with_meta(answer: HandlerResult, more: dict[str, Any]) -> HandlerResult:
    """The same answer with more in its `_meta`."""
    if isinstance(answer, dict):
        return {**answer, "_meta": {**(answer.get("_meta") or {}), **more}}
    if isinstance(answer, CallToolResult):
        return answer.model_copy(update={"meta": {**(answer.meta or {}), **more}})
    return answer


def _as_caller(callers: Callers, guarded: bool, limits: Limits) -> Any:
    async def middleware(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        caller, trace, began = caller_of(callers, ctx, guarded), trace_of(ctx), time.monotonic()
        with calling(caller), traced(trace):
            if ctx.request_id is None:
                return await call_next(ctx)  # a notification has no answer
            answer = await limits.answered(caller.person, ctx, call_next)
            if ctx.method != "tools/call":
                return answer
            return _with_meta(answer, {ELAPSED: round(1000 * (time.monotonic() - began), 1), TRACE: trace})

    return middleware
