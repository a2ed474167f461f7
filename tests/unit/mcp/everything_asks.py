"""What the conformance suite calls that asks the client for something; see `everything.py`."""

from __future__ import annotations

import json
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
)


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
