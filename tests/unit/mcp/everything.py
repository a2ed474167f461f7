"""Our server with what the official conformance suite calls: tools, resources and prompts of fixed names and answers.

    python everything.py WORKSPACE

serves that on loopback at a free port, without a token, writes the URL as one line, and ends when stdin is closed.
The fixtures are added to the server that `make_server` returns, so that each call goes through all that ours do.
"""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import json
import struct
import sys
import wave
import zlib
from pathlib import Path
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.server.mcpserver.resources.types import BinaryResource, TextResource
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    CallToolResult,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)
from pydantic import Field

from hpcagent.mcp import tasks
from hpcagent.mcp.approving import in_thread
from hpcagent.mcp.callers import Caller, Callers, caller_now
from hpcagent.mcp.server import make_server
from hpcagent.mcp.serving import as_sdk_tool, tool
from hpcagent.mcp.tools.runs import Handle, handle_of

TASK_TOOLS = ("slow_compute", "failing_job", "test_tool_with_task")
PAUSE_S = 0.05  # as the suite says it
LONGEST_S = 3.0


def png() -> str:
    """One red pixel, in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(b"\0\xff\0\0")
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")
    return base64.b64encode(whole).decode()


def wav() -> str:
    """One millisecond of silence, in base64."""
    held = io.BytesIO()
    with wave.open(held, "wb") as file:
        file.setparams((1, 1, 8000, 8, "NONE", ""))
        file.writeframes(b"\x80" * 8)
    return base64.b64encode(held.getvalue()).decode()


def text(words: str) -> TextContent:
    return TextContent(type="text", text=words)


def image() -> ImageContent:
    return ImageContent(type="image", data=png(), mime_type="image/png")


def embedded(uri: str, words: str, mime: str = "text/plain") -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, mime_type=mime, text=words))


def form(message: str, **properties: Any) -> ElicitRequest:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(words: str, most: int) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=words))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=most))


def content_of(ctx: Context, name: str) -> dict[str, Any] | None:
    """What a person has filled in; None: they did not."""
    said = (ctx.input_responses or {}).get(name)
    content = getattr(said, "content", None)
    return dict(content) if getattr(said, "action", "") == "accept" and content else None


NAME = {"user_name": form("What is your name?", name={"type": "string"})}
CONFIRM = {"confirm": form("Please confirm", ok={"type": "boolean"})}


# -- both eras --------------------------------------------------------------------------------------


def plain_tools(server: MCPServer[Any]) -> None:
    @server.tool()
    def test_simple_text() -> list[TextContent]:
        """Answers with a text."""
        return [text("This is a simple text response for testing.")]

    @server.tool()
    def test_image_content() -> list[ImageContent]:
        """Answers with an image."""
        return [image()]

    @server.tool()
    def test_audio_content() -> list[AudioContent]:
        """Answers with a sound."""
        return [AudioContent(type="audio", data=wav(), mime_type="audio/wav")]

    @server.tool()
    def test_embedded_resource() -> list[EmbeddedResource]:
        """Answers with a resource."""
        return [embedded("test://embedded-resource", "This is an embedded resource content.")]

    @server.tool()
    def test_multiple_content_types() -> CallToolResult:
        """Answers with a text, an image and a resource."""
        data = json.dumps({"test": "data", "value": 123})
        blocks = [
            text("Multiple content types test:"),
            image(),
            embedded("test://mixed-content-resource", data, "application/json"),
        ]
        return CallToolResult(content=blocks)

    @server.tool()
    def test_error_handling() -> str:
        """Fails."""
        raise ToolError("This tool intentionally returns an error for testing")

    @server.tool()
    async def test_tool_with_progress(ctx: Context) -> str:
        """Says how far it is."""
        for done in (0, 50, 100):
            await ctx.report_progress(done, 100)
            await anyio.sleep(PAUSE_S)
        return "done"


def resources(server: MCPServer[Any]) -> None:
    server.add_resource(
        TextResource(
            uri="test://static-text",
            name="static-text",
            description="A text.",
            text="This is the content of the static text resource.",
        )
    )
    server.add_resource(
        BinaryResource(
            uri="test://static-binary",
            name="static-binary",
            description="An image.",
            mime_type="image/png",
            data=base64.b64decode(png()),
        )
    )
    server.add_resource(
        TextResource(uri="test://watched-resource", name="watched", description="Can be watched.", text="as it is")
    )

    @server.resource("test://template/{id}/data", mime_type="application/json", description="By its id.")
    def of_template(id: str) -> str:
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def prompts(server: MCPServer[Any]) -> None:
    @server.prompt()
    def test_simple_prompt() -> str:
        """Without arguments."""
        return "This is a simple prompt for testing."

    @server.prompt()
    def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        """With two arguments."""
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt()
    def test_prompt_with_embedded_resource(
        resourceUri: Annotated[str, Field(description="What is embedded.")],  # noqa: N803
    ) -> list[UserMessage]:
        """With a resource."""
        return [
            UserMessage(embedded(resourceUri, "Embedded resource content for testing.")),
            UserMessage("Please process the embedded resource above."),
        ]

    @server.prompt()
    def test_prompt_with_image() -> list[UserMessage]:
        """With an image."""
        return [UserMessage(image()), UserMessage("Please analyze the image above.")]


# -- until 2025-11-25: the server asks the client ----------------------------------------------------

DEFAULTS = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
OPTIONS = ["option1", "option2", "option3"]
TITLES = {"value1": "First", "value2": "Second", "value3": "Third"}
CHOICES = {
    "untitledSingle": {"type": "string", "enum": OPTIONS},
    "titledSingle": {
        "type": "string",
        "oneOf": [{"const": value, "title": f"{title} Option"} for value, title in TITLES.items()],
    },
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": OPTIONS}},
    "titledMulti": {
        "type": "array",
        "items": {"anyOf": [{"const": value, "title": f"{title} Choice"} for value, title in TITLES.items()]},
    },
}


def asking_tools(server: MCPServer[Any]) -> None:
    async def asked(ctx: Context, message: str, properties: dict[str, Any], required: list[str]) -> str:
        schema = {"type": "object", "properties": properties, "required": required}
        said = await ctx.session.elicit_form(message, schema, ctx.request_context.request_id)
        return f"action={said.action}, content={json.dumps(said.content)}"

    @server.tool()
    async def test_sampling(prompt: str, ctx: Context) -> str:
        """Asks the client's model."""
        message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
        said = await ctx.session.create_message(
            [message], max_tokens=100, related_request_id=ctx.request_context.request_id
        )
        return f"LLM response: {getattr(said.content, 'text', '')}"

    @server.tool()
    async def test_elicitation(message: str, ctx: Context) -> str:
        """Asks the client's person."""
        strings = {
            "username": {"type": "string", "description": "User's response"},
            "email": {"type": "string", "description": "User's email address"},
        }
        return f"User response: {await asked(ctx, message, strings, list(strings))}"

    @server.tool()
    async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
        """Asks with default values."""
        return f"Elicitation completed: {await asked(ctx, 'Are these right?', DEFAULTS, [])}"

    @server.tool()
    async def test_elicitation_sep1330_enums(ctx: Context) -> str:
        """Asks with choices."""
        return f"Elicitation completed: {await asked(ctx, 'Which of these?', CHOICES, [])}"


