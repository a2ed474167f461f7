"""Tools: a function, who may call it, and what it says of itself; here each becomes a tool of the MCP server."""

from __future__ import annotations

import functools
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool as SdkTool
from mcp_types import CallToolResult, ContentBlock, InputRequiredResult, TextContent, ToolAnnotations
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.rules import Right
from hpcagent.mcp.approving import Confirm, confirmed, let_through
from hpcagent.mcp.callers import Caller, Scope, caller_now
from hpcagent.mcp.said import DATA, clean
from hpcagent.mcp.schemas import allowed_by, short, with_refusal
from hpcagent.mcp.threads import in_thread
from hpcagent.mcp.words import in_tool_words, next_step

__all__ = [
    "Answer",
    "Price",
    "Served",
    "Tool",
    "as_sdk_tool",
    "refusal",
    "tool",
    "tools_of",
    "uncapped",
    "wrong_argument",
]

log = logging.getLogger(__name__)

LARGEST_ARGUMENTS = 1 << 20


class Answer(BaseModel):
    """What a tool answers; more fields than the schema names may come."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True)
class Price:
    """How what a call of a tool may take is worked out before anything runs.

    Attributes:
        of: Takes the caller and all arguments of the tool by name, and answers with an estimate of the workspace.
        bound: What to do where nothing bounds it.
    """

    of: Callable[..., Mapping[str, Any]]
    bound: str


@dataclass(frozen=True)
class Tool:
    """A tool of the server.

    Attributes:
        function: Takes the caller, and the arguments by name; its docstring is for a model and for a person.
        title: A name for people.
        scope: What a token needs.
        right: What a role needs, too; by default `run` with the scope `runs:write`, else none.
        read_only: It changes nothing.
        destructive: It may end or remove something.
        idempotent: Called again with the same arguments it does nothing more.
        foreign: Its answer has texts of runs, files and people.
        asks: What it asks of the workspace may need a person's yes.
        confirms: Of the caller and the arguments: what a person has to confirm first; None: nothing.
        progress: Of the answer: how far it is, of how much (None: nobody knows), in words; None: nothing goes on.
        waits: It may wait a moment for something to happen.
        blocks: Content that goes along with the answer, made of it; what a block has may be taken out of it.
        price: What a call may take; None: it starts nothing, or that is not known before it runs.
    """

    function: Callable[..., Any]
    title: str
    scope: Scope = "runs:read"
    right: Right | None = None
    read_only: bool = True
    destructive: bool = False
    idempotent: bool = True
    foreign: bool = False
    asks: bool = False
    confirms: Callable[[Caller, Mapping[str, Any]], Confirm | None] | None = None
    progress: Callable[[Mapping[str, Any]], tuple[float, float | None, str] | None] | None = None
    waits: bool = False
    blocks: Callable[[dict[str, Any]], list[ContentBlock]] | None = None
    price: Price | None = None

    @property
    def name(self) -> str:
        """As clients call it."""
        return self.function.__name__

    def is_for(self, scopes: frozenset[Scope], rights: frozenset[Right]) -> bool:
        """Whether somebody with these scopes and rights is told of it; the gate decides on each call."""
        needed = self.right or ("run" if self.scope == "runs:write" else None)
        return self.scope in scopes and (needed is None or needed in rights)


_F = TypeVar("_F", bound=Callable[..., Any])


def tool(title: str, **more: Any) -> Callable[[_F], _F]:
    """Make a function a tool of the server; see `Tool`."""

    def made(function: _F) -> _F:
        function.__dict__["mcp_tool"] = Tool(function, title, **more)
        return function

    return made


def tools_of(module: Any) -> list[Tool]:
    """The tools of a module, in the order in which they stand there."""
    return [one.mcp_tool for one in vars(module).values() if isinstance(getattr(one, "mcp_tool", None), Tool)]


class Served(SdkTool):
    """A tool as the SDK serves it; wrong arguments are an answer with field, value and what is allowed."""

    async def run(
        self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False
    ) -> Any:
        """Call it."""
        try:
            size = len(json.dumps(arguments))
            if size > LARGEST_ARGUMENTS:
                raise BadInput(
                    f"the arguments have {size} characters, {LARGEST_ARGUMENTS} at most: name files instead."
                )
            return await super().run(arguments, context, convert_result)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            schema = self.fn_metadata.arg_model.model_json_schema(by_alias=True)
            return refusal(wrong_argument(self.name, error.__cause__, schema))
        except (BadInput, RecursionError) as error:
            return refusal(
                error if isinstance(error, BadInput) else BadInput("the arguments are nested too deeply.")
            )


def wrong_argument(name: str, error: ValidationError, schema: Mapping[str, Any]) -> NotAllowed:
    """The first argument that is wrong, in words, and what its tool's schema allows."""
    first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(map(str, first["loc"]))
    unknown = first["type"] == "extra_forbidden"
    missing = first["type"] == "missing"
    why = (
        f"{name} has no argument {field}"
        if unknown
        else f"{name} needs {field}"
        if missing
        else uncapped(first["msg"])
    )
    known = ", ".join(schema.get("properties", ())) or "it takes none"
    within = first["loc"][:-1] if unknown else first["loc"]
    allowed = (known if unknown and not within else "") or allowed_by(schema, within) or f"arguments: {known}"
    return NotAllowed(
        "contract",
        why,
        field=field,
        value=None if missing else first.get("input"),
        allowed=allowed,
        do="correct it and call again; nothing was run",
    )


