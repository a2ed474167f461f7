"""Conversations with the supervisor, as the page asks for them; the model is a script."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from hpcagent.sites.site import usable_cores

pytest.importorskip("pydantic_ai")

from tests.unit.agents.conftest import Script, call

ARGON = {"kind": "lj_argon", "params": {"steps": 1000}, "walltime_s": 600}


def turns(page: Any) -> list[dict[str, Any]]:
    """What the page's chat says of its questions."""
    return list(page.get("snapshot")["chat"])


def going_on(page: Any, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The newest question, once something holds of it."""
    found = page.until("snapshot", lambda all_: bool(all_["chat"]) and done(all_["chat"][-1]))
    return dict(found["chat"][-1])


def ended(turn: dict[str, Any]) -> bool:
    return bool(turn["state"] != "going")


def runs_one(params: dict[str, Any]) -> list[Any]:
    """What a specialist says that runs something, waits for it, and tells what came out."""
    return [
        call("run_job", kind="synthetic@1.0.0", params=params),
        lambda seen: call("wait_for", id=seen.data()["run_id"]),
        lambda seen: f"value {seen.data()['metrics']['value']:.4f} ({seen.data()['run_id']})",
    ]


def test_a_question_is_answered_with_its_steps_its_numbers_and_what_ran(served, workspace):
    script = Script(
        supervisor=[
            call("delegate", agent="runner", task="the value at x = 0.3"),
            lambda seen: str(seen.data()["says"]) + " and 77.125 eV",
        ],
        runner=runs_one({"x": 0.3}),
    )
    page = served(model=script.model)
    standing = page.get("chat")
    assert (standing["ready"], standing["to"], standing["threads"]) == (True, "scripted", [])
    asked = page.post("chat/ask", {"goal": "What is the value at x = 0.3?"})
    turn = going_on(page, ended)
    assert turn["state"] == "answered", turn["error"]
    kinds = [(one["kind"], one["tool"]) for one in turn["steps"]]
    assert ("called", "run_job") in kinds and ("called", "wait_for") in kinds
    (run,) = workspace.list()["runs"]
    (told,) = page.get(f"chat/thread/{asked['thread']}")["turns"]
    assert [one["run"] for one in told["reply"]["numbers"] if one["source"] == "run"][-1] == run["id"]
    assert told["reply"]["flagged"] == ["77.125 eV"]
    assert page.get("chat")["threads"][0]["thread"] == asked["thread"]
    assert page.post(f"chat/thread/{asked['thread']}/forget") == {"turns": 1}
    assert page.get("chat")["threads"] == [] and len(workspace.list()["runs"]) == 1


@pytest.mark.parametrize("where", ["page", "approvals", "no"])
def test_a_person_is_asked_on_the_page_and_may_decide_elsewhere(served, workspace, where):
    script = Script(
        supervisor=[call("delegate", agent="runner", task="argon"), "It is asked for."],
        runner=[call("run_job", **ARGON), "It was begun, or not."],
    )
    page = served(model=script.model)
    asked = page.post("chat/ask", {"goal": "Run argon."})
    question = going_on(page, lambda one: one["question"] is not None)["question"]
    assert question["asked"]["app"] == "lj_argon" and "LAMMPS takes the whole machine" in question["words"]
    assert question["asked"]["node_hours"] == pytest.approx(1 / 6 / len(usable_cores()))
    assert workspace.list()["runs"] == []  # nothing before a yes
    if where == "approvals":
        workspace.grant(question["approval"])
    else:
        page.post(f"chat/turn/{asked['turn']}/answer", {"question": question["id"], "yes": where == "page"})
    turn = going_on(page, ended)
    assert turn["state"] == "answered"
    assert len(workspace.list()["runs"]) == (0 if where == "no" else 1)
    again = {"question": question["id"], "yes": True}
    assert "no such question" in page.post(f"chat/turn/{asked['turn']}/answer", again, status=404)["error"]


def test_a_question_is_stopped_in_the_midst_of_a_run_and_what_was_begun_is_said(served, workspace):
    begun = threading.Event()

    def waits(seen: Any) -> Any:
        begun.set()
        return call("wait_for", id=seen.data()["run_id"])

    script = Script(
        supervisor=[call("delegate", agent="runner", task="a long one"), "never"],
        runner=[call("run_job", kind="synthetic@1.0.0", params={"x": 0.3, "run_time_s": 600.0}), waits, "never"],
    )
    page = served(model=script.model)
    asked = page.post("chat/ask", {"goal": "Run a long one."})
    assert begun.wait(60)
    busy = page.post("chat/ask", {"goal": "And another?", "thread": asked["thread"]}, status=503)
    assert "not answered yet" in busy["error"]
    page.post(f"chat/turn/{asked['turn']}/stop")
    assert going_on(page, ended)["state"] == "stopped"
    (run,) = workspace.list()["runs"]
    assert run["state"] in ("pending", "running")  # it goes on
    (told,) = page.get(f"chat/thread/{asked['thread']}")["turns"]
    assert told["reply"]["state"] == "stopped" and "What was started goes on" in told["reply"]["text"]
    assert run["id"] in [one for made in told["reply"]["calls"] for one in made["runs"]]


def test_without_a_model_it_says_what_to_do(page, monkeypatch):
    for name in ("HPCAGENT_MODEL", "HPCAGENT_MODEL_URL", "HPCAGENT_MODEL_KEY"):
        monkeypatch.delenv(name, raising=False)
    standing = page.get("chat")
    assert not standing["ready"] and "HPCAGENT_MODEL" in standing["why"]
    assert page.post("chat/ask", {"goal": "What?"}, status=400)["error"] == standing["why"]


def test_a_model_that_fails_is_an_answer_that_stopped(served):
    def broken(seen: Any) -> Any:
        raise RuntimeError("the wire is cut")

    page = served(model=Script(supervisor=broken).model)
    page.post("chat/ask", {"goal": "What?"})
    turn = going_on(page, ended)
    assert turn["state"] == "failed" and "the wire is cut" in turn["error"]


def test_anothers_conversation_is_not_there(served):
    script = Script(supervisor=lambda seen: "Yes.")
    owner, ada = served(model=script.model), served(as_="ada", model=script.model)
    asked = owner.post("chat/ask", {"goal": "Is it?"})
    going_on(owner, ended)
    assert ada.get("chat")["threads"] == []
    assert "error" in ada.post("chat/ask", {"goal": "And?", "thread": asked["thread"]}, status=403)