# -- since 2026-07-28: the server answers with what it needs ------------------------------------------


def rounds(server: MCPServer[Any]) -> None:
    @server.tool()
    async def test_input_required_result_elicitation(ctx: Context) -> str | InputRequiredResult:
        """Asks for a name."""
        said = content_of(ctx, "user_name")
        return f"Hello, {said['name']}!" if said else InputRequiredResult(input_requests=NAME)

    @server.tool()
    async def test_input_required_result_sampling(ctx: Context) -> str | InputRequiredResult:
        """Asks the client's model."""
        said = (ctx.input_responses or {}).get("capital_question")
        if said is None:
            asked = sampling("What is the capital of France?", 100)
            return InputRequiredResult(input_requests={"capital_question": asked})
        return str(getattr(getattr(said, "content", None), "text", said))

    @server.tool()
    async def test_input_required_result_list_roots(ctx: Context) -> str | InputRequiredResult:
        """Asks for the client's folders."""
        said = (ctx.input_responses or {}).get("client_roots")
        if said is None:
            return InputRequiredResult(input_requests={"client_roots": ListRootsRequest()})
        return " ".join(str(one.uri) for one in getattr(said, "roots", ()))

    async def confirmed(ctx: Context) -> str | InputRequiredResult:
        if ctx.request_state != "asked" or content_of(ctx, "confirm") is None:
            return InputRequiredResult(input_requests=CONFIRM, request_state="asked")
        return "state-ok"

    for name in ("test_input_required_result_request_state", "test_input_required_result_tampered_state"):
        server.add_tool(confirmed, name=name, description="Asks for a yes, with a state that is its own.")

    @server.tool()
    async def test_input_required_result_multiple_inputs(ctx: Context) -> str | InputRequiredResult:
        """Asks for three things at once."""
        asked = NAME | {"greeting": sampling("Generate a greeting", 50), "client_roots": ListRootsRequest()}
        if not asked.keys() <= (ctx.input_responses or {}).keys():
            return InputRequiredResult(input_requests=asked, request_state="three")
        return f"all three from {(content_of(ctx, 'user_name') or {}).get('name')}"

    @server.tool()
    async def test_input_required_result_multi_round(ctx: Context) -> str | InputRequiredResult:
        """Asks twice."""
        state = json.loads(ctx.request_state or "{}")
        if (first := content_of(ctx, "step1")) is not None:
            asked = form("Step 2: What is your favorite color?", color={"type": "string"})
            return InputRequiredResult(input_requests={"step2": asked}, request_state=json.dumps(first))
        second = content_of(ctx, "step2")
        if second is None or "name" not in state:
            asked = form("Step 1: What is your name?", name={"type": "string"})
            return InputRequiredResult(input_requests={"step1": asked}, request_state="{}")
        return f"{state['name']} likes {second['color']}"

    @server.tool()
    async def test_input_required_result_capabilities(ctx: Context) -> InputRequiredResult:
        """Asks for what the client can give."""
        found = ctx.client_capabilities
        able: dict[str, Any] = {}
        if found is not None and found.elicitation is not None:
            able |= NAME
        if found is not None and found.sampling is not None:
            able["greeting"] = sampling("Generate a greeting", 50)
        return InputRequiredResult(input_requests=able)

    @server.prompt()
    async def test_input_required_result_prompt(ctx: Context) -> str | InputRequiredResult:
        """Asks for a context."""
        said = content_of(ctx, "user_context")
        if said is None:
            asked = form("What context should the prompt use?", context={"type": "string"})
            return InputRequiredResult(input_requests={"user_context": asked})
        return f"In the context of {said['context']}"


