"""The Tasks extension (`io.modelcontextprotocol/tasks`), a second door to the runs and campaigns of the workspace.

A task is a run or a campaign, and its id is the handle: nothing is kept here, so that a task outlives the server.
To a client that declares the extension, calls that start something answer with a task; to all others with the
handle. A person's yes is asked for before there is a task, so that none ever waits for input. As the extension has
it, a run that has failed is a task that is `completed` with `isError`: `failed` is for errors of the protocol.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver.server import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    RequestParams,
    TextContent,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from hpcagent.errors import BadInput, HpcAgentError, NotPermitted
from hpcagent.mcp.callers import Caller, caller_now
from hpcagent.mcp.routes import campaign_uri, run_uri
from hpcagent.mcp.said import DATA, clean, clean_text
from hpcagent.mcp.serving import Answer
from hpcagent.mcp.streams import TASKS
from hpcagent.mcp.threads import in_thread
from hpcagent.mcp.tools import campaigns, catalysts, runs, simulations

__all__ = ["STARTS", "Tasks", "task_of"]

STARTS = (
    *("run_job", "repeat_run", "submit_slurm", "optimize_geometry", "plot_band_structure"),
    *("run_dft", "simulation_run", "start_campaign", "extend_campaign", "bayesian_optimize"),
)
"""Tools whose answer has a handle."""
POLL_MS = 1000
_HANDLES = ("run_id", "campaign_id")


class TaskParams(RequestParams):
    """Which task."""

    task_id: str = Field(max_length=200)


class UpdateParams(TaskParams):
    """Answers to what a task asks for."""

    input_responses: dict[str, Any] = Field(default_factory=dict)


class Tasks(Extension):
    """Offers what a tool has started as a task."""

    identifier = TASKS

    def methods(self) -> Sequence[MethodBinding]:
        """What clients ask of tasks."""
        modern = frozenset(MODERN_PROTOCOL_VERSIONS)
        return (
            MethodBinding("tasks/get", TaskParams, _get, modern),
            MethodBinding("tasks/update", UpdateParams, _update, modern),
            MethodBinding("tasks/cancel", TaskParams, _cancel, modern),
        )

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Answer with a task where a client takes one and something was started."""
        answer = await call_next(ctx)
        if params.name not in STARTS or not _declared(ctx) or not isinstance(answer, CallToolResult):
            return answer
        handle = answer.structured_content or {}
        identity = next((handle[name] for name in _HANDLES if isinstance(handle.get(name), str)), None)
        if answer.is_error or identity is None:
            return answer
        seed = await _asked(task_of, caller_now(), identity)
        return {"resultType": "task", **{name: value for name, value in seed.items() if name != "result"}}


