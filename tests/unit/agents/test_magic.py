"""`%ask` in a real IPython shell, and in a real kernel."""

from __future__ import annotations

import builtins
import subprocess
import sys
import threading

import pytest

pytest.importorskip("IPython")

from IPython.core.interactiveshell import InteractiveShell

from hpcagent.errors import BadInput
from tests.unit.agents.conftest import RULES, Script, call

ASKS = RULES + '[[approval]]\napp = "synthetic"\nbecause = "it is a test"\n'


@pytest.fixture
def shell(workspace):
    """A shell with the extension, and the workspace as `group`."""
    made = InteractiveShell.instance()
    made.extension_manager.load_extension("hpcagent")
    made.user_ns["group"] = workspace
    yield made
    made.extension_manager.loaded.discard("hpcagent")
    InteractiveShell.clear_instance()


def runs_it() -> Script:
    """A model that runs something."""
    return Script(
        supervisor=[call("delegate", agent="runner", task="x = 0.3"), "It was asked for."],
        runner=[call("run_job", kind="synthetic@1.0.0", params={"x": 0.3}), "Done, or not."],
    )


def test_a_question_is_answered_with_its_steps_and_the_next_one_goes_on(shell, workspace, monkeypatch, capsys):
    monkeypatch.setenv("HPCAGENT_WORKSPACE", str(workspace.folder.root))
    script = Script(
        supervisor=[
            call("delegate", agent="bookkeeper", task="what has run?"),
            "Nothing has run.",
            "Still nothing.",
            "Anew.",
        ],
        bookkeeper=[call("list_runs"), "Nothing."],
    )
    shell.user_ns["scripted"] = script.model
    first = shell.run_line_magic("ask", "--model scripted What has run?")
    assert (first.text, first.state) == ("Nothing has run.", "answered")
    assert "bookkeeper.list_runs" in capsys.readouterr().out
    second = shell.run_cell_magic("ask", "--node-hours 1 --model scripted", "And now, isn't it?\n")
    assert second.thread == first.thread and len(script.of("supervisor")[-1].messages) > 2
    assert shell.run_cell_magic("ask", "--new --model scripted", "And now?").thread != first.thread


@pytest.mark.parametrize(("says", "runs"), [("y", 1), ("n", 0), (None, 0)])
def test_a_yes_is_asked_for_in_the_thread_of_the_cell(shell, workspace, monkeypatch, capsys, says, runs):
    (workspace.folder.root / "workspace.toml").write_text(ASKS)
    threads = []

    def answer(words):
        threads.append(threading.current_thread())
        if says is None:
            raise EOFError
        return says

    monkeypatch.setattr(builtins, "input", answer)
    shell.user_ns["scripted"] = runs_it().model
    shell.run_cell_magic("ask", "--workspace group --model scripted", "Run it.")
    assert threads == [threading.current_thread()]
    assert "it is a test" in capsys.readouterr().out
    assert len(workspace.list()["runs"]) == runs


def test_an_interrupt_stops_the_question_and_approves_nothing(shell, workspace, monkeypatch):
    (workspace.folder.root / "workspace.toml").write_text(ASKS)

    def interrupted(words):
        raise KeyboardInterrupt

    monkeypatch.setattr(builtins, "input", interrupted)
    shell.user_ns["scripted"] = runs_it().model
    reply = shell.run_cell_magic("ask", "--workspace group --model scripted", "Run it.")
    assert reply.state == "stopped" and workspace.list()["runs"] == []
    assert [one["state"] for one in workspace.approvals()] == ["pending"]


def test_what_is_wrong_with_a_line_is_said(shell):
    ask = shell.magics_manager.magics["line"]["ask"]
    wrong = {"--hours 1 what?": "unrecognized", "": "no question", "--node-hours x what?": "invalid"}
    for line, words in wrong.items():
        with pytest.raises(BadInput, match=words):
            ask(line)


def test_the_package_alone_loads_neither_agents_nor_a_notebook():
    code = "import sys, hpcagent; print([m for m in sys.modules if m.startswith(('IPython', 'hpcagent.agents'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


CELL = """
%load_ext hpcagent
import hpcagent as ha
from tests.unit.agents.test_magic import runs_it
group, scripted = ha.Workspace({root!r}), runs_it().model
reply = %ask --workspace group --model scripted Run it.
print("state", reply.state, len(reply.runs))
group.close()
"""


@pytest.mark.slow
def test_a_kernel_asks_its_frontend(workspace):
    manager = pytest.importorskip("jupyter_client.manager").KernelManager()
    pytest.importorskip("ipykernel")
    (workspace.folder.root / "workspace.toml").write_text(ASKS)
    manager.kernel_spec.argv[0] = sys.executable
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    asked, said = [], []

    def answer(message):
        asked.append(message["content"]["prompt"])
        client.input("y")

    def shown(message):
        said.append(str(message["content"].get("text", message["content"].get("evalue", ""))))

    try:
        client.wait_for_ready(timeout=60)
        code = CELL.format(root=str(workspace.folder.root))
        client.execute_interactive(code, allow_stdin=True, stdin_hook=answer, output_hook=shown, timeout=120)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert asked == ["Run it? [y/N] "], said
    assert "state answered 1" in "".join(said)
    assert len(workspace.list()["runs"]) == 1
