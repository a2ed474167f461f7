"""Scripts that a model has written: off unless the rules let them run, and what a run of one leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpcagent.errors import BadInput
from hpcagent.gate.rules import Rules
from hpcagent.registry import script
from hpcagent.registry.scripts import as_lines, script_app, scripts_on

RULES = Rules(base_agents={"shell": "limits", "compute": "bubblewrap"})


@pytest.mark.parametrize("name", ["shell_command", "python_code"])
def test_a_script_is_off_unless_a_rule_names_its_sandbox(name):
    assert scripts_on(Rules()) == {}
    with pytest.raises(BadInput, match="base_agents"):
        script_app(name, Rules())
    asked = script_app(name, RULES).settings["sandbox"]
    assert asked["require"] == scripts_on(RULES)[name] and not asked["network"]


def test_several_lines_are_a_list_and_too_many_are_refused():
    app = script_app("shell_command", RULES)
    assert as_lines(app, {"lines": "cd x\nls"}) == {"lines": '["cd x", "ls"]'}
    assert as_lines(app, {"lines": "ls"}) == {"lines": "ls"}
    with pytest.raises(BadInput, match="register a tool"):
        as_lines(app, {"lines": "echo hello\n" * 1000})


def ran(folder: Path, kind: str, lines: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-I", script.__file__, kind]
    asked = json.dumps({"lines": lines, "file": ""})
    return subprocess.run(words, cwd=folder, input=asked, capture_output=True, text=True, timeout=60)


def test_the_exit_code_of_a_shell_is_its_number_and_its_files_are_kept(tmp_path):
    done = ran(tmp_path, "shell", '["echo hi", "echo 7 > x", "exit 3"]')
    assert (done.returncode, done.stdout) == (0, "hi\n")
    assert json.loads((tmp_path / "values.json").read_text()) == {"exit_code": 3}
    assert (tmp_path / "made" / "x").read_text() == "7\n"
    assert (tmp_path / "made" / "printed.txt").read_text() == "hi\n"


def test_python_gives_the_number_that_it_leaves(tmp_path):
    assert ran(tmp_path, "python", "result = 6 * 7").returncode == 0
    assert json.loads((tmp_path / "values.json").read_text()) == {"result": 42}


@pytest.mark.parametrize("text", ["print(1)", "result = 'many'", "result = float('nan')", "1 / 0", "exit(2)"])
def test_python_without_a_finite_number_is_a_failure(tmp_path, text):
    done = ran(tmp_path, "python", text)
    assert done.returncode != 0 and not (tmp_path / "values.json").exists()
