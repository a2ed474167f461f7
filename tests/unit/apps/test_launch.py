"""Ranks that are really started, where the run was placed, and ended in time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.apps.ending import Limit, run_mpi
from hpcagent.apps.launch import FIELDS, LAUNCHERS, Place, check_template, launch_words, planned
from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed, BadInput
from hpcagent.lifeline import node_name

# In one write: lines of two ranks must not run into each other.
SHOW = (
    "import os; e = os.environ; rank = e.get('PMI_RANK', e.get('OMPI_COMM_WORLD_RANK')); "
    "cores = ','.join(map(str, sorted(os.sched_getaffinity(0)))); "
    "os.write(1, f'rank {rank} cores {cores} threads {e[\"OMP_NUM_THREADS\"]}\\n'.encode())"
)
SHOWN = [sys.executable, "-S", "-c", SHOW]
CORES = sorted(os.sched_getaffinity(0))
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def placed(
    hosts: dict[str, list[int]], first: str = "n1", gpus: dict[str, list[str]] | None = None
) -> dict[str, str]:
    listed = [{"name": n, "cores": c, "gpus": (gpus or {}).get(n, [])} for n, c in hosts.items()]
    return {"HPCAGENT_PLACE": json.dumps({"hosts": listed, "first": first})}


def run_of(folder: Path = Path(), site: dict[str, Any] | None = None, **resources: Any) -> Run:
    return Run(workdir=folder, resources=resources, site=site or {})


def words_of(launcher: str, environ: dict[str, str], **resources: Any) -> list[str]:
    launch = planned(run_of(site={"launcher": launcher}, **resources), ["lmp"], environ=environ)
    return launch.words


def hydra_or_skip() -> None:
    if not (Path(sys.prefix) / "bin" / "mpiexec.hydra").is_file():
        pytest.skip("the mpich package is not installed")


# --- the words


TWO_BY_TWO = {"nodes": 2, "ranks_per_node": 2, "threads_per_rank": 2}
WHOLE = placed({"n1": [0, 1, 2, 3], "n2": [0, 1, 2, 3]})
ENV = ["env", "OMP_NUM_THREADS=2", "OMP_PROC_BIND=false", "lmp"]


def test_srun_shares_the_job_and_takes_masks() -> None:
    words = words_of("srun", WHOLE, **TWO_BY_TWO)
    assert words[:2] == ["srun", "--overlap"]
    assert {"--nodes=2", "--nodelist=n1,n2", "--ntasks=4", "--ntasks-per-node=2"} <= set(words)
    assert "--cpu-bind=mask_cpu:0x3,0xc" in words
    # --cpus-per-task implies --exact, under which Slurm refuses the masks.
    assert not [w for w in words if w.startswith(("-c", "--cpus-per-task", "--exact"))]
    assert words[-4:] == ENV


def test_pals_takes_depth_and_a_list() -> None:
    words = words_of("mpiexec", WHOLE, **TWO_BY_TWO)
    assert " ".join(words[:-4]) == ("mpiexec -n 4 --ppn 2 --depth 2 --hosts n1,n2 --cpu-bind list:0,1:2,3")


def test_open_mpi_maps_whole_nodes_itself() -> None:
    words = words_of("openmpi", WHOLE, **TWO_BY_TWO)
    assert " ".join(words[:-4]) == "mpirun -np 4 --host n1:2,n2:2 --map-by ppr:2:node:PE=2 --bind-to core"


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        ("mpiexec -n 6 -ppn 3.0 -hosts n1,n2 ", "mpiexec -n 4 -ppn 2 -hosts n1,n2"),
        ("aprun -n 6 -N 3.0 -node-list n1,n2 ", "aprun -n 4 -N 2 -d 2 -node-list n1,n2"),
        (
            "srun --ntasks 4 --ntasks-per-node 2 --nodelist n1,n2 --nodes 2 ",
            "srun --overlap --nodes=2 --nodelist=n1,n2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=2 --mem=0 "
            "--kill-on-bad-exit=1 --export={A}",
        ),
    ],
)
def test_an_endpoints_mpi_engine_says_the_nodes_and_the_launcher_and_the_run_its_ranks(
    prefix: str, words: str
) -> None:
    """A task that was sent with num_ranks alone has `-ppn 3.0` in its prefix, which no launcher takes."""
    environ = {"PARSL_MPI_PREFIX": prefix, "PARSL_MPI_NODELIST": "n1,n2", "PARSL_NUM_RANKS": "6"}
    if "{A}" in words:
        environ["PARSL_LAUNCHER_OPTIONS"] = "--export={A}"
    for site in ({}, {"launcher": "parsl_mpi"}):
        launch = planned(run_of(site=site, **TWO_BY_TWO), ["lmp"], environ=environ)
        assert " ".join(launch.words[:-4]) == words and launch.words[-4:] == ENV
        assert "PARSL_MPI_NODELIST" not in launch.env  # what the program starts has no nodes to give
    serial = planned(run_of(), ["lmp"], environ=environ)
    assert "n1" in " ".join(serial.words) and "n2" not in " ".join(serial.words)
    with pytest.raises(AppFailed, match="needs 3 nodes"):
        planned(run_of(nodes=3), ["lmp"], environ=environ)


def test_a_serial_run_on_the_node_of_the_mpi_engines_worker_needs_no_launcher() -> None:
    environ = {"PARSL_MPI_PREFIX": "mpiexec -n 1", "PARSL_MPI_NODELIST": node_name()}
    assert planned(run_of(site={"launcher": "parsl_mpi"}), ["lmp"], environ=environ).words == ["lmp"]
    # Without the engine it is hydra, on this machine.
    words = planned(run_of(site={"launcher": "parsl_mpi"}, ranks_per_node=2), ["lmp"], environ={}).words
    assert "fork" in words and "localhost" in words


def test_ibrun_skips_the_slots_of_the_hosts_before() -> None:
    job = {"SLURM_JOB_NODELIST": "c4-[008-010,012]", "SLURM_TASKS_PER_NODE": "48(x3),24"}
    environ = placed({"c4-010": [0, 1], "c4-012": [0, 1]}, first="c4-008") | job
    assert words_of("ibrun", environ, nodes=2, ranks_per_node=2)[:5] == ["ibrun", "-n", "4", "-o", "96"]


def test_a_serial_run_on_the_workers_own_host_needs_no_launcher_and_elsewhere_it_does() -> None:
    here, there = placed({"n1": [3]}), placed({"n2": [3]})
    own = planned(run_of(site={"launcher": "srun"}), ["lmp"], environ=here)
    assert (own.words, own.cores, own.launcher) == (["lmp"], (3,), None)
    assert "--nodelist=n2" in words_of("srun", there)


def test_hosts_with_different_cores_are_not_bound_by_one_list() -> None:
    uneven = placed({"n1": [0, 1], "n2": [2, 3]})
    words = words_of("srun", uneven, nodes=2, ranks_per_node=2)
    assert "--cpu-bind=none" in words and not [w for w in words if "mask" in w]
    site = {"launcher": "mine", "launchers": {"mine": ["start", "--cores={cpus}"]}}
    with pytest.raises(AppFailed, match="give it whole nodes"):
        planned(run_of(site=site, nodes=2), ["lmp"], environ=uneven)


def test_ranks_are_spread_over_the_cores_and_share_them_only_where_there_are_too_few() -> None:
    wide = placed({"n1": list(range(8))})
    assert "--cpu-bind=mask_cpu:0x3,0x30" in words_of("srun", wide, ranks_per_node=2, threads_per_rank=2)
    narrow = placed({"n1": [4, 5]})
    assert "--cpu-bind=mask_cpu:0x30,0x30,0x30" in words_of("srun", narrow, ranks_per_node=3)


def test_a_launcher_of_the_profile_is_filled_in_and_goes_before_a_built_in_one() -> None:
    site = {"launcher": "srun", "launchers": {"srun": ["srun", "--mpi=pmix", "-n{ranks}", "-w", "{hosts}"]}}
    launch = planned(run_of(site=site, ranks_per_node=2), ["lmp"], environ=placed({"n1": [0, 1]}))
    assert launch.words[:5] == ["srun", "--mpi=pmix", "-n2", "-w", "n1"]


def test_an_apps_own_launcher_and_variables_go_before_the_sites() -> None:
    apps = {"lammps": {"launcher": "openmpi", "env": {"OMP_PROC_BIND": "spread"}}}
    run = run_of(site={"launcher": "srun", "apps": apps}, ranks_per_node=2)
    words, env = launch_words(run, ["lmp"])
    assert words[0] == "mpirun" and "OMP_PROC_BIND=spread" in words
    assert env["OMP_PROC_BIND"] == "spread"
    assert planned(run, ["lmp"], app="other").words[0] == "srun"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("-n{rank}", r"unknown field {rank}.*did you mean 'ranks'.*Allowed:.*{cpu_masks}"),
        ("-n{ranks", "no template"),
    ],
)
def test_a_template_that_cannot_be_filled_in_is_refused(word: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        check_template(["srun", word], "site x, launchers.mine")


def test_the_built_in_launchers_pass_their_own_check() -> None:
    for name, launcher in LAUNCHERS.items():
        for words in (launcher.words + launcher.bound, launcher.words + launcher.unbound):
            check_template(words, name)
    assert set(FIELDS) > {"ranks", "nodes", "hosts"}


def test_an_unknown_launcher_is_named_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"'sruun' is not known; did you mean 'srun'"):
        words_of("sruun", placed({"n1": [0, 1]}), ranks_per_node=2)


def test_a_launcher_inside_a_launcher_is_refused() -> None:
    with pytest.raises(AppFailed, match="give the program alone"):
        planned(run_of(ranks_per_node=2), ["/opt/bin/mpirun", "-np", "2", "lmp"], environ={})


def test_more_nodes_than_the_worker_has_is_said() -> None:
    with pytest.raises(AppFailed, match=r'needs 2 nodes, but its worker was given 1.*mode "mpi"'):
        planned(run_of(nodes=2), ["lmp"], environ={})


def test_gpus_reach_the_program_after_the_scheduler_has_set_its_own() -> None:
    gpus = {"n1": ["2", "3"]}
    run = run_of(site={"launcher": "srun", "gpu_env": "ROCR_VISIBLE_DEVICES"}, ranks_per_node=2)
    launch = planned(run, ["lmp"], environ=placed({"n1": [0, 1]}, gpus=gpus))
    assert "ROCR_VISIBLE_DEVICES=2,3" in launch.words[launch.words.index("env") :]


def test_what_another_launcher_left_in_the_environment_is_taken_out() -> None:
    # A worker that srun started has these; MPICH would look for a process manager that is not there.
    left = {"PMI_FD": "7", "PMI_RANK": "0", "PMIX_RANK": "0", "SLURM_CPUS_PER_TASK": "4", "SLURM_MEM_PER_CPU": "9"}
    kept = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "PATH": os.environ["PATH"]}
    for resources in ({}, {"ranks_per_node": 2}):
        env = planned(run_of(**resources), ["lmp"], environ=left | kept | placed({"n1": [0, 1]})).env
        assert not set(left) & set(env)
        assert kept.items() <= env.items()


def test_threads_are_pinned_only_where_their_cores_are_theirs() -> None:
    # Unbound ranks with OMP_PROC_BIND=close all sit on the first core: 150 times slower, measured.
    pinned = planned(run_of(threads_per_rank=2), ["lmp"], environ=placed({"n1": [0, 1]})).env
    assert pinned["OMP_PROC_BIND"] == "close"
    for environ in ({}, placed({"n1": [0]})):
        assert planned(run_of(threads_per_rank=2), ["lmp"], environ=environ).env["OMP_PROC_BIND"] == "false"


# --- really started


def shown(printed: str) -> dict[str, str]:
    lines = [line.split() for line in printed.splitlines() if line.startswith("rank")]
    return {line[1]: line[3] for line in lines}


@two_cores
@pytest.mark.mpi
def test_hydra_starts_every_rank_on_cores_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hydra_or_skip()
    for key, value in placed({"here": [CORES[1], CORES[0]]}, first="here").items():
        monkeypatch.setenv(key, value)
    done = run_mpi(run_of(tmp_path, ranks_per_node=2), SHOWN)
    assert done.returncode == 0
    assert shown(done.stdout) == {"0": str(CORES[1]), "1": str(CORES[0])}


@two_cores
@pytest.mark.mpi
def test_without_a_place_two_ranks_start_on_the_workers_own_cores(tmp_path: Path) -> None:
    hydra_or_skip()
    done = run_mpi(run_of(tmp_path, ranks_per_node=2), SHOWN)
    assert shown(done.stdout) == {"0": str(CORES[0]), "1": str(CORES[1])}


@two_cores
def test_a_serial_run_is_pinned_to_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in placed({"here": [CORES[1]]}, first="here").items():
        monkeypatch.setenv(key, value)
    assert shown(run_mpi(run_of(tmp_path), SHOWN).stdout) == {"None": str(CORES[1])}
    assert sorted(os.sched_getaffinity(0)) == CORES  # and only the run


@pytest.mark.mpi
def test_open_mpi_starts_every_rank_on_the_runs_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = shutil.which("mpirun", path="/usr/bin:/usr/local/bin:/opt/openmpi/bin")
    if found is None or b"Open MPI" not in subprocess.run([found, "--version"], capture_output=True).stdout:
        assert os.environ.get("CI") != "true", "tests/apt.txt names openmpi-bin, but it is not installed"
        pytest.skip("Open MPI is not installed")
    monkeypatch.setenv("PATH", f"{Path(found).parent}:{os.environ['PATH']}")
    for key, value in placed({"here": [CORES[0]]}, first="here").items():
        monkeypatch.setenv(key, value)
    site = {"apps": {"mine": {"launcher": "openmpi"}}}
    done = run_mpi(run_of(tmp_path, site, ranks_per_node=2), SHOWN, app="mine")
    assert shown(done.stdout) == {"0": str(CORES[0]), "1": str(CORES[0])}, done.stdout


@pytest.mark.mpi
def test_every_rank_ends_when_the_limit_is_reached(tmp_path: Path) -> None:
    hydra_or_skip()
    code = "import os, time; open(f'pid.{os.environ[\"PMI_RANK\"]}', 'w').write(str(os.getpid())); time.sleep(60)"
    with pytest.raises(AppFailed, match=r"walltime limit of 1\.5 s") as error:
        run_mpi(run_of(tmp_path, ranks_per_node=2, walltime_s=1.5), [sys.executable, "-S", "-c", code])
    assert error.value.details["name"] == "Walltime"
    pids = [int(path.read_text()) for path in tmp_path.glob("pid.*")]
    assert len(pids) == 2
    assert not [pid for pid in pids if alive(pid)]


@pytest.mark.mpi
def test_every_rank_ends_when_the_worker_is_killed(tmp_path: Path) -> None:
    hydra_or_skip()
    code = "import os, time; open(f'pid.{os.environ[\"PMI_RANK\"]}', 'w').write(str(os.getpid())); time.sleep(60)"
    worker = (
        "import sys; from pathlib import Path; from hpcagent.apps.ending import run_mpi; "
        "from hpcagent.apps.run import Run; "
        f"run_mpi(Run(workdir=Path({str(tmp_path)!r}), resources={{'ranks_per_node': 2}}), "
        f"[sys.executable, '-S', '-c', {code!r}])"
    )
    process = subprocess.Popen([sys.executable, "-c", worker])
    wait_for(lambda: len([p for p in tmp_path.glob("pid.*") if p.read_text()]) == 2)
    process.kill()
    process.wait()
    pids = [int(path.read_text()) for path in tmp_path.glob("pid.*")]
    wait_for(lambda: not [pid for pid in pids if alive(pid)])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def wait_for(fact: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AppFailed, match="no-such-program cannot be started"):
        run_mpi(run_of(tmp_path), ["/no-such-program"])


# --- limits


@pytest.mark.parametrize(
    ("own", "left", "by", "seconds"),
    [
        (None, None, "default", 3600),
        (60.0, None, "walltime", 60),
        (None, 7200, "block", 7200),  # on a cluster the block alone decides
        (60.0, 7200, "walltime", 60),
        (60.0, 30, "block", 30),
        (60.0, -5, "block", -5),
    ],
)
def test_what_ends_first_is_the_limit(own: float | None, left: float | None, by: str, seconds: float) -> None:
    environ = {} if left is None else {"HPCAGENT_BLOCK_ENDS": str(time.time() + left)}
    limit = Limit.of(run_of(walltime_s=own), environ=environ)
    assert (limit.by, limit.seconds) == (by, pytest.approx(seconds, abs=5))


def test_a_run_whose_block_is_over_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCAGENT_BLOCK_ENDS", str(time.time() - 1))
    with pytest.raises(AppFailed, match="stopped before it began: the usable time of its block is over") as error:
        run_mpi(run_of(tmp_path), ["touch", "started"])
    assert (error.value.details["name"], error.value.details["kind"]) == ("BlockEnded", "infrastructure")
    assert not (tmp_path / "started").exists()


def test_what_a_killed_rank_leaves_in_memory_is_removed(tmp_path: Path) -> None:
    # Stands for MPICH, which names the segment so and removes it when the program ends well.
    program = "import os, sys, time; open(sys.argv[1], 'w').write(p := f'/dev/shm/mpich_shm_{os.getpid():x}_0')"
    program += "; open(p, 'w').close(); time.sleep(60)"
    with pytest.raises(AppFailed, match="walltime"):
        run_mpi(run_of(tmp_path, walltime_s=2.0), [sys.executable, "-c", program, "name"])
    assert not Path((tmp_path / "name").read_text()).exists()


def test_no_place_is_none() -> None:
    assert Place.of({}) is None


# --- resources that a parameter decides


def test_an_app_of_ones_own_may_take_its_ranks_from_a_parameter() -> None:
    def scaled(ranks: int) -> dict[str, float]:
        return {"speed": float(ranks)}

    made = ha.app(
        parameters={"ranks": ha.Choice(1, 2, 4)},
        metrics={"speed": "1"},
        resources_from={"ranks_per_node": "ranks"},
    )(scaled)
    assert [made.manifest({"ranks": n}).resources.cores for n in (1, 4)] == [1, 4]
    assert made.contract.largest_resources().cores == 4
    assert made.contract.largest_resources(ha.Space.of(ranks=ha.Choice(1, 2))).cores == 2
    with pytest.raises(BadInput, match="only a parameter of whole numbers can"):
        ha.app(
            parameters={"ranks": ha.Choice("few", "many")},
            metrics={"speed": "1"},
            resources_from={"nodes": "ranks"},
        )(scaled)


@pytest.mark.parametrize(
    ("library", "launcher"), [("libmpi_mpifh.so.40", "openmpi"), ("libmpi.so.40", "openmpi"), ("libm.so.6", None)]
)
def test_where_nobody_chose_a_launcher_a_program_of_open_mpi_gets_its_own(tmp_path, library, launcher):
    program = tmp_path / "pw.x"
    program.write_bytes(b"\x7fELF" + bytes(100) + library.encode() + bytes(100))
    program.chmod(0o755)
    if launcher is None:
        hydra_or_skip()
        assert planned(run_of(ranks_per_node=2), [sys.executable, str(program)]).launcher == "hydra"
        return
    assert planned(run_of(ranks_per_node=2), [str(program)]).launcher == launcher
    # What a site says goes before what we can see.
    told = {"apps": {"mine": {"launcher": "srun"}}}
    assert planned(run_of(site=told, ranks_per_node=2), [str(program)], app="mine").launcher == "srun"
