"""A person's yes in the middle of a call: asked by the client where it can, else by the shell."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hpcagent.errors import NotPermitted
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.request import charged_of
from hpcagent.mcp.callers import Caller, Scope
from hpcagent.mcp.excerpt import params_in_words
from hpcagent.mcp.said import clean_text, to_approve
from hpcagent.mcp.threads import in_thread
from hpcagent.shown import plain

__all__ = [
    "Confirm",
    "Questions",
    "Yes",
    "YesAtCost",
    "can_ask",
    "confirmed",
    "let_through",
    "shell_words",
]

T = TypeVar("T")

STATELESS = "2026-07-28"
GRANTS: Scope = "tools:admin"
"""The scope of a token by which a yes through the client grants: a client speaks for its person."""
QUESTION = "approval"
LONGEST_QUESTION = 3000


class Yes(BaseModel):
    """What a person answers."""

    model_config = ConfigDict(strict=True)  # nothing but true is a yes

    approve: bool = Field(description="Yes: do this.")
    note: str = Field(default="", max_length=500, description="Why; written down with the decision.")


class YesAtCost(Yes):
    """What a person answers where what they approve has a cost."""

    approve: bool = Field(description="Yes: do this, at this cost at most.")


@dataclass(frozen=True)
class Confirm:
    """What a person has to confirm before a tool does it.

    Attributes:
        question: What is put to them.
        otherwise: How it is done where the client can ask nobody.
        cost: Whether the question names a cost.
    """

    question: str
    otherwise: str
    cost: bool = False


class Questions:
    """Questions that were put and have no answer yet. Each takes one answer, of whom it was put to.

    Example:
        >>> questions = Questions()
        >>> one = questions.put("ada: run it?")
        >>> questions.take(one, "bob: run it?"), questions.take(one, "ada: run it?")
        (False, False)
    """

    MOST = 1000  # beyond it the oldest are put anew

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._open: dict[str, str] = {}

    def put(self, about: str) -> str:
        """The name of a new question, which nobody can guess."""
        name = secrets.token_urlsafe(16)
        with self._turn:
            self._open[name] = about
            while len(self._open) > self.MOST:
                self._open.pop(next(iter(self._open)))
        return name

    def take(self, name: str | None, about: str) -> bool:
        """Whether this is the answer to such a question; the question is closed then, whatever comes of it."""
        with self._turn:
            return name is not None and self._open.pop(name, None) == about


# Of this process: after a restart a question is put once more.
_QUESTIONS = Questions()


def can_ask(ctx: Context[Any, Any]) -> bool:
    """Whether the client can put a question with a form to its person."""
    capabilities = ctx.client_capabilities
    found = None if capabilities is None else capabilities.elicitation
    return found is not None and (found.form is not None or found.url is None)


def shell_words(identity: str) -> str:
    """How a person approves by the shell; no path of this machine is told, the person knows the folder."""
    return (
        f"a person says yes by `hpcagent workspace approve {identity} --workspace DIR` (DIR: the folder of this "
        "workspace), then call again with the same arguments"
    )


async def let_through(ctx: Context[Any, Any], caller: Caller, attempt: Callable[[], T]) -> T | InputRequiredResult:
    """Ask the workspace for something; where a person has to say yes, ask them through the client.

    Args:
        ctx: The request.
        caller: Whoever asks.
        attempt: Asks the workspace; asked again, it is the same request.

    Raises:
        NotAllowed: The gate refuses it, nobody can be asked here, the token may not grant, or the person said no.
    """
    try:
        return await in_thread(attempt)
    except NotAllowed as error:
        refused = error
    if refused.check != "approval" or not refused.approval:
        raise refused
    pending = await in_thread(_pending, caller, refused.approval)
    if pending is None:
        raise refused  # somebody has said no
    if not can_ask(ctx) or GRANTS not in caller.scopes:
        raise _with_words(refused)
    answer = await _answer(ctx, caller, refused.approval, _in_words(refused, pending), YesAtCost)
    if isinstance(answer, InputRequiredResult):
        return answer
    if answer is None:
        raise _with_words(refused)
    note = clean_text(answer.note, 500)
    if not answer.approve:
        await in_thread(caller.workspace.deny, refused.approval, note or "no, by the client's person")
        raise _said_no(refused.approval)
    try:
        await in_thread(caller.workspace.grant, refused.approval, note or "yes, by the client's person")
    except (NotPermitted, NotAllowed):
        raise _with_words(refused) from None
    return await in_thread(attempt)


async def confirmed(ctx: Context[Any, Any], caller: Caller, wanted: Confirm) -> InputRequiredResult | None:
    """Have a person confirm what a tool is about to do; None: they said yes.

    Raises:
        NotAllowed: They did not, or the client can ask nobody.
    """
    if not can_ask(ctx):
        raise NotAllowed(
            "approval", "a person has to confirm it, and this client can ask none", do=wanted.otherwise
        )
    form = YesAtCost if wanted.cost else Yes
    answer = await _answer(ctx, caller, wanted.question, _put(wanted.question), form)
    if isinstance(answer, InputRequiredResult):
        return answer
    if answer is None:
        raise NotAllowed("approval", "the person who was asked did not answer", do=wanted.otherwise)
    if not answer.approve:
        raise _said_no("")
    return None


def _said_no(approval: str) -> NotAllowed:
    return NotAllowed(
        "approval",
        "the person who was asked has said no",
        approval=approval,
        do="do not ask for the same again; ask for less, or ask the person what they want",
    )


def _pending(caller: Caller, identity: str) -> dict[str, Any] | None:
    return next((one for one in caller.workspace.approvals(pending=True) if one["id"] == identity), None)


def _in_words(refused: NotAllowed, pending: Mapping[str, Any]) -> str:
    """What a person is asked: what would run, why they have to decide, and with which parameters."""
    words = f"{clean_text(refused.why, 1000)}.\n{_cost(pending)}\nParameters: {params_in_words(pending['params'])}"
    units = _units(pending)
    words += f"\nUnits: {units}" if units else ""
    why = pending.get("asked_why")
    if why:
        words += f"\nThe caller says it is for (not checked): {clean_text(json.dumps(why), 500)}"
    return _put(words)


def _put(words: str) -> str:
    """A question as it is put: nothing of what is approved is masked in it, and where it is cut that is said."""
    shown: str = to_approve(words)
    more = len(shown) - LONGEST_QUESTION
    return shown if more <= 0 else f"{shown[:LONGEST_QUESTION]}\n({more} more characters)"


def _units(pending: Mapping[str, Any]) -> str:
    """The units of a request's parameters, of the contract that it was held against."""
    asked = pending.get("request") or {}
    units = {str(name): plain(str(unit))[:40] for name, unit in (asked.get("units") or {}).items()}
    return ", ".join(f"{name} in {'pure numbers' if unit == '1' else unit}" for name, unit in units.items())


