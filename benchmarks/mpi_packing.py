"""Small MPI runs on a node that has room for several: packed by hpcagent, one after another by Parsl's MPIExecutor.

Both in turn in one process, on one node of a private Slurm that claims eight cores, started by srun. A run is a real
MPI program of two ranks that sleeps between two barriers: this machine has fewer cores than the node claims, so the
ranks must not compete for them. What is measured is therefore placement and the start of the ranks, not physics.

    python benchmarks/mpi_packing.py [--runs 8] [--seconds 2] [--ranks 2] [--rounds 2]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import parsl
from parsl.config import Config
from parsl.executors import MPIExecutor
from parsl.launchers import SimpleLauncher
from parsl.providers import SlurmProvider

import hpcagent as ha

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "slurm"))
sys.path.insert(0, str(ROOT / "tests" / "slurm" / "mpi"))

from cluster import Cluster  # noqa: E402
from placed import MPICH, RANK, mpich  # noqa: E402

CORES = 8
PROFILE = f"""\
kind = "slurm"
address = "127.0.0.1"
poll_s = 1
[nodes.node]
cores = {CORES}
[queues.debug]
node = "node"
[block]
queue = "debug"
walltime = "00:30:00"
max_idletime = 600
[executors.mpi]
mode = "mpi"
[apps.mpich]
launcher = "srun"
"""


class Wide(Cluster):
    """One node that claims more cores than this machine has."""

    def _configure(self) -> None:
        super()._configure()
        conf = self.folder / "slurm.conf"
        text = conf.read_text().replace("CPUs=2", f"CPUs={CORES}")
        # MPICH names shared memory after job and step; what killed runs left of that breaks another job 1.
        conf.write_text(f"{text}FirstJobId={random.SystemRandom().randrange(10_000, 60_000_000)}\n")


class EverySecond(SlurmProvider):  # type: ignore[misc]  # Parsl has no type information
    """Parsl's provider, which polls once a minute."""

    @property
    def status_polling_interval(self) -> float:
        return 1.0


def ranks_run(
    rank: str, library: str, python: str, seconds: float, folder: str, parsl_resource_specification: object = None
) -> str:
    """The command of one run, as Parsl's documentation writes it."""
    return f"cd {folder} && $PARSL_MPI_PREFIX --overlap --mpi=pmi2 {python} -S {rank} {library} {seconds}"


def stock(runs: int, seconds: float, ranks: int) -> float:
    """Seconds for all runs, once the block has made one."""
    folder = Path(tempfile.mkdtemp(prefix="packing-"))
    provider = EverySecond(
        partition="debug",
        walltime="00:30:00",
        exclusive=True,
        worker_init=f"export PATH={Path(sys.executable).parent}:$PATH",
        launcher=SimpleLauncher(),
        scheduler_options=f"#SBATCH --ntasks-per-node={CORES}",
    )
    executor = MPIExecutor(
        label="mpi",
        address="127.0.0.1",
        # At most the nodes of a block, says its documentation; with more, one of 12 runs stayed pending for ever.
        max_workers_per_block=1,
        mpi_launcher="srun",
        provider=provider,
    )
    needs = {"num_nodes": 1, "ranks_per_node": ranks, "num_ranks": ranks}
    with parsl.load(Config(executors=[executor], run_dir=str(folder), initialize_logging=False)):
        task = parsl.bash_app(ranks_run)

        def start(number: int, lasts: float) -> object:
            (folder / str(number)).mkdir()
            words = (RANK, MPICH, sys.executable, lasts, str(folder / str(number)))
            return task(*words, parsl_resource_specification=needs)

        start(runs, 0.0).result()  # type: ignore[attr-defined]
        began = time.perf_counter()
        for future in [start(number, seconds) for number in range(runs)]:
            future.result()  # type: ignore[attr-defined]
        took = time.perf_counter() - began
    parsl.clear()
    made = len(list(folder.glob("*/rank-*.json")))
    assert made == (runs + 1) * ranks, f"{made} ranks have told of themselves"
    shutil.rmtree(folder)
    return took


def ours(runs: int, seconds: float, ranks: int) -> float:
    """As `stock`, with a manifest and a result of each run."""
    folder = Path(tempfile.mkdtemp(prefix="packing-"))
    (folder / "site.toml").write_text(PROFILE)
    with ha.open_site(folder / "site.toml", run_dir=folder / "run"):
        first = mpich(nodes=1, ranks=ranks, copy=runs, seconds=0.0).result()
        assert first.ok, first.failure
        began = time.perf_counter()
        futures = [mpich(nodes=1, ranks=ranks, copy=number, seconds=seconds) for number in range(runs)]
        results = [future.result() for future in futures]
        took = time.perf_counter() - began
    assert all(r.ok and r["size"] == ranks for r in results), [r.failure for r in results if not r.ok]
    shutil.rmtree(folder)
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    beside = CORES // args.ranks
    best = -(-args.runs // beside) * args.seconds
    print(
        f"{args.runs} runs of {args.ranks} ranks and {args.seconds} s on a node of {CORES} cores: {best:.1f} s at best"
    )
    ratios = []
    # Parsl starts its interchange by bare name.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with Wide(nodes=1) as cluster:
        os.environ.update(cluster.env)
        for _ in range(args.rounds):
            theirs = stock(args.runs, args.seconds, args.ranks)
            mine = ours(args.runs, args.seconds, args.ranks)
            ratios.append(theirs / mine)
            print(f"Parsl's MPIExecutor {theirs:.1f} s; hpcagent {mine:.1f} s: {ratios[-1]:.2f} times as fast")
    print(f"median: {statistics.median(ratios):.2f} times as fast; {beside} at most")


if __name__ == "__main__":
    main()
