"""The work that is disturbed: a run that says when it begins and when it is done."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from pathlib import Path

import hpcagent as ha


def work(n: int, seconds: float, folder: str, eats_mb: int = 0) -> dict[str, float]:
    """Sleep, and leave a mark before and after."""
    mark = Path(folder, "marks")
    name = f"{n}-{os.environ.get('SLURM_JOB_ID', os.environ.get('PBS_JOBID'))}-{uuid.uuid4().hex[:6]}"
    (mark / f"begun-{name}").touch()
    for _ in range(int(_told(folder, "prints_mb"))):
        print("x" * (1 << 20), flush=True)
    if n == 3 and _told(folder, "daemons") == "1":
        subprocess.run(["env", "-i", "setsid", "sh", "-c", "sleep 3033 &"], check=True)
    eaten = bytearray(eats_mb << 20)
    for i in range(0, len(eaten), 4096):
        eaten[i] = 1
    time.sleep(seconds)
    (mark / f"done-{name}").touch()
    return {"square": float(n * n)}


def _told(folder: str, what: str) -> str:
    return Path(folder, what).read_text()


@ha.app(
    parameters={
        "n": ha.Int(0, 1000),
        "seconds": ha.Float(0, 1000, unit="s", default=2.0),
        "eats_mb": ha.Int(0, 10000, unit="MB", default=0),
    },
    metrics={"square": "1"},
    resources=ha.Resources(walltime_s=60),
)
def square(n: int, seconds: float, eats_mb: int) -> dict[str, float]:
    """The square of n, slowly. Number 3 eats what it is told to, the others nothing."""
    return work(n, seconds, os.environ["FAULTS_FOLDER"], eats_mb if n == 3 else 0)
