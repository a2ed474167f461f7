"""Whatever an engine does to its process, the worker lives and the run has a typed failure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest
from ase import Atoms

from hpcagent.apps.base import App
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import given
from hpcagent.errors import AppFailed
from hpcagent.science.dft.energy import dft_energy
from hpcagent.science.engines.base import Iteration, NotConverged
from hpcagent.science.engines.isolated import FAILURE_MODES, run_isolated

CALCULATORS = """
import math, os, signal, sys, time
from ase.calculators.calculator import Calculator
from hpcagent.science.engines.base import Iteration, NotConverged

class Base(Calculator):
    implemented_properties = ["energy", "forces"]
    default_parameters = {"what": "", "number": 0}
    def calculate(self, atoms=None, properties=None, system_changes=None):
        super().calculate(atoms, properties, system_changes)
        self.results = {"energy": -1.0, "forces": 0 * atoms.positions}
        getattr(self, self.parameters.what, lambda: None)()
    def tell(self):
        self.results["energy"] = float(os.environ["OMP_NUM_THREADS"])
        open("pid", "w").write(str(os.getpid()))
    def kill(self):
        print("about to", flush=True)
        os.kill(os.getpid(), self.parameters.number)
    def sleep(self):
        time.sleep(600)
    def leave(self):
        sys.exit(3)
    def memory(self):
        raise MemoryError("1 TB")
    def disk(self):
        raise OSError(28, "No space left on device", "density.dat")
    def unconverged(self):
        raise NotConverged("no convergence.", history=(Iteration(-1.0, math.nan), Iteration(-2.0, 1.0)), log_tail="its log")
    def nonsense(self):
        self.results["energy"] = math.nan
