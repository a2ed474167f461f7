"""A Python function on the MPI ranks of a run: what it gives, and how it fails."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hpcagent.apps import over_ranks, worker
from hpcagent.apps.base import App
from hpcagent.apps.decorator import app
from hpcagent.apps.ranks import group
from hpcagent.apps.rebuilt import Travelled
from hpcagent.apps.run import Run, note
from hpcagent.errors import AppFailed, BadInput
from hpcagent.model.contract import Resources
from hpcagent.model.parameter import Choice, Int
from hpcagent.model.records import Result

pytest.importorskip("mpi4py")
TWO = Resources(ranks_per_node=2, walltime_s=120)


def squared(number: int) -> int:
    return number * number


@app(mpi=True, parameters={"n": Int(0, 1000)}, metrics={"total": "1", "ranks": "1"}, resources=TWO)
def summed(n: int, run: Run) -> dict[str, float] | None:
    note(f"rank {run.comm.rank} was here")
    values = run.each(squared, range(n))
    assert values == [i * i for i in range(n)], "on every rank, in order"
    total = run.comm.reduce(sum(values[run.comm.rank :: run.comm.size]))
    return {"total": total, "ranks": run.comm.size} if run.comm.rank == 0 else None


@app(
    mpi=True,
    parameters={"how": Choice("raise", "late", "disk", "exit", "crash", "alone")},
    metrics={"y": "1"},
    resources=TWO,
)
def failing(how: str, run: Run) -> dict[str, float]:
    if run.comm.rank == 1:
        match how:
            case "raise":
                raise AppFailed("it is not there.", kind="simulation", name="LostAtoms", repair="look for it")
            case "late":
                run.comm.recv()
                Path("rank-0-is-done").stat()
            case "disk":
                raise OSError(28, "No space left on device")
            case "exit":
                os._exit(7)
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "alone":
                time.sleep(3600)
    if how == "late" and run.comm.rank == 0:
        run.comm.send(True, 1)
        return {"y": 1.0}
    (run.workdir / "pids").write_text(str(os.getpid()))
    run.comm.Barrier()
    return {"y": 1.0}


def execute(made: App, folder: Path, **params: object) -> Result:
    manifest = made.manifest(params)
    # As it goes to a worker.
    order = pickle.loads(
        pickle.dumps(made.order(manifest, work=folder, site={"node_cores": 2, "launcher": "hydra"}))
    )
    return Result.model_validate({"manifest": manifest, **worker.execute(order)})


def test_a_function_runs_on_all_ranks_and_what_rank_0_returns_is_the_outcome(tmp_path: Path) -> None:
    result = execute(summed, tmp_path, n=100)
    assert result.metrics == {"total": 328350.0, "ranks": 2.0}, result.failure
    assert set(result.notes) == {"rank 0 was here", "rank 1 was here"}
    kept = {path.name for path in (tmp_path / result.manifest.execution_id).iterdir()}
    assert kept == {"manifest.json", "result.json", "output.txt", "ranks-answer.json"}


def test_one_rank_has_a_communicator_too(tmp_path: Path) -> None:
    result = execute(summed.with_resources(ranks_per_node=1), tmp_path, n=3)
    assert result.metrics == {"total": 5.0, "ranks": 1.0}, result.failure


@pytest.mark.parametrize(
    ("how", "kind", "name", "said"),
    [
        ("raise", "simulation", "LostAtoms", "it is not there. (rank 1 of 2)"),
        ("late", "infrastructure", "FileNotFoundError", "rank-0-is-done"),
        ("disk", "infrastructure", "DiskFull", "(rank 1 of 2)"),
        ("exit", "contract", "FunctionExited", "exit code 7"),
        ("crash", "simulation", "FunctionCrashed", "SIGSEGV"),
    ],
)
def test_a_rank_that_fails_ends_the_run_while_the_others_wait_for_it(
    tmp_path: Path, how: str, kind: str, name: str, said: str
) -> None:
    result = execute(failing, tmp_path, how=how)
    assert result.failure is not None
    assert (result.failure.kind, result.failure.name) == (kind, name), result.failure
    assert said in result.failure.message
    if how == "raise":
        assert result.failure.repair == "look for it" and "test_over_ranks.py" in result.failure.log_tail


def test_a_walltime_ends_all_ranks(tmp_path: Path) -> None:
    result = execute(failing.with_resources(walltime_s=3), tmp_path, how="alone")
    assert result.failure is not None and result.failure.name == "Walltime"
    pids = tmp_path / result.manifest.execution_id / "pids"
    deadline = time.monotonic() + 60
    while pids.exists() and psutil.pid_exists(int(pids.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not pids.exists() or not psutil.pid_exists(int(pids.read_text()))


SCRIPT = """
import hpcagent as ha

