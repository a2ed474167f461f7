"""A person's yes in the middle of a specialist's call: asked by a callback, else refused with words."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcagent.errors import BadInput, NotPermitted
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.mcp.approving import shell_words
from hpcagent.mcp.callers import Caller
from hpcagent.mcp.excerpt import params_in_words
from hpcagent.mcp.said import clean_text

__all__ = ["Ask", "Question", "confirm", "let_through", "one_at_a_time"]


@dataclass(frozen=True)
class Question:
    """What a person decides.

    Attributes:
        approval: Its id; empty where the gate asks for none.
        words: What would run, at what cost at most, and why a person has to decide.
        params: Its parameters; of long ones both ends, and what is not shown is said.
        agent: The specialist that asks.
        says: What the model says it is for; not checked.
    """

    approval: str
    words: str
    params: str
    agent: str
    says: str = ""

    def __str__(self) -> str:
        said = f"\nThe model says it is for (not checked): {self.says}" if self.says else ""
        return f"{self.agent} asks: {self.words}.\nParameters: {self.params}{said}"


Ask = Callable[[Question], bool | None]
"""Puts a question to a person: True yes, False no, None: nobody answered."""


def one_at_a_time(ask: Ask) -> Ask:
    """Questions of specialists that go on at the same time, put one after the other."""
    turn = threading.Lock()

    def asked(question: Question) -> bool | None:
        with turn:
            return ask(question)

    return asked


def let_through(
    caller: Caller, attempt: Callable[[], Mapping[str, Any]], ask: Ask | None, agent: str
) -> Mapping[str, Any]:
    """Do it; where a person has to say yes, ask them first.

    Args:
        caller: Whoever asks.
        attempt: Asks the workspace; asked again, it is the same request.
        ask: Puts the question; None: nobody can be asked.
        agent: The specialist.

    Raises:
        NotAllowed: The gate refuses it, nobody can be asked, or the person said no.
    """
    try:
        return attempt()
    except NotAllowed as error:
        refused = error
    if refused.check != "approval" or not refused.approval:
        raise refused
    pending = caller.workspace.approvals(pending=True)
    request = next((one for one in pending if one["id"] == refused.approval), None)
    if request is None:
        raise refused  # somebody has said no
    if ask is None:
        raise _with_words(refused)
    said = ask(_question(refused, request, agent))
    if said is None:
        raise _with_words(refused)
    if said is not True:
        with contextlib.suppress(BadInput):  # somebody has decided it meanwhile; asking again starts another
            caller.workspace.deny(refused.approval, "no, to a question of an agent")
        raise NotAllowed(
            "approval",
            "the person who was asked has said no",
            approval=refused.approval,
            do="do not ask for the same again; ask for less, or say that it was refused",
        )
    try:
        caller.workspace.grant(refused.approval, "yes, to a question of an agent")
    except (NotPermitted, NotAllowed):
        raise _with_words(refused) from None
    except BadInput:
        pass  # somebody has decided it meanwhile: the attempt says how
    return attempt()


def confirm(tool: str, arguments: Mapping[str, Any], why: str, ask: Ask | None, agent: str) -> None:
    """Have a person confirm what no rule of the gate asks for: a change of tools or agents, an end of a run.

    Raises:
        NotAllowed: Nobody can be asked, nobody answered, or they said no.
    """
    do = "a person does it by `hpcagent tools` or `hpcagent workspace`"
    if ask is None:
        raise NotAllowed("approval", f"{tool}: {why}, and nobody can be asked here", do=do)
    params = params_in_words(json.loads(json.dumps(dict(arguments), default=str)), 6000)
    if ask(Question("", f"{tool}: {why}", params, agent)) is not True:
        raise NotAllowed("approval", f"the person who was asked about {tool} has not said yes", do=do)


def _question(refused: NotAllowed, request: Mapping[str, Any], agent: str) -> Question:
    says = request.get("asked_why")
    return Question(
        approval=refused.approval,
        words=clean_text(refused.why, 1500),
        params=params_in_words(request["params"]),
        agent=agent,
        says=clean_text(json.dumps(says), 500) if says else "",
    )


def _with_words(refused: NotAllowed) -> NotAllowed:
    found = refused.plain()
    found["do"] = shell_words(refused.approval)
    return NotAllowed.of(found)
