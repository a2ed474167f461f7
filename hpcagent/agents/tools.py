"""The specialists' tools: those of the MCP server, in this process; apps by their name; and waiting."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from hpcagent.errors import BadInput
from hpcagent.mcp import tools as served
from hpcagent.mcp.callers import Caller
from hpcagent.mcp.serving import Price, Tool, as_sdk_tool, tools_of, wrong_argument
from hpcagent.registry.scripts import SCRIPTS

__all__ = ["GOING", "AgentTool", "Going", "app_tool", "first_line", "served_tools", "wait_tool"]

LONGEST_WAIT_S = 300.0
APP_WAIT_S = 120.0
PRINTED_LINES = 200
SLICE_S = 2.0
"""A wait ends within this time when nobody needs it any more."""
OVER = ("completed", "failed", "stopped", "cancelled")
MANAGES = (
    "register_tool_from_code",
    "register_tool_from_file",
    "add_agent_to_pool",
    "remove_agent_from_pool",
    "assign_tool_to_agent",
    "remove_tool_from_agent",
)
_CATALYST_OVER = ("found", "recorded", "failed")

Do = Callable[[Caller, Mapping[str, Any]], Mapping[str, Any]]


@dataclass
class Going:
    """A call that goes on, as the tool itself knows it.

    Attributes:
        runs: What it has started so far, or found.
        begun: Those of them that were not there before.
        given_up: Set when nobody waits for its answer any more.
    """

    runs: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    given_up: threading.Event = field(default_factory=threading.Event)


GOING: ContextVar[Going | None] = ContextVar("going", default=None)
"""The call that goes on in this thread."""


@dataclass(frozen=True)
class AgentTool:
    """A tool of a specialist.

    Attributes:
        name: As a model calls it.
        description: For a model; its first line is what the supervisor knows of it.
        schema: JSON schema of the arguments.
        do: Takes the caller and the arguments, checks them, answers with plain data.
        spends: Whether it may start something that takes node-hours.
        price: What a call may take, of the caller and the arguments as the model gave them; None: not known.
        app: The app that it runs, if it runs one by its name.
        manages: Whether it changes tools or agents, which a person confirms each time.
        ends: Whether it ends a run or a campaign; a person confirms that of one that the question has not started.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    do: Do
    spends: bool = False
    price: Price | None = None
    app: str = ""
    manages: bool = False
    ends: bool = False


def first_line(tool: AgentTool) -> str:
    """The first line of a tool's description."""
    return next(iter(tool.description.strip().splitlines()), "")


def served_tools() -> dict[str, AgentTool]:
    """Tools of the MCP server by name, without those that only a person may use: what decides and expires."""
    return dict(_served())


@functools.cache
def _served() -> tuple[tuple[str, AgentTool], ...]:
    found = [one for module in served.MODULES for one in tools_of(module)]
    return tuple(
        (one.name, _of(one))
        for one in found
        if one.confirms is None and (one.scope != "tools:admin" or one.name in MANAGES)
    )


def _of(one: Tool) -> AgentTool:
    made = as_sdk_tool(one)
    model: Any = made.fn_metadata.arg_model
    manages = one.name in MANAGES

    def checked(arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return dict(model.model_validate(dict(arguments)).model_dump_one_level())
        except ValidationError as error:
            raise wrong_argument(one.name, error, made.parameters) from None

    def do(caller: Caller, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        given = checked(arguments)
        if manages:  # a person has confirmed this very call
            caller = replace(caller, scopes=caller.scopes | {"tools:admin"})
        caller.require(one.scope)
        answer = one.function(caller, **given)
        return dict(answer.model_dump(mode="json", by_alias=True) if isinstance(answer, BaseModel) else answer)

    ends = one.destructive and one.scope == "runs:write"
    words = made.description or ""
    price = one.price
    if price is not None:
        of = price.of
        price = replace(price, of=lambda caller, arguments: of(caller, **checked(arguments)))
    return AgentTool(
        one.name,
        words,
        made.parameters,
        do,
        spends=one.asks or price is not None,
        price=price,
        manages=manages,
        ends=ends,
    )


# -- waiting ----------------------------------------------------------------------------------


def wait_tool() -> AgentTool:
    """A tool that waits for a run or a campaign, so that nobody has to ask again and again."""
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "Handle of a run or of a campaign.", "maxLength": 200},
            "timeout_s": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": LONGEST_WAIT_S,
                "default": LONGEST_WAIT_S,
                "description": "Wait so long at most, in seconds.",
            },
        },
        "required": ["id"],
        "additionalProperties": False,
    }
    words = "Wait until a run or a campaign has ended, then say how it stands: metrics, units, failure, answer."
    return AgentTool("wait_for", words, schema, _wait)


