"""Which model is asked: nothing is sent unless it is configured, and nothing but what is meant for it."""

from __future__ import annotations

import pytest

import hpcagent as ha
from hpcagent.agents.models import chosen
from tests.unit.agents.openai_like import OpenAiLike, last_data, tools_in


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch):
    for name in (
        "HPCAGENT_MODEL",
        "HPCAGENT_MODEL_URL",
        "HPCAGENT_MODEL_KEY",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def requests_allowed(monkeypatch):
    from pydantic_ai import models

    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", True)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "nothing was sent. Set HPCAGENT_MODEL"),
        ({"HPCAGENT_MODEL": "qwen3"}, "names no provider"),
        ({"HPCAGENT_MODEL_URL": "http://127.0.0.1:1/v1"}, "HPCAGENT_MODEL is not"),
        ({"HPCAGENT_MODEL": "m", "HPCAGENT_MODEL_URL": "file:///etc/passwd"}, "is no address"),
        ({"HPCAGENT_MODEL": "m", "HPCAGENT_MODEL_URL": "http://me:secret@host/v1"}, "user or password"),
        ({"HPCAGENT_MODEL": "m", "HPCAGENT_MODEL_URL": "http://host:x/v1"}, "is no URL"),
        (
            {"HPCAGENT_MODEL": "m", "HPCAGENT_MODEL_URL": "http://node17:8000/v1", "HPCAGENT_MODEL_KEY": "k"},
            "without encryption",
        ),
    ],
)
def test_what_is_not_configured_is_one_clear_error(monkeypatch, environment, words):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ha.BadInput, match=words) as error:
        chosen()
    assert "secret" not in str(error.value)


def test_an_argument_comes_before_the_environment(monkeypatch):
    monkeypatch.setenv("HPCAGENT_MODEL", "qwen3")
    monkeypatch.setenv("HPCAGENT_MODEL_URL", "http://127.0.0.1:11434/v1/")
    assert chosen().url == "http://127.0.0.1:11434/v1"
    assert chosen("llama4").url == "http://127.0.0.1:11434/v1"
    assert chosen("openai:gpt-5").url == ""
    assert chosen("m", "https://host/v1").url == "https://host/v1"


def test_a_provider_without_its_key_is_a_clear_error(workspace):
    with pytest.raises(ha.BadInput, match=r"OPENAI_API_KEY.*Nothing was sent"):
        ha.Supervisor(workspace, model="openai:gpt-5")
    with pytest.raises(ha.BadInput, match="Nothing was sent"):
        ha.Supervisor(workspace, model="nobody:gpt-5")


def says(body):
    if "delegate" in tools_in(body):
        asked = body["messages"][-1]["role"] == "tool"
        return f"So: {last_data(body)['says']}" if asked else ("delegate", {"agent": "runner", "task": "run it"})
    roles = [one["role"] for one in body["messages"]].count("tool")
    if roles == 0:
        return "run_job", {"kind": "synthetic", "params": {"timestep": 0.0015, "skin": 2.0}}
    if roles == 1:
        return "wait_for", {"id": last_data(body)["run_id"]}
    return f"value {last_data(body)['metrics']['value']} of {last_data(body)['run_id']}"


def test_the_real_client_drives_the_five_steps_over_a_loopback_server(workspace, monkeypatch, requests_allowed):
    monkeypatch.setenv("HPCAGENT_MODEL_KEY", "the-key-of-this-server")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-somebody-else")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-of-somebody-else")
    with OpenAiLike(says) as server:
        reply = ha.Supervisor(workspace, model="scripted", url=server.url).ask("what is the value?")
    assert reply.state == "answered" and reply.numbers[0].run == reply.runs[0]
    assert (reply.requests, reply.input_tokens, reply.output_tokens) == (5, 500, 50)
    for headers, body in server.requests:
        assert headers["authorization"] == "Bearer the-key-of-this-server"
        assert "somebody-else" not in str(headers) + str(body)
        assert "the-key-of-this-server" not in str(body)
    assert not (workspace.folder.root / "threads.sqlite").read_bytes().count(b"the-key-of-this-server")


def test_a_server_that_is_not_there_or_fails_or_talks_nonsense_is_an_answer(workspace, requests_allowed):
    with OpenAiLike(says) as server:
        gone = server.url
    reply = ha.Supervisor(workspace, model="scripted", url=gone).ask("hello")
    assert reply.state == "stopped" and f"scripted at {gone}" in reply.text and "could not be asked" in reply.text
    assert "HPCAGENT_MODEL_URL" in reply.text and "Connection error." in reply.text
    with OpenAiLike(lambda body: b'{"error": {"message": "no"}}', status=401) as server:
        reply = ha.Supervisor(workspace, model="scripted", url=server.url).ask("hello")
    assert reply.state == "stopped" and "could not be asked" in reply.text
    with OpenAiLike(lambda body: b"<html>busy</html>") as server:
        reply = ha.Supervisor(workspace, model="scripted", url=server.url).ask("hello")
    assert reply.state == "stopped"
