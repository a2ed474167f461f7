"""A workspace that demands a sandbox: a script and a function of somebody's own are refused without, and run in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.science.lammps.executable import installed
from hpcagent.workspace.app_store import asked
from hpcagent.workspace.core import Core
from hpcagent.workspace.folder import Folder

PATIENCE_S = 120
SCRIPT = """\
units           lj
lattice         fcc 0.8442
region          box block 0 3 0 3 0 3
create_box      1 box
create_atoms    1 box
mass            1 1.0
velocity        all create 1.44 87287
pair_style      lj/cut 2.5
pair_coeff      1 1 1.0 1.0 2.5
fix             1 all nve
thermo          10
run             20
"""
MODULE = """\
import os
import hpcagent as ha

@ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1", "pid": "1"}, name="theirs", SANDBOX)
def theirs(x):
    return {"y": 2 * x, "pid": os.getpid()}
"""


@pytest.fixture
def core(tmp_path: Path, without_bubblewrap: None) -> Iterator[Core]:
    folder = tmp_path / "ws"
    Folder(folder).create()
    text = 'name = "ws"\ndefault_site = "threads"\nrequire_sandbox = "limits"\n'
    (folder / "workspace.toml").write_text(text)
    one = Core(folder)
    yield one
    one.close()


def ended(core: Core, app: str, params: dict[str, Any]) -> dict[str, Any]:
    caller = core.caller(os.getuid())
    return core.wait(caller, core.run(caller, **asked(app), params=params)["id"], PATIENCE_S)


def refused(core: Core, app: str, params: dict[str, Any]) -> NotAllowed:
    with pytest.raises(NotAllowed) as caught:
        core.run(core.caller(os.getuid()), **asked(app), params=params)
    return caught.value


def test_a_function_runs_in_the_sandbox_that_the_workspace_demands(core, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "open_one.py").write_text(MODULE.replace(", SANDBOX", ""))
    (tmp_path / "boxed_one.py").write_text(MODULE.replace("SANDBOX", 'sandbox="limits"'))
    error = refused(core, "open_one:theirs", {"x": 0.25})
    assert (error.check, error.value, error.allowed) == ("sandbox", "none", "at least limits")
    assert 'sandbox="limits" of ha.lammps or @ha.app' in error.do
    done = ended(core, "boxed_one:theirs", {"x": 0.25})
    assert done["state"] == "completed", done
    assert done["metrics"]["y"] == 0.5
    assert done["metrics"]["pid"] != os.getpid()
    for name in ("open_one", "boxed_one"):
        sys.modules.pop(name, None)


@pytest.mark.skipif(installed() is None, reason="the lammps package is not installed")
def test_a_lammps_script_runs_in_the_sandbox_that_the_workspace_demands(core, tmp_path):
    script = tmp_path / "in.theirs"
    script.write_text(SCRIPT)
    assert refused(core, str(script), {}).check == "sandbox"
    boxed = tmp_path / "boxed" / "in.theirs"
    boxed.parent.mkdir()
    boxed.write_text(SCRIPT)
    (boxed.parent / "theirs.toml").write_text('[sandbox]\nrequire = "limits"\n')
    done = ended(core, str(boxed), {})
    assert done["state"] == "completed", done
    assert done["metrics"]["n_atoms"] == 108
