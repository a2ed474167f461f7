"""How much a caller may ask, with a clock of the test's own."""

from __future__ import annotations

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.mcp import limits as module
from hpcagent.mcp.callers import Callers
from hpcagent.mcp.limits import LIMIT_EXCEEDED, Limits
from hpcagent.mcp.server import make_server


def of(**more) -> tuple[Limits, list[float]]:
    clock = [0.0]
    return Limits(**more, now=lambda: clock[0]), clock


def asked(limits: Limits, who: str, times: int) -> int:
    """How many of so many requests are let through."""
    done = 0
    for _ in range(times):
        try:
            limits.end(limits.begin(who))
            done += 1
        except NotAllowed:
            pass
    return done


def test_a_burst_passes_and_then_so_many_a_second():
    limits, clock = of(burst=10, per_s=2.0)
    assert asked(limits, "ada", 15) == 10
    assert asked(limits, "bob", 3) == 3  # each has their own
    clock[0] += 1.5
    assert asked(limits, "ada", 15) == 3
    clock[0] += 1000
    assert asked(limits, "ada", 15) == 10


def test_a_refusal_says_when_to_come_back_and_that_is_true():
    limits, clock = of(burst=1, per_s=0.25)
    asked(limits, "ada", 1)
    with pytest.raises(NotAllowed) as refused:
        limits.begin("ada")
    assert refused.value.field == "retry_after_s" and "retry after 4 s" in refused.value.do
    clock[0] += refused.value.value
    assert asked(limits, "ada", 1) == 1


def test_a_thousand_polls_at_once_are_within_the_defaults():
    limits, _ = of()
    assert asked(limits, "ada", 1000) == 1000


def test_what_is_being_answered_is_counted_until_it_ends():
    limits, _ = of(at_once=2, streams=1)
    first, second = limits.begin("ada"), limits.begin("ada")
    with pytest.raises(NotAllowed, match="2 requests are being answered"):
        limits.begin("ada")
    stream = limits.begin("ada", stream=True)
    with pytest.raises(NotAllowed, match="1 subscriptions are open"):
        limits.begin("ada", stream=True)
    limits.end(first)
    limits.end(limits.begin("ada"))
    limits.end(stream, stream=True)
    limits.end(limits.begin("ada", stream=True), stream=True)
    limits.end(second)


def test_callers_without_number_take_no_memory_without_end(monkeypatch):
    monkeypatch.setattr(module, "MOST_CALLERS", 10)
    limits, _ = of()
    held = limits.begin("held")
    for n in range(100):
        asked(limits, f"c{n}", 1)
    assert len(limits._buckets) <= 11 and "held" in limits._buckets
    limits.end(held)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_refusal_is_an_answer_in_both_protocols(workspace, mode):
    limits, clock = of(burst=1000, per_s=0.5)

    async def main():
        callers = Callers(workspace.folder.root)
        try:
            async with Client(make_server(callers, limits=limits), mode=mode) as client:
                await client.list_tools()
                while True:  # use up what there is
                    try:
                        limits.end(limits.begin(""))
                    except NotAllowed:
                        break
                refused = await client.call_tool("list_apps", {})
                with pytest.raises(MCPError) as error:
                    await client.list_resources()
                clock[0] += 2.0
                return refused, error.value, await client.call_tool("list_apps", {})
        finally:
            callers.close()

    refused, error, answered = anyio.run(main)
    assert refused.is_error and refused.structured_content["refused"]["value"] == 2
    assert "retry after 2 s" in refused.content[0].text
    assert error.code == LIMIT_EXCEEDED and error.data == {"retry_after_s": 2}
    assert not answered.is_error


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_answer_that_is_too_large_is_refused_and_says_what_to_do(workspace, mode):
    async def main():
        callers = Callers(workspace.folder.root)
        try:
            limits = Limits()
            async with Client(make_server(callers, limits=limits), mode=mode) as client:
                await client.list_tools()
                limits.largest_answer = 500
                small = await client.call_tool("list_runs", {})
                large = await client.call_tool("list_apps", {})
                with pytest.raises(MCPError, match="more than 500 characters"):
                    await client.list_tools()
                return small, large
        finally:
            callers.close()

    small, large = anyio.run(main)
    assert not small.is_error
    assert large.is_error and "ask for less" in large.content[0].text