FACTOR = 3


def times(x):
    return FACTOR * x


@ha.app(mpi=True, parameters={"n": ha.Int(1, 9)}, metrics={"y": "1"}, resources=ha.Resources(ranks_per_node=2, walltime_s=120))
def of_a_script(n, run):
    return {"y": sum(run.each(times, range(n))) * run.comm.size}


@ha.chain(parameters={"n": ha.Int(1, 9)}, metrics={"y": "1"})
def doubled(n):
    return {"y": 2 * of_a_script(n=n).result().metrics["y"]}


if __name__ == "__main__":
    with ha.open_site("laptop"):
        print(of_a_script(n=4).result().metrics["y"], doubled(n=4).result().metrics["y"])
"""


def test_functions_of_scripts_travel_to_the_ranks_by_hand_and_in_a_chain(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.stdout.split() == ["36.0", "72.0"], done.stderr


def test_a_call_that_somebody_else_wrote_is_not_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ranks-call.pickle").write_bytes(b"cos\nabort\n(tR.")
    assert over_ranks.main(tmp_path, "0" * 64) == 1
    assert "nothing of it was read" in capfd.readouterr().out


def test_without_mpi4py_the_failure_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group.importlib.util, "find_spec", lambda name: None)
    result = execute(summed, tmp_path, n=1)
    assert result.failure is not None and result.failure.name == "NoEngine"
    assert "pip install" in str(result.failure.repair)


def test_what_cannot_run_on_ranks_is_refused_when_it_is_defined() -> None:
    with pytest.raises(BadInput, match="no argument `run`"):

        @app(mpi=True, metrics={"y": "1"})
        def without() -> dict[str, float]:
            return {"y": 1.0}

    with pytest.raises(BadInput, match="yields"):

        @app(mpi=True, metrics={"y": "1"})
        def step_by_step(run: Run):  # type: ignore[no-untyped-def]
            yield {"y": 1.0}


def test_how_runs_are_started_is_no_part_of_what_an_app_is() -> None:
    def function(x: int, run: Run) -> dict[str, float]:
        return {"y": 1.0}

    options = {"parameters": {"x": Int(0, 1)}, "metrics": {"y": "1"}}
    plain, together = app(**options)(function), app(**options, ensemble=True)(function)
    assert together.shares_launches and not plain.shares_launches and together.digest == plain.digest
    assert plain.with_settings(mode="ensemble").shares_launches
    assert not together.with_settings(mode="call").shares_launches
    with pytest.raises(BadInput, match="Allowed: call, ensemble"):
        plain.with_settings(mode="canonical")
    # A statistical ensemble, say: that decides what a run gives.
    made = app(**options, settings={"mode": "ensemble"})(function)
    assert not made.shares_launches and made.digest != plain.digest
    assert made.with_settings(mode="canonical").settings == {"mode": "canonical"}
    both = app(**options, ensemble=True, settings={"mode": "ensemble"})(function)
    assert both.shares_launches and both.digest == made.digest


def test_each_without_ranks_is_a_loop(tmp_path: Path) -> None:
    assert Run(workdir=tmp_path).each(squared, range(4)) == [0, 1, 4, 9]


def test_a_function_from_an_endpoint_goes_on_to_the_ranks() -> None:
    sent = Travelled("json:loads", "")
    assert pickle.loads(pickle.dumps(sent)).function()("[1]") == [1]
    assert json.loads("[1]") == sent.function()("[1]")


DRAWS = """
import os
import time
from mpi4py import MPI
from hpcagent.apps.each import each

comm = MPI.COMM_WORLD
before = comm.recv(source=1) if comm.rank == 0 else None


def work(number):
    if comm.rank == 0:
        # Away from MPI until the other rank has done all the rest.
        while not open("done").read():
            time.sleep(0.01)
    else:
        done.append(number)
        if len(done) == 9:
            open("done", "w").write("all")
    return number


done = []
if comm.rank == 1:
    open("done", "w").close()
    comm.send(1, 0)
numbers = each(work, range(10), comm)
assert numbers == list(range(10))
os.write(1, f"{comm.rank} {len(done)}\\n".encode())  # in one piece: two ranks share the pipe
"""


def test_a_rank_that_is_busy_with_one_item_keeps_no_other_from_the_rest(tmp_path: Path) -> None:
    (tmp_path / "draws.py").write_text(DRAWS)
    hydra = Path(sys.prefix) / "bin" / "mpiexec.hydra"
    if not hydra.exists():
        pytest.skip("MPICH is not installed")
    words = [hydra, "-launcher", "fork", "-n", "2", sys.executable, "draws.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert sorted(done.stdout.split("\n")) in (["", "0 0", "1 9"], ["", "0 0", "1 10"]), done.stderr