def uncapped(words: str) -> str:
    """Words as the rest of a sentence: patterns and names in them stay as they are."""
    return words[:1].lower() + words[1:]


@functools.cache
def as_sdk_tool(one: Tool) -> SdkTool:
    """A tool as the SDK serves it: arguments that it does not know are refused, errors are answers."""
    found = Served.from_function(
        _served(one),
        name=one.name,
        title=one.title,
        description=inspect.cleandoc(one.function.__doc__ or ""),
        annotations=_annotations(one),
    )
    loose = found.fn_metadata.arg_model
    make: Any = create_model  # mypy takes what it returns for a class of its own
    strict = make(loose.__name__, __base__=loose, __cls_kwargs__={"extra": "forbid"})
    found.fn_metadata.arg_model = strict
    found.parameters = short(strict.model_json_schema(by_alias=True), takes=True)
    gives = found.fn_metadata.output_schema
    found.fn_metadata.output_schema = None if gives is None else with_refusal(short(gives))
    return found


def _annotations(one: Tool) -> ToolAnnotations:
    """What it does to the world; of what changes nothing no more is to be said."""
    if one.read_only:
        return ToolAnnotations(read_only_hint=True, open_world_hint=False)
    return ToolAnnotations(
        read_only_hint=False,
        destructive_hint=one.destructive,
        idempotent_hint=one.idempotent,
        open_world_hint=False,
    )


def _served(one: Tool) -> Callable[..., Awaitable[Any]]:
    signature = inspect.signature(one.function, eval_str=True)
    taken = [parameter for name, parameter in signature.parameters.items() if name != "caller"]

    async def call(ctx: Context[Any, Any], **arguments: Any) -> Any:
        caller = caller_now()
        try:
            caller.require(one.scope)

            def attempt() -> Any:
                answer = one.function(caller, **arguments)
                if isinstance(answer, InputRequiredResult | CallToolResult):
                    return answer
                return _said(one, answer)  # megabytes of texts take their time

            wanted = None if one.confirms is None else await in_thread(one.confirms, caller, arguments)
            if wanted is not None:
                asked = await confirmed(ctx, caller, wanted)
                if asked is not None:
                    return asked
            said = await (let_through(ctx, caller, attempt) if one.asks else in_thread(attempt, waits=one.waits))
            if isinstance(said, InputRequiredResult) or said.is_error:
                return said
            if one.progress is not None and (far := one.progress(said.structured_content or {})) is not None:
                await ctx.report_progress(*far)  # nothing, unless the client has asked for it
            return said
        except HpcAgentError as error:
            return await in_thread(refusal, error)
        except ValidationError as error:
            log.exception("the answer of %s is not of its schema", one.name)
            return refusal(
                HpcAgentError(f"the answer of {one.name} is not of its schema ({error.error_count()}).")
            )

    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=Context)
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in taken]
    returned: Any = Annotated[CallToolResult, signature.return_annotation]
    if one.asks or one.confirms is not None:
        returned = returned | InputRequiredResult
    made = cast(Any, call)
    made.__signature__ = signature.replace(parameters=[*keywords, context], return_annotation=returned)
    made.__annotations__ = {p.name: p.annotation for p in (*keywords, context)} | {"return": returned}
    made.__name__ = one.name
    return call


def _said(one: Tool, answer: Any) -> CallToolResult:
    """An answer as it is sent: no secrets and control characters in it."""
    plain = answer.model_dump(mode="json", by_alias=True) if isinstance(answer, BaseModel) else answer
    return _answer(one, clean(plain))


def _answer(one: Tool, data: dict[str, Any]) -> CallToolResult:
    blocks = [] if one.blocks is None else one.blocks(data)
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    content: list[ContentBlock] = [TextContent(type="text", text=text), *blocks]
    if one.foreign:
        content.insert(0, TextContent(type="text", text=DATA))
    return CallToolResult(content=content, structured_content=dict(data))


def refusal(error: HpcAgentError) -> CallToolResult:
    """An error as an answer that a model can act on: which field, what is allowed, what to do next."""
    if isinstance(error, NotAllowed):
        refused = error.plain()
        texts = {name: in_tool_words(str(refused.get(name, ""))) for name in ("why", "allowed", "do")}
        texts["do"] = texts["do"] or next_step(error.message)
        refused |= {name: text for name, text in texts.items() if text}
        message = NotAllowed.of(refused).message
        found: dict[str, Any] = {"error": message, "refused": refused}
    else:
        message = in_tool_words(error.message)
        do = next_step(message)
        message += f" Do this: {do}." if do else ""
        found = {"error": message, "kind": type(error).__name__}
        # What is wrong and what to do stand where a program finds them, too.
        rest = {"why": message, "value": getattr(error, "value", None), "do": do}
        found |= {"refused": {name: one for name, one in rest.items() if one not in ("", None)}}
    data = clean(found)
    return CallToolResult(
        content=[TextContent(type="text", text=data["error"])], structured_content=data, is_error=True
    )