def _declared(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Whether the client takes tasks: since 2026-07-28, and by this very request."""
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return False
    capabilities = ctx.session.client_capabilities
    return capabilities is not None and TASKS in (capabilities.extensions or {})


async def _asked(function: Callable[..., Any], *args: Any) -> Any:
    """Ask the workspace; its errors are the protocol's.

    Raises:
        MCPError: There is no such task, or the workspace does not answer.
    """
    try:
        return await in_thread(function, *args, waits=function is task_of)
    except BadInput as error:
        raise MCPError(INVALID_PARAMS, clean_text(f"there is no such task: {error.message}")) from None
    except NotPermitted as error:
        raise MCPError(INVALID_PARAMS, clean_text(error.message)) from None
    except HpcAgentError as error:
        raise MCPError(INTERNAL_ERROR, clean_text(error.message)) from None


def _require_named(ctx: ServerRequestContext[Any, Any], params: TaskParams) -> None:
    """Over HTTP the header `Mcp-Name` has the task's id; the SDK compares it for its own methods only.

    Raises:
        MCPError: The header is missing, or names another task, or the client has not declared the extension.
    """
    headers = getattr(ctx.request, "headers", None)
    if headers is not None and decode_header_value(headers.get(MCP_NAME_HEADER)) != params.task_id:
        raise MCPError(HEADER_MISMATCH, f"the header {MCP_NAME_HEADER} does not match taskId")
    require_client_extension(ctx, TASKS)


async def _get(ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
    _require_named(ctx, params)
    caller = caller_now()
    await _asked(caller.require, "runs:read")
    return {"resultType": "complete", **await _asked(task_of, caller, params.task_id)}


async def _update(ctx: ServerRequestContext[Any, Any], params: UpdateParams) -> HandlerResult:
    """No task asks for anything: answers that none has asked for are left aside, as the extension has it."""
    _require_named(ctx, params)
    caller = caller_now()
    await _asked(caller.require, "runs:write")
    await _asked(task_of, caller, params.task_id)
    return {"resultType": "complete"}


async def _cancel(ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
    _require_named(ctx, params)
    caller = caller_now()
    await _asked(caller.require, "runs:write")
    await _asked(_ended, caller, params.task_id)
    return {"resultType": "complete"}


def _ended(caller: Caller, identity: str) -> None:
    """End a run or stop a campaign, if it goes on."""
    found = caller.workspace.status(identity, lines=0)
    if found["ended_at"] is not None:
        return
    if found["kind"] == "campaign":
        caller.workspace.stop(identity, at_once=True)  # get says when it has ended
    else:
        caller.workspace.cancel(identity)


# -- a run as a task ------------------------------------------------------------------------------


def task_of(caller: Caller, identity: str) -> dict[str, Any]:
    """How a run or campaign stands, as a task; with its result once it has ended.

    Raises:
        BadInput: There is none, or none that the caller may see.
    """
    found = caller.workspace.status(identity)
    state, ended = found["state"], found["ended_at"]
    stopped = state == "cancelled" or (state == "stopped" and found["kind"] == "campaign")
    status = "cancelled" if stopped else "working" if ended is None else "completed"
    notes = "; ".join(found.get("notes") or ())
    task: dict[str, Any] = {
        "taskId": identity,
        "status": status,
        "statusMessage": clean_text(f"{state}: {notes}" if notes else state, 500),
        "createdAt": _iso(found["asked_at"]),
        "lastUpdatedAt": _iso(found["changed_at"]),
        "ttlMs": None,  # it is there as long as the workspace
        "pollIntervalMs": POLL_MS,
    }
    if status != "completed":
        return task
    data, failed = _campaign(caller, identity) if found["kind"] == "campaign" else _run(caller, identity, found)
    if data["state"] in ("running", "recording"):
        return task | {"status": "working", "statusMessage": f"{state}; its result is written down"}
    if data.get("answer_handle"):
        return task | {"status": "working", "statusMessage": f"{state}; its answer is worked out"}
    return task | {"result": _result(data, failed).model_dump(mode="json", by_alias=True, exclude_none=True)}


def _run(caller: Caller, identity: str, found: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """What has come out, in the form of the answer of the tool that has started it, and whether it has failed."""
    said = runs.get_status(caller, identity).model_dump(mode="json")
    handle = {"found": True, "uri": run_uri(identity)}
    more = _ANSWERS.get(found["app"])
    if more is not None:
        with contextlib.suppress(BadInput):  # a run of that app by run_job
            said |= more(caller, identity).model_dump(mode="json")
    return said | handle, found["state"] != "completed"  # found by its id: nothing ran anew


# Runs of tools whose answers have more than a handle, by their apps.
_ANSWERS: dict[str, Callable[[Caller, str], Answer]] = {
    "oscillator": simulations.simulation_get_results,
    "adsorption": catalysts.get_dft,
}


def _campaign(caller: Caller, identity: str) -> tuple[dict[str, Any], bool]:
    """The same of a campaign."""
    said = campaigns.get_campaign(caller, identity).model_dump(mode="json")
    handle = {"found": True, "workdir": f"campaigns/{identity}", "uri": campaign_uri(identity)}
    return said | handle, said["state"] == "failed"


def _result(said: Mapping[str, Any], failed: bool) -> CallToolResult:
    data = dict(clean(said))
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return CallToolResult(
        content=[TextContent(type="text", text=DATA), TextContent(type="text", text=text)],
        structured_content=data,
        is_error=failed,
    )


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
