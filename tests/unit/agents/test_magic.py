"""`%ask` in a real IPython shell."""

from __future__ import annotations

import builtins

import pytest

pytest.importorskip("IPython")

from IPython.core.interactiveshell import InteractiveShell

from hpcagent.errors import BadInput
from tests.unit.agents.conftest import RULES, Script, call

ASKS = RULES + '[[approval]]\napp = "synthetic"\nbecause = "it is a test"\n'


@pytest.fixture
def shell():
    """A shell with the extension."""
    made = InteractiveShell.instance()
    made.extension_manager.load_extension("hpcagent.agents.magic")
    yield made
    made.extension_manager.loaded.discard("hpcagent.agents.magic")
    InteractiveShell.clear_instance()


def scripted(shell, script):
    """Put a script in the place of a model."""
    shell.magics_manager.magics["line"]["ask"].__self__.model = script.model


def test_a_question_is_answered_with_its_steps_and_the_next_one_goes_on(shell, workspace, monkeypatch, capsys):
    monkeypatch.setenv("HPCAGENT_WORKSPACE", str(workspace.folder.root))
    script = Script(
        supervisor=[
            call("delegate", agent="bookkeeper", task="what has run?"),
            "Nothing has run.",
            "Still nothing.",
        ],
        bookkeeper=[call("list_runs"), "Nothing."],
    )
    scripted(shell, script)
    first = shell.run_line_magic("ask", "What has run, and isn't it much?")
    assert (first.text, first.state) == ("Nothing has run.", "answered")
    assert "bookkeeper.list_runs" in capsys.readouterr().out
    second = shell.run_cell_magic("ask", "--node-hours 1", "And now?\n")
    assert second.thread == first.thread and len(script.of("supervisor")[-1].messages) > 2
    script.says["supervisor"] = iter(["Anew."])
    assert shell.run_cell_magic("ask", "--new", "And now?").thread != first.thread


@pytest.mark.parametrize(("says", "runs"), [("y", 1), ("n", 0), (None, 0)])
def test_a_yes_is_asked_for_below_the_cell(shell, workspace, monkeypatch, capsys, says, runs):
    (workspace.folder.root / "workspace.toml").write_text(ASKS)

    def answer(words):
        if says is None:
            raise EOFError
        return says

    monkeypatch.setattr(builtins, "input", answer)
    script = Script(
        supervisor=[call("delegate", agent="runner", task="x = 0.3"), "It was asked for."],
        runner=[call("run_job", kind="synthetic@1.0.0", params={"x": 0.3}), "Done, or not."],
    )
    scripted(shell, script)
    shell.run_cell_magic("ask", f"--workspace {workspace.folder.root}", "Run it.")
    assert "it is a test" in capsys.readouterr().out
    assert len(workspace.list()["runs"]) == runs


def test_what_is_wrong_with_a_line_is_said(shell):
    ask = shell.magics_manager.magics["line"]["ask"]
    for line, words in {
        "--hours 1 what?": "unrecognized",
        "": "no question",
        "--node-hours x what?": "invalid",
    }.items():
        with pytest.raises(BadInput, match=words):
            ask(line)
