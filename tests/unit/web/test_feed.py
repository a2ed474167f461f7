"""The snapshot, what comes after it, and when a page begins anew."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.sites.site import usable_cores
from hpcagent.web import api
from hpcagent.web import feed as feed_module
from hpcagent.web.chat import Chat
from hpcagent.web.feed import COLUMNS, KEPT, MOST_WAITING, Feed, _row


@contextmanager
def stream(page: Any, after: str) -> Iterator[Iterator[tuple[str, str, Any]]]:
    """The stream as (id, event, data)."""
    with page.client.stream("GET", "/api/stream", params={"after": after}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")

        def events() -> Iterator[tuple[str, str, Any]]:
            fields: dict[str, str] = {}
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if line and name:
                    fields[name] = value
                if not line and "data" in fields:
                    yield fields.get("id", ""), fields["event"], json.loads(fields["data"])
                    fields = {}

        yield events()


def rows_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    lists = [found["runs"].get(name, []) for name in found["columns"]]
    return {values[0]: dict(zip(found["columns"], values, strict=True)) for values in zip(*lists, strict=True)}


def test_what_is_cut_in_the_list_of_runs_says_so():
    row = dict.fromkeys(COLUMNS, "") | {
        "app": "own",
        "params": {"values": "[1.25, " + "0.015625, " * 9 + "4]", "n": 7},
    }
    point = _row(row)[-1]
    assert point.startswith("values = [1.25, 0.015625") and point.endswith(" ..., n = 7"), point
    many = {f"a_rather_long_name_{n}": "word" * 9 for n in range(6)}
    point = _row(row | {"params": many})[-1]
    assert point.endswith(" ...") and len(point) <= 160


def test_a_snapshot_has_everything_and_the_stream_what_comes_after(workspace: ha.Workspace, page):
    old = workspace.run("synthetic", {"x": 0.3})["id"]
    workspace.wait(old, 60)
    found = page.until("snapshot", lambda s: rows_of(s).get(old, {}).get("state") == "completed")
    assert found["name"] == "Argon group"
    assert found["me"]["role"] == "admin"
    assert rows_of(found)[old]["point"].startswith("x = 0.3, y = 0.8")
    with stream(page, found["version"]) as events:
        new = workspace.run("synthetic", {"x": 0.4})["id"]
        seen = []
        for number, kind, data in events:
            if kind == "runs":
                seen += [row for row in data if row[0] == new]
                last = number
                if seen and seen[-1][COLUMNS.index("state")] == "completed":
                    break
    # Who was away for a moment gets what was missed, and nothing twice.
    with stream(page, found["version"]) as events:
        again = next(iter(events))
    boot, _, n = found["version"].partition("-")
    assert again[0] == f"{boot}-{int(n) + 1}"
    assert last.startswith(boot)


def test_an_approval_is_told(workspace: ha.Workspace, page):
    version = page.get("snapshot")["version"]
    ada = ha.Workspace(workspace.folder.root, as_="ada")
    try:
        ada.run("lj_argon", {"steps": 1000}, walltime_s=600, why="<b>fast</b>")
    except ha.BadInput as refused:
        identity = refused.approval
    with stream(page, version) as events:
        data = next(data for _, kind, data in events if kind == "approvals" and data)
    assert data[0]["id"] == identity
    assert data[0]["asked"]["node_hours"] == pytest.approx(600 / 3600 / len(usable_cores()))
    assert data[0]["asked_why"] == "<b>fast</b>"


def test_another_boot_a_gap_or_nonsense_is_told_to_begin_anew(page):
    version = page.get("snapshot")["version"]
    boot = version.partition("-")[0]
    for after in ("", "nonsense", "0123456789ab-3", f"{boot}-999999", f"{boot}-x", f"{boot}--1"):
        with stream(page, after) as events:
            assert [*events] == [("", "reset", {})], after


def test_the_ring_is_bounded_and_a_gap_begins_anew(workspace: ha.Workspace):
    feed = Feed(workspace)

    async def main() -> None:
        for i in range(KEPT + 10):
            feed._part("news", [i])
        assert feed.listen(f"{feed.boot}-5") is None
        found = feed.listen(f"{feed.boot}-{10}")
        assert found is not None
        assert [one[0] for one in found[1]] == [*range(11, KEPT + 11)]

    asyncio.run(main())


def test_a_page_that_takes_nothing_is_late_and_holds_up_nobody(workspace: ha.Workspace):
    feed = Feed(workspace)

    async def main() -> None:
        slow = feed.listen(f"{feed.boot}-0")
        assert slow is not None
        for i in range(MOST_WAITING + 1):
            feed._part("news", [i])
        await asyncio.sleep(0)
        assert slow[0].late
        assert slow[0].queue.qsize() == MOST_WAITING
        feed.leave(slow[0])
        assert not feed._listeners

    asyncio.run(main())


def test_the_mirror_goes_on_when_the_service_was_ended(workspace: ha.Workspace, page):
    version = page.get("snapshot")["version"]
    workspace.end()
    run = workspace.run("synthetic", {"x": 0.9})["id"]
    with stream(page, version) as events:
        for _, kind, data in events:
            if kind == "runs" and any(row[0] == run for row in data):
                break


def test_each_sees_what_they_may(workspace: ha.Workspace, served):
    ada = ha.Workspace(workspace.folder.root, as_="ada")
    mine, hers = workspace.run("synthetic", {"x": 0.3})["id"], ada.run("synthetic", {"x": 0.5})["id"]
    workspace.wait(mine, 60)
    ada.wait(hers, 60)
    hers_alone = served(as_="ada")
    found = hers_alone.until("snapshot", lambda s: hers in rows_of(s))
    assert [*rows_of(found)] == [hers]
    assert hers_alone.client.get(f"/api/run/{mine}").status_code == 404


def test_where_nobody_looks_the_workspace_is_left_alone_until_somebody_does(workspace: ha.Workspace, monkeypatch):
    monkeypatch.setattr(feed_module, "REST_S", 0.0)
    feed = Feed(ha.Workspace(workspace.folder.root))
    feed.begin()
    try:
        until(lambda: feed.resting)
        workspace.end()
        assert not workspace.served
        run = workspace.run("synthetic", {"x": 0.6})["id"]
        assert run in feed.snapshot()["runs"]["id"]
        until(lambda: feed.resting)
    finally:
        feed.close()


@pytest.mark.parametrize("begun", [0, 1, 2])
@pytest.mark.parametrize("version", ["2.0", "2.4"])
def test_of_a_page_that_goes_nobody_listens_on(workspace: ha.Workspace, monkeypatch, begun: int, version: str):
    monkeypatch.setattr(api, "PING_S", 0.01)
    feed = Feed(workspace)
    (route,) = (r for r in api.routes(workspace, feed, Chat(workspace, feed)) if r.path == "/api/stream")
    query = f"after={feed.boot}-0".encode()
    scope = {"type": "http", "method": "GET", "path": "/api/stream", "query_string": query, "headers": []}
    scope["asgi"] = {"spec_version": version}
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()  # it is noticed where something is sent

    async def send(message: Any) -> None:
        if len(sent) == begun:
            raise OSError("gone")
        sent.append(message)

    async def main() -> None:
        with contextlib.suppress(Exception):
            await route.handle(scope, receive, send)
        assert len(sent) == begun and not feed._listeners

    asyncio.run(main())


def until(so: Callable[[], bool]) -> None:
    """Wait until it is so."""
    for _ in range(600):
        if so():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it is not so within 30 s")
