"""Functions of a user's own in a sandbox: the same numbers, and what hostile ones try does not work."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.apps.base import App, app
from hpcagent.apps.sandbox.record import Sandbox
from hpcagent.apps.worker import execute
from hpcagent.errors import BadInput

MODULE = '''
import os
import socket
import time

import hpcagent as ha
from hpcagent.apps.run import Outcome

import {helper}

with open({trace!r}, "a") as file:
    file.write(f"{{os.getpid()}}\\n")


def take(x, run):
    return {code}
'''


@pytest.fixture(params=["limits", "bubblewrap"])
def tier(request):
    """Both tiers, one after the other."""
    request.getfixturevalue("without_bubblewrap" if request.param == "limits" else "with_bubblewrap")
    return request.param


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Makes an app of a function in a module of the user's, whose body is an expression; forgets the module."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    count = 0

    def make(code: str, *, before: str = "", sandbox: object = "bubblewrap", **more: object) -> App:
        nonlocal count
        count += 1
        name, helper = (f"{what}_{time.time_ns():x}_{count}" for what in ("theirs", "helper"))
        (folder / f"{helper}.py").write_text("def twice(x):\n    return 2 * x\n")
        trace = str(folder / "trace")
        text = MODULE.format(helper=helper, trace=trace, code=code.replace("HELPER", helper))
        (folder / f"{name}.py").write_text(text.replace("    return", f"{before}    return"))
        Path(trace).write_text("")
        module = __import__(name)
        found = app(
            parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"}, name="theirs", sandbox=sandbox, **more
        )(module.take)
        for one in (name, helper):
            sys.modules.pop(one)
        Path(trace).write_text("")
        return found

    return make


def run(app: App, folder: Path, x: float = 0.25, *, times: list[int] = [0], upstream=(), **more):  # noqa: B006
    times[0] += 1
    order = app.order(app.manifest({"x": x}, seed=7), work=folder / f"{times[0]}" / "work", site={"name": "here"})
    return execute(order | more, *upstream)


def failure(result) -> tuple[str, str, str]:
    assert result["status"] == "FAILED", result
    return result["failure"]["name"], result["failure"]["kind"], result["failure"]["message"]


# ---- an honest one


def test_it_gives_what_it_gives_without_and_its_module_is_run_in_the_box_only(tier, made, tmp_path):
    code = "Outcome(metrics={'y': HELPER.twice(x) + run.seed / 3}, artifacts={'text': 'out/a.txt'}, notes=('told',))"
    before = (
        "    os.mkdir('out'); open('out/a.txt', 'w').write('kept'); open('b.txt', 'w').write('lost'); print('said')\n"
    )
    boxed = made(code, before=before, sandbox=tier)
    result = run(boxed, tmp_path)
    assert result["status"] == "COMPLETED", result
    assert not any(name.startswith(("theirs_", "helper_")) for name in sys.modules)
    pids = (tmp_path / "modules" / "trace").read_text().split()
    assert str(os.getpid()) not in pids
    assert len(pids) == (1 if tier == "limits" else 0)
    assert result["metrics"] == {"y": 0.5 + 7 / 3}
    folder = Path(result["workdir"])
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == [
        "manifest.json",
        "out/a.txt",
        "output.txt",
        "result.json",
    ]
    assert (folder / "out" / "a.txt").read_text() == "kept"
    assert (folder / "output.txt").read_text() == "said\n"
    notes = " ".join(result["notes"])
    assert "told" in notes
    assert f"ran in the sandbox {tier}" in notes
    assert "b.txt is no declared output" in notes