def _cost(pending: Mapping[str, Any]) -> str:
    """What it is expected to take beside the most, its walltime, and whose code it is in which sandbox."""
    asked = pending.get("request") or {}
    most, expected, found = charged_of(asked), asked.get("expected_node_hours"), []
    if expected is not None:
        each = f" ({asked['expected_s']:.3g} s)" if asked.get("expected_s") and asked.get("kind") == "run" else ""
        found.append(f"{expected:.3g} node-hours expected{each}")
    found.append("nothing bounds it" if most is None else f"{most:.3g} node-hours at most")
    if asked.get("kind") == "run" and asked.get("node_hours") is not None:
        found.append(f"ended after {3600 * asked['node_hours'] / asked.get('nodes', 1):.4g} s")
    tier = asked.get("sandbox", "none")
    code = "of somebody's own" if asked.get("own") else "of the library"
    sandbox = "no sandbox" if tier == "none" else f"the sandbox {tier}"
    return f"Cost: {', '.join(found)}\nCode: {code}, in {sandbox}"


def _with_words(refused: NotAllowed) -> NotAllowed:
    found = refused.plain()
    found["do"] = shell_words(refused.approval)
    return NotAllowed.of(found)


async def _answer(
    ctx: Context[Any, Any], caller: Caller, what: str, message: str, form: type[Yes]
) -> Yes | InputRequiredResult | None:
    """What the person says: in the same call before 2026-07-28, in the next one since then; None: nothing.

    Args:
        ctx: The request.
        caller: Whoever asks.
        what: What is decided; an answer to another question is none.
        message: The question.
        form: What they fill in.
    """
    if (ctx.protocol_version or "") < STATELESS:
        return await _elicited(ctx, message, form)
    about = f"{caller.person}\n{what}"
    said = (ctx.input_responses or {}).get(QUESTION)
    # The SDK has unsealed the state and seen that it is of this tool with these arguments. An answer that comes
    # unasked, a second time, or to a question about another request is not taken: the question is put.
    if not _QUESTIONS.take(ctx.request_state, about) or said is None:
        params = ElicitRequestFormParams(message=message, requested_schema=form.model_json_schema())
        asked = ElicitRequest(params=params)
        return InputRequiredResult(input_requests={QUESTION: asked}, request_state=_QUESTIONS.put(about))
    return _read(getattr(said, "action", "cancel"), getattr(said, "content", None))


async def _elicited(ctx: Context[Any, Any], message: str, form: type[Yes]) -> Yes | None:
    try:
        outcome = await ctx.elicit(message, form)
    except (ValueError, MCPError):  # no yes or no, or the client could not ask after all
        return None
    return outcome.data if outcome.action == "accept" else _read(outcome.action, None)


def _read(action: str, content: Any) -> Yes | None:
    if action == "decline":
        return Yes(approve=False)
    if action != "accept":
        return None
    try:
        return Yes.model_validate(content)
    except ValidationError:
        return None
