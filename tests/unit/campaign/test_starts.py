"""What `hpcagent init` writes runs as it is, and overwrites nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from hpcagent.campaign.starts import list_starts, write_start
from hpcagent.elsewhere import detach
from hpcagent.errors import BadInput

FORKED = Path(__file__).resolve().parents[2] / "forked_command.py"

# What the answer is, from elsewhere: a pendulum's leapfrog of 0.1 % takes h = 0.06 s or so; copper in EMT has
# 3.59 angstrom (Jacobsen, Stoltze and Norskov, Surf. Sci. 366, 394 (1996): 3.61 measured).
BEST = {
    "lammps": lambda best: 0.003 < best["params"]["timestep"] < 0.02,
    "executable": lambda best: best["params"]["scheme"] != "euler" and best["metrics"]["evaluations"] < 1000,
    "function": lambda best: best["params"]["catalyst"] == "Pd" and best["metrics"]["yield"] > 90,
    "dft": lambda best: abs(best["params"]["a"] - 3.6) < 0.03,
}
NEEDS = {"lammps": "lammps", "dft": "ase"}


def hpcagent(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command, in a fork of a process that has its imports (tests/warm.py)."""
    command = [sys.executable, "-IS", str(FORKED), detach.started.address, "hpcagent.cli", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BEST)
def test_a_starting_campaign_runs_as_written_and_finds_its_answer(kind, tmp_path):
    if kind in NEEDS and find_spec(NEEDS[kind]) is None:
        pytest.skip(f"needs {NEEDS[kind]}")
    written = hpcagent("init", kind, "mine", folder=tmp_path)
    assert written.returncode == 0, written.stderr
    assert "hpcagent run campaign.toml" in written.stdout
    done = hpcagent("run", "campaign.toml", "--site", "threads", "--no-plots", "--json", folder=tmp_path / "mine")
    assert done.returncode == 0, done.stderr
    best = json.loads(done.stdout.splitlines()[-1])["best"]
    assert BEST[kind]({k: best[k] for k in ("params", "metrics")}), best


def test_every_kind_is_listed_and_nothing_is_overwritten(tmp_path):
    assert set(list_starts()) == set(BEST)
    for kind, question in list_starts().items():
        assert question.endswith("?"), kind
        assert write_start(kind, tmp_path / kind)[0] == tmp_path / kind / "campaign.toml"
    assert os.access(tmp_path / "executable" / "pendulum", os.X_OK)
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "program.toml").write_text("mine")
    with pytest.raises(BadInput, match=r"program\.toml is there already"):
        write_start("executable", tmp_path / "late")
    assert [path.name for path in (tmp_path / "late").iterdir()] == ["program.toml"]
    with pytest.raises(BadInput, match="did you mean 'lammps'"):
        write_start("lamps", tmp_path)
