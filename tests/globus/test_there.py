"""Requests answered in the real workers of every engine, and MPI runs on the nodes that the engine gave them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import json, os, sys, uuid
from globus_compute_sdk import Client, Executor
from hpcagent.sites.endpoint import protocol

def entry(request):
    from hpcagent.sites.endpoint.there import answer
    return answer(request)

def order(name, function, **resources):
    resources = {"nodes": 1, "ranks_per_node": 1, "threads_per_rank": 1, "walltime_s": 60} | resources
    manifest = {"execution_id": name, "seed": 1, "replicate": 0, "params": {}, "resources": resources}
    return {"manifest": manifest, "function": f"apps_there:{function}", "settings": {}, "left_out": {},
            "promises": {"x": ["1", True]}, "site": {"launcher": "parsl_mpi"}}

root, init, told = sys.argv[1], sys.argv[2], {}
for engine in json.loads(sys.argv[3]):
    options = {"engine": engine} | ({"worker_init": init} if engine in ("htex", "mpi") else {})
    spec = {"num_nodes": 2, "num_ranks": 6} if engine == "mpi" else None
    with Executor(endpoint_id=os.environ["RIG_ENDPOINT"], client=Client(), task_group_id=uuid.uuid4(),
                  api_burst_limit=8, api_burst_window_s=1, user_endpoint_config=options) as there:
        there.resource_specification = spec
        if engine == "mpi":
            orders = [order("mpi", "mpi", nodes=2, ranks_per_node=2)]
        else:
            orders = [order(f"{engine}-1", "fine"), order(f"{engine}-2", "crashes"), order(f"{engine}-3", "fine")]
        answer = there.submit(entry, protocol.run(root, orders))
        try:
            told[engine] = answer.result(150)
        except TimeoutError:  # the SDK would wait for it at its end
            print(f"no answer of {engine} within 150 s", file=sys.stderr, flush=True)
            os._exit(1)
print(json.dumps(told))
"""

APPS = """
import ctypes
from hpcagent.apps.ending import run_mpi

def fine():
    return {"x": 1.0}

def crashes():
    ctypes.string_at(0)

def mpi(run):
    said = run_mpi(run, ["/bin/echo", "ran"])
    print(said.stdout)
    return {"x": float(said.returncode)}
"""


def answers(rig: Any, where: Path, engines: list[str], init: str = "") -> dict[str, Any]:
    (where / "mine.py").write_text(SCRIPT)
    words = [sys.executable, str(where / "mine.py"), str(where / "there" / "c"), init, json.dumps(engines)]
    done = rig.run(["env", f"RIG_ENDPOINT={rig.endpoint.id}", *words], cwd=where)
    return dict(json.loads(str(done.stdout).splitlines()[-1]))


def test_the_workers_of_every_engine_answer_and_live_after_a_crash(
    rig: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apps_there.py").write_text(APPS)
    # No worker_init for the engines without workers of their own: the endpoint's process is the worker.
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setitem(rig.endpoint.environment, "PYTHONPATH", path)
    nodes, bin_ = tmp_path / "nodes", tmp_path / "bin"
    nodes.write_text("n1\nn2\nn3\n")
    bin_.mkdir()
    launcher = bin_ / "mpiexec"
    launcher.write_text('#!/bin/sh\necho "started: $*"\n')
    launcher.chmod(0o755)
    init = f"export PBS_NODEFILE={nodes} PATH={bin_}:$PATH"
    told = answers(rig, tmp_path, ["mpi", "threads", "processes", "htex"], init)
    for engine in ("htex", "threads", "processes"):
        assert "error" not in told[engine], told[engine]
        states = [one["status"] for one in told[engine]["answers"]]
        assert states == ["COMPLETED", "FAILED", "COMPLETED"], engine
        assert told[engine]["answers"][1]["failure"]["name"] == "FunctionCrashed"
    assert told["mpi"]["answers"][0]["status"] == "COMPLETED", told["mpi"]
    said = (tmp_path / "there" / "c" / "work" / "mpi" / "output.txt").read_text()
    assert said.startswith("started: -n 4 -ppn 2 -hosts n1,n2 env ") and "3.0" not in said
