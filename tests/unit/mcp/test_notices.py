"""Notices of what happens in the workspace, as clients of both eras get them."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
import warnings

import anyio
import pytest
from mcp import Client
from mcp.client.subscriptions import ResourcesListChanged, ResourceUpdated
from mcp.shared.exceptions import MCPError

import hpcagent as ha
from hpcagent.mcp.callers import Callers
from hpcagent.mcp.server import make_server

PEOPLE = """
name = "group"
default_site = "threads"
[people.ada]
role = "planner"
[people.bob]
role = "planner"
"""
SLOW = {"kind": "synthetic", "params": {"timestep": 1e-3, "skin": 3.0}}


def point(x):
    return {"kind": "synthetic", "params": {"timestep": x, "skin": 3.0}}


async def next_of(subscription, wanted):
    """Wait for a notice."""
    with anyio.fail_after(30):
        async for event in subscription:
            if wanted(event):
                return event


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_run_that_ends_is_told_to_whoever_subscribed(drive, workspace, mode):
    told: list[str] = []
    heard = anyio.Event()

    async def take(message):
        params = getattr(message, "params", None)
        told.append(str(getattr(params, "uri", type(message).__name__)))
        heard.set()

    async def body(client):
        run = workspace.run("oscillator", {}, site="threads")
        uri = f"run://{run['id']}"
        if mode == "auto":
            async with client.listen(resource_subscriptions=[uri], resources_list_changed=True) as subscription:
                workspace.run("synthetic", {"x": 0.1})
                await next_of(subscription, lambda event: event == ResourcesListChanged())
            workspace.wait(run["id"], 30)
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            await client.list_resources()
            await client.subscribe_resource(uri)
            other = workspace.run("synthetic", {"x": 0.1})
            with anyio.fail_after(30):
                while "ResourceListChangedNotification" not in told:
                    await heard.wait()
            await client.subscribe_resource(f"run://{other['id']}")
            await client.unsubscribe_resource(f"run://{other['id']}")

    drive(body, mode=mode, **({"message_handler": take} if mode == "legacy" else {}))


def test_both_eras_hear_of_a_result(workspace):
    """What is listened to before it begins is told when it has ended."""
    from hpcagent.workspace.client import Workspace

    async def main():
        callers = Callers(workspace.folder.root)
        server = make_server(callers)
        old: list[str] = []
        some = anyio.Event()

        async def take(message):
            uri = getattr(getattr(message, "params", None), "uri", None)
            if uri is not None:
                old.append(str(uri))
                some.set()

        try:
            async with Client(server) as new, Client(server, mode="legacy", message_handler=take) as legacy:
                assert legacy.server_capabilities.resources.subscribe
                assert legacy.server_capabilities.resources.list_changed
                run = await anyio.to_thread.run_sync(
                    lambda: Workspace(workspace.folder.root).run("oscillator", {"steps": 20000} if False else {})
                )
                uri = f"run://{run['id']}"
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    await legacy.subscribe_resource("workspace://overview")
                async with new.listen(resource_subscriptions=["workspace://overview"]) as subscription:
                    assert subscription.honored.resource_subscriptions == ["workspace://overview"]
                    await anyio.to_thread.run_sync(
                        lambda: Workspace(workspace.folder.root).run("synthetic", {"x": 0.2})
                    )
                    await next_of(subscription, lambda event: event == ResourceUpdated("workspace://overview"))
                    with anyio.fail_after(30):
                        await some.wait()
                assert set(old) == {"workspace://overview"}
                return uri
        finally:
            callers.close()

    anyio.run(main)
