"""Notices of what happens in the workspace, as clients of both eras get them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import warnings

import anyio
import pytest

pytest.importorskip("mcp")

from mcp import Client
from mcp.client.subscriptions import ResourcesListChanged, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPError

from hpcagent.mcp.callers import Callers, calling
from hpcagent.mcp.notices import Notices
from hpcagent.mcp.server import make_server

LONG = {"x": 0.5, "run_time_s": 3600.0}
OVERVIEW = "workspace://overview"


async def first_of(subscription, wanted):
    """Wait for a notice, and leave others out."""
    with anyio.fail_after(30):
        async for event in subscription:
            if event == wanted:
                return event
    raise AssertionError("the stream has ended")


async def apart(function, *args, **more):
    return await anyio.to_thread.run_sync(lambda: function(*args, **more))


class Heard:
    """What a client of 2025 is told, outside of any answer."""

    def __init__(self):
        self.all = []
        self._some = anyio.Event()

    async def __call__(self, message):
        self.all.append(getattr(message.params, "uri", None) or type(message).__name__)
        self._some.set()
        self._some = anyio.Event()

    async def one(self, wanted):
        with anyio.fail_after(30):
            while wanted not in self.all:
                await self._some.wait()


@contextlib.asynccontextmanager
async def old_client(server):
    heard = Heard()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="resources/")
        async with Client(server, mode="legacy", message_handler=heard) as client:
            yield client, heard


@pytest.fixture
def serve(workspace):
    """Run a coroutine with a server."""

    def run(body, *, as_=""):
        async def main():
            callers = Callers(workspace.folder.root, as_=as_)
            try:
                return await body(make_server(callers))
            finally:
                callers.close()

        found = anyio.run(main)
        assert not [one for one in threading.enumerate() if one.name == "mcp notices"]
        return found

    return run


def test_the_end_of_a_run_is_told(serve, workspace):
    run = workspace.run("synthetic", LONG)["id"]
    uri = f"run://{run}"

    async def body(server):
        async with Client(server) as client, client.listen(resource_subscriptions=[uri, f"{uri}/log"]) as heard:
            assert heard.honored.resource_subscriptions == [uri, f"{uri}/log"]
            await apart(workspace.cancel, run)
            await first_of(heard, ResourceUpdated(f"{uri}/log"))
            return (await client.read_resource(uri)).contents[0].text

    assert '"state":"cancelled"' in serve(body)


def test_the_end_of_a_run_is_told_to_clients_of_2025(serve, workspace):
    run, other = workspace.run("synthetic", LONG)["id"], workspace.run("synthetic", LONG | {"x": 0.6})["id"]

    async def body(server):
        async with old_client(server) as (client, heard):
            resources = client.server_capabilities.resources
            assert resources.subscribe and resources.list_changed
            for identity in (run, other):
                await client.subscribe_resource(f"run://{identity}")
            await client.unsubscribe_resource(f"run://{other}")
            await apart(workspace.cancel, other)
            await apart(workspace.cancel, run)
            await heard.one(f"run://{run}")
            return heard.all

    assert set(serve(body)) == {f"run://{run}"}


def test_new_runs_change_the_list_of_resources(serve, workspace):
    async def body(server):
        async with Client(server) as client, old_client(server) as (old, heard):
            await old.list_resources()
            async with client.listen(resources_list_changed=True) as stream:
                await apart(workspace.run, "synthetic", LONG)
                await first_of(stream, ResourcesListChanged())
                await heard.one("ResourceListChangedNotification")

    serve(body)


def test_what_is_shared_tells_when_it_changes(serve, workspace):
    async def body(server):
        uris = ["resource://dft_results", "resource://dft_results/Cu.json"]
        async with Client(server) as client, client.listen(resource_subscriptions=uris) as stream:
            put = workspace.resources().objects().put
            await apart(put, "Cu.json", {"energy_ev": -0.5}, run_id="r1")
            await first_of(stream, ResourceUpdated(uris[1]))
            return (await client.read_resource(uris[1])).contents[0]

    content = serve(body)
    assert content.text == '{"energy_ev":-0.5}' and content.meta["hpcagent/resource"]["created_by"]


def test_others_runs_are_neither_promised_nor_told(serve, workspace, people):
    hers = people("ada").run("synthetic", LONG)["id"]
    uri = f"run://{hers}"

    async def body(server):
        async with Client(server) as client, old_client(server) as (old, heard):
            with pytest.raises(MCPError) as refused:
                await old.subscribe_resource(uri)
            await old.list_resources()
            uris = [uri, f"campaign://{hers}", "run://r-none", OVERVIEW]
            async with client.listen(resource_subscriptions=uris, resources_list_changed=True) as stream:
                told = []
                await apart(people("ada").cancel, hers)
                his = await apart(people("bob").run, "synthetic", {"x": 0.3})
                with anyio.fail_after(30):
                    async for event in stream:
                        told.append(event)
                        if event == ResourceUpdated(OVERVIEW):
                            break
                assert his["id"] != hers
                return refused.value.code, stream.honored.resource_subscriptions, told, heard.all

    code, promised, told, heard = serve(body, as_="bob")
    assert code == -32602 and promised == [OVERVIEW]
    assert ResourceUpdated(uri) not in told and uri not in heard


def test_the_death_of_the_service_is_survived(serve, workspace):
    run = workspace.run("synthetic", LONG)["id"]

    async def body(server):
        async with Client(server) as client, client.listen(resource_subscriptions=[f"run://{run}"]) as stream:
            os.kill(workspace.about()["pid"], signal.SIGKILL)
            await apart(workspace.cancel, run)
            await first_of(stream, ResourceUpdated(f"run://{run}"))

    serve(body)


def test_a_subscription_that_has_ended_is_made_anew(serve, workspace):
    run = workspace.run("synthetic", LONG)["id"]

    async def body(server):
        async with Client(server) as client, client.listen(resource_subscriptions=[f"run://{run}"]) as stream:
            (watch,) = server._subscriptions._watches.values()
            before = watch._subscription
            await apart(workspace.unsubscribe, before)
            with anyio.fail_after(30):
                while watch._subscription == before:
                    await anyio.sleep(0.02)
            await apart(workspace.cancel, run)
            await first_of(stream, ResourceUpdated(f"run://{run}"))

    serve(body)


def test_progress_of_a_campaign_is_told(serve, workspace):
    """Before it ends no event tells of it."""
    more = {"search_space": {"x": {}, "y": {}}, "fixed": {"run_time_s": 0.5}, "site": "threads"}
    campaign = workspace.bayesian_optimize("synthetic", {"maximize": "value"}, 200, **more)["id"]
    uri = f"campaign://{campaign}"

    async def body(server):
        async with Client(server) as client, client.listen(resource_subscriptions=[uri]) as stream:
            await first_of(stream, ResourceUpdated(uri))
            await first_of(stream, ResourceUpdated(uri))
            answer = (await client.read_resource(uri)).contents[0].text
            status = await apart(workspace.status, campaign, lines=0)
            await apart(workspace.stop, campaign)
            await first_of(stream, ResourceUpdated(uri))
            return answer, status

    answer, status = serve(body)
    assert status["ended_at"] is None and '"completed":' in answer


def test_a_client_that_does_not_read_holds_up_no_other(serve, workspace):
    """A session whose handler never returns gets one notice; another client gets what it has asked for."""
    runs = [workspace.run("synthetic", LONG | {"x": 0.1 + n / 100})["id"] for n in range(5)]

    async def stuck(message):
        await anyio.sleep_forever()

    async def body(server):
        slow = Client(server, mode="legacy", message_handler=stuck)
        async with Client(server) as client, old_client(server) as (_, _), slow:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for run in runs:
                    await slow.subscribe_resource(f"run://{run}")
            async with client.listen(resource_subscriptions=[f"run://{runs[-1]}"]) as stream:
                for run in runs:
                    await apart(workspace.cancel, run)
                await first_of(stream, ResourceUpdated(f"run://{runs[-1]}"))

    serve(body)


def test_too_many_resources_are_refused(serve):
    async def body(server):
        async with Client(server) as client:
            with pytest.raises(MCPError, match="1000 at most"):
                async with client.listen(resource_subscriptions=[f"docs://{n}" for n in range(1001)]):
                    pass

    serve(body)


@contextlib.contextmanager
def over_http(server, **more):
    """The address of a server on loopback, in a thread of its own."""
    uvicorn = pytest.importorskip("uvicorn")
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)  # who comes before the server is up waits
    app = server.streamable_http_app(**more)
    served = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=served.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    finally:
        served.should_exit = True
        thread.join(30)
        listening.close()


def test_both_eras_are_told_over_http(workspace):
    """Each request is answered in a thread's loop that is not the one that hears of the run."""
    run = workspace.run("synthetic", LONG)["id"]
    uri = f"run://{run}"
    callers = Callers(workspace.folder.root)

    async def body(address):
        async with Client(address) as client, old_client(address) as (old, heard):
            await old.subscribe_resource(uri)
            async with client.listen(resource_subscriptions=[uri]) as stream:
                await apart(workspace.cancel, run)
                await first_of(stream, ResourceUpdated(uri))
                await heard.one(uri)

    with over_http(make_server(callers)) as address:
        anyio.run(body, address)
    callers.close()
    assert not [one for one in threading.enumerate() if one.name == "mcp notices"]


