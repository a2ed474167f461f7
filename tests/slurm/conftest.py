"""Two private Slurm clusters as fixtures: one without accounting, one with it (and with memory limits)."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def _beside(name: str) -> Any:
    """A module of this folder; the folder is no package and not on sys.path."""
    full = f"tests_slurm_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).parent / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


cluster_module = _beside("cluster")


def _require(*, accounting: bool) -> None:
    missing = cluster_module.missing_packages(accounting=accounting)
    if missing:
        words = (
            f"no Slurm to test with; install the packages of tests/apt.txt: apt-get install {' '.join(missing)}"
        )
        if os.environ.get("CI") == "true":
            pytest.fail(words)
        pytest.skip(words)


@pytest.fixture(scope="session")
def the_cluster() -> Iterator[Any]:
    _require(accounting=False)
    with cluster_module.Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def the_accounting_cluster() -> Iterator[Any]:
    _require(accounting=True)
    with cluster_module.Cluster(accounting=True, memory_kill=True) as cluster:
        yield cluster


def use(cluster: Any, patch: pytest.MonkeyPatch) -> None:
    """Make every Slurm command of this process one of this cluster."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_", "SQUEUE_", "SACCT_")):
            patch.delenv(name)
    for name, value in cluster.env.items():
        patch.setenv(name, value)


def _lent(cluster: Any, patch: pytest.MonkeyPatch) -> Iterator[Any]:
    use(cluster, patch)
    yield cluster
    if not cluster.has_controller:
        cluster.start_controller()
    cluster.resume(*cluster.nodes)
    deadline = time.monotonic() + 60
    while (left := cluster.jobs()) and time.monotonic() < deadline:
        if any(state != "COMPLETING" for state, _ in left.values()):
            break
        time.sleep(0.2)
    cluster.cancel_all()
    while cluster.processes() and time.monotonic() < deadline:  # a job's end and its processes' are not one moment
        time.sleep(0.1)
    processes = cluster.kill_leftovers()
    assert not left, f"the test left jobs: {left}"
    assert not processes, f"the test left processes of jobs: {processes}"


@pytest.fixture
def cluster(the_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The cluster without accounting: n1 to n4 of 2 CPUs, partitions debug (default) and short (2 minutes)."""
    yield from _lent(the_cluster, monkeypatch)


@pytest.fixture
def accounting_cluster(the_accounting_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """As `cluster`, with sacct; a job over its --mem is killed."""
    yield from _lent(the_accounting_cluster, monkeypatch)


_ENDINGS = {
    "completed": "true",
    "failed": "exit 3",
    "signalled": "sleep 0.2; kill -9 $$",
    "cancelled": "exec sleep 300",
    "timeout": "exec sleep 300",
    "node_failed": "exec sleep 300",
}


@pytest.fixture(scope="session")
def endings(the_cluster: Any, the_accounting_cluster: Any) -> dict[str, dict[str, str]]:
    """{"plain" or "accounting": {how it ended: job id}}; made together, because a timeout takes half a minute."""
    clusters = {"plain": the_cluster, "accounting": the_accounting_cluster}
    ids: dict[str, dict[str, str]] = {}
    for kind, cluster in clusters.items():
        ids[kind] = {}
        for how, script in _ENDINGS.items():
            where = "-w n4 --no-requeue" if how == "node_failed" else "-x n4"
            wrapped = f"sbatch --parsable -n1 --mem=50 {where} -o /dev/null -t 5 -J {how}"
            ids[kind][how] = cluster.run(f"{wrapped} <<'END'\n#!/bin/bash\n{script}\nEND")
    for kind, cluster in clusters.items():
        for how in ("cancelled", "timeout", "node_failed"):
            cluster.wait_for(ids[kind][how], "RUNNING")
        cluster.run(f"scancel {ids[kind]['cancelled']}")
        cluster.run_out(ids[kind]["timeout"])
        cluster.down("n4")
    for kind, cluster in clusters.items():
        cluster.wait_for(ids[kind]["node_failed"], "NODE_FAIL")
        cluster.wait_for(ids[kind]["timeout"], "TIMEOUT")
        cluster.resume("n4")
        for how in ("completed", "failed", "signalled", "cancelled"):
            cluster.wait_for(ids[kind][how], "COMPLETED", "FAILED", "CANCELLED")
    return ids
