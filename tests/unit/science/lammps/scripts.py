"""A script and apps made of it, for tests of contracts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.science.lammps.contract import lammps

SCRIPT = """\
variable timestep index 0.002
variable steps    index 1000
variable mode     index b
variable level    index 2
variable seed     index 12345
units metal
timestep ${timestep}
velocity all create 80 ${seed}
print "${mode} $(v_level)"
run ${steps}
"""


TIMESTEP = """
[variables.timestep]
low = 0.0005
high = 0.01
unit = "ps"
"""


def app_of(folder: Path, contract: str | None = None, script: str = SCRIPT, **more: Any) -> App:
    (folder / "in.md").write_text(script)
    if contract is not None:
        (folder / "md.toml").write_text(contract)
    return lammps(folder / "in.md", **more)
