"""Schemas of the tools, as clients that check them take them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel, Field

from hpcagent.mcp.schemas import allowed_by, short
from hpcagent.mcp.serving import tools_of
from hpcagent.mcp.tools import MODULES, registry

pytest.importorskip("mcp")
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


LARGEST_LIST, LARGEST_OF_MANAGERS = 60_000, 14_000
"""Characters of all tools as a client reads them (they were 97 786), and of those about tools and agents beside."""


def test_a_tool_that_may_do_more_when_called_again_says_so(drive):
    async def body(client):
        return (await client.list_tools()).tools

    hints = {one.name: one.annotations for one in drive(body)}
    again = ("run_job", "submit_slurm", "repeat_run", "simulation_run", "extend_campaign", "tell_event")
    assert [hints[name].idempotent_hint for name in again] == [False] * len(again)
    assert hints["start_campaign"].idempotent_hint and not hints["replay_campaign"].read_only_hint


def test_the_tools_do_not_fill_a_models_context(drive):
    async def body(client):
        return (await client.list_tools()).tools

    tools = drive(body)
    pool = {one.name for one in tools_of(registry)}
    size = {one.name: len(one.model_dump_json(by_alias=True, exclude_none=True)) for one in tools}
    assert sum(size[name] for name in pool) < LARGEST_OF_MANAGERS
    assert sum(size.values()) - sum(size[name] for name in pool) < LARGEST_LIST
    units = {one.name: json.dumps([one.input_schema, one.output_schema]) for one in tools}
    for name, words in {
        "run_job": ("in ps", "in angstrom", "in s"),
        "estimate": ("node-hours", "in USD"),
        "optimize_geometry": ("eV/angstrom",),
        "get_node_counters": ("in bytes", "percent"),
        "get_status": ("in s", "standard error"),
        "fetch_artifact": ("ytes",),
    }.items():
        for word in words:
            assert word.lower() in units[name].lower(), (name, word)


def test_schemas_are_short_and_say_the_same():
    class Inner(BaseModel):
        title: str = Field(max_length=3, description="A word.")  # a field of the name of a word of JSON Schema

    class Outer(BaseModel):
        n: int | None = Field(default=None, ge=1, description="How many.")
        one: Inner
        several: list[Inner] = []

    taken = short(Outer.model_json_schema(), takes=True)
    inner = {
        "type": "object",
        "properties": {"title": {"type": "string", "maxLength": 3, "description": "A word."}},
        "required": ["title"],
    }
    assert taken == {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "description": "How many."},
            "one": inner,
            "several": {"type": "array", "items": inner},
        },
        "required": ["one"],
    }
    given = short(Outer.model_json_schema())
    assert {"type": "null"} in given["properties"]["n"]["anyOf"] and "required" not in given


def test_what_is_allowed_is_said_of_the_very_place():
    schema = {
        "properties": {
            "spec": {"$ref": "#/$defs/Spec"},
            "kind": {"enum": ["a", "b"]},
            "names": {"type": "array", "items": {"type": "string", "pattern": "^[A-Z]$"}},
        },
        "$defs": {"Spec": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}},
    }
    said = {where: allowed_by(schema, where) for where in (("spec", "n"), ("kind",), ("names", 2), ("spec",))}
    assert said == {
        ("spec", "n"): "integer, at least 1",
        ("kind",): "one of a, b",
        ("names", 2): "string, as the pattern ^[A-Z]$",
        ("spec",): "object, with n",
    }


@pytest.mark.parametrize(
    ("tool", "arguments", "field", "why", "allowed"),
    [
        (
            "run_dft",
            {"structure": "cu", "adsorbate": "O"},
            "structure",
            "^[A-Z][a-z]?$",
            "string, as the pattern ^[A-Z][a-z]?$",
        ),
        ("list_runs", {"most": 5000}, "most", "1000", "integer, 1 to 1000"),
        ("list_runs", {"most": "many"}, "most", "integer", "integer, 1 to 1000"),
        (
            "submit_slurm",
            {"spec": {"app": "x", "site": "s", "nodes": 0}},
            "spec.nodes",
            "1",
            "integer, 1 to 100000",
        ),
        ("list_apps", {"words": "a"}, "words", "no argument", "query"),
        ("describe_app", {}, "app", "needs", "string, at most 200 characters"),
        (
            "estimate",
            {"kind": "lammps", "params": {}, "walltime_s": 0},
            "walltime_s",
            "greater",
            "number, at most 9.4608e+08, above 0 or null",
        ),
    ],
)
def test_a_wrong_argument_says_what_is_allowed(drive, tool, arguments, field, why, allowed):
    async def body(client):
        return await client.call_tool(tool, arguments)

    refused = drive(body).structured_content["refused"]
    assert refused["field"].startswith(field) and why in refused["why"] and refused["allowed"] == allowed


def test_the_guide_lists_each_tool_once():
    page = Path(__file__).parents[3] / "docs/howto/mcp.md"
    section = page.read_text().partition("\n## Tools\n")[2].partition("\n## ")[0]
    listed = [
        name for line in section.splitlines() if line.startswith("|") for name in re.findall(r"`(\w+)`", line)
    ]
    assert sorted(listed) == sorted(one.name for module in MODULES for one in tools_of(module))
