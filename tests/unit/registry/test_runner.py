"""The script that calls a tool's function, as a program of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from hpcagent.registry import runner
from hpcagent.registry.record import digest_of

SPEC = {"data": ["values"], "files": [], "outputs": {"f": "number"}, "numbers": ["f"], "table": False}


@pytest.fixture
def answer(tmp_path):
    """Call it in a folder: with the text, the arguments, the digest of another text."""

    def call(text, arguments, *, approved="", **spec):
        shutil.copy(runner.__file__, tmp_path / "runner.py")
        (tmp_path / "tool.py").write_text(text)
        words = [sys.executable, "-I", "runner.py", "f", digest_of(approved or text), json.dumps(SPEC | spec)]
        done = subprocess.run(words, cwd=tmp_path, input=json.dumps(arguments), capture_output=True, text=True)
        assert done.returncode == 0 and len(done.stdout.splitlines()) == 1, done
        return json.loads(done.stdout)

    return call


def test_another_text_than_was_approved_is_not_loaded(answer, tmp_path):
    text = "open('loaded', 'w')\ndef f(x):\n    return x\n"
    found = answer(text, {"x": 1}, approved="def f(x):\n    return x\n")
    assert found["status"] == "error" and "another one than was approved" in found["message"]
    assert not (tmp_path / "loaded").exists()


def test_what_it_prints_is_no_answer_and_lists_come_as_json(answer, tmp_path):
    text = "import os\nprint('at the top')\ndef f(values):\n    print('x'); os.system('echo y')\n    return sum(values)\n"
    assert answer(text, {"values": "[1, 2, 4]"}) == {"status": "success", "result": {"f": 7.0}}
    assert json.loads((tmp_path / "value.json").read_text()) == 7


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('too cold')", "ValueError: too cold"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("return None", "f is no number"),
        ("return object()", "no plain data"),
        ("return 'x'", "f is no number"),
        ("return values", "f is no number"),
    ],
)
def test_what_goes_wrong_is_an_answer(answer, body, said):
    found = answer(f"def f(values):\n    {body}\n", {"values": "[1]"})
    assert found["status"] == "error" and said in found["message"]
    assert answer("def f(values):\n    return 1\n", {"values": "[1"})["message"].startswith("values is no JSON")


def test_a_table_of_which_no_key_is_known_is_a_value(answer, tmp_path):
    spec = {"outputs": {"f": "value"}, "numbers": ["size"], "table": True}
    text = "import numpy as np\ndef f(values):\n    return {'a': np.arange(2), 'b': {3}}\n"
    assert answer(text, {"values": "[]"}, **spec)["result"] == {"size": 2}
    assert json.loads((tmp_path / "value.json").read_text()) == {"a": [0, 1], "b": [3]}
    missing = {"outputs": {"a": "number", "c": "number"}, "numbers": ["a", "c"], "table": True}
    assert (
        "c was promised" in answer("def f(values):\n    return {'a': 1}\n", {"values": "[]"}, **missing)["message"]
    )
