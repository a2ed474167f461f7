"""Requests that a client sends again, as their answer was lost: each is done once, and has its first answer."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcagent.errors import BadInput
from hpcagent.store.journal import read_events
from hpcagent.workspace import answered
from hpcagent.workspace.answered import Answered
from hpcagent.workspace.calls import CHANGES, READS
from hpcagent.workspace.client import Workspace
from hpcagent.workspace.folder import Folder
from hpcagent.workspace.service import CALLS, Service
from hpcagent.workspace.sockets import Lines

PATIENCE_S = 120
ENDINGS = ["its answer is lost", "the service is killed"]
HALF = '''\
from typing import Annotated


def half(x: Annotated[float, (0.0, 10.0), "K"] = 4.0) -> float:
    """Half of a temperature.

    Args:
        x: The temperature.

    Returns:
        In K.
    """
    return x / 2
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    Folder(folder).create()
    (folder / "workspace.toml").write_text('name = "ws"\ndefault_site = "threads"\n')
    return folder


@pytest.fixture
def workspace(root: Path) -> Iterator[Workspace]:
    one = Workspace(root)
    yield one
    one.end(runs=True)


@pytest.fixture
def service(root: Path) -> Iterator[Service]:
    one = Service(root)
    yield one
    one.close()


@pytest.fixture(params=ENDINGS)
def lose(request, workspace, monkeypatch) -> Callable[[], list[bytes]]:
    """Have the next answer lost on its way; what was lost is in the list."""

    def begin() -> list[bytes]:
        pid, read, lost = workspace.about()["pid"], Lines.read, []

        def losing(lines: Lines, most: int = -1) -> bytes:
            answer = read(lines, most)
            if lost:
                return answer
            lost.append(answer)
            if request.param == ENDINGS[1]:
                os.kill(pid, signal.SIGKILL)
            return b""

        monkeypatch.setattr(Lines, "read", losing)
        return lost

    return begin


def first(lost: list[bytes]) -> Any:
    [answer] = lost
    return json.loads(answer)["ok"]


def runs(workspace: Workspace) -> list[str]:
    return [one["id"] for one in workspace.list()["runs"]]


def test_a_run_once_more_is_one_run(workspace, lose):
    before = workspace.wait(workspace.run("synthetic", {"x": 0.3})["id"], PATIENCE_S)["id"]
    lost = lose()
    again = workspace.run("synthetic", {"x": 0.3}, again=True)
    assert again["id"] == first(lost)["id"] and not again["found"] and again["replicate"] == 1
    assert runs(workspace) == [again["id"], before]


def test_a_simulation_without_a_seed_is_one_run(workspace, lose):
    lost = lose()
    begun = workspace.simulation_run("s", 100)
    assert begun["config"] == first(lost)["config"] and runs(workspace) == [begun["run_id"]]


def test_a_repetition_is_of_the_run_that_was_meant(workspace, lose):
    before = workspace.wait(workspace.run("synthetic", {"x": 0.3})["id"], PATIENCE_S)["id"]
    lost = lose()
    said = workspace.repeat("x +0.1 1")
    assert said["params"]["x"] == pytest.approx(0.4) and said["since"] == before
    assert said["id"] == first(lost)["id"] and runs(workspace) == [said["id"], before]


def test_a_subscription_is_one_also_when_it_is_ended(root, workspace, lose):
    lost = lose()
    mine = workspace.subscribe("on_job_complete")
    assert mine == first(lost)
    entries = [path.read_text() for path in (root / "events").rglob("*") if path.is_file()]
    assert sum(one.count('"subscribe"') for one in entries) == 1


def test_the_end_of_a_subscription_is_none_that_is_not_known(workspace, lose):
    mine = workspace.subscribe("on_job_complete")["subscription_id"]
    lost = lose()
    assert workspace.unsubscribe(mine) == first(lost)
    with pytest.raises(BadInput, match="was ended"):
        workspace.notifications(mine)


def test_a_tool_that_is_removed_is_not_missed(workspace, lose):
    workspace.register_tool(HALF, sandbox="limits")
    lost = lose()
    assert workspace.remove_tool("half") == first(lost) == {"name": "half", "removed": True}
    assert workspace.tools() == []


def test_a_tool_and_an_agent_are_made_once(root, workspace, lose):
    lost = lose()
    [card] = workspace.register_tool(HALF, sandbox="limits")
    assert card["sha256"] == first(lost)["tools"][0]["sha256"]
    lost = lose()
    assert (
        workspace.add_agent("reader", "You read tables of results and say what stands in them.")["name"]
        == first(lost)["name"]
        == "reader"
    )
    lost = lose()
    assert workspace.remove_agent("reader") == first(lost)
    told = [one["event"] for one in read_events(root / "journal.jsonl")]
    assert [told.count(one) for one in ("tool_registered", "agent_added", "agent_removed")] == [1, 1, 1]


def test_a_campaign_is_started_once(workspace, lose):
    toml = 'app = "synthetic"\nobjective = {maximize = "value"}\npolicy = "random"\nuntil = {max_runs = 2}\n'
    lost = lose()
    begun = workspace.start(toml, data_only=True)
    assert begun["id"] == first(lost)["id"] and not begun["found"] and runs(workspace) == [begun["id"]]


# -- the service ----------------------------------------------------------------------------------


def ask(service: Service, do: str, **more: Any) -> Any:
    return service.answer(json.dumps({"do": do} | more).encode(), os.getuid())


def test_each_call_changes_something_or_reads():
    assert not CHANGES & READS and CALLS.keys() == CHANGES | READS


def test_a_key_is_of_one_caller_and_one_request(root, service):
    with (root / "workspace.toml").open("a") as file:
        file.write('[people.ada]\nrole = "admin"\n')
    args = {"events": "on_job_complete"}
    mine = ask(service, "subscribe", args=args, key="k")
    assert ask(service, "subscribe", args=args, key="k") == mine
    assert ask(service, "subscribe", args=args, key="k", **{"as": "ada"})["ok"] != mine["ok"]
    assert ask(service, "subscribe", args=args)["ok"] != mine["ok"], "without a key each is a request of its own"
    other = ask(service, "subscribe", args={"events": "on_message"}, key="k")["error"]
    assert other["kind"] == "BadInput" and "key='k' was sent before with another request" in other["message"]
    for key in ("", 7, "k" * 101):
        assert "a text of 1 to 100" in ask(service, "subscribe", args=args, key=key)["error"]["message"]
    assert "takes no key" in ask(service, "whoami", key="k")["error"]["message"]


def test_an_error_is_an_answer_and_reading_is_not_remembered(service):
    wrong = ask(service, "run", args={"app": "synthetic", "params": {"x": 7}}, key="k")
    assert ask(service, "run", args={"app": "synthetic", "params": {"x": 7}}, key="k") == wrong
    assert wrong["error"]["kind"] == "NotAllowed"
    ask(service, "whoami")
    assert len(service.core.answered) == 1


def test_the_journal_has_the_key_in_the_line_of_the_run(root, service):
    ask(service, "run", args={"app": "synthetic", "params": {"x": 0.3}}, key="k")
    asked, *_ = read_events(root / "journal.jsonl")
    assert asked["event"] == "asked" and len(asked["call"]) == 41


def test_a_request_that_is_sent_while_the_first_goes_waits_for_its_answer():
    known, go, done = Answered(), threading.Event(), []

    def work() -> dict[str, Any]:
        done.append(1)
        go.wait(PATIENCE_S)
        return {"ok": 7}

    found: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda: found.append(known.once("ada", "k", "run", {}, work))) for _ in range(3)
    ]
    for one in threads:
        one.start()
    time.sleep(0.05)
    assert found == [] and known.once("ada", "other", "run", {}, lambda: {"ok": 8}) == {"ok": 8}
    go.set()
    for one in threads:
        one.join(PATIENCE_S)
    assert found == 3 * [{"ok": 7}] and done == [1]


def test_a_request_that_broke_off_is_done_by_the_next():
    known = Answered()
    with pytest.raises(ZeroDivisionError):
        known.once("ada", "k", "run", {}, lambda: {"ok": 1 / 0})
    assert known.once("ada", "k", "run", {}, lambda: {"ok": 1}) == {"ok": 1} and known.key == ""


def test_keys_are_forgotten_after_an_hour_and_beyond_so_many():
    now = [0.0]
    known = Answered(lambda: now[0], most=3)
    for n in range(5):
        assert known.once("ada", f"k{n}", "run", {}, lambda n=n: {"ok": n}) == {"ok": n}
    assert len(known) == 3
    assert known.once("ada", "k4", "run", {}, lambda: {"ok": "anew"}) == {"ok": 4}
    assert known.once("ada", "k0", "run", {}, lambda: {"ok": "anew"}) == {"ok": "anew"}
    now[0] = answered.KNOWN_S + 1
    assert known.once("ada", "k4", "run", {}, lambda: {"ok": "anew"}) == {"ok": "anew"} and len(known) == 1
    known.replay({"event": "asked", "id": "r-1", "at": 0.0, "call": "m.d"})
    assert len(known) == 1, "what the journal says of hours ago is not known either"


def answers_of(known: Answered, n: int, text: str) -> None:
    for i in range(n):
        known.once("ada", f"k{i}", "run", {"x": i}, lambda i=i: {"ok": {"id": f"r-{i}", "text": text}})


@pytest.mark.parametrize("long", [100, 20_000])
def test_what_is_known_takes_no_more_memory_than_is_said(long):
    known = Answered(most=1000, most_bytes=answered.MOST_BYTES // 10)
    tracemalloc.start()
    try:
        answers_of(known, 1000, long * "x")
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= answered.MOST_BYTES // 10
    assert len(known) == 1000 if long == 100 else len(known) > 40
    assert known.once("ada", "k999", "run", {"x": 999}, dict)["ok"] == {"id": "r-999", "text": long * "x"}


def test_the_newest_answer_is_known_however_long_it_is():
    known = Answered(most_bytes=1000)
    answers_of(known, 2, 5000 * "x")
    assert len(known) == 1 and known.once("ada", "k1", "run", {"x": 1}, dict)["ok"]["id"] == "r-1"
    known.replay({"event": "asked", "id": "r-2", "at": time.time(), "call": "m.d"})
    assert len(known) == 1 and known._bytes < 1000, "an answer that is forgotten takes nothing"
