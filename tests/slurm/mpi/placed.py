"""Apps that tell where they were put: MPI programs of two MPIs, and serial ones."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import hpcagent as ha
from hpcagent.apps import run_mpi

RANK = str(Path(__file__).with_name("rank.py"))
MPICH = str(Path(sys.prefix) / "lib" / "libmpi.so.12")
OPEN_MPI = "libmpi.so.40"
SIZE = {
    "nodes": ha.Int(1, 16, default=1),
    "ranks": ha.Int(1, 16, default=2),
    "copy": ha.Int(0, 1000, default=0),
    "seconds": ha.Float(0, 100, unit="s", default=1.0),
}
FROM = {"nodes": "nodes", "ranks_per_node": "ranks"}


def ranks(workdir: str | Path) -> list[dict[str, Any]]:
    """What the ranks of a run have told, by number."""
    return sorted((json.loads(p.read_text()) for p in Path(workdir).glob("rank-*.json")), key=lambda r: r["rank"])


def serial(seconds: float) -> dict[str, Any]:
    """The same of this process, for that long."""
    began = time.time()
    time.sleep(seconds)
    return {
        "node": os.environ.get("SLURMD_NODENAME", ""),
        "job": os.environ.get("SLURM_JOB_ID", ""),
        "cores": sorted(os.sched_getaffinity(0)),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "began": began,
        "ended": time.time(),
    }


@ha.app(parameters=SIZE, metrics={"size": "1"}, resources=ha.Resources(walltime_s=46), resources_from=FROM)
def mpich(nodes: int, ranks: int, copy: int, seconds: float, run: ha.Run) -> dict[str, float]:
    """A program of the MPICH in this environment."""
    return _of_ranks(run, [sys.executable, "-S", RANK, MPICH, str(seconds)], "mpich")


@ha.app(parameters=SIZE, metrics={"size": "1"}, resources=ha.Resources(walltime_s=46), resources_from=FROM)
def openmpi(nodes: int, ranks: int, copy: int, seconds: float, run: ha.Run) -> dict[str, float]:
    """A program of the system's Open MPI."""
    return _of_ranks(run, ["/usr/bin/env", "python3", "-S", RANK, OPEN_MPI, str(seconds)], "openmpi")


@ha.app(
    parameters={
        "gpus": ha.Int(0, 4),
        "copy": ha.Int(0, 1000, default=0),
        "seconds": ha.Float(0, 100, default=1.0),
    },
    metrics={"size": "1"},
    resources=ha.Resources(ranks_per_node=1, walltime_s=40),
    resources_from={"gpus_per_node": "gpus"},
)
def on_gpus(gpus: int, copy: int, seconds: float, run: ha.Run) -> dict[str, float]:
    """A program of one rank with GPUs."""
    return _of_ranks(run, [sys.executable, "-S", RANK, MPICH, str(seconds)], "mpich")


def _of_ranks(run: ha.Run, words: list[str], app: str) -> dict[str, float]:
    (run.workdir / "place.json").write_text(os.environ.get("HPCAGENT_PLACE", "null"))
    run_mpi(run, words, app=app).check_returncode()
    return {"size": min((rank["size"] for rank in ranks(run.workdir)), default=0)}


@ha.app(inputs=("simulated",), metrics={"ranks": "1", "seconds": "s"}, resources=ha.Resources(walltime_s=40))
def analysis(run: ha.Run) -> dict[str, float]:
    """Reads on one core what a run of ranks has written."""
    found = ranks(run.upstream[0]["workdir"])
    (run.workdir / "serial.json").write_text(json.dumps(serial(0.3)))
    return {"ranks": len(found), "seconds": min(r["ended"] - r["began"] for r in found)}


@ha.app(
    parameters={"copy": ha.Int(0, 1000), "seconds": ha.Float(0, 100, unit="s", default=0.0)},
    metrics={"y": "1"},
    resources=ha.Resources(walltime_s=46),
)
def alone(copy: int, seconds: float, run: ha.Run) -> dict[str, float]:
    """A serial run that says how long it may take."""
    (run.workdir / "serial.json").write_text(json.dumps(serial(seconds)))
    return {"y": copy}


@ha.app(parameters={"copy": ha.Int(0, 1000)}, metrics={"y": "1"}, estimated_runtime_s=1000.0)
def unlimited(copy: int) -> dict[str, float]:
    """A serial run that may take as long as a block lasts, by its contract."""
    return {"y": copy}


@ha.app(
    mpi=True,
    parameters={"bad": ha.Int(-1, 3)},
    metrics={"ranks": "1", "nodes": "1", "total": "1"},
    resources=ha.Resources(nodes=2, ranks_per_node=2, walltime_s=300),
)
def meeting(bad: int, run: ha.Run) -> dict[str, float] | None:
    """All ranks meet; a bad one fails while the others wait for it."""
    if run.comm.rank == bad:
        raise ha.AppFailed("it is not there.", kind="simulation", name="LostAtoms")
    nodes = run.comm.gather(os.environ["SLURMD_NODENAME"])
    total = sum(run.each(abs, range(-20, 0)))
    return {"ranks": run.comm.size, "nodes": len(set(nodes)), "total": total} if run.comm.rank == 0 else None
