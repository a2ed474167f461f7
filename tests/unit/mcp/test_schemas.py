"""Schemas of the tools, as clients that check them take them."""

from __future__ import annotations

import pytest

jsonschema = pytest.importorskip("jsonschema")


def test_a_refusal_is_of_the_schema_that_its_tool_announces(drive):
    """Clients with the SDK for TypeScript check it where `isError` is set, too, and show their model nothing else."""

    async def body(client):
        tools = (await client.list_tools()).tools
        return [(tool, await client.call_tool(tool.name, {"no_such_argument": 1})) for tool in tools]

    for tool, result in drive(body):
        assert result.is_error, tool.name
        assert result.structured_content["refused"]["field"], tool.name
        jsonschema.validate(result.structured_content, tool.output_schema)


def test_an_answer_without_what_the_schema_needs_is_not_of_it(drive):
    async def body(client):
        return (await client.list_tools()).tools

    for tool in drive(body):
        validator = jsonschema.Draft202012Validator(tool.output_schema)
        validator.check_schema(tool.output_schema)
        assert not validator.is_valid({}), tool.name
        assert validator.is_valid({"error": "it was not done"}), tool.name
