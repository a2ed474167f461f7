"""Tools: a function, who may call it, and what it says of itself; here each becomes a tool of the MCP server."""

from __future__ import annotations

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
from hpcagent.mcp.approving import Confirm, confirmed, in_thread, let_through
from hpcagent.mcp.callers import Caller, Scope, caller_now
from hpcagent.mcp.said import DATA, clean, clean_text

__all__ = ["Answer", "Served", "Tool", "as_sdk_tool", "refusal", "tool", "tools_of", "wrong_argument"]

log = logging.getLogger(__name__)

LARGEST_ARGUMENTS = 1 << 20


class Answer(BaseModel):
    """What a tool answers; more fields than the schema names may come."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True)
class Tool:
    """A tool of the server.

    Attributes:
        function: Takes the caller, and the arguments by name; its docstring is for a model and for a person.
        title: A name for people.
        scope: What a token needs.
        read_only: It changes nothing.
        destructive: It may end or remove something.
        idempotent: Called again with the same arguments it does nothing more.
        foreign: Its answer has texts of runs, files and people.
        asks: What it asks of the workspace may need a person's yes.
        confirms: Of the caller and the arguments: what a person has to confirm first; None: nothing.
        blocks: Content that goes along with the answer, made of it.
    """

    function: Callable[..., Any]
    title: str
    scope: Scope = "runs:read"
    read_only: bool = True
    destructive: bool = False
    idempotent: bool = True
    foreign: bool = False
    asks: bool = False
    confirms: Callable[[Caller, Mapping[str, Any]], Confirm | None] | None = None
    blocks: Callable[[Mapping[str, Any]], list[ContentBlock]] | None = None

    @property
    def name(self) -> str:
        """As clients call it."""
        return self.function.__name__


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
            return refusal(wrong_argument(self.name, error.__cause__))
        except (BadInput, RecursionError) as error:
            return refusal(
                error if isinstance(error, BadInput) else BadInput("the arguments are nested too deeply.")
            )


def wrong_argument(name: str, error: ValidationError) -> NotAllowed:
    """The first argument that is wrong, in words."""
    first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(map(str, first["loc"]))
    unknown = first["type"] == "extra_forbidden"
    missing = first["type"] == "missing"
    why = (
        f"{name} has no argument {field}"
        if unknown
        else f"{name} needs {field}"
        if missing
        else first["msg"].lower()
    )
    return NotAllowed(
        "contract",
        why,
        field=field,
        value=None if missing else first.get("input"),
        allowed="what the tool's input schema says",
        do="correct it and call again; nothing was run",
    )


def as_sdk_tool(one: Tool) -> SdkTool:
    """A tool as the SDK serves it: arguments that it does not know are refused, errors are answers."""
    found = Served.from_function(
        _served(one),
        name=one.name,
        title=one.title,
        description=inspect.cleandoc(one.function.__doc__ or ""),
        annotations=ToolAnnotations(
            title=one.title,
            read_only_hint=one.read_only,
            destructive_hint=one.destructive,
            idempotent_hint=one.idempotent,
            open_world_hint=False,
        ),
    )
    loose = found.fn_metadata.arg_model
    make: Any = create_model  # mypy takes what it returns for a class of its own
    strict = make(loose.__name__, __base__=loose, __cls_kwargs__={"extra": "forbid"})
    found.fn_metadata.arg_model = strict
    found.parameters = strict.model_json_schema(by_alias=True)
    found.fn_metadata.output_schema = _or_refusal(found.fn_metadata.output_schema)
    return found


REFUSAL: dict[str, Any] = {
    "error": {"type": "string", "description": "Why it was not done; what to do instead."},
    "refused": {
        "type": "object",
        "description": "check, field, value, allowed, do: what was wrong, and what is right.",
    },
    "kind": {"type": "string", "description": "Kind of the error, where it is no refusal."},
}


def _or_refusal(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """The schema of an answer, which an error is of, too: clients check it also where `isError` is set."""
    if schema is None:
        return None
    properties = dict(schema.get("properties", {}))
    for name, said in REFUSAL.items():
        own = properties.get(name, said)
        properties[name] = own if own.get("type") == said["type"] else {"anyOf": [own, said]}
    either = [{"required": schema.get("required", [])}, {"required": ["error"]}]
    rest = {key: value for key, value in schema.items() if key not in ("properties", "required")}
    return {**rest, "properties": properties, "anyOf": either}


def _served(one: Tool) -> Callable[..., Awaitable[Any]]:
    signature = inspect.signature(one.function, eval_str=True)
    taken = [parameter for name, parameter in signature.parameters.items() if name != "caller"]

    async def call(ctx: Context[Any, Any], **arguments: Any) -> Any:
        caller = caller_now()
        try:
            caller.require(one.scope)

            def attempt() -> Any:
                return one.function(caller, **arguments)

            wanted = one.confirms and await in_thread(one.confirms, caller, arguments)
            if wanted is not None:
                asked = await confirmed(ctx, caller, wanted)
                if asked is not None:
                    return asked
            answer = await (let_through(ctx, caller, attempt) if one.asks else in_thread(attempt))
            if isinstance(answer, InputRequiredResult | CallToolResult):
                return answer
            data = clean(
                answer.model_dump(mode="json", by_alias=True) if isinstance(answer, BaseModel) else answer
            )
            return _answer(one, data)
        except HpcAgentError as error:
            return refusal(error)
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


def _answer(one: Tool, data: Mapping[str, Any]) -> CallToolResult:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    content: list[ContentBlock] = [TextContent(type="text", text=text)]
    if one.foreign:
        content.insert(0, TextContent(type="text", text=DATA))
    if one.blocks is not None:
        content += one.blocks(data)
    return CallToolResult(content=content, structured_content=dict(data))


def refusal(error: HpcAgentError) -> CallToolResult:
    """An error as an answer that a model can act on: which field, what is allowed, what to do next."""
    found: dict[str, Any] = {"error": error.message}
    if isinstance(error, NotAllowed):
        found |= {"refused": error.plain()}
    else:
        found |= {"kind": type(error).__name__}
    data = clean(found)
    return CallToolResult(
        content=[TextContent(type="text", text=clean_text(error.message))], structured_content=data, is_error=True
    )