def stateless_tools(server: MCPServer[Any]) -> None:
    @server.tool()
    def test_missing_capability() -> str:
        """Needs a client with a model."""
        needed = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "this needs sampling", data=needed)

    @server.tool()
    async def test_streaming_elicitation(ctx: Context) -> str | InputRequiredResult:
        """Says how far it is, then asks."""
        await ctx.report_progress(1, 2)
        return InputRequiredResult(input_requests=NAME)

    @server.tool()
    async def test_logging_tool(ctx: Context) -> str:
        """Logs."""
        await ctx.info("a line of the log")
        return "logged"

    @server.tool()
    async def test_trigger_tool_change(ctx: Context) -> str:
        """Adds a tool, or takes it away again."""
        names = {one.name for one in await server.list_tools()}
        if "test_simple_text_too" in names:
            server.remove_tool("test_simple_text_too")
        else:
            server.add_tool(lambda: "too", name="test_simple_text_too", description="Answers with a text.")
        await ctx.notify_tools_changed()
        return "changed"

    @server.tool()
    async def test_trigger_prompt_change(ctx: Context) -> str:
        """Says that the prompts have changed."""
        await ctx.notify_prompts_changed()
        return "changed"

    @server.tool()
    def test_region(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
        """Has an argument that goes along as a header."""
        return region


SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def schema_tool(server: MCPServer[Any]) -> None:
    """A tool whose schema has words of JSON Schema 2020-12 that pydantic does not write."""
    server.add_tool(lambda: "taken", name="json_schema_2020_12_tool", description="Has a schema of its own.")
    server._tool_manager._tools["json_schema_2020_12_tool"].parameters = SCHEMA


# -- tasks: runs of the workspace ----------------------------------------------------------------------

_seeds = itertools.count()


def _run(caller: Caller, **params: float) -> Handle:
    return handle_of(caller.workspace.run("synthetic@1.0.0", params, seed=next(_seeds)))


@tool("Take some seconds", scope="runs:write", read_only=False)
def slow_compute(
    caller: Caller,
    seconds: Annotated[float, Field(ge=0, le=3600, description="Wall time, in seconds.")],
    label: Annotated[str, Field(description="What it is called.", max_length=200)] = "",
) -> Handle:
    """Start a run that takes so long, of the longest only LONGEST_S: one that is cancelled keeps its thread."""
    return _run(caller, x=0.5, run_time_s=min(seconds, LONGEST_S))


@tool("Fail", scope="runs:write", read_only=False)
def failing_job(caller: Caller) -> Handle:
    """Start a run that fails."""
    return _run(caller, x=1.0, fail_above=0.0)


def task_tools(server: MCPServer[Any]) -> None:
    """Tools that start runs, made as ours are."""

    @server.tool()
    def greet(name: str) -> list[TextContent]:
        """Greets at once."""
        return [text(f"Hello, {name}!")]

    @server.tool()
    async def test_tool_with_task(ctx: Context) -> CallToolResult | InputRequiredResult:
        """Asks for a name, then starts a run."""
        said = content_of(ctx, "user_name")
        if said is None:
            return InputRequiredResult(input_requests=NAME)
        begun = await in_thread(_run, caller_now(), x=0.5)
        return CallToolResult(content=[text(said["name"])], structured_content=begun.model_dump())

    for one in (slow_compute, failing_job):
        made = as_sdk_tool(one.mcp_tool)
        server._tool_manager._tools[made.name] = made  # the SDK's own way to add one makes it anew
    tasks.STARTS = (*tasks.STARTS, *TASK_TOOLS)


def with_fixtures(server: MCPServer[Any]) -> MCPServer[Any]:
    """Add everything that the suite calls."""
    for add in (plain_tools, resources, prompts, asking_tools, rounds, stateless_tools, schema_tool, task_tools):
        add(server)
    return server


async def serve(server: MCPServer[Any]) -> None:
    """Serve until stdin is closed; the URL is the first line of stdout."""
    import socket

    import uvicorn

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        config = uvicorn.Config(
            server.streamable_http_app(), log_config=None, access_log=False, timeout_graceful_shutdown=2
        )
        runs = uvicorn.Server(config)
        print(url, flush=True)

        async def until_closed() -> None:
            await asyncio.to_thread(sys.stdin.read)
            runs.should_exit = True

        async with asyncio.TaskGroup() as group:
            group.create_task(until_closed())
            await runs.serve(sockets=[listening])


def main(folder: Path) -> None:
    callers = Callers(folder)
    try:
        asyncio.run(serve(with_fixtures(make_server(callers))))
    finally:
        callers.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
