"""`hpcagent ask`: a question, a conversation, what would be sent, who there is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic_ai import models

import hpcagent
from tests.shell import forked
from tests.unit.agents.openai_like import OpenAiLike
from tests.unit.agents.test_models import says


@pytest.fixture
def ask(workspace, tmp_path, monkeypatch):
    """Call `hpcagent ask` in a process of its own: a fork of this one, or where a test says so as users do."""

    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", True)  # to the servers of these tests, in forks

    def run(*words, stdin="", begun=False, **environment):
        bare = {name: value for name, value in os.environ.items() if not name.startswith("HPCAGENT_MODEL")}
        env = bare | {"PYTHONPATH": str(Path(hpcagent.__file__).parents[1]), **environment}
        words = ("ask", "--workspace", str(workspace.folder.root), *words)
        if not begun:
            return forked(*words, cwd=tmp_path, env=env, input=stdin)
        command = [sys.executable, "-m", "hpcagent.cli", *words]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=180
        )

    return run


def test_without_a_model_there_is_a_list_and_one_clear_error(ask):
    done = ask("hello", begun=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: no language model is configured, and nothing was sent")
    done = ask("--list")
    assert done.returncode == 0 and "  run_job: " in done.stdout and "decide_approval" not in done.stdout
    done = ask("--show-sent", "--json", "what is the value?")
    sent = json.loads(done.stdout)
    assert sent["to"].startswith("nobody") and sent["goal"].startswith("what is the value?")


def test_a_question_shows_each_call_and_a_conversation_goes_on(ask):
    with OpenAiLike(says) as server:
        model = {"HPCAGENT_MODEL": "scripted", "HPCAGENT_MODEL_URL": server.url}
        done = ask("what is the value?", "--thread", "study", **model)
        assert done.returncode == 0, done.stderr
        assert "called runner.run_job [r-" in done.stderr
        assert "So: value " in done.stdout and "What ran:" in done.stdout
        first = len(server.requests)
        done = ask("--thread", "study", "--json", stdin="and again?\n\n", **model)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["thread"] == "study"
        assert "what is the value?" in str(server.requests[first][1]["messages"])
        calls = [json.loads(line) for line in done.stderr.splitlines()]
        assert {"calling", "called"} <= {one["event"] for one in calls}
    done = ask("--threads")
    assert done.stdout.startswith("study  ") and "2 turns" in done.stdout
    assert "2 turns were removed" in ask("--forget", "study").stdout
    assert ask("--threads").stdout == ""


def test_a_model_that_is_not_there_is_exit_code_one(ask):
    with OpenAiLike(says) as server:
        gone = server.url
    done = ask("hello", HPCAGENT_MODEL="scripted", HPCAGENT_MODEL_URL=gone)
    assert done.returncode == 1 and "could not be asked" in done.stdout