def test_without_a_session_nothing_is_promised(workspace):
    callers = Callers(workspace.folder.root)

    async def body(address):
        async with old_client(address) as (old, _):
            assert (await old.list_resources()).resources
            with pytest.raises(MCPError, match="no session"):
                await old.subscribe_resource(OVERVIEW)

    with over_http(make_server(callers), stateless_http=True) as address:
        anyio.run(body, address)
    callers.close()


def test_the_bus_tells_each_stream_what_its_caller_may_see(workspace, people):
    """Whatever a stream asks for: here both ask for everything."""
    people("ada").run("synthetic", {"x": 0.2})
    told = {"ada": [], "bob": []}

    async def main():
        callers, notices = Callers(workspace.folder.root), Notices()
        watches = {}
        for name, heard in told.items():
            with calling(callers.caller(name)):
                notices.subscribe(heard.append)
            watches[name] = await apart(notices.attend, callers.caller(name), ())
        runs = {}
        with anyio.fail_after(30):
            for name in ("ada", "bob"):
                runs[name] = (await apart(people(name).run, "synthetic", {"x": 0.3, "y": 0.3}))["id"]
                while ResourceUpdated(f"run://{runs[name]}") not in told[name]:
                    await anyio.sleep(0.02)
        for name, watch in watches.items():
            notices.leave(watch, ())
        notices.close()
        callers.close()
        return runs

    runs = anyio.run(main)
    assert ResourceUpdated(f"run://{runs['ada']}") not in told["bob"]
    assert ResourceUpdated(f"run://{runs['bob']}") not in told["ada"]


