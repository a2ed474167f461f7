"""A person's yes in the middle of a call: asked by the client where it can, else by the shell."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from pydantic import BaseModel, Field

from hpcagent.errors import NotPermitted
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.mcp.callers import Caller
from hpcagent.mcp.said import clean_text

__all__ = ["Yes", "can_ask", "in_thread", "let_through", "shell_words"]

STATELESS = "2026-07-28"
QUESTION = "approval"


class Yes(BaseModel):
    """What a person answers."""

    approve: bool = Field(description="Run this, at this cost at most.")
    note: str = Field(default="", max_length=500, description="Why; written down with the decision.")


async def in_thread(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """Call a function that waits for the workspace without holding up other requests."""
    return await anyio.to_thread.run_sync(functools.partial(function, *args, **more))


def can_ask(ctx: Context[Any, Any]) -> bool:
    """Whether the client can put a question with a form to its person."""
    capabilities = ctx.client_capabilities
    found = None if capabilities is None else capabilities.elicitation
    return found is not None and (found.form is not None or found.url is None)


def shell_words(identity: str) -> str:
    """How a person approves by the shell."""
    return f"a person says yes by `hpcagent workspace approve {identity}`, then call again with the same arguments"


async def let_through(
    ctx: Context[Any, Any], caller: Caller, attempt: Callable[[], dict[str, Any]]
) -> dict[str, Any] | InputRequiredResult:
    """Ask the workspace for something; where a person has to say yes, ask them through the client.

    Args:
        ctx: The request.
        caller: Whoever asks.
        attempt: Asks the workspace; asked again, it is the same request.

    Raises:
        NotAllowed: The gate refuses it, nobody can be asked here, or the person said no.
    """
    try:
        return dict(await in_thread(attempt))
    except NotAllowed as error:
        refused = error
    if refused.check != "approval" or not refused.approval:
        raise refused
    if not await in_thread(_pending, caller, refused.approval):
        raise refused  # somebody has said no
    if not can_ask(ctx):
        raise _with_words(refused)
    answer = await _answer(ctx, refused)
    if isinstance(answer, InputRequiredResult):
        return answer
    if answer is None:
        raise _said_no(refused, "the person did not answer")
    note = clean_text(answer.note, 500)
    if not answer.approve:
        await in_thread(caller.workspace.deny, refused.approval, note or "no, by the client's person")
        raise _said_no(refused, "the person who was asked has said no")
    try:
        await in_thread(caller.workspace.grant, refused.approval, note or "yes, by the client's person")
    except (NotPermitted, NotAllowed):
        raise _with_words(refused) from None
    return dict(await in_thread(attempt))


def _said_no(refused: NotAllowed, why: str) -> NotAllowed:
    return NotAllowed(
        "approval",
        why,
        approval=refused.approval,
        do="do not ask for the same again; ask for less, or ask the person what they want",
    )


def _pending(caller: Caller, identity: str) -> bool:
    return any(one["id"] == identity for one in caller.workspace.approvals(pending=True))


def _with_words(refused: NotAllowed) -> NotAllowed:
    found = refused.plain()
    found["do"] = shell_words(refused.approval)
    return NotAllowed.of(found)


async def _answer(ctx: Context[Any, Any], refused: NotAllowed) -> Yes | InputRequiredResult | None:
    """What the person says: in the same call before 2026-07-28, in the next one since then; None: nothing."""
    message = clean_text(f"{refused.why}. {refused.allowed}".strip(), 2000)
    if (ctx.protocol_version or "") < STATELESS:
        outcome = await ctx.elicit(message, Yes)
        return (
            outcome.data
            if outcome.action == "accept"
            else (Yes(approve=False) if outcome.action == "decline" else None)
        )
    said = (ctx.input_responses or {}).get(QUESTION)
    # The question was about another request: what is asked for has changed since.
    if said is None or ctx.request_state != refused.approval:
        params = ElicitRequestFormParams(message=message, requested_schema=Yes.model_json_schema())
        return InputRequiredResult(
            input_requests={QUESTION: ElicitRequest(params=params)}, request_state=refused.approval
        )
    action = getattr(said, "action", "cancel")
    if action == "accept":
        return Yes.model_validate(getattr(said, "content", None) or {})
    return Yes(approve=False) if action == "decline" else None
