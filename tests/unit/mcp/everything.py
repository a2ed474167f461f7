"""Our server with what the official conformance suite calls: tools, resources and prompts of fixed names and answers.

    python everything.py WORKSPACE

serves that on loopback at a free port, without a token, writes the URL as one line, and ends on SIGTERM.
The fixtures are added to the server that `make_server` returns, so that each call goes through all that ours do.
"""

from __future__ import annotations

import base64
import functools
import io
import itertools
import json
import struct
import sys
import warnings
import wave
import zlib
from pathlib import Path
from typing import Annotated, Any

import anyio
from everything_asks import NAME, asking_tools, content_of, rounds  # beside this file
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.server.mcpserver.resources.types import BinaryResource, TextResource
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    TextContent,
    TextResourceContents,
)
from pydantic import Field

from hpcagent.mcp import tasks
from hpcagent.mcp.asgi import bound, serve_app
from hpcagent.mcp.callers import Caller, Callers, caller_now
from hpcagent.mcp.http import PATH, app_of
from hpcagent.mcp.server import make_server
from hpcagent.mcp.serving import as_sdk_tool, tool
from hpcagent.mcp.threads import in_thread
from hpcagent.mcp.tools.runs import Handle, handle_of

TASK_TOOLS = ("slow_compute", "failing_job", "test_tool_with_task")
PAUSE_S = 0.05  # as the suite says it
LONGEST_S = 1.0


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


# -- since 2026-07-28 ------------------------------------------------------------------------------


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
        begun = await in_thread(functools.partial(_run, caller_now(), x=0.5))
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


def main(folder: Path) -> None:
    """Serve until SIGTERM; the URL is the first line of stdout."""
    callers, listening = Callers(folder), bound("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}{PATH}"
    app = app_of(with_fixtures(make_server(callers)), url, guarded=False)
    try:
        anyio.run(serve_app, app, listening, lambda: print(url, flush=True))
    finally:
        listening.close()
        callers.close()


if __name__ == "__main__":
    warnings.simplefilter("ignore", MCPDeprecationWarning)  # the suite calls what is deprecated, too
    main(Path(sys.argv[1]))