ROLES = 'name = "group"\n[people.eve]\nrole = "{}"\n'


def test_tools_go_by_the_role_and_a_change_of_it_is_told(serve, workspace):
    rules = workspace.folder.rules
    rules.write_text(ROLES.format("viewer"))

    async def names(client):
        return {one.name for one in (await client.list_tools()).tools}

    async def body(server):
        async with Client(server) as client, old_client(server) as (old, heard):
            before = await names(client)
            assert before == await names(old)
            async with client.listen(tools_list_changed=True) as stream:
                rules.write_text(ROLES.format("planner"))
                await first_of(stream, ToolsListChanged())
                await heard.one("ToolListChangedNotification")
            return before, await names(client)

    viewer, planner = serve(body, as_="eve")
    assert {"get_status", "list_runs", "query_database"} <= viewer
    assert not {"run_job", "cancel", "tell_event", "decide_approval", "expire_runs"} & viewer
    assert {"run_job", "cancel", "tell_event"} <= planner and not {"decide_approval", "expire_runs"} & planner


def test_a_tool_that_is_registered_changes_the_list_of_tools(serve, workspace):
    async def body(server):
        async with Client(server) as client, old_client(server) as (old, heard):
            await old.list_tools()
            async with client.listen(tools_list_changed=True) as stream:
                await apart(
                    workspace.tell, "on_tool_registered", {"tool": "made_here", "version": "1.0.0"}, to="*"
                )
                await first_of(stream, ToolsListChanged())
                await heard.one("ToolListChangedNotification")

    serve(body)