"""


@pytest.fixture
def wild(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    """`dft_energy` with a calculator from a module beside the user's script."""
    (tmp_path / "wild.py").write_text(CALCULATORS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return dft_energy.with_settings(calculator="wild:Base")


def call(app: App, tmp_path: Path, what: str, number: int = 0, *, resources: Any = None, **params: Any) -> Any:
    app = app.with_settings(keywords={"what": what, "number": number})
    values = app.contract.space.validated({"engine": "ase", **params})
    workdir = tmp_path / "run"
    workdir.mkdir()
    wanted = app.contract.resources_for(values).model_dump() | (resources or {})
    upstream = (given(Atoms("H2", [[0, 0, 0], [0, 0, 1]])).fields,)
    return app.plain_function(
        run=Run(workdir=workdir, settings=app.settings, upstream=upstream, resources=wanted), **values
    )


def failed(app: App, tmp_path: Path, what: str, number: int = 0, **more: Any) -> AppFailed:
    with pytest.raises(AppFailed) as raised:
        call(app, tmp_path, what, number, **more)
    assert raised.value.name in (*FAILURE_MODES, "NonNumeric")
    return raised.value


def test_the_function_runs_in_a_process_of_its_own_with_its_threads(wild: App, tmp_path: Path) -> None:
    outcome = call(wild, tmp_path, "tell", threads=2)
    assert outcome.metrics["energy"] == 2.0
    assert int((tmp_path / "run" / "pid").read_text()) != os.getpid()
    assert outcome.artifacts["structure"] == "structure.xyz"
    assert isinstance(outcome.notes, tuple)


@pytest.mark.parametrize(
    ("signal", "kind", "name", "said"),
    [
        (11, "simulation", "EngineCrashed", "crashed with SIGSEGV"),
        (4, "infrastructure", "EngineCrashed", "SIGILL: built for another processor"),
        (9, "infrastructure", "Killed", "SIGKILL from outside"),
    ],
)
def test_a_crash_is_a_failure_of_this_run(
    signal: int, kind: str, name: str, said: str, wild: App, tmp_path: Path
) -> None:
    error = failed(wild, tmp_path, "kill", signal)
    assert (error.kind, error.name) == (kind, name)
    assert said in error.message
    assert "about to" in error.log_tail
    if signal == 11:
        # Python's own words of where it was.
        assert "Segmentation fault" in error.log_tail
        assert "wild.py" in error.log_tail


def test_its_walltime_ends_it(wild: App, tmp_path: Path) -> None:
    error = failed(wild, tmp_path, "sleep", resources={"walltime_s": 1.5})
    assert (error.kind, error.name) == ("infrastructure", "Walltime")
    assert "1.5 s" in error.message
    workdir = str(tmp_path / "run")
    assert not [p for p in psutil.Process().children(recursive=True) if workdir in p.cmdline()]


@pytest.mark.parametrize(
    ("what", "kind", "name", "said"),
    [
        ("leave", "simulation", "EngineCrashed", "ended with exit code 3"),
        ("memory", "infrastructure", "OutOfMemory", "1 TB"),
        ("nonsense", "simulation", "NonNumeric", "the energy is nan"),
    ],
)
def test_other_ends_are_typed_too(what: str, kind: str, name: str, said: str, wild: App, tmp_path: Path) -> None:
    error = failed(wild, tmp_path, what)
    assert (error.kind, error.name) == (kind, name)
    assert said in error.message


def test_a_full_disk_comes_back_as_one(wild: App, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as raised:
        call(wild, tmp_path, "disk")
    assert raised.value.errno == 28
    assert raised.value.filename == "density.dat"


def test_a_failure_of_the_app_comes_back_whole(wild: App, tmp_path: Path) -> None:
    error = failed(wild, tmp_path, "unconverged")
    assert isinstance(error, NotConverged)
    assert error.history[1] == Iteration(-2.0, 1.0)
    assert error.log_tail.startswith("its log")
    assert error.repair
    assert error.message == "no convergence."
    assert (tmp_path / "run" / "scf.json").is_file()


def test_ranks_for_an_engine_of_one_process_are_refused(wild: App, tmp_path: Path) -> None:
    error = failed(wild, tmp_path, "", ranks=4)
    assert (error.kind, error.name) == ("contract", "BadSettings")
    assert "asks for 4 MPI ranks, but engine 'ase' runs as one process" in error.message


def test_threads_are_given_to_an_engine_that_needs_no_process_of_its_own(wild: App, tmp_path: Path) -> None:
    for threads in (1, 2):
        workdir = tmp_path / str(threads)
        workdir.mkdir()
        values = dft_energy.contract.space.validated({"engine": "tblite", "threads": threads})
        resources = dft_energy.contract.resources_for(values).model_dump()
        upstream = (given(Atoms("H2", [[0, 0, 0], [0, 0, 0.75]])).fields,)
        run = Run(workdir=workdir, settings=dft_energy.settings, upstream=upstream, resources=resources)
        assert dft_energy.plain_function is not None
        assert dft_energy.plain_function(run=run, **values).metrics["energy"] < 0
        assert (workdir / "call.json").is_file() is (threads > 1)


@pytest.mark.parametrize(("ranks", "threads"), [(4, 1), (2, 2), (1, 2)])
def test_an_engine_that_starts_a_program_keeps_ranks_and_threads_for_it(
    ranks: int, threads: int, tmp_path: Path
) -> None:
    # A child would itself be started with the ranks, each of them a run of its own.
    run = Run(workdir=tmp_path, resources={"ranks_per_node": ranks, "threads_per_rank": threads})
    assert run_isolated(process_of, run, engine="espresso").metrics == {"pid": os.getpid()}


def process_of(run: Run, engine: str) -> Outcome:
    return Outcome(metrics={"pid": os.getpid()})


def test_a_file_of_the_run_does_not_hide_a_package(wild: App, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "ase.py").write_text("raise RuntimeError('wrong ase')")
    values = wild.contract.space.validated({"engine": "ase"})
    run = Run(workdir=tmp_path / "run", settings=wild.settings, upstream=(given(Atoms("H")).fields,), resources={})
    assert wild.plain_function(run=run, **values).metrics["energy"] == -1.0