def _wait(caller: Caller, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = sorted(set(arguments) - {"id", "timeout_s"})
    if unknown or not isinstance(arguments.get("id"), str):
        raise BadInput(f"wait_for takes id and timeout_s; got {', '.join(map(str, arguments)) or 'nothing'}.")
    limit = arguments.get("timeout_s", LONGEST_WAIT_S)
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit <= LONGEST_WAIT_S:
        raise BadInput(f"timeout_s is more than 0 and at most {LONGEST_WAIT_S:g} s; got {limit!r}.", value=limit)
    return waited(caller, arguments["id"], float(limit))


def waited(caller: Caller, identity: str, timeout_s: float) -> dict[str, Any]:
    """How a run or campaign stands once it has ended, or after so many seconds."""
    until = time.monotonic() + timeout_s
    status = caller.workspace.status(identity, lines=20)
    going = GOING.get() or Going()
    while status["ended_at"] is None and time.monotonic() < until and not going.given_up.is_set():
        try:
            caller.workspace.wait(identity, min(SLICE_S, max(0.0, until - time.monotonic())))
        except TimeoutError:
            continue
        finally:
            status = caller.workspace.status(identity, lines=20)
    if status.get("kind") == "campaign":
        return _answered(caller, identity, until)
    if status.get("app") in SCRIPTS:  # what a script has printed is what it was for
        status = caller.workspace.status(identity, lines=PRINTED_LINES)
    return _catalyst(caller, identity, until) | _said(status)


def _answered(caller: Caller, identity: str, until: float) -> dict[str, Any]:
    """A campaign with the answer to all that has run, once that is worked out."""
    while True:
        found = caller.workspace.campaign(identity, timeout_s=min(SLICE_S, max(0.0, until - time.monotonic())))
        if found["state"] not in OVER or time.monotonic() >= until or found["answer_handle"] is None:
            return {"campaign_id": found.pop("id"), **found}


def _catalyst(caller: Caller, identity: str, until: float) -> dict[str, Any]:
    """What a catalyst's run has come to, once it is recorded; nothing of another run."""
    while True:
        try:
            found = caller.workspace.catalyst_state(identity)
        except BadInput:
            return {}
        if found["state"] in _CATALYST_OVER or time.monotonic() >= until:
            return {"catalyst": found}
        time.sleep(0.05)  # the service records it behind the run's end, and tells nobody when


def _said(status: Mapping[str, Any]) -> dict[str, Any]:
    names = ("app", "state", "params", "metrics", "units", "uncertainty", "failure", "notes", "artifacts", "cost")
    said = {name: status[name] for name in names if status.get(name)}
    log = "\n".join(status.get("log_tail") or ())
    shows = log and (not said.get("metrics") or status.get("app") in SCRIPTS)
    return {"run_id": status["id"], **said, **({"log_tail": log} if shows else {})}


# -- apps by their name -----------------------------------------------------------------------


def app_tool(name: str, card: Mapping[str, Any]) -> AgentTool:
    """A tool that runs one app, or one registered tool, and waits for it for a while.

    Args:
        name: Of the app.
        card: Its contract, as plain data.
    """
    parameters = {one["name"]: one for one in card["space"]["parameters"]}
    schema = {
        "type": "object",
        "properties": {
            **{key: _schema(one) for key, one in parameters.items()},
            "inputs": {
                "type": "array",
                "items": {"type": "string"},
                "description": "run_ids of the runs whose files it takes, in the order of its inputs.",
            },
        },
        "required": [key for key, one in parameters.items() if one.get("default") is None],
        "additionalProperties": False,
    }
    if "inputs" in parameters:
        raise BadInput(f"the app {name} has a parameter `inputs`, which runs of other apps are called here.")
    metrics = ", ".join(f"{one['name']} ({one['unit']})" for one in card["metrics"])
    takes = ", ".join(map(str, card.get("inputs") or ())) or "no run"
    words = (
        f"{card['description']}\nMetrics: {metrics or 'none'}. Takes as input: {takes}. A file of an earlier run "
    )
    words += f"is artifact:RUN/PATH. Waits up to {APP_WAIT_S:g} s; wait_for goes on."

    def order_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A run as the workspace takes it, to run or to estimate."""
        values = {key: value for key, value in arguments.items() if key != "inputs"}
        inputs = arguments.get("inputs", [])
        if not isinstance(inputs, list) or not all(isinstance(one, str) for one in inputs):
            raise BadInput(f"inputs is a list of run_ids; got {inputs!r}.", value=inputs)
        more = {"inputs": inputs, "why": "asked for by an agent", "data_only": True}
        return {"app": name, "params": values, **more}

    def price(caller: Caller, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return caller.workspace.estimate(**order_of(arguments))

    def do(caller: Caller, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        run = caller.workspace.run(**order_of(arguments))
        if (going := GOING.get()) is not None:
            going.runs.append(run["id"])
            going.begun += [] if run["found"] else [run["id"]]
        return waited(caller, run["id"], APP_WAIT_S) | {"found": run["found"]}

    bound = f"use run_job with kind {name} and walltime_s"
    return AgentTool(name, words, schema, do, spends=True, price=Price(price, bound), app=name)


_KINDS = {"float": "number", "int": "integer"}


def _schema(one: Mapping[str, Any]) -> dict[str, Any]:
    unit = f" ({one['unit']})" if one.get("unit") not in (None, "", "1") else ""
    found: dict[str, Any] = {"description": f"{one.get('description') or one['name']}{unit}"}
    if one["kind"] in _KINDS:
        found["type"] = _KINDS[one["kind"]]
        bounds = {"minimum": one.get("low"), "maximum": one.get("high")}
        found |= {key: value for key, value in bounds.items() if value is not None}
    elif one["kind"] == "choice":
        found["enum"] = list(one["choices"])
    else:
        found["type"] = "string"
    if one.get("default") is not None:
        found["default"] = one["default"]
    return found
